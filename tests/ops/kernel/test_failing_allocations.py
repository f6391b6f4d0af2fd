# SPDX-License-Identifier: Apache-2.0
"""Allocations of each kernel fail in turn: ResourceExhausted, and the tables as they were.

A child process runs the valid call of every op of the fuzz. A preloaded library lets its
allocations fail.
"""

import ctypes
import functools
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fuzz import fuzz_calls
from fuzz.fuzz_calls import TABLES
from fuzz.valid_calls import ADAGRAD, DIM, VALID_CALLS, Table

ROOT = pathlib.Path(__file__).resolve().parents[3]
MOST = 2000  # Allocations of an op; it does not end if memory of its own is never enough.
EACH = range(MOST)
# Most ops make fewer than 20. Those with many make most of them in loops over rows.
SOME = [*range(20), *sorted({round(20 * 1.125**power) for power in range(40)})]
ROWS = 4000
MANY = 100_003  # Elements of an attribute, whose size in bytes no other allocation has.

# They may leave a table that is not initialized, and lookups say so.
EMPTYING = {"table_initialize", "table_initialize_rows", "table_restore"}


class Memory:
    """Makes allocations fail."""

    def __init__(self):
        self._shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._shim.FailAllocation.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t]
        minor = ".".join(tf.__version__.split(".")[:2])
        self._name = f"_rec_ops_{minor}.so".encode()

    def outcome_of(self, action, number, size=0):
        """Runs an action, one allocation of which fails: (whether one did, its exception)."""
        raised = None
        self._shim.FailAllocation(self._name, number, size)
        try:
            action()
        except tf.errors.OpError as error:
            raised = type(error).__name__
        finally:
            failed = bool(self._shim.StopFailing())
        return failed, raised


class Contents:
    """Reads all tables.

    A callable of a session, unlike its run(), spends no time on the words of an error.
    """

    def __init__(self, caller):
        self._exports = {
            kind: caller.session.make_callable(tf.nest.flatten(list(export)))
            for kind, export in caller.exports.items()
        }

    def read(self):
        """The bytes of all tables; None for one without rows."""
        found = {}
        for kind, export in self._exports.items():
            try:
                found[kind] = [np.asarray(array).tobytes() for array in export()]
            except (tf.errors.FailedPreconditionError, tf.errors.AbortedError):
                found[kind] = None
        return found


def calls(caller):
    """Yields (name, op, arguments): the valid calls, then saves, restores and exports of ROWS keys.

    Tables grow while they restore so many.
    """
    for op in fuzz_calls.op_names(caller.gen):
        yield op, op, VALID_CALLS[op]
    keys = np.repeat(np.arange(ROWS), [1, 2, 3, 4] * (ROWS // 4))
    for kind in ("trained", "filtered", "bloom"):
        table, slots = Table(kind), ADAGRAD
        reserve = {**VALID_CALLS["tables_reserve"], "tables": [table], "keys": [keys]}
        reserve.update(counted_keys=[keys[:0]], l2_scales=[0.01], decay_rates=[0.01], **slots)
        step, fed = caller.build("tables_reserve", reserve)
        gradients = np.ones([len(keys), DIM], np.float32)
        apply = caller.gen.rec_estimator_tables_apply(step.op.outputs[0], [gradients], 3, [0.1])
        caller.session.run(apply, fed)
        prefix = np.array(str(caller.folder / f"large-{kind}"))
        save = {**VALID_CALLS["tables_save"], "tables": [table], "prefix": prefix}
        save.update(tensor_names=["t"], key_dtypes=["int64"], num_slots=[1], **slots)
        yield f"save of {kind}", "tables_save", {**save, "bank_names": ["t/default_values"]}
        restore = {**VALID_CALLS["table_restore"], "table": table, "prefix": prefix}
        yield f"restore of {kind}", "table_restore", {**restore, "num_parts": 1}
        yield f"export of {kind}", "table_export", {**VALID_CALLS["table_export"], "table": table}


def fail_in_turn(memory, caller, contents, op, arguments, numbers):
    """Makes an op's allocations of these numbers fail until none did; returns what came of it."""
    outcomes, changed, emptied = [], [], []
    fetches, fed = caller.build(op, arguments)
    run = functools.partial(caller.session.make_callable(fetches, list(fed)), *fed.values())
    run()  # TensorFlow prepares a graph when it runs it for the first time.
    before = contents.read()
    for number in numbers:
        failed, raised = memory.outcome_of(run, number)
        if not failed:
            break
        outcomes.append(raised or "ok")
        after = contents.read()
        emptied += [kind for kind in TABLES if after[kind] is None and before[kind] is not None]
        changed += [kind for kind in TABLES if after[kind] not in (before[kind], None)]
        if after != before:
            run()
            before = contents.read()
    result = {"op": op, "outcomes": outcomes, "changed": changed, "emptied": emptied}
    return {**result, "finished": not failed}


def fail_constructors(memory, gen):
    """Constructs kernels whose attributes do not fit into memory."""
    many = list(range(MANY))
    kernel = np.ones([MANY, 1], np.float32)
    makers = {
        "table_handle": lambda: (
            gen.rec_estimator_table_handle(shared_name="t", dim=1, frozen_keys=many).op
        ),
        "kernel_rows": lambda: (
            gen.rec_estimator_kernel_rows(
                kernel, counts=[1], terms=[MANY], starts=many, signs=[1] * MANY
            ).op
        ),
    }
    for name, make in makers.items():
        outcomes = []
        for number in range(MOST):
            with tf.Graph().as_default(), tf.Session() as session:
                op = make()
                failed, raised = memory.outcome_of(
                    lambda session=session, op=op: session.run(op), number, 8 * MANY
                )
            if not failed:
                break
            outcomes.append(raised or "ok")
        yield {"op": f"constructor of {name}", "outcomes": outcomes, "finished": not failed}


def run_child(which):
    """Prints a line of JSON for each op."""
    from rec_estimator import _ops

    tf.disable_eager_execution()
    memory = Memory()
    if which == "constructors":
        for result in fail_constructors(memory, _ops.gen):
            print(json.dumps(result), flush=True)
        return
    numbers = EACH if which == "each" else SOME
    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=1)
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
        with tf.Session(config=config) as session:
            caller = fuzz_calls.Caller(_ops.gen, session, pathlib.Path(folder))
            caller.write_files()
            contents = Contents(caller)
            for name, op, arguments in calls(caller):
                result = fail_in_turn(memory, caller, contents, op, arguments, numbers)
                print(json.dumps({"name": name, **result}), flush=True)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The path of the library to preload."""
    path = tmp_path_factory.mktemp("shim") / "failing_allocations.so"
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    source = str(ROOT / "tests/ops/kernel/failing_allocations.cc")
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-shared", "-fPIC", source, "-o", str(path)], check=True
    )
    return path


def results_of(shim, which):
    """Runs a child process; returns what it found of each op."""
    child = subprocess.run(
        [sys.executable, __file__, which],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = child.stdout.splitlines()
    last_lines = "\n".join(lines[-1:] + child.stderr.splitlines()[-20:])
    assert child.returncode == 0, f"the process ended with {child.returncode} after\n{last_lines}"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "which",
    [pytest.param("some", marks=pytest.mark.long), pytest.param("each", marks=pytest.mark.slow)],
)
def test_a_kernel_without_memory_raises_and_changes_no_table(which, shim):
    results = results_of(shim, which)
    for result in results:
        assert result["finished"], result
        assert set(result["outcomes"]) <= {"ok", "ResourceExhaustedError"}, result
        assert not result["changed"], result
        assert not result["emptied"] or result["op"] in EMPTYING, result
    # Without the ops that allocate tensors only, or nothing.
    refused = {each["op"] for each in results if "ResourceExhaustedError" in each["outcomes"]}
    assert refused >= {"table_export", "table_restore", "tables_save", "tables_apply", "step_loop"}


@pytest.mark.long
def test_a_kernel_that_cannot_be_constructed_raises(shim):
    for result in results_of(shim, "constructors"):
        assert result["finished"], result
        assert "ResourceExhaustedError" in result["outcomes"], result


def test_every_kernel_is_registered_with_its_guard():
    registrations = [
        (path.name, part.partition(";")[0])
        for path in sorted((ROOT / "ops").rglob("*.cc"))
        for part in path.read_text().split("REGISTER_KERNEL_BUILDER(")[1:]
    ]
    assert len(registrations) > 25
    assert [each for each in registrations if "Guarded" not in each[1]] == []


if __name__ == "__main__":
    run_child(sys.argv[1])
