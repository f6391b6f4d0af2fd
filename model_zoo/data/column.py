# SPDX-License-Identifier: Apache-2.0
"""The description of one feature of a data set."""

import dataclasses
import re
from typing import Optional, Sequence

PADDING = -1  # in columns with several keys; no table has a row for it

ROLES = ("user", "item", "context", "history")
KINDS = ("id", "number")

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-]*")  # what TensorFlow takes as the name of an op


@dataclasses.dataclass(frozen=True)
class Column:
    """The description of one feature.

    A model gets, before the lookup: int64 [B] of an id; int64 [B, max_length], padded with PADDING,
    if max_length is above 1; float32 [B] of a number.

    Attributes:
      name: Name of the feature.
      role: What the values describe: the "user", the "item", the "context" of the request, or, in a
        "history", the items that the user chose before, most recent first.
      kind: "id" (int64 keys of a table) or "number" (float32).
      table: The column whose table this column shares, because both have the same keys; of a
        history, the column of the candidate. None: a table of its own.
      max_length: Keys per example.

    Raises:
      ValueError: A value is not one of those, or they do not go together.

    Example:
      >>> Column("history", "history", table="item", max_length=20).is_padded
      True
    """

    name: str
    role: str
    kind: str = "id"
    table: Optional[str] = None
    max_length: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name of a column must be letters, digits, '_', '-' and '.', got {self.name!r}; "
                "rename the column"
            )
        self._check_is_one_of("role", ROLES)
        self._check_is_one_of("kind", KINDS)
        if isinstance(self.max_length, bool) or not isinstance(self.max_length, int):
            raise ValueError(self._error("max_length", "an integer", self.max_length))
        if self.max_length < 1:
            raise ValueError(self._error("max_length", "at least 1", self.max_length))
        if self.kind == "number" and (self.table, self.max_length) != (None, 1):
            found = f"table {self.table!r} and max_length {self.max_length}"
            raise ValueError(self._error("a number", "one value without a table", found))
        if self.role == "history" and (self.kind != "id" or self.table is None):
            found = f"kind {self.kind!r} and table {self.table!r}"
            raise ValueError(self._error("a history", "ids of the table of a column", found))

    @property
    def is_padded(self) -> bool:
        """Whether an example has several keys: int64 [B, max_length]."""
        return self.max_length > 1 or self.role == "history"

    def _check_is_one_of(self, name: str, values: tuple) -> None:
        if getattr(self, name) not in values:
            raise ValueError(self._error(name, f"one of {', '.join(values)}", getattr(self, name)))

    def _error(self, name: str, rule: str, got: object) -> str:
        return f"{name} of column {self.name!r} must be {rule}, got {got!r}"


def id_column(columns: Sequence[Column], role: str, owner: str) -> Column:
    """Returns the first column of single ids with a role; of items, the one that histories are of.

    Args:
      columns: The columns of a data set.
      role: "user" or "item".
      owner: What needs the column, for the error: a model or a data set.

    Raises:
      ValueError: There is none.

    Example:
      >>> id_column([Column("shop", "context"), Column("item", "item")], "item", "dssm").name
      'item'
    """
    tables = {column.table for column in columns if column.role == "history"}
    found = [
        column
        for column in columns
        if column.role == role and column.kind == "id" and not column.is_padded
    ]
    if not found:
        raise ValueError(
            f"{owner} must have an id column of the {role}, got "
            f"{', '.join(column.name for column in columns)}; give a column of single ids the role "
            f"{role}"
        )
    return next((column for column in found if column.name in tables), found[0])
