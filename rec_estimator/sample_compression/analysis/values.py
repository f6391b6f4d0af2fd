# SPDX-License-Identifier: Apache-2.0
"""What the pass knows about a tensor: a Value, which is dense, sparse or a list.

DenseValue    a tensor; its rows, if it has any, are users or candidates
SparseValue   a component of a sparse or ragged tensor of users, or made of one
  EntryRows     one row for each entry: the ids and weights, and whatever is computed from them
  EntryNumbers  numbers that describe the entries: Indices, RowNumbers, DenseShape, RowSplits,
                ChosenPositions, DistinctPositions, EntryShape, Component
ListValue     a list of tensors of one shape (TensorList, or the flow of a TensorArray)
"""

import abc
import dataclasses
import enum
from typing import Callable, List, Optional, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.entries import Chosen, Distinct, Entries
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Shape, Size, Sizes

# The longest integer vector that is taken for a possible shape and followed by element.
_MAX_SHAPE_LENGTH = 16


class Side(enum.Enum):
    """Where a tensor is computed."""

    FIXED = "depends on neither users nor candidates"
    USER = "one row per user"
    ITEM = "one row per candidate"


class CannotMove(Exception):
    """Why an op cannot run on one row per user. The text completes "stays because it …"."""


class Form:
    """How a tensor of candidates is computed; see linear_forms.py."""


class Deferred:
    """A tensor that is built once, when it is needed first.

    Args:
      build: Builds it.
    """

    def __init__(self, build: Callable[[], tf.Tensor]) -> None:
        self._build = build
        self._tensor: Optional[tf.Tensor] = None

    def __call__(self) -> tf.Tensor:
        """The tensor."""
        if self._tensor is None:
            self._tensor = self._build()
        return self._tensor


class Value(abc.ABC):
    """What the pass knows about a tensor: a DenseValue, a SparseValue or a ListValue.

    Attributes:
      tensor: The tensor of the model. None: the model has no such tensor; see `computed`.
      side: Where it is computed.
      dims: Its shape; of a list, the shape of an element. At most one axis has `is_batch`: that of
        the rows. None: the rank is unknown, and rows of users are on axis 0.
      entries: What the rows are. None: users or candidates.
    """

    tensor: tf.Tensor
    side: Side
    dims: Shape
    entries: Optional[Union[Entries, Distinct]]

    @abc.abstractmethod
    def known_dims(self) -> Tuple[Size, ...]:
        """The shape, if the pass knows all of it.

        Raises:
          CannotMove: A size is unknown.
        """

    def computed(self) -> tf.Tensor:
        """The tensor of the compressed graph, on its side."""
        return self.tensor

    @property
    def axis(self) -> Optional[int]:
        """The axis of the rows. None: it has no rows, or the axis is unknown."""
        sizes = self.dims.sizes if isinstance(self.dims, ListSizes) else self.dims
        if sizes is None:
            return 0 if self.side == Side.USER else None
        return next((i for i, size in enumerate(sizes) if size is not None and size.is_batch), None)

    @property
    def per_row(self) -> Size:
        """How many consecutive places of the axis belong to one row."""
        sizes = self.dims.sizes if isinstance(self.dims, ListSizes) else self.dims
        size = None if sizes is None or self.axis is None else sizes[self.axis]
        return sizes_lib.ONE if size is None else size.per_row()


@dataclasses.dataclass(frozen=True, eq=False)
class DenseValue(Value):
    """A tensor whose rows, if it has any, are users or candidates.

    Attributes:
      tensor: See Value.
      side: See Value.
      dims: See Value.
      elements: The elements of an integer scalar or vector, as sizes, with N rows. None: unknown.
      form: How it is computed. None: the linear split cannot use it.
      make: Builds the tensor in another way than the model. None: the model's tensor is used.
      entries: None.
    """

    tensor: tf.Tensor
    side: Side
    dims: Sizes
    elements: Sizes = None
    form: Optional[Form] = None
    make: Optional[Deferred] = None
    entries: None = dataclasses.field(default=None, init=False)

    def known_dims(self) -> Tuple[Size, ...]:
        """The shape; see Value."""
        return _all_known(self.dims)

    def computed(self) -> tf.Tensor:
        """The tensor of the compressed graph, on its side."""
        return self.tensor if self.make is None else self.make()

    def made_by(self, build: Callable[[], tf.Tensor]) -> "DenseValue":
        """The same value, built by `build` when it is needed."""
        return dataclasses.replace(self, make=Deferred(build))


@dataclasses.dataclass(frozen=True, eq=False)
class ListValue(Value):
    """A list of tensors of one shape.

    Attributes:
      tensor: The handle of a TensorList, or the flow of a TensorArray.
      side: USER if the elements have rows of users.
      dims: The shape of the elements.
      entries: None.
    """

    tensor: tf.Tensor
    side: Side
    dims: ListSizes
    entries: None = dataclasses.field(default=None, init=False)

    def known_dims(self) -> Tuple[Size, ...]:
        """Raises CannotMove: a list has no shape."""
        raise CannotMove("takes a list of tensors")


@dataclasses.dataclass(frozen=True, eq=False)
class SparseValue(Value):
    """A component of a sparse or ragged tensor of users, or a tensor made of one.

    Attributes:
      tensor: See Value.
      dims: See Value. The rows are the entries.
      entries: The entries. None: they are not followed.
      side: USER.
    """

    tensor: tf.Tensor
    dims: Sizes
    entries: Optional[Union[Entries, Distinct]]
    side: Side = dataclasses.field(default=Side.USER, init=False)

    def known_dims(self) -> Tuple[Size, ...]:
        """Raises CannotMove: an op without a rule would misread the numbers."""
        raise CannotMove("takes a component of a sparse or ragged tensor")


@dataclasses.dataclass(frozen=True, eq=False)
class EntryRows(SparseValue):
    """One row on axis 0 for each entry, or for each distinct value.

    Attributes:
      tensor: [n, …].
      entries: What the rows are.
      make: See DenseValue.
    """

    entries: Union[Entries, Distinct]
    make: Optional[Deferred] = None

    def known_dims(self) -> Tuple[Size, ...]:
        """The shape; see Value."""
        return _all_known(self.dims)

    def computed(self) -> tf.Tensor:
        """The tensor of the compressed graph."""
        return self.tensor if self.make is None else self.make()


@dataclasses.dataclass(frozen=True, eq=False)
class EntryNumbers(SparseValue):
    """Numbers that describe the entries. Each class knows how to repeat itself."""

    @abc.abstractmethod
    def repeated(self) -> tf.Tensor:
        """The same component of the sparse or ragged tensor of N rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Indices(EntryNumbers):
    """The indices of a SparseTensor, int64 [n, r]."""

    entries: Entries

    def repeated(self) -> tf.Tensor:
        """int64 [m, r]."""
        return self.entries.repeat_indices(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class RowNumbers(EntryNumbers):
    """The user of each entry, [n]: the first column of the indices."""

    entries: Entries

    def repeated(self) -> tf.Tensor:
        """[m], the candidate of each entry."""
        return self.entries.repeat_rows(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSplits(EntryNumbers):
    """The outermost row_splits of a RaggedTensor, [B + 1]."""

    entries: Entries

    def repeated(self) -> tf.Tensor:
        """[N + 1]."""
        return self.entries.repeat_splits(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class DenseShape(EntryNumbers):
    """The dense_shape of a SparseTensor, int64 [r].

    Attributes:
      elements: See DenseValue. The first one is the number of rows.
      is_bounding: Whether the width is that of the longest row, as RaggedTensorToSparse gives it.
    """

    entries: Entries
    elements: Tuple[Optional[Size], ...]
    is_bounding: bool = False

    def repeated(self) -> tf.Tensor:
        """int64 [r]."""
        if self.is_bounding:
            return self.entries.bounding_shape(self.tensor)
        return self.entries.repeat_shape(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenPositions(EntryNumbers):
    """The positions of the entries that a mask selects, int64 [k] or [k, 1]."""

    entries: Chosen

    def repeated(self) -> tf.Tensor:
        """The positions of the candidates' entries that the mask selects."""
        return self.entries.repeat_positions(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class DistinctPositions(EntryNumbers):
    """The position of each entry's value among the distinct values, [n].

    Attributes:
      entries: The entries.
      distinct: The distinct values.
    """

    entries: Entries
    distinct: Distinct

    def repeated(self) -> tf.Tensor:
        """[m]."""
        return self.distinct.repeat_positions(self.tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class EntryShape(EntryNumbers):
    """The shape of a tensor of one row for each entry, [1 + len(sizes)].

    Attributes:
      entries: The entries.
      sizes: The sizes of the axes after the first one.
    """

    entries: Entries
    sizes: Tuple[Size, ...]

    def repeated(self) -> tf.Tensor:
        """The shape of the same tensor of the candidates' entries."""
        count = tf.cast(tf.size(self.entries.places), self.tensor.dtype)
        return tf.concat([count[tf.newaxis], self.tensor[1:]], axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Component(EntryNumbers):
    """Any other component; no rule accepts it.

    Attributes:
      repeat: Builds the same component of the tensor of N rows.
    """

    repeat: Callable[[], tf.Tensor]

    def repeated(self) -> tf.Tensor:
        """As `repeat` builds it."""
        return self.repeat()


def value_of(tensor: tf.Tensor, side: Side, shape: Shape, elements: Sizes = None) -> Value:
    """A ListValue if the shape is that of a list's elements, otherwise a DenseValue."""
    if isinstance(shape, ListSizes):
        return ListValue(tensor, side, shape)
    return DenseValue(tensor, side, shape, elements)


def elements_in(value: Value) -> Sizes:
    """The sizes in an integer tensor. None: it is not followed."""
    return value.elements if isinstance(value, (DenseValue, DenseShape)) else None


def is_known(value: Value) -> bool:
    """Whether a value is dense and the pass knows all of its shape."""
    return isinstance(value, DenseValue) and value.dims is not None and None not in value.dims


def _all_known(dims: Sizes) -> Tuple[Size, ...]:
    if dims is None:
        raise CannotMove("takes a tensor of unknown rank")
    known = tuple(size for size in dims if size is not None)
    if len(known) < len(dims):
        raise CannotMove("takes a tensor whose rows are not known")
    return known


def fixed(tensor: tf.Tensor) -> DenseValue:
    """The value of a tensor that depends on neither users nor candidates."""
    dims = static_dims(tensor, symbols=True)
    return DenseValue(tensor, Side.FIXED, dims, constant_elements(tensor))


def opaque(tensor: tf.Tensor) -> DenseValue:
    """The value of a candidates' tensor of which only the static shape is known."""
    return DenseValue(tensor, Side.ITEM, static_dims(tensor, symbols=False))


def static_dims(tensor: tf.Tensor, symbols: bool) -> Sizes:
    """The static shape. An open axis is a symbol of its own if `symbols`, otherwise None."""
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
    """The elements of a small integer constant."""
    if not tensor.dtype.is_integer or tensor.shape.rank not in (0, 1):
        return None
    length = tensor.shape.num_elements()
    if length is None or length > _MAX_SHAPE_LENGTH:
        return None
    constant = tf.get_static_value(tensor)
    if constant is None:
        return None
    return tuple(sizes_lib.number(element) for element in constant.reshape(-1).tolist())
