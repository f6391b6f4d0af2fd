"""What every kernel means, in NumPy and dicts: slow, obvious, and the judge of ops/.

All arithmetic is float32, in the order the kernels promise.
"""

import dataclasses
from typing import Callable, Dict, List, Sequence

import numpy as np

BUCKETS = 1000


def combine(rows, row_ids, num_rows, combiner):
    """[num_rows, dim]: the sum, mean or sqrtn of the rows [n, dim] of each row id.

    The operations are those of tf.nn.embedding_lookup_sparse. It adds the rows beyond a multiple of
    eight first (8 if none is, 9 if one is), then eights, each summed before it is added; and it
    divides from ten rows on, but multiplies by the reciprocal below.
    """
    out = np.zeros([num_rows, rows.shape[1]], np.float32)
    for row_id in np.unique(row_ids):
        mine = rows[row_ids == row_id]
        head = {0: 8, 1: 9}.get(len(mine) % 8, len(mine) % 8) if len(mine) > 1 else 1
        total = _sum(mine[:head])
        for begin in range(head, len(mine), 8):
            total = total + _sum(mine[begin : begin + 8])
        divisor = {"sum": 1, "mean": len(mine), "sqrtn": np.sqrt(len(mine))}[combiner]
        divisor = np.float32(divisor)
        out[row_id] = total / divisor if len(mine) >= 10 else total * (np.float32(1) / divisor)
    return out


def spread(grads, row_ids, combiner):
    """[n, dim]: the gradient of each row that `combine` added, from that of its results."""
    counts = np.bincount(row_ids, minlength=len(grads))[row_ids]
    scale = {"sum": np.ones(len(row_ids)), "mean": 1 / counts, "sqrtn": 1 / np.sqrt(counts)}
    return grads[row_ids] * scale[combiner].astype(np.float32)[:, np.newaxis]


def _sum(rows):
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


# ------------------------------------------------------------------ rules
#
# rule(hyper, grad, value, *slots) -> new value and slots, all float32 [dim].


def gradient_descent(hyper, grad, value):
    (learning_rate,) = hyper
    return (value - grad * learning_rate,)


def momentum(hyper, grad, value, accumulated):
    learning_rate, decay, use_nesterov = hyper
    accumulated = accumulated * decay + grad
    if use_nesterov:
        step = grad * learning_rate + accumulated * (learning_rate * decay)
    else:
        step = accumulated * learning_rate
    return value - step, accumulated


def adagrad(hyper, grad, value, squares):
    (learning_rate,) = hyper
    squares = squares + grad * grad
    if len(value) == 1:
        return value - grad * learning_rate / np.sqrt(squares), squares
    return value - grad * learning_rate * (np.float32(1) / np.sqrt(squares)), squares


def adam(hyper, grad, value, first, second):
    learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power = hyper
    one = np.float32(1)
    first = first * beta1 + grad * (one - beta1)
    second = second * beta2 + grad * grad * (one - beta2)
    rate = learning_rate * np.sqrt(one - beta2_power) / (one - beta1_power)
    return value - first * rate / (np.sqrt(second) + epsilon), first, second


def ftrl(hyper, grad, value, squares, linear):
    learning_rate, power, l1, l2, shrinkage = hyper
    two = np.float32(2)
    new_squares = squares + grad * grad
    root, old_root = new_squares**-power, squares**-power
    shrunk = grad + two * shrinkage * value
    moved = (root - old_root) / learning_rate * value
    # TensorFlow has a kernel of its own for rows of one float, which adds in another order.
    linear = linear + shrunk - moved if len(value) == 1 else linear + (shrunk - moved)
    value = (np.clip(linear, -l1, l1) - linear) / (root / learning_rate + two * l2)
    return value, new_squares, linear


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of the table of rules."""

    step: Callable
    slots: Sequence[str] = ()  # TensorFlow's names.
    initial: float = 0.0  # Of every slot, for tests.
    per_occurrence: bool = False  # A step per occurrence instead of one with the sum.


RULES: Dict[str, Rule] = {
    "GradientDescent": Rule(gradient_descent, per_occurrence=True),
    "Momentum": Rule(momentum, ("Momentum",)),
    "Adagrad": Rule(adagrad, ("Adagrad",), 0.1),
    "Adam": Rule(adam, ("Adam", "Adam_1")),
    "Ftrl": Rule(ftrl, ("Ftrl", "Ftrl_1"), 0.1),
}


# ------------------------------------------------------------------ table


@dataclasses.dataclass
class Row:
    value: np.ndarray  # float32 [dim]
    slots: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # float32 [width]
    freq: int = 0  # Occurrences applied.
    version: int = -1  # Global step of the last apply.


class TableOracle:
    """A table as a dict from key to Row."""

    def __init__(self, bank, default_value=0.0):
        self.bank = np.asarray(bank, np.float32)
        self.default_value = np.float32(default_value)
        self.rows: Dict[int, Row] = {}

    def initial(self, key):
        return self.bank[key % len(self.bank)].copy()

    def lookup(self, keys, unknown="initial"):
        """keys.shape + [dim]. Changes nothing."""
        keys = np.asarray(keys, np.int64)
        out = np.empty([keys.size, self.bank.shape[1]], np.float32)
        for i, key in enumerate(keys.flat):
            if int(key) in self.rows:
                out[i] = self.rows[int(key)].value
            else:
                out[i] = self.initial(int(key)) if unknown == "initial" else self.default_value
        return out.reshape([*keys.shape, self.bank.shape[1]])

    def apply(self, rule, hyper, keys, grads, counted_keys=(), version=-1):
        """One training step."""
        hyper = [np.float32(h) for h in hyper]
        spec = RULES[rule]
        sums: Dict[int, List[np.ndarray]] = {}
        for key, grad in zip(map(int, keys), np.asarray(grads, np.float32)):
            if spec.per_occurrence:
                sums.setdefault(key, []).append(grad)
            else:
                sums.setdefault(key, [np.zeros_like(grad)])
                sums[key][0] = sums[key][0] + grad
        for key in [*map(int, keys), *map(int, counted_keys)]:
            row = self.rows.setdefault(key, Row(self.initial(key)))
            row.freq += 1
            row.version = int(version)
        for key, steps in sums.items():
            row = self.rows[key]
            for name in spec.slots:
                start = np.full_like(row.value, spec.initial)
                row.slots.setdefault(name, start)
            for grad in steps:
                slots = [row.slots[name] for name in spec.slots]
                row.value, *slots = spec.step(hyper, grad, row.value, *slots)
                row.slots.update(zip(spec.slots, slots))

    def frequencies(self, keys):
        return np.vectorize(lambda key: self._row(key).freq, otypes=[np.int64])(keys)

    def versions(self, keys):
        return np.vectorize(lambda key: self._row(key).version, otypes=[np.int64])(keys)

    def _row(self, key):
        return self.rows.get(int(key), Row(self.bank[0]))

    def export(self, slots=()):
        """Tensors of the checkpoint by suffix, and of each (name, width, initial) slot by name."""
        keys = sorted(self.rows, key=lambda key: (key % BUCKETS, key))
        rows = [self.rows[key] for key in keys]
        buckets = [key % BUCKETS for key in keys]
        no_keys = np.zeros([0], np.int64)
        out = {
            "keys": np.array(keys, np.int64),
            "freqs": np.array([row.freq for row in rows], np.int64),
            "versions": np.array([row.version for row in rows], np.int64),
            "keys_filtered": no_keys,
            "freqs_filtered": no_keys,
            "versions_filtered": no_keys,
            "partition_offset": np.searchsorted(buckets, np.arange(BUCKETS + 1)).astype(np.int32),
            "partition_filter_offset": np.zeros([BUCKETS + 1], np.int32),
            "bank": self.bank,
            "values": _stack([row.value for row in rows], self.bank.shape[1]),
        }
        for name, width, initial in slots:
            fresh = np.full([width], initial, np.float32)
            out[name] = _stack([row.slots.get(name, fresh) for row in rows], width)
        return out

    @classmethod
    def restore(cls, tensors, tensor_name, part, num_parts, slots, bank):
        """The table that a checkpoint {name: array} restores to."""
        table = cls(tensors.get(f"{tensor_name}/default_values", bank))
        sources = [tensor_name]
        if f"{tensor_name}-keys" not in tensors:
            sources = [f"{tensor_name}/part_{i}" for i in range(len(tensors))]
        for source in sources:
            for i, key in enumerate(tensors.get(f"{source}-keys", ())):
                if int(key) % BUCKETS % num_parts != part:
                    continue
                row = Row(tensors[f"{source}-values"][i])
                if len(tensors.get(f"{source}-freqs", ())):
                    row.freq = int(tensors[f"{source}-freqs"][i])
                if len(tensors.get(f"{source}-versions", ())):
                    row.version = int(tensors[f"{source}-versions"][i])
                for name, width, initial in slots:
                    row.slots[name] = np.full([width], initial, np.float32)
                    where = np.flatnonzero(tensors.get(f"{source}/{name}-keys", no_key()) == key)
                    if len(where):
                        row.slots[name] = tensors[f"{source}/{name}-values"][where[0]]
                table.rows[int(key)] = row
        return table


def no_key():
    return np.zeros([0], np.int64)


def _stack(rows, width):
    return np.array(rows, np.float32).reshape([len(rows), width])
