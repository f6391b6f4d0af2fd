# SPDX-License-Identifier: Apache-2.0
"""Rules of the ops that make entries of users' rows, and rows of entries: sparse features.

Where and GatherNd take the ids out of a padded matrix, the lookups of tables combine what they find
for a row's ids into one vector.
"""

from typing import Any, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.entries import Entries
from rec_estimator.sample_compression.analysis.sizes import BATCH
from rec_estimator.sample_compression.analysis.values import Side, Value
from rec_estimator.sample_compression.rules.sparse import (
    are_indices,
    are_keys,
    are_rows,
    indices_of,
    sparse_made,
)


def entries_made(
    expansion: Any, op: tf.Operation, inputs: Sequence[Value]
) -> Optional[List[Value]]:
    """The outputs of an op that takes entries out of users' rows; None where it is no such op."""
    if op.type == "Where" and are_rows(inputs[0]):
        entries = Entries.of_sparse(expansion, op.outputs[0], is_sorted=True)
        return [indices_of(op.outputs[0], entries, len(inputs[0].dims))]
    if op.type == "GatherNd" and are_rows(inputs[0]) and are_indices(inputs[1]):
        depth = inputs[1].dims[1].factor
        dims = (BATCH, *inputs[0].dims[depth:])
        return [Value(op.outputs[0], Side.USER, dims, None, inputs[1].entries)]
    if op.type == "RaggedTensorToSparse" and _are_ragged(inputs):
        return _ragged_to_sparse(op, inputs[1].entries)
    return sparse_made(expansion, op, inputs)


def _ragged_to_sparse(op: tf.Operation, entries: Entries) -> List[Value]:
    indices, values, shape = op.outputs
    dims, elements = (sizes_lib.number(2),), (BATCH, None)
    return [
        indices_of(indices, entries, 2),
        Value(values, Side.USER, (BATCH,), None, entries),
        Value(shape, Side.USER, dims, elements, entries, entries.bounding_shape),
    ]


def looked_up(op: tf.Operation, inputs: Sequence[Value]) -> Tuple[List[Optional[Value]], List[int]]:
    """The outputs of a fused lookup, each of which depends on its own inputs only.

    Returns:
      The outputs, None for those that stay on the candidates' side, and which inputs belong to the
      others.
    """
    count = op.get_attr("N")
    outputs: List[Optional[Value]] = []
    of_users: List[int] = []
    for i, (dim, combiner) in enumerate(zip(op.get_attr("dims"), op.get_attr("combiners"))):
        keys, indices, shape = (inputs[n * count + i] for n in (1, 2, 3))
        width = sizes_lib.number(dim)
        value = None
        if combiner == b"none":
            if keys.side == Side.USER and keys.repeat is None and keys.dims is not None:
                dims = (*keys.dims, width)
                value = Value(op.outputs[i], Side.USER, dims, entries=keys.entries)
        elif (
            are_indices(indices)
            and keys.entries is indices.entries
            and are_keys(keys)
            and (shape.elements or (None,))[0] == BATCH
        ):
            value = Value(op.outputs[i], Side.USER, (BATCH, width))
        outputs.append(value)
        if value is not None:
            of_users += [n * count + i for n in (1, 2, 3)]
    return outputs, of_users


def _are_ragged(inputs: Sequence[Value]) -> bool:
    """Whether the inputs are the row_splits and the values of a user's ragged tensor."""
    if len(inputs) != 2:
        return False
    splits, values = inputs
    return (
        values.side == splits.side == Side.USER
        and values.entries is not None
        and values.entries is splits.entries
        and splits.repeat == splits.entries.repeat_splits
        and are_keys(values)
    )
