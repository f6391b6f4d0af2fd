# SPDX-License-Identifier: Apache-2.0
"""Builds the op library; all metadata is in setup.cfg.

``python setup.py build_ext --inplace`` builds the library in a checkout, for the TensorFlow of this
environment. It takes a second if nothing changed. Several processes may call it at the same time.
`make wheel` builds a wheel with a library for each supported TensorFlow.
"""

import importlib.util
import pathlib
import shutil
import sys
from typing import ClassVar, List

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "_build"))

import every_release  # noqa: E402
import library  # noqa: E402
import tensorflow_dist  # noqa: E402


class BuildFromNothing(build_py):
    """Copies the Python files to an empty folder, so that a wheel has no deleted file."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildOps(build_ext):
    """Builds the op library with g++ directly; it is not a Python module."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("precompile", None, "precompile TensorFlow's headers, join sources (the default)"),
        ("no-precompile", None, "compile each source alone, which takes four times as long"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "precompile"]
    negative_opt: ClassVar = {"no-precompile": "precompile"}

    def initialize_options(self) -> None:
        super().initialize_options()
        self.precompile = True

    def run(self) -> None:
        package = ROOT if self.inplace else pathlib.Path(self.build_lib)
        try:
            more = library.MoreFlags(precompiles=bool(self.precompile))
            for tensorflow in self._tensorflows():
                library.build(ROOT, package.resolve() / "rec_estimator", tensorflow, more)
        except (library.BuildError, tensorflow_dist.TensorFlowNotUsable) as error:
            raise CompileError(str(error)) from None

    def get_outputs(self) -> list:
        folder = ROOT if self.inplace else pathlib.Path(self.build_lib)
        return [str(folder / "rec_estimator" / name) for name in self._names()]

    def get_output_mapping(self) -> dict:
        if not self.inplace:
            return {}
        wheel = pathlib.Path(self.build_lib) / "rec_estimator"
        return {str(wheel / name): str(ROOT / "rec_estimator" / name) for name in self._names()}

    def _tensorflows(self) -> List[tensorflow_dist.TensorFlowDist]:
        if self._serves_every_release():
            return every_release.find_all(ROOT)
        return [tensorflow_dist.find()]

    def _names(self) -> list:
        if self._serves_every_release():
            return [library.library_name(minor) for minor in tensorflow_dist.MINORS]
        return [library.library_name(tensorflow_dist.find().minor)]

    def _serves_every_release(self) -> bool:
        # An option of bdist_wheel: it resets those of this command.
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        return wheel is not None and wheel.every_release


_COMMANDS = {"build_py": BuildFromNothing, "build_ext": BuildOps}
# Since setuptools 70.1, which pyproject.toml requires for wheels. A build in place needs less.
if importlib.util.find_spec("setuptools.command.bdist_wheel"):
    from wheel_command import PlatformWheel

    _COMMANDS["bdist_wheel"] = PlatformWheel

setup(
    # Gives the wheel a platform; BuildOps finds the sources itself.
    ext_modules=[Extension("rec_estimator._rec_ops", sources=[])],
    cmdclass=_COMMANDS,
)
