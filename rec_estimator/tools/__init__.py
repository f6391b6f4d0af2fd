# SPDX-License-Identifier: Apache-2.0
"""Command-line tools for checkpoints; each runs as ``python -m rec_estimator.tools.<name>`` too."""
