# SPDX-License-Identifier: Apache-2.0
"""Loaders of the model zoo's data sets, with files that are small enough to check by hand."""

import gzip
import hashlib
import os
import subprocess
import zipfile

import numpy as np
import pytest

from model_zoo import data
from model_zoo.data import movielens_100k

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


@pytest.fixture
def movielens(tmp_path, wheel, pip):
    pip.wheel = wheel
    return data.load_task("movielens_100k", cache_dir=str(tmp_path / "cache"))


def test_the_last_fifth_of_each_users_ratings_is_the_test(movielens):
    assert movielens.test["user"].tolist() == [1, 1, 2]
    assert movielens.test["item"].tolist() == [18, 19, 24]
    assert len(movielens.train_labels) == 8 + 4


def test_a_rating_from_4_on_is_a_like(movielens):
    # User 1 rated 1, 2, 3, 4, 5, 1, 2, 3 | 4, 5 and user 2 only 5.
    of_user_1 = movielens.train["user"] == 1
    assert movielens.train_labels[of_user_1].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert movielens.test_labels.tolist() == [1, 1, 1]
    assert movielens.test_labels.dtype == np.float32


def test_the_history_is_what_the_user_liked_before_most_recent_first(movielens):
    assert movielens.test["history"].shape == (3, 20)
    assert movielens.test["history"][0].tolist() == [14, 13] + [-1] * 18
    assert movielens.test["history"][1].tolist() == [18, 14, 13] + [-1] * 17


def test_the_history_keeps_the_last_20(tmp_path, wheel, pip, monkeypatch):
    ratings = [("1", "10", "5", str(n)) for n in range(30)]
    ratings[5] = ("1", "19", "5", "5")
    files = dict(FILES, **{"ml-100k.inter": atomic_file(("u", "i", "r", "t"), ratings)})
    monkeypatch.setattr(movielens_100k, "_SHA256", dict.fromkeys(files))
    monkeypatch.setattr(movielens_100k, "_sha256", lambda path: None)
    for name, text in files.items():
        (tmp_path / "movielens_100k").mkdir(exist_ok=True)
        (tmp_path / "movielens_100k" / name).write_text(text)
    history = data.load_movielens_100k(tmp_path).test["history"]
    assert history[0].tolist() == [10] * 18 + [19, 10]  # before rating 24 come 23 to 4
    assert history[2].tolist() == [10] * 20


def test_genres_are_padded_and_strings_hashed(movielens):
    drama, war = data.hash_key("Drama"), data.hash_key("War")
    assert movielens.train["genres"][0].tolist() == [drama, war]
    assert movielens.test["genres"][2].tolist() == [drama, -1]
    assert 0 <= drama < 2**63 and drama != war


def test_films_have_their_title_as_people_say_it(movielens):
    assert movielens.item_name(13) == "The Film 3 (1990)"
    assert movielens.item_name(20) == "Lost"
    assert movielens.item_name(12345) == "item 12345"


# ---------------------------------------------------------------- Online Retail

HEADER = "InvoiceNo,StockCode,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"


def purchase(invoice, item, date, customer="17850.0", price="2.55", quantity="6.0"):
    return f"{invoice},{item},{quantity},{date} 08:26:00,{price},{customer},United Kingdom"


# Customer 17850 buys 10001 and 10002, then 10003 (train), then 10004 (test).
PURCHASES = [
    purchase("536365", "10001", "2010-12-01"),
    purchase("536365", "10002", "2010-12-01"),
    purchase("540000", "10003", "2011-03-01", price="0.5"),
    purchase("540001", "10001", "2011-03-02", customer="99"),
    purchase("580000", "10004", "2011-11-02"),
]


def retail_file(tmp_path, lines, header=HEADER):
    path = tmp_path / "purchases.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_each_purchase_has_two_negatives_of_other_invoices(tmp_path):
    loaded = data.load_online_retail(retail_file(tmp_path, PURCHASES))
    assert loaded.train_labels.tolist() == [1, 0, 0, 1, 0, 0]
    assert loaded.test_labels.tolist() == [1, 0, 0]
    assert loaded.item_name(loaded.train["item"][0]) == "stock code 10003"
    names = {loaded.item_name(item) for item in loaded.train["item"][1:3]}
    assert names <= {"stock code 10001", "stock code 10002"}


def test_the_history_holds_earlier_invoices_only(tmp_path):
    loaded = data.load_online_retail(retail_file(tmp_path, PURCHASES))
    assert loaded.train["history"][0].tolist() == [1, 0] + [-1] * 18  # 10002, 10001
    assert loaded.train["history"][3].tolist() == [-1] * 20  # another customer's first
    assert loaded.test["history"][0].tolist() == [2, 1, 0] + [-1] * 17


def test_time_and_price_become_keys(tmp_path):
    loaded = data.load_online_retail(retail_file(tmp_path, PURCHASES))
    assert loaded.train["hour"][0] == 8
    assert loaded.train["day_of_week"][0] == 1  # 2011-03-01 was a Tuesday
    assert loaded.train["price_bucket"][0] == 5  # 2**5 <= 50 pence < 2**6


def test_what_is_no_purchase_is_left_out_and_order_does_not_matter(tmp_path):
    clean = data.load_online_retail(retail_file(tmp_path, PURCHASES))
    dirty = [
        *reversed(PURCHASES),
        PURCHASES[0],
        purchase("C540002", "10009", "2011-03-03"),
        purchase("540003", "POST", "2011-03-03"),
        purchase("540003", "10009", "2011-03-03", customer=""),
        purchase("540003", "10009", "2011-03-03", quantity="-1"),
        purchase("540003", "10009", "2011-03-03", price="0"),
    ]
    loaded = data.load_online_retail(retail_file(tmp_path, dirty))
    assert loaded.train["user"].tolist() == clean.train["user"].tolist()
    assert set(loaded.item_names.values()) == set(clean.item_names.values())


def test_gzip_is_read_and_the_negatives_are_the_same_in_every_call(tmp_path):
    path = tmp_path / "purchases.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([HEADER, *PURCHASES]))
    first, second = (data.load_task("online_retail", data_path=str(path)) for _ in range(2))
    assert first.train["item"].tolist() == second.train["item"].tolist()


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (PURCHASES, "InvoiceNo,StockCode", "must be a CSV file with the columns"),
        ([*PURCHASES, purchase("1", "10009", "1.12.2010")], HEADER, "line 7 must be a purchase"),
        ([*PURCHASES, "540009,10009,six,2011-03-03,1,2,UK"], HEADER, "line 7 must be a purchase"),
        ([*PURCHASES, "540009"], HEADER, "line 7 must be a purchase"),
        (PURCHASES[:2], HEADER, "must hold purchases from"),
        (
            [purchase("1", "10001", "2011-03-01"), purchase("2", "10001", "2011-11-02")],
            HEADER,
            "must be of many invoices",
        ),
    ],
    ids=["columns", "date", "number", "short", "period", "one-item"],
)
def test_a_file_that_is_something_else_is_refused_by_line(tmp_path, lines, header, message):
    with pytest.raises(ValueError, match=message):
        data.load_online_retail(retail_file(tmp_path, lines, header))


def test_a_gzip_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "purchases.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([HEADER, *PURCHASES]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="must be a whole CSV file"):
        data.load_online_retail(path)


def test_a_missing_file_names_the_page_where_anyone_gets_it(tmp_path):
    with pytest.raises(data.DataUnavailableError, match="archive.ics.uci.edu/dataset/352"):
        data.load_online_retail(tmp_path / "nowhere.csv")


# ---------------------------------------------------------------- generated, and all


def test_the_generated_task_has_the_attainable_auc_that_was_asked_for():
    made = data.generate(agreement=0.85)
    # Scores take two values, so AUC = 0.85 * 0.85 + (2 * 0.85 * 0.15) / 2 = 0.85, but for luck.
    assert made.attainable_auc == pytest.approx(0.85, abs=0.01)


def test_neither_user_nor_item_alone_tells_anything_of_the_generated_task():
    made = data.generate()
    for name in ("user", "item"):
        keys, index = np.unique(made.train[name], return_inverse=True)
        likes = np.bincount(index, made.train_labels) / np.bincount(index)
        rate = dict(zip(keys.tolist(), likes.tolist()))
        scores = [rate.get(key, 0.5) for key in made.test[name].tolist()]
        # A seed's draw may give one taste more items than the other, so not exactly 0.5.
        assert data.exact_auc(made.test_labels, scores) < 0.62


def test_the_generated_history_holds_likes_of_the_same_user_only():
    made = data.generate(rows=2000, users=10, items=20)
    liked = {}
    for row, (user, item) in enumerate(zip(made.train["user"], made.train["item"])):
        past = liked.setdefault(int(user), [])
        expected = past[::-1][:20]
        assert made.train["history"][row].tolist() == expected + [-1] * (20 - len(expected))
        if made.train_labels[row]:
            past.append(int(item))


@pytest.mark.parametrize(
    "arguments", [{"rows": 9}, {"users": 1}, {"items": 0}, {"agreement": 0.5}, {"agreement": 1.0}]
)
def test_generate_refuses_what_makes_no_task(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be"):
        data.generate(**arguments)


def test_every_column_has_as_many_keys_as_its_declaration_says(tmp_path, movielens):
    retail = data.load_online_retail(retail_file(tmp_path, PURCHASES))
    for loaded in (movielens, retail, data.generate(rows=100, users=5, items=5)):
        names = {column.name for column in loaded.columns}
        assert {"user", "item", "history"} <= names == set(loaded.train) == set(loaded.test)
        for column in loaded.columns:
            for part, labels in (
                (loaded.train, loaded.train_labels),
                (loaded.test, loaded.test_labels),
            ):
                shape = (len(labels),) + ((column.max_length,) if column.max_length > 1 else ())
                assert part[column.name].shape == shape
                assert part[column.name].dtype == np.int64
            # -1 is padding in a column of several keys, and so no key anywhere else.
            assert column.max_length > 1 or part[column.name].min() >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "criteo"}, "data must be one of movielens_100k, online_retail, generated"),
        ({"name": "online_retail"}, "data_path must be given with online_retail"),
        ({"name": "generated", "data_path": "x"}, "data_path must be left out with generated"),
    ],
)
def test_load_refuses_what_it_does_not_know(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load_task(**arguments)


def test_a_column_of_no_role_or_length_is_refused():
    with pytest.raises(
        ValueError, match="role of column 'x' must be one of user, item, context, history, got"
    ):
        data.Column("x", "both")
    with pytest.raises(ValueError, match="max_length of column 'x' must be at least 1, got 0"):
        data.Column("x", "user", max_length=0)


def test_exact_auc_counts_pairs():
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 60)
    scores = random.integers(0, 9, 60)  # many ties
    ones, zeros = scores[labels == 1], scores[labels == 0]
    pairs = np.mean(np.sign(ones[:, None] - zeros[None, :]) / 2 + 0.5)
    assert data.exact_auc(labels, scores) == pytest.approx(pairs, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [([1, 1], [0.1, 0.2], "hold both 0 and 1"), ([0, 1], [0.1], "of one length")],
)
def test_exact_auc_refuses_what_has_no_auc(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        data.exact_auc(np.array(labels), np.array(scores))
