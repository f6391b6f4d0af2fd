# SPDX-License-Identifier: Apache-2.0
"""Takes the values of a YAML file one by one; errors name the file and the key."""

import pathlib
from typing import Any, Iterable, Iterator, Mapping, Optional, Tuple, Union

from model_zoo import yaml_files
from model_zoo.names import check_names


def read_settings(path: Union[str, pathlib.Path]) -> "Settings":
    """Reads a YAML file that holds a mapping.

    Raises:
      ModuleNotFoundError: PyYAML is not installed.
      ValueError: The file cannot be read, is not YAML or holds no mapping.
    """
    try:
        found = yaml_files.read(pathlib.Path(path))
    except OSError as error:
        raise ValueError(f"{path} must be a readable file, got {error.strerror}") from None
    return Settings(str(path), "", found)


class Settings:
    """A mapping of a file, whose values are taken one by one.

    Args:
      path: The file, for errors.
      key: The key of the mapping in the file; "" for the whole file.
      values: The mapping.

    Raises:
      ValueError: values is not a mapping of strings.

    Example:
      >>> split = Settings("shop.yaml", "split", {"by": "time", "test": 0.1})
      >>> split.text("by"), split.number("test", 0.0)
      ('time', 0.1)
    """

    def __init__(self, path: str, key: str, values: Any) -> None:
        self.path, self.key = path, key
        if not isinstance(values, Mapping):
            raise self.error("", "a mapping of names to values", values)
        for name in values:
            if not isinstance(name, str):
                raise self.error("", "a mapping whose names are text", name, "put it in quotes")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def error(self, name: str, rule: str, got: Any, remedy: str = "") -> ValueError:
        """Returns the error about a value; name "" is the mapping itself."""
        key = ".".join(part for part in (self.key, name) if part) or "the file"
        return ValueError(
            f"{self.path}: {key} must be {rule}, got {got!r}" + (f"; {remedy}" if remedy else "")
        )

    def only(self, *known: str) -> None:
        """Raises a ValueError if there is an unknown name; the message has the nearest one."""
        check_names(f"{self.path}: names in {self.key or 'the file'}", self._values, known)

    def value(self, name: str, default: Any = None) -> Any:
        """Returns a value of any type."""
        return self._values.get(name, default)

    def text(self, name: str, default: Optional[str] = None) -> Any:
        """Returns a text. default None: None."""
        return self._typed(name, str, "text", default)

    def flag(self, name: str, default: bool) -> Any:
        """Returns True or False."""
        return self._typed(name, bool, "true or false", default)

    def count(self, name: str, default: int, least: int = 1) -> int:
        """Returns an integer from `least` on."""
        value = self._typed(name, int, "an integer", default)
        if isinstance(value, bool) or value < least:
            raise self.error(name, f"an integer from {least} on", value)
        return value

    def number(self, name: str, default: Optional[float] = None) -> Any:
        """Returns a number. default None: None."""
        value = self._typed(name, (int, float), "a number", default)
        if isinstance(value, bool):
            raise self.error(name, "a number", value)
        return value

    def one_of(self, name: str, choices: Iterable[str], default: Optional[str] = None) -> Any:
        """Returns one of some texts. default None: the name must be there."""
        value = self._values.get(name, default)
        key = f"{self.key}.{name}" if self.key else name
        check_names(f"{self.path}: {key}", [value], choices)
        return value

    def texts(self, name: str, default: Tuple[str, ...] = ()) -> Tuple[str, ...]:
        """Returns texts, given as one or as a list."""
        value = self._values.get(name, default)
        found = (value,) if isinstance(value, str) else value
        if not isinstance(found, (list, tuple)) or not all(isinstance(v, str) for v in found):
            raise self.error(name, "text or a list of texts", value)
        return tuple(found)

    def part(self, name: str) -> "Settings":
        """Returns a mapping inside of this one."""
        key = f"{self.key}.{name}" if self.key else name
        return Settings(self.path, key, self._values.get(name))

    def _typed(self, name: str, types: Any, rule: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if name in self._values and not isinstance(value, types):
            raise self.error(name, rule, value)
        return value
