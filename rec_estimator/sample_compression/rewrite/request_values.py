# SPDX-License-Identifier: Apache-2.0
"""What the pass knows about the tensors of a request before it visits any op."""

import dataclasses
from typing import Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.components import AnyTensor, components
from rec_estimator.sample_compression.analysis.entries import Entries
from rec_estimator.sample_compression.analysis.values import (
    Component,
    DenseShape,
    DenseValue,
    EntryRows,
    Indices,
    RowSplits,
    Side,
    Value,
)
from rec_estimator.sample_compression.rewrite.expansion import RowExpansion


def request_values(
    expansion: RowExpansion, users: Sequence[AnyTensor], items: Sequence[AnyTensor]
) -> Dict[str, Value]:
    """The values of all components of the request's tensors, by the names of the components.

    Args:
      expansion: The rows of the request.
      users: Tensors of B rows.
      items: Tensors of N rows.
    """
    values = {value.tensor.name: value for user in users for value in _of_user(expansion, user)}
    for item in items:
        parts = components(item)
        for part in parts:
            value = values_lib.opaque(part)
            if len(parts) == 1 and part.shape.rank:
                value = dataclasses.replace(value, dims=values_lib.rows_dims(part))
            values[part.name] = value
    return values


def _of_user(expansion: RowExpansion, user: AnyTensor) -> List[Value]:
    parts = components(user)
    dims = [values_lib.rows_dims(part) for part in parts]
    found: List[Value]
    if isinstance(user, tf.SparseTensor):
        indices, values, shape = parts
        entries = Entries.of_sparse(expansion, indices, is_sorted=False)
        rank = shape.shape.num_elements() or 1
        found = [
            Indices(indices, dims[0], entries),
            EntryRows(values, dims[1], entries),
            DenseShape(shape, dims[2], entries, (sizes_lib.BATCH, *[None] * (rank - 1))),
        ]
    elif isinstance(user, tf.RaggedTensor) and user.ragged_rank == 1:
        values, splits = parts
        entries = Entries.of_ragged(expansion, splits)
        found = [EntryRows(values, dims[0], entries), RowSplits(splits, dims[1], entries)]
    elif isinstance(user, tf.RaggedTensor):
        repeated = components(tf.gather(user, expansion.index))
        found = [
            Component(part, size, None, repeat=_always(full))
            for part, size, full in zip(parts, dims, repeated)
        ]
    else:
        found = [DenseValue(user, Side.USER, dims[0])]
    return found


def _always(tensor: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tensor
