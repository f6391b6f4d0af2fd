# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and 660 build backend: setuptools, plus TensorFlow only where it is missing.

A fixed ``tensorflow-cpu`` in pyproject.toml's build-system.requires would make pip unpack its
1.3 GB into the build environment even where the target environment has it.
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
    """A source distribution contains no compiled code, so it needs no TensorFlow."""
    return build_meta.get_requires_for_build_sdist(config_settings)


def get_requires_for_build_wheel(config_settings: Settings = None) -> List[str]:
    """TensorFlow, if the target environment has none to build against."""
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *tensorflow_dist.build_requirements(),
    ]


def get_requires_for_build_editable(config_settings: Settings = None) -> List[str]:
    """As for a wheel."""
    return [
        *build_meta.get_requires_for_build_editable(config_settings),
        *tensorflow_dist.build_requirements(),
    ]
