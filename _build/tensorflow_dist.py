# SPDX-License-Identifier: Apache-2.0
"""Which TensorFlow to build against, and which to require.

Nothing here imports TensorFlow: under pip's build isolation the one of the target environment is on
disk but not on ``sys.path``, and importing it would cost 3 s.
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

# tensorflow and tensorflow-cpu are two distributions of the same files: the CPU one when there is a
# choice (0.2 GB instead of 0.5 GB), because the kernels run on the CPU only.
DEFAULT_DISTRIBUTION = "tensorflow-cpu"
DISTRIBUTIONS = ("tensorflow", DEFAULT_DISTRIBUTION)

# TensorFlow's C++ symbols change with every minor release, and rec_estimator is tested on this one.
SERIES = "2.15"
SUPPORTED = f">={SERIES},<2.16"

_VERSION_PART = re.compile(r"^#define TF_(MAJOR|MINOR|PATCH)_VERSION (\d+)", re.MULTILINE)
_VERSION_SUFFIX = re.compile(r'^#define TF_VERSION_SUFFIX "([^"]*)"', re.MULTILINE)


class TensorFlowNotUsable(Exception):
    """No TensorFlow to build against, or two that overwrite each other; the text has the remedy."""


@dataclasses.dataclass(frozen=True)
class TensorFlowDist:
    """An installed TensorFlow with headers.

    Attributes:
      distribution: "tensorflow" or "tensorflow-cpu".
      release: The distribution's version, which a requirement pins ("2.15.0.post1").
      version: What ``tensorflow.__version__`` says, read from version.h ("2.15.0").
      folder: The package's folder, with ``include/`` and ``libtensorflow_framework.so.2``.
    """

    distribution: str
    release: str
    version: str
    folder: pathlib.Path


def target_folders() -> List[pathlib.Path]:
    """Folders of the environment that pip installs into, isolated build or not."""
    # Isolation hides them from sys.path, but sysconfig still answers for the interpreter. User site
    # packages count only where Python itself would use them.
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return _unique(folders)


def build_folders() -> List[pathlib.Path]:
    """Folders to look for headers in: the target environment, then what the build itself got."""
    return _unique([*target_folders(), *(entry for entry in sys.path if entry)])


def installed(folders: Sequence[pathlib.Path]) -> Dict[str, str]:
    """The version of each TensorFlow distribution found in ``folders``, by name."""
    found: Dict[str, str] = {}
    for folder in folders:
        for metadata in importlib.metadata.distributions(path=[str(folder)]):
            name = re.sub(r"[-_.]+", "-", metadata.metadata["Name"] or "").lower()
            if name in DISTRIBUTIONS:
                found.setdefault(name, metadata.version)
    return found


def find(folders: Optional[Sequence[pathlib.Path]] = None) -> Optional[TensorFlowDist]:
    """The TensorFlow to build against: the first supported one with headers, or None.

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
    """Whether this release is one that rec_estimator builds against."""
    return release == SERIES or release.startswith(SERIES + ".")


def header_version(package: pathlib.Path) -> str:
    """The version that the headers in ``package`` declare, as ``tensorflow.__version__`` has it."""
    text = (package / "include/tensorflow/core/public/version.h").read_text()
    parts = dict(_VERSION_PART.findall(text))
    suffix = _VERSION_SUFFIX.search(text)
    return "{MAJOR}.{MINOR}.{PATCH}".format(**parts) + (suffix.group(1) if suffix else "")


def requirement() -> str:
    """What the installed rec_estimator requires: the TensorFlow it was built against, exactly.

    Named ``tensorflow`` where the target environment has that, so that pip never adds
    ``tensorflow-cpu`` beside it.
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
    """What an isolated build must install besides setuptools: nothing if the target has it."""
    return [] if find(target_folders()) else [DEFAULT_DISTRIBUTION + SUPPORTED]


def _unique(folders: Sequence[Optional[str]]) -> List[pathlib.Path]:
    return list(dict.fromkeys(pathlib.Path(folder).resolve() for folder in folders if folder))


if __name__ == "__main__":
    # The Makefile installs this before the package, whose build would else unpack its own copy.
    print(*build_requirements())
