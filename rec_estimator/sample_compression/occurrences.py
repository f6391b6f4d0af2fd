# SPDX-License-Identifier: Apache-2.0
"""Counts each key as often as the uncompressed batch would.

A compressed model looks a key up once for a user with 50 candidates; in the uncompressed batch this
key occurs 50 times. The ops that count keys, which are the apply of a table and the op that asks
which keys are admitted, receive the other 49 occurrences as keys that have no gradient.
"""

from typing import Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis.components import components
from rec_estimator.sample_compression.analysis.entries import Distinct
from rec_estimator.sample_compression.regions import Region
from rec_estimator.sample_compression.rewrite.rewrite import Rewrite
from rec_estimator.table.lookup_gradient import repeat_keys

# Ops that return keys one for one, and the index of the input that has the keys. The values of
# RaggedTensorToSparse are its last input.
_HAND_ON = {"Cast": 0, "Identity": 0, "Reshape": 0, "RaggedTensorToSparse": -1}


class Occurrences:
    """The occurrences of keys in the uncompressed batch.

    Args:
      rewrite: What the pass did.
    """

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self._sizes: Optional[tf.Tensor] = None

    def all_of(self, keys: tf.Tensor) -> tf.Tensor:
        """The keys that a lookup reads in the uncompressed batch.

        Args:
          keys: int64, any shape. The keys that the lookup reads in the compressed model.

        Returns:
          int64 [m]. `keys` itself if the lookup runs on candidates' rows.
        """
        counts = self._counts(keys)
        return keys if counts is None else repeat_keys(keys, counts)

    def further(self, keys: tf.Tensor) -> Optional[tf.Tensor]:
        """The occurrences that only the uncompressed batch has.

        Args:
          keys: int64, any shape. The keys that a lookup reads in the compressed model.

        Returns:
          int64 [m]. None if there are none.
        """
        counts = self._counts(keys)
        return None if counts is None else repeat_keys(keys, counts - 1)

    def is_repeated(self, keys: tf.Tensor) -> bool:
        """Whether a key may occur more often in the uncompressed batch.

        Args:
          keys: Any shape. The keys of one or several lookups of the compressed model.
        """
        rewrite = self._rewrite
        regions = rewrite.regions_of(keys)
        if regions:
            return _are_of_users(rewrite, regions)
        if not rewrite.knows(keys):
            is_handed_on = keys.op.type in ("ConcatV2", *_HAND_ON)
            return is_handed_on and any(map(self.is_repeated, keys.op.inputs))
        # A lookup of distinct keys reads each key once in both batches.
        return rewrite.is_of_users(keys) and not isinstance(rewrite.value(keys).entries, Distinct)

    def update_admissions(self) -> None:
        """Makes tables decide which users' keys they admit as in the uncompressed batch."""
        for op in tf.get_default_graph().get_operations():
            if op.type == op_registry.TABLE_ADMITS:
                further = self.further(op.inputs[1])
                if further is not None:
                    graphs.update_input(op, 2, further)

    def _counts(self, keys: tf.Tensor) -> Optional[tf.Tensor]:
        """int32 [n]. How often each key occurs in the uncompressed batch; None: once."""
        rewrite = self._rewrite
        if not rewrite.knows(keys) and keys.op.type in ("Reshape", "Identity"):
            return self._counts(keys.op.inputs[0])  # Built after the pass.
        regions = rewrite.regions_of(keys)
        if not regions:
            if not rewrite.is_of_users(keys):
                return None
            with tf.control_dependencies([self._sizes_of_users()]):
                return tf.identity(rewrite.occurrences(keys))
        if not _are_of_users(rewrite, regions):
            return None
        return self._counts_inside(
            {name: rows for r in regions for name, rows in _rows_in(r)}, keys
        )

    def _counts_inside(self, rows: Dict[str, tf.Tensor], keys: tf.Tensor) -> tf.Tensor:
        """``_counts`` for keys in a region, given the rows of the keys that the region reads."""
        if keys.name in rows:
            return tf.gather(self._sizes_of_users(), rows[keys.name])
        op = keys.op
        if op.type in _HAND_ON:
            return self._counts_inside(rows, op.inputs[_HAND_ON[op.type]])
        if op.type == op_registry.SHARD_KEYS_SPLIT:
            positions = op.outputs[keys.value_index + op.get_attr("N")]
            return tf.gather(self._counts_inside(rows, op.inputs[0]), positions)
        raise ValueError(
            f"keys of a lookup must come one for one from a feature's ids, got {op.type} "
            f"{op.name!r}"
        )

    def _sizes_of_users(self) -> tf.Tensor:
        """int32 [B]. The number of candidates of each user."""
        if self._sizes is None:
            expansion = self._rewrite.expansion
            least = (
                "a user must have a sample or more in training, got an item_size of 0; leave it out"
            )
            with tf.control_dependencies(None):
                ones = tf.ones_like(expansion.index)
                sizes = tf.math.unsorted_segment_sum(ones, expansion.index, expansion.users)
                with tf.control_dependencies([tf.debugging.assert_positive(sizes, message=least)]):
                    self._sizes = tf.identity(sizes)
        return self._sizes


def _are_of_users(rewrite: Rewrite, regions: Sequence[Region]) -> bool:
    """Whether the regions of a lookup run on users' rows."""
    parts = [part for tensor in regions[0].inputs for part in components(tensor)]
    return any(map(rewrite.is_of_users, parts))


def _rows_in(region: Region) -> List[Tuple[str, tf.Tensor]]:
    """The name of the keys of a region, and the row of each key."""
    keys = region.keys
    if keys is None:
        return []
    if isinstance(keys, tf.SparseTensor):
        return [(keys.values.name, keys.indices[:, 0])]
    return [(keys.flat_values.name, keys.value_rowids())]
