# SPDX-License-Identifier: Apache-2.0
"""Scripts in the forms of DeepRec, Rec SDK and TensorFlow 1, each in processes of their own.

Every script trains all its tables, its loss falls, it warns of nothing, and a run that stops and
resumes gives the numbers of one that does not.
"""

import pathlib
import re
from typing import Callable, List, NamedTuple, Sequence

import numpy as np
import pytest
import script_data
import tensorflow.compat.v1 as tf
from python_processes import ONE_OP_AT_A_TIME, Process

SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"


class Script(NamedTuple):
    """How a script is called.

    Attributes:
      name: Name of its file.
      write_data: Writes its data into a folder; None: it makes them itself.
      data: The option for the data, and a file in the folder.
      model: The option for the folder of checkpoints.
      first: Options for the first half of the steps.
      second: Options that resume and do the second half.
      whole: Options for all steps in one process.
      margin: How much less the loss of the last tenth is than that of the first.
    """

    name: str
    write_data: Callable
    data: Sequence[str]
    model: str
    first: Sequence[str]
    second: Sequence[str]
    whole: Sequence[str]
    margin: float


# 20 steps are one epoch: the second half reads the data from the beginning, as the whole run does.
WIDE_AND_DEEP = Script(
    "deeprec_wide_and_deep",
    script_data.write_criteo_csv,
    ("--data_location", ""),
    "--checkpoint",
    # A save evicts, so the whole run saves where the other one stops.
    first=("--save_steps", "20", "--steps", "20"),
    second=("--save_steps", "20", "--steps", "40"),
    whole=("--save_steps", "20", "--steps", "40"),
    margin=0.05,
)
EMBEDDING_VARIABLE = Script(
    "deeprec_embedding_variable",
    None,
    (),
    "--checkpoint",
    first=("--epochs", "2"),
    second=("--epochs", "4"),
    whole=("--epochs", "4"),
    margin=0.05,
)
SESSION = Script(
    "rec_sdk_session",
    script_data.write_tf_records,
    ("--data_path", ""),
    "--model_dir",
    first=("--train_epoch", "2", "--steps", "40"),
    second=("--train_epoch", "2", "--steps", "40"),
    whole=("--train_epoch", "4", "--steps", "80"),
    margin=0.05,
)
ESTIMATOR = Script(
    "rec_sdk_estimator",
    None,
    (),
    "--model_dir",
    first=("--max_steps", "80"),
    second=("--max_steps", "160"),
    whole=("--max_steps", "160"),
    margin=0.05,
)
DIN = Script(
    "tf1_din",
    script_data.write_amazon_pickle,
    ("--dataset", "dataset.pkl"),
    "--save_path",
    first=("--epochs", "1"),
    second=("--epochs", "2"),
    whole=("--epochs", "2"),
    margin=0.3,
)
DEEPFM = Script(
    "tf1_deepfm",
    script_data.write_libsvm,
    ("--data_dir", ""),
    "--model_dir",
    first=("--num_epochs", "1"),
    second=("--num_epochs", "1"),
    whole=("--num_epochs", "2"),
    margin=0.05,
)

EVERYDAY = [
    (WIDE_AND_DEEP, "--ev True --ev_filter counter --optimizer adamasync"),
    (EMBEDDING_VARIABLE, ""),
    (SESSION, "--use_modify_graph 1 --use_faae 1"),
    (ESTIMATOR, "--run_mode train_and_evaluate --modify_graph 1"),
    (DIN, ""),
    (DEEPFM, ""),
]
VARIANTS = [
    *EVERYDAY,
    (WIDE_AND_DEEP, "--ev False --optimizer adam"),
    (WIDE_AND_DEEP, "--ev True --ev_filter cbf --ev_elimination l2 --optimizer adagrad"),
    (WIDE_AND_DEEP, "--ev True --ev_elimination gstep --steps_to_live 5 --optimizer adagraddecay"),
    (WIDE_AND_DEEP, "--ev True --incremental_ckpt 0.1 --group_embedding --optimizer adagrad"),
    (EMBEDDING_VARIABLE, "--num_shards 1"),
    (SESSION, ""),
    (SESSION, "--use_faae 1"),
    (SESSION, "--use_modify_graph 1 --use_dynamic_expansion 1"),
    (SESSION, "--use_dynamic_expansion 1"),
    (SESSION, "--use_modify_graph 1 --use_multi_lookup 1"),
    (ESTIMATOR, "--run_mode train_and_evaluate --use_timestamp 1"),
    (ESTIMATOR, "--modify_graph 1 --use_timestamp 1 --use_one_shot 1"),
    (DEEPFM, "--optimizer Adagrad"),
    (DEEPFM, "--optimizer Momentum"),
]


class Run:
    """A run of a script in its own process. Several may run at the same time."""

    def __init__(self, script, model, behavior, options, hash_seed):
        self.model = model
        command = [SCRIPTS / f"{script.name}.py", "--v2_behavior", behavior]
        command += [script.model, model, *options]
        if script.data:
            command += [script.data[0], model.parent / script.data[1]]
        self._process = Process(
            command, cwd=model.parent, hash_seed=hash_seed, environment=ONE_OP_AT_A_TIME
        )

    def finish(self):
        """Waits; returns the run with `losses`, and the lines of other `results`."""
        done = self._process.wait()
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        assert warnings_in(output) == []
        # %.9g tells any two float32 numbers apart.
        self.losses = [float(loss) for loss in re.findall(r"\bloss (\d\S*)$", output, re.M)]
        self.results = re.findall(
            r"^(?:eval|test_gauc|predicted|served|frequency|rows).*", output, re.M
        )
        return self


def warnings_in(output: str) -> List[str]:
    """The warnings that a user could do something about.

    Left out are TensorFlow's notices about old names, its guess about a global step that it read
    before the increment (a read of a ref variable may be earlier or later), its word on where it
    logs, an argument that its write_graph gives to protobuf, and ours about names without effect.
    """
    lines = [line for line in output.splitlines() if re.search("WARNING|Warning|^W ", line)]
    expected = (
        "deprecated and will be removed",
        "global step (tf.train.get_global_step) has not been increased",
        "All log messages before absl::InitializeLog()",
        "float_format is deprecated for text_format",
        "without effect here",
    )
    return [line for line in lines if not any(part in line for part in expected)]


def last_checkpoint(folder):
    """{tensor: its type, shape and bytes}."""
    reader = tf.train.load_checkpoint(str(folder))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    # Text comes as bytes.
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}


def train_whole_and_in_two(script, behavior, options, folder):
    """Checks what holds for every script; returns the whole run and the second of two."""
    if script.write_data:
        script.write_data(folder)
    options = options.split()
    whole = Run(script, folder / "whole", behavior, [*options, *script.whole], hash_seed=1)
    in_two = folder / "in_two"
    first = Run(script, in_two, behavior, [*options, *script.first], hash_seed=2).finish()
    second = Run(script, in_two, behavior, [*options, *script.second], hash_seed=2).finish()
    whole.finish()
    assert first.losses + second.losses == whole.losses
    assert second.results == whole.results
    tenth = len(whole.losses) // 10
    fall = np.mean(whole.losses[:tenth]) - np.mean(whole.losses[-tenth:])
    assert fall > script.margin
    return whole, second


def rows_of(checkpoint):
    """{table or slot: its number of rows}, of all shards."""
    return {
        name[: -len("-keys")]: shape[0]
        for name, (_, shape, _) in checkpoint.items()
        if name.endswith("-keys")
    }


def check(script, behavior, options, folder):
    whole, in_two = train_whole_and_in_two(script, behavior, options, folder)
    checkpoint = last_checkpoint(whole.model)
    assert checkpoint == last_checkpoint(in_two.model)
    rows = rows_of(checkpoint)
    assert bool(rows) == ("--ev False" not in options)
    assert min(rows.values(), default=1) > 0, rows


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options"), EVERYDAY, ids=lambda value: getattr(value, "name", value)
)
def test_a_ported_script_trains_stops_and_resumes(script, options, tmp_path):
    check(script, "off", options, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("behavior", ["off", "graph"])
@pytest.mark.parametrize(
    ("script", "options"), VARIANTS, ids=lambda value: getattr(value, "name", value)
)
def test_every_variant_of_a_ported_script_trains_stops_and_resumes(
    script, options, behavior, tmp_path
):
    check(script, behavior, options, tmp_path)
