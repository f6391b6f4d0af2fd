# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files of a checkpoint in chunks of bounded size.

RestoreV2 reads an unsliced tensor whole. ``Bundle`` reads any tensor in chunks of 1 MiB.
``NewBundle`` writes tensors sliced or unsliced, so that a copy keeps the form of the original and
has the same readers. The package's docstring describes the format.
"""

import contextlib
import errno
import os
import pathlib
from types import TracebackType
from typing import (
    BinaryIO,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
from tensorflow.core.framework.versions_pb2 import VersionDef

# The messages in an index. TensorFlow promises their format, but not this module path.
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.index_file import DamagedIndexError, build_index, parse_index

# Bytes read at once.
CHUNK = 1 << 20

# Types whose checksum is not that of their bytes in the file.
_NOT_PLAIN = (tf.string, tf.variant, tf.resource)

PathLike = Union[str, "os.PathLike[str]"]


class ByteRange(NamedTuple):
    """The bytes of a tensor, or of one of its slices, in a data file."""

    key: bytes  # In the index.
    entry: BundleEntryProto
    begin: int  # First row of the slice, 0 for a tensor.


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint."""

    name: str
    dtype: tf.DType
    shape: Tuple[int, ...]
    header: ByteRange  # The entry under the tensor's name. Of a sliced tensor it has no bytes.
    ranges: List[ByteRange]  # The slices by first row; [header] if the tensor is not sliced.

    @property
    def nbytes(self) -> int:
        """Size in the data files in bytes."""
        return sum(part.entry.size for part in self.ranges)


class Bundle:
    """A checkpoint opened for reading.

    Args:
      prefix: Path without ``.index``, on a local or mounted file system.

    Raises:
      FileNotFoundError, IsADirectoryError, ValueError: No V2 checkpoint has this prefix.
      tf.errors.DataLossError: The index is damaged.
    """

    def __init__(self, prefix: PathLike) -> None:
        self.prefix = os.fspath(prefix)
        path = self.prefix + ".index"
        check_prefix("checkpoint", self.prefix)
        try:
            entries = dict(parse_index(pathlib.Path(path).read_bytes()))
            self.header = BundleHeaderProto.FromString(entries.pop(b"", b""))
            self.tensors = _tensors(entries)
        except (DamagedIndexError, DecodeError) as error:
            raise _data_loss(path, error) from None
        if self.header.endianness != BundleHeaderProto.LITTLE:
            raise ValueError(
                f"{path} must be little-endian, got big-endian; save it on a little-endian machine"
            )

    @property
    def files(self) -> List[str]:
        """Paths of the index and of all data files."""
        return [self.prefix + ".index", *map(self._data_file, range(self.header.num_shards))]

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))

    def read(self, part: ByteRange) -> Iterator[np.ndarray]:
        """Yields the bytes of a range as uint8 [CHUNK], the last one shorter.

        Raises:
          tf.errors.DataLossError: The file is missing or cut. Or, after the last chunk, the
            checksum does not match.
        """
        path = self._data_file(part.entry.shard_id)
        left, crc = part.entry.size, 0
        is_plain = tf.as_dtype(part.entry.dtype) not in _NOT_PLAIN
        try:
            with open(path, "rb") as file:
                file.seek(part.entry.offset)
                while left:
                    chunk = np.fromfile(file, np.uint8, min(left, CHUNK))
                    if not len(chunk):
                        raise _data_loss(path, "it ends too early")
                    left -= len(chunk)
                    crc = crc32c(chunk, crc) if is_plain else crc
                    yield chunk
        except FileNotFoundError:
            raise _data_loss(path, "it is missing") from None
        if is_plain and masked(crc) != part.entry.crc32c:
            name = part.key.decode("utf-8", "backslashreplace")
            raise _data_loss(path, f"the checksum of {name!r} does not match")

    def read_rows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """Yields a tensor of rank 1 in arrays of ``rows`` elements, the last one shorter."""
        tensor = self.tensors[name]
        width = rows * tensor.dtype.size
        dtype = tensor.dtype.as_numpy_dtype
        pending = bytearray()
        for part in tensor.ranges:
            for chunk in self.read(part):
                pending += chunk.data
                while len(pending) >= width:
                    yield np.frombuffer(bytes(pending[:width]), dtype)
                    del pending[:width]
        if pending:
            yield np.frombuffer(bytes(pending), dtype)

    def read_string(self, name: str) -> str:
        """Returns the value of a string tensor of shape [].

        Raises:
          tf.errors.DataLossError: The file is missing or cut, or its checksum does not match.
        """
        try:
            value = tf.train.NewCheckpointReader(self.prefix).get_tensor(name)
        # For damaged data files TensorFlow's reader raises various classes.
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
            path = self._data_file(self.tensors[name].header.entry.shard_id)
            raise _data_loss(path, error) from None
        return value.decode("utf-8", "backslashreplace")

    def _data_file(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self.header.num_shards:05d}"


class NewBundle:
    """Writes a new checkpoint, which appears whole or not at all.

    Use it in a ``with`` statement. The names of its two files end in ``.unfinished`` until the end
    of the statement, where they are renamed, the index last. An exception removes them.

    Args:
      prefix: Path without ``.index``, in a folder that exists.
      version: VersionDef of the checkpoint.

    Raises:
      FileExistsError: Another run is writing the checkpoint, or was killed while it did.
    """

    def __init__(self, prefix: PathLike, version: VersionDef) -> None:
        prefix = os.fspath(prefix)
        self._names = [f"{prefix}.data-00000-of-00001", f"{prefix}.index"]
        self._header = BundleHeaderProto(num_shards=1, version=version)
        self._entries: Dict[bytes, bytes] = {}
        self._offset = 0
        self._files: List[BinaryIO] = []

    def __enter__(self) -> "NewBundle":
        try:
            for name in self._names:
                self._files.append(open(name + ".unfinished", "xb"))
        except OSError as error:
            self._remove()
            if not isinstance(error, FileExistsError):
                raise
            raise FileExistsError(
                f"output checkpoint must not be in use, got {error.filename}; "
                "if no other run is writing it, one was killed: remove that file"
            ) from None
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            if error is None:
                self._publish()
        finally:
            self._remove()

    def add(self, key: bytes, entry: BundleEntryProto, chunks: Iterable[np.ndarray]) -> None:
        """Appends a byte range, with the dtype, shape and checksum of ``entry``."""
        begin = self._offset
        for chunk in chunks:
            self._files[0].write(chunk.data)
            self._offset += len(chunk)
        placed = BundleEntryProto()
        placed.CopyFrom(entry)
        placed.shard_id, placed.offset, placed.size = 0, begin, self._offset - begin
        self._entries[key] = placed.SerializeToString()

    def add_header(self, header: ByteRange) -> None:
        """Copies the entry of a sliced tensor; ``add`` appends its slices."""
        self._entries[header.key] = header.entry.SerializeToString()

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Appends a tensor from memory."""
        data = np.frombuffer(array.tobytes(), np.uint8)
        self.add_stream(name, tf.as_dtype(array.dtype), array.shape, [data])

    def add_stream(
        self, name: str, dtype: tf.DType, shape: Sequence[int], chunks: Iterable[np.ndarray]
    ) -> None:
        """Appends a tensor of numbers from its bytes, given as arrays of uint8."""
        entry = BundleEntryProto(
            dtype=dtype.as_datatype_enum, shape=tf.TensorShape(shape).as_proto()
        )

        def summed() -> Iterator[np.ndarray]:
            crc = 0
            for chunk in chunks:
                crc = crc32c(chunk, crc)
                yield chunk
            entry.crc32c = masked(crc)  # add() reads it after the last chunk.

        self.add(name.encode(), entry, summed())

    def _publish(self) -> None:
        header = [(b"", self._header.SerializeToString())]
        self._files[1].write(build_index(header + sorted(self._entries.items())))
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        for file, name in zip(self._files, self._names):
            os.replace(file.name, name)
        sync(os.path.dirname(os.path.abspath(self._names[0])))

    def _remove(self) -> None:
        """Removes the files that were not renamed."""
        for file in self._files:
            file.close()
            with contextlib.suppress(FileNotFoundError):
                os.remove(file.name)


def check_prefix(argument: str, path: str, *, allows_v1: bool = False) -> None:
    """Refuses a path that is not the prefix of a V2 checkpoint.

    Args:
      argument: Name of the argument, for the error message.
      path: The path, which may be on any of TensorFlow's file systems.
      allows_v1: Whether a checkpoint of TensorFlow's V1 format passes, too.

    Raises:
      IsADirectoryError: The path is a folder.
      FileNotFoundError: The path is empty, or nothing is there.
      ValueError: The path is a file.
    """
    rule = (
        f"{argument} must be the prefix of a checkpoint, as model.ckpt-100 of "
        f"model.ckpt-100.index, got {path!r}"
    )
    if not path:
        raise FileNotFoundError(f"{rule}; pass the path that save() returned")
    if tf.io.gfile.exists(f"{path}.index"):
        return
    if tf.io.gfile.isdir(path):
        latest = tf.train.latest_checkpoint(path)
        remedy = f"pass {latest}" if latest else "no file 'checkpoint' in it names one"
        raise IsADirectoryError(f"{rule}, a folder; {remedy}")
    stem = path.rpartition(".")[0]
    if stem and tf.io.gfile.exists(f"{stem}.index"):
        raise ValueError(f"{rule}, one of its files; pass {stem}")
    if not tf.io.gfile.glob(path):
        raise FileNotFoundError(f"{rule}; {path}.index does not exist")
    if not allows_v1:
        raise ValueError(f"{rule}, a file; checkpoints of TensorFlow's V1 format cannot be read")


def sync(path: str) -> None:
    """Waits until a file or folder is on the disk, so that a power cut cannot lose it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # Some systems cannot sync folders.
            raise
    finally:
        os.close(descriptor)


def format_bytes(count: int) -> str:
    """Formats a number of bytes for people.

    Example:
      >>> format_bytes(999), format_bytes(104_462_000)
      ('999 B', '104.5 MB')
    """
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"


def _tensors(entries: Dict[bytes, bytes]) -> Dict[str, StoredTensor]:
    """Returns the tensors by name, from the entries of an index."""
    tensors = {}
    for key, value in entries.items():
        if key.startswith(b"\0"):  # A slice; its tensor's entry names it.
            continue
        header = ByteRange(key, BundleEntryProto.FromString(value), 0)
        shape = tuple(dim.size for dim in header.entry.shape.dim)
        ranges = [header]
        if header.entry.slices:
            ranges = []
            for extents in header.entry.slices:
                slice_key = _slice_key(key, extents)
                if slice_key not in entries:
                    raise DamagedIndexError(f"a slice of {key!r} is missing")
                entry = BundleEntryProto.FromString(entries[slice_key])
                ranges.append(ByteRange(slice_key, entry, extents.extent[0].start if shape else 0))
            ranges.sort(key=lambda part: part.begin)
        try:
            dtype = tf.as_dtype(header.entry.dtype)
        except TypeError as error:
            raise ValueError(
                f"dtype of {key.decode()!r} must be one that TensorFlow {tf.__version__} knows, "
                f"got number {header.entry.dtype}; use the TensorFlow that wrote the checkpoint"
            ) from error
        tensor = StoredTensor(key.decode(), dtype, shape, header, ranges)
        expected = int(np.prod(shape, dtype=object)) * dtype.size
        if dtype not in _NOT_PLAIN and tensor.nbytes != expected:
            raise DamagedIndexError(f"{key!r} takes {tensor.nbytes} bytes, not {expected}")
        tensors[tensor.name] = tensor
    return tensors


def _slice_key(name: bytes, extents: TensorSliceProto) -> bytes:
    """Returns the key of a slice: the ordered code of 0, name, rank, and each start and length."""
    # The code escapes byte 255, too, which UTF-8 does not have.
    escaped = name.replace(b"\0", b"\0\xff")
    rank = len(extents.extent)
    key = b"\0" + escaped + b"\0\1" + (b"\1" + bytes([rank]) if rank else b"\0")
    for extent in extents.extent:
        is_full = extent.WhichOneof("has_length") is None
        key += _signed(extent.start) + _signed(-1 if is_full else extent.length)
    return key


def _signed(value: int) -> bytes:
    """Returns the ordered code of an int64: a 1 bit for each byte, then the number's bits."""
    magnitude = ~value if value < 0 else value
    size = magnitude.bit_length() // 7 + 1
    code = (value & ((1 << 8 * size) - 1)) ^ (((1 << size) - 1) << (7 * size))
    return code.to_bytes(size, "big")


def _data_loss(path: str, why: object) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, f"{path} is damaged: {why}; use another checkpoint")
