# SPDX-License-Identifier: Apache-2.0
"""What the pass knows of a tensor: on which side it is computed, and where its rows are."""

import dataclasses
import enum
from typing import Any, Callable, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Size, Sizes

# Longest integer vector that is taken for a shape and followed element by element.
_MAX_SHAPE_LENGTH = 16


class Side(enum.Enum):
    """Where a tensor is computed."""

    FIXED = "neither user nor item"
    USER = "a row for each user"
    ITEM = "a row for each candidate"


class Stop(Exception):
    """Why an op cannot run on a row for each user; the text completes "stays because it …"."""


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor of the model after the pass.

    Attributes:
      tensor: On the side of users, B rows; otherwise what the model as written computes.
      side: Where it is computed.
      dims: Its shape; ListSizes: that of each element of a list. Exactly one has `is_batch` where
        the rows are known; an axis that is None may be anything. None: the rank is not known, and
        the rows of a user's are on axis 0.
      elements: Of an integer scalar or vector: what it says about sizes, with N rows.
      entries: Entries or Distinct, of a component of a user's sparse or ragged tensor: the rows of
        `dims` are not the users' but its entries, and each user has a number of them.
      repeat: What repeats its rows, where that is neither the users' nor the entries' way.
      make: Computes the tensor in another way than the model as written; None: as it does.
      form: What algebra knows of it.
      meets: Of positions among distinct values: the Distinct they point into.
      entry_shape: (entries, sizes): of a shape of a row for each entry, the sizes of other axes.
    """

    tensor: tf.Tensor
    side: Side
    dims: Sizes
    elements: Sizes = None
    entries: Any = None
    repeat: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
    make: Optional[Callable[[], tf.Tensor]] = None
    form: Any = None
    meets: Any = None
    entry_shape: Any = None

    def computed(self) -> tf.Tensor:
        """The tensor as the compressed graph computes it, on its side."""
        if self.make is not None:
            self.tensor, self.make = self.make(), None
        return self.tensor

    @property
    def axis(self) -> Optional[int]:
        """The axis of the rows, None where there is none or it is not known."""
        if self.dims is None:
            return 0 if self.side == Side.USER else None
        for axis, size in enumerate(self.dims):
            if size is not None and size.is_batch:
                return axis
        return None

    @property
    def per_row(self) -> Optional[Size]:
        """How many consecutive places of the axis belong to one row."""
        if self.dims is None or self.axis is None:
            return sizes_lib.ONE
        return self.dims[self.axis].per_row()


def known_dims(value: Value) -> Tuple[Size, ...]:
    """The shape where all of it is known.

    Raises:
      Stop: It is not.
    """
    if value.repeat is not None:
        raise Stop("takes apart a sparse or ragged tensor")
    if isinstance(value.dims, sizes_lib.ListSizes):
        raise Stop("takes a list of tensors")
    if value.dims is None:
        raise Stop("takes a tensor of unknown rank")
    if None in value.dims:
        raise Stop("takes a tensor whose rows are not known")
    return value.dims


def is_known(value: Value) -> bool:
    """Whether all of the shape is known, and no part of a sparse or ragged tensor."""
    try:
        known_dims(value)
    except Stop:
        return False
    return value.entries is None


def fixed(tensor: tf.Tensor) -> Value:
    """A tensor that depends on neither users nor items."""
    return Value(tensor, Side.FIXED, static_dims(tensor, symbols=True), constant_elements(tensor))


def opaque(tensor: tf.Tensor) -> Value:
    """A tensor of the candidates' side of which only the static shape is known."""
    return Value(tensor, Side.ITEM, static_dims(tensor, symbols=False))


def static_dims(tensor: tf.Tensor, symbols: bool) -> Sizes:
    """The static shape; what it leaves open is a symbol each, or None."""
    if tensor.shape.rank is None:
        return None
    dims: List[Optional[Size]] = []
    for axis, size in enumerate(tensor.shape.as_list()):
        if size is not None:
            dims.append(sizes_lib.number(size))
        else:
            dims.append(sizes_lib.unknown(tensor, axis) if symbols else None)
    return tuple(dims)


def rows_dims(tensor: tf.Tensor) -> Sizes:
    """The shape of a tensor whose rows are on axis 0."""
    if tensor.shape.rank is None:
        return None
    rest = [
        sizes_lib.unknown(tensor, axis) if size is None else sizes_lib.number(size)
        for axis, size in enumerate(tensor.shape.as_list())
        if axis
    ]
    return (sizes_lib.BATCH, *rest)


def constant_elements(tensor: tf.Tensor) -> Sizes:
    """The numbers of a small integer constant."""
    if not tensor.dtype.is_integer or tensor.shape.rank not in (0, 1):
        return None
    length = tensor.shape.num_elements()
    if length is None or length > _MAX_SHAPE_LENGTH:
        return None
    constant = tf.get_static_value(tensor)
    if constant is None:
        return None
    return tuple(sizes_lib.number(element) for element in constant.reshape(-1).tolist())
