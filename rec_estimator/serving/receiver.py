# SPDX-License-Identifier: Apache-2.0
"""Builds the serving_input_receiver_fn of a model with sample-aware compression."""

from typing import Callable, Dict, List, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow.estimator import ServingInputReceiver
from rec_estimator.features import EmbeddingFeature
from rec_estimator.sample_compression import enable_sample_awared_graph_compression

_Feature = Union[EmbeddingFeature, tf.TensorSpec]
_Tensor = Union[tf.Tensor, tf.RaggedTensor]


def compressed_serving_input_receiver_fn(
    user: Sequence[_Feature],
    item: Sequence[_Feature],
    *,
    serialized: bool = False,
    exact: bool = False,
) -> Callable[[], ServingInputReceiver]:
    """Builds a serving_input_receiver_fn for requests with one row per user and many candidates.

    The SavedModel has one input per feature and the input "item_size", int32 [B] or [1], the number
    of candidates of each user. The features of the B users have B rows, those of the N candidates
    N rows. The ids of an EmbeddingFeature have shape [rows, k], padded with -1 or ""; its weights
    are float32 of the same shape.

    With ``serialized`` the only input is "examples", string [B]: one tf.train.SequenceExample per
    user. Its context holds the user's features; each of its feature lists holds one feature of the
    candidates, with one entry per candidate.

    Args:
      user: Features of users: EmbeddingFeature declarations, and a tf.TensorSpec with a name and a
        shape [None, ...] for each other feature.
      item: Features of candidates, declared in the same way.
      serialized: Whether requests are SequenceExamples.
      exact: As in enable_sample_awared_graph_compression.

    Returns:
      A function for RecEstimator's exports.

    Raises:
      TypeError: An element is neither an EmbeddingFeature nor a named tf.TensorSpec.
      ValueError: user or item is empty, a name is given twice, or the first axis of a shape is
        fixed.

    Example:
      >>> from rec_estimator.serving import receiver
      >>> receiver_fn = receiver.compressed_serving_input_receiver_fn(
      ...     user=[rec.EmbeddingFeature("user", dim=8)],
      ...     item=[rec.EmbeddingFeature("item", dim=8), tf.TensorSpec([None, 2], name="price")])
      >>> sorted(receiver_fn().receiver_tensors)
      ['item', 'item_size', 'price', 'user']
    """
    user_specs, item_specs = _specs("user", user), _specs("item", item)
    twice = sorted(set(user_specs) & set(item_specs))
    if twice:
        raise ValueError(f"features must be in user or in item, got {twice[0]!r} for both")
    if "item_size" in {**user_specs, **item_specs}:
        raise ValueError(
            "features must leave the name 'item_size' to the number of candidates, got a "
            "feature with that name; rename it"
        )

    def receiver() -> ServingInputReceiver:
        # The scope keeps the names of features free for variables of the model.
        with tf.name_scope("serving_input"):
            if serialized:
                users, items, item_size, tensors = _parse(user_specs, item_specs)
            else:
                users, items = _placeholders(user_specs), _placeholders(item_specs)
                item_size = tf.placeholder(tf.int32, [None], name="item_size")
                tensors = {**users, **items, "item_size": item_size}
            enable_sample_awared_graph_compression(users, items, item_size, exact)
        return ServingInputReceiver({**users, **items}, tensors)

    return receiver


def _specs(side: str, features: Sequence[_Feature]) -> Dict[str, Tuple[tf.TensorSpec, bool]]:
    """{name: (tensor, whether it is a list of ids or weights of any length)}."""
    specs: Dict[str, Tuple[tf.TensorSpec, bool]] = {}
    names = []
    for feature in features:
        inputs = _inputs_of(side, feature)
        names.append(feature.name)
        for spec, is_list in inputs:
            if not spec.shape.rank or tf.dimension_value(spec.shape[0]) is not None:
                raise ValueError(
                    f"{side} feature {spec.name!r} must have a shape [None, ...], got {spec.shape}"
                )
            # Several declarations may read the same ids or weights.
            is_shared = is_list and specs.get(spec.name) == (spec, is_list)
            if names.count(feature.name) > 1 or (spec.name in specs and not is_shared):
                raise ValueError(f"{side} must name each feature once, got {spec.name!r} twice")
            specs[spec.name] = (spec, is_list)
    if not specs:
        raise ValueError(f"{side} must list at least one feature, got none")
    return specs


def _inputs_of(side: str, feature: _Feature) -> List[Tuple[tf.TensorSpec, bool]]:
    """The entries of a request that a feature reads, as in _specs."""
    if isinstance(feature, EmbeddingFeature):
        inputs = [(tf.TensorSpec([None, None], feature.dtype, feature.source), True)]
        if feature.weight is not None:
            inputs.append((tf.TensorSpec([None, None], tf.float32, feature.weight), True))
        return inputs
    if isinstance(feature, tf.TensorSpec) and feature.name:
        return [(feature, False)]
    raise TypeError(f"{side} must list EmbeddingFeature and named tf.TensorSpec, got {feature!r}")


def _placeholders(specs: Dict[str, Tuple[tf.TensorSpec, bool]]) -> Dict[str, tf.Tensor]:
    return {
        name: tf.placeholder(spec.dtype, spec.shape, name=name) for name, (spec, _) in specs.items()
    }


def _parse(
    user_specs: Dict[str, Tuple[tf.TensorSpec, bool]],
    item_specs: Dict[str, Tuple[tf.TensorSpec, bool]],
) -> Tuple[Dict[str, _Tensor], Dict[str, _Tensor], tf.Tensor, Dict[str, tf.Tensor]]:
    """Parses SequenceExamples to (users, items, item_size, receiver tensors)."""
    examples = tf.placeholder(tf.string, [None], name="examples")
    # Not FixedLenFeature, which refuses an empty batch.
    context = {
        name: tf.io.RaggedFeature(_stored(spec.dtype), row_splits_dtype=tf.int64)
        for name, (spec, _) in user_specs.items()
    }
    lists = {
        name: tf.io.RaggedFeature(_stored(spec.dtype), row_splits_dtype=tf.int64)
        if is_list
        else tf.io.FixedLenSequenceFeature(spec.shape[1:], _stored(spec.dtype))
        for name, (spec, is_list) in item_specs.items()
    }
    parsed, sequences, lengths = tf.io.parse_sequence_example(examples, context, lists)
    users = {
        name: tf.cast(parsed[name] if is_list else _dense(parsed[name], spec), spec.dtype)
        for name, (spec, is_list) in user_specs.items()
    }
    counts = {
        name: sequences[name].row_lengths() if is_list else lengths[name]
        for name, (_, is_list) in item_specs.items()
    }
    first, *others = counts
    item_size = tf.cast(counts[first], tf.int32)
    same = [
        tf.debugging.assert_equal(
            item_size,
            tf.cast(counts[name], tf.int32),
            message=f"feature lists {first!r} and {name!r} must be of one length in a request",
        )
        for name in others
    ]
    with tf.control_dependencies(same):
        item_size = tf.identity(item_size, name="item_size")
    items: Dict[str, _Tensor] = {}
    for name, (spec, is_list) in item_specs.items():
        value = sequences[name]
        if not is_list:
            mask = tf.sequence_mask(lengths[name], tf.shape(value)[1])
            value = tf.boolean_mask(value, mask)
        else:
            value = value.values
        items[name] = tf.cast(value, spec.dtype)
    return users, items, item_size, {"examples": examples}


def _dense(rows: tf.RaggedTensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Gives rows of values the shape [B, ...] of a spec."""
    size = spec.shape[1:].num_elements()
    if size is None:
        raise ValueError(
            f"user feature {spec.name!r} must have a known size per row with serialized=True, got "
            f"shape {spec.shape}; declare an EmbeddingFeature for lists of any length"
        )
    check = tf.debugging.assert_equal(
        rows.row_lengths(),
        tf.constant(size, tf.int64),
        message=f"context feature {spec.name!r} must have {size} values in each request",
    )
    with tf.control_dependencies([check]):
        return tf.reshape(rows.values, [-1, *spec.shape[1:].as_list()])


def _stored(dtype: tf.DType) -> tf.DType:
    """The type in which a tf.train.SequenceExample stores values of a type."""
    if dtype == tf.string:
        return tf.string
    return tf.int64 if dtype.is_integer or dtype.is_bool else tf.float32
