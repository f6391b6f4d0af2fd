# SPDX-License-Identifier: Apache-2.0
"""Reads YAML: configurations and schemas of data."""

import functools
import pathlib
import re
from typing import Any

# YAML 1.1 takes 1e-3 for a text, because it has no point.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")


def parse(text: str) -> Any:
    """Returns what YAML describes: mappings, lists, texts, numbers, booleans and None.

    Raises:
      ValueError: The text is not YAML, or a name is given twice; the message has the line.
      ModuleNotFoundError: PyYAML is not installed.

    Example:
      >>> parse("{learning_rate: 1e-3, hidden_units: [64, 32]}")
      {'learning_rate': 0.001, 'hidden_units': [64, 32]}
    """
    yaml, loader = _loader()
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def read(path: pathlib.Path) -> Any:
    """Returns what a YAML file describes.

    Raises:
      ValueError: The file is not YAML; the message has the file and the line.
      OSError: The file cannot be read.
      ModuleNotFoundError: PyYAML is not installed.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be YAML, got: {error}") from None


@functools.cache
def _loader() -> Any:
    """PyYAML, and its safe loader, which makes no objects, with more numbers."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "PyYAML, which reads YAML, is not installed; run: pip install 'rec_estimator[zoo]'"
        ) from None

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = set()
            for key, _ in node.value:  # PyYAML itself keeps the last value of a name.
                if (key.tag, key.value) in names:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                if isinstance(key, yaml.ScalarNode):
                    names.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return yaml, Loader
