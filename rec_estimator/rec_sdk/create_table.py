# SPDX-License-Identifier: Apache-2.0
"""create_table: Rec SDK's door to the table, with its limits, its padding key and its frozen rows.

Step 2 of the data flow, as scripts for Rec SDK write it. The table is the one of table.py; a
SparseTable says more about it: how many rows it may have, that key -1 is padding, which rows never
move, and, once its lookups have said so, which keys are admitted and when they are evicted.

Source: Rec SDK TensorFlow, ``mx_rec.core.embedding.create_table``.
"""

import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text, refuse_unsupported
from rec_estimator._tensorflow import graphs, initializers
from rec_estimator.options import MAX_FILTER_FREQ, CounterFilter, EmbeddingVariableOption
from rec_estimator.rec_sdk import feature_spec, runtime
from rec_estimator.rec_sdk.constants import TIMESTAMP_VARIABLE
from rec_estimator.table.registration import (
    check_name_is_free,
    check_same_settings,
    number_of_shards,
    refuse_eager_mode,
    register_table,
)
from rec_estimator.table.table import EmbeddingTable, graph_tables

# The key that fills up rows of ids; it owns nothing.
PADDING_KEY = -1

# Rec SDK's bounds.
_MAX_DIM = 8192
_MAX_ROWS = 10**9
_MAX_NAME = 100
_MAX_INIT_PARAM = 10.0
_NAME_PATTERN = re.compile(r"[0-9A-Za-z_.]+")
_GRADIENT_OPS = ("sum_gradients", "sum_gradients_and_div_by_ranksize")


class Thresholds(NamedTuple):
    """When keys of a table are admitted and evicted, as its lookups say.

    Attributes:
      access_threshold: What a key's count must reach to own a row; 0: every key owns one, and is
        counted. None: the table has no admission.
      eviction_threshold: Seconds of the data's timestamps without training that evict a key; None:
        no key is evicted.
      faae_coefficient: What one occurrence adds to a key's count.
    """

    access_threshold: Optional[int] = None
    eviction_threshold: Optional[int] = None
    faae_coefficient: int = 1


class SparseTable(EmbeddingTable):
    """A table as ``create_table`` makes it. Attributes beside those of EmbeddingTable:

    Attributes:
      table_name: The name.
      variable: The table itself.
      emb_size: ``dim``.
      emb_initializer: As it was given.
      init_param: What every initial vector is multiplied by.
      is_save: Whether the table is in checkpoints.
      is_dp: As it was given; without effect in one process.
      max_rows: How many rows the table may have; 0: as many as there is memory for.
      device_vocabulary_size, host_vocabulary_size, ssd_vocabulary_size: As they were given.
      ssd_data_path: As it was given.
      padding_keys: Keys whose rows never move, ascending.
      is_grad: Whether a training lookup takes part in the gradient.
      send_count: The last lookup's.
      thresholds: When keys are admitted and evicted; None until a lookup has said so.
    """

    is_sparse_table = True

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        key_dtype: tf.DType,
        num_shards: int,
        initializer: Callable[..., Any],
        init_param: float,
        is_save: bool,
        sizes: Sequence[int],
        padding_keys: Sequence[int],
        given: Dict[str, Any],
    ) -> None:
        self.table_name = name
        self.emb_initializer = initializer
        self.init_param = init_param
        self.is_save = is_save
        self.sizes = tuple(sizes)
        self.device_vocabulary_size, self.host_vocabulary_size, self.ssd_vocabulary_size = sizes
        self.max_rows = 0 if runtime.get_use_dynamic_expansion() else sum(sizes[:2])
        self.padding_keys = tuple(padding_keys)
        self.is_dp: bool = given["is_dp"]
        self.ssd_data_path: Tuple[str, ...] = tuple(given["ssd_data_path"])
        self.given = given
        self.is_grad = False
        self.send_count: Optional[int] = None
        self.rank_size = runtime.get_rank_size()
        self.thresholds: Optional[Thresholds] = None
        self.num_lookups = {True: 0, False: 0}  # In training, and not.
        super().__init__(
            name,
            dim,
            key_dtype=key_dtype,
            num_shards=num_shards,
            initializer=initializer,
            ev_option=EmbeddingVariableOption(),
            trainable=True,
        )

    def _initial_vectors(self, initializer: Callable[..., Any], shape: List[int]) -> Any:
        vectors = super()._initial_vectors(initializer, shape)
        return vectors if self.init_param == 1 else vectors * self.init_param

    def handle_attrs(self, num_shards: int) -> Dict[str, Any]:
        """As of EmbeddingTable, with the limit of one shard, padding and frozen keys."""
        return {
            **super().handle_attrs(num_shards),
            "max_rows": -(-self.max_rows // num_shards),
            "has_padding_key": True,
            # Until a lookup has said which keys are admitted, a restore admits none that the
            # checkpoint has as counted only: a graph that does not train may not say it.
            "filter_freq": MAX_FILTER_FREQ,
            "frozen_keys": list(self.padding_keys),
        }

    @property
    def variable(self) -> "SparseTable":
        """The table itself, where Rec SDK has a tf.Variable."""
        return self

    @property
    def emb_size(self) -> int:
        """Elements of a row's value."""
        return self.dim

    @property
    def is_hbm(self) -> bool:
        """Whether there is one tier only, which Rec SDK calls HBM."""
        return self.host_vocabulary_size == 0

    @property
    def slice_device_vocabulary_size(self) -> int:
        """Rows of the device's tier in this process."""
        return self.device_vocabulary_size

    @property
    def slice_host_vocabulary_size(self) -> int:
        """Rows of the host's tier in this process."""
        return self.host_vocabulary_size

    @property
    def slice_ssd_vocabulary_size(self) -> int:
        """Rows of the SSD tier in this process."""
        return self.ssd_vocabulary_size

    @property
    def filter(self) -> Optional[CounterFilter]:
        """The rule that keeps keys out, as the thresholds say; None if there is none."""
        threshold = self.thresholds.access_threshold if self.thresholds else None
        return CounterFilter(threshold) if threshold else None

    @property
    def filters_keys(self) -> bool:
        """Whether some keys are not admitted at first sight."""
        return self.filter is not None and (
            self.thresholds.faae_coefficient < self.filter.filter_freq
        )

    def capacity(self) -> tf.Tensor:
        """Rows the table may have; without a limit, keys that fit before it grows, int64 []."""
        if not self.max_rows:
            return super().capacity()
        return tf.constant(self.max_rows, tf.int64)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Gives the table its thresholds, or compares them with those it has.

        Args:
          thresholds: Of one of its lookups.

        Raises:
          ValueError: Another lookup has said something else.
        """
        if self.thresholds is None:
            self.thresholds = thresholds
            for shard in self.shards:
                for name, value in (
                    ("filter_freq", thresholds.access_threshold or 0),
                    ("filter_coefficient", thresholds.faae_coefficient),
                ):
                    graphs.set_attr(shard.op, name, tf.AttrValue(i=value))
        elif self.thresholds != thresholds:
            raise ValueError(
                "the access and evict threshold param must be same in all lookups of table "
                f"{self.table_name!r}, got {thresholds} after {self.thresholds}; give each the "
                "same access_and_evict_config, or FeatureSpecs with the same thresholds"
            )

    def version_of_step(self, global_step: tf.Tensor) -> tf.Tensor:
        """What a step stamps rows with: the batch's timestamp if the table evicts by it.

        Args:
          global_step: int64 []. What is stamped otherwise.

        Returns:
          int64 []. Once it is known, so is ``table_timestamp()``.

        Raises:
          ValueError: The table evicts, and the batch has no timestamp.
        """
        if self.thresholds is None:
            self.set_thresholds(Thresholds())
        if not self.thresholds.eviction_threshold:
            return global_step
        keys = [lookup.keys for shard in self.shards for lookup in shard.lookups]
        timestamp = feature_spec.batch_timestamp(self.graph, keys)
        if timestamp is None:
            raise ValueError(
                f"the batch must have a timestamp, by which table {self.table_name!r} evicts, got "
                "none; add FeatureSpec(..., is_timestamp=True) to the dataset's, or put the "
                "tensor into the collection ASCEND_TIMESTAMP"
            )
        latest = table_timestamp()
        advance = tf.assign(latest, tf.maximum(latest.read_value(), timestamp))
        with tf.control_dependencies([advance]):
            return tf.identity(timestamp)

    def evict(self) -> tf.Tensor:
        """Takes away the keys that were not trained for ``eviction_threshold`` seconds.

        Seconds are those of the data's timestamps. An evicted key starts from count 0, its initial
        vector and fresh slots.

        Returns:
          int64 []. How many keys went, counted only ones included.

        Raises:
          ValueError: No lookup of the table has an eviction_threshold.
        """
        threshold = self.thresholds.eviction_threshold if self.thresholds else None
        if not threshold:
            raise ValueError(
                f"table {self.table_name!r} must have an eviction_threshold, got {self.thresholds}"
                "; give it in access_and_evict_config or in the FeatureSpec"
            )
        # A key goes iff timestamp - version > steps_to_live.
        return self._evict(table_timestamp().read_value(), steps_to_live=threshold - 1)

    def __repr__(self) -> str:
        return f"<rec_estimator.SparseTable {self.name!r} dim={self.dim} max_rows={self.max_rows}>"


def table_timestamp() -> tf.Variable:
    """The greatest timestamp of a batch that trained a table of the default graph, int64 [].

    Made when it is first asked for; saved with the model.
    """
    for variable in tf.global_variables():
        if variable.op.name == TIMESTAMP_VARIABLE:
            return variable
    with tf.init_scope(), tf.name_scope(None), tf.device("/device:CPU:0"):
        return tf.Variable(
            0, dtype=tf.int64, trainable=False, name=TIMESTAMP_VARIABLE, use_resource=True
        )


def create_table(
    key_dtype: tf.DType,
    dim: Union[int, tf.TensorShape],
    name: str,
    emb_initializer: Any,
    device_vocabulary_size: int = 1,
    host_vocabulary_size: int = 0,
    ssd_vocabulary_size: int = 0,
    ssd_data_path: Sequence[str] = (os.curdir,),
    is_save: bool = True,
    is_dp: bool = False,
    init_param: float = 1.0,
    all2all_gradients_op: str = "sum_gradients",
    enable_merge: bool = False,
    padding_keys: Optional[Union[int, Sequence[int]]] = None,
    padding_keys_mask: bool = False,
    padding_keys_len: Optional[int] = None,
    value_dtype: tf.DType = tf.float32,
    shard_num: int = 1,
    fusion_optimizer_var: bool = True,
    hashtable_threshold: int = 0,
) -> SparseTable:
    """Makes a table for ``sparse_lookup``, or finds the one of that name.

    Rec SDK's function: scripts change the import. The same call in the graphs of training,
    evaluation and prediction means the same tensors of a checkpoint; variable scopes do not change
    the name. Key -1 is padding: it reads the default, and is neither stored nor counted.

    Args:
      key_dtype: tf.int64 or tf.int32, whose keys widen: the table's are int64, and ids of both
        types are taken.
      dim: Elements of a row's value, in [1, 8192]: an int, or a tf.TensorShape of one dimension.
      name: 1 to 100 letters, digits, "_" and "."; each "." is left out, with a warning.
      emb_initializer: An instance of a TensorFlow initializer, of version 1 or 2.
      device_vocabulary_size: In [1, 1e9]. With host_vocabulary_size, the most rows the table may
        have; ``init(use_dynamic_expansion=True)`` lifts the limit.
      host_vocabulary_size: In [0, 1e9]: rows beyond those of the device, in the same memory.
      ssd_vocabulary_size: In [0, 1e9]; must be 0 until tables have an SSD tier.
      ssd_data_path: With ssd_vocabulary_size > 0, folders that exist, neither links nor with "..".
      is_save: Whether checkpoints have the table. False: it is drawn anew by each session.
      is_dp: Without effect in one process.
      init_param: In [-10, 10]. Every initial vector is multiplied by it.
      all2all_gradients_op: "sum_gradients" or "sum_gradients_and_div_by_ranksize", which are the
        same in one process.
      enable_merge: Without effect; only with dynamic expansion.
      padding_keys: Keys whose rows keep their values in training, while their slots go on.
      padding_keys_mask: Must be True with padding_keys, and False without.
      padding_keys_len: An int with padding_keys, None without; no more is read of it.
      value_dtype: tf.float32.
      shard_num: In [1, 8192]; without effect.
      fusion_optimizer_var: Without effect.
      hashtable_threshold: In [0, 2**31 - 1]; without effect.

    Returns:
      The table.

    Raises:
      ValueError: A bad argument, also one of the wrong type; eager mode; a table of that name with
        other settings.
      TypeError: padding_keys is neither an int nor a list of them.
      RuntimeError: enable_merge without dynamic expansion, or is_dp with padding_keys.

    Example:
      >>> table = rec.create_table(
      ...     key_dtype=tf.int64, dim=tf.TensorShape([4]), name="user_table",
      ...     emb_initializer=tf.truncated_normal_initializer(), device_vocabulary_size=1000)
      >>> table.table_name, table.emb_size, table.max_rows
      ('user_table', 4, 1000)
    """
    given = {
        "is_dp": is_dp,
        "ssd_data_path": ssd_data_path,
        "all2all_gradients_op": all2all_gradients_op,
        "enable_merge": enable_merge,
        "shard_num": shard_num,
        "fusion_optimizer_var": fusion_optimizer_var,
        "hashtable_threshold": hashtable_threshold,
    }
    sizes = (device_vocabulary_size, host_vocabulary_size, ssd_vocabulary_size)
    _check_types(key_dtype, value_dtype, emb_initializer)
    dim = _checked_dim(dim)
    name = _checked_name(name)
    check_bool("is_save", is_save)
    _check_init_param(init_param)
    _check_switches(given)
    _check_sizes(sizes, ssd_data_path)
    frozen = _checked_padding_keys(padding_keys, padding_keys_mask, padding_keys_len)
    if frozen and is_dp:
        raise RuntimeError(
            f"is_dp must be False with padding_keys, got True for table {name!r}; leave one out"
        )
    refuse_eager_mode("create_table")
    settings = dict(
        # int32 keys widen: Rec SDK's ids are int64 in any case.
        key_dtype=tf.int64,
        dim=dim,
        num_shards=number_of_shards(tf.get_variable_scope().partitioner, dim),
        initializer=emb_initializer,
        init_param=init_param,
        is_save=is_save,
        sizes=sizes,
        padding_keys=tuple(sorted(set(frozen))),
    )
    with tf.init_scope():
        return _find_or_make(name, settings, given)


def _find_or_make(name: str, settings: Dict[str, Any], given: Dict[str, Any]) -> SparseTable:
    for table in graph_tables():
        if table.name != name:
            continue
        if not isinstance(table, SparseTable):
            raise ValueError(
                f"name must not be that of a table of get_embedding_variable, got {name!r}; give "
                "the other table another name"
            )
        check_same_settings(table, **settings)
        return table
    check_name_is_free(name)
    table = SparseTable(name, given=given, **settings)
    register_table(table, [runtime.hashtable_collection()], is_saved=table.is_save)
    return table


def _check_types(key_dtype: Any, value_dtype: Any, initializer: Any) -> None:
    for name, value, allowed in (
        ("key_dtype", key_dtype, (tf.int64, tf.int32)),
        ("value_dtype", value_dtype, (tf.float32,)),
    ):
        # Not a bad name of a type either: tf.as_dtype raises TypeError for it.
        if value not in allowed:
            names = " or ".join(f"tf.{dtype.name}" for dtype in allowed)
            raise ValueError(f"{name} must be {names}, got {value!r}; give one of these")
    refuse_unsupported(
        "emb_initializer", initializer, "use tf.compat.v1.truncated_normal_initializer and its like"
    )
    if not isinstance(initializer, initializers.INITIALIZERS):
        raise ValueError(
            "emb_initializer must be an instance of a TensorFlow initializer, got "
            f"{initializer!r}; for example tf.compat.v1.truncated_normal_initializer()"
        )


def _checked_dim(dim: Any) -> int:
    if isinstance(dim, tf.TensorShape):
        if dim.rank != 1 or dim[0] is None:
            raise ValueError(f"dim can only be one dim shape, got {dim}; give tf.TensorShape([8])")
        dim = dim[0]
    dim = getattr(dim, "value", dim)  # Of a tf.Dimension.
    check_int("dim", dim, 1, _MAX_DIM)
    return dim


def _checked_name(name: Any) -> str:
    check_text("name", name, _MAX_NAME)
    if not _NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"name must have no other characters than letters, digits, '_' and '.', got {name!r}"
            "; give another"
        )
    kept = name.replace(".", "")
    if not kept:
        raise ValueError(f"name must have a letter, a digit or '_', got {name!r}; give another")
    if kept != name:
        tf.logging.warning("create_table: the name %r becomes %r.", name, kept)
    return kept


def _check_init_param(value: Any) -> None:
    # Written so that a NaN is refused.
    if not isinstance(value, float) or not -_MAX_INIT_PARAM <= value <= _MAX_INIT_PARAM:
        raise ValueError(
            f"init_param must be a float in [{-_MAX_INIT_PARAM:g}, {_MAX_INIT_PARAM:g}], got "
            f"{value!r}; write 1.0 for 1"
        )


def _check_switches(given: Dict[str, Any]) -> None:
    for name in ("is_dp", "enable_merge", "fusion_optimizer_var"):
        check_bool(name, given[name])
    check_int("shard_num", given["shard_num"], 1, 8192)
    check_int("hashtable_threshold", given["hashtable_threshold"], 0)
    if given["all2all_gradients_op"] not in _GRADIENT_OPS:
        raise ValueError(
            f"all2all_gradients_op should be one of {', '.join(_GRADIENT_OPS)}, got "
            f"{given['all2all_gradients_op']!r}; in one process both do the same"
        )
    if given["enable_merge"] and not runtime.get_use_dynamic_expansion():
        raise RuntimeError(
            "enable_merge requires dynamic expansion mode, got True without it; call "
            "init(use_dynamic_expansion=True) before"
        )


def _check_sizes(sizes: Sequence[int], paths: Any) -> None:
    device, host, ssd = sizes
    check_int("device_vocabulary_size", device, 1, _MAX_ROWS)
    check_int("host_vocabulary_size", host, 0, _MAX_ROWS)
    check_int("ssd_vocabulary_size", ssd, 0, _MAX_ROWS)
    if (
        not isinstance(paths, (list, tuple))
        or not paths
        or not all(isinstance(path, str) for path in paths)
    ):
        raise ValueError(
            f"ssd_data_path must be a list of at least one string, got {paths!r}; it is the "
            "folders of the SSD tier"
        )
    if ssd == 0:
        return
    if host == 0:
        raise ValueError(
            f"host_vocabulary_size must be above 0 with ssd_vocabulary_size, got 0 with {ssd}; the "
            "SSD tier lies behind that of the host"
        )
    for path in paths:
        if not os.path.isdir(path) or os.path.islink(path) or ".." in path:
            raise ValueError(
                "ssd_data_path must be folders that exist, no links and without '..', got "
                f"{path!r}; make the folder first"
            )
    raise ValueError(
        f"ssd_vocabulary_size must be 0, got {ssd}; the SSD tier is not there yet, add the rows "
        "to host_vocabulary_size"
    )


def _checked_padding_keys(keys: Any, mask: Any, length: Any) -> List[int]:
    check_bool("padding_keys_mask", mask)
    if length is not None:
        check_int("padding_keys_len", length, 0)
    if keys is None:
        if mask or length is not None:
            raise ValueError(
                "padding_keys must be given with padding_keys_mask=True and padding_keys_len, got "
                f"None with {mask!r} and {length!r}; give the keys, or leave all three out"
            )
        return []
    keys = [keys] if isinstance(keys, int) else keys
    if not isinstance(keys, list) or not all(
        isinstance(key, int) and not isinstance(key, bool) for key in keys
    ):
        raise TypeError(
            f"padding_keys must be an integer or a list of integers, got {keys!r}; give keys of "
            "the table"
        )
    if not keys or not all(-(2**63) <= key < 2**63 for key in keys):
        raise ValueError(
            f"padding_keys must be at least one int64, got {keys!r}; give keys of the table"
        )
    if not mask or length is None:
        raise ValueError(
            "padding_keys_mask and padding_keys_len must be True and an integer with padding_keys, "
            f"got {mask!r} and {length!r}; give both"
        )
    return keys
