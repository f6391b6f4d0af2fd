# SPDX-License-Identifier: Apache-2.0
"""Saves and restores tables in ordinary TensorFlow V2 checkpoints.

    saver.py           rec_estimator.Saver: when to write what, and what to keep
    builder.py         the ops of the Saver
    pending.py         writes the files of a checkpoint and places them atomically
    paths.py           checks the paths that a user gives
    files.py           finds, identifies and removes the files of a checkpoint
    deltas.py          checks checkpoints, and those that incremental ones build on
    warm_start.py      initializes tables from another checkpoint
    sparse_folders.py  tables as plain arrays next to a checkpoint
    format/            reads and writes TensorFlow's checkpoint format

The tensors of a table are listed in table/saveable.py.
"""
