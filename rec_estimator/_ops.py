# SPDX-License-Identifier: Apache-2.0
"""Loads the op library as ``gen``, or raises an ImportError that explains what to do.

A process that only runs graphs with our ops, such as a parameter server or a SavedModel loader,
needs no other module. TensorFlow's C++ interface differs between releases, so the library is loaded
only with the TensorFlow release that it was built for.
"""

import importlib.metadata
import pathlib
import shlex
import sys
from types import ModuleType

import tensorflow.compat.v1 as tf

_FOLDER = pathlib.Path(__file__).resolve().parent


def _load() -> ModuleType:
    library = _FOLDER / "_rec_ops.so"
    missing = [path.name for path in (library, _FOLDER / "_build_info.py") if not path.is_file()]
    if missing:
        raise ImportError(
            "rec_estimator's op library must be built before it is imported, got no "
            f"{' and no '.join(missing)} in {_FOLDER}; run: {_build_command()}{_other_way_out()}"
        )
    from rec_estimator import _build_info as built

    if tf.__version__ != built.TENSORFLOW_VERSION:
        distribution = _tensorflow_distribution(built.TENSORFLOW_DISTRIBUTION)
        raise ImportError(
            f"TensorFlow must be {built.TENSORFLOW_VERSION}, for which rec_estimator was built, "
            f"got {tf.__version__}; run: {sys.executable} -m pip install "
            f"{distribution}=={built.TENSORFLOW_RELEASE}"
        )
    try:
        return tf.load_op_library(str(library))
    except (tf.errors.OpError, RuntimeError) as error:
        raise ImportError(
            f"rec_estimator's op library must be one that TensorFlow {tf.__version__} can load, "
            f"got: {error}; build it again on this machine, run: {_build_command()}"
        ) from error


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


def _tensorflow_distribution(built_against: str) -> str:
    # The installed distribution is replaced: tensorflow and tensorflow-cpu contain the same files.
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    return built_against


# The generated Python functions: that of op "RecEstimator>TableHandle" is
# gen.rec_estimator_table_handle.
gen = _load()
