# SPDX-License-Identifier: Apache-2.0
"""Argument checks. Every bad argument is a ValueError, also one of a wrong type."""

# The greatest integer that check_int accepts by default.
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def check_int(name: str, value: object, least: int, most: int = MAX_INT32) -> None:
    """Checks that a value is an integer within the bounds. A bool is not an integer.

    Raises:
      ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(
            f"{name} must be an integer in [{least}, {most}], got {value!r}; give a number in "
            "this range"
        )


def check_bool(name: str, value: object) -> None:
    """Checks that a value is a bool.

    Raises:
      ValueError: It is not.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be a bool, got {value!r}; write True or False")


def check_text(name: str, value: object, longest: int) -> None:
    """Checks that a value is a string of 1 to `longest` characters.

    Raises:
      ValueError: It is not.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise ValueError(
            f"{name} must be a string of 1 to {longest} characters, got {value!r}; give a string"
        )


def refuse_keras(name: str, value: object, remedy: str) -> None:
    """Checks that a value is not a Keras layer, model, optimizer, initializer or schedule.

    Args:
      name: Name of the argument.
      value: The argument. For a method its object is checked.
      remedy: What the user should pass instead, for the message.

    Raises:
      ValueError: It is one.
    """
    owner = getattr(value, "__self__", value)
    kind = owner if isinstance(owner, type) else type(owner)
    # By name, because this package does not import Keras, and Keras comes as several packages.
    packages = {package for base in kind.__mro__ for package in str(base.__module__).split(".")}
    if packages & {"keras", "tf_keras"}:
        raise ValueError(
            f"{name} must not be a Keras object, got {value!r}; Keras is not supported, {remedy}"
        )
