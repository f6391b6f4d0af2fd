# SPDX-License-Identifier: Apache-2.0
"""Ops in a process whose address space ends: they raise ResourceExhausted and never abort.

A child process runs each op of a sweep under many limits of its address space, a little more room
at a time, until the op succeeds.
"""

import pathlib
import subprocess
import sys

import pytest

SWEEP = """
    import os, resource, sys
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec
"""
