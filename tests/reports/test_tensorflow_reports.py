# SPDX-License-Identifier: Apache-2.0
"""Faults that users of TensorFlow reported, tried with tables. N in test_N is the issue there."""

import glob

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

BANK = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
OPTION = rec.EmbeddingVariableOption(
    init_option=rec.InitializerOption(tf.constant_initializer(BANK), len(BANK))
)


def table_and_variable():
    """A table and a variable with the same rows."""
    return (
        rec.get_embedding_variable("t", 3, ev_option=OPTION),
        tf.get_variable("v", initializer=BANK),
    )


def run(fetches):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


def model_fn(features, labels, mode):
    table = rec.get_embedding_variable("t", 2)
    loss = tf.reduce_sum(rec.embedding_lookup(table, features["id"]))
    step = tf.train.get_global_step()
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train)


# ------------------------------------------------------------------ 14851, 36359


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights", [[1, -1, 0], [0, 0, 0], [2, -2, 3]], ids=str)
def test_36359_weights_that_sum_to_zero_give_what_tensorflow_gives(combiner, weights):
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([3, 5, 3], tf.int64), [2, 2])
    sparse_weights = tf.SparseTensor(ids.indices, tf.constant(weights, tf.float32), [2, 2])
    table, variable = table_and_variable()
    arguments = dict(sp_weights=sparse_weights, combiner=combiner)
    ours = rec.embedding_lookup_sparse(table, ids, **arguments)
    theirs = tf.nn.embedding_lookup_sparse(variable, ids, **arguments)
    safe = rec.safe_embedding_lookup_sparse(table, ids, sparse_weights, combiner)
    stock_safe = tf.nn.safe_embedding_lookup_sparse(variable, ids, sparse_weights, combiner)
    ours, theirs, safe, stock_safe = run([ours, theirs, safe, stock_safe])
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(safe, stock_safe)
    assert np.isfinite(safe).all()


# ------------------------------------------------------------------ 16215, 26136


@pytest.mark.long
@pytest.mark.parametrize("deltas", [False, True], ids=["full", "deltas"])
def test_16215_keep_checkpoint_max_holds_over_restarts(tmp_path, deltas):
    increments = dict(save_incremental_checkpoints_steps=1) if deltas else {}
    config = rec.RunConfig(save_checkpoints_steps=2, keep_checkpoint_max=2, **increments)
    for restart in range(1, 4):
        estimator = rec.RecEstimator(model_fn, str(tmp_path), config)
        estimator.train(lambda: tf.data.Dataset.from_tensors({"id": [1, 2]}).repeat(), steps=3)
        last = 3 * restart
        steps = {int(path.split("-")[-1][:-6]) for path in glob.glob(f"{tmp_path}/*.index")}
        # The two last checkpoints; a kept delta needs those before it, back to a full one.
        assert last in steps and len(steps) <= (3 if deltas else 2), steps
        listed = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
        assert len(listed) == 2


# ------------------------------------------------------------------ 11839 and bert 875


def test_11839_an_update_of_a_table_in_a_branch_happens_when_the_branch_is_taken(version):
    table, _ = table_and_variable()
    rows = rec.embedding_lookup(table, [3, 3, 5])
    optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
    gradients = optimizer.compute_gradients(tf.reduce_sum(rows), var_list=[table])
    is_taken = tf.placeholder(tf.bool, [])
    train = tf.cond(
        is_taken, lambda: tf.group(optimizer.apply_gradients(gradients)), lambda: tf.no_op()
    )
    state = [rec.embedding_lookup(table, [3, 5]), table.get_frequency([3, 5])]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for taken, done in ((False, 0), (True, 1), (False, 1), (True, 2)):
            session.run(train, {is_taken: taken})
            values, counts = session.run(state)
            assert counts.tolist() == [2 * done, done]
            # 0.5 times a gradient of 1 for each occurrence, to a rounding of each subtraction.
            expected = BANK[[3, 5]] - 0.5 * done * np.array([[2], [1]], np.float32)
            np.testing.assert_allclose(values, expected, atol=1e-6)


# ------------------------------------------------------------------ 19272


def both(function):
    """function(rows looked up, what they were looked up in) of a table and of a variable."""
    table, variable = table_and_variable()
    ids = tf.constant([3, 5, 3], tf.int64)
    return run(
        [
            function(rec.embedding_lookup(table, ids), table),
            function(tf.nn.embedding_lookup(variable, ids), variable),
        ]
    )


def loss_of(rows):
    return tf.reduce_sum(tf.tanh(rows) ** 3)


def test_19272_the_fast_gradient_method_perturbs_rows_as_those_of_a_variable():
    def perturbed_loss(rows, source):
        gradient = tf.gradients(loss_of(rows), [rows])[0]
        return loss_of(rows + 0.1 * tf.stop_gradient(tf.nn.l2_normalize(gradient)))

    ours, theirs = both(perturbed_loss)
    assert ours == theirs


def test_19272_a_penalty_on_the_gradient_trains_rows_as_those_of_a_variable():
    def gradient_of_the_penalty(rows, source):
        penalty = tf.reduce_sum(tf.square(tf.gradients(loss_of(rows), [rows])[0]))
        return tf.convert_to_tensor(tf.gradients(penalty, [rows])[0])

    ours, theirs = both(gradient_of_the_penalty)
    np.testing.assert_array_equal(ours, theirs)


def test_19272_a_penalty_reaches_the_table_as_it_reaches_a_variable():
    def gradient_of_the_penalty(rows, source):
        penalty = tf.reduce_sum(tf.square(tf.gradients(loss_of(rows), [rows])[0]))
        return tf.gradients(penalty, [source])[0]

    ours, theirs = both(gradient_of_the_penalty)
    assert ours.indices.tolist() == theirs.indices.tolist()
    np.testing.assert_array_equal(ours.values, theirs.values)


# ------------------------------------------------------------------ 24408


if hasattr(tf.data.experimental, "CheckpointInputPipelineHook"):  # TensorFlow 2.15.

    @pytest.mark.long
    def test_24408_calls_of_train_that_save_the_state_of_the_input_see_each_sample_once(tmp_path):
        def input_fn():
            return tf.data.Dataset.range(10).map(lambda i: {"id": [i]})

        estimator = rec.RecEstimator(model_fn, str(tmp_path))
        for _ in range(3):
            hook = tf.data.experimental.CheckpointInputPipelineHook(estimator)
            estimator.train(input_fn, steps=3, hooks=[hook])
        assert sorted(estimator.get_variable_value("t-keys")) == list(range(9))
        assert estimator.get_variable_value("t-freqs").tolist() == [1] * 9


# ------------------------------------------------------------------ 19020


def test_19020_a_vocabulary_in_the_path_of_modified_keys_is_refused_with_a_remedy():
    words = tf.data.Dataset.from_tensors({"word": ["a", "b"]})
    batch = tf.data.make_one_shot_iterator(words).get_next()
    vocabulary = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 1
    )
    table = rec.create_table(tf.int64, 2, "t", tf.zeros_initializer(), device_vocabulary_size=10)
    rows = rec.sparse_lookup(table, vocabulary.lookup(batch["word"]), modify_graph=True)
    rec.optimizers.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(rows))
    with pytest.raises(ValueError, match="hash_table|LookupTable|StaticVocabularyTable") as error:
        rec.modify_graph_and_start_emb_cache()
    assert ";" in str(error.value)


# ------------------------------------------------------------------ 25443


def test_25443_a_frozen_graph_names_the_portable_export_as_its_remedy():
    table, variable = table_and_variable()
    ids = tf.constant([1, 2], tf.int64)
    tf.add(rec.embedding_lookup(table, ids), tf.gather(variable, ids), name="sums")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        frozen = tf.graph_util.convert_variables_to_constants(session, session.graph_def, ["sums"])
    with tf.Graph().as_default(), tf.Session() as session:
        (sums,) = tf.import_graph_def(frozen, return_elements=["sums:0"], name="")
        message = (
            "table t must be initialized.* frozen graph has no rows, export with portable=True"
        )
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            session.run(sums)
