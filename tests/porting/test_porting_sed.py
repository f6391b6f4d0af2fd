# SPDX-License-Identifier: Apache-2.0
"""docs/porting.sed turns a script for DeepRec or Rec SDK into one for this package."""

import functools
import pathlib
import re
import subprocess

import pytest
import tensorflow.compat.v1 as tf
from porting_page import PAGE, SED, renamed, sed_rules
from python_processes import Process

import rec_estimator as rec

ROOT = PAGE.parents[1]
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
BEFORE, CANNED = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)


def ported(text, tmp_path):
    """A script after the first command of the page."""
    (tmp_path / "script.py").write_text(text)
    (command,) = re.findall(r"^    (sed -i -E .*) script\.py$", PAGE.read_text(), re.MULTILINE)
    subprocess.run(f"{command} {tmp_path}/script.py", shell=True, cwd=ROOT, check=True)
    return (tmp_path / "script.py").read_text()


def test_the_rules_are_those_of_the_tables_of_names():
    assert SED.read_text() == sed_rules(), (
        "write the rules again: python tests/porting/porting_page.py > docs/porting.sed"
    )


def test_the_rules_cover_every_public_name_of_the_tables_and_no_others():
    new = set(renamed().values())
    assert len(new) > 60
    assert {"rec_estimator.get_embedding_variable", "rec_estimator.create_table"} <= new
    for name in new:
        names = name.split(".")[1:]
        if len(names) < 3:  # Modules of optimizers are imported where they are used.
            functools.reduce(getattr, names, rec)


@pytest.mark.parametrize("name", ["deeprec_wide_and_deep.py", "deeprec_embedding_variable.py"])
def test_the_rules_give_the_scripts_that_the_other_tests_run(name, tmp_path):
    expected = (SCRIPTS / name).read_text()
    text = expected.replace(
        "import tensorflow.compat.v1 as tf\n\nimport rec_estimator as rec\n",
        "import tensorflow as tf\n",
    )
    as_in_deeprec = {}
    for theirs, new in renamed().items():
        as_in_deeprec.setdefault(new.replace("rec_estimator", "rec"), theirs)
    for new, theirs in as_in_deeprec.items():
        text = re.sub(rf"\b{re.escape(new)}\b", theirs, text)
    assert text.count("rec.") == 0
    assert ported(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("table = tf.nn.embedding_lookup_sparse(t)", "table = rec.embedding_lookup_sparse(t)"),
        ("tf.nn.embedding_lookup_v2(t)", "tf.nn.embedding_lookup_v2(t)"),
        ("tf.compat.v1.train.AdamOptimizer(0.1)", "rec.optimizers.AdamOptimizer(0.1)"),
        ("tf.estimator.Estimator(m)", "rec.RecEstimator(m)"),
        ("tf.estimator.EstimatorSpec(m)", "rec.EstimatorSpec(m)"),
        ("tf.train.StopAtStepHook(last_step=9)", "tf.train.StopAtStepHook(last_step=9)"),
        (
            "    from mx_rec.core.embedding import create_table",
            "    from rec_estimator import create_table",
        ),
        (
            "from mx_rec.optimizers.lazy_adam import create_hash_optimizer",
            "from rec_estimator.optimizers.lazy_adam import create_hash_optimizer",
        ),
        (
            "from mx_rec.saver.sparse import export",
            "from rec_estimator import export_tables as export",
        ),
        (
            "ConfigInitializer.get_instance().train_params_config.get_target_batch(True)",
            "ConfigInitializer.get_instance().train_params_config.get_target_batch(True)",
        ),
        ("from tensorflow.python.ops import kv_variable_ops", None),
        ("import tensorflow_estimator", "import tensorflow_estimator"),
    ],
)
def test_a_rule_changes_whole_names_only(before, after, tmp_path):
    assert ported(f"{before}\n", tmp_path) == ("" if after is None else f"{after}\n")


@pytest.mark.long
def test_the_script_of_the_page_runs_after_its_two_commands(tmp_path):
    text = ported(BEFORE, tmp_path)
    assert "tf.nn.embedding_lookup" not in text
    (command,) = re.findall(r"^    (sed -i 's.*script\.py)$", PAGE.read_text(), re.MULTILINE)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    done = Process([tmp_path / "script.py"], cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr[-4000:]
    checkpoint = tf.train.load_checkpoint(str(tmp_path / "model"))
    assert checkpoint.get_tensor("global_step") == 20
    assert sorted(checkpoint.get_tensor("user-freqs").tolist()) == [20, 20, 40]


@pytest.mark.long
def test_a_canned_estimator_trains_a_table_where_keras_has_its_layers(tmp_path):
    done = Process(["-c", CANNED], cwd=tmp_path).wait()
    if not hasattr(tf.keras.layers, "DenseFeatures"):
        assert "tf.keras must be Keras 2 for DNNClassifier" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-4000:]
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "model"))]
    assert any(name.endswith("user_embedding/embedding_weights-values") for name in names)


def test_the_names_that_take_the_place_of_those_of_tensorflow_1_exist():
    (table,) = re.findall(
        r"^\| TensorFlow 1.15 .*?\n\n", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    now = [line.strip("| ").split(" | ")[1] for line in table.splitlines()[2:] if line]
    names = {name for cell in now for name in re.findall(r"`tf\.([\w.]+)", cell)}
    assert len(names) > 12
    # Only Keras 2 has cells.
    for name in names - {"nn.rnn_cell"}:
        functools.reduce(getattr, name.split("."), tf)
