# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and 660 build backend: setuptools, and TensorFlow if the target environment has none.

What would fail later is refused before pip downloads or compiles anything, and the build tells in
the terminal how long it takes: pip shows what a backend prints only with -v.

If pyproject.toml listed ``tensorflow-cpu`` in build-system.requires, pip would unpack its 1.3 GB
into the build environment even if the target environment has it.
"""

import os
import re
import sys
from typing import Any, Dict, List, Optional

from setuptools import build_meta

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import library
import tensorflow_dist

build_sdist = build_meta.build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

Settings = Optional[Dict[str, Any]]


def get_requires_for_build_sdist(config_settings: Settings = None) -> List[str]:
    """Requirements of a source distribution, which needs no TensorFlow: it has no compiled code."""
    return build_meta.get_requires_for_build_sdist(config_settings)


def get_requires_for_build_wheel(config_settings: Settings = None) -> List[str]:
    """Requirements of a wheel: TensorFlow, if the target environment has none."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_tensorflow()]


def get_requires_for_build_editable(config_settings: Settings = None) -> List[str]:
    """Requirements of an editable install: those of a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_tensorflow()]


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Builds a wheel; returns its name."""
    library.listeners.append(tell_terminal)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Builds an editable wheel; returns its name."""
    library.listeners.append(tell_terminal)
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _tensorflow() -> List[str]:
    try:
        library.find_compiler()
        required = tensorflow_dist.build_requirements()
        if not required:
            tensorflow_dist.find()
    except (library.BuildError, tensorflow_dist.TensorFlowNotUsable) as error:
        # Without a traceback: pip prints all of it.
        raise SystemExit(f"rec_estimator: {error}") from None
    return required


def tell_terminal(line: str, terminal: str = "/dev/tty") -> None:
    """Shows the start of the build, and each tenth of it, in the terminal if there is one."""
    count = re.match(r"\[(\d+)/(\d+)\]", line)
    if count:
        done, all_files = int(count[1]), int(count[2])
        if done * 10 // all_files == (done - 1) * 10 // all_files:
            return
        line = f"{done} of {all_files} C++ files compiled"
    try:
        with open(terminal, "w") as file:
            # pip draws a spinner in the line above.
            file.write(f"\r\nrec_estimator: {line}\r\n")
    except OSError:
        pass  # There is no terminal.
