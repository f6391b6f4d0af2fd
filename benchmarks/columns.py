# SPDX-License-Identifier: Apache-2.0
"""Describes a table of a page by its columns: templates that are filled from each row of a result.

A template is one of str.format, and may end in a unit: "{seconds[1]:.1f ms}" shows 0.0123 as
"12.3 ms". None is shown as a dash.
"""

import dataclasses
import string
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence

from benchmarks import result_file

NONE = "\u2013"
UNITS = {"%": 100, "ms": 1e3, "KB": 1e-3, "MB": 1e-6, "MiB": 2**-20}  # What numbers are times.
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A block of generated text: the page that has it, names of results, and their text."""

    page: str
    results: Sequence[str]
    of: Callable[..., str]

    def text(self) -> str:
        """The text, from the committed results."""
        return self.of(*map(result_file.read, self.results))


FIGURES: Dict[str, Figure] = {}


def figure(page: str, *results: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Registers a function of results as a block of a page, under its name."""

    def register(of: Callable[..., str]) -> Callable[..., str]:
        FIGURES[of.__name__.replace("_", "-")] = Figure(page, results, of)
        return of

    return register


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return NONE
        digits, _, unit = format_spec.partition(" ")
        return f"{format(value * UNITS[unit], digits)} {unit}" if unit else format(value, digits)


def fill(template: str, row: Row) -> str:
    """The template with the values of a row."""
    return _Formatter().vformat(template, (), row)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head, *lines = (f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (header, *rows))
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines])


def by_row(rows: Iterable[Row], columns: Dict[str, str]) -> str:
    """A table with a line for each row: {head of a column: template}."""
    return table(columns, [[fill(cell, row) for cell in columns.values()] for row in rows])


def by_line(found: Row, header: Sequence[str], *lines: Sequence[str]) -> str:
    """A table whose lines are templates of one result."""
    return table(header, [[fill(cell, found) for cell in line] for line in lines])


def by_kind(found: Row, kinds: Dict[str, str], lines: Dict[str, str]) -> str:
    """A table with a column for each {head: kind}, and a line for each {text: template}.

    In a template, the kind takes the place of KIND.
    """
    cells = {
        text: [each.replace("KIND", kind) for kind in kinds.values()]
        for text, each in lines.items()
    }
    return by_line(found, ["", *kinds], *([text, *row] for text, row in cells.items()))
