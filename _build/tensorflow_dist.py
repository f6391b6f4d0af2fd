# SPDX-License-Identifier: Apache-2.0
"""Chooses the TensorFlow to build against.

This module does not import TensorFlow. In an isolated build of pip, the target environment's
TensorFlow is on disk but not on ``sys.path``; importing it would take 3 s.
"""

import dataclasses
import importlib.metadata
import pathlib
import re
import site
import sys
import sysconfig
from typing import Dict, List, Optional, Sequence

# Two distributions of the same files. The default is the smaller one (0.2 GB instead of 0.5 GB),
# because the kernels run on the CPU only.
DEFAULT_DISTRIBUTION = "tensorflow-cpu"
DISTRIBUTIONS = ("tensorflow", DEFAULT_DISTRIBUTION)

# The releases that rec_estimator is tested on, the oldest first. TensorFlow's C++ symbols change
# with every minor release, so each needs a library of its own; patches of one minor share it.
MINORS = ("2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
SUPPORTED = ">=2.15,<2.22"


class TensorFlowNotUsable(Exception):
    """There is no supported TensorFlow, or two in one folder. The message has the remedy."""


@dataclasses.dataclass(frozen=True)
class TensorFlowDist:
    """An installed TensorFlow with headers.

    Attributes:
      distribution: "tensorflow" or "tensorflow-cpu".
      release: The version of the distribution ("2.15.0.post1").
      folder: The folder of the package, with ``include/`` and ``libtensorflow_framework.so.2``.
    """

    distribution: str
    release: str
    folder: pathlib.Path

    @property
    def minor(self) -> str:
        """The release without its patch number ("2.15")."""
        return minor(self.release)


def target_folders() -> List[pathlib.Path]:
    """Folders of the environment that pip installs into, also in an isolated build."""
    # Isolation hides them from sys.path, but not from sysconfig. User site packages count only if
    # Python uses them.
    folders: List[Optional[str]] = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return _unique(folders)


def build_folders() -> List[pathlib.Path]:
    """Folders to search for headers: the target environment, then the build environment."""
    return _unique([*target_folders(), *(entry for entry in sys.path if entry)])


def installed(folders: Sequence[pathlib.Path]) -> Dict[str, str]:
    """Versions of the TensorFlow distributions in ``folders``, by name."""
    found: Dict[str, str] = {}
    for folder in folders:
        for metadata in importlib.metadata.distributions(path=[str(folder)]):
            name = re.sub(r"[-_.]+", "-", metadata.metadata["Name"] or "").lower()
            if name in DISTRIBUTIONS:
                found.setdefault(name, metadata.version)
    return found


def find() -> TensorFlowDist:
    """Returns the TensorFlow to build against: the first one with headers.

    The version is that of the distribution's metadata: the headers of TensorFlow 2.21 have none.

    Raises:
      TensorFlowNotUsable: There is none, the first one is of an unsupported release, or one folder
        holds both distributions.
    """
    for folder in build_folders():
        tensorflow = in_folder(folder)
        if tensorflow is not None:
            return tensorflow
    raise _not_usable(
        f"none with headers in {', '.join(map(str, build_folders()))}", DEFAULT_DISTRIBUTION
    )


def in_folder(folder: pathlib.Path) -> Optional[TensorFlowDist]:
    """The TensorFlow with headers in one folder, or None. Raises as ``find`` does."""
    if not has_headers(folder):
        return None
    names = installed([folder])
    if len(names) > 1:
        raise TensorFlowNotUsable(
            f"{folder} must hold one of tensorflow and tensorflow-cpu, got both, and they "
            "overwrite each other's files; "
            f"run: {sys.executable} -m pip uninstall -y tensorflow tensorflow-cpu"
            f" && {sys.executable} -m pip install '{DEFAULT_DISTRIBUTION}{SUPPORTED}'"
        )
    for name, release in names.items():
        if minor(release) not in MINORS:
            raise _not_usable(release, name)
        return TensorFlowDist(name, release, folder / "tensorflow")
    return None


def minor(release: str) -> str:
    """A release without its patch number: "2.15" for "2.15.0.post1"."""
    return ".".join(release.split(".")[:2])


def build_requirements() -> List[str]:
    """Requirements of an isolated build: none if the target environment has a TensorFlow."""
    has_tensorflow = any(has_headers(folder) for folder in target_folders())
    return [] if has_tensorflow else [DEFAULT_DISTRIBUTION + SUPPORTED]


def has_headers(folder: pathlib.Path) -> bool:
    """Whether ``folder`` holds the package tensorflow with its C++ headers."""
    return (folder / "tensorflow/include/tensorflow/core/framework/op.h").is_file()


def _not_usable(got: str, distribution: str) -> TensorFlowNotUsable:
    return TensorFlowNotUsable(
        f"TensorFlow must be {', '.join(MINORS[:-1])} or {MINORS[-1]}, got {got}; "
        f"run: {sys.executable} -m pip install '{distribution}{SUPPORTED}'"
    )


def _unique(folders: Sequence[Optional[str]]) -> List[pathlib.Path]:
    return list(dict.fromkeys(pathlib.Path(folder).resolve() for folder in folders if folder))


if __name__ == "__main__":
    # The Makefile installs this before the package; otherwise the build would unpack its own copy.
    print(*build_requirements())
