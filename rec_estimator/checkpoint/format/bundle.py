# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files of a checkpoint in chunks of bounded size.

RestoreV2 reads an unsliced tensor whole. ``Bundle`` reads any tensor in chunks of 1 MiB.
``NewBundle`` writes tensors sliced or unsliced, so that a copy keeps the form of the original and
has the same readers. The package's docstring describes the format.

``Index`` comes before TensorFlow's ``CheckpointReader``, which ends the process when an entry of an
index cannot be parsed or a shape is negative.
"""

import contextlib
import errno
import os
import stat
from types import TracebackType
from typing import (
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.versions_pb2 import VersionDef

# The messages in an index. TensorFlow promises their format, but not this module path.
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.entries import ByteRange, StoredTensor, is_slice, tensor_of
from rec_estimator.checkpoint.format.index_file import (
    DamagedIndexError,
    build_index,
    parse_index,
    parse_varint,
    varint,
)

# Bytes read at once.
CHUNK = 1 << 20

# Bytes of a tensor, all slices together, whose checksums are compared before a restore. Those of
# larger ones are compared when they are read.
_SMALL = 1 << 16

# Bytes of a string tensor that is read: the name of a checkpoint, or the identity of one.
_MOST_STRING = 4096

PathLike = Union[str, "os.PathLike[str]"]

# Tells of a data file and some entries in it which have their checksums.
Compare = Callable[[str, Sequence[BundleEntryProto]], Sequence[bool]]


class Index:
    """The index of a checkpoint. Parses an entry when it is first read; refuses a damaged one.

    Args:
      prefix: Path without ``.index``, on any of TensorFlow's file systems.

    Raises:
      FileNotFoundError, IsADirectoryError, ValueError: No V2 checkpoint has this prefix.
      tf.errors.DataLossError: The index is damaged.
    """

    def __init__(self, prefix: PathLike) -> None:
        self.prefix = os.fspath(prefix)
        self._path = self.prefix + ".index"
        check_prefix("checkpoint", self.prefix)
        check_regular(self._path)
        self._state = _state_of(self._path)
        with tf.io.gfile.GFile(self._path, "rb") as file:
            data = file.read()
        try:
            self._entries = dict(parse_index(data))
            self.header = BundleHeaderProto.FromString(self._entries.pop(b"", b""))
            self._keys = {key.decode(): key for key in self._entries if not is_slice(key)}
        except (DamagedIndexError, DecodeError, UnicodeDecodeError) as error:
            raise _data_loss(self._path, error) from None
        if self.header.num_shards < 1:
            raise _data_loss(
                self._path, f"the header must have num_shards >= 1, got {self.header.num_shards}"
            )
        if self.header.endianness != BundleHeaderProto.LITTLE:
            raise ValueError(
                f"{self._path} must be little-endian, got big-endian; save it on a little-endian "
                "machine"
            )

    @property
    def names(self) -> Iterable[str]:
        """The names of the tensors."""
        return self._keys.keys()

    def tensor(self, name: str) -> StoredTensor:
        """Returns a tensor of ``names``.

        Raises:
          tf.errors.DataLossError: Its entry, or that of a slice, contradicts itself.
        """
        try:
            return tensor_of(self._entries, self._keys[name], self.header.num_shards)
        except DamagedIndexError as error:
            raise _data_loss(self._path, f"tensor {name!r} must {error}") from None

    def read(self, part: ByteRange) -> Iterator[np.ndarray]:
        """Yields the bytes of a range as uint8 [CHUNK], the last one shorter.

        Raises:
          tf.errors.DataLossError: The file is missing or cut. Or, after the last chunk, the
            checksum does not match.
        """
        path = self._data_file(part.entry.shard_id)
        left, crc = part.entry.size, 0
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(part.entry.offset)
                while left:
                    chunk = np.frombuffer(file.read(min(left, CHUNK)), np.uint8)
                    if not len(chunk):
                        raise _data_loss(path, f"it ends too early for {part.name}")
                    left -= len(chunk)
                    crc = crc32c(chunk, crc) if part.is_plain else crc
                    yield chunk
        except tf.errors.NotFoundError:
            raise self._missing(path, "it is missing") from None
        except tf.errors.OutOfRangeError:  # It begins behind the end.
            raise _data_loss(path, f"it ends too early for {part.name}") from None
        if part.is_plain and masked(crc) != part.entry.crc32c:
            raise _data_loss(path, f"the checksum of {part.name} does not match")

    def read_string(self, name: str) -> str:
        """Returns the value of a string tensor of shape [] and at most 4 KiB.

        Raises:
          tf.errors.DataLossError: The tensor is another one, the file is missing or cut, or its
            checksum does not match.
        """
        tensor = self.tensor(name)
        part = tensor.header
        path = self._data_file(part.entry.shard_id)
        if not _is_short_string(tensor):
            raise _data_loss(
                self._path,
                f"tensor {name!r} must be a string of shape [] and at most {_MOST_STRING} bytes, "
                f"got {tensor.dtype.name} of shape {list(tensor.shape)} in {tensor.nbytes} bytes",
            )
        data = b"".join(chunk.tobytes() for chunk in self.read(part))
        value = _string_of(data, part.entry.crc32c)
        if value is None:
            raise _data_loss(path, f"the checksum of tensor {name!r} does not match")
        return value.decode("utf-8", "backslashreplace")

    def read_integer(self, name: str) -> Optional[int]:
        """Returns the value of an integer of shape [], None if there is none of that name.

        Raises:
          tf.errors.DataLossError: The file is missing or cut, or its checksum does not match.
        """
        if name not in self._keys:
            return None
        tensor = self.tensor(name)
        if tensor.shape != () or not tensor.dtype.is_integer:
            return None
        data = b"".join(chunk.tobytes() for part in tensor.ranges for chunk in self.read(part))
        return int(np.frombuffer(data, tensor.dtype.as_numpy_dtype)[0])

    def _size_of(self, path: str, name: str) -> int:
        check_regular(path)
        try:
            return tf.io.gfile.stat(path).length
        except tf.errors.NotFoundError:
            raise self._missing(path, f"it is missing and must hold tensor {name!r}") from None

    def _missing(self, path: str, why: str) -> tf.errors.OpError:
        """The error for a data file that is not there."""
        if _state_of(self._path) == self._state:
            return _data_loss(path, why)
        message = (
            f"checkpoint {self.prefix} was replaced or deleted while it was read; read it again"
        )
        return tf.errors.NotFoundError(None, None, message)

    def _data_file(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self.header.num_shards:05d}"


class Bundle(Index):
    """A checkpoint opened for reading, with all its tensors.

    Args:
      prefix: Path without ``.index``.

    Raises:
      FileNotFoundError, IsADirectoryError, ValueError: No V2 checkpoint has this prefix.
      tf.errors.DataLossError: The index is damaged.
    """

    def __init__(self, prefix: PathLike) -> None:
        super().__init__(prefix)
        self.tensors = {name: self.tensor(name) for name in self.names}

    @property
    def files(self) -> List[str]:
        """Paths of the index and of the data files that hold tensors."""
        shards = {p.entry.shard_id for t in self.tensors.values() for p in t.ranges}
        return [self._path, *map(self._data_file, sorted(shards))]

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))

    def check_lengths(self) -> None:
        """Checks that the data files hold all tensors, without reading them.

        Raises:
          tf.errors.DataLossError: A data file is missing or cut. The message names it and a tensor.
        """
        sizes: Dict[int, int] = {}
        for tensor in self.tensors.values():
            for part in tensor.ranges:
                entry = part.entry
                file, end = entry.shard_id, entry.offset + entry.size
                if file not in sizes:
                    sizes[file] = self._size_of(self._data_file(file), tensor.name)
                if end > sizes[file]:
                    raise _data_loss(
                        self._data_file(file),
                        f"tensor {tensor.name!r} must be in bytes [{entry.offset}, {end}), got a "
                        f"file of {sizes[file]} bytes",
                    )

    def check_files(self, compare: Optional[Compare] = None) -> None:
        """Checks that the data files hold all tensors, and the checksums of the small ones.

        Args:
          compare: Compares the checksums of large tensors, too. None: they are compared when they
            are read.

        Raises:
          tf.errors.DataLossError: A data file is missing, cut or changed. The message names it and
            a tensor.
        """
        self.check_lengths()
        large: Dict[int, List[ByteRange]] = {}
        for tensor in self.tensors.values():
            if _is_short_string(tensor):
                self.read_string(tensor.name)
            if not tensor.header.is_plain:
                continue
            if tensor.nbytes <= _SMALL:
                for part in tensor.ranges:
                    for _ in self.read(part):
                        pass
            elif compare is not None:
                for part in tensor.ranges:
                    large.setdefault(part.entry.shard_id, []).append(part)
        if compare is not None:
            for file, parts in large.items():
                _compare(self._data_file(file), parts, compare)

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

    def copy(self, source: Bundle, names: Iterable[str]) -> None:
        """Appends tensors of another checkpoint bit for bit, with their slices."""
        ranges: List[ByteRange] = []
        for name in names:
            tensor = source.tensors[name]
            ranges += tensor.ranges
            if tensor.header.entry.slices:
                self.add_header(tensor.header)
        # In the order of the disk.
        for part in sorted(ranges, key=lambda part: (part.entry.shard_id, part.entry.offset)):
            self.add(part.key, part.entry, source.read(part))

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Appends a tensor from memory."""
        data = np.frombuffer(array.tobytes(), np.uint8)
        self.add_stream(name, tf.as_dtype(array.dtype), array.shape, [data])

    def add_string(self, name: str, value: str) -> None:
        """Appends a string of shape [], of fewer than 2^32 bytes."""
        data = value.encode()
        length = len(data).to_bytes(4, "little")
        # The file has the length as a varint; the checksum is that of 32 bits.
        checksum = masked(crc32c(np.frombuffer(length, np.uint8))).to_bytes(4, "little")
        summed = np.frombuffer(length + checksum + data, np.uint8)
        entry = BundleEntryProto(
            dtype=tf.string.as_datatype_enum,
            shape=tf.TensorShape([]).as_proto(),
            crc32c=masked(crc32c(summed)),
        )
        stored = varint(len(data)) + checksum + data
        self.add(name.encode(), entry, [np.frombuffer(stored, np.uint8)])

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


def _is_short_string(tensor: StoredTensor) -> bool:
    """Whether it is one string of at most 4 KiB, for example one that says what a delta changes."""
    is_one = tensor.dtype == tf.string and tensor.shape == () and tensor.ranges == [tensor.header]
    return is_one and 5 <= tensor.nbytes <= _MOST_STRING


def _string_of(data: bytes, checksum: int) -> Optional[bytes]:
    """Returns the string in the bytes of a string tensor of shape [], None if they are damaged.

    The bytes are: length (varint), masked CRC-32C of the length as uint32 (4 bytes), the string.
    The checksum of the tensor covers the length as uint32, those 4 bytes and the string. Source:
    WriteStringTensor in TensorFlow's tensor_bundle.cc.
    """
    try:
        length, position = parse_varint(data, 0)
    except DamagedIndexError:
        return None
    if len(data) != position + 4 + length:
        return None
    number = np.array([length], "<u4").tobytes()
    of_length, of_all = (
        masked(crc32c(np.frombuffer(part, np.uint8))) for part in (number, number + data[position:])
    )
    stored = int(np.frombuffer(data, "<u4", 1, position)[0])
    return data[position + 4 :] if (stored, checksum) == (of_length, of_all) else None


def _compare(path: str, parts: List[ByteRange], compare: Compare) -> None:
    """Raises DataLossError if a checksum of ``parts``, which are in the file, does not match."""
    parts.sort(key=lambda part: part.entry.offset)  # A disk is fastest in sequence.
    matches = compare(path, [part.entry for part in parts])
    damaged = next((part for part, match in zip(parts, matches) if not match), None)
    if damaged is not None:
        raise _data_loss(path, f"the checksum of {damaged.name} does not match")


def check_regular(path: str) -> None:
    """Raises DataLossError unless a file is a regular one; to open a FIFO, say, may wait for ever.

    A file that does not exist passes, as do those of TensorFlow's other file systems.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        raise _data_loss(path, "it must be a regular file")


def _state_of(path: str) -> Optional[Tuple[int, int]]:
    """(bytes, time of change) of a file; None if there is none."""
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.OpError:
        return None
    return found.length, found.mtime_nsec


def _data_loss(path: str, why: object) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, f"{path} is damaged: {why}; use another checkpoint")
