# SPDX-License-Identifier: Apache-2.0
"""The nine steps of Rec SDK's overview give the same numbers in every mode."""

import itertools
import json
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import ONE_OP_AT_A_TIME, Process

SCRIPT = pathlib.Path(__file__).resolve().parent / "nine_steps.py"
MODES = list(itertools.product(("session", "estimator"), (0, 1), ("on", "off")))


class Script:
    """A run of the script in its own process and folder. Several may run at the same time."""

    def __init__(self, folder, mode, modified, v2_behavior, *arguments):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._output = folder / f"numbers_{len(list(folder.glob('numbers_*')))}.json"
        command = [SCRIPT, "--use_mode", mode]
        command += ["--modify_graph", modified, "--v2_behavior", v2_behavior]
        command += ["--output", self._output, *arguments]
        self._process = Process(command, cwd=folder, environment=ONE_OP_AT_A_TIME)

    def wait(self):
        """The exit code and the output."""
        done = self._process.wait()
        return done.returncode, done.stderr

    def numbers(self):
        """The losses of training and of evaluation."""
        code, output = self.wait()
        assert code == 0, output[-4000:]
        numbers = json.loads(self._output.read_text())
        return numbers["losses"], numbers["eval_losses"]


def last_checkpoint(folder, step):
    """{tensor: its type, shape and bytes}."""
    (index,) = (folder / "saved-model").glob(f"model*-{step}.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return {name: (t.dtype, t.shape, t.tobytes()) for name, t in tensors.items()}


@pytest.mark.long
def test_a_session_that_stops_and_resumes_gives_the_numbers_of_an_estimator(tmp_path):
    steps = ["--max_steps", "12", "--interval", "6"]
    session = (tmp_path / "s", "session", 1, "off")
    # The first run does not call terminate_config_initializer.
    first = Script(*session, *steps, "--stop_at", "6", "--forget_to_terminate")
    whole = Script(tmp_path / "e", "estimator", 0, "on", *steps)
    losses, evaluated = first.numbers()
    assert len(losses) == 6
    more_losses, more_evaluated = Script(*session, *steps, "--start_at", "6").numbers()
    whole_losses, whole_evaluated = whole.numbers()
    assert losses + more_losses == whole_losses
    assert evaluated + more_evaluated == whole_evaluated
    assert len({loss for loss, _ in whole_losses}) == 12
    files = last_checkpoint(tmp_path / "s", 12)
    assert files == last_checkpoint(tmp_path / "e", 12)
    assert {"user_table-keys_filtered", "item_table/LazyAdam-values"} <= set(files)
    assert (tmp_path / "s/saved-model/sparse-model-0-12/user_table/key/slice.data").exists()


@pytest.mark.slow
def test_all_modes_train_evaluate_save_stop_and_resume_with_the_same_numbers(tmp_path):
    expected = None
    for mode in MODES:
        name = "_".join(map(str, mode))
        whole = Script(tmp_path / name, *mode)
        in_two = tmp_path / f"{name}_in_two"
        losses, evaluated = Script(in_two, *mode, "--stop_at", "100").numbers()
        assert len(losses) == 100
        more_losses, more_evaluated = Script(in_two, *mode, "--start_at", "100").numbers()
        found = whole.numbers()
        assert (losses + more_losses, evaluated + more_evaluated) == found
        found = (*found, last_checkpoint(whole.folder, 200))
        assert last_checkpoint(in_two, 200) == found[2]
        expected = expected or found
        assert found == expected
    assert len(expected[0]) == 200
    assert len(expected[1]) == 4 * 10
    trained = [loss for loss, _ in expected[0]]
    assert np.mean(trained[-20:]) < np.mean(trained[:20])


@pytest.mark.slow
def test_an_error_in_the_data_ends_every_mode_with_its_cause(tmp_path):
    for mode in MODES:
        script = Script(tmp_path / "_".join(map(str, mode)), *mode, "--raise_at", "7")
        code, output = script.wait()
        assert code == 1
        assert "ValueError: the data broke at batch 7" in output
