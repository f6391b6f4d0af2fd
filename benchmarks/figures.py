# SPDX-License-Identifier: Apache-2.0
"""Writes the measured figures of the pages from the results in benchmarks/results.

    python -m benchmarks.figures    # `make docs` runs it

A page has a block between two markers; everything between them is generated:

    <!-- figures: NAME -->
    …
    <!-- end -->

To add a block, write a function into core_figures.py, online_figures.py, zoo_figures.py or
page_figures.py, and put the markers into the page. After a new measurement, run `make docs`.
tests/test_figures.py fails if a page is stale.
"""

import pathlib
import re
from typing import List

from benchmarks import core_figures, online_figures, page_figures, zoo_figures
from benchmarks.columns import FIGURES

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(^<!-- end -->$)", re.DOTALL | re.MULTILINE)
del core_figures, online_figures, page_figures, zoo_figures  # They fill FIGURES.


def pages() -> List[pathlib.Path]:
    """Every page that may have figures."""
    return sorted(p for pattern in ("*.md", "docs/*.md", "*/README.md") for p in ROOT.glob(pattern))


def names_in(text: str) -> List[str]:
    """Names of the blocks of a page."""
    return [match.group(2) for match in BLOCK.finditer(text)]


def generate(text: str) -> str:
    """The text of a page with all its blocks written again.

    Raises:
      ValueError: A block has a name that FIGURES lacks.
    """

    def block(match: "re.Match[str]") -> str:
        begin, name, end = match.groups()
        if name not in FIGURES:
            raise ValueError(f"figures must be one of {sorted(FIGURES)}, got {name!r}")
        return f"{begin}\n{FIGURES[name].text()}\n\n{end}"

    return BLOCK.sub(block, text)


def main() -> None:
    """Runs the command."""
    for page in pages():
        text = page.read_text()
        written = generate(text)
        if written != text:
            page.write_text(written)
            print(f"{page.relative_to(ROOT)}: figures written")


if __name__ == "__main__":
    main()
