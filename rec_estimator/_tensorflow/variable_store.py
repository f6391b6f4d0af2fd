# SPDX-License-Identifier: Apache-2.0
"""Private names of what tf.get_variable remembers. Checked on TensorFlow 2.15."""

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import variable_scope as _variable_scope


def has_variable(graph: tf.Graph, name: str) -> bool:
    """Whether tf.get_variable has made a variable of this name in `graph`.

    The op of the variable may have another name: that of a table's op is taken, so the op of a
    variable "t" made after table "t" is "t_1".
    """
    # The store has no public reader. A graph has none before the first call of tf.get_variable.
    stores = graph.get_collection(_variable_scope._VARSTORE_KEY)
    return any(name in store._vars or name in store._partitioned_vars for store in stores)
