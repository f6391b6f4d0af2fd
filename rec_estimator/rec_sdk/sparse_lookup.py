# SPDX-License-Identifier: Apache-2.0
"""sparse_lookup: the rows of a create_table table, as scripts for Rec SDK read them.

Step 3 of the data flow. Like the lookups of table/lookup.py it never changes a table. It reads:

    key                             training lookup             other lookup
    owns a row                      its value                   its value
    owns no row                     its initial vector          the default
    is not admitted in this step    the default                 the default
    -1, the padding key             the default                 the default

The default is serving_default_value, or zeros. A step first counts the keys of all training lookups
of the table, and then decides which keys are admitted. When a lookup is built, later lookups are
not yet known. Each lookup therefore builds an admission op for its own keys only. When the update
of the table is built, TableShard.training_reads() replaces them by one op for all lookups.

Source: Rec SDK TensorFlow, ``mx_rec.core.embedding.sparse_lookup``.
"""

import re
from typing import Any, Dict, Iterable, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._argument_checks import check_bool, check_int, check_text, refuse_keras
from rec_estimator._tensorflow import graphs
from rec_estimator.rec_sdk import feature_spec, runtime
from rec_estimator.rec_sdk.constants import (
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
)
from rec_estimator.rec_sdk.data_time import table_timestamp
from rec_estimator.rec_sdk.feature_spec import FeatureSpec
from rec_estimator.rec_sdk.sparse_table import PADDING_KEY, SparseTable, Thresholds
from rec_estimator.table.lookup import control_flow_error, read_shards
from rec_estimator.table.shard import LookupRecord, TableShard

# Rec SDK's limits: lookups of one table in one mode; characters of a name.
_MAX_LOOKUPS = 128
_MAX_NAME = 255

# Characters that TensorFlow does not allow in name scopes.
_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_.\\/>-]")

# Further keywords that scripts for Rec SDK pass.
_IGNORED = ("dim", "feature_spec_name_ids_dict", "lookup_ids", "multi_lookup")


def sparse_lookup(
    hashtable: SparseTable,
    ids: Union[tf.Tensor, FeatureSpec, Sequence[FeatureSpec]],
    send_count: Optional[int] = None,
    is_train: bool = True,
    name: Optional[str] = None,
    modify_graph: bool = False,
    batch: Any = None,
    access_and_evict_config: Optional[Dict[str, Any]] = None,
    is_grad: bool = True,
    serving_default_value: Any = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Reads one row per id of a table of ``create_table``.

    No lookup changes the table. Each step that updates the table counts the keys of its training
    lookups, and gives a row to those that are admitted.

    Args:
      hashtable: The table.
      ids: Integers of any shape, or floats with integer values; or the FeatureSpec of an entry of
        the batch, or a list of one FeatureSpec.
      send_count: From 1, or None. Required after ``init(use_dynamic=False)``. Without effect.
      is_train: Whether this is a training lookup. No gradient goes through other lookups.
      name: 1 to 255 characters. None: ``sparse_lookup_<n>``.
      modify_graph: Must be True if ids is a tensor.
      batch: If ids is a FeatureSpec: the batch that the iterator returned; in serving, the
        features, in which its index_key names the ids.
      access_and_evict_config: A dict with any of ``access_threshold``, ``eviction_threshold`` (from
        -1; -1 and None mean off) and ``faae_coefficient`` (from 1). All training lookups of a table
        must have the same, and so must the FeatureSpec if ids is one.
      is_grad: False: no gradient goes through this lookup; its keys are still counted and admitted.
      serving_default_value: The default of the table above: a tensor that broadcasts to [dim].
        None: zeros.
      **kwargs: Ignored, as in Rec SDK. A warning names those that Rec SDK does not know.

    Returns:
      float32 [ids.shape, dim].

    Raises:
      ValueError: An argument has a wrong type or value; thresholds differ from those of another
        lookup of the table; a training lookup is inside tf.cond, tf.while_loop or tf.function.
      RuntimeError: The table has more than 128 lookups in one mode; or the batch comes from a
        dataset, and no dataset of this mode declares the FeatureSpec.
      KeyError: The batch has no entry of the FeatureSpec.

    Example:
      >>> table = rec.create_table(tf.int64, 2, "item", tf.zeros_initializer())
      >>> ids = tf.constant([[3, 3], [5, -1]], tf.int64)
      >>> rec.sparse_lookup(table, ids, modify_graph=True).shape.as_list()
      [2, 2, 2]
    """
    refuse_keras("hashtable", hashtable, "tables come from create_table")
    if not isinstance(hashtable, SparseTable):
        raise ValueError(
            f"hashtable must be a table of create_table, got {hashtable!r}; tables of "
            "get_embedding_variable are read by embedding_lookup"
        )
    for argument, value in (
        ("is_train", is_train),
        ("modify_graph", modify_graph),
        ("is_grad", is_grad),
    ):
        check_bool(argument, value)
    if name is not None:
        check_text("name", name, _MAX_NAME)
    _check_send_count(hashtable, send_count)
    _warn_of_unknown(kwargs)
    refuse_keras("ids", ids, "give a tensor of the batch, or its FeatureSpec")
    spec = _spec_of(ids, modify_graph)
    thresholds = _thresholds_of(spec, access_and_evict_config)
    default = _default_vector(hashtable, serving_default_value)
    if hashtable.num_lookups[is_train] >= _MAX_LOOKUPS:
        raise RuntimeError(
            f"lookups of table {hashtable.table_name!r} in one mode must be at most "
            f"{_MAX_LOOKUPS}, got one more; look up several ids at once"
        )
    name = name or f"sparse_lookup_{sum(hashtable.num_lookups.values())}"
    with tf.name_scope(f"{hashtable.name}/{_NOT_IN_SCOPES.sub('_', name)}/"):
        if spec is None:
            keys = _as_int64(ids)
        else:
            keys = _as_int64(feature_spec.ids_of(spec, hashtable, is_train, batch))
        if is_train or thresholds is not None:
            hashtable.set_thresholds(thresholds or Thresholds())
        hashtable.num_lookups[is_train] += 1
        hashtable.send_count = send_count
        hashtable.is_grad |= is_train and is_grad
        if is_train and hashtable.evicts:
            table_timestamp()  # Made here to be initialized with the other variables.
        read = _read_in_training if is_train else _read
        values = read_shards(hashtable, keys, lambda shard, part: read(shard, part, default))
    return values if is_train and is_grad else tf.stop_gradient(values)


def _check_send_count(table: SparseTable, send_count: Optional[int]) -> None:
    if not runtime.is_static():
        if send_count is not None:
            check_int("send_count", send_count, 1)
        return
    if isinstance(send_count, bool) or not isinstance(send_count, int) or send_count < 1:
        raise ValueError(
            "send_count must be an integer larger than 0 after init(use_dynamic=False), got "
            f"{send_count!r}; give the number of ids of a batch"
        )
    check_int("send_count", send_count, 1)
    for tier, size in (
        ("device_vocabulary_size", table.device_vocabulary_size),
        ("host_vocabulary_size", table.host_vocabulary_size),
    ):
        if not table.is_hbm and size < send_count * table.rank_size:
            raise ValueError(
                f"{tier} of table {table.table_name!r} must be at least send_count = {send_count} "
                f"times {table.rank_size} processes, got {size}; make it larger"
            )


def _warn_of_unknown(arguments: Iterable[str]) -> None:
    unknown = sorted(set(arguments) - set(_IGNORED))
    if unknown:
        tf.logging.warning("sparse_lookup: unknown and ignored: %s", ", ".join(unknown))


def _spec_of(ids: object, modify_graph: bool) -> Optional[FeatureSpec]:
    """Checks ids. Returns their FeatureSpec, or None if they are a tensor."""
    if isinstance(ids, (FeatureSpec, list, tuple)):
        return feature_spec.as_spec(ids)
    if isinstance(ids, tf.SparseTensor):
        raise ValueError(
            f"ids must be dense, got {ids!r}; use tf.sparse.to_dense(ids, default_value=-1)"
        )
    if isinstance(ids, tf.RaggedTensor):
        raise ValueError(f"ids must be dense, got {ids!r}; use ids.to_tensor(default_value=-1)")
    if not isinstance(ids, (tf.Tensor, tf.Variable)):
        raise ValueError(
            f"ids must be a tf.Tensor or a FeatureSpec, got {ids!r}; take a tensor of the batch"
        )
    if not modify_graph:
        raise ValueError(
            "'ids' is type of tf.Tensor, 'modify_graph' should be set to True, got False; or give "
            "the FeatureSpec of the ids"
        )
    return None


def _as_int64(ids: Any) -> tf.Tensor:
    ids = tf.convert_to_tensor(ids)
    if ids.dtype == tf.int64:
        return ids
    if not ids.dtype.is_integer and not ids.dtype.is_floating:
        remedy = (
            "hash strings with tf.strings.to_hash_bucket_fast(ids, 2**63 - 1), or read numbers "
            "with tf.strings.to_number(ids, tf.int64)"
            if ids.dtype == tf.string
            else "cast them to tf.int64"
        )
        raise ValueError(f"ids must be integers or floats, got {ids.dtype.name}; {remedy}")
    return tf.cast(ids, tf.int64)


def _thresholds(config: Any) -> Optional[Thresholds]:
    """Checks the thresholds of a lookup; None if they define no admission."""
    if config is None:
        return None
    if not isinstance(config, dict) or set(config) - set(Thresholds._fields):
        raise ValueError(
            "access_and_evict_config must be a dict with no keys but "
            f"{', '.join(Thresholds._fields)}, got {config!r}; remove the others"
        )
    access, eviction = config.get("access_threshold"), config.get("eviction_threshold")
    coefficient = config.get("faae_coefficient", 1)
    for name, value in (("access_threshold", access), ("eviction_threshold", eviction)):
        if value is not None:
            check_int(name, value, -1)
    check_int("faae_coefficient", coefficient, 1)
    evicts = eviction is not None and eviction > 0
    if access is None or access == -1:
        if evicts:
            raise ValueError(
                f"access_threshold must be configured before eviction_threshold, got {access} "
                f"with {eviction}; 0 admits every key"
            )
        return None
    return Thresholds(access, eviction if evicts else None, coefficient)


def _thresholds_of(
    spec: Optional[FeatureSpec], config: Optional[Dict[str, Any]]
) -> Optional[Thresholds]:
    """The thresholds of a lookup: those of its FeatureSpec if it has one, or its argument."""
    given = _thresholds(config)
    if spec is None:
        return given
    of_spec = _thresholds({field: getattr(spec, field) for field in Thresholds._fields})
    # Scripts that support tensors and FeatureSpecs pass both. A difference must not be ignored.
    if config is not None and given != of_spec:
        raise ValueError(
            f"access_and_evict_config must be that of FeatureSpec {spec.name!r}, got {given} and "
            f"{of_spec}; give the thresholds to the FeatureSpec"
        )
    return of_spec


def _default_vector(table: SparseTable, value: Any) -> Optional[tf.Tensor]:
    if value is None:
        return None
    rule = f"serving_default_value must be numbers that broadcast to [{table.dim}]"
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule}, got {value!r}; give a tensor") from error
    numeric = value.dtype.is_floating or value.dtype.is_integer
    fits = value.shape.rank is None or (
        value.shape.rank <= 1 and value.shape.num_elements() in (None, 1, table.dim)
    )
    if not numeric or not fits:
        raise ValueError(f"{rule}, got {value!r}; for example tf.zeros([{table.dim}])")
    return tf.cast(value, tf.float32)


def _read_in_training(
    shard: TableShard, keys: tf.Tensor, default: Optional[tf.Tensor]
) -> tf.Tensor:
    with graphs.colocate_with(shard.handle):
        values = _ops.gen.rec_estimator_table_lookup(
            shard.handle, keys, dim=shard.dim, unknown="initial"
        )
        admits = None
        if isinstance(shard.table, SparseTable) and shard.table.filters_keys:
            # Sample compression replaces this by further occurrences of keys.
            counted = tf.zeros([0], tf.int64)
            own = _ops.gen.rec_estimator_table_admits(shard.handle, keys, counted)
            # training_reads() replaces the input of this op.
            admits = tf.identity(own, name="admits")
    address = tf.identity(keys, name="id_offset")
    if not shard.record_lookup(LookupRecord(keys, values.op, True, admits, address)):
        raise control_flow_error(values.op)
    tf.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, values)
    tf.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, address)
    if admits is not None:
        return _where(admits, values, tf.zeros([shard.dim]) if default is None else default)
    # The lookup op reads zeros for the padding key.
    return values if default is None else _where(tf.not_equal(keys, PADDING_KEY), values, default)


def _read(shard: TableShard, keys: tf.Tensor, default: Optional[tf.Tensor]) -> tf.Tensor:
    with graphs.colocate_with(shard.handle):
        values = _ops.gen.rec_estimator_table_lookup(
            shard.handle, keys, dim=shard.dim, unknown="default"
        )
        if default is None:
            return values
        owns_row = _ops.gen.rec_estimator_table_contains(shard.handle, keys)
    return _where(owns_row, values, default)


def _where(mask: tf.Tensor, values: tf.Tensor, default: tf.Tensor) -> tf.Tensor:
    return tf.where_v2(tf.expand_dims(mask, axis=-1), values, default)
