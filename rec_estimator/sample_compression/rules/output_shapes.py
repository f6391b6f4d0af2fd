# SPDX-License-Identifier: Apache-2.0
"""Finds the rule of an op and applies it."""

from typing import List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis.sizes import Shape, has_rows
from rec_estimator.sample_compression.analysis.values import (
    CannotMove,
    EntryRows,
    ListValue,
    SparseValue,
    Value,
    elements_in,
)
from rec_estimator.sample_compression.rules import control_flow
from rec_estimator.sample_compression.rules.lists import LIST_RULES
from rec_estimator.sample_compression.rules.op_rules import RULES


def output_shapes(op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
    """The shapes of an op's outputs, by the rule of its type.

    Args:
      op: Not in a loop or branch of control flow v1 that moves as a whole.
      inputs: The values of its inputs.

    Raises:
      CannotMove: The rule refuses the op, or there is no rule.
    """
    if graphs.in_control_flow(op):
        raise CannotMove("is inside of control flow")
    if op.type in control_flow.CALL_RULES:
        return control_flow.call_shapes(op, inputs)
    takes_lists = any(isinstance(value, ListValue) for value in inputs)
    counts_rows = any(has_rows(elements_in(value)) for value in inputs)
    if op.type in LIST_RULES and not counts_rows:
        return LIST_RULES[op.type](op, inputs)
    if op.type in (op_registry.TABLE_GROUP_LOOKUP, op_registry.COMBINE_WEIGHTED):
        raise CannotMove("takes ids, or weights of them, whose rows are not known")
    if op.type not in RULES or (takes_lists and op.type != "Identity"):
        raise CannotMove("has no rule")
    sparse = [value for value in inputs if isinstance(value, SparseValue)]
    if any(not isinstance(value, EntryRows) for value in sparse):
        raise CannotMove("takes a component of a sparse or ragged tensor")
    if sparse and counts_rows:
        raise CannotMove("reshapes entries by a number of rows")
    return RULES[op.type](op, inputs)
