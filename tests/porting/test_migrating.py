# SPDX-License-Identifier: Apache-2.0
"""docs/migrating.md: its script runs after its commands, on every release of TensorFlow."""

import pathlib
import re
import subprocess

import pytest
import tensorflow.compat.v1 as tf
from python_processes import Process

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text()
SHOW = "\nprint({name: float(number) for name, number in result.items()})\n"


@pytest.fixture
def script(tmp_path):
    """The page's script as it was, in a file."""
    path = tmp_path / "script.py"
    path.write_text(re.search(r"```py\n(.*?)```", PAGE, re.DOTALL).group(1) + SHOW)
    return path


def migrate(script):
    """Runs the page's sed commands on the script."""
    for command in re.findall(r"^    (sed -i .* script\.py)$", PAGE, re.MULTILINE):
        subprocess.run(command, shell=True, cwd=script.parent, check=True)


def run(script):
    """Runs the script beside its model_dir and returns what it prints, and its last error line."""
    done = Process([script], cwd=script.parent).wait()
    return done.stdout, (done.stderr.splitlines() or [""])[-1]


@pytest.mark.long
def test_migrated_script_gives_what_it_gave(script):
    if hasattr(tf, "estimator"):
        before, _ = run(script)
        assert "'global_step': 10.0" in before
        (script.parent / "model").rename(script.parent / "model_before")
    else:
        before, error = run(script)
        assert (before, "has no attribute 'estimator'" in error) == ("", True)
    migrate(script)
    assert "tf.estimator" not in script.read_text()
    after, error = run(script)
    assert "'global_step': 10.0" in after, error
    if before:
        assert after == before


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow.compat.v1"])
@pytest.mark.parametrize("prefix", ["tf.estimator", "tf.compat.v1.estimator"])
def test_scripts_of_both_interfaces_get_the_names(tmp_path, module, prefix):
    script = tmp_path / "script.py"
    script.write_text(f"import {module} as tf\n\nprint({prefix}.Estimator, {prefix}.RunConfig)\n")
    migrate(script)
    assert script.read_text() == (
        f"import {module} as tf\n\nimport rec_estimator as rec\n\n"
        "print(rec.Estimator, rec.RunConfig)\n"
    )


@pytest.mark.long
def test_training_goes_on_from_the_checkpoint_of_the_script_as_it_was(script):
    migrate(script)
    run(script)
    text = script.read_text()
    script.write_text(text.replace("max_steps=10", "max_steps=20"))
    resumed, error = run(script)
    assert "'global_step': 20.0" in resumed, error


def test_every_name_of_the_page_exists():
    (rows,) = re.findall(r"^\| `tf.estimator.` .*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    names = re.findall(r"`(\w+)`", rows)
    assert len(names) > 15
    hooks = {"LoggingTensorHook", "SessionRunHook"}
    assert [name for name in names if name not in hooks and not hasattr(rec, name)] == []
    assert all(hasattr(tf.train, name) for name in hooks)
