# SPDX-License-Identifier: Apache-2.0
"""The demos, on one machine and on a cluster, and the command that answers one request.

All data are generated.
"""

import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import eagerly

from model_zoo import cluster, data, demo, score
from model_zoo.models import MODELS
from model_zoo.runner import build, config

DATA = data.generate_clicks(rows=6000, users=60, items=40, seed=3)


def test_the_page_has_a_row_for_every_model():
    page = pathlib.Path(demo.__file__).with_name("README.md").read_text()
    assert [name for name in MODELS if f"| [{name}]({name}.py) |" not in page] == []


def test_the_demo_asks_about_items_that_the_user_judged_later():
    request = demo.choose_request(DATA)
    train, test = (DATA.in_memory(part).features for part in ("train", "test"))
    assert len(request.items) == len(set(request.items)) <= 100
    rows = test["user"] == request.user
    assert set(request.later) == set(test["item"][rows].tolist())
    assert request.items[: len(request.later)].tolist() == list(request.later)
    others = set(request.items[len(request.later) :].tolist())
    assert not others & set(train["item"][train["user"] == request.user].tolist())
    first = np.flatnonzero(rows)[0]
    history = test["history"][first]
    assert request.liked == history[history != -1].tolist()
    assert request.columns["item"].tolist() == request.items.tolist()
    assert request.columns["user"].tolist() == [request.user] * len(request.items)
    assert np.all(request.columns["history"] == history)


def test_the_demo_reads_all_rows_of_a_part_in_their_order():
    found, expected = demo.rows_of(DATA, "test"), DATA.in_memory("test")
    for name, array in expected.features.items():
        np.testing.assert_array_equal(found.features[name], array)
    for name, array in expected.labels.items():
        np.testing.assert_array_equal(found.labels[name], array)


def test_the_demo_ranks_best_first():
    request = demo.Request(1, [], np.array([7, 8, 9]), {}, {})
    assert demo.rank(request, [0.1, 0.9, 0.5]) == [(8, 0.9), (9, 0.5), (7, 0.1)]


def test_without_network_the_demo_says_so_and_goes_on(monkeypatch, capsys):
    def load(name, **_):
        if name == "movielens_100k":
            raise data.DataUnavailableError("no connection to the package index")
        return DATA

    monkeypatch.setattr(data, "load", load)
    assert demo._load("movielens_100k", None) is DATA
    said = capsys.readouterr().out
    assert "no connection to the package index" in said
    assert "The demo continues with generated data." in said


@pytest.mark.long
def test_the_demo_runs_from_data_to_an_answered_request(monkeypatch, capfd):
    monkeypatch.setattr(data, "load", lambda *_, **__: DATA)
    assert demo.main(["--data", "generated", "--epochs", "1"]) == 0
    said = capfd.readouterr().out
    for part in ("1. Data", "validation auc 0.", "Test AUC 0.", "user 60", "request answered in"):
        assert part in said
    assert said.count("liked it") + said.count("did not like it") + said.count("no rating") >= 10


# ---------------------------------------------------------------- one request


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An export of wide & deep, a request, and its probabilities."""
    folder = tmp_path_factory.mktemp("served")
    run = config.from_dict({"model": "wide_and_deep", "params": {"dim": 4, "hidden_units": [4]}})
    estimator = build.build_estimator(run, DATA, str(folder / "model"))
    estimator.train(DATA.input_fn("train", 64), steps=2)
    export_dir = estimator.export_saved_model(str(folder / "export"), DATA.receiver_fn())
    answers = list(estimator.predict(DATA.input_fn("test", 4096)))
    features = DATA.in_memory("test").features
    request = {name: values[:3].tolist() for name, values in features.items()}
    return tf.compat.as_str(export_dir), request, [each["probabilities"] for each in answers[:3]]


@pytest.mark.long
def test_a_request_gets_the_answer_of_the_model_and_the_wrong_one_a_reason(served):
    export_dir, request, expected = served
    answer = eagerly(score.score, export_dir, request)
    # Float32 sums in batches of another size.
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=1e-5)
    assert answer["milliseconds"] > 0 and answer["load_seconds"] > 0

    without_item = {name: keys for name, keys in request.items() if name != "item"}
    with pytest.raises(ValueError, match="request must have the columns .*, got"):
        eagerly(score.score, export_dir, without_item)
    for bad in ([1, 2], [1.5, 2, 3], "x", [[1], [2], [3], [4]]):
        with pytest.raises(ValueError, match="request must hold one list of keys or numbers per"):
            eagerly(score.score, export_dir, dict(request, item=bad))


def test_an_export_takes_unknown_keys_and_empty_histories(served):
    export_dir, request, _ = served
    unknown = {name: values[:1] for name, values in request.items()}
    unknown.update(user=[-5], item=[2**62], history=[[-1] * len(request["history"][0])])
    (probability,) = eagerly(score.score, export_dir, unknown)["probabilities"]
    assert 0 < probability < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "request must be {column: values}, got list"),
        ("{", "Expecting"),
        ("{}", "export_dir"),
    ],
)
def test_the_score_command_gives_a_reason(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert eagerly(score.main, [str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_of_a_cluster_trains_on_two_ps(tmp_path, capfd):
    assert cluster.main(["--steps", "60", "--model_dir", str(tmp_path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines if " + " in line]
    assert [name for name, _ in rows] == ["hour", "item", "user"]
    assert all(count != "0" for _, counts in rows for count in counts.split(" + "))
    kept = json.loads((tmp_path / "run.json").read_text())
    assert kept["status"] == "done" and 0 < kept["metrics"]["test"]["auc"] < 1
    assert kept["rounds"] and (tmp_path / "best").is_dir()
