# SPDX-License-Identifier: Apache-2.0
"""How Rec SDK's functions check what they are given: whatever is wrong is a ValueError.

A wrong type included; a bool is no integer there.
"""

from typing import Any

# Rec SDK's greatest number.
MAX_INT32 = 2**31 - 1


def check_int(name: str, value: Any, least: int, most: int = MAX_INT32) -> None:
    """Refuses what is no integer within the bounds; a bool is none.

    Raises:
      ValueError: Says what it must be and what it is.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(
            f"{name} must be an integer in [{least}, {most}], got {value!r}; give a number in "
            "this range"
        )


def check_bool(name: str, value: Any) -> None:
    """Refuses what is no bool.

    Raises:
      ValueError: Says what it must be and what it is.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be a bool, got {value!r}; write True or False")


def check_text(name: str, value: Any, longest: int) -> None:
    """Refuses what is not a string of 1 to `longest` characters.

    Raises:
      ValueError: Says what it must be and what it is.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise ValueError(
            f"{name} must be a string of 1 to {longest} characters, got {value!r}; give another"
        )


def refuse_unsupported(name: str, value: Any, remedy: str) -> None:
    """Refuses what is of Keras: a layer, a model, an optimizer, an initializer, a schedule.

    Args:
      name: Of the argument.
      value: What was given; a method counts as what it is a method of.
      remedy: What to give instead.

    Raises:
      ValueError: It is of Keras.
    """
    owner = getattr(value, "__self__", value)
    kind = owner if isinstance(owner, type) else type(owner)
    # By name: Keras is imported nowhere here, and comes as several packages.
    packages = {package for base in kind.__mro__ for package in str(base.__module__).split(".")}
    if packages & {"keras", "tf_keras"}:
        raise ValueError(
            f"{name} must not be of Keras, which is not supported, got {value!r}; {remedy}"
        )
