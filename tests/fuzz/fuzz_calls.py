# SPDX-License-Identifier: Apache-2.0
"""Calls of ops with nonsense: no shape, type, value or attribute may crash the process.

Every op has a valid call in valid_calls.py. One to three arguments of it are replaced by nonsense.
The call must raise tf.errors, a ValueError or a TypeError, or return what call_results.py computes,
if that knows the op. Tables must work after it. These calls come without the checks of the Python
that calls the ops in a program.
"""

import types

import numpy as np
import oracle
import tensorflow.compat.v1 as tf
from fuzz import call_results
from fuzz.mutations import FLOATS, INTEGERS, change_array, choose
from fuzz.valid_calls import (
    ADAGRAD,
    DIM,
    KEYS,
    VALID_CALLS,
    Function,
    Reserved,
    Table,
    numbers,
)

from rec_estimator import _ops

# Seeds that share a session.
SEEDS = 40

# ------------------------------------------------------------------ nonsense

SHAPES = [
    *((), (0,), (1,), (3,), (4,), (0, 3), (3, 0), (1, 3), (4, 2), (2, 3), (4, 3), (1, 2, 3)),
    # More rows or columns than an int32 counts, without elements. As many keys would take 16 GiB.
    *((2**31, 0), (0, 2**31), (2**40, 0), (0, 2**33)),
]
STRINGS = [
    *(
        "",
        "t",
        "u",
        "/",
        "mean",
        "sum",
        "none",
        "max",
        "initial",
        "_private",
        "a b",
        "é",
        "x" * 5000,
    ),
    *("Adagrad", "Adam", "Ftrl", "GradientDescent", "Momentum", "adagrad", "t/part_0"),
    *("<checkpoint>", "<checkpoint file>", "<garbage>", "<folder>", "/nowhere/at/all", "a\0b"),
]
TABLES = [
    *("trained", "untrained", "uninitialized", "wide", "filtered", "bloom", "limited"),
    *("of 16 bits", "of 8 bits"),
]
HANDLES = [*TABLES, "queue", "two"]
FUNCTIONS = ["step", "fails", "of two", "of none", "of another type", "calls"]
ATTRS = {
    "limited": {"max_rows": 3, "has_padding_key": True, "frozen_keys": [5, -1]},
    "filtered": {"filter_freq": 3},
    "bloom": {
        "filter_freq": 3,
        "sketch": f"counting_bloom_filter max_element_size={2**40} false_positive_probability=0.01",
    },
    "of 16 bits": {"value_dtype": tf.bfloat16, "slot_dtype": tf.bfloat16, "rounding_seed": 7},
    "of 8 bits": {"value_dtype": tf.uint8},
}


def nonsense_array(rng, like):
    dtype = np.asarray(like).dtype
    if rng.random() < 0.15:
        dtype = np.dtype(choose(rng, ["i4", "i8", "f4", "f8", "?", "S1", "c8", "u1"]))
    shape = choose(rng, [*SHAPES, np.shape(like), np.shape(like)])
    pool = {"f": FLOATS, "c": FLOATS, "U": STRINGS, "S": STRINGS}.get(dtype.kind, INTEGERS)
    few = [choose(rng, pool) for _ in range(2)]
    items = [choose(rng, few) for _ in range(int(np.prod(shape)))]
    if dtype.kind in "US":
        return np.array(items, object).reshape(shape)
    with np.errstate(all="ignore"):
        return np.array(items).astype(dtype).reshape(shape)


def change_inside(rng, vector):
    """Changes an element after the first and before the last, where sizes are often checked."""
    changed = vector.copy()
    changed[int(rng.integers(1, len(vector) - 1))] = choose(rng, [-(2**31), -7, -1, 0, 5, 7, 1000])
    return changed


def nonsense(rng, value):
    """Returns a replacement for a valid argument."""
    if isinstance(value, Table):
        return Table(choose(rng, HANDLES))
    if isinstance(value, Function):
        return Function(choose(rng, FUNCTIONS))
    if isinstance(value, Reserved):
        return choose(rng, [value, Table(choose(rng, HANDLES)), nonsense_array(rng, KEYS)])
    if isinstance(value, (np.ndarray, np.generic)):
        # A small change passes the first checks.
        value = np.asarray(value)
        if value.dtype.kind == "i" and value.ndim == 1 and len(value) > 2 and rng.random() < 0.3:
            return change_inside(rng, value)
        if value.dtype.kind in "fi" and rng.random() < 0.5:
            return change_array(rng, value)
        return nonsense_array(rng, value)
    if isinstance(value, list):
        value = [nonsense(rng, item) if rng.random() < 0.5 else item for item in value]
        action = choose(rng, ["keep", "keep", "drop", "empty", "double"])
        return {"drop": value[1:], "empty": [], "double": value + value}.get(action, value)
    if isinstance(value, str):
        return choose(rng, STRINGS)
    if isinstance(value, bool):
        return choose(rng, [True, False, 2])
    if isinstance(value, bytes):
        return bytes(rng.permutation(np.frombuffer(value, np.uint8))[: rng.integers(1, 99)])
    return choose(rng, FLOATS if isinstance(value, float) else INTEGERS)


# ------------------------------------------------------------------ the target


def limit_outputs(arguments):
    """Lets a call have 1000 outputs at most: TensorFlow makes up to 2^31 before it calls us."""
    for name in ("N", "num_slots"):
        if isinstance(arguments.get(name), int):
            arguments[name] = min(arguments[name], 1000)


def op_names(gen):
    """Returns the names of the op functions of the library, without the package's prefix."""
    prefix = "rec_estimator_"
    return sorted(
        name[len(prefix) :]
        for name, function in vars(gen).items()
        if name.startswith(prefix)
        and isinstance(function, types.FunctionType)
        and not name.endswith("_eager_fallback")
    )


class Caller:
    """Calls ops in one graph and session that has tables of all kinds."""

    def __init__(self, gen, session, folder):
        self.gen, self.session, self.folder = gen, session, folder
        handles = {
            kind: gen.rec_estimator_table_handle(
                shared_name=kind.replace(" ", "_"),
                dim=64 if kind == "wide" else DIM,
                **ATTRS.get(kind, {}),
            )
            for kind in TABLES
        }
        for kind in TABLES:
            if kind == "uninitialized":
                continue
            bank = numbers(2, 64 if kind == "wide" else DIM)
            session.run(gen.rec_estimator_table_initialize(handles[kind], bank))
        for kind in ("trained", "filtered", "bloom", "limited", "of 16 bits"):
            reservation, _ = gen.rec_estimator_tables_reserve(
                [handles[kind]], [KEYS], [KEYS], rule="Adagrad", **ADAGRAD
            )
            grads = numbers(4, DIM)
            session.run(gen.rec_estimator_tables_apply(reservation, [grads], 3, [0.1]))
        self.exports = {
            kind: gen.rec_estimator_table_export(
                handles[kind],
                dim=64 if kind == "wide" else DIM,
                num_slots=0,
                slot_names=[],
                slot_widths=[],
                slot_initials=[],
            )
            for kind in TABLES
        }
        variable = tf.Variable(3, dtype=tf.int64, use_resource=True)
        session.run(variable.initializer)
        handles["variable"] = variable.handle
        handles["queue"] = tf.raw_ops.FIFOQueueV2(component_types=[tf.int64])
        # A placeholder hides the static shape.
        handles["two"] = tf.placeholder_with_default(
            tf.stack([handles["trained"], handles["untrained"]]), shape=None
        )
        self.handles = handles
        self.functions = self._make_functions()

    def _make_functions(self):
        """A step that StepLoop can run, and others: {kind: function}."""
        gen, table = self.gen, tf.TensorSpec([], tf.resource)

        def size(handle):
            return gen.rec_estimator_table_stats(handle).size

        def step_that_loops(handle):
            loop = gen.rec_estimator_step_loop(tf.constant(1, tf.int64), [handle], step=step)
            with tf.control_dependencies([loop]):
                return size(handle)

        step = tf.wrap_function(size, [table])
        return {
            "step": step,
            "fails": tf.wrap_function(
                lambda handle: gen.rec_estimator_table_lookup(handle, [1], dim=DIM + 1), [table]
            ),
            "of two": tf.wrap_function(lambda one, other: size(one) + size(other), [table] * 2),
            "of none": tf.wrap_function(lambda: tf.constant(1), []),
            "of another type": tf.wrap_function(
                lambda keys: keys + 1, [tf.TensorSpec([None], tf.int64)]
            ),
            "calls": tf.wrap_function(step_that_loops, [table]),
        }

    def write_files(self):
        """Writes a valid checkpoint and a damaged one."""
        out = self.session.run(
            self.gen.rec_estimator_table_export(
                self.handles["trained"],
                **{k: v for k, v in VALID_CALLS["table_export"].items() if k != "table"},
            )
        )
        tensors = {"t-keys": out.keys, "t-values": out.values, "t-freqs": out.freqs}
        tensors.update({"t/Adagrad-keys": out.keys, "t/Adagrad-values": out.slot_values[0]})
        self.session.run(
            tf.raw_ops.SaveV2(
                prefix=str(self.folder / "checkpoint"),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        )
        (self.folder / "garbage.index").write_bytes(b"garbage" * 1000)

    def table(self, argument):
        """The TableOracle of a Table, as the table is now."""
        try:
            found = self.session.run(self.exports[argument.kind])
        except (KeyError, tf.errors.FailedPreconditionError):  # No table, or an empty one.
            raise call_results.MustRefuseError from None
        attrs = ATTRS.get(argument.kind, {})
        table = oracle.TableOracle(
            found.bank,
            threshold=attrs.get("filter_freq", 0),
            bloom="sketch" in attrs,
            has_padding=attrs.get("has_padding_key", False),
        )
        rows = (found.keys, found.values, found.freqs, found.versions)
        for key, value, freq, version in zip(*rows):
            table.keys[int(key)] = oracle.Row(value, {}, freq, version)
        filtered = (found.keys_filtered, found.freqs_filtered, found.versions_filtered)
        for key, freq, version in zip(*filtered):
            table.keys[int(key)] = oracle.Row(None, {}, freq, version)
        return table

    def call(self, op, arguments):
        """Calls an op and returns its outputs."""
        fetches, fed = self.build(op, arguments)
        return self.session.run(fetches, fed)

    def build(self, op, arguments):
        """Builds an op; returns its outputs, and the arguments to be fed: {placeholder: array}."""
        fed = {}
        built = {name: self._build(value, fed) for name, value in arguments.items()}
        outputs = getattr(self.gen, f"rec_estimator_{op}")(**built)
        if op == "table_handle":  # Not a NumPy array.
            outputs = outputs.op
        elif op in ("tables_reserve", "tables_reserve_packed"):  # The first output is none.
            outputs = outputs.rows
        return outputs, fed

    def _build(self, value, fed):
        if isinstance(value, Table):
            return self.handles[value.kind]
        if isinstance(value, Reserved):
            return getattr(self.gen, f"rec_estimator_{value.op}")(
                **{k: self._build(v, fed) for k, v in VALID_CALLS[value.op].items()}
            ).reservation
        if isinstance(value, Function):
            return self.functions[value.kind]
        if isinstance(value, (np.ndarray, np.generic)):
            value = np.asarray(value)
            if value.dtype.kind in "USO":
                names = [self._path(str(item)) for item in value.flat]
                value = np.array(names, object).reshape(value.shape)
            dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
            placeholder = tf.placeholder(dtype)
            fed[placeholder] = value
            return placeholder
        if isinstance(value, list):
            return [self._build(item, fed) for item in value]
        return value

    def _path(self, name):
        known = {f"<{known}>": known for known in ("checkpoint", "garbage", "written")}
        known["<checkpoint file>"] = "checkpoint.data-00000-of-00001"
        known["<folder>"] = ""
        return str(self.folder / known[name]) if name in known else name


class Target:
    """Nonsense for every op in turn. Tables live on through the seeds that share a session."""

    def __init__(self, folder):
        self._folder = folder
        self._names = op_names(_ops.gen)
        self._session = self._caller = None

    def run(self, seed):
        if self._session is None or seed % SEEDS == 0:
            self._start()
        rng = np.random.default_rng(seed)
        op = self._names[seed % len(self._names)]
        arguments = dict(VALID_CALLS[op])
        changed = rng.permutation(list(arguments))[: choose(rng, [1, 1, 1, 2, 3])]
        arguments.update({name: nonsense(rng, arguments[name]) for name in changed})
        limit_outputs(arguments)
        with self._session.graph.as_default():
            try:
                outputs = self._caller.call(op, arguments)
            except (tf.errors.OpError, ValueError, TypeError):
                outcome = "refused"
            else:
                known = call_results.check(op, arguments, outputs, self._caller.table)
                outcome = "right" if known else "returned"
            self._caller.call("table_lookup", VALID_CALLS["table_lookup"])
        return outcome

    def _start(self):
        if self._session is not None:
            self._session.close()
        # Threads use address space: on a machine with many cores they alone could reach the limit.
        config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        graph = tf.Graph()
        self._session = tf.Session(graph=graph, config=config)
        with graph.as_default():
            self._caller = Caller(_ops.gen, self._session, self._folder)
            self._caller.write_files()
            for op in self._names:
                outputs = self._caller.call(op, VALID_CALLS[op])
                known = call_results.check(op, VALID_CALLS[op], outputs, self._caller.table)
                assert known == (op in call_results.EXPECTED), op
