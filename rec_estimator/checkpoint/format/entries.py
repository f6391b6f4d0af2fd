# SPDX-License-Identifier: Apache-2.0
"""Parses the entries of an index, and refuses those that contradict themselves.

An index may be damaged in spite of its checksums, or malicious. An entry that passes here has
a type that TensorFlow knows, a shape whose product is an int64, and slices that cover it with as
many bytes as it takes.
"""

import functools
from typing import Dict, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto

# The messages in an index. TensorFlow promises their format, but not this module path.
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from rec_estimator.checkpoint.format.index_file import DamagedIndexError

# Types whose checksum is not that of their bytes in the file.
_NOT_PLAIN = (tf.string, tf.variant, tf.resource)

# TensorFlow numbers the types of references, which no file can have, from here.
_FIRST_REFERENCE = 101

_MOST_DIMENSIONS = 254
_MOST = 2**63 - 1


class ByteRange(NamedTuple):
    """The bytes of a tensor, or of one of its slices, in a data file."""

    key: bytes  # In the index.
    tensor: str  # The tensor's name.
    entry: BundleEntryProto
    begin: int  # First row of the slice, 0 for a tensor.
    is_plain: bool  # Whether the checksum is that of the bytes.

    @property
    def name(self) -> str:
        """What messages call it."""
        rows = f", rows from {self.begin} on" if is_slice(self.key) else ""
        return f"tensor {self.tensor!r}{rows}"


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint."""

    name: str
    dtype: tf.DType
    shape: Tuple[int, ...]
    header: ByteRange  # The entry under the tensor's name. It has no bytes if the tensor is sliced.
    ranges: List[ByteRange]  # The slices by first row; [header] if the tensor is not sliced.

    @property
    def nbytes(self) -> int:
        """Size in the data files in bytes."""
        return sum(part.entry.size for part in self.ranges)


def is_slice(key: bytes) -> bool:
    """Returns whether a key of an index is that of a slice; its tensor's entry names it."""
    return key.startswith(b"\0")


def tensor_of(entries: Dict[bytes, bytes], key: bytes, num_files: int) -> StoredTensor:
    """Returns the tensor of a key.

    Args:
      entries: Keys and values of the index.
      key: The key of a tensor.
      num_files: The number of data files that the header tells.

    Raises:
      DamagedIndexError: An entry contradicts itself. The message completes "tensor x must".
    """
    name = key.decode()
    entry = _parse(entries, key)
    dtype = _dtype_of(entry)
    shape = _shape_of(entry)
    is_plain = dtype not in _NOT_PLAIN
    header = ByteRange(key, name, entry, 0, is_plain)
    ranges = _slices_of(entries, header, shape) if entry.slices else [header]
    for part in ranges:
        _check_place(part.entry, num_files)
    tensor = StoredTensor(name, dtype, shape, header, ranges)
    if is_plain and tensor.nbytes != _product(shape) * dtype.size:
        raise DamagedIndexError(
            f"take {_product(shape) * dtype.size} bytes for shape {list(shape)} of {dtype.name}, "
            f"got {tensor.nbytes}"
        )
    return tensor


def _slices_of(
    entries: Dict[bytes, bytes], header: ByteRange, shape: Tuple[int, ...]
) -> List[ByteRange]:
    """Returns the slices of a tensor by first row. A large checkpoint has many."""
    dtype = header.entry.dtype
    prefix = _slice_prefix(header.key, len(shape))
    ranges = []
    for extents in header.entry.slices:
        begin, lengths, suffix = _extents_of(extents, shape)
        part = _parse(entries, prefix + suffix)
        if part.dtype != dtype or not _has_shape(part, lengths):
            raise DamagedIndexError(
                f"have slices of their own type and shape {lengths}, got one of type "
                f"{part.dtype} and shape {list(_shape_of(part))}"
            )
        ranges.append(ByteRange(prefix + suffix, header.tensor, part, begin, header.is_plain))
    ranges.sort(key=lambda part: part.begin)
    return ranges


def _parse(entries: Dict[bytes, bytes], key: bytes) -> BundleEntryProto:
    if key not in entries:
        raise DamagedIndexError("have all its slices, got none for one of them")
    try:
        return BundleEntryProto.FromString(entries[key])
    except DecodeError:
        raise DamagedIndexError("have valid entries, got one that cannot be read") from None


def _dtype_of(entry: BundleEntryProto) -> tf.DType:
    try:
        dtype = tf.as_dtype(entry.dtype)
    except TypeError:
        dtype = None
    if dtype is None or entry.dtype >= _FIRST_REFERENCE:
        raise DamagedIndexError(
            f"have a type that TensorFlow {tf.__version__} knows, got number {entry.dtype}"
        )
    return dtype


def _shape_of(entry: BundleEntryProto) -> Tuple[int, ...]:
    if entry.shape.unknown_rank:
        raise DamagedIndexError("have a shape, got one of unknown rank")
    shape = tuple(dim.size for dim in entry.shape.dim)
    if len(shape) > _MOST_DIMENSIONS:
        raise DamagedIndexError(f"have rank <= {_MOST_DIMENSIONS}, got {len(shape)}")
    # Without the zeros: TensorFlow multiplies before it sees them.
    if min(shape, default=0) < 0 or _product(tuple(d for d in shape if d)) > _MOST // 16:
        raise DamagedIndexError(f"have a shape that fits into a file, got {list(shape)}")
    return shape


def _has_shape(entry: BundleEntryProto, shape: List[int]) -> bool:
    return [dim.size for dim in entry.shape.dim] == shape and not entry.shape.unknown_rank


def _extents_of(extents: TensorSliceProto, shape: Tuple[int, ...]) -> Tuple[int, List[int], bytes]:
    """Returns the first row of a slice, its length in each dimension, and the end of its key."""
    if len(extents.extent) != len(shape):
        raise DamagedIndexError(
            f"have slices of rank {len(shape)}, got one of rank {len(extents.extent)}"
        )
    first_row, lengths, suffix = None, [], b""
    for extent, size in zip(extents.extent, shape):
        begin = extent.start
        is_full = not extent.HasField("length")
        length = size if is_full else extent.length
        if begin < 0 or length < 0 or begin + length > size:
            raise DamagedIndexError(
                f"have slices within shape {list(shape)}, got one that begins at {begin} and "
                f"has length {length}"
            )
        first_row = begin if first_row is None else first_row
        lengths.append(length)
        suffix += _signed(begin) + _signed(-1 if is_full else length)
    return first_row or 0, lengths, suffix


def _check_place(entry: BundleEntryProto, num_files: int) -> None:
    if not 0 <= entry.shard_id < num_files:
        raise DamagedIndexError(f"be in one of {num_files} data files, got number {entry.shard_id}")
    if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > _MOST:
        raise DamagedIndexError(
            f"be within a file, got {entry.size} bytes from byte {entry.offset}"
        )


def _product(shape: Tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _slice_prefix(name: bytes, rank: int) -> bytes:
    """Returns how keys of slices begin: the ordered code of 0, the tensor's name and the rank.

    The begin and the length in each dimension follow. Source: EncodeTensorNameSlice in TensorFlow's
    saved_tensor_slice_util.cc.
    """
    # The code escapes byte 255, too, which UTF-8 does not have.
    escaped = name.replace(b"\0", b"\0\xff")
    return b"\0" + escaped + b"\0\1" + (b"\1" + bytes([rank]) if rank else b"\0")


@functools.lru_cache(maxsize=1 << 10)  # Most slices of a tensor are of one length.
def _signed(value: int) -> bytes:
    """Returns the ordered code of an int64: a 1 bit for each byte, then the number's bits."""
    magnitude = ~value if value < 0 else value
    size = magnitude.bit_length() // 7 + 1
    code = (value & ((1 << 8 * size) - 1)) ^ (((1 << size) - 1) << (7 * size))
    return code.to_bytes(size, "big")
