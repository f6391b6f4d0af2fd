# SPDX-License-Identifier: Apache-2.0
"""A NumPy reference implementation of every kernel in ops/: slow and simple.

All arithmetic is float32, in the order that the kernels guarantee.
"""

import collections
import dataclasses
import functools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

KEY_CLASSES = 1000


def combine(rows, row_ids, num_rows, combiner):
    """[num_rows, dim]. The sum, mean or sqrtn of the rows [n, dim] with the same row id.

    The order of operations is that of tf.nn.embedding_lookup_sparse. First it adds the remainder of
    the rows modulo eight (8 rows if the remainder is 0, 9 if it is 1). Then it adds groups of eight
    rows, each summed on its own. It divides if there are ten rows or more, and multiplies by the
    reciprocal if there are fewer.
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
    """[n, dim]. The gradient of the rows of `combine`, given the gradient of its results."""
    _, key, counts = np.unique(row_ids, return_inverse=True, return_counts=True)
    counts = counts[key.reshape(-1)]  # NumPy 2.0 gives another shape.
    scale = {"sum": np.ones(len(row_ids)), "mean": 1 / counts, "sqrtn": 1 / np.sqrt(counts)}
    return grads[row_ids] * scale[combiner].astype(np.float32)[:, np.newaxis]


def combine_weighted(values, weights, row_ids, num_rows, combiner):
    """[num_rows, dim]. The sum of the values [n, dim] of each row times their weights [n].

    "mean" divides by the sum of the weights of a row, "sqrtn" by the square root of the sum of
    their squares, and both give zeros where that is 0. All sums begin with 0.
    """
    out = np.zeros([num_rows, values.shape[1]], values.dtype)
    np.add.at(out, row_ids, values * weights[:, np.newaxis])
    return _divided(out, _divisors(weights, row_ids, num_rows, combiner))


def spread_weighted(grads, weights, row_ids, combiner):
    """[n, dim]. The gradient of the values of `combine_weighted`, given that of its results."""
    divided = _divided(grads, _divisors(weights, row_ids, len(grads), combiner))
    return 0 + divided[row_ids] * weights[:, np.newaxis]


def _divisors(weights, row_ids, num_rows, combiner):
    if combiner == "sum":
        return np.ones(num_rows, weights.dtype)
    sums = np.zeros(num_rows, weights.dtype)
    np.add.at(sums, row_ids, weights if combiner == "mean" else weights * weights)
    return sums if combiner == "mean" else np.sqrt(sums)


def _divided(rows, divisors):
    divisors = divisors[:, np.newaxis]
    return np.divide(rows, divisors, out=np.zeros_like(rows), where=divisors != 0)


def _sum(rows):
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


# ------------------------------------------------------------------ packed transfers


def pack_keys(lists, num_sections):
    """(packed int64, [index of each list]). What KeysPack makes of (keys, section, use)."""
    uses = ("gradient", "counted", "read")
    headers, keys, counts = [], [], []
    distinct = [{} for _ in range(num_sections)]  # {key: position}
    for section, positions in enumerate(distinct):
        header, occurrences = [], collections.Counter()
        for use in uses:
            for key in _flat_keys(lists, section, use):
                positions.setdefault(key, len(positions))
                occurrences[key] += use != "read"
            header.append(len(positions) - sum(header))
        headers += header
        keys += positions
        counts += [occurrences[key] for key in list(positions)[: header[0] + header[1]]]
    counts += [0] * (len(counts) % 2)
    words = np.array(counts, np.uint32).view(np.int64)
    index = [
        np.array([distinct[section][key] for key in np.ravel(each).tolist()], np.int32)
        for each, section, _ in lists
    ]
    return np.concatenate([np.array(headers + keys, np.int64), words]), index


def _flat_keys(lists, section, use):
    for keys, of_section, of_use in lists:
        if (of_section, of_use) == (section, use):
            yield from np.ravel(keys).tolist()


def sum_by_key(keys, grads):
    """[distinct, dim]. The gradients of each key, summed from +0 in order of occurrence."""
    sums = {}
    for key, grad in zip(keys.tolist(), grads):
        sums[key] = sums.get(key, np.zeros_like(grad)) + grad
    return np.stack(list(sums.values()))


def pack_gradients(versions, hyper, sums):
    """float32 [n]. What GradientsPack makes: versions, then hyper [h][table], then the sums."""
    parts = [np.array(versions, np.int64).view(np.float32), *np.array(hyper, np.float32)]
    return np.concatenate([*parts, *(each.ravel() for each in sums)])


# ------------------------------------------------------------------ users and candidates


def repeat_rows(values, sizes, axis):
    """Repeats each user's part of an axis for each candidate of the user."""
    if not len(sizes):
        return values
    return np.concatenate(
        [
            np.tile(part, _times(values.ndim, axis, size))
            for part, size in _parts(values, sizes, axis)
        ],
        axis=axis,
    )


def sum_rows(grads, values, sizes, axis):
    """The gradient of repeat_rows."""
    out, first = [], 0
    for part, size in _parts(values, sizes, axis):
        width = part.shape[axis]
        places = np.arange(first, first + size * width)
        mine = np.split(np.take(grads, places, axis), size, axis) if size else []
        out.append(sum(mine, np.zeros_like(part)))
        first += size * width
    return np.concatenate(out, axis=axis) if out else values


def multiply_by_user(rows, matrices, sizes):
    """[N, M]. The row of each candidate times the matrix of its user."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return np.einsum("nk,nkm->nm", rows, matrices[owners])


def layer_by_user(entries, rows, kernel, user_bias, row_bias, sizes):
    """[N, T, H]. A layer over the product of each row with each entry of its user."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    products = entries[owners] * rows[:, np.newaxis]
    return products @ kernel + user_bias[owners] + row_bias[:, np.newaxis]


def kernel_rows(kernel, blocks):
    return np.concatenate(
        [
            functools.reduce(np.add, [sign * kernel[start : start + rows] for sign, start in terms])
            for rows, terms in blocks
        ]
    )


def _parts(values, sizes, axis):
    return zip(np.split(values, len(sizes), axis) if len(sizes) else [], sizes)


def _times(rank, axis, size):
    return [size if place == axis else 1 for place in range(rank)]


# ------------------------------------------------------------------ values of 16 bits


def mix_key(key):
    """int. A key whose bits are mixed, of 64 bits."""
    mask = 2**64 - 1
    key &= mask
    key = (key ^ key >> 27) * 0x3C79AC492BA7B653 & mask
    key = (key ^ key >> 33) * 0x1C69B3F74AC4AE35 & mask
    return key ^ key >> 27


def rounding_noise(seed, key, version, count):
    """int. What the random bits of a step for one row come from. count: before the step."""
    of_step = ((version << 32) + (version >> 32) + int(count)) * 0x9E3779B97F4A7C15
    return mix_key((mix_key(key) ^ mix_key(seed)) + of_step)


def round_stochastically(value, dtype, noise):
    """dtype [dim]. A float32 value as a step stores it in 16 bits.

    The random bits of an element are as many as its number loses, 31 at most, read as a fraction in
    [0, 1). The number plus this part of the distance of its two neighbours is rounded towards zero,
    and is at most the largest number of the type.
    """
    hashed = np.uint32(noise & 0xFFFFFFFF) + np.arange(len(value), dtype=np.uint32) * np.uint32(
        0x9E3779B9
    )
    hashed = (hashed ^ hashed >> 16) * np.uint32(0x21F0AAAD)
    hashed ^= np.uint32(noise >> 32)
    hashed = (hashed ^ hashed >> 15) * np.uint32(0x735A2D97)
    hashed ^= hashed >> 15
    lost, least_exponent, largest = (
        (13, -14, 65504.0) if dtype == np.float16 else (16, -126, (2 - 2**-7) * 2.0**127)
    )
    size = np.abs(value.astype(np.float64))
    exponent = np.frexp(size)[1] - 1
    below = np.maximum(0, least_exponent - np.maximum(exponent, -126))  # Of denormal numbers.
    lost = np.minimum(31, lost + below).astype(np.uint32)
    part = (hashed & ((np.uint32(1) << lost) - np.uint32(1))) / 2.0**lost
    mantissa = 10 if dtype == np.float16 else 7
    unit = 2.0 ** (np.maximum(exponent, least_exponent) - mantissa)
    units = np.floor(np.floor(size / unit * 2.0**lost) / 2.0**lost + part)
    rounded = np.copysign(np.minimum(units * unit, largest), value)
    return np.where(np.isfinite(value), rounded, value).astype(dtype)


@dataclasses.dataclass(frozen=True)
class RowTypes:
    """How a table stores rows: NumPy's types of values and slots, and the seed of its rounding."""

    value: Any = np.float32
    slot: Any = np.float32
    seed: int = 0

    def noise(self, key, version, count):
        """As rounding_noise; 0 if nothing is rounded."""
        if self.value == self.slot == np.float32:
            return 0
        return rounding_noise(self.seed, key, version, count)

    def of_slot(self, width):
        """The type of a slot of so many numbers."""
        return self.slot if width > 1 else np.float32

    def nearest_slot(self, slot):
        """float32 [width]. A slot that no step has computed, as it is stored."""
        return slot.astype(self.of_slot(len(slot))).astype(np.float32)

    def trained_value(self, value, noise):
        """float32 [dim]. What a step has computed, as it is stored."""
        return self._trained(value, self.value, noise)

    def trained_slot(self, slot, number, noise):
        """The same for the slot of this number."""
        return self._trained(slot, self.of_slot(len(slot)), mix_key(noise + number + 1))

    @staticmethod
    def _trained(floats, dtype, noise):
        if dtype == np.float32:
            return floats
        return round_stochastically(floats, dtype, noise).astype(np.float32)


# ------------------------------------------------------------------ rules
#
# rule(hyper, grad, value, *slots) -> new value and slots, all float32 [dim].


def quantize(row):
    """(bytes, scale, offset) of a row, by the definition of 8-bit rows, in Python's numbers."""
    least, greatest = (float(x) for x in (min(row), max(row)))
    least = least if abs(least) >= 2**-126 else 0.0
    mantissa, exponent = math.frexp((greatest - least) / 255)
    scale = math.ldexp(math.floor(mantissa * 2**16 + 0.5), exponent - 16)
    if least:
        scale = max(scale, math.ldexp(1.0, math.frexp(least)[1] - 13))
    scale = max(scale, 2**-124)
    places = [math.floor((float(x) - least) * (1 / scale) + 0.5) for x in row]
    return np.array(places, np.uint8), np.float32(scale if any(places) else 0), np.float32(least)


def dequantize(stored, scale, offset):
    """The row of what ``quantize`` returns."""
    return offset + scale * stored.astype(np.float32)


def gradient_descent(hyper, grad, value):
    (learning_rate,) = hyper
    return (value - grad * learning_rate,)


def gradient_descent_weight_decay(hyper, grad, value):
    learning_rate, weight_decay = hyper
    return (value - (grad + value * weight_decay) * learning_rate,)


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


def adagrad_decay(hyper, grad, value, squares, power):
    learning_rate, decay_rate, baseline, periods = hyper
    if power[0] < periods:
        due = np.float64(periods) - np.float64(power[0])
        discount = np.float32(np.float64(decay_rate) ** due)
        squares = np.maximum(squares * discount, baseline)
        power = np.concatenate([[periods], power[1:]])
    squares = squares + grad * grad
    return value - grad * learning_rate / np.sqrt(squares), squares, power


def rowwise_adagrad(hyper, grad, value, total):
    (learning_rate,) = hyper
    total = total + np.float32(np.mean(np.square(grad.astype(np.float64))))
    return value - grad * (learning_rate / np.sqrt(total)), total


def adam(hyper, grad, value, first, second, weight_decay=None):
    learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power = hyper
    first, second = _moments(grad, first, second, beta1, beta2)
    one = np.float32(1)
    rate = learning_rate * np.sqrt(one - beta2_power) / (one - beta1_power)
    step = first * rate / (np.sqrt(second) + epsilon)
    if weight_decay is not None:
        step = value * weight_decay + step
    return value - step, first, second


def adam_w(hyper, *row):
    return adam(hyper[:6], *row, weight_decay=hyper[6])


def adam_async_rmsprop(hyper, grad, value, first, second):
    learning_rate, beta1, beta2, epsilon = hyper
    second = second * beta2 + grad * grad * (np.float32(1) - beta2)
    first = first * beta1 + grad * learning_rate / np.sqrt(second + epsilon)
    return value - first, first, second


def ftrl(hyper, grad, value, squares, linear):
    learning_rate, power, l1, l2, shrinkage = hyper
    two = np.float32(2)
    new_squares = squares + grad * grad
    root, old_root = new_squares**-power, squares**-power
    shrunk = grad + two * shrinkage * value
    moved = (root - old_root) / learning_rate * value
    # For rows of one float TensorFlow has another kernel, which adds in another order.
    linear = linear + shrunk - moved if len(value) == 1 else linear + (shrunk - moved)
    value = (np.clip(linear, -l1, l1) - linear) / (root / learning_rate + two * l2)
    return value, new_squares, linear


def amsgrad(hyper, grad, value, first, second, largest):
    learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power = hyper
    first, second = _moments(grad, first, second, beta1, beta2)
    largest = np.maximum(largest, second)
    one = np.float32(1)
    rate = learning_rate * np.sqrt(one - beta2_power) / (one - beta1_power)
    return value - first * rate / (np.sqrt(largest) + epsilon), first, second, largest


def group_adam(hyper, grad, value, first, second, root, linear):
    learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power, l1, l2, l21 = hyper
    first, second = _moments(grad, first, second, beta1, beta2)
    one, two = np.float32(1), np.float32(2)
    new_root = np.sqrt(second / (one - beta2_power)) + epsilon
    sigma = (new_root - root) / learning_rate
    linear = linear + (first / (one - beta1_power) - sigma * value)
    value = _shrunk_group(linear, l1, l21, new_root / learning_rate + two * l2)
    return value, first, second, new_root, linear


def group_ftrl(hyper, grad, value, squares, linear):
    learning_rate, power, l1, l2, shrinkage, l21 = hyper
    two = np.float32(2)
    new_squares = squares + grad * grad
    root, old_root = new_squares**-power, squares**-power
    sigma = (root - old_root) / learning_rate
    linear = linear + (grad + two * shrinkage * value - sigma * value)
    value = _shrunk_group(linear, l1, l21, root / learning_rate + two * l2)
    return value, new_squares, linear


def _moments(grad, first, second, beta1, beta2):
    one = np.float32(1)
    first = first * beta1 + grad * (one - beta1)
    return first, second * beta2 + grad * grad * (one - beta2)


def _shrunk_group(linear, l1, l21, divisor):
    """The row by algorithm 1 of the paper of group lasso."""
    shrunk = np.clip(linear, -l1, l1) - linear
    norm = np.float32(np.sqrt(np.sum(np.square(shrunk.astype(np.float64)))))
    limit = l21 * np.sqrt(np.float32(len(shrunk)))
    if norm <= limit:
        return np.zeros_like(shrunk)
    return shrunk * ((norm - limit) / norm) / divisor


def rmsprop(hyper, grad, value, square, momentum):
    learning_rate, decay, factor, epsilon = hyper
    square = square * decay + grad * grad * (np.float32(1) - decay)
    momentum = momentum * factor + _rsqrt(square + epsilon) * learning_rate * grad
    return value - momentum, square, momentum


def centered_rmsprop(hyper, grad, value, square, mean, momentum):
    learning_rate, decay, factor, epsilon = hyper
    one = np.float32(1)
    square = square * decay + grad * grad * (one - decay)
    mean = mean * decay + grad * (one - decay)
    variance = square + epsilon - mean * mean
    momentum = momentum * factor + _rsqrt(variance) * learning_rate * grad
    return value - momentum, square, mean, momentum


def adadelta(hyper, grad, value, squares, updates):
    learning_rate, rho, epsilon = hyper
    one = np.float32(1)
    squares = squares * rho + grad * grad * (one - rho)
    update = np.sqrt(updates + epsilon) * _rsqrt(squares + epsilon) * grad
    return value - update * learning_rate, squares, updates * rho + update * update * (one - rho)


def proximal_gradient_descent(hyper, grad, value):
    learning_rate, l1, l2 = hyper
    return (_proximal(value - grad * learning_rate, learning_rate, l1, l2),)


def proximal_adagrad(hyper, grad, value, squares):
    learning_rate, l1, l2 = hyper
    squares = squares + grad * grad
    is_single = len(value) == 1
    rate = learning_rate / np.sqrt(squares) if is_single else _rsqrt(squares) * learning_rate
    return _proximal(value - grad * rate, rate, l1, l2), squares


def adagrad_da(hyper, grad, value, gradients, squares):
    del value  # It follows from the slots and the step.
    learning_rate, l1, l2, step = hyper
    if len(grad) > 1:
        gradients, squares = gradients + grad, squares + grad * grad
        excess = np.maximum(np.abs(gradients) / step - l1, np.float32(0))
        divisor = np.sqrt(squares) / (step * learning_rate) + l2
        return -np.sign(gradients) * excess / divisor, gradients, squares
    # TensorFlow computes rows of one float in float64, and rounds the slots.
    grad = grad.astype(np.float64)
    gradients = (gradients + grad).astype(np.float32)
    squares = (squares + grad * grad).astype(np.float32)
    excess = np.maximum(np.abs(gradients).astype(np.float64) - np.float64(step) * l1, 0)
    divisor = np.float64(step) * l2 * learning_rate + np.sqrt(squares).astype(np.float64)
    return (
        (-np.sign(gradients) * np.float64(learning_rate) * excess / divisor).astype(np.float32),
        gradients,
        squares,
    )


def _rsqrt(x):
    return np.float32(1) / np.sqrt(x)


def _proximal(stepped, rate, l1, l2):
    """The minimum of the penalty near the result of a step of gradient descent."""
    shrunk = np.sign(stepped) * np.maximum(np.abs(stepped) - rate * l1, np.float32(0))
    divisor = np.broadcast_to(rate * l2, shrunk.shape)
    if len(stepped) == 1:  # TensorFlow divides rows of one float in float64.
        divisor = divisor.astype(np.float64)
    return (shrunk / (divisor + np.float32(1))).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of the table of rules."""

    step: Callable
    hyper: Dict[str, float]  # The hyperparameters in their order, with values for tests.
    slots: Sequence[str] = ()  # TensorFlow's names.
    initials: Sequence[float] = ()  # The slots' initial values, for tests.
    row_slots: Sequence[str] = ()  # Those that have one float a row.
    per_occurrence: bool = False  # A step per occurrence instead of one with the sum.

    @property
    def example(self):
        """Values of the hyperparameters for tests."""
        return list(self.hyper.values())

    def slots_of(self, dim):
        """(name, width, initial value) of each slot."""
        return [
            (name, 1 if name in self.row_slots else dim, initial)
            for name, initial in zip(self.slots, self.initials)
        ]


def slot_names(scope, slots):
    """TensorFlow's names of several slots of one scope."""
    return (scope, *(f"{scope}_{use}" for use in range(1, slots)))


RATE = {"learning_rate": 0.1}
DECAY = {**RATE, "decay_rate": 0.9, "baseline": 0.1, "periods": 3.0}
DECAY_SLOTS = ("AdagradDecay", "AdagradDecay_1")
BETAS = {**RATE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
POWERS = {**BETAS, "beta1_power": 0.81, "beta2_power": 0.998}
RMSPROP = {**RATE, "decay": 0.9, "momentum": 0.5, "epsilon": 1e-3}
FTRL = {**RATE, "learning_rate_power": -0.5, "l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.0}

RULES: Dict[str, Rule] = {
    "GradientDescent": Rule(gradient_descent, {"learning_rate": 0.5}, per_occurrence=True),
    "GradientDescentWeightDecay": Rule(
        gradient_descent_weight_decay, {"learning_rate": 0.5, "weight_decay": 0.01}
    ),
    "Momentum": Rule(
        momentum, {**RATE, "momentum": 0.9, "use_nesterov": 0.0}, ("Momentum",), (0.0,)
    ),
    "Adagrad": Rule(adagrad, RATE, ("Adagrad",), (0.1,)),
    "AdagradDecay": Rule(adagrad_decay, DECAY, DECAY_SLOTS, (0.1, 0.0)),
    "AdagradDecayV2": Rule(
        adagrad_decay, DECAY, DECAY_SLOTS, (0.1, 0.0), row_slots=DECAY_SLOTS[1:]
    ),
    "RowwiseAdagrad": Rule(
        rowwise_adagrad, RATE, ("RowwiseAdagrad",), (0.1,), row_slots=("RowwiseAdagrad",)
    ),
    "Adam": Rule(adam, POWERS, ("Adam", "Adam_1"), (0.0, 0.0)),
    "AdamW": Rule(adam_w, {**POWERS, "weight_decay": 0.01}, ("AdamW", "AdamW_1"), (0.0, 0.0)),
    "AdamAsyncRmsprop": Rule(adam_async_rmsprop, BETAS, ("AdamAsync", "AdamAsync_1"), (0.0, 0.0)),
    "AMSGrad": Rule(amsgrad, POWERS, slot_names("AMSGrad", 3), (0.0, 0.0, 0.0)),
    "GroupAdam": Rule(
        group_adam,
        {**POWERS, "l1": 0.01, "l2": 0.02, "l21": 0.03},
        slot_names("GroupAdam", 4),
        (0.0, 0.0, 0.0, 0.0),
    ),
    "RMSProp": Rule(rmsprop, RMSPROP, slot_names("RMSProp", 2), (1.0, 0.0)),
    "CenteredRMSProp": Rule(centered_rmsprop, RMSPROP, slot_names("RMSProp", 3), (1.0, 0.0, 0.0)),
    "Adadelta": Rule(
        adadelta, {**RATE, "rho": 0.9, "epsilon": 1e-3}, slot_names("Adadelta", 2), (0.0, 0.0)
    ),
    "ProximalGradientDescent": Rule(proximal_gradient_descent, {**RATE, "l1": 0.2, "l2": 0.3}),
    "ProximalAdagrad": Rule(
        proximal_adagrad, {**RATE, "l1": 0.2, "l2": 0.3}, ("ProximalAdagrad",), (0.1,)
    ),
    "AdagradDA": Rule(
        adagrad_da,
        {**RATE, "l1": 0.02, "l2": 0.3, "step": 3.0},
        slot_names("AdagradDA", 2),
        (0.0, 0.1),
    ),
    "Ftrl": Rule(ftrl, FTRL, ("Ftrl", "Ftrl_1"), (0.1, 0.0)),
    "GroupFtrl": Rule(group_ftrl, {**FTRL, "l21": 0.03}, slot_names("GroupFtrl", 2), (0.1, 0.0)),
}

# Rules that use the CPU's approximate reciprocal square root for eight floats at a time. It rounds
# twice, NumPy once, and the difference grows with the number of steps.
ESTIMATED_ROOTS = ("Adagrad", "RMSProp", "CenteredRMSProp", "Adadelta", "ProximalAdagrad")


# ------------------------------------------------------------------ table


MAX_COUNT = 2**32 - 1


@dataclasses.dataclass
class Row:
    value: Optional[np.ndarray] = None  # float32 [dim]; None: counted, not admitted.
    slots: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # float32 [width]
    freq: int = 0  # Occurrences applied, times the filter's coefficient; saturates.
    version: int = -1  # Global step of the last apply.
    in_cells: bool = False  # Only in the Bloom filter, which has no version.


PADDING = -1


class TooManyRows(Exception):
    """A table has no room for a step. The step has changed nothing."""


class TableOracle:
    """A table as a dict from key to Row.

    The Bloom filter here has no false positives, and does not age by its load: make the real one
    large enough.
    """

    def __init__(
        self,
        bank,
        default_value=0.0,
        threshold=0,
        coefficient=1,
        bloom=False,
        max_rows=0,
        has_padding=False,
        frozen_keys=(),
        l2_scale=0.0,
        decay_rate=0.0,
        dtypes=None,
    ):
        self.l2_scale, self.decay_rate = np.float32(l2_scale), np.float32(decay_rate)
        self.dtypes = dtypes or RowTypes()
        self.bank = np.asarray(bank, np.float32).astype(self.dtypes.value).astype(np.float32)
        self.default_value = np.float32(default_value)
        self.threshold, self.coefficient = threshold, coefficient
        # With a threshold of 1 or less every key is admitted at once, so the filter counts nothing.
        self.bloom = bloom and threshold > 1
        self.max_rows, self.has_padding = max_rows, has_padding
        self.frozen_keys = set(frozen_keys)
        self.keys: Dict[int, Row] = {}
        # The generations of the Bloom filter: when they began, youngest first, how many there are,
        # and the last one in which the cells of a key were raised, by its number.
        self.starts, self.count, self.number = [0, 0, 0], 1, 0
        self.raised: Dict[int, int] = {}

    @property
    def rows(self):
        return {key: row for key, row in self.keys.items() if row.value is not None}

    @property
    def filtered(self):
        return {
            key: row for key, row in self.keys.items() if row.value is None and not row.in_cells
        }

    def initial(self, key):
        return self.bank[key % len(self.bank)].copy()

    def lookup(self, keys, unknown="initial"):
        """[keys.shape, dim]. The values of keys. Changes nothing."""
        keys = np.asarray(keys, np.int64)
        out = np.empty([keys.size, self.bank.shape[1]], np.float32)
        for i, key in enumerate(keys.flat):
            value = self._row(key).value
            if value is not None:
                out[i] = value
            else:
                is_initial = unknown == "initial" and not self._is_padding(key)
                out[i] = self.initial(int(key)) if is_initial else self.default_value
        return out.reshape([*keys.shape, self.bank.shape[1]])

    def apply(self, rule, hyper, keys, grads, counted_keys=(), version=-1):
        """One training step."""
        self.check_room([*keys, *counted_keys])
        hyper = [np.float32(h) for h in hyper]
        spec = RULES[rule]
        kept = [i for i, key in enumerate(keys) if not self._is_padding(key)]
        keys, grads = [keys[i] for i in kept], [grads[i] for i in kept]
        counted_keys = [key for key in counted_keys if not self._is_padding(key)]
        sums: Dict[int, List[np.ndarray]] = {}
        for key, grad in zip(map(int, keys), np.asarray(grads, np.float32)):
            if spec.per_occurrence and not self.l2_scale and self.dtypes.value == np.float32:
                sums.setdefault(key, []).append(grad)
            else:
                sums.setdefault(key, [np.zeros_like(grad)])
                sums[key][0] = sums[key][0] + grad
        before, noises = {}, {}  # The version of each key's row before the step.
        for key in [*map(int, keys), *map(int, counted_keys)]:
            row = self.keys.setdefault(key, Row(in_cells=self.bloom))
            before.setdefault(key, -1 if row.value is None else row.version)
            if key not in noises:
                noises[key] = self.dtypes.noise(key, int(version), row.freq)
            row.freq = min(MAX_COUNT, row.freq + self.coefficient)
            row.version = int(version)
        self._admit()
        self._raise_cells([*map(int, keys), *map(int, counted_keys)])
        frozen = {key: self.keys[key].value for key in self.frozen_keys & before.keys()}
        for key, last in before.items():
            row = self.keys[key]
            if row.value is not None:
                row.value = row.value - self._decayed_part(last, int(version)) * row.value
        for key, steps in sums.items():
            row = self.keys[key]
            if row.value is None:
                continue
            if self.l2_scale:
                steps = [steps[0] + self.l2_scale * row.value]
            for name, width, initial in spec.slots_of(len(row.value)):
                fresh = np.full([width], initial, np.float32)
                row.slots.setdefault(name, self.dtypes.nearest_slot(fresh))
            for grad in steps:
                slots = [row.slots[name] for name in spec.slots]
                value, *slots = spec.step(hyper, grad, row.value, *slots)
                row.value = self.dtypes.trained_value(value, noises[key])
                for number, (name, slot) in enumerate(zip(spec.slots, slots)):
                    row.slots[name] = self.dtypes.trained_slot(slot, number, noises[key])
        for key, value in frozen.items():
            self.keys[key].value = value

    def _decayed_part(self, last, version):
        """The part of its value that a row loses which was trained at `last`; -1: it is new."""
        steps = 1 if last == -1 else max(0, version - last)
        return np.float32(-np.expm1(steps * np.log1p(-np.float64(self.decay_rate))))

    def check_room(self, keys):
        """Raises TooManyRows if a step of these keys would give the table more than max_rows."""
        owners = {int(key) for key, admits in zip(keys, self.admits(keys)) if admits}
        if self.max_rows and len(owners | set(self.rows)) > self.max_rows:
            raise TooManyRows

    def contains(self, keys):
        """Whether each key owns a row."""
        return np.vectorize(lambda key: self._row(key).value is not None, otypes=[bool])(keys)

    def _is_padding(self, key):
        return self.has_padding and key == PADDING

    def _admit(self):
        for key, row in self.keys.items():
            if row.value is None and row.freq >= self.threshold:
                row.value, row.in_cells = self.initial(key), False
            elif row.in_cells:
                row.version = -1

    def _raise_cells(self, keys):
        self.raised.update((key, self.number) for key in keys if self._row(key).in_cells)

    def admits(self, keys, counted_keys=()):
        """Whether each key owns a row, or would own one after these occurrences."""
        keys = np.asarray(keys, np.int64)
        count = collections.Counter([*keys.flat, *counted_keys])
        return np.vectorize(
            lambda key: (
                self._row(key).value is not None
                or (
                    self._row(key).freq + self.coefficient * count[key] >= self.threshold
                    and not self._is_padding(key)
                )
            ),
            otypes=[bool],
        )(keys)

    def assign(self, keys, rows, counts=None, version=-1):
        """Writes rows [n, dim] of distinct keys; counts [n] or None. Their slots begin anew."""
        for i, key in enumerate(map(int, keys)):
            kept = max(self._row(key).freq, self.threshold)
            freq = kept if counts is None else int(counts[i])
            value = np.float32(rows[i]).astype(self.dtypes.value).astype(np.float32)
            self.keys[key] = Row(freq=freq, version=version, value=value)

    def erase(self, keys):
        """Takes keys away and returns how many had a row. Without a Bloom filter."""
        gone = [self.keys.pop(key, Row()) for key in set(map(int, keys))]
        return sum(row.value is not None for row in gone)

    def evict_older(self, steps_to_live, global_step):
        """Evicts the keys that no step applied for more than steps_to_live; returns how many."""
        self._age(steps_to_live, global_step)
        gone = []
        for key, row in self.keys.items():
            if (row.version == -1 or row.version > global_step) and not row.in_cells:
                row.version = global_step
            elif not row.in_cells and global_step - row.version > steps_to_live:
                gone.append(key)
        return self._evict(gone, global_step)

    def _age(self, steps_to_live, global_step):
        """Rotates the generations after half of steps_to_live, and forgets those that are over."""
        self.starts = [min(start, global_step) for start in self.starts]
        if 2 * (global_step - self.starts[0]) >= max(1, steps_to_live):
            self.starts = [global_step, *self.starts[:2]]
            self.number, self.count = self.number + 1, min(3, self.count + 1)
        while self.count > 1 and self.starts[self.count - 2] <= global_step - steps_to_live:
            self.count -= 1
        for key, number in list(self.raised.items()):
            if number <= self.number - self.count:
                del self.raised[key]
                if key in self.keys and self.keys[key].in_cells:
                    del self.keys[key]

    def evict_smaller(self, threshold, global_step=-1):
        """Evicts the rows with half their squared norm below the threshold; returns how many."""
        stamp = max(global_step, self.starts[0])
        for row in self.filtered.values() if self.bloom else ():
            row.version = stamp if row.version == -1 else min(row.version, stamp)
        squares = {key: np.square(row.value.astype(np.float64)) for key, row in self.rows.items()}
        return self._evict(
            [key for key, each in squares.items() if 0.5 * sum(each) < np.float32(threshold)],
            stamp,
        )

    def _evict(self, gone, stamp):
        evicted = 0
        for key in gone:
            row = self.keys.pop(key)
            evicted += not self.bloom or row.value is not None or row.freq > 0
            if row.value is not None and key in self.raised:
                # The cells cannot be lowered, so the key gets an exact count.
                self.keys[key] = Row(version=stamp)
        return evicted

    def frequencies(self, keys):
        return np.vectorize(lambda key: self._row(key).freq, otypes=[np.int64])(keys)

    def versions(self, keys):
        return np.vectorize(lambda key: self._row(key).version, otypes=[np.int64])(keys)

    def _row(self, key):
        return self.keys.get(int(key), Row())

    def export(self, slots=()):
        """The tensors of a checkpoint by suffix; those of (name, width, initial) slots by name."""
        out = {"bank": self.bank}
        for suffix, offset, held in (
            ("", "partition_offset", self.rows),
            ("_filtered", "partition_filter_offset", self.filtered),
        ):
            keys = sorted(held, key=lambda key: (key % KEY_CLASSES, key))
            rows = [held[key] for key in keys]
            classes = [key % KEY_CLASSES for key in keys]
            out[f"keys{suffix}"] = np.array(keys, np.int64)
            out[f"freqs{suffix}"] = np.array([row.freq for row in rows], np.int64)
            out[f"versions{suffix}"] = np.array([row.version for row in rows], np.int64)
            out[offset] = np.searchsorted(classes, np.arange(KEY_CLASSES + 1)).astype(np.int32)
        rows = [self.keys[int(key)] for key in out["keys"]]
        out["values"] = _stack([row.value for row in rows], self.bank.shape[1])
        for name, width, initial in slots:
            fresh = np.full([width], initial, np.float32)
            out[name] = _stack([row.slots.get(name, fresh) for row in rows], width)
        return out

    @classmethod
    def restore(cls, tensors, tensor_name, part, num_parts, slots, bank, threshold=0):
        """Restores a table from a checkpoint {name: array}."""
        table = cls(tensors.get(f"{tensor_name}/default_values", bank), threshold=threshold)
        sources = [tensor_name]
        if f"{tensor_name}-keys" not in tensors:
            sources = [f"{tensor_name}/part_{i}" for i in range(len(tensors))]
        for source in sources:
            for suffix in ("", "_filtered"):
                keys, freqs, versions = (
                    tensors.get(f"{source}-{what}{suffix}", no_key())
                    for what in ("keys", "freqs", "versions")
                )
                for i, key in enumerate(map(int, keys)):
                    if key % KEY_CLASSES % num_parts != part:
                        continue
                    row = table.keys[key] = Row()
                    row.version = int(versions[i]) if len(versions) else -1
                    if suffix:
                        row.freq = int(freqs[i]) if len(freqs) else 0
                        continue
                    row.freq = int(freqs[i]) if len(freqs) else max(1, threshold)
                    row.value = tensors[f"{source}-values"][i]
                    for name, width, initial in slots:
                        row.slots[name] = np.full([width], initial, np.float32)
                        where = tensors.get(f"{source}/{name}-keys", no_key()) == key
                        if where.any():
                            row.slots[name] = tensors[f"{source}/{name}-values"][where][0]
        table._admit()
        return table


def no_key():
    return np.zeros([0], np.int64)


def _stack(rows, width):
    return np.array(rows, np.float32).reshape([len(rows), width])
