# SPDX-License-Identifier: Apache-2.0
"""Keeps an optimizer from overwriting dense variables that gradients of a table still read.

A read of a ref variable, which tf.disable_v2_behavior() brings back, shares the variable's buffer.
Where a script trains dense variables and tables with two optimizers, the first update may therefore
change a kernel while the gradient of a table still flows through it. Resource variables copy.
"""

from typing import Collection, Dict, FrozenSet, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors

# The types of TensorFlow's updates begin with these. Initializers use Assign, so it is not here.
_DENSE_UPDATES = ("Apply", "SparseApply")

# The sources of input. An update must not need an input that it did not need before.
_INPUTS = (GET_NEXT, "Placeholder", "PlaceholderV2")


def order_overwrites(graph: tf.Graph, new_ops: Collection[tf.Operation]) -> None:
    """Makes updates of ref variables wait for the gradients of tables that read them.

    Only pairs of an update and a table's gradients from two calls of apply_gradients() are ordered:
    TensorFlow orders those of one call. A pair of two different inputs is left as it is, because a
    session may run its members apart.

    Args:
      graph: The graph.
      new_ops: The ops that the last call of apply_gradients() has built.
    """
    new = frozenset(new_ops)
    ops = graph.get_operations()
    applies = [op for op in ops if op.type == op_registry.TABLES_APPLY]
    updates = [op for op in ops if op.type.startswith(_DENSE_UPDATES) and _variable(op) is not None]
    inputs_of: Dict[tf.Operation, FrozenSet[tf.Operation]] = {}
    for apply in applies:
        others = [update for update in updates if (update in new) != (apply in new)]
        # The inputs of the op: a reservation, the gradients of its tables, and numbers.
        for gradient in apply.inputs[1 : 1 + apply.get_attr("N")] if others else ():
            needed = ancestors([gradient.op])
            for update in others:
                if _variable(update) not in needed or update in needed:
                    continue
                if update not in inputs_of:
                    inputs_of[update] = _inputs(ancestors([update]))
                if _inputs(needed) <= inputs_of[update] and not graphs.in_control_flow(update):
                    graphs.add_control_inputs(update, [gradient.op])


def _variable(update: tf.Operation) -> Optional[tf.Operation]:
    """The ref variable that an update changes; None: it changes a resource variable."""
    variable = update.inputs[0].op
    return variable if variable.type == "VariableV2" else None


def _inputs(ops: Set[tf.Operation]) -> FrozenSet[tf.Operation]:
    return frozenset(op for op in ops if op.type in _INPUTS)
