# SPDX-License-Identifier: Apache-2.0
"""Shuffles, repeats and batches rows: the arguments that all input_fn builders share."""

import dataclasses
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.row_parsers import check_count

_Dataset = tf.data.Dataset

# Rows in the shuffle buffer with shuffle=True. Columns in memory are always shuffled completely.
_SHUFFLE_ROWS = 10_000

# Number of row indices that are made at once if columns in memory are read in order.
_INDEX_BLOCK = 65536


@dataclasses.dataclass(frozen=True)
class Batching:
    """The arguments that all builders share.

    Attributes:
      batch_size: Rows per batch, at least 1.
      shuffle: Whether to shuffle, or the number of rows in the shuffle buffer.
      seed: Makes the order reproducible; None: the seed of the graph.
      num_epochs: Passes over the data; None: unlimited.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance, or tf.data.AUTOTUNE.

    Raises:
      ValueError: A value is out of range.
    """

    batch_size: int
    shuffle: Union[bool, int]
    seed: Optional[int]
    num_epochs: Optional[int]
    drop_remainder: bool
    prefetch: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.num_epochs is not None:
            check_count("num_epochs", self.num_epochs)
        if not isinstance(self.shuffle, (bool, np.bool_)):
            try:
                check_count("shuffle", self.shuffle)
            except ValueError:
                raise ValueError(
                    f"shuffle must be True, False or a number of rows >= 1, got {self.shuffle!r}; "
                    "it is the size of the shuffle buffer"
                ) from None
        if self.seed is not None and not hasattr(self.seed, "__index__"):
            raise ValueError(
                f"seed must be an integer or None, got {self.seed!r}; None takes the graph's seed"
            )
        if not isinstance(self.drop_remainder, (bool, np.bool_)):
            raise ValueError(
                f"drop_remainder must be True or False, got {self.drop_remainder!r}; the default "
                "is False"
            )
        if not hasattr(self.prefetch, "__index__") or self.prefetch < tf.data.AUTOTUNE:
            raise ValueError(
                "prefetch must be a number of batches >= 0 or tf.data.AUTOTUNE, got "
                f"{self.prefetch!r}; the default is 2"
            )

    @property
    def least_rows(self) -> int:
        """The least number of rows of a pass that gives at least one batch."""
        if not self.drop_remainder or self.num_epochs is None:
            return 1
        return -(-self.batch_size // self.num_epochs)

    @property
    def shuffle_rows(self) -> int:
        """Number of rows in the shuffle buffer; 0: rows are not shuffled."""
        return int(self.shuffle) if not self.shuffle or self.shuffle is not True else _SHUFFLE_ROWS

    def batches(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches of batch_size rows from blocks of rows, over all passes."""
        if not self.shuffle:
            return blocks.repeat(self.num_epochs).rebatch(self.batch_size, self.drop_remainder)
        rows = blocks.unbatch().shuffle(self.shuffle_rows, self.seed, reshuffle_each_iteration=True)
        return rows.repeat(self.num_epochs).batch(self.batch_size, self.drop_remainder)

    def indices(self, num_rows: int) -> tf.data.Dataset:
        """Makes batches of row indices, int64 [batch_size], over all passes.

        Args:
          num_rows: Number of rows in memory.
        """
        if not self.shuffle:
            blocks = _Dataset.range(0, num_rows, _INDEX_BLOCK).map(
                lambda start: tf.range(start, tf.minimum(start + _INDEX_BLOCK, num_rows))
            )
            return self.batches(blocks)
        seed = numpy_seed(self.seed)

        def permutation(epoch: np.int64) -> np.ndarray:
            return np.random.default_rng([seed, int(epoch)]).permutation(num_rows)

        def shuffled(epoch: tf.Tensor) -> tf.Tensor:
            order = tf.numpy_function(permutation, [epoch], tf.int64)
            order.set_shape([num_rows])
            return order

        epochs = _Dataset.range(tf.int64.max if self.num_epochs is None else self.num_epochs)
        # The prefetch draws the next order while a pass is read.
        orders = epochs.map(shuffled).prefetch(1)
        return orders.rebatch(self.batch_size, self.drop_remainder)


def numpy_seed(seed: Optional[int]) -> int:
    """A seed for NumPy, which takes no negative ones. None: the graph's seed, or a random one."""
    if seed is None:
        seed = tf.compat.v1.get_default_graph().seed
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    return abs(int(seed)) * 2 + (int(seed) < 0)
