# SPDX-License-Identifier: Apache-2.0
"""What the modules of this package know of tables and shards that are defined above them."""

import dataclasses
from typing import Any, Dict, Optional, Protocol, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.options import EmbeddingVariableOption, EvictionRule, Filter
from rec_estimator.table.disk_storage import DiskStorage
from rec_estimator.table.eviction import Eviction

# What versions count: global steps, or the timestamps of the data in seconds.
STEPS, SECONDS = "step", "second"

# The version of a row in a graph without a global step.
NO_GLOBAL_STEP = -1


@dataclasses.dataclass(frozen=True)
class SlotSpec:
    """One optimizer slot of every row of a table.

    Attributes:
      name: TensorFlow's name of the slot, e.g. "Adagrad" or "Adam_1". A checkpoint stores the slot
        as ``<table>/<name>``.
      width: Numbers per row.
      initial: Value of the slot in a new row.
    """

    name: str
    width: int
    initial: float = 0.0

    def dtype_in(self, table: "LogicalTable") -> tf.DType:
        """The type in which a table stores the slot; of one number per row, always float32."""
        return table.slot_dtype if self.width > 1 else tf.float32


class LogicalTable(Protocol):
    """A table, as its shards see it. ``table.EmbeddingTable`` documents the members."""

    name: str
    dim: int
    key_dtype: tf.DType
    row_dtype: tf.DType
    slot_dtype: tf.DType
    ev_option: EmbeddingVariableOption
    trainable: bool
    is_save: bool
    initial_value: tf.Tensor
    initializer: tf.Operation
    max_rows: int
    padding_keys: Tuple[int, ...]
    rule_of_optimizer: Optional[EvictionRule]

    @property
    def filter(self) -> Optional[Filter]:
        """See EmbeddingTable."""

    @property
    def disk_storage(self) -> Optional[DiskStorage]:
        """See EmbeddingTable."""

    @property
    def shape(self) -> tf.TensorShape:
        """See EmbeddingTable."""

    @property
    def shards(self) -> Sequence["SavedShard"]:
        """See EmbeddingTable."""

    def handle_attrs(self, part: int, num_parts: int) -> Dict[str, Any]:
        """See EmbeddingTable."""

    def set_initializer(self) -> None:
        """See EmbeddingTable."""

    def dynamic_shape(self, parts: Sequence[int]) -> tf.Tensor:
        """See EmbeddingTable."""

    @property
    def version_unit(self) -> str:
        """See EmbeddingTable."""

    def version_of_step(self, global_step: tf.Tensor) -> tf.Tensor:
        """See EmbeddingTable."""

    def version_of_write(self) -> tf.Tensor:
        """See EmbeddingTable."""

    @property
    def rules_at_saves(self) -> Sequence[EvictionRule]:
        """See EmbeddingTable."""

    def eviction(self, rule: Optional[EvictionRule] = None) -> Eviction:
        """See EmbeddingTable."""


class SavedShard(Protocol):
    """A shard, as its SaveableObject sees it. ``shard.TableShard`` documents the members."""

    name: str
    part: int
    num_parts: int
    slots: Tuple[SlotSpec, ...]
    handle: tf.Tensor
    initializer: tf.Operation

    @property
    def table(self) -> LogicalTable:
        """See TableShard."""

    @property
    def dim(self) -> int:
        """See TableShard."""

    @property
    def device(self) -> str:
        """See TableShard."""

    @property
    def updated_by(self) -> Optional[str]:
        """See TableShard."""

    @property
    def lacks_update(self) -> bool:
        """See TableShard."""

    @property
    def saveable(self) -> Any:
        """See TableShard."""
