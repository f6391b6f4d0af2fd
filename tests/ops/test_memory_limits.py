# SPDX-License-Identifier: Apache-2.0
"""Ops in a process whose address space ends raise ResourceExhausted; none ends the process.

A child process runs each op again and again, each time with room for more memory, until it works.
"""

import ctypes
import functools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

DIM, ROWS = 32, 500_000
ADAGRAD = {"slot_names": ["Adagrad"], "slot_widths": [DIM], "slot_initials": [0.1]}
# The least is what TensorFlow itself needs to run an op. The last is enough for every op.
ROOM_MIB = (8, 12, 40, 120, 1000)
# What is freed goes back to the system at once, and no thread has an arena with room of its own.
# With oneDNN, TensorFlow keeps the memory of tensors.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
}


def save_and_restore(gen, table, new, bank, prefix):
    """Returns the op that saves a table, and one that restores another from its checkpoint."""
    named = {"tensor_names": ["t"], "bank_names": ["t/default_values"], "num_slots": [1]}
    save = gen.rec_estimator_tables_save(
        [table], prefix, "", key_dtypes=[tf.int64], track_changes=True, **named, **ADAGRAD
    )
    restore = gen.rec_estimator_table_restore(
        new, prefix, bank, tensor_name="t", part=0, num_parts=1, **ADAGRAD
    )
    return save, restore


def make_actions(gen, session, folder):
    """Returns {name: function that runs an op on all rows}, and one that reads a table."""
    bank = np.ones([2, DIM], np.float32)
    table, new = (gen.rec_estimator_table_handle(shared_name=name, dim=DIM) for name in "tn")
    filtered = gen.rec_estimator_table_handle(shared_name="f", dim=DIM, filter_freq=3)
    initialize = [gen.rec_estimator_table_initialize(each, bank) for each in (table, new, filtered)]
    keys = tf.placeholder(tf.int64, [None])
    hyper, none = [np.float32(0.1)], np.zeros([0], np.int64)
    grads = tf.ones([tf.size(keys), DIM])
    reservation, _ = gen.rec_estimator_tables_reserve(
        [table], [keys], [none], rule="Adagrad", **ADAGRAD
    )
    train = gen.rec_estimator_tables_apply(reservation, [grads], np.int64(1), hyper)
    lookup = gen.rec_estimator_table_lookup(table, keys, dim=DIM, unknown="initial")
    rows = tf.stack([tf.range(tf.size(keys, out_type=tf.int64)) // 2, tf.zeros_like(keys)], axis=1)
    grouped = gen.rec_estimator_table_group_lookup(
        [table], [keys], [rows], [tf.shape(rows, out_type=tf.int64)],
        dims=[DIM], combiners=["mean"], unknowns=["initial"],
    )  # fmt: skip
    admits = gen.rec_estimator_table_admits(filtered, keys, keys)
    export = gen.rec_estimator_table_export(table, dim=DIM, num_slots=1, **ADAGRAD)
    save, restore = save_and_restore(gen, table, new, bank, str(folder / "saved"))
    # So many users without candidates that the op's own copy of the sizes takes 64 MB.
    sizes = tf.zeros([16 * tf.size(keys)], tf.int32)
    sample = gen.rec_estimator_sample_rows(
        sizes, [tf.zeros([0])], kinds=["dense"], names=["t"], num_users=0, size_name="n"
    )
    size = gen.rec_estimator_table_stats(table).size
    session.run(initialize)
    # Operations: their results are not copied to Python, where memory may end too.
    # The first one needs little but scratch memory, of which others leave more than it needs.
    operations = {
        "admits": admits.op,
        "lookup": lookup.op,
        "grouped lookup": grouped[0].op,
        "export": export.keys.op,
        "save": save,
        "restore": restore,
        "sample rows": sample.index.op,
    }
    few, all_keys = ({keys: np.arange(n)} for n in (10, ROWS))
    for part in np.array_split(all_keys[keys], 20):
        session.run(train, {keys: part})
    # TensorFlow prepares a graph when it runs it for the first time.
    for operation in operations.values():
        session.run(operation, few)
    session.run(initialize[1])

    def contents():
        return b"".join(array.tobytes() for array in session.run([lookup, size], few))

    contents()
    actions = {
        name: functools.partial(session.run, operation, all_keys)
        for name, operation in operations.items()
    }
    return actions, contents


def used_bytes():
    """The size of the address space of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def room_for(mebibytes):
    """Limits the address space to what is used and some more."""
    ctypes.CDLL(None).malloc_trim(0)
    used, times = used_bytes(), 0
    while times < 10:  # Threads may still free what the last run took; on a busy machine, later.
        time.sleep(0.02)
        used, before = used_bytes(), used
        times = times + 1 if used == before else 0
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), resource.RLIM_INFINITY))


def outcome_of(action, mebibytes):
    """Runs an action under a limit; returns "ok" or the name of the exception."""
    room_for(mebibytes)
    try:
        action()
    except tf.errors.OpError as error:
        return type(error).__name__
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "ok"


def run_child(gen):
    """Prints a line for each op with the outcomes under all limits."""
    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=1)
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
        with tf.Session(config=config) as session:
            actions, contents = make_actions(gen, session, pathlib.Path(folder))
            before = contents()
            for name, action in actions.items():
                outcomes = [outcome_of(action, mebibytes) for mebibytes in ROOM_MIB]
                same = contents() == before
                print(json.dumps({"op": name, "outcomes": outcomes, "same": same}), flush=True)
    print("finished", flush=True)


@pytest.mark.long
def test_no_op_ends_a_process_without_memory():
    root = pathlib.Path(__file__).resolve().parents[2]
    child = subprocess.run(
        [sys.executable, __file__],
        cwd=root,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = child.stdout.splitlines()
    last_lines = "\n".join(lines[-1:] + child.stderr.splitlines()[-20:])
    assert child.returncode == 0, f"the process ended with {child.returncode} after\n{last_lines}"
    assert lines.pop() == "finished"
    results = [json.loads(line) for line in lines]
    assert len(results) == 7
    for result in results:
        assert result["same"], result
        assert set(result["outcomes"]) == {"ok", "ResourceExhaustedError"}, result
        assert result["outcomes"][-1] == "ok", result


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
    from rec_estimator import _ops as library

    run_child(library.gen)
