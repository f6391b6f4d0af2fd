# SPDX-License-Identifier: Apache-2.0
"""A restore refuses a corrupt index by name, wherever it is corrupt, and changes nothing.

For some of these, TensorFlow's CheckpointReader ends the process, so another process restores them.
"""

import json
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

import rec_estimator as rec
from rec_estimator.checkpoint.format.index_file import build_index, parse_index


def entry_with(**fields):
    """Returns a change of an entry: fields that are set, dims of the shape, or rank."""

    def change(value):
        entry = BundleEntryProto.FromString(value)
        for name, field in fields.items():
            if name == "dims":
                del entry.shape.dim[:]
                for size in field:
                    entry.shape.dim.add().size = size
            elif name == "slices":
                for extents in field:
                    placed = entry.slices.add()
                    for start, length in extents:
                        placed.extent.add(start=start, length=length)
            elif name == "unknown_rank":
                entry.shape.unknown_rank = field
            else:
                setattr(entry, name, field)
        return entry.SerializeToString()

    return change


ENTRIES = {
    "garbage": lambda value: b"\xff" * 9,
    "an empty entry": lambda value: b"",
    "a negative dimension": entry_with(dims=[-1, 3]),
    "a product beyond int64": entry_with(dims=[2**40, 2**40]),
    "a product that wraps to zero": entry_with(dims=[2**32, 2**32]),
    "zero times too much": entry_with(dims=[0, 2**62, 2**62]),
    "another shape": entry_with(dims=[7, 7]),
    "rank 300": entry_with(dims=[1] * 300),
    "an unknown rank": entry_with(unknown_rank=True),
    "an offset behind the file": entry_with(offset=2**40),
    "a negative offset": entry_with(offset=-8),
    "an offset and a size beyond int64": entry_with(offset=2**63 - 1),
    "a negative size": entry_with(size=-1),
    "another size": entry_with(size=5),
    "a data file too many": entry_with(shard_id=2),
    "a negative data file": entry_with(shard_id=-1),
    "no type": entry_with(dtype=0),
    "a type nobody knows": entry_with(dtype=1000),
    "a reference": entry_with(dtype=101),
    "a wider type": entry_with(dtype=2),
    "a slice that is missing": entry_with(slices=[[(0, 1), (0, 1)]]),
    "a slice of another rank": entry_with(slices=[[(0, 1)] * 5]),
    "a slice outside": entry_with(slices=[[(2**62, 2**62), (0, 1)]]),
    "a slice of negative length": entry_with(slices=[[(0, -5), (0, 1)]]),
}


def header_with(**fields):
    def change(value):
        header = BundleHeaderProto.FromString(value)
        for name, field in fields.items():
            setattr(header, name, field)
        return header.SerializeToString()

    return change


HEADERS = {
    "no header": lambda value: b"\xff" * 9,
    "no data files": header_with(num_shards=0),
    "negative data files": header_with(num_shards=-3),
    "2**31 - 1 data files": header_with(num_shards=2**31 - 1),
}


RESTORE_EACH = textwrap.dedent(
    """
    import contextlib, io, json, pathlib, sys
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec
    from rec_estimator.table import saveable
    from rec_estimator.tools import inspect_checkpoint, shrink_ckpt_with_filtered_features

    tf.disable_eager_execution()
    tf.get_logger().setLevel("ERROR")
    def build():
        step = tf.train.get_or_create_global_step()
        table = rec.get_embedding_variable("emb", 3)
        weight = tf.get_variable("weight", [2, 3], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([8, 9], tf.int64)) * weight)
        return table, weight, rec.optimizers.AdamOptimizer().minimize(loss, global_step=step)

    def restore(prefix):
        try:
            saver.restore(session, prefix)
        except tf.errors.DataLossError:
            after = session.run(contents)
            assert [a.tobytes() for a in after] == [b.tobytes() for b in before], "changed"
            raise

    def restore_table(prefix):
        session.run(saveable.build_restore(table.shards[0], prefix))

    fresh = tf.Graph()
    with fresh.as_default():
        build()

    def initialize(prefix):
        with fresh.as_default():
            rec.init_from_checkpoint(prefix, {"weight": "weight", "emb": "emb"})

    def initialize_variables(prefix):
        with fresh.as_default():
            rec.init_from_checkpoint(prefix, {"weight": "weight"})

    def model_fn(features, labels, mode):
        table, weight, train_op = build()
        return rec.EstimatorSpec(mode, loss=tf.reduce_sum(weight), train_op=train_op)

    def input_fn():
        return tf.data.Dataset.from_tensors(({"x": [1.0]}, [1.0])).repeat(3)

    def warm_start(prefix):
        rec.RecEstimator(model_fn, f"{prefix}_model", warm_start_from=prefix).train(
            input_fn, steps=2)

    def resume(prefix):
        folder = pathlib.Path(prefix).parent
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"')
        rec.RecEstimator(model_fn, str(folder)).train(input_fn, max_steps=3)

    def tool(module, *arguments):
        def run(prefix):
            errors = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                code = module.main([argument.format(prefix) for argument in arguments])
            if code:
                raise tf.errors.DataLossError(None, None, f"exit code {code}: {errors.getvalue()}")
        return run

    WAYS = {
        "restore": restore,
        "restore_table": restore_table,
        "initialize": initialize,
        "initialize_variables": initialize_variables,
        "warm_start": warm_start,
        "resume": resume,
        "inspect": tool(inspect_checkpoint, "{}"),
        "shrink": tool(
            shrink_ckpt_with_filtered_features,
            "--input_checkpoint={}",
            "--output_checkpoint={}_shrunk",
        ),
    }
    table, weight, train = build()
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        contents = [table.export().values, weight]
        before = session.run(contents)
        for line in sys.stdin:
            prefix, way = json.loads(line)
            try:
                WAYS[way](prefix)
                outcome = ["accepted", ""]
            except tf.errors.DataLossError as error:
                outcome = ["DataLoss", error.message]
            except Exception as error:
                outcome = [type(error).__name__, str(error)]
            print(json.dumps([prefix, way, *outcome]), flush=True)
    """
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The index entries of a checkpoint with a table, a weight and a variable of no graph."""
    folder = tmp_path_factory.mktemp("good")
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        table = rec.get_embedding_variable("emb", 3)
        weight = tf.get_variable("weight", [2, 3])
        tf.get_variable("other", [2, 3])
        loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([1, 2], tf.int64)) * weight)
        train = rec.optimizers.AdamOptimizer().minimize(loss, global_step=step)
        session.run(tf.global_variables_initializer())
        session.run(train)
        rec.Saver().save(session, str(folder / "model"), write_meta_graph=False)
    return folder / "model"


def copy_with(good, folder, key, change):
    """Copies the checkpoint with a change of one entry of its index; returns the prefix."""
    folder.mkdir(parents=True)
    for file in good.parent.glob("model.data-*"):
        (folder / file.name).write_bytes(file.read_bytes())
    entries = dict(parse_index(good.with_suffix(".index").read_bytes()))
    entries[key] = change(entries[key])
    (folder / "model.index").write_bytes(build_index(sorted(entries.items())))
    return str(folder / "model")


@pytest.fixture(scope="module")
def restore_all(tmp_path_factory):
    """Restores checkpoints in many ways in another process; returns [[prefix, way, what, text]]."""
    errors = tmp_path_factory.mktemp("restore") / "errors"
    with open(errors, "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", RESTORE_EACH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=pathlib.Path(__file__).resolve().parents[2],
        )

    def restore(prefix, way):
        process.stdin.write(json.dumps([prefix, way]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"{prefix}, {way}: the process ended; " + errors.read_text()[-3000:]
        return json.loads(line)

    with process:
        yield lambda prefixes, ways: [
            restore(prefix, way) for prefix in prefixes for way in ways.split()
        ]
        process.stdin.close()
    assert process.returncode == 0, errors.read_text()[-3000:]


def test_an_entry_that_lies_is_refused_by_name_and_changes_nothing(good, restore_all, tmp_path):
    prefixes = {
        copy_with(good, tmp_path / f"{target}-{i}", target.encode(), ENTRIES[what]): (target, what)
        for target in ("weight", "emb-values", "other")
        for i, what in enumerate(ENTRIES)
    }
    outcomes = restore_all(list(prefixes), "restore initialize initialize_variables inspect")
    assert len(outcomes) == len(prefixes) * 4
    for prefix, way, outcome, message in outcomes:
        assert outcome == "DataLoss", (prefixes[prefix], way, outcome, message)
        assert prefix in message and prefixes[prefix][0] in message, (prefixes[prefix], message)


def test_the_op_that_restores_a_table_refuses_an_entry_that_lies(good, restore_all, tmp_path):
    # A stock Saver runs it without the checks of rec_estimator.Saver.
    prefixes = {
        copy_with(good, tmp_path / str(i), b"emb-values", ENTRIES[what]): what
        for i, what in enumerate(ENTRIES)
    }
    for prefix, _, outcome, message in restore_all(list(prefixes), "restore_table"):
        assert outcome in ("DataLoss", "InvalidArgumentError"), (prefixes[prefix], message)
        assert prefix in message and "emb-values" in message, (prefixes[prefix], message)


def test_estimators_and_tools_refuse_an_entry_that_lies(good, restore_all, tmp_path):
    prefixes = [
        copy_with(good, tmp_path / f"{target}-{what}", target.encode(), ENTRIES[what])
        for target in ("weight", "emb-values")
        for what in ("garbage", "a negative dimension", "an offset behind the file")
    ]
    for prefix, way, outcome, message in restore_all(prefixes, "warm_start resume inspect shrink"):
        assert outcome == "DataLoss", (prefix, way, outcome, message)


def test_a_header_that_lies_is_refused(good, restore_all, tmp_path):
    prefixes = [
        copy_with(good, tmp_path / str(i), b"", change) for i, change in enumerate(HEADERS.values())
    ]
    for prefix, way, outcome, message in restore_all(prefixes, "restore initialize inspect"):
        assert outcome == "DataLoss", (prefix, way, outcome, message)


def test_the_undamaged_checkpoint_is_accepted(good, restore_all, tmp_path):
    prefix = copy_with(good, tmp_path / "same", b"weight", lambda value: value)
    outcomes = restore_all([prefix], "initialize warm_start resume")
    assert [outcome for _, _, outcome, _ in outcomes] == ["accepted"] * 3


@pytest.mark.long
def test_an_entry_of_random_bytes_is_refused_or_equal(good, tmp_path):
    rng = np.random.default_rng(0)
    session = tf.Session()
    with session:
        rec.get_embedding_variable("emb", 3)
        tf.get_variable("weight", [2, 3])
        session.run(tf.global_variables_initializer())
        saver = rec.Saver()
        refused = 0
        for i in range(200):

            def mutate(value):
                data = bytearray(value)
                data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
                return bytes(data)

            key = (b"weight", b"emb-keys", b"emb-values", b"emb/default_values")[i % 4]
            try:
                saver.restore(session, copy_with(good, tmp_path / str(i), key, mutate))
            # Another type of the same size is no damage, but not the table's.
            except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
                assert str(tmp_path / str(i)) in error.message
                refused += 1
    assert refused > 150
