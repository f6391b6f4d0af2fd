# SPDX-License-Identifier: Apache-2.0
"""Faults that users of TensorFlow Recommenders Addons reported. N in test_N is the issue there."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


def model_fn_of(shards=1):
    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable(
            "t", 2, partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None
        )
        rows = rec.embedding_lookup(table, features["id"])
        step = tf.train.get_global_step()
        loss = tf.reduce_sum(rows)
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        predictions = {"row": rows}
        return rec.EstimatorSpec(mode, predictions, loss, train)

    return model_fn


def estimator_in(folder, shards=1, **arguments):
    config = rec.RunConfig(tf_random_seed=1, log_step_count_steps=1000)
    return rec.RecEstimator(model_fn_of(shards), str(folder), config, **arguments)


def input_of(*ids):
    return lambda: tf.data.Dataset.from_tensors({"id": np.array(ids, np.int64)})


def predictions_of(estimator, *ids):
    rows = [tuple(prediction["row"]) for prediction in estimator.predict(input_of(*ids))]
    return dict(zip(ids, rows))


def counts_of(estimator):
    keys, counts = (estimator.get_variable_value(f"t-{part}") for part in ("keys", "freqs"))
    return dict(zip(keys, counts))


@pytest.mark.long
def test_107_a_warm_start_adds_a_day_to_the_rows_and_counts_of_the_days_before(tmp_path):
    first = estimator_in(tmp_path / "first")
    first.train(input_of(1, 2, 2))
    before = predictions_of(first, 1, 2)
    second = estimator_in(tmp_path / "second", warm_start_from=str(tmp_path / "first"))
    second.train(input_of(2, 3))
    after = predictions_of(second, 1, 2)
    assert after[1] == before[1] and after[2] != before[2]
    assert counts_of(second) == {1: 1, 2: 3, 3: 1}


@pytest.mark.long
def test_136_an_id_that_was_never_trained_reads_one_vector_everywhere(tmp_path):
    estimator = estimator_in(tmp_path / "model")
    estimator.train(input_of(1))
    expected = predictions_of(estimator, 77, -5)
    assert expected[77] != expected[-5]

    def receiver():
        ids = tf.placeholder(tf.int64, [None])
        return rec.ServingInputReceiver({"id": ids}, {"id": ids})

    for shards in (1, 3):
        other = estimator_in(tmp_path / "model", shards)
        assert predictions_of(other, 77, -5) == expected
        for portable in (False, True):
            folder = other.export_saved_model(
                str(tmp_path / f"export-{shards}-{portable}"), receiver, portable=portable
            )
            with tf.Graph().as_default(), tf.Session() as session:
                model = tf.saved_model.load(session, ["serve"], folder.decode())
                signature = model.signature_def["serving_default"]
                rows = session.run(
                    signature.outputs["row"].name, {signature.inputs["id"].name: [77, -5]}
                )
            assert [tuple(row) for row in rows] == list(expected.values())


@pytest.mark.parametrize("shards", [1, 3])
def test_263_a_table_that_is_not_trainable_keeps_its_bits_counts_and_versions(shards):
    frozen = rec.get_embedding_variable(
        "frozen", 2, trainable=False, partitioner=tf.fixed_size_partitioner(shards)
    )
    trained = rec.get_embedding_variable("trained", 2)
    rows = rec.embedding_lookup(frozen, [1, 2, 2]) + rec.embedding_lookup(trained, [1, 2, 2])
    step = tf.train.get_or_create_global_step()
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows), global_step=step)
    state = [
        rec.embedding_lookup(frozen, [1, 2]),
        frozen.get_frequency([1, 2]),
        frozen.get_version([1, 2]),
        frozen.size(),
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(state)
        for _ in range(3):
            session.run(train)
        after = session.run(state)
        assert session.run(trained.get_frequency([1, 2])).tolist() == [3, 6]
    for old, new in zip(before, after):
        assert old.tobytes() == new.tobytes()
