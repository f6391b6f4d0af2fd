# SPDX-License-Identifier: Apache-2.0
"""The command that makes our wheels."""

import contextlib
from typing import Any, ClassVar, Tuple

import tensorflow_dist
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """Makes a wheel py3-none-<platform>: the op library does not use Python's C interface.

    ``--every-release`` puts a library for each supported TensorFlow into it, and not only for the
    TensorFlow of this environment. A wheel for one TensorFlow says so in its name, in the place of
    the build number: rec_estimator-0.1.0-2.15tf-py3-none-linux_x86_64.whl.
    """

    user_options: ClassVar[Any] = [
        *bdist_wheel.user_options,
        ("every-release", None, "build a library for each supported TensorFlow"),
    ]
    boolean_options: ClassVar[Any] = [*bdist_wheel.boolean_options, "every-release"]

    def initialize_options(self) -> None:
        """Sets the defaults of all options."""
        super().initialize_options()
        self.every_release = False

    def run(self) -> None:
        """Makes the wheel."""
        if not self.every_release and self.build_number is None:
            # build_ext explains what is wrong with a TensorFlow.
            with contextlib.suppress(tensorflow_dist.TensorFlowNotUsable):
                self.build_number = f"{tensorflow_dist.find().minor}tf"
        super().run()

    def get_tag(self) -> Tuple[str, str, str]:
        """Returns the tags for Python, its binary interface and the platform."""
        return "py3", "none", super().get_tag()[2]
