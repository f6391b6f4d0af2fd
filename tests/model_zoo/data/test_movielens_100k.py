# SPDX-License-Identifier: Apache-2.0
"""MovieLens-100k is downloaded and converted once, and every failure says what to do."""

import hashlib
import os
import socket
import subprocess
import zipfile

import pytest

from model_zoo import data
from model_zoo.data import __main__ as command
from model_zoo.data import cache, movielens_100k

# Two users; user 1 has 10 ratings, so the last 2 are the test. Lines are not in order of time.
RATINGS = [
    *[("1", str(10 + n), str(1 + n % 5), str(100 + n)) for n in (9, *range(9))],
    *[("2", str(20 + n), "5", str(200 + n)) for n in range(5)],
]
FILMS = [
    *[(str(10 + n), f"Film {n}, The", "1990", "Drama War") for n in range(10)],
    *[(str(20 + n), "Lost", "unkonwn", "Drama") for n in range(5)],
]
USERS = [("1", "24", "M", "writer", "85711"), ("2", "53", "F", "other", "T8H1N")]


def atomic_file(header, rows):
    return "\n".join("\t".join(row) for row in [header, *rows]) + "\n"


FILES = {
    "ml-100k.inter": atomic_file(
        ("user_id:token", "item_id:token", "rating", "timestamp"), RATINGS
    ),
    "ml-100k.item": atomic_file(("item_id:token", "title", "year", "class"), FILMS),
    "ml-100k.user": atomic_file(("user_id:token", "age", "gender", "occupation", "zip"), USERS),
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small wheel whose SHA-256 is accepted."""
    path = tmp_path / "index" / "recbole-1.2.1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in FILES.items()}
    monkeypatch.setattr(movielens_100k, "_SHA256", sums)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(movielens_100k, "_WHEEL_SHA256", digest)
    return path


@pytest.fixture
def pip(monkeypatch):
    """Replaces pip: copies a given file, or fails with a given text."""

    class Pip:
        calls = 0
        wheel = None
        output = ""

        def __call__(self, arguments, **_):
            self.calls += 1
            assert "--no-deps" in arguments and "recbole==1.2.1" in arguments
            if self.wheel is not None:
                folder = arguments[arguments.index("--dest") + 1]
                with open(os.path.join(folder, self.wheel.name), "wb") as copy:
                    copy.write(self.wheel.read_bytes())
            failed = self.wheel is None
            return subprocess.CompletedProcess(arguments, int(failed), stdout=self.output)

    fake = Pip()
    monkeypatch.setattr(movielens_100k.subprocess, "run", fake)
    return fake


def test_data_is_fetched_once_and_the_cache_holds_nothing_else(tmp_path, wheel, pip):
    pip.wheel = wheel
    folder = data.fetch_movielens_100k(tmp_path / "cache")
    assert data.fetch_movielens_100k(tmp_path / "cache") == folder
    assert pip.calls == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_a_damaged_cache_is_fetched_anew(tmp_path, wheel, pip):
    pip.wheel = wheel
    folder = data.fetch_movielens_100k(tmp_path / "cache")
    (folder / "ml-100k.user").write_text("cut sho")
    data.fetch_movielens_100k(tmp_path / "cache")
    assert (folder / "ml-100k.user").read_text() == FILES["ml-100k.user"]


def test_another_wheel_under_the_same_name_is_refused(tmp_path, wheel, pip):
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    pip.wheel = wheel
    with pytest.raises(data.DataUnavailableError, match="must have SHA-256 .*, got"):
        data.fetch_movielens_100k(tmp_path / "cache")
    assert list((tmp_path / "cache" / "movielens_100k").iterdir()) == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) ... Failed to resolve\n"
            "ERROR: Could not find a version that satisfies the requirement recbole==1.2.1\n"
            "ERROR: No matching distribution found for recbole==1.2.1",
            "no connection to the package index",
        ),
        ("WARNING: Retrying ... Read timed out. (read timeout=10)", "did not answer"),
        ("ERROR: No matching distribution found", "the package index in use does not have it"),
        ("/usr/bin/python: No module named pip", "No module named pip"),
        ("", "pip said nothing"),
    ],
    ids=["no-network", "silent-index", "other-index", "no-pip", "silence"],
)
def test_without_the_wheel_the_command_says_why_and_what_to_do(
    tmp_path, pip, capsys, output, reason
):
    pip.output = output
    assert command.main(["movielens_100k", "--cache_dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert reason in said and "python -m model_zoo.data movielens_100k" in said
    assert said.count("\n") == 1


@pytest.mark.long
def test_an_index_that_never_answers_ends_in_an_error(tmp_path, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        # A name, because the pip of Python 3.13 fails at once with an address.
        monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{server.getsockname()[1]}/simple")
        with pytest.raises(data.DataUnavailableError, match="did not answer in 2 s"):
            data.fetch_movielens_100k(tmp_path, timeout_seconds=2)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, pip):
    (tmp_path / "file").write_text("")
    with pytest.raises(data.DataUnavailableError, match="cache_dir must be a folder to write to"):
        data.fetch_movielens_100k(tmp_path / "file")


def test_the_command_says_whose_data_it_is(tmp_path, wheel, pip, capsys):
    pip.wheel = wheel
    assert command.main(["movielens_100k", "--cache_dir", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in ("GroupLens", "research", "not to be redistributed", "Harper", "Konstan", "2015"):
        assert part in said


def test_the_cache_follows_the_xdg_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache.default_cache_dir()) == "/somewhere/rec_estimator"


def test_each_rating_is_a_line_with_its_user_and_film_in_order_of_time(tmp_path, wheel, pip):
    pip.wheel = wheel
    folder = movielens_100k.prepare_movielens_100k(tmp_path)
    header, *lines = (folder / "ratings.csv").read_text().splitlines()
    assert header == "user,item,rating,time,age,gender,occupation,zip,title,genres,year"
    assert lines[0] == "1,10,1,100,24,M,writer,85711,The Film 0 (1990),Drama|War,1990"
    assert lines[-1] == "2,24,5,204,53,F,other,T8H1N,Lost,Drama,0"
    times = [int(line.split(",")[3]) for line in lines]
    assert len(lines) == 15 and times == sorted(times)


def test_ratings_are_converted_once(tmp_path, wheel, pip):
    pip.wheel = wheel
    ratings = movielens_100k.prepare_movielens_100k(tmp_path) / "ratings.csv"
    written = ratings.stat().st_mtime_ns
    movielens_100k.prepare_movielens_100k(tmp_path)
    assert ratings.stat().st_mtime_ns == written


@pytest.fixture
def movielens(tmp_path, wheel, pip):
    pip.wheel = wheel
    return data.load("movielens_100k", cache_dir=tmp_path / "cache")


@pytest.mark.long
def test_the_last_fifth_of_each_users_ratings_is_the_test_and_a_tenth_before_it_validates(
    movielens,
):
    items = {part: movielens.in_memory(part).features["item"].tolist() for part in data.PARTS}
    names = {part: [movielens.item_name(item) for item in each] for part, each in items.items()}
    assert names["test"] == ["The Film 8 (1990)", "The Film 9 (1990)", "Lost"]
    assert names["validation"] == ["The Film 7 (1990)"]
    assert len(names["train"]) == 7 + 4


@pytest.mark.long
def test_a_rating_from_4_on_is_a_like_and_5_a_love(movielens):
    # User 1 rated 1, 2, 3, 4, 5, 1, 2 | 3 | 4, 5 and user 2 only 5.
    train, test = movielens.in_memory("train"), movielens.in_memory("test")
    assert movielens.labels == ("like", "love")
    assert train.labels["like"].tolist() == [0, 0, 0, 1, 1, 0, 0] + [1] * 4
    assert train.labels["love"].tolist() == [0, 0, 0, 0, 1, 0, 0] + [1] * 4
    assert test.labels["like"].tolist() == [1, 1, 1] and test.labels["love"].tolist() == [0, 1, 1]


@pytest.mark.long
def test_the_history_is_what_the_user_liked_before_most_recent_first(movielens):
    history = movielens.in_memory("test").features["history"]
    films = [[movielens.item_name(item) for item in row[:3] if item >= 0] for row in history]
    assert history.shape == (3, 20) and history[0, 2:].max() == -1
    assert films[0] == ["The Film 4 (1990)", "The Film 3 (1990)"]
    assert films[1] == ["The Film 8 (1990)", "The Film 4 (1990)", "The Film 3 (1990)"]


@pytest.mark.long
def test_ratings_of_one_time_are_events_in_the_order_of_the_file(tmp_path, wheel, pip, monkeypatch):
    ratings = [("1", str(10 + n % 10), "5", "7") for n in (3, 1, 2, 0, 4, 5, 6, 7, 8, 9)]
    text = atomic_file(("u", "i", "r", "t"), ratings)
    folder = tmp_path / "cache" / "movielens_100k"
    folder.mkdir(parents=True)
    for name, content in {**FILES, "ml-100k.inter": text}.items():
        (folder / name).write_text(content)
    monkeypatch.setattr(movielens_100k, "_sha256", dict.get)
    monkeypatch.setattr(movielens_100k, "_SHA256", {})
    found = data.load("movielens_100k", cache_dir=tmp_path / "cache").in_memory("train").features
    assert found["history"][3][:3].tolist() == found["item"][[2, 1, 0]].tolist()
