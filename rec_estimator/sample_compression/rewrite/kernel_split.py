# SPDX-License-Identifier: Apache-2.0
"""Splits a product with a kernel into a product on users' rows and one on candidates' rows.

Rows that are neighbours in the kernel are read in place. Other rows are copied together once, when
the kernel is first read, and again when it changes: see ops/serving/kernel_split_kernels.cc.
"""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.linear_forms import (
    Broadcast,
    Concatenation,
    Product,
    SignedSum,
)
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE, Size
from rec_estimator.sample_compression.analysis.values import (
    Deferred,
    DenseValue,
    Side,
    Value,
    is_known,
)
from rec_estimator.sample_compression.rewrite.expansion import KernelBlock, RowExpansion

_Blocks = List[Tuple[int, int]]  # (1 or -1, first row) of blocks of a kernel that are summed.
_Factor = Tuple[Value, _Blocks]  # A tensor, and the blocks of the kernel that multiply it.


class Factors:
    """A linear combination of tensors, each with its blocks of the kernel.

    A layer over a concatenation of u, i and u - i multiplies u by the first and the third block of
    the kernel, and i by the second one and the negative third one.
    """

    def __init__(self) -> None:
        self.users: Dict[Value, _Factor] = {}
        self.items: Dict[Value, _Factor] = {}
        self.products: Dict[Tuple[Value, Value], Tuple[Product, _Blocks]] = {}

    def collect(self, value: Value, start: int, sign: int) -> bool:
        """Adds a tensor and its parts.

        Args:
          value: The tensor.
          start: The first row of its block of the kernel.
          sign: 1 or -1.

        Returns:
          False if the split cannot multiply one of the parts.
        """
        if value.side == Side.USER:
            if not isinstance(value, DenseValue) or value.known_dims()[0] != BATCH:
                return False
            self.users.setdefault(value, (value, []))[1].append((sign, start))
            return True
        form = value.form if isinstance(value, DenseValue) else None
        if isinstance(form, Concatenation):
            for part in form.parts:
                if not self.collect(part, start, sign):
                    return False
                start += part.known_dims()[-1].factor
            return True
        if isinstance(form, SignedSum):
            return all(self.collect(term, start, sign * s) for s, term in form.terms)
        if isinstance(form, Broadcast):
            return self.collect(form.source, start, sign)
        if isinstance(form, Product) and _is_per_candidate(form):
            key = (form.user, form.item)
            self.products.setdefault(key, (form, []))[1].append((sign, start))
            return True
        if not is_known(value) or value.known_dims()[:1] != (BATCH,):
            return False
        self.items.setdefault(value, (value, []))[1].append((sign, start))
        return True

    def share(self, dims: Tuple[Size, ...]) -> float:
        """The share of the product that still runs for each candidate, from 0 to 1."""
        values = [value for value, _ in (*self.users.values(), *self.items.values())]
        if any(len(value.known_dims()) != len(dims) for value in values):
            return 1.0
        if not self.items and not self.products:
            return 1.0
        shapes = [value.known_dims() for value, _ in self.items.values()]
        wide = sum(shape[-1].factor for shape in shapes if shape[:-1] == dims[:-1])
        wide += sum(form.user.known_dims()[-1].factor for form, _ in self.products.values())
        return wide / dims[-1].factor


def _is_per_candidate(form: Product) -> bool:
    """Whether a product is of [B, T, D] and [N, 1, D]."""
    user, item = form.user.known_dims(), form.item.known_dims()
    return len(user) == 3 and item[1] == ONE and item[2] == user[2] and item[0] == BATCH


class KernelSplit:
    """The two parts of a product with a kernel.

    Args:
      expansion: The rows of the request.
      repeated: Returns a value's tensor with a row per candidate; see LinearSplit.
      factors: The tensors that the kernel multiplies.
      kernel: [K, H].
      dims: The shape of the product.
    """

    def __init__(
        self,
        expansion: RowExpansion,
        repeated: Callable[[Value, bool], tf.Tensor],
        factors: Factors,
        kernel: Value,
        dims: Tuple[Size, ...],
    ) -> None:
        self._expansion = expansion
        self._repeated = repeated
        self._factors = factors
        self._kernel = kernel.computed
        self._dims = dims

    def user(self) -> Optional[DenseValue]:
        """[B, ..., H]: the part that depends on users only."""
        factors = list(self._factors.users.values())
        if not factors:
            return None
        make = Deferred(lambda: self._multiply(factors))
        return DenseValue(None, Side.USER, self._dims_of(factors), make=make)

    def add(self, user: Optional[Value]) -> tf.Tensor:
        """[N, ..., H]: the part of the candidates, plus `user`."""
        products = list(self._factors.products.values())
        by_user = (
            len(products) == 1
            and len(self._dims) == 3
            and products[0][0].user.known_dims()[1] == self._dims[1]
            and self._expansion.multiplies(self._kernel().dtype)
        )
        factors = dict(self._factors.items)
        total, dims = None, [ONE] * len(self._dims)
        if by_user:
            form, blocks = products[0]
            of_item = factors.pop(form.item)[1] if form.item in factors else []
            total, dims = self._multiply_by_user(form, blocks, of_item, user), list(self._dims)
            user = None
        else:
            for form, blocks in products:
                value = self._product_of(form)
                factors[value] = (value, blocks)
        if user is not None:
            total = self._repeated(user, True)
            _widen(dims, user.known_dims())
        if factors:
            product = self._multiply(list(factors.values()))
            total = product if total is None else total + product
            _widen(dims, self._dims_of(list(factors.values())))
        if tuple(dims) == self._dims:
            return total
        shape = sizes_lib.evaluate_all(self._dims, self._expansion.items, tf.int32)
        return tf.broadcast_to(total, shape)

    def _product_of(self, form: Product) -> DenseValue:
        make = Deferred(lambda: self._repeated(form.user, True) * form.item.computed())
        return DenseValue(None, Side.ITEM, form.user.known_dims(), make=make)

    def _multiply_by_user(
        self, form: Product, of_product: _Blocks, of_item: _Blocks, user: Optional[Value]
    ) -> tf.Tensor:
        """(u * i) × W(of_product) + i × W(of_item) + user: u [B, T, D], i [N, 1, D]."""
        width = form.user.known_dims()[-1].factor
        entries, rows = form.user.computed(), tf.squeeze(form.item.computed(), 1)
        user_bias = None if user is None else user.computed()
        if user is not None and user.known_dims()[1] != self._dims[1]:
            shape = tf.concat([tf.shape(entries)[:2], tf.shape(user_bias)[2:]], axis=0)
            user_bias = tf.broadcast_to(user_bias, shape)
        row_bias = None
        if of_item:
            row_bias = tf.matmul(rows, self._rows_of_kernel(KernelBlock(width, of_item)))
        kernel = self._rows_of_kernel(KernelBlock(width, of_product))
        return self._expansion.layer(entries, rows, kernel, user_bias, row_bias)

    def _dims_of(self, factors: Sequence[_Factor]) -> Tuple[Size, ...]:
        """The shape of the sum of the factors' products."""
        dims = [ONE] * (len(self._dims) - 1)
        for value, _ in reversed(factors):
            _widen(dims, value.known_dims()[:-1])
        return (*dims, self._dims[-1])

    def _rows_of_kernel(self, *blocks: KernelBlock) -> tf.Tensor:
        if len(blocks) == 1 and len(blocks[0].terms) == 1:
            ((sign, start),) = blocks[0].terms
            if sign > 0:
                return self._kernel()[start : start + blocks[0].rows]  # No copy.
        return self._expansion.kernel_rows(self._kernel(), blocks)

    def _multiply(self, factors: Sequence[_Factor]) -> tf.Tensor:
        """The sum of tensor × rows of the kernel, by one product for each shape of the tensors."""
        by_shape: Dict[Tuple[Size, ...], List[_Factor]] = {}
        for value, blocks in sorted(factors, key=lambda factor: factor[1][0][1]):
            by_shape.setdefault(value.known_dims()[:-1], []).append((value, blocks))
        total = None
        for alike in by_shape.values():
            kernels = self._stacked_kernel(alike)
            tensors = [value.computed() for value, _ in alike]
            data = tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=-1)
            product = self._times(data, kernels, alike[0][0].known_dims())
            total = product if total is None else total + product
        return total

    def _times(self, data: tf.Tensor, kernel: tf.Tensor, dims: Tuple[Size, ...]) -> tf.Tensor:
        """data [..., K] × kernel [K, H]; all of dims but the last size is the shape of data."""
        if len(dims) == 2:
            return tf.matmul(data, kernel)
        # One product of two matrices is faster than many small ones.
        rows = self._expansion.items
        flat = tf.reshape(data, tf.stack([-1, tf.shape(kernel)[0]]))
        if dims[0] != BATCH or not all(sizes_lib.is_number(size) for size in dims[1:-1]):
            shape = tf.concat([tf.shape(data)[:-1], tf.shape(kernel)[1:]], axis=0)
        else:
            shape = sizes_lib.reshape_target((*dims[:-1], self._dims[-1]), rows)
        return tf.reshape(tf.matmul(flat, kernel), shape)

    def _stacked_kernel(self, factors: Sequence[_Factor]) -> tf.Tensor:
        """The rows of the kernel for the factors, one below the other. Joins neighbours."""
        blocks: List[KernelBlock] = []
        for value, terms in factors:
            rows = value.known_dims()[-1].factor
            if blocks and len(terms) == 1 == len(blocks[-1].terms):
                (sign, start), above = blocks[-1].terms[0], blocks[-1].rows
                if terms[0] == (sign, start + above):
                    blocks[-1] = KernelBlock(above + rows, blocks[-1].terms)
                    continue
            blocks.append(KernelBlock(rows, terms))
        return self._rows_of_kernel(*blocks)


def _widen(dims: List[Size], others: Sequence[Size]) -> None:
    """Broadcasts dims with the sizes of another tensor."""
    for axis, size in enumerate(others):
        if size != ONE:
            dims[axis] = size
