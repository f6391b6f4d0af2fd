# SPDX-License-Identifier: Apache-2.0
"""The type of rows in an export, which may have fewer bits than those of the training.

A graph that is built inside ``exporting_rows_as`` has tables of this type. A restore rounds rows to
it, a save writes it, and a lookup gives float32, as with ``value_dtype=``.
"""

import contextlib
import contextvars
from typing import Any, Iterator, Optional

import tensorflow.compat.v1 as tf

# By the argument of an export, how values are stored. 8 bits are the bytes of a row with a scale
# and an offset; see ops/core/math/quantized_floats.h.
ROW_DTYPES = {"int8": tf.uint8, "float16": tf.float16, "bfloat16": tf.bfloat16}

_row_dtype: contextvars.ContextVar = contextvars.ContextVar("row_dtype", default=None)


def as_row_dtype(row_dtype: Any) -> tf.DType:
    """Checks the argument row_dtype of an export.

    Args:
      row_dtype: "int8", "float16" or "bfloat16", or TensorFlow's type of this name.

    Returns:
      The type in which values are stored; tf.uint8 for "int8".

    Raises:
      ValueError: row_dtype is something else.
    """
    name = row_dtype.name if isinstance(row_dtype, tf.DType) else row_dtype
    if not isinstance(name, str) or name not in ROW_DTYPES:
        raise ValueError(
            f"row_dtype must be {', '.join(map(repr, ROW_DTYPES))} or None, got {row_dtype!r}; "
            "None keeps the types of the tables"
        )
    return ROW_DTYPES[name]


@contextlib.contextmanager
def exporting_rows_as(row_dtype: tf.DType) -> Iterator[None]:
    """Makes the tables that this thread builds store values in a type of ROW_DTYPES."""
    token = _row_dtype.set(row_dtype)
    try:
        yield
    finally:
        _row_dtype.reset(token)


def row_dtype_of_export() -> Optional[tf.DType]:
    """The type of the rows of the export that this thread builds; None: that of each table."""
    return _row_dtype.get()
