# SPDX-License-Identifier: Apache-2.0
"""Checks an installation: python -m rec_estimator."""

import sys

from rec_estimator.tools import self_check

if __name__ == "__main__":
    sys.exit(self_check.main())
