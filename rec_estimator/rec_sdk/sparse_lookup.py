# SPDX-License-Identifier: Apache-2.0
"""sparse_lookup: the rows of a create_table table, as scripts for Rec SDK read them.

Step 3 of the data flow. It reads as lookup.py does and changes nothing either; what is its own:

    key                       training lookup             other lookup
    owns a row                its value                   its value
    owns none                 its initial vector          the default
    not admitted in this step the default                 the default
    -1, padding               the default                 the default

The default is serving_default_value, or zeros. Whether a key is admitted is judged with the whole
step counted already, over all training lookups of the table; of the lookups that are still to come
the first one knows nothing. So each asks for its own keys, and when the table's update is built,
TableShard.training_reads() makes all of them parts of one question.

Source: Rec SDK TensorFlow, ``mx_rec.core.embedding.sparse_lookup``.
"""

import re
from typing import Any, Dict, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._argument_checks import check_bool, check_int, check_text, refuse_unsupported
from rec_estimator._tensorflow import graphs
from rec_estimator.rec_sdk import feature_spec, runtime
from rec_estimator.rec_sdk.constants import (
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
)
from rec_estimator.rec_sdk.create_table import PADDING_KEY, SparseTable, Thresholds, table_timestamp
from rec_estimator.rec_sdk.feature_spec import FeatureSpec
from rec_estimator.table.lookup import control_flow_error, read_shards
from rec_estimator.table.shard import LookupRecord, TableShard

# Lookups of one table in one mode, at most, as in Rec SDK.
_MAX_LOOKUPS = 128
_MAX_NAME = 255

# What a name scope of TensorFlow has not.
_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_.\\/>-]")

# What callers in Rec SDK's style hand over beside the arguments.
_IGNORED = ("dim", "feature_spec_name_ids_dict", "lookup_ids", "multi_lookup")


def sparse_lookup(
    hashtable: SparseTable,
    ids: Union[tf.Tensor, FeatureSpec, Sequence[FeatureSpec]],
    send_count: Optional[int] = None,
    is_train: bool = True,
    name: Optional[str] = None,
    modify_graph: bool = False,
    batch: Optional[Dict[str, tf.Tensor]] = None,
    access_and_evict_config: Optional[Dict[str, Any]] = None,
    is_grad: bool = True,
    serving_default_value: Any = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Reads one row per id of a table of ``create_table``.

    A training lookup's keys are counted in each step that updates the table, and those admitted get
    a row; no lookup changes the table by itself.

    Args:
      hashtable: The table.
      ids: Integers of any shape, or floats that are whole; or the FeatureSpec of an entry of the
        batch, or a list of one.
      send_count: From 1, or None; must be given after ``init(use_dynamic=False)``; without effect.
      is_train: Whether this is a lookup of training. No gradient goes through another one.
      name: 1 to 255 characters; None: ``sparse_lookup_<n>``.
      modify_graph: Must be True where ids is a tensor.
      batch: What the iterator gave, where ids is a FeatureSpec.
      access_and_evict_config: A dict with some of ``access_threshold``, ``eviction_threshold``
        (both from -1, which is off, as None is) and ``faae_coefficient`` (from 1). The same in all
        training lookups of a table, and as the FeatureSpec has it where ids is one.
      is_grad: False: no gradient goes through; the keys are counted and admitted all the same.
      serving_default_value: What a key reads that has no row to read, as the module says: a tensor
        that broadcasts to [dim]. None: zeros.
      **kwargs: Ignored, as in Rec SDK; a warning names those that are not known.

    Returns:
      float32 [ids.shape, dim].

    Raises:
      ValueError: A bad argument, also one of the wrong type; thresholds that differ from those of
        another lookup of the table; a training lookup inside tf.cond, tf.while_loop or tf.function.
      RuntimeError: More than 128 lookups of the table in one mode; as of the FeatureSpec.

    Example:
      >>> table = rec.create_table(tf.int64, 2, "item", tf.zeros_initializer())
      >>> ids = tf.constant([[3, 3], [5, -1]], tf.int64)
      >>> rec.sparse_lookup(table, ids, modify_graph=True).shape
      TensorShape([2, 2, 2])
    """
    refuse_unsupported("hashtable", hashtable, "tables come from create_table")
    if not isinstance(hashtable, SparseTable):
        raise ValueError(
            f"hashtable must be a table of create_table, got {hashtable!r}; tables of "
            "get_embedding_variable go to embedding_lookup"
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
    refuse_unsupported("ids", ids, "give a tensor of the batch, or its FeatureSpec")
    spec = _spec_of(ids, modify_graph)
    thresholds = _thresholds(access_and_evict_config)
    if spec is not None:
        config, thresholds = thresholds, _thresholds_of(spec)
        # Scripts for both ways to give ids hand over both; what differs would be lost in silence.
        if access_and_evict_config is not None and config != thresholds:
            raise ValueError(
                f"access_and_evict_config must be that of FeatureSpec {spec.name!r}, got {config} "
                f"and {thresholds}; give the thresholds to the FeatureSpec"
            )
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
        if is_train and hashtable.thresholds.eviction_threshold:
            table_timestamp()  # So that it is initialized with the other variables.
        read = _read_in_training if is_train else _read
        values = read_shards(hashtable, keys, lambda shard, part: read(shard, part, default))
    return values if is_train and is_grad else tf.stop_gradient(values)


def _check_send_count(table: SparseTable, send_count: Any) -> None:
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


def _warn_of_unknown(arguments: Dict[str, Any]) -> None:
    unknown = sorted(set(arguments) - set(_IGNORED))
    if unknown:
        tf.logging.warning("sparse_lookup: unknown and ignored: %s", ", ".join(unknown))


def _spec_of(ids: Any, modify_graph: bool) -> Optional[FeatureSpec]:
    """The FeatureSpec that ids is, or None if it is a tensor."""
    if isinstance(ids, (FeatureSpec, list, tuple)):
        return feature_spec.as_spec(ids)
    if isinstance(ids, tf.SparseTensor):
        raise ValueError(
            f"ids must be dense, got {ids!r}; use tf.sparse.to_dense(ids, default_value=-1)"
        )
    if isinstance(ids, tf.RaggedTensor):
        raise ValueError(f"ids must be dense, got {ids!r}; use ids.to_tensor(default_value=-1)")
    if not isinstance(ids, (tf.Tensor, tf.Variable)):
        raise ValueError(f"ids must be a tf.Tensor or a FeatureSpec, got {ids!r}")
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
            else "cast them, if they are whole numbers"
        )
        raise ValueError(f"ids must be integers or floats, got {ids.dtype.name}; {remedy}")
    return tf.cast(ids, tf.int64)


def _thresholds(config: Any) -> Optional[Thresholds]:
    """What a lookup says; None if it says nothing of admission."""
    if config is None:
        return None
    if not isinstance(config, dict) or set(config) - set(Thresholds._fields):
        raise ValueError(
            "access_and_evict_config must be a dict with none but "
            f"{', '.join(Thresholds._fields)}, got {config!r}"
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


def _thresholds_of(spec: FeatureSpec) -> Optional[Thresholds]:
    return _thresholds({field: getattr(spec, field) for field in Thresholds._fields})


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
        if shard.table.filters_keys:
            # Compression puts here how often a user's keys come besides.
            counted = tf.zeros([0], tf.int64)
            asked = _ops.gen.rec_estimator_table_admits(shard.handle, keys, counted)
            # Where training_reads() puts the answer to all lookups' question.
            admits = tf.identity(asked, name="admits")
    address = tf.identity(keys, name="id_offset")
    if not shard.record_lookup(LookupRecord(keys, values.op, True, admits, address)):
        raise control_flow_error(values.op)
    tf.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, values)
    tf.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, address)
    if admits is not None:
        return _where(admits, values, tf.zeros([shard.dim]) if default is None else default)
    # The op reads zeros for padding.
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
