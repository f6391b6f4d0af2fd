# SPDX-License-Identifier: Apache-2.0
"""Changes bytes, messages and arrays at random, in ways that have broken readers."""

from collections.abc import MutableSequence
from typing import Any, Callable, Iterator, List, Sequence, Tuple, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_T = TypeVar("_T")

INTEGERS = [0, 1, -1, 2, 3, 7, 1000, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan]

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
    FieldDescriptor.CPPTYPE_ENUM: (32, True),
}


def choose(rng: np.random.Generator, pool: Sequence[_T]) -> _T:
    """Returns one of a sequence."""
    return pool[int(rng.integers(len(pool)))]


def change_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Flips, cuts, overwrites, inserts or repeats bytes, in one place or a few."""
    return choose(rng, [_flip, _flip, _flip, _cut, _overwrite, _insert, _repeat])(rng, data)


def _flip(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(choose(rng, [1, 1, 1, 2, 8]) if data else 0):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _cut(rng: np.random.Generator, data: bytes) -> bytes:
    at = choose(rng, [0, max(0, len(data) - 1), int(rng.integers(len(data) + 1))])
    return data[:at]


def _overwrite(rng: np.random.Generator, data: bytes) -> bytes:
    begin = int(rng.integers(len(data) + 1))
    size = min(int(rng.integers(1, 200)), len(data) - begin)
    new = choose(rng, [bytes(size), b"\xff" * size, rng.bytes(size)])
    return data[:begin] + new + data[begin + size :]


def _insert(rng: np.random.Generator, data: bytes) -> bytes:
    at = choose(rng, [len(data), int(rng.integers(len(data) + 1))])
    return data[:at] + rng.bytes(int(rng.integers(1, 50))) + data[at:]


def _repeat(rng: np.random.Generator, data: bytes) -> bytes:
    begin = int(rng.integers(len(data) + 1))
    end = int(rng.integers(begin, len(data) + 1))
    return data[:end] + data[begin:]


def change_message(rng: np.random.Generator, message: Message) -> None:
    """Changes one field somewhere in a message: removes, repeats or sets it."""
    choose(rng, list(_changes(rng, message)))()


def _changes(rng: np.random.Generator, message: Message) -> Iterator[Callable[[], None]]:
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            yield from _map_changes(rng, value)
        elif isinstance(value, MutableSequence):  # Protobuf 7 has no FieldDescriptor.label.
            yield from _list_changes(rng, field, value)
        elif field.message_type is not None:
            if message.HasField(field.name):
                yield lambda name=field.name: message.ClearField(name)
                yield from _changes(rng, value)
            else:
                yield value.SetInParent
        else:
            yield lambda field=field: setattr(message, field.name, _scalar(rng, field))


def _map_changes(rng: np.random.Generator, entries: Any) -> Iterator[Callable[[], None]]:
    names = sorted(entries)
    for name in names:
        yield lambda name=name: entries.pop(name)
        yield lambda name=name: entries["other"].CopyFrom(entries[name])
        yield lambda name=name: entries[name].CopyFrom(entries[choose(rng, names)])
        yield from _changes(rng, entries[name])


def _list_changes(
    rng: np.random.Generator, field: FieldDescriptor, items: Any
) -> Iterator[Callable[[], None]]:
    def multiply() -> None:
        copies = list(items) * choose(rng, [2, 3, 300])
        del items[:]
        items.extend(copies)

    def remove_one() -> None:
        del items[int(rng.integers(len(items)))]

    def remove_all() -> None:
        del items[:]

    def set_one() -> None:
        items[int(rng.integers(len(items)))] = _scalar(rng, field)

    if field.message_type is None:
        yield lambda: items.append(_scalar(rng, field))
    else:
        yield lambda: items.add() and None
    if len(items):
        yield from (multiply, remove_one, remove_all)
        if field.message_type is None:
            yield set_one
        else:
            yield from _changes(rng, items[int(rng.integers(len(items)))])


def _scalar(rng: np.random.Generator, field: FieldDescriptor) -> Any:
    if field.cpp_type in _BITS:
        bits, is_signed = _BITS[field.cpp_type]
        value = choose(rng, INTEGERS) % 2**bits
        return value - 2**bits if is_signed and value >= 2 ** (bits - 1) else value
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return choose(rng, FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(rng.integers(2))
    text = choose(rng, ["", "a", "x" * 3000, "é", "a/b", "../a", "a\0b"])
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def change_array(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Changes elements, rows, the shape or the type of an array of numbers."""
    return choose(rng, [_elements, _elements, _elements, _rows, _rows, _shape, _dtype])(rng, array)


def _elements(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if not changed.size:
        return changed
    flat = changed.reshape(-1)
    places = rng.integers(flat.size, size=choose(rng, [1, 1, 3, flat.size]))
    if tf.as_dtype(changed.dtype).is_floating:
        with np.errstate(over="ignore"):
            flat[places] = choose(rng, FLOATS)
    else:
        pool: List[int] = [*INTEGERS, int(choose(rng, flat)), int(choose(rng, flat)) + 1]
        flat[places] = np.array([choose(rng, pool) % 2**64], np.uint64).astype(changed.dtype)[0]
    return changed


def _rows(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    if not array.ndim or not array.size:
        return array
    i = int(rng.integers(len(array)))
    changes: List[Tuple[str, np.ndarray]] = [
        ("one less", np.delete(array, i, axis=0)),
        ("one twice", np.insert(array, i, array[i], axis=0)),
        ("none", array[:0]),
        ("another order", array[rng.permutation(len(array))]),
        ("all twice", np.concatenate([array, array])),
    ]
    return choose(rng, changes)[1]


def _shape(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    changes = [
        array.reshape(-1),
        array.reshape(*array.shape, 1),
        array[None],
        array.reshape(-1)[:1],
    ]
    return choose(rng, [*changes, array.T])


def _dtype(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    dtypes = ["<i4", "<i8", "<f4", "<f8", "u1", "?", "<i2", "<f2", tf.bfloat16.as_numpy_dtype]
    with np.errstate(all="ignore"):
        return array.astype(choose(rng, dtypes))
