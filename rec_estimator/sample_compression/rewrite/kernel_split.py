# SPDX-License-Identifier: Apache-2.0
"""A product with a kernel as the sum of one on users' rows and one on candidates'.

Rows that lie side by side in the kernel are read where they are. Others are put together once, when
the kernel is first read, and again when it is another one: see ops/serving/kernel_split_kernels.cc.
"""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.linear_forms import Parts, Product, Signed, Spread
from rec_estimator.sample_compression.analysis.sizes import BATCH, ONE, Size
from rec_estimator.sample_compression.analysis.values import Side, Value
from rec_estimator.sample_compression.rewrite.expansion import Expansion, KernelBlock

_Terms = List[Tuple[int, int]]  # (sign, first row) of blocks of a kernel that are summed


class Pieces:
    """What a tensor is a linear combination of, each with the pieces of the kernel it meets."""

    def __init__(self) -> None:
        self.users: Dict[int, Tuple[Value, _Terms]] = {}
        self.items: Dict[int, Tuple[Value, _Terms]] = {}
        self.products: Dict[Tuple[int, int], Tuple[Product, _Terms]] = {}

    def collect(self, value: Value, start: int, sign: int) -> bool:
        """Takes a value apart; False where a piece is not what the split can multiply."""
        if value.side == Side.USER:
            if value.entries is not None or value.dims[0] != BATCH:
                return False
            self.users.setdefault(id(value), (value, []))[1].append((sign, start))
            return True
        form = value.form
        if isinstance(form, Parts):
            for part in form.parts:
                if not self.collect(part, start, sign):
                    return False
                start += part.dims[-1].factor
            return True
        if isinstance(form, Signed):
            return all(self.collect(term, start, sign * s) for s, term in form.terms)
        if isinstance(form, Spread):
            return self.collect(form.source, start, sign)
        if isinstance(form, Product) and _is_per_candidate(form):
            key = (id(form.user), id(form.item))
            self.products.setdefault(key, (form, []))[1].append((sign, start))
            return True
        if value.dims is None or None in value.dims or value.dims[0] != BATCH:
            return False
        self.items.setdefault(id(value), (value, []))[1].append((sign, start))
        return True

    def share(self, dims: Tuple[Size, ...]) -> float:
        """Which part of a tensor of shape dims is still multiplied for each candidate; 1: all."""
        values = [value for value, _ in (*self.users.values(), *self.items.values())]
        if any(len(value.dims) != len(dims) for value in values):
            return 1.0
        if not self.items and not self.products:
            return 1.0
        wide = sum(
            value.dims[-1].factor
            for value, _ in self.items.values()
            if value.dims[:-1] == dims[:-1]
        )
        wide += sum(form.user.dims[-1].factor for form, _ in self.products.values())
        return wide / dims[-1].factor


def _is_per_candidate(form: Product) -> bool:
    """Whether a product is of [B, T, D] and [N, 1, D]."""
    user, item = form.user.dims, form.item.dims
    return len(user) == 3 and item[1] == ONE and item[2] == user[2] and item[0] == BATCH


class KernelSplit:
    """The parts of a product with a kernel."""

    def __init__(
        self,
        expansion: Expansion,
        repeated: Callable[[Value, bool], tf.Tensor],
        pieces: Pieces,
        kernel: Value,
        dims: Tuple[Size, ...],
    ) -> None:
        self._expansion = expansion
        self._repeated = repeated
        self._pieces = pieces
        self._kernel = kernel.computed
        self._dims = dims

    def user(self) -> Optional[Value]:
        """[B, ..., H]: what depends on users only."""
        pieces = list(self._pieces.users.values())
        if not pieces:
            return None

        return Value(None, Side.USER, self._dims_of(pieces), make=lambda: self._multiply(pieces))

    def add(self, user: Optional[Value]) -> tf.Tensor:
        """[N, ..., H]: the rest, and `user`."""
        products = list(self._pieces.products.values())
        by_user = (
            len(products) == 1
            and len(self._dims) == 3
            and products[0][0].user.dims[1] == self._dims[1]
            and self._expansion.multiplies(self._kernel().dtype)
        )
        pieces = dict(self._pieces.items)
        total, dims = None, [ONE] * len(self._dims)
        if by_user:
            form, terms = products[0]
            own = pieces.pop(id(form.item), (None, []))[1]
            total, dims = self._multiply_by_user(form, terms, own, user), list(self._dims)
            user = None
        else:
            for form, terms in products:
                value = Value(None, Side.ITEM, form.user.dims, make=self._product_of(form))
                pieces[id(form)] = (value, terms)
        if user is not None:
            total = self._repeated(user, True)
            _widen(dims, user.dims)
        if pieces:
            product = self._multiply(list(pieces.values()))
            total = product if total is None else total + product
            _widen(dims, self._dims_of(list(pieces.values())))
        if tuple(dims) == self._dims:
            return total
        shape = sizes_lib.evaluate_all(self._dims, self._expansion.items, tf.int32)
        return tf.broadcast_to(total, shape)

    def _product_of(self, form: Product) -> Callable[[], tf.Tensor]:
        return lambda: self._repeated(form.user, True) * form.item.computed()

    def _multiply_by_user(
        self, form: Product, terms: _Terms, own: _Terms, user: Optional[Value]
    ) -> tf.Tensor:
        """(u * i) × W(terms) + i × W(own) + user, of u [B, T, D], i [N, 1, D], user [B, T, H]."""
        width = form.user.dims[-1].factor
        entries, rows = form.user.computed(), tf.squeeze(form.item.computed(), 1)
        user_bias = None if user is None else user.computed()
        if user is not None and user.dims[1] != self._dims[1]:
            shape = tf.concat([tf.shape(entries)[:2], tf.shape(user_bias)[2:]], axis=0)
            user_bias = tf.broadcast_to(user_bias, shape)
        row_bias = tf.matmul(rows, self._rows_of_kernel(KernelBlock(width, own))) if own else None
        kernel = self._rows_of_kernel(KernelBlock(width, terms))
        return self._expansion.layer(entries, rows, kernel, user_bias, row_bias)

    def _dims_of(self, pieces: Sequence[Tuple[Value, _Terms]]) -> Tuple[Size, ...]:
        columns = [
            next((v.dims[axis] for v, _ in pieces if v.dims[axis] != ONE), ONE)
            for axis in range(len(self._dims) - 1)
        ]
        return (*columns, self._dims[-1])

    def _rows_of_kernel(self, *blocks: KernelBlock) -> tf.Tensor:
        if len(blocks) == 1 and len(blocks[0].terms) == 1:
            ((sign, start),) = blocks[0].terms
            if sign > 0:
                return self._kernel()[start : start + blocks[0].rows]  # No copy.
        return self._expansion.kernel_rows(self._kernel(), blocks)

    def _multiply(self, pieces: Sequence[Tuple[Value, _Terms]]) -> tf.Tensor:
        """The sum over the pieces of value × rows of the kernel, as one product where it can be."""
        pieces = sorted(pieces, key=lambda piece: piece[1][0][1])
        by_axes: Dict[Tuple[Size, ...], List[Tuple[Value, _Terms]]] = {}
        for piece in pieces:
            by_axes.setdefault(piece[0].dims[:-1], []).append(piece)
        total = None
        for alike in by_axes.values():
            kernels = self._stacked_kernel(alike)
            data = [value.computed() for value, _ in alike]
            data = data[0] if len(data) == 1 else tf.concat(data, axis=-1)
            product = self._times(data, kernels, alike[0][0].dims)
            total = product if total is None else total + product
        return total

    def _times(self, data: tf.Tensor, kernel: tf.Tensor, dims: Tuple[Size, ...]) -> tf.Tensor:
        """data [..., K] × kernel [K, H], where data is of shape dims but for K."""
        if len(dims) == 2:
            return tf.matmul(data, kernel)
        # One product of two matrices, which is faster than many.
        rows = self._expansion.items
        flat = tf.reshape(data, tf.stack([-1, tf.shape(kernel)[0]]))
        if dims[0] != BATCH or not all(sizes_lib.is_number(size) for size in dims[1:-1]):
            shape = tf.concat([tf.shape(data)[:-1], tf.shape(kernel)[1:]], axis=0)
        else:
            shape = sizes_lib.reshape_target((*dims[:-1], self._dims[-1]), rows)
        return tf.reshape(tf.matmul(flat, kernel), shape)

    def _stacked_kernel(self, pieces: Sequence[Tuple[Value, _Terms]]) -> tf.Tensor:
        """Rows of the kernel for the pieces one below the other; neighbours are one block."""
        blocks: List[KernelBlock] = []
        for value, terms in pieces:
            rows = value.dims[-1].factor
            if blocks and len(terms) == 1 == len(blocks[-1].terms):
                (sign, start), above = blocks[-1].terms[0], blocks[-1].rows
                if terms[0] == (sign, start + above):
                    blocks[-1] = KernelBlock(above + rows, blocks[-1].terms)
                    continue
            blocks.append(KernelBlock(rows, terms))
        return self._rows_of_kernel(*blocks)


def _widen(dims: List[Size], others: Sequence[Size]) -> None:
    for axis, size in enumerate(others):
        if size != ONE:
            dims[axis] = size
