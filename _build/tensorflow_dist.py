# SPDX-License-Identifier: Apache-2.0
"""Chooses the TensorFlow to build against and to require.

This module does not import TensorFlow. In an isolated build of pip, the target environment's
TensorFlow is on disk but not on ``sys.path``; importing it would take 3 s.
"""

import dataclasses
import importlib.metadata
import importlib.util
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

# TensorFlow's C++ symbols change with every minor release; rec_estimator is tested on this one.
SERIES = "2.15"
SUPPORTED = f">={SERIES},<2.16"

_VERSION_PART = re.compile(r"^#define TF_(MAJOR|MINOR|PATCH)_VERSION (\d+)", re.MULTILINE)
_VERSION_SUFFIX = re.compile(r'^#define TF_VERSION_SUFFIX "([^"]*)"', re.MULTILINE)


class TensorFlowNotUsable(Exception):
    """There is no TensorFlow, or two that overwrite each other. The message has the remedy."""


@dataclasses.dataclass(frozen=True)
class TensorFlowDist:
    """An installed TensorFlow with headers.

    Attributes:
      distribution: "tensorflow" or "tensorflow-cpu".
      release: The version of the distribution, for requirements ("2.15.0.post1").
      version: The value of ``tensorflow.__version__``, read from version.h ("2.15.0").
      folder: The folder of the package, with ``include/`` and ``libtensorflow_framework.so.2``.
    """

    distribution: str
    release: str
    version: str
    folder: pathlib.Path


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


def find(folders: Optional[Sequence[pathlib.Path]] = None) -> Optional[TensorFlowDist]:
    """Returns the TensorFlow to build against: the first supported one with headers, or None.

    Raises:
      TensorFlowNotUsable: One folder holds both distributions.
    """
    for folder in build_folders() if folders is None else folders:
        package = folder / "tensorflow"
        if not (package / "include/tensorflow/core/framework/op.h").is_file():
            continue
        names = installed([folder])
        if len(names) > 1:
            raise TensorFlowNotUsable(
                f"{folder} must hold one of tensorflow and tensorflow-cpu, got both, and they "
                "overwrite each other's files; "
                f"run: {sys.executable} -m pip uninstall -y tensorflow tensorflow-cpu"
                f" && {sys.executable} -m pip install '{DEFAULT_DISTRIBUTION}{SUPPORTED}'"
            )
        for name, release in names.items():
            if is_supported(release):
                return TensorFlowDist(name, release, header_version(package), package)
    return None


def is_supported(release: str) -> bool:
    """Whether rec_estimator supports this release."""
    return release == SERIES or release.startswith(SERIES + ".")


def header_version(package: pathlib.Path) -> str:
    """The version in the headers of ``package``, in the form of ``tensorflow.__version__``."""
    text = (package / "include/tensorflow/core/public/version.h").read_text()
    parts = dict(_VERSION_PART.findall(text))
    suffix = _VERSION_SUFFIX.search(text)
    return "{MAJOR}.{MINOR}.{PATCH}".format(**parts) + (suffix.group(1) if suffix else "")


def requirement() -> str:
    """The requirement of an installed rec_estimator: exactly the TensorFlow it was built against.

    The name is ``tensorflow`` if the target environment has that distribution, so that pip never
    installs ``tensorflow-cpu`` beside it.
    """
    in_target = installed(target_folders())
    found = find()
    name = "tensorflow" if "tensorflow" in in_target else DEFAULT_DISTRIBUTION
    if found is None:
        return name + SUPPORTED
    if name not in in_target and found.folder.parent in target_folders():
        name = found.distribution
    return f"{name}=={found.release}"


def build_requirements() -> List[str]:
    """Requirements of an isolated build: none if the target environment has a TensorFlow."""
    return [] if find(target_folders()) else [DEFAULT_DISTRIBUTION + SUPPORTED]


def _unique(folders: Sequence[Optional[str]]) -> List[pathlib.Path]:
    return list(dict.fromkeys(pathlib.Path(folder).resolve() for folder in folders if folder))


if __name__ == "__main__":
    # The Makefile installs this before the package; otherwise the build would unpack its own copy.
    print(*build_requirements())
