# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that turn rows into entries and entries into rows.

Where and GatherNd take the ids out of a padded matrix. The lookups of our tables combine what they
find for the ids of a row into one vector. sparse.py has the ops in between.
"""

from typing import Dict, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.entries import Entries, Rows
from rec_estimator.sample_compression.analysis.sizes import BATCH
from rec_estimator.sample_compression.analysis.values import (
    DenseShape,
    DenseValue,
    EntryRows,
    Indices,
    RowSplits,
    Side,
    Value,
    elements_in,
)
from rec_estimator.sample_compression.rules.sparse import (
    SPARSE_RULES,
    EntryOutputs,
    EntryRule,
    are_ids,
    are_rows,
    columns_of,
    indices_of,
)


def entry_outputs(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The outputs of an op that makes or takes entries of users.

    Args:
      expansion: The rows of the request.
      op: Outside of control flow.
      inputs: The values of its inputs.

    Returns:
      One value for each output. None: no rule of this file or of sparse.py applies.
    """
    for rules in (ENTRY_RULES, SPARSE_RULES):
        rule = rules.get(op.type)
        if rule is not None and any(value.side == Side.USER for value in inputs):
            outputs = rule(expansion, op, inputs)
            if outputs is not None:
                return outputs
    return None


def _where(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The positions in a matrix where a condition holds."""
    if not are_rows(inputs[0]):
        return None
    entries = Entries.of_sparse(expansion, op.outputs[0], is_sorted=True)
    return [indices_of(op.outputs[0], entries, len(inputs[0].known_dims()))]


def _without_padding(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The ids of a matrix that are not padding, and their positions."""
    if not are_rows(inputs[0]):
        return None
    indices, values = op.outputs
    entries = Entries.of_sparse(expansion, indices, is_sorted=True)
    return [
        indices_of(indices, entries, len(inputs[0].known_dims())),
        EntryRows(values, (BATCH,), entries),
    ]


def _gather_nd(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """The numbers at positions of a matrix."""
    data, indices = inputs
    depth = columns_of(indices)
    if not are_rows(data) or not isinstance(indices, Indices) or depth is None:
        return None
    return [EntryRows(op.outputs[0], (BATCH, *data.known_dims()[depth:]), indices.entries)]


def _ragged_to_sparse(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    splits, *_, ids = inputs
    if len(inputs) != 2 or not isinstance(splits, RowSplits):
        return None
    if not are_ids(ids) or ids.entries is not splits.entries:
        return None
    indices, values, shape = op.outputs
    two, entries = (sizes_lib.number(2),), splits.entries
    return [
        indices_of(indices, entries, 2),
        EntryRows(values, (BATCH,), entries),
        DenseShape(shape, two, entries, elements=(BATCH, None), is_bounding=True),
    ]


def _combined_lookup(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """One vector for each row: the rows of a table that its ids name, combined."""
    _, keys, indices, shape = inputs
    if columns_of(indices) is None or not are_ids(keys) or keys.entries is not indices.entries:
        return None
    if (elements_in(shape) or (None,))[0] != BATCH:
        return None
    (dim,) = op.get_attr("dims")
    return [DenseValue(op.outputs[0], Side.USER, (BATCH, sizes_lib.number(dim)))]


def _combine_weighted(expansion: Rows, op: tf.Operation, inputs: Sequence[Value]) -> EntryOutputs:
    """One vector for each row: the looked-up vectors of its entries, combined with weights."""
    values, weights, indices, shape = inputs
    entries = [each.entries for each in (values, weights) if isinstance(each, EntryRows)]
    if columns_of(indices) is None or entries != 2 * [indices.entries]:
        return None
    if (elements_in(shape) or (None,))[0] != BATCH:
        return None
    return [DenseValue(op.outputs[0], Side.USER, (BATCH, *values.known_dims()[1:]))]


ENTRY_RULES: Dict[str, EntryRule] = {
    op_registry.COMBINE_WEIGHTED: _combine_weighted,
    op_registry.IDS_WITHOUT_PADDING: _without_padding,
    "GatherNd": _gather_nd,
    "RaggedTensorToSparse": _ragged_to_sparse,
    "Where": _where,
    op_registry.TABLE_GROUP_LOOKUP: _combined_lookup,
}
