# SPDX-License-Identifier: Apache-2.0
"""Explicit products of features: FM, cross layers, CIN, SENET, masks, gates, bilinear forms."""

import itertools
from typing import Sequence

import tensorflow.compat.v1 as tf

from model_zoo.layers.networks import dense, hidden, layer_norm
from model_zoo.names import check_names


def pairwise_products(vectors: tf.Tensor) -> tf.Tensor:
    """[B, fields, dim] -> [B], the sum of the inner products of all pairs of fields.

    Source: Rendle, Factorization Machines, ICDM 2010, lemma 3.1.
    """
    # sum_{i<j} <v_i, v_j> = (|sum v|^2 - sum |v|^2) / 2: linear in the number of fields.
    square_of_sum = tf.square(tf.reduce_sum(vectors, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(vectors), axis=1)
    return 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, axis=1)


def inner_products(vectors: tf.Tensor) -> tf.Tensor:
    """[B, fields, dim] -> [B, fields * (fields - 1) / 2], the inner product of each pair."""
    products = tf.matmul(vectors, vectors, transpose_b=True)
    fields = tf.dimension_value(vectors.shape[1])
    pairs = [i * fields + j for i, j in itertools.combinations(range(fields), 2)]
    return tf.gather(tf.reshape(products, [-1, fields * fields]), pairs, axis=1)


def cross_vectors(inputs: tf.Tensor, num_layers: int, name: str) -> tf.Tensor:
    """Cross layers with a weight vector each: [B, n] -> [B, n].

    x_{l+1} = x_0 (x_l . w_l) + b_l + x_l.

    Source: Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017,
    https://arxiv.org/abs/1708.05123, equation 3.
    """
    width = tf.dimension_value(inputs.shape[-1])
    outputs = inputs
    with tf.variable_scope(name):
        for layer in range(num_layers):
            weights = tf.get_variable(f"weights_{layer}", [width, 1])
            bias = tf.get_variable(f"bias_{layer}", [width], initializer=tf.zeros_initializer())
            outputs = inputs * tf.matmul(outputs, weights) + bias + outputs
    return outputs


def cross_matrices(inputs: tf.Tensor, num_layers: int, rank: int, name: str) -> tf.Tensor:
    """Cross layers with a matrix of low rank each: [B, n] -> [B, n].

    x_{l+1} = x_0 * (U_l V_l^T x_l + b_l) + x_l. A rank of 0 is a full matrix.

    Source: Wang et al., DCN V2, WWW 2021, https://arxiv.org/abs/2008.13535, equations 1 and 2.
    """
    width = tf.dimension_value(inputs.shape[-1])
    outputs = inputs
    with tf.variable_scope(name):
        for layer in range(num_layers):
            bias = tf.get_variable(f"bias_{layer}", [width], initializer=tf.zeros_initializer())
            projected = outputs
            if rank:
                projected = tf.matmul(outputs, tf.get_variable(f"v_{layer}", [width, rank]))
            product = tf.matmul(projected, tf.get_variable(f"u_{layer}", [rank or width, width]))
            outputs = inputs * (product + bias) + outputs
    return outputs


def compressed_interactions(vectors: tf.Tensor, maps: Sequence[int], name: str) -> tf.Tensor:
    """CIN: products of vectors of all orders, compressed to feature maps.

    Args:
      vectors: float32 [B, fields, dim].
      maps: Feature maps of each layer.
      name: Variable scope.

    Returns:
      float32 [B, sum(maps)]: each map of each layer, summed over dim.

    Raises:
      ValueError: There is no layer, or one without a map.

    Source: Lian et al., xDeepFM, KDD 2018, https://arxiv.org/abs/1803.05170, equation 6; each
    layer passes all of its maps on and to the output.
    """
    if not maps or min(maps) < 1:
        raise ValueError(f"maps must be a number from 1 on for each layer, got {list(maps)}")
    fields, dim = (tf.dimension_value(size) for size in vectors.shape[1:])
    # [B, dim, fields]: a layer is a matrix product over pairs of fields, for each element apart.
    first = last = tf.transpose(vectors, [0, 2, 1])
    pooled = []
    with tf.variable_scope(name):
        for layer, count in enumerate(maps):
            width = tf.dimension_value(last.shape[-1])
            pairs = tf.reshape(first[..., :, None] * last[..., None, :], [-1, fields * width])
            kernel = tf.get_variable(f"kernel_{layer}", [fields * width, count])
            last = tf.reshape(tf.matmul(pairs, kernel), [-1, dim, count])
            pooled.append(tf.reduce_sum(last, axis=1))
    return tf.concat(pooled, axis=1)


def squeeze_excite(vectors: tf.Tensor, reduction: int, name: str) -> tf.Tensor:
    """SENET: weights each field by all fields: [B, fields, dim] -> [B, fields, dim].

    Source: Huang et al., FiBiNET, RecSys 2019, https://arxiv.org/abs/1905.09433, section 3.3. The
    excitation is a sigmoid, as in Hu et al., Squeeze-and-Excitation Networks, CVPR 2018: with the
    ReLU of FiBiNET and few fields, a field whose weights are negative is never trained.

    Raises:
      ValueError: reduction is below 1.
    """
    if reduction < 1:
        raise ValueError(f"reduction must be at least 1, got {reduction}")
    fields = tf.dimension_value(vectors.shape[1])
    with tf.variable_scope(name):
        squeeze = tf.get_variable("squeeze", [fields, max(1, fields // reduction)])
        excite = tf.get_variable("excite", [max(1, fields // reduction), fields])
    means = tf.reduce_mean(vectors, axis=2)
    weights = tf.sigmoid(tf.matmul(tf.nn.relu(tf.matmul(means, squeeze)), excite))
    return vectors * weights[:, :, None]


def bilinear_pairs(vectors: tf.Tensor, kind: str, name: str) -> tf.Tensor:
    """(W v_i) * v_j of all pairs i < j: [B, fields, dim] -> [B, pairs * dim].

    Args:
      vectors: float32 [B, fields, dim], at least two fields.
      kind: "all": one matrix W for all pairs; "each": one for each field i; "pair": one for each
        pair.
      name: Variable scope.

    Raises:
      ValueError: kind is unknown.

    Source: FiBiNET (see squeeze_excite), equations 8 to 10.
    """
    check_names("bilinear", [kind], ("all", "each", "pair"))
    fields, dim = (tf.dimension_value(size) for size in vectors.shape[1:])
    i, j = zip(*itertools.combinations(range(fields), 2))
    with tf.variable_scope(name):
        if kind == "all":
            kernel = tf.get_variable("kernel", [dim, dim])
            mapped = tf.matmul(tf.reshape(vectors, [-1, dim]), kernel)
            left = tf.gather(tf.reshape(mapped, [-1, fields, dim]), i, axis=1)
        elif kind == "each":
            left = tf.gather(_map_each(vectors[:, :-1]), i, axis=1)
        else:
            left = _map_each(tf.gather(vectors, i, axis=1))
    return tf.reshape(left * tf.gather(vectors, j, axis=1), [-1, len(i) * dim])


def _map_each(vectors: tf.Tensor) -> tf.Tensor:
    """Multiplies each of n vectors by a matrix of its own: [B, n, dim] -> [B, n, dim]."""
    count, dim = (tf.dimension_value(size) for size in vectors.shape[1:])
    # Glorot's limit for one of the matrices; TensorFlow's would take n for a size of the input.
    limit = (3 / dim) ** 0.5
    kernels = tf.get_variable(
        "kernels", [count, dim, dim], initializer=tf.random_uniform_initializer(-limit, limit)
    )
    return tf.transpose(tf.matmul(tf.transpose(vectors, [1, 0, 2]), kernels), [1, 0, 2])


def mask_block(
    inputs: tf.Tensor, instance: tf.Tensor, mask_units: int, units: int, name: str
) -> tf.Tensor:
    """A layer whose inputs are multiplied by a mask made of the whole instance.

    Args:
      inputs: float32 [B, n].
      instance: float32 [B, m], the vectors of all fields.
      mask_units: Units of the layer that aggregates the instance.
      units: Units of the layer.
      name: Variable scope.

    Returns:
      float32 [B, units], after layer normalization and ReLU.

    Source: Wang, She and Zhang, MaskNet, DLP-KDD 2021, https://arxiv.org/abs/2102.07619, equations
    5 and 8 to 9.
    """
    width = tf.dimension_value(inputs.shape[-1])
    with tf.variable_scope(name):
        mask = dense(instance, mask_units, "aggregate", tf.nn.relu)
        mask = dense(mask, width, "project")
        return tf.nn.relu(layer_norm(dense(inputs * mask, units, "hidden"), "norm"))


def gate(inputs: tf.Tensor, context: tf.Tensor, hidden_units: Sequence[int]) -> tf.Tensor:
    """Multiplies each input by a weight from 0 to 2 that depends on the context.

    Args:
      inputs: float32 [B, n].
      context: float32 [B, m], or [1, m] for the same weights in all rows.
      hidden_units: Units of the network that makes the weights.

    Returns:
      float32 [B, n].

    Source: Mao et al., FinalMLP, AAAI 2023, https://arxiv.org/abs/2304.00902, equations 5 and 6.
    """
    width = tf.dimension_value(inputs.shape[-1])
    weights = dense(hidden(context, hidden_units, "gate"), width, "weights", tf.sigmoid)
    return inputs * (2 * weights)


def bilinear_fusion(first: tf.Tensor, second: tf.Tensor, heads: int, name: str) -> tf.Tensor:
    """Linear weights of two outputs, and bilinear products of their parts, as one number.

    Args:
      first: float32 [B, n].
      second: float32 [B, m].
      heads: Parts of each output; part h of one is multiplied by part h of the other.
      name: Variable scope.

    Returns:
      float32 [B].

    Raises:
      ValueError: heads divides n or m with a remainder.

    Source: FinalMLP (see gate), equations 9 to 11.
    """
    widths = [tf.dimension_value(each.shape[-1]) for each in (first, second)]
    if heads < 1 or any(width % heads for width in widths):
        raise ValueError(f"heads must divide the units of both networks, {widths}, got {heads}")
    n, m = (width // heads for width in widths)
    with tf.variable_scope(name):
        linear = dense(first, 1, "first") + dense(second, 1, "second")
        # The initial values are those of one layer with an input for each product.
        kernel = tf.reshape(tf.get_variable("kernel", [heads * n * m, 1]), [heads, n, m])
    # [heads, B, n] and [heads, B, m]
    parts = [
        tf.transpose(tf.reshape(each, [-1, heads, width]), [1, 0, 2])
        for each, width in ((first, n), (second, m))
    ]
    products = tf.reduce_sum(tf.matmul(parts[0], kernel) * parts[1], axis=[0, 2])
    return tf.squeeze(linear, axis=-1) + products
