# SPDX-License-Identifier: Apache-2.0
"""Calls of ops with nonsense: no shape, type, value or attribute may crash the process.

Every op has a valid call below. One to three arguments of it are replaced by nonsense. The call
must raise tf.errors, a ValueError or a TypeError, or return what call_results.py computes, if that
knows the op. Tables must work after it. These calls come without the checks of the Python that
calls the ops in a program.
"""

import types

import numpy as np
import oracle
import tensorflow.compat.v1 as tf
from fuzz import call_results
from fuzz.mutations import FLOATS, INTEGERS, change_array, choose

from rec_estimator import _ops

# Seeds that share a session.
SEEDS = 40

DIM = 3

# ------------------------------------------------------------------ valid calls


class Table:
    """Placeholder for a resource handle. ``kind`` is the kind of resource."""

    def __init__(self, kind="trained"):
        self.kind = kind


class Function:
    """Placeholder for a function of the graph. ``kind`` says what it does."""

    def __init__(self, kind="step"):
        self.kind = kind


class Reserved:
    """Placeholder for the output of a valid call of an op that reserves."""

    def __init__(self, op="tables_reserve"):
        self.op = op


def numbers(*shape):
    """Different numbers, so that an exchange shows."""
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 5) / 8


ADAGRAD = {"slot_names": ["Adagrad"], "slot_widths": [DIM], "slot_initials": [0.1]}
KEYS = np.array([5, 0, -1, 5], np.int64)
# Two sections: two keys that are only read; two with a gradient and one that is only counted. Then
# their counts, two in each word.
PACKED = np.array([0, 0, 2, 2, 1, 0, 5, -1, 5, 0, 7, 2 + (1 << 32), 1], np.int64)
BANK = numbers(2, DIM)
SPLITS = np.array([0, 1, 4], np.int32)
INDICES = np.array([[0, 0], [0, 1], [2, 0], [2, 1]], np.int64)

UNIFORM = tf.NodeDef(name="uniform", op="RandomUniform", input=["shape"])
UNIFORM.attr["dtype"].type = tf.float32.as_datatype_enum
UNIFORM.attr["T"].type = tf.int32.as_datatype_enum
UNIFORM.attr["seed"].i, UNIFORM.attr["seed2"].i = 1, 2

VALID_CALLS = {
    "step_loop": {"count": np.int64(2), "captured": [Table()], "step": Function()},
    "shared_kernel": {
        "inputs": [np.array([2, 3], np.int32)],
        "Toutputs": ["float32"],
        "node": UNIFORM.SerializeToString(),
        "shared_name": "uniform",
    },
    "sample_rows": {
        "item_size": np.array([1, 3], np.int32),
        "tensors": [numbers(2, 3), np.array([2, 5]), numbers(4)],
        "kinds": ["dense", "sparse", "dense"],
        "names": ["t", "u", "a b"],
        "num_users": 2,
        "size_name": "t",
    },
    "repeat_rows": {
        "values": numbers(2, 4),
        "row_splits": SPLITS,
        "axis": 1,
        "keep_one": False,
    },
    "repeat_rows_grad": {
        "grads": numbers(4, 3),
        "row_splits": SPLITS,
        "shape": np.array([2, 3], np.int32),
        "axis": 0,
    },
    "kernel_rows": {
        "kernel": numbers(4, 3),
        "counts": [2, 1],
        "terms": [2, 1],
        "starts": [0, 2, 3],
        "signs": [1, -1, 1],
        "keep": True,
    },
    "segment_layer": {
        "entries": numbers(2, 3, 4),
        "rows": numbers(4, 4),
        "kernel": numbers(4, 3),
        "row_splits": SPLITS,
        "user_bias": numbers(2, 3, 3),
        "row_bias": numbers(4, 3),
    },
    "segment_layer_grad": {
        "entries": numbers(2, 3, 4),
        "rows": numbers(4, 4),
        "kernel": numbers(4, 3),
        "row_splits": SPLITS,
        "grads": numbers(4, 3, 3),
    },
    "segment_mat_mul": {
        "rows": numbers(4, 3),
        "matrices": numbers(2, 3, 5),
        "row_splits": SPLITS,
        "transpose_matrices": False,
    },
    "segment_mat_mul_grad": {
        "rows": numbers(4, 3),
        "grads": numbers(4, 5),
        "row_splits": SPLITS,
    },
    "table_handle": {
        "shared_name": "new",
        "dim": DIM,
        "default_value": 0.0,
        "container": "",
        "filter_freq": 3,
        "filter_coefficient": 2,
        "max_element_size": 1000,
        "false_positive_probability": 0.5,
        "max_rows": 7,
        "has_padding_key": True,
        "frozen_keys": [5, 0],
    },
    "table_initialize": {"table": Table(), "bank": BANK, "only_new": False},
    "table_is_initialized": {"table": Table()},
    "table_stats": {"table": Table()},
    "table_tier_counts": {"table": Table()},
    "table_frequencies": {"table": Table(), "keys": KEYS},
    "table_versions": {"table": Table(), "keys": KEYS},
    "table_admits": {"table": Table("filtered"), "keys": KEYS, "counted_keys": KEYS},
    "table_contains": {"table": Table("filtered"), "keys": KEYS},
    "check_row_limit": {"rows": [np.int64(1), np.int64(2)], "table_name": "t", "max_rows": 3},
    "assign_max": {"variable": Table("variable"), "value": np.int64(7)},
    "ops_fingerprint": {},
    "table_evict": {
        "table": Table("filtered"),
        "global_step": np.int64(9),
        "steps_to_live": 5,
        "l2_weight_threshold": -1.0,
    },
    "table_lookup": {"table": Table(), "keys": KEYS, "dim": DIM, "unknown": "default"},
    "table_group_lookup": {
        "tables": [Table(), Table()],
        "keys": [KEYS, KEYS],
        "indices": [INDICES, np.arange(4)[:, np.newaxis]],  # The second has one key a row.
        "dense_shapes": [np.array([4, 2]), np.array([4])],
        "dims": [DIM, DIM],
        "combiners": ["mean", "sum"],
        "unknowns": ["default", "initial"],
    },
    "table_group_lookup_grad": {
        "indices": [INDICES, INDICES],
        "grads": [numbers(3, DIM), numbers(3, 7)],
        "combiners": ["mean", "sqrtn"],
    },
    "tables_bring_in": {
        "tables": [Table(), Table("filtered")],
        "keys": [KEYS, KEYS],
        "batches_ahead": 12,
    },
    "ids_without_padding": {"ids": np.array([[5, -1], [-1, 0]], np.int64), "padding": -1},
    "shard_keys_split": {"keys": KEYS, "N": 3},
    "shard_rows_spread": {
        "shards": np.array([1, 0, 1], np.int32),
        "rows": [numbers(2, DIM), numbers(1, DIM)],
        "index": [np.array([1], np.int32), np.array([0, 0], np.int32)],
    },
    "shard_rows_merge": {
        "shards": np.array([1, 0, 1], np.int32),
        "rows": [numbers(1, DIM), numbers(2, DIM)],
    },
    "shard_rows_split": {
        "shards": np.array([1, 0, 1], np.int32),
        "values": numbers(3, DIM),
        "N": 2,
    },
    "tables_reserve": {
        "tables": [Table(), Table("filtered")],
        "keys": [KEYS, KEYS],
        "counted_keys": [KEYS, KEYS],
        "rule": "Adagrad",
        **{**ADAGRAD, "slot_widths": [DIM, DIM]},
    },
    "tables_apply": {
        "reservation": Reserved(),
        "grads": [numbers(4, DIM)] * 2,
        "version": np.int64(3),
        "hyper": [np.float32(0.1)],
    },
    "keys_pack": {
        "keys": [KEYS, KEYS[:2]],
        "sections": [1, 0],
        "uses": ["gradient", "read"],
        "num_sections": 2,
    },
    "tables_read": {
        "tables": [Table(), Table("filtered")],
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
        "unknowns": ["initial", "default"],
    },
    "rows_spread": {
        "rows": np.ones([5 * DIM], np.float32),
        "packed": PACKED,
        "index": [np.array([0, 2, 1], np.int32), np.array([[1, 0]], np.int32)],
        "lookups": [0, 1],
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
    },
    "rows_unpack": {
        "N": 2,
        "rows": np.ones([5 * DIM], np.float32),
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
    },
    "gradients_pack": {
        "packed": PACKED,
        "index": [np.array([0, 1, 0], np.int32), np.array([0], np.int32)],
        "grads": [np.ones([4, DIM], np.float32), np.ones([0, DIM], np.float32)],
        "places": [],
        "version": np.int64(3),
        "hyper": [np.float32(0.1)],
        "lists": [2, 0],
        "sections": [1, 0],
        "num_sections": 2,
    },
    "tables_reserve_packed": {
        "tables": [Table(), Table("filtered")],
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "rule": "Adagrad",
        **{**ADAGRAD, "slot_widths": [DIM, DIM]},
    },
    "tables_apply_packed": {
        "reservation": Reserved("tables_reserve_packed"),
        # Two versions of two floats each, a hyperparameter for each table, and two gradients.
        "gradients": np.ones([2 * 2 + 2 + 2 * DIM], np.float32),
    },
    "table_export": {"table": Table(), "dim": DIM, "num_slots": 1, **ADAGRAD},
    "tables_save": {
        "tables": [Table(), Table("untrained")],
        "prefix": np.array("<written>"),
        "delta_of": np.array(["", ""]),
        "tensor_names": ["t", "u"],
        "key_dtypes": ["int64", "int32"],
        "bank_names": ["t/default_values", ""],
        "num_slots": [1, 0],
        "track_changes": True,
        **ADAGRAD,
    },
    "table_commit_save": {"table": Table()},
    "checkpoint_ranges_match": {
        "path": np.array("<checkpoint file>"),
        "offsets": np.array([0, 8], np.int64),
        "sizes": np.array([8, 0], np.int64),
        "checksums": np.array([1, 0], np.int64),
    },
    "table_restore": {
        "table": Table(),
        "prefix": np.array("<checkpoint>"),
        "bank": BANK,
        "tensor_name": "t",
        "part": 0,
        "num_parts": 2,
        "version": 7,
        **ADAGRAD,
    },
}

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
TABLES = ["trained", "untrained", "uninitialized", "wide", "filtered", "bloom", "limited"]
HANDLES = [*TABLES, "queue", "two"]
FUNCTIONS = ["step", "fails", "of two", "of none", "of another type", "calls"]
ATTRS = {
    "limited": {"max_rows": 3, "has_padding_key": True, "frozen_keys": [5, -1]},
    "filtered": {"filter_freq": 3},
    "bloom": {
        "filter_freq": 3,
        "sketch": f"counting_bloom_filter max_element_size={2**40} false_positive_probability=0.01",
    },
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
                shared_name=kind, dim=64 if kind == "wide" else DIM, **ATTRS.get(kind, {})
            )
            for kind in TABLES
        }
        for kind in TABLES:
            if kind == "uninitialized":
                continue
            bank = numbers(2, 64 if kind == "wide" else DIM)
            session.run(gen.rec_estimator_table_initialize(handles[kind], bank))
        for kind in ("trained", "filtered", "bloom", "limited"):
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
        for name in ("N", "num_slots"):
            if isinstance(arguments.get(name), int):
                # TensorFlow creates this many outputs, up to 2^31, before it calls our code.
                arguments[name] = min(arguments[name], 1000)
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
