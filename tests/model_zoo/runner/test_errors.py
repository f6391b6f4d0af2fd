# SPDX-License-Identifier: Apache-2.0
"""What users can cause ends in a sentence; mistakes of the program keep their traceback."""

import re
import signal

import pytest
import tensorflow.compat.v1 as tf
from python_processes import Process

from model_zoo import __main__ as command
from model_zoo import layers, runner
from model_zoo.runner import errors, record
from model_zoo.runner.stop_signals import Interrupted

SCHEMA = """
files: shop.csv
format: csv
columns:
  user: {role: user}
  item: {role: item, type: int}
  price: {role: item, kind: number}
labels: {click: click, buy: buy}
split: {by: fraction, validation: 0.1, test: 0.2}
"""
SMALL = ["--dim", "4", "--hidden_units", "[4]", "--batch_size", "16", "--steps", "3"]


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    """A folder with shop.csv and shop.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [f"u{n % 7},{n % 5},{n},{n % 2},{n % 3 // 2}" for n in range(100)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item,price,click,buy", *lines, ""]))
    (tmp_path / "shop.yaml").write_text(SCHEMA)


def said(capsys, *arguments):
    """What the command says when it fails."""
    assert command.main(list(arguments)) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"model_zoo {arguments[0]}: ") and error.count("\n") == 1, error
    return error


@pytest.mark.long
def test_a_batch_larger_than_the_data_names_the_setting(capsys):
    assert "choose a smaller batch_size" in said(capsys, "train", "deepfm", "--data", "shop.yaml")


@pytest.mark.long
def test_a_loss_that_is_not_a_number_names_the_learning_rate(capsys):
    flags = [
        *SMALL[:-1],
        "9",
        "--learning_rate",
        "1e30",
        "--set",
        "train.optimizer.name=gradient_descent",
    ]
    found = said(capsys, "train", "deepfm", "--data", "shop.yaml", *flags)
    assert "choose a smaller learning_rate" in found


@pytest.mark.long
@pytest.mark.parametrize("model", ["deepfm", "ple", "dlrm", "fibinet", "xdeepfm", "neumf", "dssm"])
def test_a_table_of_another_dim_is_named_where_a_model_needs_the_same(model, capsys):
    flags = ["--data", "shop.yaml", "--set", "tables.item.dim=8", "--batch_size", "16"]
    found = said(capsys, "train", model, *flags)
    assert re.search("got . floats of column 'item'|and 8 of another", found), found
    assert "set params.dim" in found


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [
        ("deepfm", "params.dim=0", "params.dim must be at least 1, got 0"),
        ("deepfm", "params.dropout=1.5", "dropout must be at least 0 and below 1, got 1.5"),
        ("deepfm", "params.hidden_units=[0]", "units of layer 'hidden_0' must be at least 1"),
        ("dssm", "params.hidden_units=[]", "hidden_units must have the size of the vectors"),
        ("xdeepfm", "params.maps=[]", "maps must be a number from 1 on for each layer, got []"),
        ("fibinet", "params.reduction=0", "reduction must be at least 1, got 0"),
        ("masknet", "params.blocks=0", "blocks must be at least 1, got 0"),
        ("deepfm", "train.optimizer.learning_rate=x", "learning_rate must be a number, got 'x'"),
        (
            "deepfm",
            "tables.default.initializer={name: normal, stddev: x}",
            "tables.default.initializer.stddev must be a number, got 'x'",
        ),
        (
            "deepfm",
            "train.schedule={name: exponential_decay, decay_steps: 0, decay_rate: 0.9}",
            "learning_rate of Adam must be finite, got nan",
        ),
    ],
)
def test_a_setting_that_no_model_can_have_is_a_sentence(model, setting, message, capsys):
    flags = ["--data", "shop.yaml", "--batch_size", "16", "--set", setting]
    assert message in said(capsys, "train", model, *flags, "--set", "hooks.progress=false")


def test_heads_of_attention_must_divide_the_floats_of_a_row():
    with pytest.raises(ValueError, match="heads must divide the floats of a row, 8, got 3"):
        layers.transformer_layer(tf.zeros([2, 5, 8]), tf.ones([2, 5], tf.bool), 3, "attention")


@pytest.fixture
def trained(shop, capsys):
    """Trains into the folder `model`."""
    flags = ["--data", "shop.yaml", "--model_dir", "model", *SMALL]
    assert command.main(["train", "wide_and_deep", *flags]) == 0
    capsys.readouterr()


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: int", "type: text", "columns.item.type of shop must be .* 'int', got 'text'"),
        ("  user: {role: user}\n", "", "columns.user.role of shop must be .* 'user', got none"),
        ("kind: number}", "kind: number, transform: log}", "columns.price.transform of shop"),
        (
            "{click: click, buy: buy}",
            "click",
            r"labels of shop must be .* \['click', 'buy'\], got \['click'\]",
        ),
        (
            "  user: {role: user}\n  item: {role: item, type: int}\n",
            "  item: {role: item, type: int}\n  user: {role: user}\n",
            "the order of columns of shop must be .*, user, item, price, got item, user, price",
        ),
    ],
)
def test_a_schema_that_was_changed_after_the_training_is_refused(
    trained, old, new, message, capsys
):
    with open("shop.yaml", "w") as file:
        file.write(SCHEMA.replace(old, new))
    commands = [["evaluate"], ["predict"], ["export", "--export_dir", "export"]]
    commands.append(["train", "wide_and_deep", "--data", "shop.yaml", *SMALL])
    for arguments in commands:
        found = said(capsys, *arguments, "--model_dir", "model")
        assert re.search(message, found), found
        assert "correct the schema, or train a model in another model_dir" in found


@pytest.mark.long
def test_another_file_of_the_same_columns_is_taken_and_another_model_is_not(trained, capsys):
    with open("other.yaml", "w") as file:
        file.write(SCHEMA.replace("by: fraction", "by: fraction, seed: 3"))
    arguments = ["evaluate", "--model_dir", "model", "--data", "other.yaml"]
    assert command.main(arguments) == 0
    capsys.readouterr()
    for setting in ("params.hidden_units=[8]", "model=deepfm", "tables.user.dim=9"):
        found = said(capsys, *arguments, "--set", setting)
        assert f"{setting.partition('=')[0]} must be as in the run of model" in found
    with open("model/run.json", "a") as file:
        file.write("}")
    assert "model/run.json must be JSON" in said(capsys, *arguments)


@pytest.mark.long
def test_run_json_has_a_command_that_runs_and_describes_the_data(trained):
    kept = record.read("model")
    assert all(each.startswith("python ") for each in kept["commands"])
    assert kept["data"] == {
        "name": "shop",
        "rows": {"train": 76, "validation": 13, "test": 11},
        "labels": ["click", "buy"],
        "columns": {
            "user": {"role": "user"},
            "item": {"role": "item", "type": "int"},
            "price": {"role": "item", "kind": "number"},
        },
    }


def test_the_command_of_a_module_and_of_a_script_can_be_run_again(tmp_path):
    code = "from model_zoo.runner import record; print(record.command())"
    (tmp_path / "script.py").write_text(code)
    done = Process(["script.py", "--of", "a b"], cwd=tmp_path).wait()
    assert done.stdout == "python script.py --of 'a b'\n"
    run = "import runpy, sys; sys.argv[1:] = ['x']; sys.path.insert(0, '.'); "
    run += "runpy.run_module('script', {}, '__main__', True)"
    done = Process(["-c", run], cwd=tmp_path).wait()
    assert done.stdout == "python -m script x\n", done.stderr


def test_a_mistake_of_the_program_keeps_its_traceback(monkeypatch):
    def fail(*_):
        tf.reshape(tf.zeros([3]), [2])

    monkeypatch.setattr(runner, "train", fail)
    with pytest.raises(ValueError, match="reshape"):
        command.main(["train", "deepfm", "--data", "generated"])
    assert errors.sentence_of(KeyError("x")) is None
    for bug in ("indices[0] = 7 is not in [0, 3)", "Dimension 1 in both shapes must be equal: [3]"):
        assert errors.sentence_of(tf.errors.InvalidArgumentError(None, None, bug)) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            tf.errors.DataLossError(
                None, None, "Graph execution error:\n\ninflate() failed\n\t[[x]]"
            ),
            "inflate() failed",
        ),
        (tf.errors.PermissionDeniedError(None, None, "/x; Read-only"), "/x; Read-only"),
        (tf.errors.NotFoundError(None, None, "a; No such file or directory"), "a; No such file"),
        (tf.errors.InvalidArgumentError(None, None, "x : Tensor had NaN values"), "learning_rate"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: '/x'"),
    ],
)
def test_an_error_of_the_machine_is_a_sentence(error, sentence):
    found = errors.sentence_of(error)
    assert sentence in found and "\n" not in found


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Nothing is kept of a run without --model_dir; give one"),
        (["train", "--model_dir", "m"], "Run the command again to go on."),
        (["compare", "--output", "o"], "Run the command again to go on with the runs that o does"),
    ],
)
def test_a_stopped_command_says_what_is_kept(arguments, message, monkeypatch, capsys):
    def stop(*_):
        raise Interrupted(signal.SIGINT, 54)

    monkeypatch.setattr(runner, "train", stop)
    monkeypatch.setattr(command.compare, "compare", stop)
    assert command.main(arguments) == 130
    assert f"Stopped by SIGINT at step 54. {message}" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["model_zoo.models", "model_zoo.runner.errors"])
def test_ctrl_c_during_the_imports_ends_the_command_without_a_traceback(module):
    code = f"""
import importlib.abc, os, runpy, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
# As in a terminal: a shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("model_zoo", {{}}, "__main__", True)
"""
    done = Process(["-c", code]).wait()
    assert done.returncode == -signal.SIGINT and not done.stderr


@pytest.mark.long
def test_ctrl_c_during_the_test_of_a_training_ends_it(trained, monkeypatch, capsys):
    evaluate_rows = runner.commands.evaluate_rows

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return evaluate_rows(*arguments, **options)

    monkeypatch.setattr(runner.commands, "evaluate_rows", interrupted)
    arguments = ["train", "wide_and_deep", "--data", "shop.yaml", "--model_dir", "model", *SMALL]
    assert command.main(arguments) == 130
    assert "Stopped by SIGINT at step 3" in capsys.readouterr().err
    assert record.read("model")["metrics"]["test"]
