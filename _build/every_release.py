# SPDX-License-Identifier: Apache-2.0
"""The C++ files of every supported TensorFlow, to build a wheel that serves them all.

``python _build/every_release.py`` downloads them into build/tensorflow/.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from typing import List

import tensorflow_dist


def find_all(root: pathlib.Path) -> List[tensorflow_dist.TensorFlowDist]:
    """Returns a TensorFlow of each supported minor, which ``download`` put into ``root``/build.

    Raises:
      TensorFlowNotUsable: One is missing.
    """
    found = [
        tensorflow_dist.in_folder(_download_folder(root, each)) for each in tensorflow_dist.MINORS
    ]
    missing = [
        each for each, tensorflow in zip(tensorflow_dist.MINORS, found) if tensorflow is None
    ]
    if missing:
        raise tensorflow_dist.TensorFlowNotUsable(
            f"{root / 'build'} must hold TensorFlow {', '.join(tensorflow_dist.MINORS)}, got no "
            f"{', '.join(missing)}; run: make wheel"
        )
    return [tensorflow for tensorflow in found if tensorflow is not None]


def download(root: pathlib.Path) -> None:
    """Puts what a build needs of each supported TensorFlow into ``root``/build, if it is missing.

    That is 0.2 GB a release: the headers and the library to link with.
    """
    for each in tensorflow_dist.MINORS:
        folder = _download_folder(root, each)
        if tensorflow_dist.has_headers(folder):
            continue
        print(f"downloading TensorFlow {each}", flush=True)
        with tempfile.TemporaryDirectory(dir=_made(root / "build")) as unfinished:
            _download(each, pathlib.Path(unfinished))
            (pathlib.Path(unfinished) / "files").replace(_made(folder.parent) / folder.name)


def _download(minor: str, folder: pathlib.Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
        # All supported releases have wheels for Python 3.11; wheels for others have the same C++
        # files.
        *("--no-deps", "--only-binary=:all:", "--python-version=3.11", f"--dest={folder}"),
        f"{tensorflow_dist.DEFAULT_DISTRIBUTION}=={minor}.*",
    ]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        needed = re.compile(r"tensorflow/(include/|libtensorflow_framework\.)|[^/]*/METADATA$")
        file.extractall(folder / "files", filter(needed.match, file.namelist()))


def _download_folder(root: pathlib.Path, minor: str) -> pathlib.Path:
    return root / "build" / "tensorflow" / minor


def _made(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    download(pathlib.Path(__file__).resolve().parent.parent)
