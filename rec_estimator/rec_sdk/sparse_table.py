# SPDX-License-Identifier: Apache-2.0
"""SparseTable: the table that create_table makes.

Step 2 of the data flow. It is the table of table/table.py with Rec SDK's additions: a row limit, a
padding key, rows that training does not change, and thresholds. The thresholds define which keys
are admitted and when they are evicted. The lookups of the table set them.

Source: Rec SDK TensorFlow, ``mx_rec.core.embedding``.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.options import (
    MAX_FILTER_FREQ,
    CounterFilter,
    EmbeddingVariableOption,
    EvictionRule,
)
from rec_estimator.rec_sdk import runtime
from rec_estimator.rec_sdk.data_time import table_timestamp, time_of_batch
from rec_estimator.table.disk_storage import DiskStorage
from rec_estimator.table.eviction import Eviction, build_eviction
from rec_estimator.table.eviction_rules import time_rule
from rec_estimator.table.interfaces import SECONDS
from rec_estimator.table.table import NEVER_TRAINED, EmbeddingTable, graph_tables
from rec_estimator.table.table_time import time_or_unknown

# The key that fills up rows of ids. It never owns a row.
PADDING_KEY = -1


class Thresholds(NamedTuple):
    """When keys of a table are admitted and evicted.

    Attributes:
      access_threshold: A key owns a row once its count reaches this number. 0: every key owns one,
        and is counted. None: the table has no admission.
      eviction_threshold: A key is evicted after this many seconds, by the data's timestamps,
        without training. None: no key is evicted.
      faae_coefficient: What one occurrence adds to a key's count.
    """

    access_threshold: Optional[int] = None
    eviction_threshold: Optional[int] = None
    faae_coefficient: int = 1


class SparseTable(EmbeddingTable):
    """A table of ``create_table``, with these attributes in addition to EmbeddingTable's.

    Attributes:
      table_name: The name of the table.
      variable: The table itself.
      emb_size: ``dim``.
      emb_initializer: The argument of create_table.
      init_param: Factor of every initial vector.
      is_save: Whether checkpoints contain the table.
      is_dp: The argument of create_table; without effect in one process.
      max_rows: The most rows the table may have; 0: as many as fit into memory.
      device_vocabulary_size, host_vocabulary_size, ssd_vocabulary_size, ssd_data_path: The
        arguments of create_table.
      padding_keys: Keys whose values training does not change, ascending.
      is_grad: Whether a gradient goes through any training lookup.
      send_count: The argument of the last lookup.
      thresholds: When keys are admitted and evicted; None until a lookup has set them.
    """

    is_sparse_table = True

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        key_dtype: tf.DType,
        num_shards: int,
        initializer: Callable[..., tf.Tensor],
        init_param: float,
        is_save: bool,
        sizes: Sequence[int],
        padding_keys: Sequence[int],
        is_dp: bool,
        ssd_data_path: Sequence[str],
        ev_option: EmbeddingVariableOption,
        value_dtype: tf.DType,
        slot_dtype: tf.DType,
    ) -> None:
        self.table_name = name
        self.emb_initializer = initializer
        self.init_param = init_param
        self.is_save = is_save
        self.sizes = tuple(sizes)
        self.device_vocabulary_size, self.host_vocabulary_size, self.ssd_vocabulary_size = sizes
        self.max_rows = 0 if runtime.get_use_dynamic_expansion() else sum(sizes)
        self.padding_keys = tuple(padding_keys)
        self.is_dp = is_dp
        self.ssd_data_path = tuple(ssd_data_path)
        self.is_grad = False
        self.send_count: Optional[int] = None
        self.rank_size = runtime.get_rank_size()
        self.thresholds: Optional[Thresholds] = None
        self.num_lookups = {True: 0, False: 0}  # By mode, True for training.
        super().__init__(
            name,
            dim,
            key_dtype=key_dtype,
            num_shards=num_shards,
            initializer=initializer,
            ev_option=ev_option,
            trainable=True,
            value_dtype=value_dtype,
            slot_dtype=slot_dtype,
        )

    def _initial_vectors(
        self, initializer: Callable[..., tf.Tensor], shape: List[int]
    ) -> tf.Tensor:
        vectors = super()._initial_vectors(initializer, shape)
        return vectors if self.init_param == 1 else vectors * self.init_param

    def handle_attrs(self, part: int, num_parts: int) -> Dict[str, Any]:
        """Same as for EmbeddingTable, with the row limit, padding and frozen keys."""
        return {
            **super().handle_attrs(part, num_parts),
            # A shard does not know the others; CheckRowLimit checks their sum before each step.
            "max_rows": self.max_rows,
            "has_padding_key": True,
            # A graph that does not train may have no lookup that sets the thresholds. Until one
            # does, a restore admits no key that is only counted in the checkpoint.
            "filter_freq": MAX_FILTER_FREQ,
            "frozen_keys": list(self.padding_keys),
        }

    @property
    def disk_storage(self) -> Optional[DiskStorage]:
        """The SSD tier; None without ssd_vocabulary_size, and with dynamic expansion."""
        if not self.ssd_vocabulary_size or not self.max_rows:
            return None
        in_memory = self.device_vocabulary_size + self.host_vocabulary_size
        return DiskStorage(self.ssd_data_path, memory_rows=in_memory)

    @property
    def variable(self) -> "SparseTable":
        """The table itself; a tf.Variable in Rec SDK."""
        return self

    @property
    def emb_size(self) -> int:
        """Number of elements of a row's value."""
        return self.dim

    @property
    def is_hbm(self) -> bool:
        """Whether the table has only one tier, which Rec SDK calls HBM."""
        return self.host_vocabulary_size == 0

    @property
    def slice_device_vocabulary_size(self) -> int:
        """Rows of the device tier in this process."""
        return self.device_vocabulary_size

    @property
    def slice_host_vocabulary_size(self) -> int:
        """Rows of the host tier in this process."""
        return self.host_vocabulary_size

    @property
    def slice_ssd_vocabulary_size(self) -> int:
        """Rows of the SSD tier in this process."""
        return self.ssd_vocabulary_size

    @property
    def filter(self) -> Optional[CounterFilter]:
        """The filter that the thresholds define; None without an access_threshold."""
        threshold = self.thresholds.access_threshold if self.thresholds else None
        return CounterFilter(threshold) if threshold else None

    @property
    def filters_keys(self) -> bool:
        """Whether one occurrence is not enough to admit a key."""
        return (
            self.thresholds is not None
            and self.filter is not None
            and self.thresholds.faae_coefficient < self.filter.filter_freq
        )

    @property
    def evicts(self) -> bool:
        """Whether a lookup has set an eviction_threshold."""
        return self.thresholds is not None and bool(self.thresholds.eviction_threshold)

    @property
    def version_unit(self) -> str:
        """Seconds if the table evicts by them, else steps; "" while a lookup may set thresholds."""
        if self.evicts:
            return SECONDS
        return "" if self._may_get_thresholds else super().version_unit

    @property
    def _may_get_thresholds(self) -> bool:
        """Whether a lookup may still decide what versions count."""
        return self.thresholds is None and time_rule(self) is None

    @property
    def version_after_reset(self) -> int:
        """-1: the versions may be timestamps, and a lookup may set the thresholds later."""
        return NEVER_TRAINED

    def capacity(self) -> tf.Tensor:
        """The most rows the table may have; without a limit, keys that fit until it grows.

        Returns:
          int64 [].
        """
        if not self.max_rows:
            return super().capacity()
        return tf.constant(self.max_rows, tf.int64)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Sets the thresholds of the table. Every lookup that does must set the same.

        Args:
          thresholds: The thresholds of a lookup.

        Raises:
          ValueError: Another lookup has set other thresholds, or the table has an evict_option and
            thresholds an eviction_threshold.
        """
        rule = self.ev_option.evict_option
        if thresholds.eviction_threshold and rule is not None:
            raise ValueError(
                f"eviction_threshold of table {self.table_name!r} must be None with evict_option, "
                f"got {thresholds.eviction_threshold} with {rule!r}; leave one out"
            )
        if self.thresholds is None:
            self.thresholds = thresholds
            for shard in self.shards:
                for name, value in (
                    ("filter_freq", thresholds.access_threshold or 0),
                    ("filter_coefficient", thresholds.faae_coefficient),
                ):
                    graphs.set_attr(shard.op, name, tf.AttrValue(i=value))
                unit = tf.AttrValue(s=self.version_unit.encode())
                graphs.set_attr(shard.op, "version_unit", unit)
        elif self.thresholds != thresholds:
            raise ValueError(
                "the access and evict threshold param must be same in all lookups of table "
                f"{self.table_name!r}, got {thresholds} after {self.thresholds}; give each the "
                "same access_and_evict_config, or FeatureSpecs with the same thresholds"
            )

    def version_of_step(self, global_step: tf.Tensor) -> tf.Tensor:
        """Returns the version that a step writes into rows.

        Args:
          global_step: int64 []. The version of a table that does not evict by seconds.

        Returns:
          int64 []. With an eviction_threshold, the timestamp of the batch; see data_time.py. The
          time is up to date once it has been computed.

        Raises:
          ValueError: The table evicts by seconds, and the batch has no timestamp.
        """
        if self.thresholds is None:
            self.set_thresholds(Thresholds())
        if not self.evicts:
            return super().version_of_step(global_step)
        keys = [lookup.keys for shard in self.shards for lookup in shard.lookups]
        return time_of_batch(self.table_name, keys, _eviction_thresholds(self.graph))

    def version_of_write(self) -> tf.Tensor:
        """int64 []. The time of the data if the table evicts by it, else as in EmbeddingTable.

        -1 while a lookup may set thresholds, and before the first timestamp.
        """
        if self.evicts:
            return time_or_unknown(table_timestamp().read_value())
        if self._may_get_thresholds:
            return tf.constant(NEVER_TRAINED, tf.int64)
        return super().version_of_write()

    def evict(self) -> tf.Tensor:
        """Evicts the keys that were not trained for ``eviction_threshold`` seconds.

        The data's timestamps count, not the clock. A table with an ``evict_option`` evicts the keys
        that this rule selects. An evicted key starts again from count 0, its initial vector and
        fresh slots.

        Returns:
          int64 []. The number of evicted keys, with those that were only counted.

        Raises:
          ValueError: The table has no evict_option, and no lookup of it an eviction_threshold.
        """
        return super().evict()

    def eviction(self, rule: Optional[EvictionRule] = None) -> Eviction:
        """As in EmbeddingTable."""
        threshold = self.thresholds.eviction_threshold if self.thresholds else None
        own = rule or self.ev_option.evict_option or self.rule_of_optimizer
        if not threshold and own is not None:
            return super().eviction(rule)
        if not threshold:
            raise ValueError(
                f"table {self.table_name!r} must have an eviction_threshold, got {self.thresholds}"
                "; give it in access_and_evict_config or in the FeatureSpec, or give create_table "
                "an evict_option"
            )
        # The op evicts a key iff timestamp - version > steps_to_live.
        latest, handles = table_timestamp().read_value(), [shard.handle for shard in self.shards]
        if rule is not None:
            return build_eviction(self.name, handles, rule, latest, **rule.attrs)
        return build_eviction(
            self.name, handles, self.thresholds, latest, steps_to_live=threshold - 1
        )

    def __repr__(self) -> str:
        return f"<rec_estimator.SparseTable {self.name!r} dim={self.dim} max_rows={self.max_rows}>"


def _eviction_thresholds(graph: tf.Graph) -> List[int]:
    """The eviction_threshold of each table of a graph that has one."""
    return [
        table.thresholds.eviction_threshold or 0
        for table in graph_tables(graph)
        if isinstance(table, SparseTable) and table.thresholds is not None and table.evicts
    ]
