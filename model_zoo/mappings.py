# SPDX-License-Identifier: Apache-2.0
"""Turns nested mappings, as YAML files have them, into frozen dataclasses.

Unknown names are refused with the nearest known one; every error begins with the path of the value,
such as `train.batch_size`.
"""

import dataclasses
import typing
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar, Union

from model_zoo.names import check_names

_Value = TypeVar("_Value")

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def parse(kind: Type[_Value], value: Any, path: str = "") -> _Value:
    """Converts a value to a type.

    Args:
      kind: A dataclass, int, float, bool, str, or Optional, Tuple[X, ...] or Mapping[str, X] of
        them.
      value: As YAML or JSON gives it.
      path: The path of the value, for errors.

    Raises:
      ValueError: The value does not fit, or a name in it is not known.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Train:
      ...     epochs: int = 4
      >>> parse(Train, {"epochs": 2})
      Train(epochs=2)
    """
    found: Any
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        found = value
    elif origin is Union:  # Optional.
        found = None if value is None else parse(arguments[0], value, path)
    elif origin is tuple:
        values = value if isinstance(value, (list, tuple)) else [value]
        found = tuple(parse(arguments[0], each, f"{path}[{i}]") for i, each in enumerate(values))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        found = {
            str(name): parse(arguments[1], each, _join(path, str(name)))
            for name, each in _as_mapping(value, path).items()
        }
    else:
        found = _parse_scalar(kind, value, path)
    return typing.cast(_Value, found)


def _parse_dataclass(kind: Any, value: Any, path: str) -> Any:
    given = _as_mapping({} if value is None else value, path)
    types = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    check_names(f"names in {path}" if path else "sections", given, names)
    fields = {name: parse(types[name], each, _join(path, name)) for name, each in given.items()}
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(_join(path, str(error))) from None


def _parse_scalar(kind: Any, value: Any, path: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if kind is int and is_number and int(value) == value:
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise ValueError(f"{path} must be {_WORDS[kind]}, got {value!r}")


def _as_mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{path or 'the file'} must be a mapping of names to values, got {value!r}"
        )
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def set_value(mapping: Dict[str, Any], path: str, value: Any) -> None:
    """Sets a value inside nested mappings; those on the way to it are made if they are missing.

    Args:
      mapping: Is changed.
      path: Names, separated by points.
      value: The new value.

    Example:
      >>> settings = {"train": {"epochs": 4}}
      >>> set_value(settings, "train.batch_size", 512)
      >>> settings
      {'train': {'epochs': 4, 'batch_size': 512}}
    """
    *parents, name = path.split(".")
    for parent in parents:
        inner = mapping.get(parent)
        mapping[parent] = dict(inner) if isinstance(inner, Mapping) else {}
        mapping = mapping[parent]
    mapping[name] = value


def differences(first: Any, second: Any, path: str = "") -> List[str]:
    """Returns the paths at which two nested mappings differ.

    Example:
      >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}})
      ['a.b']
    """
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        first, second = first or {}, second or {}  # Nothing is as a mapping without names.
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return [] if first == second else [path]
    names = [*first, *(name for name in second if name not in first)]
    return [
        each
        for name in names
        for each in differences(first.get(name), second.get(name), _join(path, name))
    ]


def value_at(mapping: Mapping[str, Any], path: str) -> Optional[Any]:
    """Returns the value at a path in nested mappings; None if there is none."""
    value: Any = mapping
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
