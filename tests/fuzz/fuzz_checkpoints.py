# SPDX-License-Identifier: Apache-2.0
"""Restores and reads damaged checkpoints, full, incremental and of 8 bits, in all ways there are.

Some tables store values and slots in 16 bits.

A restore must raise an error, or give what is in the files. What is in them is known from the
undamaged checkpoint if checksums cover the damage. Otherwise a second reader, in Python, tells.
After an error each table is as it was, or as in the checkpoint, or not initialized.
"""

import contextlib
import io
import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf
from fuzz.mutant_checkpoints import mutate, read_array
from fuzz.mutations import choose
from fuzz.stored_contents import UnclearError, exported, stored

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle, Index
from rec_estimator.table import saveable
from rec_estimator.table.row_dtype import exporting_rows_as
from rec_estimator.tools import inspect_checkpoint, shrink_ckpt_with_filtered_features

# What a damaged checkpoint may raise. TensorFlow's loops swallow others, such as OutOfRangeError.
REFUSALS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
    OSError,
    ValueError,
)
BANK = 8  # Initial vectors of a table.
BLOOM = "c"  # The table with a Bloom filter.
TABLES = ("a", "b", BLOOM, "d", "e")
FILTERS = {"a": rec.CounterFilter(2), BLOOM: rec.CBFFilter(2, 1000, 0.1), "e": rec.CounterFilter(2)}
CUT = "b"  # The table of two shards.
# Types of values and slots of 16 bits.
NARROW = {"d": (tf.bfloat16, tf.bfloat16), "e": (tf.float16, tf.float32)}
ROWS = 20_000  # Enough that the checksum of a variable is compared late.


class Model:
    """A table of each kind, a small and a large variable, in a session.

    Args:
      has_bytes: Whether tables store rows in 8 bits, as an export does. Then nothing is trained.
    """

    def __init__(self, has_bytes=False):
        self.has_bytes = has_bytes
        self.session = tf.Session(graph=tf.Graph())
        with self.session.graph.as_default(), contextlib.ExitStack() as stack:
            if has_bytes:
                stack.enter_context(exporting_rows_as(tf.uint8))
            self._build()

    def _build(self):
        self.step = tf.train.get_or_create_global_step()
        self.keys = tf.placeholder(tf.int64, [None])
        bank = rec.InitializerOption(tf.ones_initializer(), default_value_dim=BANK)
        self.tables = []
        for dim, name in enumerate(TABLES, start=1):
            value_dtype, slot_dtype = NARROW.get(name, (None, None))
            rule = FILTERS.get(name)
            self.tables.append(
                rec.get_embedding_variable(
                    name,
                    dim,
                    value_dtype=value_dtype,
                    slot_dtype=slot_dtype,
                    partitioner=tf.fixed_size_partitioner(2) if name == CUT else None,
                    ev_option=rec.EmbeddingVariableOption(filter_option=rule, init_option=bank),
                )
            )
        self.variables = [
            tf.get_variable("small", [2, 3], initializer=tf.ones_initializer()),
            tf.get_variable("large", [ROWS], initializer=tf.ones_initializer()),
        ]
        vectors = [rec.embedding_lookup(table, self.keys) for table in self.tables]
        loss = sum(tf.reduce_sum(tf.square(vector)) for vector in vectors)
        loss += sum(tf.reduce_sum(tf.square(variable)) for variable in self.variables)
        if not self.has_bytes:
            self.train = rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=self.step)
        self.exports = {
            table.name: [saveable.export_shard(shard, shard.slots) for shard in table.shards]
            for table in self.tables
        }
        self.saver = rec.Saver(incremental=True)
        self._prefix = tf.placeholder(tf.string, [])
        self._restores = [
            [saveable.build_restore(shard, self._prefix) for shard in table.shards]
            for table in self.tables
        ]
        self._initialize = tf.global_variables_initializer()

    def initialize(self):
        self.session.run(self._initialize)

    def save(self, prefix, **arguments):
        with self.session.graph.as_default():
            self.saver.save(self.session, prefix, write_meta_graph=False, **arguments)

    def restore(self, prefix):
        self.saver.restore(self.session, prefix)

    def restore_tables(self, prefix):
        """Restores as a stock Saver does: without the checks of ours, each table by itself."""
        self.session.run(self._restores, {self._prefix: prefix})

    def contents(self):
        """{name: Contents}, and the bytes of the variables; None for a table that lost its rows."""
        dense = self.session.run([*self.variables, self.step])
        found = {"dense": [array.tobytes() for array in dense]}
        for name, exports in self.exports.items():
            try:
                found[name] = exported(self.session.run(exports), name == BLOOM)
            except (tf.errors.AbortedError, tf.errors.FailedPreconditionError):
                found[name] = None
        return found

    def stored(self, prefix, names):
        """The same of a checkpoint, without what cannot be known."""
        found = {}
        if "dense" in names:
            arrays = [read_array(Index(prefix), v.op.name) for v in [*self.variables, self.step]]
            found["dense"] = [array.tobytes() for array in arrays]
        for table in self.tables:
            slots = [
                (slot.name, np.full([slot.width], slot.initial, np.float32))
                for slot in table.shards[0].slots
            ]
            bank = np.ones([BANK, table.dim], np.float32)
            threshold = 2 if table.filter else 0
            dtypes = tf.uint8 if self.has_bytes else table.value_dtype, table.slot_dtype
            with contextlib.suppress(UnclearError):
                found[table.name] = stored(
                    prefix, table.name, threshold, slots, bank, table.name == BLOOM, dtypes
                )
        return found


# By checkpoint, itself and those that it builds on.
CHAINS = {
    "full": ["full"],
    "model-3": ["model-3", "model-2", "model-1"],
    "bytes": ["bytes"],  # Rows of 8 bits, as in an export.
}


class Target:
    """Mutants of chains of checkpoints, given to every reader."""

    def __init__(self, folder):
        tf.disable_eager_execution()
        self._good, self._bad = folder / "good", folder / "bad"
        self._good.mkdir()
        self._trained, self._served = Model(), Model(has_bytes=True)
        self._write_checkpoints()
        models = (self._trained, self._served)
        self._live = {model: self._contents_of(model, "live") for model in models}
        self._expected = {
            name: {model: self._contents_of(model, name) for model in self._models_of(name)}
            for name in CHAINS
        }
        for model in models:
            self._restore_live(model)

    def _write_checkpoints(self):
        model = self._trained
        model.initialize()
        rng = np.random.default_rng(0)
        for number in range(1, 4):
            keys = np.concatenate([rng.integers(0, 60, 60), rng.integers(-(2**63), 2**63 - 1, 9)])
            model.session.run(model.train, {model.keys: keys})
            model.save(str(self._good / "model"), global_step=number)
        model.save(str(self._good / "full"), full=True)
        assert model.stored(str(self._good / "model-3"), ["dense"]) == model.contents()
        self._served.restore(str(self._good / "full"))
        self._served.save(str(self._good / "bytes"), full=True)
        model.session.run(model.train, {model.keys: rng.integers(0, 9, 20)})
        model.save(str(self._good / "live"), full=True)

    def _models_of(self, name):
        """The models that a checkpoint is given to."""
        return (self._trained, self._served) if name == "bytes" else (self._trained,)

    def _has_all(self, model, name):
        """Whether a checkpoint has all variables of a model. An export has no slots."""
        return name != "bytes" or model is self._served

    def _contents_of(self, model, name):
        restore = model.restore if self._has_all(model, name) else model.restore_tables
        restore(str(self._good / name))
        return model.contents()

    def run(self, seed):
        rng = np.random.default_rng(seed)
        shutil.rmtree(self._bad, ignore_errors=True)
        shutil.copytree(self._good, self._bad)
        name = choose(rng, sorted(CHAINS))
        chain = [str(self._bad / link) for link in CHAINS[name]]
        done, is_covered = mutate(rng, chain)
        model = choose(rng, self._models_of(name))
        ways = [self._restore, self._restore, self._restore_tables]
        restore = choose(rng, ways if self._has_all(model, name) else [self._restore_tables])
        outcome = restore(model, chain[0], is_covered, done)
        self._read(chain[0], is_covered, done)
        return outcome

    def _read(self, prefix, is_covered, done):
        """Gives the checkpoint to the commands, which return 2 for what they refuse."""
        copy = f"{prefix}-copy"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            codes = {
                inspect_checkpoint.main([prefix, "--filtered"]),
                shrink_ckpt_with_filtered_features.main(
                    [f"--input_checkpoint={prefix}", f"--output_checkpoint={copy}"]
                ),
            }
        assert codes <= {0, 2}, codes
        if is_covered and os.path.exists(f"{copy}.index"):
            self._check_copy(Bundle(copy), Bundle(str(self._good / os.path.basename(prefix))), done)

    def _check_copy(self, copy, good, done):
        for name, tensor in good.tensors.items():
            if tensor.dtype == tf.string or "filter" in name or "-cbf" in name:
                continue
            same = read_array(good, name).tobytes() == read_array(copy, name).tobytes()
            assert same, f"{done} was copied with another {name}"

    def _restore(self, model, prefix, is_covered, done):
        try:
            model.restore(prefix)
        except REFUSALS:
            return self._after_refusal(model, prefix, is_covered, done)
        return self._after_acceptance(model, prefix, is_covered, done, ["dense", *TABLES])

    def _restore_tables(self, model, prefix, is_covered, done):
        try:
            model.restore_tables(prefix)
        except REFUSALS:
            return self._after_refusal(model, prefix, is_covered, done, is_stock=True)
        return self._after_acceptance(model, prefix, is_covered, done, TABLES)

    def _after_acceptance(self, model, prefix, is_covered, done, names):
        restored = model.contents()
        try:
            whole = self._expected[os.path.basename(prefix)][model]
            expected = whole if is_covered else model.stored(prefix, names)
        except REFUSALS:
            # The reader refuses some damage beside the tables that the op does not see.
            assert "dense" not in names, f"{done} was accepted"
            expected = {}
        wrong = [name for name in names if name in expected and restored[name] != expected[name]]
        self._restore_live(model)
        assert not wrong, f"{done} was accepted, and gave other contents of {wrong}"
        return "accepted" if not is_covered else "unharmed"

    def _after_refusal(self, model, prefix, is_covered, done, is_stock=False):
        left, live = model.contents(), self._live[model]
        if left == live:
            return "refused"
        self._restore_live(model)
        assert is_stock or not is_covered, f"{done} was refused after it had changed something"
        expected = self._expected[os.path.basename(prefix)][model]
        for name in TABLES if is_covered else ():
            if name == CUT:
                continue
            assert left[name] in [live[name], expected[name], None], f"{done} left a part of {name}"
        return "refused late"

    def _restore_live(self, model):
        assert self._contents_of(model, "live") == self._live[model]
