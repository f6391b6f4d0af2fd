# SPDX-License-Identifier: Apache-2.0
"""A target for the tests of campaign.py: each seed below 5 breaks something else."""

import os
import time


class Target:
    """Breaks what a campaign watches, without TensorFlow."""

    def __init__(self, folder):
        self._kept = []

    def run(self, seed):
        if seed == 0:
            os.abort()
        if seed == 1:
            time.sleep(3600)
        if seed == 2:  # For a moment only.
            bytearray(1 << 27).translate(None)
        if seed == 3:
            raise AssertionError("accepted silently")
        if seed == 4:
            raise KeyError("of another class")
        if seed >= 6:  # Slowly, for good.
            self._kept.append(b"x" * (1 << 25))
        return "refused"
