# SPDX-License-Identifier: Apache-2.0
"""Sizes of tensors as the pass knows them: numbers, sizes only a request tells, numbers of rows."""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf


class Symbol(NamedTuple):
    """A size that the graph does not know, and that is the same for users and for candidates.

    Attributes:
      key: What tells it from others: (name of the tensor, axis).
      tensor: The tensor.
    """

    key: Tuple[str, int]
    tensor: Any

    def evaluate(self, dtype: tf.DType) -> tf.Tensor:
        """The size as a scalar of the graph."""
        return tf.shape(self.tensor, out_type=dtype)[self.key[1]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.key == other.key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.key)


class Size(NamedTuple):
    """factor × the symbols, and × the number of rows where `is_batch`.

    Attributes:
      is_batch: Whether the number of rows (users or candidates) is one of the factors.
      factor: int; -1 as the Reshape op has it stands for "the rest".
      symbols: Sorted by key.
    """

    is_batch: bool = False
    factor: int = 1
    symbols: Tuple[Symbol, ...] = ()

    def per_row(self) -> "Size":
        """The size without the number of rows."""
        return self._replace(is_batch=False)


BATCH = Size(is_batch=True)
ONE = Size()
REST = Size(factor=-1)

Sizes = Optional[Tuple[Optional[Size], ...]]  # None inside: it may be anything


class ListSizes(tuple):
    """The shape of the elements of a list of tensors.

    Attributes:
      dtype: Of the elements.
      is_set: Whether anything was written; otherwise their shape may still be any.
    """

    def __new__(cls, sizes: Sequence[Size], dtype: tf.DType, is_set: bool = True) -> "ListSizes":
        """A tuple is made, not initialized."""
        self = super().__new__(cls, sizes)
        self.dtype, self.is_set = dtype, is_set
        return self

    def like(self, sizes: Sequence[Size]) -> "ListSizes":
        """Another shape of the elements of such a list."""
        return ListSizes(sizes, self.dtype, self.is_set)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, ListSizes) and self.is_set == other.is_set
        return same and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def number(value: int) -> Size:
    """A size that is known."""
    return Size(factor=int(value))


def is_number(size: Optional[Size]) -> bool:
    """Whether a size is known before a request comes."""
    return size is not None and not size.is_batch and not size.symbols


def unknown(tensor: tf.Tensor, axis: int) -> Size:
    """The size of an axis that only a request tells."""
    return Size(symbols=(Symbol((tensor.name, axis), tensor),))


def product(sizes: Sequence[Optional[Size]]) -> Optional[Size]:
    """The product, None where a factor may be anything or the rows would come in twice."""
    is_batch, factor, symbols = False, 1, []
    for size in sizes:
        if size is None or (is_batch and size.is_batch) or size.factor < 0:
            return None
        is_batch |= size.is_batch
        factor *= size.factor
        symbols += size.symbols
    return Size(is_batch, factor, tuple(sorted(symbols, key=lambda s: s.key)))


def quotient(size: Optional[Size], divisor: Optional[Size]) -> Optional[Size]:
    """size / divisor where that is certain to be whole, otherwise None."""
    if size is None or divisor is None or divisor.is_batch > size.is_batch:
        return None
    if divisor.factor <= 0 or size.factor % divisor.factor:
        return None
    symbols = list(size.symbols)
    for factor in divisor.symbols:
        if factor not in symbols:
            return None
        symbols.remove(factor)
    is_batch = size.is_batch and not divisor.is_batch
    return Size(is_batch, size.factor // divisor.factor, tuple(symbols))


def evaluate(size: Size, rows: tf.Tensor, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """The size as a scalar of the graph, for so many rows."""
    factors = [symbol.evaluate(dtype) for symbol in size.symbols]
    if size.is_batch:
        factors.append(tf.cast(rows, dtype))
    if not factors:
        return tf.constant(size.factor, dtype)
    value = factors[0]
    for factor in factors[1:]:
        value = value * factor
    return value if size.factor == 1 else value * tf.constant(size.factor, dtype)


def evaluate_all(sizes: Sequence[Size], rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Several sizes as a vector of the graph, for so many rows."""
    if not any(size.is_batch or size.symbols for size in sizes):
        return tf.constant([size.factor for size in sizes], dtype, shape=[len(sizes)])
    return tf.stack([evaluate(size, rows, dtype) for size in sizes])


def reshape_target(sizes: Sequence[Size], rows: tf.Tensor) -> tf.Tensor:
    """Several sizes as the shape for a Reshape, a constant where all but the rows are known."""
    others = [size for size in sizes if not size.is_batch]
    if all(is_number(size) and size.factor > 0 for size in others) and len(others) < len(sizes):
        return tf.constant([-1 if size.is_batch else size.factor for size in sizes], tf.int32)
    return evaluate_all(sizes, rows, tf.int32)
