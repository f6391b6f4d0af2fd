# SPDX-License-Identifier: Apache-2.0
"""Embedded features: their declarations, and the lookup that turns ids of a batch into vectors.

Step 1 of the data flow: **features name keys**, tables hold their rows, lookups read them.
RecEstimator calls lookup_features on every batch. The model_fn then finds vectors under the names
under which input_fn returned ids.
"""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.embedding_variable import (
    MAX_DIM,
    NAME_PATTERN,
    as_slot_dtype,
    as_value_dtype,
    get_embedding_variable,
)
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.observers import observers
from rec_estimator.options import (
    EmbeddingVariableOption,
    EvictionRule,
    Filter,
    InitializerOption,
    PretrainedRows,
)
from rec_estimator.regularizers import Regularizer
from rec_estimator.table.combined_lookup import group_embedding_lookup_sparse
from rec_estimator.table.registration import comparable
from rec_estimator.table.table import EmbeddingTable, check_narrow_dim

# String ids are hashed to the non-negative half of int64, as in DeepRec.
_HASH_BUCKETS = 2**63 - 1

# The standard deviation of new rows. docs/decisions.md has the measurement.
_ROW_STDDEV = 0.05

# The gradient of sequences that are padded.
_PADDED_ROWS = "RecEstimatorPaddedRows"

_COMBINERS = ("sum", "mean", "sqrtn", None)
# The settings of a table that say how it stores rows.
_DTYPES = ("value_dtype", "slot_dtype")
_ID_TYPES = (tf.int64, tf.int32, tf.string)

_Ids = Union[tf.SparseTensor, tf.RaggedTensor]


@dataclasses.dataclass(frozen=True, init=False)
class EmbeddingFeature:
    """Declares a feature whose ids are looked up in an embedding table.

    Attributes:
      name: Name of the feature. model_fn gets its vectors under this name, and its ids, as input_fn
        returned them, under "<name>_ids".
      dim: Floats per vector.
      source: Name under which input_fn returns the ids; None: the name of the feature. Several
        features may have one source, for example a sequence and its mean.
      table: Name of the table; None: the name of the feature. Features may share a table. They must
        have the same dim. An initializer, or a field of ev_option, that one of them sets holds for
        all; a field with its default value is not set.
      combiner: "mean", "sum" or "sqrtn" combine the vectors of an example into one; an example
        without ids gets zeros. None keeps a sequence of max_length vectors.
      max_length: Vectors per example if combiner is None. Further ids are cut off.
      dtype: tf.int64, tf.int32 or tf.string. Integers are keys; strings are hashed to keys.
      weight: Name of the entry of the features that holds one weight per id, for the combiner.
      initializer: TensorFlow initializer of new rows, as in get_embedding_variable. None: that of
        the variable scope, else truncated_normal_initializer() with standard deviation 0.05.
      ev_option: EmbeddingVariableOption of the table. The arguments ``filter_option=``,
        ``evict_option=`` and ``regularizer=`` set these fields of it, and ``pretrained=`` takes the
        path of a file with rows (PretrainedRows); a field can be set in one way only.
      value_dtype: How the table stores vectors, as in get_embedding_variable. None: not set.
      slot_dtype: How it stores the slots of optimizers, likewise.

    Raises:
      TypeError: A setting has the wrong type.
      ValueError: A setting is out of range.

    Example:
      >>> rec.EmbeddingFeature("user", dim=16).table
      'user'
      >>> rec.EmbeddingFeature("history", 16, table="item", combiner=None, max_length=50).max_length
      50
      >>> rec.EmbeddingFeature("history_mean", 16, source="history", table="item").ids_name
      'history_mean_ids'
      >>> rec.EmbeddingFeature("ad", 16, filter_option=rec.CounterFilter(3)).ev_option.filter_option
      CounterFilter(filter_freq=3)
    """

    name: str
    dim: int
    source: str
    table: str
    combiner: Optional[str]
    max_length: Optional[int]
    dtype: tf.DType
    weight: Optional[str]
    initializer: Optional[Callable[..., tf.Tensor]]
    ev_option: Optional[EmbeddingVariableOption]
    value_dtype: Optional[tf.DType]
    slot_dtype: Optional[tf.DType]

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        source: Optional[str] = None,
        table: Optional[str] = None,
        combiner: Optional[str] = "mean",
        max_length: Optional[int] = None,
        dtype: Any = tf.int64,
        weight: Optional[str] = None,
        initializer: Optional[Callable[..., tf.Tensor]] = None,
        ev_option: Optional[EmbeddingVariableOption] = None,
        filter_option: Optional[Filter] = None,
        evict_option: Optional[EvictionRule] = None,
        regularizer: Optional[Regularizer] = None,
        pretrained: Optional[str] = None,
        value_dtype: Optional[tf.DType] = None,
        slot_dtype: Optional[tf.DType] = None,
    ) -> None:
        values = dict(locals())
        values["value_dtype"] = None if value_dtype is None else as_value_dtype(value_dtype)
        values["slot_dtype"] = None if slot_dtype is None else as_slot_dtype(slot_dtype)
        values["source"] = name if source is None else source
        values["table"] = name if table is None else table
        values["ev_option"] = _with_shorthands(
            ev_option,
            filter_option=filter_option,
            evict_option=evict_option,
            regularizer=regularizer,
            pretrained=None
            if pretrained is None
            else PretrainedRows(pretrained, dtype != tf.string),
        )
        for field in dataclasses.fields(self):
            # The class is frozen; a dataclass sets its own fields in this way as well.
            object.__setattr__(self, field.name, values[field.name])
        self.__post_init__()

    def __post_init__(self) -> None:
        check_name("name", self.name)
        _check_positive("dim", self.dim)
        if self.dim > MAX_DIM:
            raise ValueError(
                f"dim must be <= {MAX_DIM}, got {self.dim}; it is the length of a vector, not the "
                "number of rows"
            )
        for setting in _DTYPES:
            dtype = getattr(self, setting)
            if dtype is not None:
                check_narrow_dim("dim", self.dim, dtype, setting)
        check_name("source", self.source)
        check_name("table", self.table)
        if not NAME_PATTERN.fullmatch(self.table):
            raise ValueError(
                f"table must be a name that TensorFlow accepts for an op, {NAME_PATTERN.pattern}, "
                f"got {self.table!r}; pass table= in addition to the feature's name"
            )
        if self.combiner not in _COMBINERS:
            raise ValueError(
                f'combiner must be "mean", "sum", "sqrtn" or None, got {self.combiner!r}'
            )
        if self.combiner is None:
            if self.max_length is None:
                raise ValueError(
                    f"max_length must be given where combiner is None, got None for feature "
                    f"{self.name!r}; it is the number of vectors per example"
                )
            _check_positive("max_length", self.max_length)
        elif self.max_length is not None:
            raise ValueError(
                f"max_length must be None where ids are combined, got {self.max_length!r} with "
                f"combiner {self.combiner!r}; pass combiner=None for a sequence of vectors"
            )
        if self.weight is not None:
            check_name("weight", self.weight)
            if self.combiner is None:
                raise ValueError(
                    f"weight must be None where combiner is None, got {self.weight!r}; multiply "
                    "the vectors in model_fn"
                )
        try:
            dtype = tf.as_dtype(self.dtype)
        except TypeError:
            dtype = None
        if dtype not in _ID_TYPES:
            raise ValueError(
                f"dtype must be tf.int64, tf.int32 or tf.string, got {self.dtype!r}; ids are "
                "names, not numbers to compute with"
            )
        object.__setattr__(self, "dtype", dtype)
        if self.initializer is not None and not callable(self.initializer):
            raise TypeError(
                f"initializer must be a TensorFlow initializer, got {self.initializer!r}"
            )
        if self.ev_option is not None and not isinstance(self.ev_option, EmbeddingVariableOption):
            raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {self.ev_option!r}")

    @property
    def mask_name(self) -> str:
        """With combiner=None, the name of the mask that marks padding with False."""
        return f"{self.name}_mask"

    @property
    def ids_name(self) -> str:
        """The name under which model_fn finds the ids."""
        return f"{self.name}_ids"

    @property
    def _added_names(self) -> Dict[str, str]:
        """The names of the entries besides the vectors, and what each entry is."""
        added = {self.ids_name: "ids"}
        if self.combiner is None:
            added[self.mask_name] = "mask"
        return added


def check_declarations(declarations: Sequence[EmbeddingFeature]) -> None:
    """Checks that the declarations of a model fit together.

    Args:
      declarations: The embedded features of one model.

    Raises:
      TypeError: A declaration is not an EmbeddingFeature.
      ValueError: Two features have the same name, one has the name of another's ids or mask, or
        they share a table with different settings.

    Example:
      >>> check_declarations([rec.EmbeddingFeature("user", 8), rec.EmbeddingFeature("item", 8)])
    """
    if isinstance(declarations, EmbeddingFeature):
        raise TypeError(
            f"embedding_features must be a list of declarations, got {declarations!r}; write [ ] "
            "around it"
        )
    by_name: Dict[str, EmbeddingFeature] = {}
    for feature in declarations:
        if not isinstance(feature, EmbeddingFeature):
            raise TypeError(
                f"embedding_features must be EmbeddingFeature declarations, got {feature!r}; for "
                'example [rec_estimator.EmbeddingFeature("user", dim=16)]'
            )
        if feature.name in by_name:
            raise ValueError(
                f"embedding_features must have different names, got {feature.name!r} twice"
            )
        by_name[feature.name] = feature
    for feature in declarations:
        for name, what in feature._added_names.items():
            if name in by_name:
                raise ValueError(
                    f"embedding_features must leave the name {name!r} to the {what} of "
                    f"{feature.name!r}, got a feature of that name; pass another name, with source="
                )
    _settings_by_table(declarations)


def lookup_features(
    features: Mapping[str, Any], declarations: Sequence[EmbeddingFeature]
) -> Dict[str, Any]:
    """Looks up all declared features of a batch.

    Ids may be dense [B] or [B, k], SparseTensor [B, k] or RaggedTensor [B, (k)]. In dense ids, -1
    and "" are padding, as in TensorFlow's feature columns; training neither counts nor inserts
    padding. In sparse and ragged ids, every value is a key.

    Args:
      features: The batch, a dict from names to tensors.
      declarations: The embedded features. Other entries of the batch are returned unchanged.

    Returns:
      A new dict in which each declared name has float32 [B, dim]. With combiner=None, it has
      float32 [B, max_length, dim], with zeros where an example has fewer ids; and "<name>_mask" has
      bool [B, max_length], True for each id. "<name>_ids" has the ids as they are in the batch,
      with their padding.

    Raises:
      TypeError: features is not a dict, or ids or weights have the wrong type.
      ValueError: A declared feature or weight is missing or has the wrong shape, or an entry of
        the batch has a name that the result needs.
      tf.errors.InvalidArgumentError: Ids and weights differ in size, or sparse indices are not
        sorted (while running).

    Example:
      >>> batch = {"user": tf.constant([7, 8], tf.int64), "price": tf.constant([1.0, 2.0])}
      >>> looked_up = lookup_features(batch, [rec.EmbeddingFeature("user", dim=4)])
      >>> looked_up["user"].shape.as_list(), looked_up["price"].shape.as_list()
      ([2, 4], [2])
    """
    check_declarations(declarations)
    if not isinstance(features, Mapping):
        raise TypeError(
            "features must be a dict of tensors where embedding_features are declared, got "
            f"{features!r}"
        )
    looked_up = dict(features)
    requests = []
    for feature in declarations:
        with tf.name_scope(None, "embedding_feature"):
            requests.append(_request(feature, features))
        _check_names_are_free(feature, features)
    tables = {
        name: _table(name, settings) for name, settings in _settings_by_table(declarations).items()
    }
    vectors = group_embedding_lookup_sparse(
        [tables[feature.table] for feature in declarations],
        [request.ids for request in requests],
        [feature.combiner for feature in declarations],
        sp_weights=[request.weights for request in requests],
    )
    for feature, request, result in zip(declarations, requests, vectors):
        looked_up[feature.ids_name] = request.raw
        sequences = request.sequences
        if sequences is None:
            result.set_shape([request.batch_size, feature.dim])
            looked_up[feature.name] = result
            continue
        shape = [request.batch_size, feature.max_length, feature.dim]
        padded = _padded(sequences, result, shape)
        mask = tf.sequence_mask(sequences.row_lengths(), feature.max_length)
        mask.set_shape([request.batch_size, feature.max_length])
        looked_up[feature.name] = padded
        looked_up[feature.mask_name] = mask
    for feature, request in zip(declarations, requests):
        names = (
            [feature.name] if feature.combiner is not None else [feature.name, feature.mask_name]
        )
        raw = [features[name] for name in (feature.source, feature.weight) if name is not None]
        keys = request.ids if request.sequences is None else request.sequences
        for observer in observers():
            observer.features_looked_up(raw, [looked_up[name] for name in names], keys)
    return looked_up


class _Request(NamedTuple):
    """The lookup of one feature.

    Attributes:
      ids: int64. Sparse or ragged [B, (k)] if there is a combiner; else dense [n], the flat values
        of sequences.
      weights: float32, of the structure of ids.
      sequences: int64 [B, (<= max_length)] if there is no combiner.
      raw: The ids as they are in the batch.
      batch_size: B, if it is static.
    """

    ids: Union[_Ids, tf.Tensor]
    weights: Optional[_Ids]
    sequences: Optional[tf.RaggedTensor]
    raw: Union[_Ids, tf.Tensor]
    batch_size: Optional[int]


def _request(feature: EmbeddingFeature, features: Mapping[str, Any]) -> _Request:
    raw = _entry(features, feature.source, _ids_of(feature))
    _check_ids(feature, raw)
    batch_size = tf.dimension_value(raw.shape[0]) if raw.shape.rank else None
    raw_weights = None
    if feature.weight is not None:
        what = f"weight {feature.weight!r} of feature {feature.name!r}"
        raw_weights = _entry(features, feature.weight, what)
        _check_weights(what, raw_weights, raw)
    ids, weights = without_padding(raw, raw_weights)
    ids = ids.with_values(to_keys(ids.values))
    if feature.combiner is not None:
        return _Request(ids, weights, None, raw, batch_size)
    if isinstance(ids, tf.SparseTensor):
        # Ragged rows have no gaps: ids behind padding move to the front.
        ids = tf.RaggedTensor.from_value_rowids(
            ids.values, ids.indices[:, 0], nrows=ids.dense_shape[0]
        )
    # Cut before the lookup, so that training neither counts nor inserts what is cut off.
    ids = ids[:, : feature.max_length]
    return _Request(ids.flat_values, None, ids, raw, batch_size)


def _padded(
    sequences: tf.RaggedTensor, rows: tf.Tensor, shape: Sequence[Optional[int]]
) -> tf.Tensor:
    """Pads the rows of sequences with zeros.

    Args:
      sequences: [B, (<= max_length)].
      rows: float32 [n, dim], of the flat values of sequences.
      shape: [B or None, max_length, dim].

    Returns:
      float32 [B, max_length, dim].
    """
    ragged = tf.RaggedTensor.from_row_splits(rows, sequences.row_splits, validate=False)
    with tf.get_default_graph().gradient_override_map({"RaggedTensorToTensor": _PADDED_ROWS}):
        return ragged.to_tensor(shape=shape)


@tf.RegisterGradient(_PADDED_ROWS)
def _gradient_of_rows(op: tf.Operation, gradient: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Takes the gradient of each row from its place: no row was cut off, and none is there twice.

    TensorFlow's gradient allows for both, and takes several times as long.
    """
    splits = op.inputs[3]
    mask = tf.sequence_mask(splits[1:] - splits[:-1], tf.shape(gradient)[1])
    return [None, tf.boolean_mask(gradient, mask), None, None]


def _check_names_are_free(feature: EmbeddingFeature, features: Mapping[str, Any]) -> None:
    for name, what in {feature.name: "vectors", **feature._added_names}.items():
        if name in features and name != feature.source:
            raise ValueError(
                f"features must leave the name {name!r} to the {what} of {feature.name!r}, got "
                f"{sorted(features)}; rename that entry, or the feature with source="
            )


def _ids_of(feature: EmbeddingFeature) -> str:
    """Names a feature, and its source if that has another name."""
    source = "" if feature.source == feature.name else f"{feature.source!r}, the ids of "
    return f"{source}feature {feature.name!r}"


def _entry(features: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in features:
        raise ValueError(
            f"{what} must be in the features of the batch, got {sorted(features)}; add it to what "
            "input_fn returns"
        )
    value = features[name]
    if not isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        value = tf.convert_to_tensor(value)
    return value


def _check_ids(feature: EmbeddingFeature, ids: Any) -> None:
    if ids.dtype not in _ID_TYPES:
        raise TypeError(
            f"feature {feature.name!r} must have ids of tf.int64, tf.int32 or tf.string, got "
            f"{ids.dtype.name}; ids are names: cast whole numbers to tf.int64, or bucket real ones"
        )
    if (ids.dtype == tf.string) != (feature.dtype == tf.string):
        raise TypeError(
            f"feature {feature.name!r} must have ids of the declared dtype {feature.dtype.name}, "
            f"got {ids.dtype.name}; declare it with dtype=tf.{ids.dtype.name}"
        )
    if isinstance(ids, tf.RaggedTensor):
        is_right = ids.shape.rank == 2
    elif isinstance(ids, tf.SparseTensor):
        is_right = ids.shape.rank in (2, None)
    else:
        is_right = ids.shape.rank in (1, 2)
    if not is_right:
        kind = "dense ids" if isinstance(ids, tf.Tensor) else f"a {type(ids).__name__}"
        remedy = "reshape it" if ids.shape.rank else "batch the dataset: dataset.batch(512)"
        raise ValueError(
            f"feature {feature.name!r} must have ids of shape [B] or [B, k] (dense), or [B, k] "
            f"(SparseTensor, RaggedTensor), got {kind} of shape {ids.shape}; {remedy}"
        )


def _check_weights(what: str, weights: Any, ids: Any) -> None:
    if not weights.dtype.is_floating:
        raise TypeError(
            f"{what} must be floating point, got {weights.dtype.name}; cast it to tf.float32"
        )
    is_same_kind = all(
        isinstance(weights, kind) == isinstance(ids, kind)
        for kind in (tf.SparseTensor, tf.RaggedTensor)
    )
    if not is_same_kind or not weights.shape.is_compatible_with(ids.shape):
        raise ValueError(
            f"{what} must be of the kind and shape of the ids, {type(ids).__name__} of shape "
            f"{ids.shape}, got {type(weights).__name__} of shape {weights.shape}"
        )


def without_padding(ids: Any, weights: Any) -> Tuple[_Ids, Optional[_Ids]]:
    """Removes the padding, -1 and "", from dense ids.

    Args:
      ids: int64, int32 or string: dense, SparseTensor or RaggedTensor.
      weights: float weights of the same kind as ids, or None.

    Returns:
      The remaining ids as a SparseTensor or RaggedTensor, and their float32 weights.

    Raises:
      tf.errors.InvalidArgumentError: The weights are not at the positions of the ids, or have
        another shape (while running).
    """
    if weights is not None:
        weights = tf.cast(weights, tf.float32)
    if isinstance(ids, tf.RaggedTensor):
        if weights is not None:
            same = tf.debugging.assert_equal(
                tf.cast(weights.row_splits, tf.int64),
                tf.cast(ids.row_splits, tf.int64),
                message="weights must be as many as the ids of their example",
            )
            with tf.control_dependencies([same]):
                weights = ids.with_values(tf.identity(weights.values))
        return ids, weights
    if isinstance(ids, tf.SparseTensor):
        if weights is not None:
            same = tf.debugging.assert_equal(
                weights.indices, ids.indices, message="weights must have the indices of the ids"
            )
            with tf.control_dependencies([same]):
                weights = ids.with_values(tf.identity(weights.values))
        return ids, weights
    if ids.shape.rank == 1:
        ids = tf.expand_dims(ids, 1)
        weights = None if weights is None else tf.expand_dims(weights, 1)
    if weights is not None:
        same = tf.debugging.assert_equal(
            tf.shape(weights), tf.shape(ids), message="weights must have the shape of the ids"
        )
        with tf.control_dependencies([same]):
            weights = tf.identity(weights)
    indices, values = _ops.gen.rec_estimator_ids_without_padding(ids)
    sparse = tf.SparseTensor(indices, values, tf.shape(ids, out_type=tf.int64))
    return sparse, None if weights is None else sparse.with_values(tf.gather_nd(weights, indices))


tf.no_gradient(op_registry.IDS_WITHOUT_PADDING)


def to_keys(values: tf.Tensor) -> tf.Tensor:
    """Converts int64, int32 or string ids to int64 keys of the same shape. Hashes strings."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, _HASH_BUCKETS)
    return tf.cast(values, tf.int64)


def _with_shorthands(
    option: Optional[EmbeddingVariableOption], **shorthands: Any
) -> Optional[EmbeddingVariableOption]:
    """The option, with the shorthands that were given as its fields."""
    given = {name: value for name, value in shorthands.items() if value is not None}
    if not given or not isinstance(option, (EmbeddingVariableOption, type(None))):
        return option
    option = option or EmbeddingVariableOption()
    for name, value in given.items():
        present = getattr(option, name)
        if present is not None:
            raise ValueError(
                f"{name} must be given once, got {value!r} as {name}= and {present!r} in ev_option="
            )
    return dataclasses.replace(option, **given)


def _table(name: str, settings: Mapping[str, Any]) -> EmbeddingTable:
    """Makes or finds a table with the settings that its features give."""
    names = [field.name for field in dataclasses.fields(InitializerOption)]
    init_option = InitializerOption(**{key: settings[key] for key in names if key in settings})
    others = {k: v for k, v in settings.items() if k not in ("dim", *_DTYPES, *names)}
    return get_embedding_variable(
        name,
        settings["dim"],
        value_dtype=settings.get("value_dtype"),
        slot_dtype=settings.get("slot_dtype"),
        initializer=tf.get_variable_scope().initializer
        or tf.truncated_normal_initializer(stddev=_ROW_STDDEV),
        ev_option=EmbeddingVariableOption(init_option=init_option, **others),
    )


def _settings_by_table(declarations: Sequence[EmbeddingFeature]) -> Dict[str, Dict[str, Any]]:
    """The settings of each table, each given by one of its features or equally by several."""
    by_table: Dict[str, Dict[str, Tuple[Any, EmbeddingFeature]]] = {}
    for feature in declarations:
        settings = by_table.setdefault(feature.table, {})
        for setting, value in _settings_of(feature).items():
            present, first = settings.setdefault(setting, (value, feature))
            if comparable(setting, present) != comparable(setting, value):
                raise ValueError(
                    f"table {feature.table!r} must have one {setting} for all its features, got "
                    f"{_shown(present)} for {first.name!r} and {_shown(value)} for "
                    f"{feature.name!r}; use one, or give one of them another table="
                )
    return {
        table: {setting: value for setting, (value, _) in settings.items()}
        for table, settings in by_table.items()
    }


def _settings_of(feature: EmbeddingFeature) -> Dict[str, Any]:
    """The settings of its table that a feature gives: all that differ from their defaults."""
    option = feature.ev_option or EmbeddingVariableOption()
    given = _changed(option, EmbeddingVariableOption())
    given.pop("init_option", None)
    given.update(_changed(option.init_option, InitializerOption()), dim=feature.dim)
    if feature.initializer is not None:
        given.setdefault("initializer", feature.initializer)
    dtypes = {setting: getattr(feature, setting) for setting in _DTYPES}
    given.update((setting, dtype) for setting, dtype in dtypes.items() if dtype is not None)
    return given


def _changed(option: Any, defaults: Any) -> Dict[str, Any]:
    values = {field.name: getattr(option, field.name) for field in dataclasses.fields(option)}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def _shown(setting: Any) -> str:
    """A setting as an error shows it: TensorFlow's initializers have no readable repr."""
    if hasattr(setting, "get_config"):
        values = ", ".join(f"{name}={value!r}" for name, value in setting.get_config().items())
        return f"{type(setting).__name__}({values})"
    return repr(setting)


def check_name(name: str, value: Any) -> None:
    """Refuses a value that is not a string (TypeError) or is empty (ValueError)."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    if not value:
        raise ValueError(f"{name} must be a non-empty string, got {value!r}")


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")
