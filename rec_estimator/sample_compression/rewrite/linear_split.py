# SPDX-License-Identifier: Apache-2.0
"""Splits layers that are linear in users and candidates; the users' part runs on users' rows.

A layer over a concatenation of user parts and item parts is the sum of a layer over the user parts
and a layer over the item parts. To find such layers, the pass keeps the form of each tensor on the
candidates' side: how it is computed. A form costs nothing at run time: an op that takes the tensor
for another purpose still gets it as the model computes it.
"""

import dataclasses
import itertools
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.linear_forms import (
    Broadcast,
    Concatenation,
    Flattened,
    Product,
    SignedSum,
    SplitSum,
)
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE, Size
from rec_estimator.sample_compression.analysis.values import (
    Deferred,
    DenseValue,
    Form,
    Side,
    Value,
    is_known,
)
from rec_estimator.sample_compression.rewrite.expansion import RowExpansion
from rec_estimator.sample_compression.rewrite.kernel_split import Factors, KernelSplit
from rec_estimator.sample_compression.rules.checks import constant

# A split adds in another order. That is safe for these types; 16-bit types round each addition.
_TYPES = (tf.float32, tf.float64)

_Transform = Callable[[tf.Operation, Sequence[Value], DenseValue], DenseValue]

# A product with each part of a longer sum costs more than adding up first.
_MAX_TERMS = 16


class LinearSplit:
    """Finds the forms of tensors, and splits what is linear in them.

    Args:
      expansion: The rows of the request.
      repeated: Returns the tensor of a value with a row per candidate; with a single row if there
        is one user and the second argument is True.
      exact: Whether to leave out everything that adds in another order.

    Attributes:
      shares: By the name of a split op, the part of it that still runs for each candidate.
    """

    def __init__(
        self,
        expansion: RowExpansion,
        repeated: Callable[[Value, bool], tf.Tensor],
        exact: bool,
    ) -> None:
        self._expansion = expansion
        self._repeated = repeated
        self.shares: Dict[str, float] = {}
        self._transforms: Dict[str, _Transform] = (
            {}
            if exact
            else {
                "Add": self._add,
                "AddN": self._add_n,
                "AddV2": self._add,
                "BatchMatMul": self._batch_matmul,
                "BatchMatMulV2": self._batch_matmul,
                "BiasAdd": self._bias,
                "BroadcastTo": self._broadcast,
                "ConcatV2": self._concat,  # Exact.
                "Einsum": self._einsum,
                "MatMul": self._matmul,
                "Mul": self._mul,
                "Reshape": self._reshape,
                "Sub": self._add,
                "Sum": self._reduce,
                "Tile": self._broadcast,
                "Transpose": self._transpose,
            }
        )

    def improve(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        """The value of an op's output, with its form and a cheaper way to compute it.

        Args:
          op: On the candidates' side, with one output.
          inputs: The values of its inputs.
          value: The value of the output. Its shape is known.

        Returns:
          The same value, or one with `form` or `make` set.
        """
        transform = self._transforms.get(op.type)
        if transform is None or value.tensor.dtype not in _TYPES:
            return value
        return transform(op, inputs, value)

    def _concat(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        parts, rank = tuple(inputs[:-1]), len(value.known_dims())
        axis = int(constant(inputs[-1], "axis")) % rank
        runs = [
            (is_user, list(run))
            for is_user, run in itertools.groupby(parts, lambda part: part.side == Side.USER)
        ]
        if len(runs) < len(parts) and any(is_user and len(run) > 1 for is_user, run in runs):
            value = value.made_by(
                lambda: tf.concat(
                    [part for is_user, run in runs for part in self._joined(is_user, run, axis)],
                    axis,
                )
            )
        if axis == rank - 1 and all(sizes_lib.is_number(p.known_dims()[-1]) for p in parts):
            value = dataclasses.replace(value, form=Concatenation(parts))
        return value

    def _joined(self, is_user: bool, run: Sequence[Value], axis: int) -> List[tf.Tensor]:
        """Concatenates neighbouring parts of users before their rows are repeated."""
        if not is_user or len(run) == 1:
            return [self._repeated(part, False) for part in run]
        make = Deferred(lambda: tf.concat([part.computed() for part in run], axis))
        joined = DenseValue(None, Side.USER, run[0].known_dims(), make=make)
        return [self._repeated(joined, False)]

    def _add(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        a, b = inputs
        sign = -1 if op.type == "Sub" else 1
        with_bias = self._add_bias(op, inputs, value)
        if with_bias is not None or not _last_axes_equal(a, b, value):
            return with_bias or value
        if Side.USER in (a.side, b.side) or _form(a) is not None or _form(b) is not None:
            terms = (*_terms(a, 1), *_terms(b, sign))
            if len(terms) <= _MAX_TERMS:
                return dataclasses.replace(value, form=SignedSum(terms))
        return value

    def _add_bias(
        self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue
    ) -> Optional[DenseValue]:
        """Adds a bias to the users' part of a split sum, which is the smaller one."""
        if op.type == "Sub":
            return None
        for a, b in (inputs, inputs[::-1]):
            source = _unflattened(a)
            form = _form(source)
            is_bias = b.axis is None and is_known(b) and len(b.known_dims()) <= 1
            if not is_bias or not isinstance(form, SplitSum) or value.dims != a.dims:
                continue
            if form.user is not None:
                with_bias = SplitSum(_plus(form.user, b), form.add)
                return self._replaced(value, a, self._sum(with_bias, source.known_dims()))
        return None

    def _bias(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        if op.get_attr("data_format") != b"NHWC":
            return value
        return self._add_bias(op, inputs, value) or value

    def _add_n(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        users = [v for v in inputs if v.side == Side.USER]
        items = [v for v in inputs if v.side != Side.USER]
        if not users or not items or any(v.dims != value.dims for v in inputs):
            return value
        make = Deferred(lambda: tf.add_n([v.computed() for v in users]))
        user_part = DenseValue(None, Side.USER, value.dims, make=make)

        def add(user: Optional[Value]) -> tf.Tensor:
            repeated = None if user is None else self._repeated(user, True)
            total = tf.add_n([v.computed() for v in items])
            return total if repeated is None else repeated + total

        return self._replaced(value, value, self._sum(SplitSum(user_part, add), value.known_dims()))

    def _mul(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        for a, b in (inputs, inputs[::-1]):
            if a.side != Side.USER or b.side != Side.ITEM or a.dims != value.dims:
                continue
            form = _form(b)
            source = form.source if isinstance(form, Broadcast) else b
            if not isinstance(a, DenseValue) or not isinstance(source, DenseValue):
                continue
            user, item = a.known_dims(), source.known_dims()
            if user[0] == BATCH and len(item) == len(user):
                value = dataclasses.replace(value, form=Product(a, source))
        return value

    def _broadcast(
        self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue
    ) -> DenseValue:
        source, wide = inputs[0], value.known_dims()
        if source.side != Side.ITEM or not isinstance(source, DenseValue):
            return value
        dims = source.known_dims()
        # A Tile of a size above 1 does not broadcast.
        fits = len(dims) == len(wide) and all(a in (ONE, b) for a, b in zip(dims, wide))
        if fits and dims[-1] == wide[-1]:
            return dataclasses.replace(value, form=Broadcast(source))
        return value

    def _transpose(
        self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue
    ) -> DenseValue:
        # tf.tensordot transposes even if the axes are in order.
        axes = list(range(len(value.known_dims())))
        if constant(inputs[1], "permutation").tolist() == axes and isinstance(
            inputs[0], DenseValue
        ):
            return _same_as(inputs[0], value)
        return value

    def _reshape(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        source = inputs[0]
        if not isinstance(source, DenseValue) or source.form is None:
            return value
        if source.dims == value.dims:
            return _same_as(source, value)
        if isinstance(source.form, Flattened) and source.form.source.dims == value.dims:
            return _same_as(source.form.source, value)
        dims = source.known_dims()
        is_flat = value.dims == (sizes_lib.product(dims[:-1]), dims[-1])
        if is_flat and len(dims) > 2:
            return dataclasses.replace(value, form=Flattened(source))
        return value

    def _reduce(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        """The sum of a product over an axis: a matrix product for each user."""
        form = _form(inputs[0])
        if not isinstance(form, Product) or len(inputs[0].known_dims()) != 3:
            return value
        axes = constant(inputs[1], "axis").reshape(-1) % 3
        user, item = form.user.known_dims(), form.item.known_dims()
        if item[0] != BATCH or not self._expansion.multiplies(value.tensor.dtype):
            return value
        if axes.tolist() == [1] and item[2] == ONE and item[:2] == user[:2]:
            flip = False  # [N, T, 1] weights of [B, T, D].
        elif axes.tolist() == [2] and item[1] == ONE and item[2] == user[2]:
            flip = True  # [N, 1, D] queries to [B, T, D].
        else:
            return value

        def make() -> tf.Tensor:
            rows = tf.squeeze(form.item.computed(), 1 if flip else 2)
            products = self._expansion.multiply(rows, form.user.computed(), transpose=flip)
            if not op.get_attr("keep_dims"):
                return products
            return tf.expand_dims(products, 2 if flip else 1)

        return value.made_by(make)

    def _batch_matmul(
        self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue
    ) -> DenseValue:
        if op.get_attr("adj_x") or op.get_attr("adj_y") or len(inputs[1].known_dims()) != 2:
            return value
        return self._contract(inputs[0], inputs[1], value)

    def _matmul(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        if op.get_attr("transpose_a") or op.get_attr("transpose_b"):
            return value
        return self._contract(inputs[0], inputs[1], value)

    def _einsum(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        left, right = op.get_attr("equation").decode().replace(" ", "").split("->")
        terms = left.split(",")
        if len(terms) == 2 and len(terms[1]) == 2:
            (data, (inner, outer)) = terms
            if (
                data[-1] == inner
                and right == data[:-1] + outer
                and len(set(data + outer)) == len(data + outer)
            ):
                return self._contract(inputs[0], inputs[1], value)
        return value

    def _contract(self, data: Value, kernel: Value, value: DenseValue) -> DenseValue:
        """Splits data [..., K] × kernel [K, H]."""
        source = _unflattened(data)
        if kernel.side != Side.FIXED or _form(source) is None or data.side != Side.ITEM:
            return value
        if not is_known(source):
            return value
        dims = source.known_dims()
        if not sizes_lib.is_number(dims[-1]) or dims[0] != BATCH:
            return value
        factors = Factors()
        if not factors.collect(source, 0, 1):
            return value
        share = factors.share(dims)
        if share >= 1:
            return value
        self.shares[value.tensor.op.name] = share
        out_dims = (*dims[:-1], kernel.known_dims()[1])
        split = KernelSplit(self._expansion, self._repeated, factors, kernel, out_dims)
        return self._replaced(value, data, self._sum(SplitSum(split.user(), split.add), out_dims))

    def _sum(self, form: SplitSum, dims: Tuple[Size, ...]) -> DenseValue:
        make = Deferred(lambda: form.add(form.user))
        return DenseValue(None, Side.ITEM, dims, form=form, make=make)

    def _replaced(self, value: DenseValue, data: Value, result: DenseValue) -> DenseValue:
        """A value computed as `result`, with the axes merged if those of `data` are."""
        if not isinstance(_form(data), Flattened):
            return _same_as(result, value)

        def make() -> tf.Tensor:
            sizes = sizes_lib.reshape_target(value.known_dims(), self._expansion.items)
            return tf.reshape(result.computed(), sizes)

        return dataclasses.replace(value, form=Flattened(result), make=Deferred(make))


def _form(value: Value) -> Optional[Form]:
    return value.form if isinstance(value, DenseValue) else None


def _unflattened(value: Value) -> Value:
    """The tensor before its axes were merged."""
    form = _form(value)
    return form.source if isinstance(form, Flattened) else value


def _same_as(source: DenseValue, value: DenseValue) -> DenseValue:
    """The value, computed as another one."""
    return dataclasses.replace(value, form=source.form, make=Deferred(source.computed))


def _terms(value: Value, sign: int) -> Tuple[Tuple[int, Value], ...]:
    form = _form(value)
    if not isinstance(form, SignedSum):
        return ((sign, value),)
    return tuple((sign * s, term) for s, term in form.terms)


def _plus(user: Value, bias: Value) -> DenseValue:
    make = Deferred(lambda: user.computed() + bias.computed())
    return DenseValue(None, Side.USER, user.known_dims(), make=make)


def _last_axes_equal(a: Value, b: Value, value: DenseValue) -> bool:
    dims = [v.known_dims() for v in (a, b, value)]
    if not dims[2] or len({len(sizes) for sizes in dims}) > 1:
        return False
    return len({sizes[-1] for sizes in dims}) == 1 and sizes_lib.is_number(dims[2][-1])
