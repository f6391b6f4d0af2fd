# SPDX-License-Identifier: Apache-2.0
"""Loads the op library as ``gen``, or raises an ImportError that explains what to do.

A process that only runs graphs with our ops, such as a parameter server or a SavedModel loader,
needs no other module. TensorFlow's C++ interface differs between minor releases, so there is one
library for each: ``_rec_ops_2.15.so`` for all patches of TensorFlow 2.15. The command
``rec-estimator``, which reads files only, runs without it.
"""

import importlib.metadata
import pathlib
import shlex
import sys
from types import ModuleType
from typing import Any, List, NoReturn, Sequence

try:
    import tensorflow.compat.v1 as tf
except ModuleNotFoundError as _error:
    if _error.name != "tensorflow":
        raise
    tf = None

_FOLDER = pathlib.Path(__file__).resolve().parent

# The first and the last release of Python 3 for which TensorFlow 2.x has wheels. Source: PyPI.
_PYTHONS = {15: (9, 11), 16: (9, 12), 17: (9, 12), 18: (9, 12), 19: (9, 12), 20: (9, 13)}
_PYTHONS_OF_OTHERS = (10, 13)


def _load() -> ModuleType:
    built_for = sorted(
        (path.stem[len("_rec_ops_") :] for path in _FOLDER.glob("_rec_ops_*.so")),
        key=lambda minor: int(minor.split(".")[1]),
    )
    if not built_for:
        raise ImportError(
            "rec_estimator's op library must be built before it is imported, got no "
            f"_rec_ops_<TensorFlow release>.so in {_FOLDER}; run: {_build_command()}"
            f"{_other_way_out()}"
        )
    version = "none" if tf is None else tf.__version__
    minor = ".".join(version.split(".")[:2])
    if minor not in built_for:
        # The build refuses releases that are not supported, with the list.
        build = (
            "" if tf is None else f"; or build rec_estimator for {minor}, run: {_build_command()}"
        )
        raise ImportError(
            f"TensorFlow must be {' or '.join(built_for)}, for which rec_estimator was built, "
            f"got {version}; {_other_tensorflow(built_for)}{build}"
        )
    try:
        return tf.load_op_library(str(_FOLDER / f"_rec_ops_{minor}.so"))
    except (tf.errors.OpError, RuntimeError) as error:
        raise ImportError(
            f"rec_estimator's op library must be one that TensorFlow {tf.__version__} can load, "
            f"got: {error}; build it again on this machine, run: {_build_command()}"
        ) from error


def _other_tensorflow(built_for: Sequence[str]) -> str:
    """How to get the newest TensorFlow that has a library here and a wheel for this Python."""
    pythons = {minor: _PYTHONS.get(int(minor[2:]), _PYTHONS_OF_OTHERS) for minor in built_for}
    for minor in reversed(built_for):
        first, last = pythons[minor]
        if first <= sys.version_info[1] <= last:
            install = f"{sys.executable} -m pip install {_tensorflow_distribution()}=={minor}.*"
            return f"run: {install}"
    first, last = pythons[built_for[-1]]
    return (
        f"TensorFlow {built_for[-1]} has wheels for Python 3.{first} to 3.{last}, and this is "
        f"Python 3.{sys.version_info[1]}: make an environment with another Python"
    )


def _build_command() -> str:
    root = _FOLDER.parent
    if (root / "setup.py").is_file():
        return f"cd {shlex.quote(str(root))} && {sys.executable} setup.py build_ext --inplace"
    return f"{sys.executable} -m pip install --force-reinstall --no-deps <the source folder>"


def _other_way_out() -> str:
    # In a checkout, Python imports the checkout's package, also where another one is installed.
    root = _FOLDER.parent
    if not (root / "setup.py").is_file():
        return ""
    return f"; or, if rec_estimator is installed, start Python in another folder than {root}"


def _tensorflow_distribution() -> str:
    # The installed distribution is replaced: tensorflow and tensorflow-cpu contain the same files.
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    return "tensorflow-cpu"


class _NoLibrary:
    """In place of the library in a process of a command that reads files only."""

    def __init__(self, error: ImportError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error


def _is_command() -> bool:
    """Whether this process runs rec-estimator, rec_estimator itself or a module of its tools."""
    arguments: List[str] = getattr(sys, "argv", None) or [""]
    if arguments[0] != "-m":
        return pathlib.Path(arguments[0]).name == "rec-estimator"
    # The name of the module that Python is about to run. Python 3.9 does not tell it.
    words: List[str] = [*getattr(sys, "orig_argv", ()), ""]
    module = words[words.index("-m") + 1] if "-m" in words else ""
    return module == "rec_estimator" or module.startswith("rec_estimator.tools.")


def _load_unless_command() -> Any:
    try:
        return _load()
    except ImportError as error:
        if tf is None or not _is_command():
            raise
        return _NoLibrary(error)


# The generated Python functions: that of op "RecEstimator>TableHandle" is
# gen.rec_estimator_table_handle.
gen = _load_unless_command()
