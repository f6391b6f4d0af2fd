# SPDX-License-Identifier: Apache-2.0
"""Saves and restores tables in ordinary TensorFlow V2 checkpoints.

    saver.py              rec_estimator.Saver; names the modules that it uses
    builder.py            the ops of the Saver
    saved_state.py        whether a checkpoint must be written at all
    delta_chain.py        whether it can be a delta, and of which checkpoint
    writer.py             writes the files of a checkpoint
    atomic_checkpoint.py  places them atomically
    retention.py          which checkpoints are kept; the state file
    paths.py              checks the paths that a user gives
    files.py              finds, identifies and removes the files of a checkpoint
    deltas.py             checks checkpoints, and those that deltas build on
    warm_start.py         initializes tables from another checkpoint
    restore_warnings.py   warns of what a table does not take over from a checkpoint
    estimators.py         TensorFlow's Estimators with a warm_start_from for tables
    table_selection.py    which tables and slots that initializes
    sparse_folders.py     tables as plain arrays next to a checkpoint
    folder_export.py      tables of such a folder as NumPy files
    format/               reads and writes TensorFlow's checkpoint format

The tensors of a table are listed in table/saveable.py.
"""
