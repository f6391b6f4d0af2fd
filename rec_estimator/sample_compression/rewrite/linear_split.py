# SPDX-License-Identifier: Apache-2.0
"""The split of what is linear in users and in candidates: the users' share runs on their rows.

A layer over a concatenation of user and item parts is the sum of a layer over the user's parts and
one over the item's. To see that, the pass remembers of a tensor on the candidates' side what it is
made of: its form. A form costs nothing: the tensor itself is still computed as the model says where
something else than the algebra asks for it.
"""

import itertools
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.linear_forms import (
    Flat,
    Parts,
    Product,
    Signed,
    Spread,
    Sum,
)
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE, Sizes
from rec_estimator.sample_compression.analysis.values import Side, Value
from rec_estimator.sample_compression.rewrite.expansion import Expansion
from rec_estimator.sample_compression.rewrite.kernel_split import KernelSplit, Pieces
from rec_estimator.sample_compression.rules.checks import static_value

# Additions in another order agree well enough. Numbers of 16 bits are rounded by each addition.
_TYPES = (tf.float32, tf.float64)

# A product with each part of a longer sum costs more than adding up first.
_MOST_TERMS = 16


class Algebra:
    """Finds forms, and splits what is linear in them.

    Args:
      expansion: Of the rows.
      repeated: Gives a value's tensor with a row per candidate; for one user, and if its second
        argument says so, with one row.
      exact: Finds nothing that reorders additions: nothing at all.
    """

    def __init__(
        self, expansion: Expansion, repeated: Callable[[Value, bool], tf.Tensor], exact: bool
    ) -> None:
        self._expansion = expansion
        self._repeated = repeated
        self.shares: Dict[str, float] = {}  # By op: which part of it still runs for candidates.
        self._transforms = (
            {}
            if exact
            else {
                "Add": self._add,
                "AddN": self._add_n,
                "AddV2": self._add,
                "BatchMatMul": self._batch_matmul,
                "BatchMatMulV2": self._batch_matmul,
                "BiasAdd": self._bias,
                "BroadcastTo": self._spread,
                "ConcatV2": self._concat,  # Exact.
                "Einsum": self._einsum,
                "MatMul": self._matmul,
                "Mul": self._mul,
                "Reshape": self._reshape,
                "Sub": self._add,
                "Sum": self._reduce,
                "Tile": self._spread,
                "Transpose": self._transpose,
            }
        )

    def improve(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        """Gives the output of an op on the candidates' side its form, and a cheaper way to it.

        Args:
          op: With one output.
          inputs: Its inputs' values.
          value: The output's, with `dims` known.
        """
        transform = self._transforms.get(op.type)
        if transform is not None and value.tensor.dtype in _TYPES:
            transform(op, inputs, value)

    def _concat(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        parts = tuple(inputs[:-1])
        axis = int(static_value(inputs[-1].tensor)) % len(value.dims)
        runs = [
            (is_user, list(run))
            for is_user, run in itertools.groupby(parts, lambda part: part.side == Side.USER)
        ]
        if len(runs) < len(parts) and any(is_user and len(run) > 1 for is_user, run in runs):
            value.make = lambda: tf.concat(
                [part for is_user, run in runs for part in self._joined(is_user, run, axis)], axis
            )
        if axis == len(value.dims) - 1 and all(sizes_lib.is_number(p.dims[-1]) for p in parts):
            value.form = Parts(parts)

    def _joined(self, is_user: bool, run: Sequence[Value], axis: int) -> List[tf.Tensor]:
        """Neighbours of users joined before their rows are repeated."""
        if not is_user or len(run) == 1:
            return [self._repeated(part, False) for part in run]
        dims = run[0].dims
        joined = self._made(
            Side.USER, dims, lambda: tf.concat([part.computed() for part in run], axis)
        )
        return [self._repeated(joined, False)]

    def _add(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        a, b = inputs
        sign = -1 if op.type == "Sub" else 1
        if self._add_to_sum(op, inputs, value) or not _last_axes_equal(a, b, value):
            return
        if Side.USER in (a.side, b.side) or a.form is not None or b.form is not None:
            terms = (*_terms(a, 1), *_terms(b, sign))
            if len(terms) <= _MOST_TERMS:
                value.form = Signed(terms)

    def _add_to_sum(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> bool:
        """Adds something without rows to the smaller part of a sum: a bias."""
        if op.type == "Sub":
            return False
        for a, b in (inputs, inputs[::-1]):
            source = a.form.source if isinstance(a.form, Flat) else a
            is_bias = b.axis is None and b.dims is not None and len(b.dims) <= 1
            is_bias = is_bias and isinstance(source.form, Sum) and value.dims == a.dims
            if is_bias and source.form.user is not None:
                user = _plus(source.form.user, b)
                self._become(value, a, self._sum(Sum(user, source.form.add), source.dims))
                return True
        return False

    def _bias(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        if op.get_attr("data_format") == b"NHWC":
            self._add_to_sum(op, inputs, value)

    def _add_n(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        users = [v for v in inputs if v.side == Side.USER]
        items = [v for v in inputs if v.side != Side.USER]
        if not users or not items or any(v.dims != value.dims for v in inputs):
            return
        user = self._made(Side.USER, value.dims, lambda: tf.add_n([v.computed() for v in users]))

        def add(user: Optional[Value]) -> tf.Tensor:
            return self._repeated(user, True) + tf.add_n([v.computed() for v in items])

        self._become(value, value, self._sum(Sum(user, add), value.dims))

    def _mul(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        for a, b in (inputs, inputs[::-1]):
            if a.side != Side.USER or b.side != Side.ITEM or a.dims != value.dims:
                continue
            source = b.form.source if isinstance(b.form, Spread) else b
            if a.entries is None and a.dims[0] == BATCH and len(source.dims) == len(a.dims):
                value.form = Product(a, source)

    def _spread(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        source = inputs[0]
        if source.side != Side.ITEM or len(source.dims) != len(value.dims):
            return
        # A Tile of something longer than 1 is no broadcast.
        fits = all(size in (ONE, wide) for size, wide in zip(source.dims, value.dims))
        if fits and source.dims[-1] == value.dims[-1]:
            value.form = Spread(source)

    def _transpose(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        # As tf.tensordot has it where nothing is to be transposed.
        if static_value(inputs[1].tensor).tolist() == list(range(len(value.dims))):
            value.form, value.make = inputs[0].form, inputs[0].computed

    def _reshape(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        source = inputs[0]
        if source.form is not None and source.dims == value.dims:
            value.form, value.make = source.form, source.computed
        elif isinstance(source.form, Flat) and source.form.source.dims == value.dims:
            inner = source.form.source
            value.form, value.make = inner.form, inner.computed
        elif source.form is not None and len(value.dims) == 2 < len(source.dims):
            is_flat = value.dims == (sizes_lib.product(source.dims[:-1]), source.dims[-1])
            value.form = Flat(source) if is_flat else None

    def _reduce(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        """The sum of a product over an axis: a matrix product by user."""
        form = inputs[0].form
        if not isinstance(form, Product) or len(inputs[0].dims) != 3:
            return
        axes = static_value(inputs[1].tensor).reshape(-1) % 3
        user, item = form.user.dims, form.item.dims
        if item[0] != BATCH or not self._expansion.multiplies(value.tensor.dtype):
            return
        if axes.tolist() == [1] and item[2] == ONE and item[:2] == user[:2]:
            flip = False  # [N, T, 1] weights of [B, T, D]
        elif axes.tolist() == [2] and item[1] == ONE and item[2] == user[2]:
            flip = True  # [N, 1, D] queries to [B, T, D]
        else:
            return

        def make() -> tf.Tensor:
            rows = tf.squeeze(form.item.computed(), 1 if flip else 2)
            products = self._expansion.multiply(rows, form.user.computed(), transpose=flip)
            if not op.get_attr("keep_dims"):
                return products
            return tf.expand_dims(products, 2 if flip else 1)

        value.make = make

    def _batch_matmul(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        a, b = inputs
        if op.get_attr("adj_x"):
            return
        if not op.get_attr("adj_y") and b.dims is not None and len(b.dims) == 2:
            self._contract(a, b, value)

    def _matmul(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        if not op.get_attr("transpose_a") and not op.get_attr("transpose_b"):
            self._contract(inputs[0], inputs[1], value)

    def _einsum(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        left, right = op.get_attr("equation").decode().replace(" ", "").split("->")
        terms = left.split(",")
        if len(terms) == 2 and len(terms[1]) == 2:
            (data, (inner, outer)) = terms
            if (
                data[-1] == inner
                and right == data[:-1] + outer
                and len(set(data + outer)) == len(data + outer)
            ):
                self._contract(inputs[0], inputs[1], value)

    def _contract(self, data: Value, kernel: Value, value: Value) -> None:
        """Splits data [..., K] × kernel [K, H]."""
        source = data.form.source if isinstance(data.form, Flat) else data
        if kernel.side != Side.FIXED or source.form is None or data.side != Side.ITEM:
            return
        if not sizes_lib.is_number(source.dims[-1]) or None in source.dims:
            return
        if source.dims[0] != BATCH:
            return
        pieces = Pieces()
        if not pieces.collect(source, 0, 1):
            return
        share = pieces.share(source.dims)
        if share >= 1:
            return
        self.shares[value.tensor.op.name] = share
        dims = (*source.dims[:-1], kernel.dims[1])
        split = KernelSplit(self._expansion, self._repeated, pieces, kernel, dims)
        self._become(value, data, self._sum(Sum(split.user(), split.add), dims))

    def _sum(self, form: Sum, dims: Sizes) -> Value:
        value = self._made(Side.ITEM, dims, lambda: form.add(form.user))
        value.form = form
        return value

    def _made(self, side: Side, dims: Sizes, make: Callable[[], tf.Tensor]) -> Value:
        return Value(None, side, dims, make=make)

    def _become(self, value: Value, data: Value, result: Value) -> None:
        """Makes a value computed as result is, whose axes are merged where those of data are."""
        if isinstance(data.form, Flat):
            shape = value.dims

            def make() -> tf.Tensor:
                sizes = sizes_lib.reshape_target(shape, self._expansion.items)
                return tf.reshape(result.computed(), sizes)

            value.form, value.make = Flat(result), make
        else:
            value.form, value.make = result.form, result.computed


def _terms(value: Value, sign: int) -> Tuple[Tuple[int, Value], ...]:
    if not isinstance(value.form, Signed):
        return ((sign, value),)
    return tuple((sign * s, term) for s, term in value.form.terms)


def _plus(user: Value, bias: Value) -> Value:
    return Value(None, Side.USER, user.dims, make=lambda: user.computed() + bias.computed())


def _last_axes_equal(a: Value, b: Value, value: Value) -> bool:
    return (
        bool(value.dims)
        and all(v.dims is not None and len(v.dims) == len(value.dims) for v in (a, b))
        and a.dims[-1] == b.dims[-1] == value.dims[-1]
        and sizes_lib.is_number(value.dims[-1])
    )
