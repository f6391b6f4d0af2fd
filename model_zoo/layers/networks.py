# SPDX-License-Identifier: Apache-2.0
"""Fully connected layers, with batch normalization and dropout."""

import zlib
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec

Activation = Callable[[tf.Tensor], tf.Tensor]

# For the running mean and variance; as tf.layers.batch_normalization.
_MOMENTUM, _EPSILON = 0.99, 1e-3


def network_settings(params: Mapping[str, Any], mode: str) -> Dict[str, Any]:
    """The settings of `hidden` and `tower` that a model has in its params.

    Args:
      params: "dropout" and "batch_norm".
      mode: One of rec.ModeKeys.
    """
    return {
        "is_training": mode == rec.ModeKeys.TRAIN,
        "dropout": params["dropout"],
        "use_batch_norm": params["batch_norm"],
    }


def dense(
    inputs: tf.Tensor, units: int, name: str, activation: Optional[Activation] = None
) -> tf.Tensor:
    """A fully connected layer over the last axis: [..., n] -> [..., units].

    Raises:
      ValueError: units is below 1.
    """
    if units < 1:
        raise ValueError(f"units of layer {name!r} must be at least 1, got {units}")
    width = tf.dimension_value(inputs.shape[-1])
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [width, units])  # Glorot uniform
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    # One matrix product for any number of axes; the last axis is static.
    flat = tf.reshape(inputs, [-1, width])
    outputs = tf.nn.bias_add(tf.matmul(flat, kernel), bias)
    if inputs.shape.rank != 2:
        outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs)[:-1], [units]], axis=0))
        outputs.set_shape([*inputs.shape[:-1], units])
    return outputs if activation is None else activation(outputs)


def hidden(
    inputs: tf.Tensor,
    hidden_units: Sequence[int],
    name: str,
    *,
    is_training: bool = False,
    activation: Activation = tf.nn.relu,
    dropout: float = 0.0,
    use_batch_norm: bool = False,
) -> tf.Tensor:
    """Hidden layers, each with batch normalization, activation and dropout in this order.

    Args:
      inputs: float32 [..., n].
      hidden_units: Units of each layer.
      name: Variable scope.
      is_training: Whether values are dropped and running means updated.
      activation: Of each layer.
      dropout: Share of values that a training step drops, in [0, 1).
      use_batch_norm: Whether the outputs of a layer are normalized; inputs must be [B, n] then.

    Returns:
      float32 [..., hidden_units[-1]].

    Raises:
      ValueError: A layer has no units, or dropout is out of range.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    with tf.variable_scope(name):
        for number, units in enumerate(hidden_units):
            inputs = dense(inputs, units, f"hidden_{number}")
            if use_batch_norm:
                inputs = batch_norm(inputs, f"norm_{number}", is_training=is_training)
            inputs = activation(inputs)
            if is_training and dropout:
                inputs = drop(inputs, dropout, f"dropout_{number}")
        return inputs


def drop(inputs: tf.Tensor, rate: float, name: str) -> tf.Tensor:
    """Dropout in a training step: [..., n] -> [..., n].

    What is dropped depends on the seed of the graph, the variable scope, the name and the global
    step. So a training that was interrupted goes on with the same bits.

    Args:
      inputs: float32 [..., n].
      rate: Share of values that are dropped, in (0, 1). The others are divided by 1 - rate.
      name: Tells dropouts of one scope apart.

    Source: Srivastava et al., Dropout, JMLR 15 (2014).
    """
    scope = f"{tf.get_variable_scope().name}/{name} {tf.get_default_graph().seed}"
    step = tf.cast(tf.train.get_or_create_global_step(), tf.int64)
    seed = tf.stack([step, zlib.crc32(scope.encode())])
    kept = tf.random.stateless_uniform(tf.shape(inputs), seed) >= rate
    return tf.where(kept, inputs / (1 - rate), tf.zeros_like(inputs))


def tower(inputs: tf.Tensor, hidden_units: Sequence[int], name: str, **layers: Any) -> tf.Tensor:
    """`hidden`, then one linear unit: [..., n] -> [...].

    Args:
      inputs: float32 [..., n].
      hidden_units: Units of each hidden layer.
      name: Variable scope.
      **layers: As in `hidden`.
    """
    outputs = hidden(inputs, hidden_units, name, **layers)
    with tf.variable_scope(name):
        return tf.squeeze(dense(outputs, 1, "output"), axis=-1)


def batch_norm(inputs: tf.Tensor, name: str, *, is_training: bool) -> tf.Tensor:
    """Batch normalization over the rows: [B, n] -> [B, n].

    In training, an op in UPDATE_OPS moves the running mean and variance, which all other modes use.

    Source: Ioffe and Szegedy, Batch Normalization, ICML 2015, https://arxiv.org/abs/1502.03167.
    """
    width = [tf.dimension_value(inputs.shape[-1])]
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(name):
        offset = tf.get_variable("beta", width, initializer=zeros)
        scale = tf.get_variable("gamma", width, initializer=ones)
        means = tf.get_variable("moving_mean", width, initializer=zeros, trainable=False)
        variances = tf.get_variable("moving_variance", width, initializer=ones, trainable=False)
    if not is_training:
        return tf.nn.batch_normalization(inputs, means, variances, offset, scale, _EPSILON)
    mean, variance = tf.nn.moments(inputs, axes=[0])
    for running, current in ((means, mean), (variances, variance)):
        update = tf.assign_sub(running, (1 - _MOMENTUM) * (running - current))
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return tf.nn.batch_normalization(inputs, mean, variance, offset, scale, _EPSILON)


def layer_norm(inputs: tf.Tensor, name: str) -> tf.Tensor:
    """Layer normalization over the last axis: [..., n] -> [..., n].

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016, https://arxiv.org/abs/1607.06450.
    """
    width = [tf.dimension_value(inputs.shape[-1])]
    with tf.variable_scope(name):
        offset = tf.get_variable("beta", width, initializer=tf.zeros_initializer())
        scale = tf.get_variable("gamma", width, initializer=tf.ones_initializer())
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(inputs, mean, variance, offset, scale, 1e-6)
