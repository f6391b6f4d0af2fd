# SPDX-License-Identifier: Apache-2.0
"""The files of a TensorFlow V2 checkpoint, read and written piece by piece.

``<prefix>.index`` says where each tensor is in ``<prefix>.data-<i>-of-<n>``: in one piece, or in
slices, each with its own entry. Memory is bounded however large a tensor is, which RestoreV2 does
not offer for a tensor in one piece; and a copy keeps the form in which each tensor is stored, so
that whoever could read the original can read the copy.
"""

import contextlib
import os
import pathlib
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

# What an index holds. The messages are part of TensorFlow's promise about checkpoints; only where
# their Python classes are is not.
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.index_file import DamagedIndexError, build_index, parse_index

# What is read at once, in bytes.
CHUNK = 1 << 20

# TensorFlow sums the decoded lengths of these, not the bytes in the file.
_NOT_PLAIN = (tf.string, tf.variant, tf.resource)

PathLike = Union[str, "os.PathLike[str]"]


class Piece(NamedTuple):
    """A run of bytes in a data file."""

    key: bytes  # In the index.
    entry: Any  # BundleEntryProto.
    begin: int  # First row, counted in the tensor's first dimension.


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint."""

    name: str
    dtype: tf.DType
    shape: Tuple[int, ...]
    header: Piece  # Its entry under its own name.
    pieces: List[Piece]  # By first row; only the header if it is stored in one piece.

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the data files."""
        return sum(piece.entry.size for piece in self.pieces)


class Bundle:
    """A checkpoint opened for reading.

    Args:
      prefix: Its path without ``.index``.

    Raises:
      FileNotFoundError, IsADirectoryError, ValueError: There is no V2 checkpoint of that prefix.
      tf.errors.DataLossError: Its index is damaged.
    """

    def __init__(self, prefix: PathLike) -> None:
        self.prefix = os.fspath(prefix)
        path = self.prefix + ".index"
        _check_prefix(self.prefix)
        try:
            entries = dict(parse_index(pathlib.Path(path).read_bytes()))
            self.header = BundleHeaderProto.FromString(entries.pop(b"", b""))
            self.tensors = _tensors(entries)
        except (DamagedIndexError, DecodeError) as error:
            raise _data_loss(path, error) from None
        if self.header.endianness != BundleHeaderProto.LITTLE:
            raise ValueError(f"{path} must be of a little-endian machine, got a big-endian one's")

    @property
    def files(self) -> List[str]:
        """Paths of its files."""
        return [self.prefix + ".index", *map(self._data_file, range(self.header.num_shards))]

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))

    def read(self, piece: Piece) -> Iterator[np.ndarray]:
        """Bytes of a piece, uint8 [CHUNK] and a shorter rest at the end.

        Raises:
          tf.errors.DataLossError: The file is missing or cut, or, raised after the last chunk, the
            bytes are not those that were written.
        """
        path = self._data_file(piece.entry.shard_id)
        left, crc = piece.entry.size, 0
        is_plain = tf.as_dtype(piece.entry.dtype) not in _NOT_PLAIN
        try:
            with open(path, "rb") as file:
                file.seek(piece.entry.offset)
                while left:
                    chunk = np.fromfile(file, np.uint8, min(left, CHUNK))
                    if not len(chunk):
                        raise _data_loss(path, "it ends too early")
                    left -= len(chunk)
                    crc = crc32c(chunk, crc) if is_plain else crc
                    yield chunk
        except FileNotFoundError:
            raise _data_loss(path, "it is missing") from None
        if is_plain and masked(crc) != piece.entry.crc32c:
            name = piece.key.decode("utf-8", "backslashreplace")
            raise _data_loss(path, f"the checksum of {name!r} does not match")

    def read_rows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """A tensor of rank 1 as arrays of ``rows`` elements and a shorter one at the end."""
        tensor = self.tensors[name]
        width = rows * tensor.dtype.size
        dtype = tensor.dtype.as_numpy_dtype
        pending = bytearray()
        for piece in tensor.pieces:
            for chunk in self.read(piece):
                pending += chunk.data
                while len(pending) >= width:
                    yield np.frombuffer(bytes(pending[:width]), dtype)
                    del pending[:width]
        if pending:
            yield np.frombuffer(bytes(pending), dtype)

    def read_string(self, name: str) -> str:
        """A tensor of one string.

        Raises:
          tf.errors.DataLossError: The file is missing or cut, or its checksum does not match.
        """
        try:
            value = tf.train.NewCheckpointReader(self.prefix).get_tensor(name)
        # TensorFlow's reader has no class of its own for errors of the data files.
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
            path = self._data_file(self.tensors[name].header.entry.shard_id)
            raise _data_loss(path, error) from None
        return value.decode("utf-8", "backslashreplace")

    def _data_file(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self.header.num_shards:05d}"


class NewBundle:
    """A checkpoint being written: there whole, or not at all.

    Used in a ``with`` statement. Data and index are written under names that end in ``.unfinished``
    and renamed at its end, the index last; an exception removes them.

    Args:
      prefix: Path without ``.index``, in a folder that exists.
      version: VersionDef of the checkpoint.

    Raises:
      FileExistsError: Another run is writing it, or was killed.
    """

    def __init__(self, prefix: PathLike, version: Any) -> None:
        prefix = os.fspath(prefix)
        self._names = [f"{prefix}.data-00000-of-00001", f"{prefix}.index"]
        self._header = BundleHeaderProto(num_shards=1, version=version)
        self._entries: Dict[bytes, bytes] = {}
        self._offset = 0

    def __enter__(self) -> "NewBundle":
        self._files = []
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

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                self._publish()
        finally:
            self._remove()

    def add(self, key: bytes, entry: Any, chunks: Iterable[np.ndarray]) -> None:
        """Appends bytes under the dtype, shape, slices and checksum of ``entry``."""
        begin = self._offset
        for chunk in chunks:
            self._files[0].write(chunk.data)
            self._offset += len(chunk)
        placed = BundleEntryProto()
        placed.CopyFrom(entry)
        placed.shard_id, placed.offset, placed.size = 0, begin, self._offset - begin
        self._entries[key] = placed.SerializeToString()

    def add_header(self, header: Piece) -> None:
        """Takes over the entry of a tensor in slices, which are added by themselves."""
        self._entries[header.key] = header.entry.SerializeToString()

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor that is in memory."""
        data = np.frombuffer(array.tobytes(), np.uint8)
        self.add_stream(name, tf.as_dtype(array.dtype), array.shape, [data])

    def add_stream(
        self, name: str, dtype: tf.DType, shape: Sequence[int], chunks: Iterable[np.ndarray]
    ) -> None:
        """Writes a tensor of numbers from its bytes, arrays of uint8 one behind the other."""
        entry = BundleEntryProto(
            dtype=dtype.as_datatype_enum, shape=tf.TensorShape(shape).as_proto()
        )

        def summed() -> Iterator[np.ndarray]:
            crc = 0
            for chunk in chunks:
                crc = crc32c(chunk, crc)
                yield chunk
            entry.crc32c = masked(crc)  # Read when all chunks are written.

        self.add(name.encode(), entry, summed())

    def _publish(self) -> None:
        header = [(b"", self._header.SerializeToString())]
        self._files[1].write(build_index(header + sorted(self._entries.items())))
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        for file, name in zip(self._files, self._names):
            os.replace(file.name, name)
        _sync_folder(os.path.dirname(os.path.abspath(self._names[0])))

    def _remove(self) -> None:
        """Removes what was not renamed."""
        for file in self._files:
            file.close()
            with contextlib.suppress(FileNotFoundError):
                os.remove(file.name)


def format_bytes(count: int) -> str:
    """A number of bytes as people write it.

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


def _check_prefix(prefix: str) -> None:
    if os.path.isfile(prefix + ".index"):
        return
    name = f"checkpoint must be a prefix, as model.ckpt-100 of model.ckpt-100.index, got {prefix!r}"
    if os.path.isdir(prefix):
        latest = tf.train.latest_checkpoint(prefix)
        remedy = f"pass {latest}" if latest else "no file 'checkpoint' in it names one"
        raise IsADirectoryError(f"{name}, a folder; {remedy}")
    stem = prefix.rpartition(".")[0]
    if os.path.isfile(stem + ".index"):
        raise ValueError(f"{name}, one of its files; pass {stem}")
    if os.path.isfile(prefix):
        raise ValueError(f"{name}, a file; checkpoints of TensorFlow's V1 format cannot be read")
    raise FileNotFoundError(f"{name}; {prefix}.index does not exist")


def _tensors(entries: Dict[bytes, bytes]) -> Dict[str, StoredTensor]:
    """Tensors by name, from the entries of an index."""
    tensors = {}
    for key, value in entries.items():
        if key.startswith(b"\0"):  # A slice: reached through its tensor.
            continue
        header = Piece(key, BundleEntryProto.FromString(value), 0)
        shape = tuple(dim.size for dim in header.entry.shape.dim)
        pieces = [header]
        if header.entry.slices:
            pieces = []
            for piece in header.entry.slices:
                slice_key = _slice_key(key, piece)
                if slice_key not in entries:
                    raise DamagedIndexError(f"a slice of {key!r} is missing")
                entry = BundleEntryProto.FromString(entries[slice_key])
                pieces.append(Piece(slice_key, entry, piece.extent[0].start if shape else 0))
            pieces.sort(key=lambda piece: piece.begin)
        try:
            dtype = tf.as_dtype(header.entry.dtype)
        except TypeError as error:
            raise ValueError(
                f"dtype of {key.decode()!r} must be one that TensorFlow {tf.__version__} knows, "
                f"got number {header.entry.dtype}; use the TensorFlow that wrote the checkpoint"
            ) from error
        tensor = StoredTensor(key.decode(), dtype, shape, header, pieces)
        expected = int(np.prod(shape, dtype=object)) * dtype.size
        if dtype not in _NOT_PLAIN and tensor.nbytes != expected:
            raise DamagedIndexError(f"{key!r} takes {tensor.nbytes} bytes, not {expected}")
        tensors[tensor.name] = tensor
    return tensors


def _slice_key(name: bytes, piece: Any) -> bytes:
    """Key of a slice: TensorFlow's ordered code of 0, name, rank, and start and length per dim."""
    escaped = name.replace(b"\0", b"\0\xff")  # UTF-8 has no byte 255, the other to escape.
    rank = len(piece.extent)
    key = b"\0" + escaped + b"\0\1" + (b"\1" + bytes([rank]) if rank else b"\0")
    for extent in piece.extent:
        is_full = extent.WhichOneof("has_length") is None
        key += _signed(extent.start) + _signed(-1 if is_full else extent.length)
    return key


def _signed(value: int) -> bytes:
    """Ordered code of an int64: as many ones as it has bytes, then its bits."""
    magnitude = ~value if value < 0 else value
    size = magnitude.bit_length() // 7 + 1
    code = (value & ((1 << 8 * size) - 1)) ^ (((1 << size) - 1) << (7 * size))
    return code.to_bytes(size, "big")


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _data_loss(path: str, why: Any) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, f"{path} is damaged: {why}; use another checkpoint")
