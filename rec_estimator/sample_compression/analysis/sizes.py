# SPDX-License-Identifier: Apache-2.0
"""Sizes of tensors as the pass knows them: numbers, unknown sizes, and numbers of rows."""

import dataclasses
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf


class Symbol(NamedTuple):
    """A size that is only known at run time and is the same for users and candidates.

    Attributes:
      key: (name of the tensor, axis). Symbols with equal keys are equal.
      tensor: The tensor.
    """

    key: Tuple[str, int]
    tensor: tf.Tensor

    def evaluate(self, dtype: tf.DType) -> tf.Tensor:
        """The size as a scalar tensor."""
        return tf.shape(self.tensor, out_type=dtype)[self.key[1]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.key == other.key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.key)


class Size(NamedTuple):
    """A product: factor × all symbols, × the number of rows if `is_batch`.

    Attributes:
      is_batch: Whether the number of rows (users or candidates) is a factor.
      factor: int. -1 means "the rest", as in a Reshape.
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

# The sizes of all axes. None: the rank is unknown. An element None: the size is unknown.
Sizes = Optional[Tuple[Optional[Size], ...]]


@dataclasses.dataclass(frozen=True)
class ListSizes:
    """The shape of every element of a list of tensors.

    Attributes:
      sizes: The size of each axis of an element.
      dtype: The type of the elements.
      is_set: Whether an element was written. If not, `sizes` is () and any shape may follow.
    """

    sizes: Tuple[Size, ...]
    dtype: tf.DType = dataclasses.field(compare=False)
    is_set: bool = True


Shape = Union[Sizes, ListSizes]  # The sizes of a tensor, or of the elements of a list of tensors.


def has_rows(shape: Shape) -> bool:
    """Whether one of the axes is known to hold the rows."""
    sizes = shape.sizes if isinstance(shape, ListSizes) else shape
    return sizes is not None and any(size is not None and size.is_batch for size in sizes)


def number(value: int) -> Size:
    """A size that is known when the graph is built."""
    return Size(factor=int(value))


def is_number(size: Optional[Size]) -> bool:
    """Whether a size is known when the graph is built."""
    return size is not None and not size.is_batch and not size.symbols


def unknown(tensor: tf.Tensor, axis: int) -> Size:
    """The size of an axis that is only known at run time."""
    return Size(symbols=(Symbol((tensor.name, axis), tensor),))


def product(sizes: Sequence[Optional[Size]]) -> Optional[Size]:
    """The product; None if a factor is unknown, or if the number of rows would be squared."""
    is_batch, factor = False, 1
    symbols: List[Symbol] = []
    for size in sizes:
        if size is None or (is_batch and size.is_batch) or size.factor < 0:
            return None
        is_batch |= size.is_batch
        factor *= size.factor
        symbols.extend(size.symbols)
    return Size(is_batch, factor, tuple(sorted(symbols, key=lambda s: s.key)))


def quotient(size: Optional[Size], divisor: Optional[Size]) -> Optional[Size]:
    """size / divisor; None if the result may not be a whole number."""
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
    """The size as a scalar tensor, for `rows` rows."""
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
    """Several sizes as a tensor, a vector, for `rows` rows."""
    if not any(size.is_batch or size.symbols for size in sizes):
        return tf.constant([size.factor for size in sizes], dtype, shape=[len(sizes)])
    return tf.stack([evaluate(size, rows, dtype) for size in sizes])


def reshape_target(sizes: Sequence[Size], rows: tf.Tensor) -> tf.Tensor:
    """The second input of a Reshape: a constant if only the number of rows is unknown."""
    others = [size for size in sizes if not size.is_batch]
    if all(is_number(size) and size.factor > 0 for size in others) and len(others) < len(sizes):
        return tf.constant([-1 if size.is_batch else size.factor for size in sizes], tf.int32)
    return evaluate_all(sizes, rows, tf.int32)
