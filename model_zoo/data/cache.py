# SPDX-License-Identifier: Apache-2.0
"""The folder of downloaded and converted data."""

import contextlib
import os
import pathlib
import tempfile
from typing import Iterator, TextIO


class DataUnavailableError(RuntimeError):
    """The data set is absent and the download failed. The message has the reason and the remedy."""


def default_cache_dir() -> pathlib.Path:
    """The folder for downloaded data: rec_estimator in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "rec_estimator"


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[TextIO]:
    """Opens a file of text to write, which is there only once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        written = pathlib.Path(scratch) / path.name
        with written.open("w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(written, path)
