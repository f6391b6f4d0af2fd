# SPDX-License-Identifier: Apache-2.0
"""Layers over a history of items: attention, self-attention, positions and recurrent layers."""

from typing import Optional, Sequence

import tensorflow.compat.v1 as tf

from model_zoo.layers.networks import dense, drop, layer_norm, tower

_MASKED = -1e9  # becomes 0 in a softmax; finite, because a whole row may be masked


def attention_weights(
    history: tf.Tensor,
    mask: tf.Tensor,
    query: tf.Tensor,
    hidden_units: Sequence[int],
    name: str,
    *,
    softmax: bool = True,
) -> tf.Tensor:
    """How much each item of the history tells about the query.

    A network sees (h, q, h - q, h * q) for each item h of the history and the candidate q.

    Args:
      history: float32 [B, T, dim].
      mask: bool [B, T]. False: padding, with weight 0.
      query: float32 [B, dim].
      hidden_units: Units of the network.
      name: Variable scope.
      softmax: Whether a softmax normalizes the outputs of the network, as in the authors' code. The
        paper takes them as they are.

    Returns:
      float32 [B, T]; with a softmax, the sum of a row is 1, or 0 for an empty history.

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018,
    https://arxiv.org/abs/1706.06978; https://github.com/zhougr1993/DeepInterestNetwork
    """
    queries = tf.broadcast_to(query[:, tf.newaxis, :], tf.shape(history))
    queries.set_shape(history.shape)
    pairs = tf.concat([history, queries, history - queries, history * queries], axis=-1)
    scores = tower(pairs, hidden_units, name)
    if not softmax:
        return scores * tf.cast(mask, tf.float32)
    weights = tf.nn.softmax(tf.where(mask, scores, tf.fill(tf.shape(scores), _MASKED)))
    # The softmax of an empty history is uniform; the mask makes it 0.
    return weights * tf.cast(mask, tf.float32)


def weighted_mean(history: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """float32 [B, T, dim], [B, T] -> [B, dim]."""
    return tf.reduce_sum(history * weights[..., tf.newaxis], axis=1)


def masked_mean(items: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [B, T, dim], bool [B, T] -> [B, dim], the mean of the items; zeros without items."""
    weights = tf.cast(mask, tf.float32)
    count = tf.maximum(tf.reduce_sum(weights, axis=1, keepdims=True), 1)
    return weighted_mean(items, weights / count)


def add_positions(inputs: tf.Tensor, name: str) -> tf.Tensor:
    """Adds a trained vector to each position: [B, T, dim] -> [B, T, dim]; T is static."""
    shape = [tf.dimension_value(size) for size in inputs.shape[1:]]
    return inputs + tf.get_variable(name, shape, initializer=tf.random_normal_initializer(0, 0.02))


def transformer_layer(
    inputs: tf.Tensor,
    mask: tf.Tensor,
    num_heads: int,
    name: str,
    *,
    is_training: bool = False,
    dropout: float = 0.0,
) -> tf.Tensor:
    """Self-attention and a network over each position, both with residuals and layer norms.

    Args:
      inputs: float32 [B, T, dim]; dim is a multiple of num_heads.
      mask: bool [B, T]. False: padding, which no position attends to.
      num_heads: Heads of attention.
      name: Variable scope.
      is_training: Whether values are dropped.
      dropout: Share of values that a training step drops.

    Returns:
      float32 [B, T, dim]; positions of padding have values without a meaning.

    Raises:
      ValueError: num_heads does not divide dim.

    Source: Chen et al., Behavior Sequence Transformer for E-commerce Recommendation in Alibaba,
    2019, https://arxiv.org/abs/1905.06874, equations 2 to 5.
    """

    def dropped(tensor: tf.Tensor, name: str) -> tf.Tensor:
        return drop(tensor, dropout, name) if is_training and dropout else tensor

    length, dim = (tf.dimension_value(size) for size in inputs.shape[1:])
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"heads must divide the floats of a row, {dim}, got {num_heads}")
    with tf.variable_scope(name):
        attended = dropped(_self_attention(inputs, mask, num_heads), "drop_attention")
        attended = layer_norm(inputs + attended, "norm_attention")
        outputs = dense(attended, 4 * dim, "expand", tf.nn.leaky_relu)
        outputs = dropped(dense(outputs, dim, "contract"), "drop_output")
        return tf.reshape(layer_norm(attended + outputs, "norm_output"), [-1, length, dim])


def _self_attention(inputs: tf.Tensor, mask: tf.Tensor, num_heads: int) -> tf.Tensor:
    length, dim = (tf.dimension_value(size) for size in inputs.shape[1:])

    def heads(name: str) -> tf.Tensor:
        """[B, heads, T, dim / heads]"""
        split = tf.reshape(dense(inputs, dim, name), [-1, length, num_heads, dim // num_heads])
        return tf.transpose(split, [0, 2, 1, 3])

    queries, keys, values = (heads(name) for name in ("query", "key", "value"))
    scores = tf.matmul(queries, keys, transpose_b=True) / (dim // num_heads) ** 0.5
    scores += tf.where(mask, tf.zeros_like(mask, tf.float32), tf.fill(tf.shape(mask), _MASKED))[
        :, tf.newaxis, tf.newaxis, :
    ]
    merged = tf.transpose(tf.matmul(tf.nn.softmax(scores), values), [0, 2, 1, 3])
    return dense(tf.reshape(merged, [-1, length, dim]), dim, "merge")


def recurrent(
    inputs: tf.Tensor,
    mask: tf.Tensor,
    units: int,
    name: str,
    attention: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """A GRU, or one whose update gate is scaled by attention (AUGRU).

    h' = (1 - u) h + u tanh(W [x, r h]); r and u are the gates; the state passes over padding.

    Args:
      inputs: float32 [B, T, n], the oldest first; T is static.
      mask: bool [B, T]. False: padding.
      units: Floats of the state.
      name: Variable scope.
      attention: float32 [B, T]; u becomes attention * u. None: a GRU.

    Returns:
      float32 [B, T, units], the state after each position; the last one is that of the history.

    Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014;
    Zhou et al., Deep Interest Evolution Network, AAAI 2019, https://arxiv.org/abs/1809.03672,
    equations 2 to 5 and 15 to 16.
    """
    length = tf.dimension_value(inputs.shape[1])
    with tf.variable_scope(name):
        # The part of x in all gates and steps is one matrix product.
        projected = tf.unstack(dense(inputs, 3 * units, "inputs"), length, axis=1)
        of_gates = tf.get_variable("gates", [units, 2 * units])
        of_candidate = tf.get_variable("candidate", [units, units])
    state = tf.zeros_like(projected[0][:, :units])
    states = []
    for step, part in enumerate(projected):
        reset, update = tf.split(
            tf.sigmoid(part[:, : 2 * units] + tf.matmul(state, of_gates)), 2, axis=1
        )
        candidate = tf.tanh(part[:, 2 * units :] + tf.matmul(reset * state, of_candidate))
        if attention is not None:
            update *= attention[:, step : step + 1]
        update *= tf.cast(mask[:, step : step + 1], tf.float32)
        state = (1 - update) * state + update * candidate
        states.append(state)
    return tf.stack(states, axis=1)
