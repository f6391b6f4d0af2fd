# SPDX-License-Identifier: Apache-2.0
"""Command-line tools for checkpoints.

    inspect_checkpoint                  prints tables, rows, filtered features and frequencies
    shrink_ckpt_with_filtered_features  copies a checkpoint without its filtered features

Each also runs as ``python -m rec_estimator.tools.<name>``. The library does not import the tools.
"""
