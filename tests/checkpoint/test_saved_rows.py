# SPDX-License-Identifier: Apache-2.0
"""What saves find in rows: norms, and floats that are not finite, by the policy of the Saver."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.saved_rows import SavedRows


class Trained:
    """Two tables in a session, trained by Adagrad with gradients that are fed."""

    def __init__(self, parts=1, **arguments):
        arguments = dict(initializer=tf.zeros_initializer(), **arguments)
        if parts > 1:
            arguments["partitioner"] = tf.fixed_size_partitioner(parts)
        tables = [rec.get_embedding_variable(name, 3, **arguments) for name in ("user", "item")]
        self.keys = tf.placeholder(tf.int64, [None])
        self.factor = tf.placeholder(tf.float32, [None, 3])
        rows = [rec.embedding_lookup(table, self.keys) for table in tables]
        loss = tf.reduce_sum(rows[0] * self.factor) + tf.reduce_sum(rows[1])
        step = tf.train.get_or_create_global_step()
        self.train_op = rec.optimizers.AdagradOptimizer(1.0, 1.0).minimize(loss, global_step=step)

    def train(self, session, keys, factor):
        factor = np.broadcast_to(np.asarray(factor, np.float32)[:, np.newaxis], [len(keys), 3])
        session.run(self.train_op, {self.keys: keys, self.factor: factor})


def session_with(model, saver):
    """A session with initialized tables, and a list of what each save found."""
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    found = []
    saver.row_reports.add_listener(lambda _, prefix, rows: found.append((prefix, rows)))
    model.train(session, [1, 2], [2.0, -2.0])
    return session, found


@pytest.mark.parametrize("parts", [1, 3])
def test_a_save_tells_the_largest_norms_of_each_table(tmp_path, parts):
    model, saver = Trained(parts), rec.Saver()
    session, found = session_with(model, saver)
    with session:
        for step, key in enumerate(range(10, 17)):
            model.train(session, [key], [0.5 + step])
        prefix = saver.save(session, str(tmp_path / "m"))
        table = tf.train.load_checkpoint(prefix)
    names = ["user"] if parts == 1 else [f"user/part_{part}" for part in range(parts)]
    keys, values = (
        np.concatenate([table.get_tensor(f"{name}-{what}") for name in names])
        for what in ("keys", "values")
    )
    norms = dict(zip(keys.tolist(), np.linalg.norm(values, axis=1)))
    expected = sorted(norms, key=lambda key: (-norms[key], key))[:5]
    [(saved, rows)] = found
    assert saved == prefix and set(rows) == {"user", "item"}
    assert [key for _, key in rows["user"].largest] == expected
    # The sum of three squares in another order.
    np.testing.assert_allclose(
        [norm for norm, _ in rows["user"].largest], [norms[key] for key in expected], rtol=1e-6
    )
    assert rows["user"].non_finite == 0


def test_a_row_that_is_not_finite_is_named_in_a_warning_and_saved(tmp_path, caplog):
    model, saver = Trained(2), rec.Saver()
    session, found = session_with(model, saver)
    with session, caplog.at_level(logging.WARNING, "tensorflow"):
        model.train(session, [5, 7], [np.nan, np.inf])
        assert saver.save(session, str(tmp_path / "m")) is not None
    assert found[0][1]["user"].non_finite == 2
    assert found[0][1]["item"].non_finite == 0
    # The update of step 1 is stamped with the step before its increment.
    assert "Table 'user' has 2 rows that are not finite, such as NaN in the value of key" in (
        caplog.text
    )
    assert "last trained at step 1" in caplog.text and "'item'" not in caplog.text


def test_a_slot_that_is_not_finite_is_named(tmp_path, caplog):
    model, saver = Trained(), rec.Saver()
    session, _ = session_with(model, saver)
    with session, caplog.at_level(logging.WARNING, "tensorflow"):
        model.train(session, [5], [1e30])  # Its square, which Adagrad sums, is infinite.
        saver.save(session, str(tmp_path / "m"))
    assert "1 rows that are not finite, such as Inf in slot Adagrad of key 5, last trained" in (
        caplog.text
    )


@pytest.mark.parametrize("policy", ["refuse", "stop"])
def test_a_refused_save_leaves_the_checkpoint_before_it(tmp_path, caplog, policy):
    model, saver = Trained(), rec.Saver(non_finite_rows=policy)
    session, found = session_with(model, saver)
    with session:
        first = saver.save(session, str(tmp_path / "m"), global_step=1)
        model.train(session, [5], [np.nan])
        if policy == "stop":
            with pytest.raises(tf.errors.DataLossError, match="NaN in the value of key 5, last "):
                saver.save(session, str(tmp_path / "m"), global_step=2)
        else:
            with caplog.at_level(logging.ERROR, "tensorflow"):
                assert saver.save(session, str(tmp_path / "m"), global_step=2) is None
            assert "rows of table user must be finite to be saved, got 1 row" in caplog.text
        assert tf.train.latest_checkpoint(str(tmp_path)) == first
        assert not [path for path in tmp_path.iterdir() if "m-2" in path.name]
        assert [prefix for prefix, _ in found] == [first]
        saver.restore(session, first)
        model.train(session, [5], [1.0])
        assert saver.save(session, str(tmp_path / "m"), global_step=3) is not None


def test_a_delta_is_refused_and_the_next_one_holds_its_changes(tmp_path, caplog):
    model, saver = Trained(), rec.Saver(incremental=True, non_finite_rows="refuse")
    session, _ = session_with(model, saver)
    with session:
        saver.save(session, str(tmp_path / "m"), global_step=1)
        model.train(session, [5], [np.nan])
        model.train(session, [6], [1.0])
        assert saver.save(session, str(tmp_path / "m"), global_step=3) is None
        # Key 5 is still not finite, as long as nothing replaces its row.
        assert saver.save(session, str(tmp_path / "m"), global_step=3) is None
    assert caplog.text.count("key 5") == 2


def test_another_policy_is_refused_by_name():
    rec.get_embedding_variable("user", 3)
    with pytest.raises(ValueError, match="non_finite_rows must be one of 'warn', .* got 'ignore'"):
        rec.Saver(non_finite_rows="ignore")
    with pytest.raises(ValueError, match="non_finite_rows must be one of 'warn', .* got None"):
        rec.RunConfig(non_finite_rows=None)


def test_the_rows_of_two_shards_are_merged_by_norm():
    one = SavedRows(((3.0, 1), (1.0, 2)), 0, "")
    other = SavedRows(((3.0, 0), (2.0, 4), (1.5, 5), (1.2, 6)), 2, "NaN")
    assert one.merged(other) == SavedRows(
        ((3.0, 0), (3.0, 1), (2.0, 4), (1.5, 5), (1.2, 6)), 2, "NaN"
    )


def train_of_estimator(folder, policy):
    def model_fn(features, labels, mode):
        scale = tf.where(tf.equal(tf.train.get_global_step(), 5), np.nan, 1.0)
        loss = tf.reduce_sum(features["user"]) * tf.cast(scale, tf.float32)
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        )
        return rec.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=train_op)

    config = rec.RunConfig(save_checkpoints_steps=4, non_finite_rows=policy)
    estimator = rec.RecEstimator(
        model_fn,
        str(folder),
        config.replace(tf_random_seed=1),
        embedding_features=[rec.EmbeddingFeature("user", dim=2)],
    )
    keys = np.arange(12)[:, np.newaxis]
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices(({"user": keys}, keys)))


@pytest.mark.long
def test_run_config_decides_what_an_estimator_does(tmp_path):
    steps = {}
    for policy in ("warn", "refuse", "stop"):
        folder = tmp_path / policy
        if policy == "stop":
            with pytest.raises(tf.errors.DataLossError, match="user.* must be finite"):
                train_of_estimator(folder, policy)
        else:
            train_of_estimator(folder, policy)
        steps[policy] = sorted(int(path.stem.split("-")[1]) for path in folder.glob("*.index"))
    assert steps == {"warn": [0, 4, 8, 12], "refuse": [0, 4], "stop": [0, 4]}
