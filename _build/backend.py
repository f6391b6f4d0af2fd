# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and 660 build backend: setuptools, and TensorFlow if the target environment has none.

If pyproject.toml listed ``tensorflow-cpu`` in build-system.requires, pip would unpack its 1.3 GB
into the build environment even if the target environment has it.
"""

import os
import sys
from typing import Any, Dict, List, Optional

from setuptools import build_meta

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tensorflow_dist

build_sdist = build_meta.build_sdist
build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

Settings = Optional[Dict[str, Any]]


def get_requires_for_build_sdist(config_settings: Settings = None) -> List[str]:
    """Requirements of a source distribution, which needs no TensorFlow: it has no compiled code."""
    return build_meta.get_requires_for_build_sdist(config_settings)


def get_requires_for_build_wheel(config_settings: Settings = None) -> List[str]:
    """Requirements of a wheel: TensorFlow, if the target environment has none."""
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *tensorflow_dist.build_requirements(),
    ]


def get_requires_for_build_editable(config_settings: Settings = None) -> List[str]:
    """Requirements of an editable install: those of a wheel."""
    return [
        *build_meta.get_requires_for_build_editable(config_settings),
        *tensorflow_dist.build_requirements(),
    ]
