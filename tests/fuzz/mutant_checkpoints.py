# SPDX-License-Identifier: Apache-2.0
"""Damages the files of checkpoints: bytes under their checksums, and contents with good ones.

A checkpoint is mutated by rewriting its files with the reader and writer of this package, so that
checksums are valid wherever a mutation wants them to be.
"""

import contextlib
import os
import pathlib
import shutil
import struct
from typing import Dict, List, Optional, Tuple

import numpy as np
from fuzz.mutations import INTEGERS, change_array, change_bytes, change_message, choose
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from rec_estimator.checkpoint.format.bundle import Bundle, Index
from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.index_file import (
    build_index,
    identity_of,
    parse_index,
    parse_varint,
)

FOOTER = 48  # Bytes at the end of an index.


def mutate(rng: np.random.Generator, chain: List[str]) -> Tuple[str, bool]:
    """Damages a checkpoint or one that it builds on.

    Args:
      rng: Where the damage comes from.
      chain: The prefixes of the checkpoint and those it builds on, a full one last.

    Returns:
      What was done, and whether checksums cover it: then no restore may give other values.
    """
    name = choose(rng, sorted(_WAYS))
    at = int(rng.integers(len(chain)))
    _WAYS[name](rng, chain[at])
    is_covered = name in ("bytes", "files", "tensors", "tensors too")
    if not is_covered and rng.random() < 0.7:
        link(chain[: at + 1])
    return f"{name} of {os.path.basename(chain[at])}", is_covered


def link(chain: List[str]) -> None:
    """Stores the present identity of each parent in its delta, from the last one up."""
    for child, parent in reversed(list(zip(chain, chain[1:]))):
        with contextlib.suppress(Exception):  # The child may be beyond repair.
            identity = identity_of(pathlib.Path(f"{parent}.index").read_bytes())
            for name in Bundle(child).tensors:
                if name.endswith("-delta_of_index"):
                    put_string(child, name.encode(), identity.encode())


def read_array(index: Index, name: str) -> Optional[np.ndarray]:
    """Returns a tensor of numbers, None if there is none of that name."""
    if name not in index.names:
        return None
    tensor = index.tensor(name)
    data = b"".join(chunk.tobytes() for part in tensor.ranges for chunk in index.read(part))
    return np.frombuffer(data, tensor.dtype.as_numpy_dtype).reshape(tensor.shape)


def put_array(prefix: str, key: bytes, array: np.ndarray) -> None:
    """Replaces a tensor, or adds one, with a good checksum. The bytes go to the end of a file."""
    array = np.ascontiguousarray(array)
    entry = BundleEntryProto(dtype=_DTYPES[array.dtype.str])
    for size in array.shape:
        entry.shape.dim.add().size = size
    data = array.tobytes()
    _append(prefix, key, entry, data, masked(crc32c(np.frombuffer(data, np.uint8))))


def put_string(prefix: str, key: bytes, value: bytes) -> None:
    """Replaces a string of shape [], with good checksums."""
    length = struct.pack("<I", len(value))
    of_length = struct.pack("<I", masked(crc32c(np.frombuffer(length, np.uint8))))
    checksum = masked(crc32c(np.frombuffer(length + of_length + value, np.uint8)))
    varint = (
        bytes([len(value)])
        if len(value) < 128
        else bytes([len(value) & 127 | 128, len(value) >> 7])
    )
    _append(prefix, key, BundleEntryProto(dtype=7), varint + of_length + value, checksum)


def _append(prefix: str, key: bytes, entry: BundleEntryProto, data: bytes, checksum: int) -> None:
    entries = read_index(prefix)
    files = BundleHeaderProto.FromString(entries[b""]).num_shards
    path = f"{prefix}.data-00000-of-{files:05d}"
    entry.shard_id, entry.offset, entry.size = 0, os.path.getsize(path), len(data)
    entry.crc32c = checksum
    with open(path, "ab") as file:
        file.write(data)
    entries[key] = entry.SerializeToString()
    write_index(prefix, entries)


def read_index(prefix: str) -> Dict[bytes, bytes]:
    return dict(parse_index(pathlib.Path(f"{prefix}.index").read_bytes()))


def write_index(prefix: str, entries: Dict[bytes, bytes]) -> None:
    pathlib.Path(f"{prefix}.index").write_bytes(build_index(sorted(entries.items())))


# TensorFlow's numbers of the types; V2 is bfloat16, which NumPy does not know.
_DTYPES = {
    "<f4": 1, "<f8": 2, "<i4": 3, "|u1": 4, "<i2": 5, "|i1": 6, "<i8": 9, "|b1": 10, "<f2": 19,
    "<u2": 17, "<u4": 22, "<u8": 23, "<V2": 14,
}  # fmt: skip


# ------------------------------------------------------------------ ways to damage a checkpoint


def _files_of(prefix: str) -> List[str]:
    folder, base = os.path.split(prefix)
    return sorted(
        os.path.join(folder, name)
        for name in os.listdir(folder)
        if name.startswith((f"{base}.index", f"{base}.data-"))
    )


def _change_file(rng: np.random.Generator, prefix: str) -> None:
    path = choose(rng, _files_of(prefix))
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(change_bytes(rng, data))


def _change_tensor(rng: np.random.Generator, prefix: str) -> None:
    """Flips bits in the bytes of a tensor, whose checksum stays."""
    bundle = Bundle(prefix)
    name = choose(rng, sorted(name for name, tensor in bundle.tensors.items() if tensor.nbytes))
    entry = choose(rng, [part for part in bundle.tensors[name].ranges if part.entry.size]).entry
    path = pathlib.Path(bundle.files[1 + entry.shard_id])
    data = bytearray(path.read_bytes())
    data[entry.offset + int(rng.integers(entry.size))] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(data))


def _exchange_files(rng: np.random.Generator, prefix: str) -> None:
    path, other = choose(rng, _files_of(prefix)), choose(rng, _files_of(prefix))
    if path == other or rng.random() < 0.3:
        os.remove(path)
    else:
        shutil.copyfile(other, path)


def _change_block(rng: np.random.Generator, prefix: str) -> None:
    """Changes bytes of a block of the index, and stores the checksum that it has then."""
    path = pathlib.Path(f"{prefix}.index")
    data = bytearray(path.read_bytes())
    places = []
    offset, position = parse_varint(data, len(data) - FOOTER)
    size, position = parse_varint(data, position)
    places.append((offset, size))
    offset, position = parse_varint(data, position)
    size, position = parse_varint(data, position)
    places.append((offset, size))
    places.append((0, min(offset for offset, _ in places) - 5))  # The entries: one block.
    offset, size = choose(rng, places)
    for _ in range(choose(rng, [1, 1, 2, 8])):
        data[offset + int(rng.integers(size + 1))] ^= 1 << int(rng.integers(8))
    block = np.frombuffer(bytes(data[offset : offset + size + 1]), np.uint8)
    data[offset + size + 1 : offset + size + 5] = struct.pack("<I", masked(crc32c(block)))
    path.write_bytes(bytes(data))


def _change_entry(rng: np.random.Generator, prefix: str) -> None:
    entries = read_index(prefix)
    key = choose(rng, sorted(entries))
    entry = (BundleHeaderProto if key == b"" else BundleEntryProto)()
    with contextlib.suppress(DecodeError):
        entry.ParseFromString(entries[key])
    change_message(rng, entry)
    entries[key] = entry.SerializeToString()
    write_index(prefix, entries)


def _change_entry_bytes(rng: np.random.Generator, prefix: str) -> None:
    entries = read_index(prefix)
    key = choose(rng, sorted(entries))
    entries[key] = change_bytes(rng, entries[key])
    write_index(prefix, entries)


def _move_entries(rng: np.random.Generator, prefix: str) -> None:
    entries = read_index(prefix)
    key, other = choose(rng, sorted(entries)[1:]), choose(rng, sorted(entries)[1:])
    action = choose(rng, ["remove", "rename", "copy", "exchange", "remove many"])
    if action == "exchange":
        entries[key], entries[other] = entries[other], entries[key]
    elif action == "copy":
        entries[other] = entries[key]
    elif action == "remove many":
        suffix = key.rpartition(b"-")[2]
        entries = {k: v for k, v in entries.items() if not k or not k.endswith(suffix)}
    else:
        value = entries.pop(key)
        if action == "rename":
            entries[choose(rng, [key + b"x", key[:-1], key.replace(b"0", b"1"), b"a-keys"])] = value
    write_index(prefix, entries)


def _change_content(rng: np.random.Generator, prefix: str) -> None:
    """Changes the elements, the shape or the type of one to three tensors."""
    for _ in range(choose(rng, [1, 1, 2, 3])):
        bundle = Bundle(prefix)
        names = sorted(n for n, t in bundle.tensors.items() if t.dtype.name in _NUMBERS)
        name = choose(rng, names)
        try:
            array = read_array(bundle, name)
        except Exception:  # An earlier change has damaged it.
            continue
        put_array(prefix, name.encode(), change_array(rng, array))


_FLOATS = {"bfloat16", "float16", "float32", "float64"}
_NUMBERS = {*_FLOATS, "int32", "int64", "uint8", "uint16", "uint32", "bool", "int16"}


def _change_parent(rng: np.random.Generator, prefix: str) -> None:
    """Names another parent, or another identity of it."""
    base = os.path.basename(prefix)
    names = [n for n in Bundle(prefix).tensors if n.endswith(("-delta_of", "-delta_of_index"))]
    values = [
        *(base, "", "model-1", "model-2", "model-3", "nowhere", "..", "../x", "/etc/passwd", "a\0"),
        *("x" * 4000, "x" * 9000, f"{choose(rng, INTEGERS)}-00000000"),
    ]
    value = choose(rng, values)
    same = rng.random() < 0.6  # All shards must name the same.
    for name in names or ["a-delta_of"]:
        if same or rng.random() < 0.5:
            put_string(prefix, name.encode(), value.encode())


_WAYS = {
    "blocks": _change_block,
    "bytes": _change_file,
    "content": _change_content,
    "content too": _change_content,
    "entries": _change_entry,
    "entry bytes": _change_entry_bytes,
    "files": _exchange_files,
    "moved entries": _move_entries,
    "parents": _change_parent,
    "tensors": _change_tensor,
    "tensors too": _change_tensor,
}
