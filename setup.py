# SPDX-License-Identifier: Apache-2.0
"""Builds the op library and requires its TensorFlow; all other metadata is in setup.cfg.

``python setup.py build_ext --inplace`` builds the library in a checkout. It takes a second if
nothing changed. Several processes may call it at the same time.
"""

import pathlib
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "_build"))

import library  # noqa: E402
import tensorflow_dist  # noqa: E402


class BuildFromNothing(build_py):
    """Copies the Python files to an empty folder, so that a wheel has no deleted file."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildOps(build_ext):
    """Builds the op library with g++ directly; it is not a Python module."""

    def run(self) -> None:
        package = ROOT if self.inplace else pathlib.Path(self.build_lib)
        try:
            library.build(ROOT, package.resolve() / "rec_estimator")
        except (library.BuildError, tensorflow_dist.TensorFlowNotUsable) as error:
            raise CompileError(str(error)) from None

    def get_outputs(self) -> list:
        folder = ROOT if self.inplace else pathlib.Path(self.build_lib)
        return [str(folder / "rec_estimator" / name) for name in _BUILT]

    def get_output_mapping(self) -> dict:
        if not self.inplace:
            return {}
        wheel = pathlib.Path(self.build_lib) / "rec_estimator"
        return {str(wheel / name): str(ROOT / "rec_estimator" / name) for name in _BUILT}


_BUILT = (library.LIBRARY, library.BUILD_INFO)

setup(
    # Gives the wheel a platform tag; BuildOps finds the sources itself.
    ext_modules=[Extension("rec_estimator._rec_ops", sources=[])],
    cmdclass={"build_py": BuildFromNothing, "build_ext": BuildOps},
    install_requires=[
        tensorflow_dist.requirement(),
        "tensorflow-estimator==2.15.0",
        # TensorFlow 2.15 requires NumPy 1, from 1.23.5 on.
        "numpy>=1.23.5,<2",
    ],
)
