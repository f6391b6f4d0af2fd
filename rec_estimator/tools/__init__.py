# SPDX-License-Identifier: Apache-2.0
"""The command ``rec-estimator``: tools for checkpoints and data.

    rec-estimator export         writes the rows of a table to NumPy, Parquet or the projector
    rec-estimator import         makes a checkpoint of a table from a file of vectors
    rec-estimator inspect        prints tables, rows, filtered features and frequencies
    rec-estimator memory-share   prints how often rows are read from disk, by the share in memory
    rec-estimator shrink         copies a checkpoint without its filtered features
    rec-estimator tune           proposes a filter from how often ids occur

The library does not import them.
"""
