# SPDX-License-Identifier: Apache-2.0
"""Contract tests of every model of the zoo; tests of the runner and the demo.

All data are generated; the attainable AUC is 0.85.
"""

import dataclasses
import functools
import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import eagerly

import rec_estimator as rec
from model_zoo import cluster, data, demo, reach, run, score

TASK = data.generate(rows=6000, users=60, items=40, seed=3)
SETTINGS = run.Settings(
    embedding_dim=8, hidden_units=(16, 8), learning_rate=0.01, batch_size=128, epochs=5
)


def test_the_page_has_a_row_for_every_model():
    page = pathlib.Path(run.__file__).with_name("README.md").read_text()
    assert [name for name in run.MODELS if f"| [{name}]({name}.py) |" not in page] == []


class Trained:
    """A trained model and its predictions for the test rows."""

    def __init__(self, model, folder):
        tf.logging.set_verbosity(tf.logging.ERROR)
        self.estimator = run.build_estimator(model, TASK, SETTINGS, str(folder / "checkpoints"))
        test_fn = run.test_input_fn(TASK)
        train_fn = rec.inputs.numpy_input_fn(
            TASK.train, TASK.train_labels, batch_size=128, shuffle=True, seed=1, num_epochs=None
        )
        self.estimator.train(train_fn, steps=1)
        self.first_variables = self.variables()
        self.estimator.train(train_fn, max_steps=SETTINGS.steps_for(len(TASK.train_labels)))
        self.last = self.estimator.evaluate(test_fn)
        answers = self.estimator.predict(test_fn)
        self.probabilities = np.array([answer["probabilities"] for answer in answers])
        self.export_dir = run.export(self.estimator, TASK, str(folder / "export"))

    def variables(self):
        names = self.estimator.get_variable_names()
        return {name: self.estimator.get_variable_value(name) for name in names}


@pytest.fixture(scope="module")
def train_once(tmp_path_factory):
    """Returns a function from a model name to Trained; each model is trained once."""
    return functools.lru_cache(None)(lambda name: Trained(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(params=list(run.MODELS))
def trained(request, train_once):
    return train_once(request.param)


@pytest.mark.long
def test_training_lowers_the_loss_and_comes_near_the_attainable_auc(trained):
    assert trained.last["log_loss"] < np.log(2) - 0.1  # a new model says 0.5 to all
    assert trained.last["auc"] > TASK.attainable_auc - 0.05


def test_the_auc_of_evaluation_is_the_exact_one(trained):
    exact = data.exact_auc(TASK.test_labels, trained.probabilities)
    # Probabilities round logits that differ into ties.
    assert trained.last["auc"] == pytest.approx(exact, abs=1e-6)


def test_the_log_loss_of_evaluation_is_that_of_the_predictions(trained):
    truth = np.where(TASK.test_labels > 0.5, trained.probabilities, 1 - trained.probabilities)
    # Logarithms of float32 probabilities instead of logits.
    assert trained.last["log_loss"] == pytest.approx(-np.mean(np.log(truth)), rel=1e-4)


def test_every_dense_variable_is_trained(trained):
    last = trained.variables()
    kernels = [name for name in last if name.endswith(("kernel", "bias"))]
    assert kernels
    for name in kernels:
        assert not np.array_equal(last[name], trained.first_variables[name]), name


def test_every_column_has_a_row_per_key_of_the_training_rows(trained):
    sizes = demo._table_sizes(trained.estimator)
    expected = {
        name: len(np.unique(TASK.train[name])) for name in ("user", "hour", "item")
    }  # the items of the histories are among the items
    assert sizes == expected


def test_the_export_answers_as_predict_does(trained):
    with tf.Graph().as_default(), tf.Session() as session:
        meta_graph = tf.saved_model.load(session, ["serve"], trained.export_dir)
        signature = meta_graph.signature_def["serving_default"]
        feed = {signature.inputs[name].name: TASK.test[name] for name in TASK.test}
        served = session.run(signature.outputs["probabilities"].name, feed)
    # Float32 sums in batches of another size.
    np.testing.assert_allclose(served, trained.probabilities, rtol=1e-5)


def test_the_export_takes_unknown_keys_and_empty_histories(trained):
    with tf.Graph().as_default(), tf.Session() as session:
        meta_graph = tf.saved_model.load(session, ["serve"], trained.export_dir)
        signature = meta_graph.signature_def["serving_default"]
        request = {"user": [-5], "hour": [99], "item": [2**62], "history": [[-1]]}
        feed = {signature.inputs[name].name: keys for name, keys in request.items()}
        served = session.run(signature.outputs["probabilities"].name, feed)
    assert served.shape == (1,) and 0 < served[0] < 1


# ---------------------------------------------------------------- the runner


@pytest.fixture
def small_data(monkeypatch):
    """Loads the small task in place of any data set."""
    monkeypatch.setattr(data, "load", lambda *_, **__: TASK)


def test_a_training_that_goes_on_reads_the_rows_in_another_order(tmp_path, monkeypatch):
    seeds = []

    def numpy_input_fn(*args, shuffle=False, seed=None, **kwargs):
        if shuffle:
            seeds.append(seed)
        return input_fn(*args, shuffle=shuffle, seed=seed, **kwargs)

    input_fn = rec.inputs.numpy_input_fn
    monkeypatch.setattr(rec.inputs, "numpy_input_fn", numpy_input_fn)
    settings = dataclasses.replace(SETTINGS, steps=2, hidden_units=(4,), embedding_dim=2)
    for _ in range(2):
        estimator = run.build_estimator("wide_and_deep", TASK, settings, str(tmp_path))
        run.train_and_test(estimator, TASK, settings)
    assert seeds == [settings.seed, settings.seed + 2]


@pytest.mark.parametrize("model", ["din", "dien", "bst"])
def test_models_of_a_history_say_that_they_need_it(model):
    columns = tuple(column for column in TASK.columns if column.name != "history")
    message = f"{model} must have a history column, got .*; choose another"
    with pytest.raises(ValueError, match=message):
        run.build_estimator(model, dataclasses.replace(TASK, columns=columns), SETTINGS)


@pytest.mark.parametrize("name", ["train_labels", "test_labels"])
def test_labels_are_checked_before_the_first_step(name):
    labels = getattr(TASK, name).copy()
    labels[3] = 5
    with pytest.raises(ValueError, match=f"{name} of .* must be 0 or 1, got 5; convert them"):
        dataclasses.replace(TASK, **{name: labels})


SMALL = ["--data", "generated", "--steps", "3", "--embedding_dim", "4", "--hidden_units", "4"]


@pytest.mark.long
def test_the_runner_trains_evaluates_exports_and_goes_on(tmp_path, small_data, capsys):
    folders = ["--model_dir", str(tmp_path / "model"), "--export_dir", str(tmp_path / "export")]
    assert run.main(["wide_and_deep", *SMALL, *folders]) == 0
    said = capsys.readouterr()
    assert "4,800 training rows, 1,200 test" in said.out
    assert "test AUC 0." in said.out and "at step 3" in said.out
    assert "train 3/3 (100%)" in said.err and "evaluated at step 3 | auc 0." in said.err
    export_dir = said.out.splitlines()[-1].rpartition(" ")[2]
    assert (pathlib.Path(export_dir) / "saved_model.pb").is_file()

    assert run.main(["wide_and_deep", *SMALL, "--model_dir", str(tmp_path / "model")]) == 0
    assert "at step 6" in capsys.readouterr().out

    assert run.main(["deepfm", *SMALL, "--model_dir", str(tmp_path / "model")]) == 1
    assert "model_dir must hold a model with model deepfm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--batch_size", "-3"], "batch_size must be at least 1, got -3"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--learning_rate", "nan"], "learning_rate must be above 0, got nan"),
        (["--embedding_dim", "1"], "embedding_dim must be at least 2, got 1"),
        (["--hidden_units", "0"], "hidden_units must be numbers from 1 on"),
        (["--seed", "-1"], "seed must be from 0 to"),
        (["--data", "online_retail"], "data_path must be given with online_retail"),
        (["--data_path", "x.csv"], "data_path must be left out with generated"),
        (["--export_dir", "/proc/x"], "/proc/x"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_the_runner_says_what_is_wrong_with_an_argument(arguments, message, capsys):
    assert run.main(["din", "--data", "generated", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("model_zoo.run: ") and message in said and said.count("\n") == 1


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="model must be one of wide_and_deep, .*, bst, got 'ncf'"):
        run.build_estimator("ncf", TASK, SETTINGS)


def test_a_result_that_misses_its_mark_is_reported_as_such():
    task = data.Task("online_retail", (), {}, np.zeros(0), {}, np.zeros(0))
    runs = [{"auc": auc, "log_loss": 0.6, "seconds": 1.0} for auc in (0.66, 0.67, 0.668)]
    summary = reach._summary("din", task, runs)
    assert summary["auc_mean"] == 0.666
    assert summary["is_reached"] is False and summary["to_reach"] == 0.667
    assert "AUC 0.6660 (0.6600 to 0.6700, to reach 0.667)" in reach._line(summary)


# ---------------------------------------------------------------- the demo


def test_the_demo_asks_about_items_that_the_user_judged_later():
    request = demo.choose_request(TASK)
    assert len(request.items) == len(set(request.items)) <= 100
    rows = TASK.test["user"] == request.user
    assert set(request.later) == set(TASK.test["item"][rows].tolist())
    assert request.items[: len(request.later)].tolist() == list(request.later)
    others = set(request.items[len(request.later) :].tolist())
    assert not others & set(TASK.train["item"][TASK.train["user"] == request.user].tolist())
    first = np.flatnonzero(rows)[0]
    history = TASK.test["history"][first]
    assert request.liked == history[history != -1].tolist()
    assert request.columns["item"].tolist() == request.items.tolist()
    assert request.columns["user"].tolist() == [request.user] * len(request.items)
    assert np.all(request.columns["history"] == history)


def test_the_demo_ranks_best_first():
    request = demo.Request(1, [], np.array([7, 8, 9]), {}, {})
    assert demo.rank(request, [0.1, 0.9, 0.5]) == [(8, 0.9), (9, 0.5), (7, 0.1)]


def test_without_network_the_demo_says_so_and_goes_on(monkeypatch, capsys):
    def load(name, **_):
        if name == "movielens_100k":
            raise data.DataUnavailableError("no connection to the package index")
        return TASK

    monkeypatch.setattr(data, "load", load)
    assert demo._load("movielens_100k", None) is TASK
    said = capsys.readouterr().out
    assert "no connection to the package index" in said
    assert "The demo continues with generated data." in said


@pytest.mark.long
def test_the_demo_runs_from_data_to_an_answered_request(small_data, capfd):
    assert demo.main(["--data", "generated", "--epochs", "1"]) == 0
    said = capfd.readouterr().out
    for part in ("1. Data", "Test AUC 0.", "user 60", "SavedModel", "request answered in"):
        assert part in said
    assert said.count("liked it") + said.count("did not like it") + said.count("no rating") >= 10


# ---------------------------------------------------------------- one request


def test_a_request_gets_the_answer_of_the_model_and_the_wrong_one_a_reason(train_once):
    din_export = train_once("din").export_dir
    request = {name: keys[:3].tolist() for name, keys in TASK.test.items()}
    answer = eagerly(score.score, din_export, request)
    assert len(answer["probabilities"]) == 3
    expected = train_once("din").probabilities[:3]
    # Float32 sums in batches of another size.
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=1e-5)
    assert answer["milliseconds"] > 0 and answer["load_seconds"] > 0

    without_item = {name: keys for name, keys in request.items() if name != "item"}
    with pytest.raises(ValueError, match="request must have the columns history, hour, item, user"):
        eagerly(score.score, din_export, without_item)
    for bad in ([1, 2], [1.5, 2, 3], "x", [[1], [2], [3], [4]]):
        with pytest.raises(
            ValueError, match="request must hold one list of keys or numbers per column"
        ):
            eagerly(score.score, din_export, dict(request, item=bad))


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


def test_settings_are_what_the_committed_results_were_made_with():
    results = pathlib.Path(run.__file__).parent.parent / "benchmarks/results/model_zoo.json"
    settings = json.loads(results.read_text())["settings"]
    assert json.loads(json.dumps(vars(run.Settings()))) == settings


@pytest.mark.slow
def test_the_demo_of_a_cluster_trains_on_two_ps(capfd):
    assert cluster.main(["--steps", "60"]) == 0
    lines = capfd.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines if " + " in line]
    assert [name for name, _ in rows] == ["hour", "item", "user"]
    assert all(count != "0" for _, counts in rows for count in counts.split(" + "))
