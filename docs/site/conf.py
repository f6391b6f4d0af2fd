# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for `make docs-site`; docs/site/sources.py writes the pages that it reads."""

import re
from typing import Any, List

import rec_estimator

project = "rec_estimator"
author = "rec_estimator developers"
release = rec_estimator.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

# The code host gives headings anchors, too.
myst_heading_anchors = 4

# Docstrings name types and shapes; TensorFlow's types have no page here.
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # Otherwise an attribute that is a property has two entries.
napoleon_use_rtype = False

# What a reader copies has no prompts.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

smartquotes = False  # "" is an id.

html_theme = "furo"
html_title = f"rec_estimator {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Any) -> None:
    """Reads docstrings before napoleon does, whose priority is 500."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)


def _as_restructured_text(
    app: Any, what: str, name: str, value: Any, options: Any, lines: List[str]
) -> None:
    """Marks what only a reader of the source recognizes: code, stars and the names of pages."""
    marked: List[str] = []
    for line in lines:
        starts_block = line.startswith("    ") and marked and not marked[-1]
        # The docstrings of functions and classes have indented sections.
        if what == "module" and starts_block and not _in_block(marked):
            marked += ["::", ""]
        line = line.replace("*args, **kwargs:", r"\*args, \*\*kwargs:")
        marked.append(re.sub(r"\bdocs/(\w+)\.md", r":doc:`/\1`", line))
    lines[:] = marked


def _in_block(lines: List[str]) -> bool:
    """Whether the last line with text is indented."""
    return next((line for line in reversed(lines) if line), "").startswith(" ")
