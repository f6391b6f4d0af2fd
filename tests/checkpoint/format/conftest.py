# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of stored_checkpoints.py as fixtures."""

from stored_checkpoints import (  # noqa: F401
    checkpoint,
    checkpoint_files,
    table_tensors,
    write_checkpoint,
)
