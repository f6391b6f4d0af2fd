# SPDX-License-Identifier: Apache-2.0
"""Refuses unknown names of settings, with the nearest known one."""

import difflib
from typing import Iterable


def check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuses names that are not known.

    Args:
      what: What the names are, for the error.
      names: The names that were given.
      known: The names that exist.

    Raises:
      ValueError: A name is unknown.

    Example:
      >>> check_names("params of dcnv2", ["dim"], ["dim", "dropout"])
      >>> check_names("params of dcnv2", ["dropuot"], ["dim", "dropout"])
      Traceback (most recent call last):
      ValueError: params of dcnv2 must be among dim, dropout, got 'dropuot'; did you mean 'dropout'?
    """
    known = list(known)
    for name in names:
        if name in known:
            continue
        message = f"{what} must be among {', '.join(known)}, got {name!r}"
        nearest = difflib.get_close_matches(str(name), known, n=1)
        raise ValueError(f"{message}; did you mean {nearest[0]!r}?" if nearest else message)
