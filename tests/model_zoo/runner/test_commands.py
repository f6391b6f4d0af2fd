# SPDX-License-Identifier: Apache-2.0
"""The runner: rounds, validation, stops, resumes, exports, and the command line.

All data are generated; the attainable AUC is 0.85.
"""

import csv
import json
import os
import re
import signal
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import Process

import rec_estimator as rec
from model_zoo import __main__ as command
from model_zoo import data, minimize
from model_zoo.models import MODELS
from model_zoo.runner import build, commands, config, evaluation, record, rounds, stop_signals

DATA = data.generate_clicks(rows=3000, users=60, items=40, seed=3)


class Tiny:
    """A model whose graphs are built in no time: the inner product of user and item."""

    DEFAULTS = types.MappingProxyType({"dim": 4})

    @staticmethod
    def features(data_set, params):
        del data_set
        return [rec.EmbeddingFeature(name, params["dim"]) for name in ("user", "item")]

    @staticmethod
    def model_fn(features, labels, mode, params):
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
        logits = tf.reduce_sum(features["user"] * features["item"], axis=1) + bias
        predictions = {"probabilities": tf.sigmoid(logits)}
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions=predictions)
        labels = labels[params["labels"][0]]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses)
        if mode == rec.ModeKeys.TRAIN:
            return rec.EstimatorSpec(mode, loss=loss, train_op=minimize.train_op(loss, params))
        auc = rec.metrics.auc_of_logits(labels, logits)["auc"]
        metrics = {"auc": auc, "log_loss": tf.metrics.mean(losses)}
        return rec.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


@pytest.fixture(scope="module", autouse=True)
def tiny():
    """Makes Tiny a model of the zoo."""
    MODELS["tiny"] = Tiny
    yield
    del MODELS["tiny"]


CONFIG = config.from_dict(
    {
        "model": "tiny",
        "data": {"name": "generated"},
        "train": {
            "batch_size": 128,
            "epochs": 2,
            "optimizer": {"name": "adam", "learning_rate": 0.01},
        },
        "hooks": {"progress": False},
    }
)
STEPS = 2 * (DATA.rows("train") // 128)


def run(folder, data_set=DATA, **settings):
    """Trains into a folder; returns the results and the lines."""
    lines = []
    tf.logging.set_verbosity(tf.logging.ERROR)
    found = commands.train(
        CONFIG.replace(model_dir=str(folder), **settings), data_set, lines.append
    )
    return found, lines


def tensors(folder):
    """All tensors of the latest checkpoint, as bytes."""
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of two epochs, and what it returned and said."""
    folder = tmp_path_factory.mktemp("trained")
    return (folder, *run(folder))


class Watched(data.DataSet):
    """The data, which tells what is read of them.

    Args:
      signal_at: Sends SIGINT to this process before this batch of training.
    """

    def __init__(self, signal_at=None):
        self.name, self.columns = DATA.name, DATA.columns
        self.labels, self.credit = DATA.labels, DATA.credit
        self.signal_at, self.batch, self.reads = signal_at, 0, []

    def rows(self, part):
        return DATA.rows(part)

    def without_validation(self):
        raise NotImplementedError

    def read(self, reading):
        self.reads.append((reading.part, reading.seed, reading.skip))
        made = DATA.read(reading)
        if reading.part != "train" or self.signal_at is None:
            return made

        def count(number):
            if self.batch == self.signal_at:
                os.kill(os.getpid(), signal.SIGINT)
            self.batch += 1
            return number

        def counted(features, labels):
            number = tf.numpy_function(count, [np.int64(0)], tf.int64)
            with tf.control_dependencies([number]):
                return features, tf.nest.map_structure(tf.identity, labels)

        return lambda: made().map(counted)


# ---------------------------------------------------------------- bits


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits_twice_and_another_seed_other_ones(trained, tmp_path):
    run(tmp_path / "same")
    run(tmp_path / "other", train__seed=2)
    assert tensors(tmp_path / "same") == tensors(trained[0])
    assert tensors(tmp_path / "other") != tensors(trained[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(5, id="first epoch", marks=pytest.mark.long),
        pytest.param(STEPS // 2 + 5, id="second epoch"),
    ],
)
def test_a_run_that_ctrl_c_ended_goes_on_and_ends_with_the_bits_of_one_that_it_did_not(
    trained, tmp_path, batch
):
    watched = Watched(signal_at=batch)
    with pytest.raises(stop_signals.Interrupted) as stopped:
        run(tmp_path, watched)
    # The pipeline reads ahead of the step, and steps end while the signal is on its way.
    assert batch - 5 <= stopped.value.step < STEPS and stopped.value.exit_code == 130
    assert record.read(tmp_path)["status"] == "stopped"
    assert rounds.latest_step(tmp_path) == stopped.value.step
    found, _ = run(tmp_path)
    assert tensors(tmp_path) == tensors(trained[0])
    assert found["test"] == trained[1]["test"]
    found = record.read(tmp_path)
    assert found["status"] == "done" and len(found["commands"]) == 2
    assert found["rounds"] == record.read(trained[0])["rounds"]


@pytest.mark.long
def test_a_run_that_was_killed_between_a_checkpoint_and_its_record_goes_on_alike(
    trained, tmp_path, monkeypatch
):
    save = record.Record.save

    def killed(self, status):
        if self.epoch == 1:
            raise RuntimeError("killed")
        save(self, status)

    monkeypatch.setattr(record.Record, "save", killed)
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path)
    monkeypatch.undo()
    run(tmp_path)
    assert tensors(tmp_path) == tensors(trained[0])
    assert record.read(tmp_path)["rounds"] == record.read(trained[0])["rounds"]


def test_signals_have_their_handlers_of_before_after_a_run():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_signals.StopAtSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) != before[1]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_asked
        # A second signal acts as always.
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        with pytest.raises(stop_signals.Interrupted, match="SIGTERM at step 7"):
            stop.check(7)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# ---------------------------------------------------------------- rounds


@pytest.mark.long
def test_each_epoch_has_an_order_of_its_own_and_ends_with_a_validation(tmp_path):
    watched = Watched()
    run(tmp_path, watched)
    train, validation, train_again, validation_again, test = watched.reads
    assert train[0] == train_again[0] == "train" and train[1] != train_again[1]
    assert train[2] == train_again[2] == 0
    assert validation == validation_again == ("validation", None, 0) and test == ("test", None, 0)


@pytest.mark.long
def test_a_run_may_train_on_validation_rows_too_in_one_round(tmp_path):
    found, _ = run(tmp_path, train__with_validation=True)
    rows = DATA.rows("train") + DATA.rows("validation")
    assert found["steps"] == 2 * (rows // 128) and found["best_epoch"] == 2
    assert "validation" not in found and len(record.read(tmp_path)["rounds"]) == 1


def scripted(monkeypatch, values):
    """Makes validations give these AUCs; the checkpoints are those of the training."""
    values = iter(values)
    monkeypatch.setattr(rounds, "evaluate_rows", lambda *_, **__: {"auc": next(values)})


@pytest.mark.long
def test_an_auc_as_of_equal_labels_says_which_labels_to_check(tmp_path, monkeypatch):
    scripted(monkeypatch, [0.5])
    _, lines = run(tmp_path, train__epochs=1, train__steps=2)
    assert "check labels of the data: the first one is 'like'" in lines[2]


@pytest.mark.long
def test_test_rows_of_equal_labels_are_said_so(tmp_path):
    parts = {part: DATA.in_memory(part) for part in data.PARTS}
    labels = {name: 0 * each for name, each in parts["test"].labels.items()}
    parts["test"] = data.Rows(parts["test"].features, labels)
    equal = data.MemoryDataSet(DATA.name, DATA.columns, parts)
    found, lines = run(tmp_path, equal, train__epochs=1, train__steps=2)
    assert found["test"]["auc"] == 0.5
    assert lines[-1].startswith("test: auc is 0.5, as if all labels were equal; check labels of")


@pytest.mark.long
def test_training_stops_without_progress_and_the_best_checkpoint_is_used(tmp_path, monkeypatch):
    scripted(monkeypatch, [0.6, 0.8, 0.7, 0.75])
    found, lines = run(
        tmp_path, train__epochs=9, validation__patience=2, validation__learning_rate_factor=0.1
    )
    assert found["steps"] == 2 * STEPS and "(best)" in lines[2] and "(best)" not in lines[3]
    best = record.best_checkpoint(tmp_path)
    assert best == str(tmp_path / "best" / f"model.ckpt-{STEPS}")
    files = {file.name.partition(".")[2] for file in (tmp_path / "best").iterdir()}
    assert files and all(name.startswith(f"ckpt-{STEPS}.") for name in files)
    estimator = build.build_estimator(CONFIG, DATA, str(tmp_path))
    input_fn = DATA.input_fn("test", 4096)
    at_best = estimator.evaluate(input_fn, checkpoint_path=best)
    assert found["test"]["loss"] == at_best["loss"]
    assert found["test"]["loss"] != estimator.evaluate(input_fn)["loss"]
    assert record.config_of(tmp_path).train.epochs == 9


@pytest.mark.long
def test_the_learning_rate_falls_at_each_validation_without_progress(tmp_path, monkeypatch):
    scripted(monkeypatch, [0.6, 0.5, 0.7, 0.6])
    rates = []
    build = rounds.build_estimator

    def built(run_config, data_set, model_dir, factor):
        rates.append(factor)
        return build(run_config, data_set, model_dir, factor)

    monkeypatch.setattr(rounds, "build_estimator", built)
    settings = {"train__epochs": 4, "train__steps": None, "validation__patience": None}
    few = DATA.in_memory("train")[:256], DATA.in_memory("test")[:64]
    small = data.MemoryDataSet(
        "small", DATA.columns, {"train": few[0], "validation": few[1], "test": few[1]}
    )
    run(tmp_path, small, validation__learning_rate_factor=0.5, **settings)
    assert rates == [1.0, 1.0, 0.5, 0.5]


@pytest.mark.long
def test_validations_may_come_at_steps_and_steps_may_end_the_run(tmp_path):
    found, _ = run(tmp_path, validation__every_steps=6, train__steps=10)
    assert found["steps"] == 10
    assert [each["step"] for each in record.read(tmp_path)["rounds"]] == [6, 10]


@pytest.mark.long
def test_without_validation_rows_the_last_checkpoint_is_the_best(tmp_path):
    parts = {part: DATA.in_memory(part) for part in ("train", "test")}
    without = data.MemoryDataSet("without", DATA.columns, parts)
    found, _ = run(tmp_path, without, train__epochs=1)
    assert "validation" not in found and 0.4 < found["test"]["auc"] < 1
    assert record.best_checkpoint(tmp_path).endswith(f"model.ckpt-{STEPS // 2}")


@pytest.mark.long
def test_in_the_order_of_time_each_window_is_predicted_before_the_model_trains_on_it(tmp_path):
    watched = Watched()
    found, _ = run(tmp_path, watched, train__order="time", validation__every_steps=6)
    # Two reads a window, at the same place: the prediction, then the training.
    places = [skip for part, seed, skip in watched.reads if part == "train" and seed is None]
    rows = DATA.rows("train")
    last = -(-rows // 128)  # The last, smaller batch is not dropped.
    assert places[:5] == [0, 6, 6, 12, 12]
    assert found["steps"] == last
    windows = record.read(tmp_path)["rounds"]
    assert [each["step"] for each in windows] == list(range(6, last, 6))
    estimator = build.build_estimator(CONFIG, DATA, str(tmp_path / "again"))
    estimator.train(DATA.input_fn("train", 128), max_steps=6)
    second = estimator.evaluate(DATA.input_fn("train", 128, skip=6), steps=6)
    assert second["log_loss"] == windows[0]["metrics"]["log_loss"]
    mean = np.mean([each["metrics"]["log_loss"] for each in windows])
    assert found["progressive"]["log_loss"] == pytest.approx(mean)


@pytest.mark.long
def test_a_run_in_the_order_of_time_goes_on_inside_a_window(tmp_path):
    settings = {"train__order": "time", "validation__every_steps": 6}
    run(tmp_path / "whole", **settings)
    with pytest.raises(stop_signals.Interrupted):
        run(tmp_path / "stopped", Watched(signal_at=14), **settings)
    run(tmp_path / "stopped", **settings)
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "whole")
    windows = [record.read(tmp_path / name)["rounds"] for name in ("whole", "stopped")]
    assert windows[0] == windows[1]


# ---------------------------------------------------------------- settings


@pytest.mark.long
def test_run_json_has_settings_versions_metrics_and_the_command(trained):
    folder, found, lines = trained
    kept = json.loads((folder / "run.json").read_text())
    assert config.from_dict(kept["config"]) == CONFIG.replace(model_dir=str(folder))
    assert kept["versions"]["tensorflow"] == tf.__version__
    assert kept["metrics"]["test"] == found["test"]
    assert kept["status"] == "done" and kept["commands"] and kept["samples_per_second"] > 0
    assert "2,100 train rows, 300 validation rows, 600 test rows" in lines[0]
    assert found["rows"] == {"item": 40, "user": 60}


@pytest.mark.long
def test_a_finished_run_is_not_trained_again(trained):
    before = tensors(trained[0])
    found, _ = run(trained[0])
    assert found["test"] == trained[1]["test"] and tensors(trained[0]) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"params__dim": 5}, "params.dim"),
        ({"train__seed": 5}, "train.seed"),
        ({"train__batch_size": 64}, "train.batch_size"),
        ({"tables__user__dim": 8}, "tables.user.dim"),
        ({"train__order": "time"}, "train.order"),
    ],
)
def test_a_folder_with_another_run_is_refused(trained, settings, path):
    with pytest.raises(ValueError, match=f"{path} must be as in the run of .* choose another"):
        run(trained[0], **settings)


@pytest.mark.long
def test_settings_of_tables_reach_the_tables(tmp_path):
    tables = {"default": {"filter": {"name": "counter", "filter_freq": 30}}}
    found, _ = run(tmp_path, tables=tables, train__epochs=1)
    counts = np.unique(DATA.in_memory("train").features["user"], return_counts=True)[1]
    assert 0 < found["rows"]["user"] < len(counts)


def test_a_batch_that_no_epoch_fills_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size must be at most"):
        run(tmp_path, train__batch_size=5000)


def test_a_metric_that_the_model_does_not_have_is_refused_before_it_trains(tmp_path):
    with pytest.raises(ValueError, match="validation.metric must be among .* did you mean 'auc'"):
        run(tmp_path, validation__metric="acu", train__epochs=1)
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.long
@pytest.mark.parametrize("model, metric", [("mmoe", "love/auc"), ("dssm", "ndcg_at_10")])
def test_the_names_of_metrics_are_those_of_an_evaluation(tmp_path, model, metric):
    settings = {"model": model, "train__steps": 1, "validation__metric": metric}
    made = CONFIG.replace(**settings)
    view = build.view_of(made, DATA)
    names = evaluation.metric_names(
        build.build_estimator(made, view), view.input_fn("validation", 64)
    )
    found, _ = run(tmp_path, **settings)
    assert set(names) == set(found["validation"]) and metric in names


@pytest.mark.long
def test_hooks_change_neither_the_bits_nor_the_metrics(trained, tmp_path):
    found, _ = run(tmp_path, hooks__graph_modification=True)
    assert found["test"] == trained[1]["test"] and tensors(tmp_path) == tensors(trained[0])


@pytest.mark.long
def test_a_run_with_dropout_and_batch_norm_goes_on_with_the_same_bits(tmp_path):
    params = {"dim": 4, "hidden_units": [8], "dropout": 0.3, "batch_norm": True}
    settings = {"model": "deepfm", "params": params, "train__epochs": 1}
    run(tmp_path / "whole", **settings)
    with pytest.raises(stop_signals.Interrupted):
        run(tmp_path / "stopped", Watched(signal_at=9), **settings)
    run(tmp_path / "stopped", **settings)
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "whole")


@pytest.mark.long
def test_compressed_samples_train_the_same_model(trained, tmp_path):
    found, _ = run(tmp_path, hooks__sample_compression=True)
    # The order of the samples in a batch, and so that of float32 sums, differs.
    assert found["test"]["auc"] == pytest.approx(trained[1]["test"]["auc"], abs=5e-3)


# ---------------------------------------------------------------- prediction and export


@pytest.mark.long
def test_predictions_of_the_test_rows_have_the_metrics_of_the_evaluation(trained):
    run_config = CONFIG.replace(model_dir=str(trained[0]))
    rows = list(commands.predict(run_config, "test", DATA))
    scores = np.array([row["probabilities"] for row in rows])
    labels = DATA.in_memory("test").labels[DATA.labels[0]]
    # Probabilities have more ties than logits.
    assert data.exact_auc(labels, scores) == pytest.approx(trained[1]["test"]["auc"], abs=1e-5)
    assert commands.evaluate(run_config, "test", DATA) == trained[1]["test"]


def served(folder, features):
    """The probabilities that a SavedModel gives."""
    with tf.Graph().as_default(), tf.Session() as session:
        meta_graph = tf.saved_model.load(session, ["serve"], folder)
        signature = meta_graph.signature_def["serving_default"]
        feed = {tensor.name: features[name] for name, tensor in signature.inputs.items()}
        return session.run(signature.outputs["probabilities"].name, feed)


@pytest.mark.long
def test_exports_of_each_kind_answer_alike(trained, tmp_path):
    rows = DATA.in_memory("test").features
    first = {name: array[:1] for name, array in rows.items()}
    items = [column.name for column in DATA.columns if column.role == "item"]
    request = {name: np.repeat(first[name], 5, axis=0) for name in first}
    request.update({name: rows[name][:5] for name in items})
    answers = {}
    for kind in config.EXPORT_KINDS:
        run_config = CONFIG.replace(model_dir=str(trained[0]), export__kind=kind)
        folder = commands.export(run_config, str(tmp_path / kind), DATA)
        features = request
        if kind == "compressed":
            features = {**first, **{name: request[name] for name in items}}
            for column in DATA.columns:  # Keys have a second axis, numbers do not.
                if column.kind == "id" and not column.is_padded:
                    features[column.name] = features[column.name][:, None]
            features["item_size"] = [5]
        answers[kind] = served(folder, features)
    for answer in answers.values():
        # Float32 sums in another order.
        np.testing.assert_allclose(answer, answers["native"], rtol=1e-5)


def test_an_export_needs_a_folder_and_a_model(tmp_path):
    with pytest.raises(ValueError, match="export.folder must name a folder"):
        commands.export(CONFIG, data=DATA)
    with pytest.raises(ValueError, match="model_dir must be a folder with a trained model"):
        commands.export(CONFIG.replace(model_dir=str(tmp_path)), str(tmp_path / "export"), DATA)


# ---------------------------------------------------------------- the command line


@pytest.fixture
def small_data(monkeypatch):
    """Loads the small data in place of any other."""
    monkeypatch.setattr(data, "load", lambda *_, **__: DATA)


@pytest.mark.long
def test_the_commands_train_evaluate_predict_and_export(tmp_path, small_data, capsys):
    folder, output = str(tmp_path / "model"), tmp_path / "predictions.csv"
    flags = ["--dim", "4", "--hidden_units", "[8]", "--batch_size", "128", "--steps", "5"]
    assert command.main(["train", "wide_and_deep", "--model_dir", folder, *flags]) == 0
    said = capsys.readouterr()
    assert "test        auc 0." in said.out and "5 steps" in said.out
    assert "train 5/5 (100%)" in said.err
    assert command.main(["evaluate", "--model_dir", folder, "--part", "validation"]) == 0
    assert capsys.readouterr().out.startswith("validation  auc 0.")
    assert command.main(["predict", "--model_dir", folder, "--output", str(output)]) == 0
    with open(output, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == DATA.rows("test") and 0 < float(rows[0]["probabilities"]) < 1
    export_dir = str(tmp_path / "export")
    assert command.main(["export", "--model_dir", folder, "--export_dir", export_dir]) == 0
    exported = capsys.readouterr().out.strip().rpartition(" ")[2]
    assert os.path.exists(os.path.join(exported, "saved_model.pb"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "deepfn"], "model must be among .* did you mean 'deepfm'"),
        (["train", "deepfm", "--dim", "x"], "params.dim must be a whole number, got 'x'"),
        (["train", "deepfm", "--set", "params.dimm=3"], "params of deepfm must be .* 'dim'"),
        (["train", "deepfm", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "deepfm", "--set", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", "deepfm", "--set", "train.optimizer.name=adm"], "did you mean 'adam'"),
        (["evaluate"], "--model_dir must name the folder of a trained model"),
        (["evaluate", "--model_dir", "/nowhere"], "model_dir must hold a model"),
        (["compare", "--models", "dien", "dinn"], "models must be among .* did you mean"),
        (["compare", "--variants", "plane"], "variants must be among .* did you mean 'plain'"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(arguments, message, small_data, capsys):
    assert command.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"model_zoo {arguments[0]}: ") and said.count("\n") == 1
    assert re.search(message, said), said


@pytest.mark.long
def test_the_command_says_in_one_line_which_row_of_the_data_is_bad(tmp_path, capsys):
    (tmp_path / "shop.csv").write_text("user,item,click\nu1,i1,1\nu2,i1,no\n")
    schema = "{user: {role: user}, item: {role: item}}"
    (tmp_path / "shop.yaml").write_text(
        f"files: {{train: shop.csv}}\nformat: csv\ncolumns: {schema}\n"
        'labels: {click: click, again: "click == 1"}\n'
    )
    arguments = ["--batch_size", "1", "--set", f"data.cache_dir={tmp_path}"]
    assert command.main(["train", "tiny", "--data", str(tmp_path / "shop.yaml"), *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("model_zoo train: ") and said.count("\n") == 1
    assert "shop.csv, line 3: column 'click' must be 0 or 1 to be a label, got 'no';" in said


SECTIONS = ("data", "train", "validation", "hooks", "export")


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "export", "compare"])
def test_help_fits_a_terminal_and_names_models_and_settings(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    assert "--set NAME=VALUE" in said
    if name == "train":
        assert all(model in said for model in MODELS if model != "tiny")
    if name in ("train", "compare"):
        defaults = config.Config(tables={"TABLE": config.Table()}).as_dict()
        names = [f"{section}.{each}" for section in SECTIONS for each in defaults[section]]
        names += [f"tables.TABLE.{each}" for each in defaults["tables"]["TABLE"]]
        assert len(names) > 30 and [each for each in names if each not in said] == []


@pytest.mark.long
def test_sigterm_saves_and_ends_the_command_and_the_same_command_goes_on(tmp_path):
    arguments = ["train", "wide_and_deep", "--data", "generated", "--model_dir", str(tmp_path)]
    arguments += ["--steps", "100000", "--epochs", "100000", "--set", "validation.patience=null"]
    code = f"import sys; from model_zoo.__main__ import main; sys.exit(main({arguments!r}))"
    process = Process(["-c", code])
    deadline = time.monotonic() + 300
    while not (tmp_path / "checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait()
    assert done.returncode == 143
    assert "Stopped by SIGTERM at step" in done.stderr
    assert record.read(tmp_path)["status"] == "stopped"
    assert rounds.latest_step(tmp_path) > 0
