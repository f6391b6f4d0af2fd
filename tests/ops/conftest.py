# SPDX-License-Identifier: Apache-2.0
"""SessionTable: a table in a session whose ops tests call with NumPy arrays."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from table_steps import apply_op, reserve_op

from rec_estimator import _ops


class SessionTable:
    """A handle in the default graph, and its session.

    Inputs are placeholders of unknown shape, so that shape functions accept everything and the
    kernels must check it. Each op is built once and run many times.
    """

    def __init__(self, session, dim, name="t", default_value=0.0, **filter_attrs):
        self.session = session
        self.dim = dim
        self.handle = _ops.gen.rec_estimator_table_handle(
            shared_name=name, dim=dim, default_value=default_value, **filter_attrs
        )
        self._built = {}

    def call(self, op, *inputs, **attrs):
        """Runs an op on the handle, inputs and attributes. A list is a list input.

        op: <op> of gen.rec_estimator_table_<op>; or "apply", a whole step, or "check_room".
        """
        shape = [len(value) if isinstance(value, list) else -1 for value in inputs]
        key = (op, str(shape), str(attrs))
        if key not in self._built:
            feeds = [
                [placeholder_like(item) for item in value]
                if isinstance(value, list)
                else placeholder_like(value)
                for value in inputs
            ]
            steps = {"apply": apply_op, "check_room": check_room}
            function = steps.get(op) or getattr(_ops.gen, f"rec_estimator_table_{op}")
            self._built[key] = (feeds, function(self.handle, *feeds, **attrs))
        feeds, fetches = self._built[key]
        fed = {}
        for feed, value in zip(feeds, inputs):
            fed.update(zip(feed, value) if isinstance(feed, list) else [(feed, value)])
        return self.session.run(fetches, fed)

    def initialize(self, bank):
        self.call("initialize", np.asarray(bank, np.float32))

    def lookup(self, keys, unknown="initial"):
        return self.call("lookup", np.asarray(keys, np.int64), dim=self.dim, unknown=unknown)

    def apply(self, rule, hyper, keys, grads, counted_keys=(), version=-1, slots=(), **attrs):
        self.call(
            "apply",
            np.asarray(keys, np.int64),
            np.asarray(grads, np.float32),
            np.asarray(counted_keys, np.int64),
            np.int64(version),
            [np.float32(h) for h in hyper],
            rule=rule,
            **slot_attributes(slots),
            **attrs,
        )

    def frequencies(self, keys):
        return self.call("frequencies", np.asarray(keys, np.int64))

    def versions(self, keys):
        return self.call("versions", np.asarray(keys, np.int64))

    def admits(self, keys, counted_keys=()):
        counted_keys = np.asarray(counted_keys, np.int64)
        return self.call("admits", np.asarray(keys, np.int64), counted_keys)

    def contains(self, keys):
        return self.call("contains", np.asarray(keys, np.int64))

    def check_room(self, keys, counted_keys=()):
        self.call("check_room", np.asarray(keys, np.int64), np.asarray(counted_keys, np.int64))

    def evict(self, global_step=-1, **attrs):
        return self.call("evict", np.int64(global_step), **attrs).evicted

    def stats(self):
        return self.call("stats")

    def size(self):
        return self.stats().size

    def export(self, slots=(), **attrs):
        """Returns {output: array}, as TableOracle.export does; slots are under their names."""
        attrs = {**slot_attributes(slots), **attrs}
        out = self.call("export", dim=self.dim, num_slots=len(slots), **attrs)._asdict()
        del out["sketch"], out["version_unit"]
        out = {name: array for name, array in out.items() if "bloom" not in name}
        out.update(zip([slot[0] for slot in slots], out.pop("slot_values")))
        return out

    def restore(self, prefix, bank, *, tensor_name="t", part=0, num_parts=1, slots=(), **attrs):
        self.call(
            "restore",
            np.array(str(prefix)),
            np.asarray(bank, np.float32),
            tensor_name=tensor_name,
            part=part,
            num_parts=num_parts,
            **slot_attributes(slots),
            **attrs,
        )

    def save(self, prefix, *, others=(), names=("t",), slots=(), delta_of="", **attrs):
        """Saves this table and others of its session, each with these slots and its bank."""
        tables = [self, *others]
        attrs = {
            "tensor_names": list(names),
            "key_dtypes": [tf.int64] * len(tables),
            "bank_names": [f"{name}/default_values" for name in names],
            "num_slots": [len(slots)] * len(tables),
            **slot_attributes([*slots] * len(tables)),
            **attrs,
        }
        key = ("save", len(tables), str(attrs))
        if key not in self._built:
            feeds = [tf.placeholder(tf.string), tf.placeholder(tf.string)]
            handles = [table.handle for table in tables]
            save = _ops.gen.rec_estimator_tables_save(handles, *feeds, **attrs)
            self._built[key] = (feeds, save)
        feeds, save = self._built[key]
        self.session.run(save, dict(zip(feeds, (str(prefix), delta_of))))

    def commit_save(self):
        self.call("commit_save")


def check_room(table, keys, counted_keys):
    return reserve_op([table], [keys], [counted_keys]).reservation.op


def placeholder_like(value):
    value = np.asarray(value)
    return tf.placeholder(tf.string if value.dtype.kind in "SU" else value.dtype)


def slot_attributes(slots):
    """Returns the three attributes that describe (name, width, initial) slots."""
    return {
        "slot_names": [name for name, _, _ in slots],
        "slot_widths": [width for _, width, _ in slots],
        "slot_initials": [initial for _, _, initial in slots],
    }


@pytest.fixture
def session(graph):
    with tf.Session(graph=graph) as opened:
        yield opened


@pytest.fixture
def make_table(session):
    """make_table(dim, bank=None, name="t", default_value=0, filter_freq=0, …).

    Returns a SessionTable, which is initialized if a bank is given.
    """

    def make(dim, bank=None, **kwargs):
        table = SessionTable(session, dim, **kwargs)
        if bank is not None:
            table.initialize(bank)
        return table

    return make
