"""A product with a kernel as the sum of one on users' rows and one on candidates'.

Rows of a kernel are taken out of it in each request. That costs at most 1.5 % of it, measured
against kernels that are constants (benchmarks/bench_serving.py, wide & deep with 1 user), which a
second copy of the variables, to be kept right through restores and training, is not worth.
"""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression import sizes as sizes_lib
from rec_estimator.sample_compression.expansion import Expansion
from rec_estimator.sample_compression.forms import Parts, Product, Signed, Spread
from rec_estimator.sample_compression.sizes import BATCH, ONE, Size
from rec_estimator.sample_compression.values import Side, Value

_Slices = List[Tuple[int, int]]  # (sign, first row) of pieces of a kernel that are summed


class Pieces:
    """What a tensor is a linear combination of, each with the pieces of the kernel it meets."""

    def __init__(self) -> None:
        self.users: Dict[int, Tuple[Value, _Slices]] = {}
        self.items: Dict[int, Tuple[Value, _Slices]] = {}
        self.products: Dict[Tuple[int, int], Tuple[Product, _Slices]] = {}

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
        self._width = kernel.dims[0].factor
        self._dims = dims

    def user(self) -> Optional[Value]:
        """[B, ..., H]: what depends on users only."""
        pieces = list(self._pieces.users.values())
        if not pieces:
            return None

        def make() -> tf.Tensor:
            spaced = self._spaced(pieces)
            return self._multiply(pieces) if spaced is None else spaced

        return Value(None, Side.USER, self._dims_of(pieces), make=make)

    def _spaced(self, pieces: Sequence[Tuple[Value, _Slices]]) -> Optional[tf.Tensor]:
        """The product with the whole kernel, with zeros where the candidates' parts are.

        For parts of users and candidates that take turns: for the few users' rows more numbers are
        multiplied than must be, but the kernel's rows need not be copied together. None where the
        parts are not so.
        """
        pieces = sorted(pieces, key=lambda piece: piece[1][0][1])
        first = pieces[0][0]
        total = sum(value.dims[-1].factor for value, _ in pieces)
        if len({value.dims[:-1] for value, _ in pieces}) > 1 or 2 * total < self._width:
            return None
        lead = None
        parts: List[tf.Tensor] = []
        zeros: Dict[int, tf.Tensor] = {}
        place = gaps = 0
        for value, slices in [*pieces, (None, [(1, self._width)])]:
            ((sign, start), *more) = slices
            if more or sign < 0 or start < place:
                return None
            if start > place:
                gaps += value is not None and place > 0
                if lead is None:
                    lead = tf.shape(first.computed())[:-1]
                if start - place not in zeros:
                    shape = tf.concat([lead, [start - place]], axis=0)
                    zeros[start - place] = tf.zeros(shape, first.computed().dtype)
                parts.append(zeros[start - place])
            if value is not None:
                parts.append(value.computed())
                place = start + value.dims[-1].factor
        if gaps == 0:
            return None
        data = tf.concat(parts, axis=-1)
        return self._times(data, self._kernel(), first.dims)

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
            form, slices = products[0]
            own = pieces.pop(id(form.item), (None, []))[1]
            total, dims = self._multiply_by_user(form, slices, own, user), list(self._dims)
            user = None
        else:
            for form, slices in products:
                value = Value(None, Side.ITEM, form.user.dims, make=self._product_of(form))
                pieces[id(form)] = (value, slices)
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
        self, form: Product, slices: _Slices, own: _Slices, user: Optional[Value]
    ) -> tf.Tensor:
        """(u * i) × slices + i × own + user, of u [B, T, D], i [N, 1, D], user [B, T, H]."""
        width = form.user.dims[-1].factor
        entries, rows = form.user.computed(), tf.squeeze(form.item.computed(), 1)
        user_bias = None if user is None else user.computed()
        if user is not None and user.dims[1] != self._dims[1]:
            shape = tf.concat([tf.shape(entries)[:2], tf.shape(user_bias)[2:]], axis=0)
            user_bias = tf.broadcast_to(user_bias, shape)
        row_bias = tf.matmul(rows, self._rows_of_kernel(own, width)) if own else None
        kernel = self._rows_of_kernel(slices, width)
        return self._expansion.layer(entries, rows, kernel, user_bias, row_bias)

    def _dims_of(self, pieces: Sequence[Tuple[Value, _Slices]]) -> Tuple[Size, ...]:
        columns = [
            next((v.dims[axis] for v, _ in pieces if v.dims[axis] != ONE), ONE)
            for axis in range(len(self._dims) - 1)
        ]
        return (*columns, self._dims[-1])

    def _rows_of_kernel(self, slices: _Slices, count: int) -> tf.Tensor:
        kernel = self._kernel()
        total = None
        for sign, start in slices:
            rows = kernel[start : start + count]
            if total is None:
                total = rows if sign > 0 else -rows
            else:
                total = total + rows if sign > 0 else total - rows
        return total

    def _multiply(self, pieces: Sequence[Tuple[Value, _Slices]]) -> tf.Tensor:
        """The sum over the pieces of value × rows of the kernel, as one product where it can be."""
        pieces = sorted(pieces, key=lambda piece: piece[1][0][1])
        by_axes: Dict[Tuple[Size, ...], List[Tuple[Value, _Slices]]] = {}
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

    def _stacked_kernel(self, pieces: Sequence[Tuple[Value, _Slices]]) -> tf.Tensor:
        """Rows of the kernel for the pieces one below the other; neighbours stay one slice."""
        runs: List[Tuple[_Slices, int]] = []
        for value, slices in pieces:
            width = value.dims[-1].factor
            if runs and len(slices) == 1 == len(runs[-1][0]):
                (sign, start), length = runs[-1][0][0], runs[-1][1]
                if slices[0] == (sign, start + length):
                    runs[-1] = (runs[-1][0], length + width)
                    continue
            runs.append((slices, width))
        rows = [self._rows_of_kernel(slices, width) for slices, width in runs]
        return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0)


def _widen(dims: List[Size], others: Sequence[Size]) -> None:
    for axis, size in enumerate(others):
        if size != ONE:
            dims[axis] = size
