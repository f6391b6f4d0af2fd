# SPDX-License-Identifier: Apache-2.0
"""The layers of the zoo against their formulas in NumPy, with the variables that they made."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import data, layers

RNG = np.random.default_rng(2)
# Float32 sums in another order than NumPy's float64 ones.
CLOSE = dict(rtol=1e-4, atol=1e-5)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def evaluate(outputs):
    """(values, {name: values of each variable}), every variable at random."""
    variables = tf.global_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for variable in variables:
            variable.load(normal(*variable.shape.as_list()), session)
        values = session.run(outputs)
        return values, {v.op.name: session.run(v) for v in variables}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def dense_oracle(x, variables, scope):
    return x @ variables[f"{scope}/kernel"] + variables[f"{scope}/bias"]


# ------------------------------------------------------------------ networks


def test_a_dense_layer_of_more_axes_is_the_same_layer_on_each():
    inputs = normal(2, 3, 4)
    outputs, variables = evaluate(layers.dense(tf.constant(inputs), 5, "layer", tf.nn.relu))
    expected = np.maximum(dense_oracle(inputs, variables, "layer"), 0)
    np.testing.assert_allclose(outputs, expected, **CLOSE)


def test_a_tower_is_hidden_layers_and_one_unit():
    inputs = normal(3, 4)
    outputs, variables = evaluate(layers.tower(tf.constant(inputs), [5, 2], "deep"))
    for number in range(2):
        inputs = np.maximum(dense_oracle(inputs, variables, f"deep/hidden_{number}"), 0)
    expected = dense_oracle(inputs, variables, "deep/output")[:, 0]
    np.testing.assert_allclose(outputs, expected, **CLOSE)


@pytest.mark.long
def test_batch_normalization_uses_the_batch_in_training_and_the_running_moments_elsewhere():
    inputs = normal(50, 3) * 4 + 7

    def normalized(is_training):
        return layers.batch_norm(tf.constant(inputs), "norm", is_training=is_training)

    with tf.variable_scope("net"):
        trained = normalized(True)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.variable_scope("net", reuse=True):
        evaluated = normalized(False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        standard = (inputs - inputs.mean(axis=0)) / np.sqrt(inputs.var(axis=0) + 1e-3)
        np.testing.assert_allclose(session.run(trained), standard, **CLOSE)
        for _ in range(1500):
            session.run(updates)
        # 0.99 ** 1500 of the first moments is left, 3e-7.
        np.testing.assert_allclose(session.run(evaluated), standard, rtol=1e-3, atol=1e-4)


def test_layer_normalization_is_over_the_last_axis():
    inputs = normal(2, 3, 8)
    outputs, variables = evaluate(layers.layer_norm(tf.constant(inputs), "norm"))
    mean, variance = inputs.mean(axis=-1, keepdims=True), inputs.var(axis=-1, keepdims=True)
    expected = (inputs - mean) / np.sqrt(variance + 1e-6)
    expected = expected * variables["norm/gamma"] + variables["norm/beta"]
    np.testing.assert_allclose(outputs, expected, **CLOSE)


def test_hidden_layers_drop_values_in_training_only():
    inputs = tf.ones([1000, 1])
    with tf.variable_scope("net"):
        trained = layers.hidden(inputs, [20], "deep", is_training=True, dropout=0.25)
    with tf.variable_scope("net", reuse=True):
        evaluated = layers.hidden(inputs, [20], "deep", dropout=0.25)
    (trained, evaluated), _ = evaluate([trained, evaluated])
    alive = evaluated[0] > 0
    assert (evaluated == evaluated[0]).all() and alive.any()
    dropped = trained[:, alive] == 0
    # 1,000 or more draws: 5 standard deviations are below 0.07.
    assert abs(dropped.mean() - 0.25) < 0.07
    kept = (trained / np.where(alive, evaluated, 1))[:, alive][~dropped]
    np.testing.assert_allclose(kept, 1 / 0.75, rtol=1e-5)


# ------------------------------------------------------------------ interactions


def test_products_of_pairs_are_those_of_all_pairs():
    vectors = normal(3, 4, 5)
    pairs = list(itertools.combinations(range(4), 2))
    products = np.array([[row[i] @ row[j] for i, j in pairs] for row in vectors])
    found, _ = evaluate(
        [
            layers.inner_products(tf.constant(vectors)),
            layers.pairwise_products(tf.constant(vectors)),
        ]
    )
    np.testing.assert_allclose(found[0], products, **CLOSE)
    # A difference of sums: digits cancel.
    np.testing.assert_allclose(found[1], products.sum(axis=1), rtol=1e-3, atol=1e-4)


def test_cross_layers_are_their_equations():
    inputs = normal(3, 4)
    outputs, variables = evaluate(
        [
            layers.cross_vectors(tf.constant(inputs), 2, "vectors"),
            layers.cross_matrices(tf.constant(inputs), 2, 3, "low"),
            layers.cross_matrices(tf.constant(inputs), 2, 0, "full"),
        ]
    )
    for found, scope in zip(outputs, ("vectors", "low", "full")):
        x = inputs
        for layer in range(2):
            bias = variables[f"{scope}/bias_{layer}"]
            if scope == "vectors":
                x = inputs * (x @ variables[f"{scope}/weights_{layer}"]) + bias + x
            else:
                inner = x @ variables[f"{scope}/v_{layer}"] if scope == "low" else x
                x = inputs * (inner @ variables[f"{scope}/u_{layer}"] + bias) + x
        np.testing.assert_allclose(found, x, **CLOSE)


def test_compressed_interactions_are_their_equation():
    vectors = normal(2, 3, 4)
    outputs, variables = evaluate(
        layers.compressed_interactions(tf.constant(vectors), [5, 2], "cin")
    )
    last, pooled = vectors, []
    for layer, count in enumerate([5, 2]):
        kernel = variables[f"cin/kernel_{layer}"].reshape(3, last.shape[1], count)
        last = np.einsum("bid,bjd,ijh->bhd", vectors, last, kernel)
        pooled.append(last.sum(axis=2))
    np.testing.assert_allclose(outputs, np.concatenate(pooled, axis=1), **CLOSE)


def test_squeeze_and_excitation_weights_fields():
    vectors = normal(2, 6, 4)
    outputs, variables = evaluate(layers.squeeze_excite(tf.constant(vectors), 3, "se"))
    hidden = np.maximum(vectors.mean(axis=2) @ variables["se/squeeze"], 0)
    weights = sigmoid(hidden @ variables["se/excite"])
    assert variables["se/squeeze"].shape == (6, 2)
    np.testing.assert_allclose(outputs, vectors * weights[:, :, None], **CLOSE)


@pytest.mark.parametrize("kind", ["all", "each", "pair"])
def test_bilinear_pairs_multiply_a_mapped_field_by_another(kind):
    vectors = normal(2, 3, 4)
    outputs, variables = evaluate(layers.bilinear_pairs(tf.constant(vectors), kind, "pairs"))
    (kernel,) = variables.values()
    pairs = list(itertools.combinations(range(3), 2))
    assert kernel.shape == {"all": (4, 4), "each": (2, 4, 4), "pair": (3, 4, 4)}[kind]
    matrices = {
        "all": [kernel] * 3,
        "each": [kernel[min(i, 1)] for i, _ in pairs],
        "pair": list(kernel),
    }[kind]
    expected = [vectors[:, i] @ matrix * vectors[:, j] for (i, j), matrix in zip(pairs, matrices)]
    np.testing.assert_allclose(outputs, np.concatenate(expected, axis=1), **CLOSE)


def test_the_matrices_of_bilinear_pairs_start_as_glorot_would_draw_each():
    layers.bilinear_pairs(tf.zeros([1, 3, 50]), "pair", "pairs")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        (kernels,) = session.run(tf.trainable_variables())
    # Uniform in +-sqrt(6 / (50 + 50)); 7,500 draws: the largest is within 1 % of the limit.
    assert np.abs(kernels).max() == pytest.approx(np.sqrt(0.06), rel=0.01)


def test_an_unknown_kind_of_bilinear_pairs_is_refused():
    with pytest.raises(ValueError, match="bilinear must be among all, each, pair, got 'every'"):
        layers.bilinear_pairs(tf.zeros([1, 3, 4]), "every", "pairs")


def test_a_mask_block_multiplies_its_inputs_by_a_mask_of_the_instance():
    inputs, instance = normal(5, 4), normal(5, 6)
    outputs, v = evaluate(layers.mask_block(tf.constant(inputs), tf.constant(instance), 3, 7, "b"))
    mask = np.maximum(dense_oracle(instance, v, "b/aggregate"), 0)
    masked = inputs * dense_oracle(mask, v, "b/project")
    expected = norm_oracle(dense_oracle(masked, v, "b/hidden"), v, "b/norm")
    np.testing.assert_allclose(outputs, np.maximum(expected, 0), **CLOSE)


@pytest.mark.parametrize("rows", [3, 1], ids=["of each row", "of all rows"])
def test_a_gate_weights_inputs_by_twice_a_sigmoid_of_the_context(rows):
    inputs, context = normal(3, 4), normal(rows, 5)
    outputs, v = evaluate(layers.gate(tf.constant(inputs), tf.constant(context), [6]))
    hidden = np.maximum(dense_oracle(context, v, "gate/hidden_0"), 0)
    expected = inputs * 2 * sigmoid(dense_oracle(hidden, v, "weights"))
    np.testing.assert_allclose(outputs, expected, **CLOSE)


def test_a_bilinear_fusion_adds_the_products_of_the_parts_of_each_head():
    first, second = normal(3, 4), normal(3, 6)
    outputs, v = evaluate(layers.bilinear_fusion(tf.constant(first), tf.constant(second), 2, "f"))
    expected = dense_oracle(first, v, "f/first")[:, 0] + dense_oracle(second, v, "f/second")[:, 0]
    for head, kernel in enumerate(v["f/kernel"].reshape(2, 2, 3)):
        left, right = first[:, 2 * head :][:, :2], second[:, 3 * head :][:, :3]
        expected += np.einsum("bi,ij,bj->b", left, kernel, right)
    np.testing.assert_allclose(outputs, expected, **CLOSE)


def test_the_heads_of_a_fusion_divide_both_outputs():
    with pytest.raises(ValueError, match=r"heads must divide .*, \[4, 5\], got 2"):
        layers.bilinear_fusion(tf.zeros([1, 4]), tf.zeros([1, 5]), 2, "fusion")


# ------------------------------------------------------------------ sequences

MASK = np.array([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)


@pytest.mark.parametrize("has_softmax", [True, False])
def test_attention_ignores_what_is_masked_and_gives_zeros_for_nothing(has_softmax):
    history, query = normal(3, 4, 5), normal(3, 5)

    def weights(values, reuse):
        inputs = tf.constant(values), tf.constant(MASK), tf.constant(query)
        with tf.variable_scope("net", reuse=reuse):
            return layers.attention_weights(*inputs, [3], "attention", softmax=has_softmax)

    changed = np.where(MASK[..., None], history, 7).astype(np.float32)
    (found, same), variables = evaluate([weights(history, None), weights(changed, True)])
    np.testing.assert_array_equal(found, same)
    queries = np.broadcast_to(query[:, None], history.shape)
    x = np.concatenate([history, queries, history - queries, history * queries], axis=-1)
    x = np.maximum(dense_oracle(x, variables, "net/attention/hidden_0"), 0)
    scores = dense_oracle(x, variables, "net/attention/output")[..., 0]
    weights_of_all = softmax(np.where(MASK, scores, -1e9)) if has_softmax else scores
    np.testing.assert_allclose(found, np.where(MASK, weights_of_all, 0), **CLOSE)
    if has_softmax:
        assert found.sum(axis=1) == pytest.approx([1, 1, 0])


@pytest.mark.parametrize("has_attention", [False, True], ids=["GRU", "AUGRU"])
def test_recurrent_layers_are_their_equations_and_pass_over_padding(has_attention):
    inputs, attention = normal(3, 4, 5), np.abs(normal(3, 4)) / 4
    outputs, variables = evaluate(
        layers.recurrent(
            tf.constant(inputs),
            tf.constant(MASK),
            2,
            "gru",
            tf.constant(attention) if has_attention else None,
        )
    )
    state, expected = np.zeros((3, 2)), []
    for step in range(4):
        x = dense_oracle(inputs[:, step], variables, "gru/inputs")
        gates = sigmoid(x[:, :4] + state @ variables["gru/gates"])
        reset, update = gates[:, :2], gates[:, 2:]
        if has_attention:
            update = update * attention[:, step : step + 1]
        new = np.tanh(x[:, 4:] + (reset * state) @ variables["gru/candidate"])
        changed = (1 - update) * state + update * new
        state = np.where(MASK[:, step : step + 1], changed, state)
        expected.append(state)
    np.testing.assert_allclose(outputs, np.stack(expected, axis=1), **CLOSE)
    assert (outputs[2] == 0).all()


def norm_oracle(x, variables, scope):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    standard = (x - mean) / np.sqrt(variance + 1e-6)
    return standard * variables[f"{scope}/gamma"] + variables[f"{scope}/beta"]


def test_a_transformer_layer_is_its_equations():
    inputs = normal(2, 4, 6)
    outputs, v = evaluate(
        layers.transformer_layer(tf.constant(inputs), tf.constant(MASK[:2]), 2, "t")
    )
    query, key, value = (dense_oracle(inputs, v, f"t/{part}") for part in ("query", "key", "value"))
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        scores = query[..., head] @ key[..., head].transpose(0, 2, 1) / np.sqrt(3)
        scores = np.where(MASK[:2, None, :], scores, -1e9)
        heads.append(softmax(scores) @ value[..., head])
    attended = dense_oracle(np.concatenate(heads, axis=-1), v, "t/merge")
    attended = norm_oracle(inputs + attended, v, "t/norm_attention")
    expanded = dense_oracle(attended, v, "t/expand")
    expanded = np.where(expanded > 0, expanded, 0.2 * expanded)
    contracted = dense_oracle(expanded, v, "t/contract")
    expected = norm_oracle(attended + contracted, v, "t/norm_output")
    np.testing.assert_allclose(outputs, expected, **CLOSE)


def test_the_mean_of_masked_items_leaves_padding_out():
    items = normal(3, 4, 5)
    found, _ = evaluate(layers.masked_mean(tf.constant(items), tf.constant(MASK)))
    expected = [
        row[mask].mean(axis=0) if mask.any() else 0 * row[0] for row, mask in zip(items, MASK)
    ]
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_positions_are_one_vector_for_each_place():
    outputs, variables = evaluate(layers.add_positions(tf.zeros([2, 3, 4]), "positions"))
    np.testing.assert_array_equal(outputs, np.stack([variables["positions"]] * 2))


# ------------------------------------------------------------------ experts


def test_a_mixture_weights_experts_by_its_gate():
    experts, inputs = [normal(3, 2) for _ in range(4)], normal(3, 5)
    outputs, variables = evaluate(
        layers.mixture([tf.constant(each) for each in experts], tf.constant(inputs), "gate")
    )
    weights = softmax(dense_oracle(inputs, variables, "gate"))
    expected = sum(weights[:, i : i + 1] * expert for i, expert in enumerate(experts))
    np.testing.assert_allclose(outputs, expected, **CLOSE)


@pytest.mark.long
def test_tasks_of_mmoe_share_experts_and_those_of_ple_have_some_of_their_own():
    inputs = tf.constant(normal(3, 5))
    tasks = layers.multi_gate_mixtures(inputs, 2, 3, [4], "mmoe")
    extracted = layers.progressive_extraction(inputs, 2, 1, 2, [[4], [3]], "ple")
    assert [each.shape.as_list() for each in (*tasks, *extracted)] == [[3, 4]] * 2 + [[3, 3]] * 2
    read = {
        name: tf.gradients(output, tf.trainable_variables())
        for name, output in zip("abcd", (*tasks, *extracted))
    }
    names = [variable.op.name for variable in tf.trainable_variables()]
    used = {
        task: {name.split("/hidden")[0] for name, g in zip(names, found) if g is not None}
        for task, found in read.items()
    }
    assert {f"mmoe/expert_{i}" for i in range(3)} <= used["a"] & used["b"]
    assert "mmoe/gate_0/kernel" in used["a"] - used["b"]
    # The first level reaches both tasks through its shared gate, the last one its own task alone.
    assert {"ple/level_0/task_0_0", "ple/level_1/task_0_1"} <= used["c"]
    assert "ple/level_0/task_0_0" in used["d"] and "ple/level_1/task_0_1" not in used["d"]
    assert set.union(*used.values()) == {name.split("/hidden")[0] for name in names}


# ------------------------------------------------------------------ embeddings

COLUMNS = (
    data.Column("item", "item"),
    data.Column("tags", "item", max_length=3),
    data.Column("price", "item", kind="number"),
    data.Column("bought", "history", table="item", max_length=4),
)


def test_columns_of_ids_are_declared_and_histories_share_their_tables():
    means = layers.declare(COLUMNS, 8)
    assert [(each.name, each.table, each.dim, each.combiner) for each in means] == [
        ("item", "item", 8, "mean"),
        ("tags", "tags", 8, "mean"),
        ("bought", "item", 8, "mean"),
    ]
    assert {each.dim for each in layers.declare_with_linear(COLUMNS, 8)} == {9}
    *others, history = layers.declare_with_histories(COLUMNS, 8, "din")
    assert others == means[:2]
    assert (history.table, history.combiner, history.max_length) == ("item", None, 4)


def test_a_model_of_histories_says_that_it_needs_one():
    with pytest.raises(ValueError, match="din must have a history column, got item, tags, price;"):
        layers.declare_with_histories(COLUMNS[:3], 8, "din")


def test_a_number_is_its_value_times_a_trained_vector():
    features = {"item": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "price": tf.constant([0.5, -3.0])}
    columns = [COLUMNS[0], COLUMNS[2]]
    found, variables = evaluate(layers.fields(features, columns, 2))
    trained = variables["numbers/price"]
    np.testing.assert_array_equal(found[:, 0], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found[:, 1], np.float32([[0.5], [-3]]) * trained)


def test_the_linear_weight_is_the_last_float_of_a_row_and_of_the_vector_of_a_number():
    features = {"item": tf.constant([[1.0, 2.0, 3.0]]), "price": tf.constant([0.5])}
    columns = [COLUMNS[0], COLUMNS[2]]
    (linear, vectors), variables = evaluate(layers.split_linear(features, columns, 2))
    number = 0.5 * variables["numbers/price"]
    np.testing.assert_allclose(linear, [3 + number[0, 2]], rtol=1e-6)
    assert [vector.tolist() for vector in vectors] == [[[1.0, 2.0]], number[:, :2].tolist()]
