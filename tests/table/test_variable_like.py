# SPDX-License-Identifier: Apache-2.0
"""Tables where scripts have variables."""

import copy
import operator
import pickle

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


@pytest.fixture
def tables():
    """A table, a partitioned one, and a shard."""
    cut = tf.fixed_size_partitioner(2)
    parts = rec.get_embedding_variable("parts", 2, partitioner=cut)
    return [rec.get_embedding_variable("one", 2), parts, next(iter(parts))]


@pytest.mark.parametrize("slices", [0, slice(3), (slice(None), 0)])
def test_a_slice_of_a_table_is_refused_by_name(slices):
    partitioner = tf.fixed_size_partitioner(2)
    table = rec.get_embedding_variable("items", 4, partitioner=partitioner)
    assert len(list(table)) == 2
    for sliced in (table, *table):
        with pytest.raises(TypeError, match=r"table 'items.*cannot be .*lookup\(table, ids\)"):
            sliced[slices]


REMEDY = (
    r"'(one|parts|parts/part_0)' cannot be .*, because it has no value as a whole; read rows with"
)


@pytest.mark.parametrize(
    "use",
    [
        tf.convert_to_tensor,
        tf.identity,
        lambda t: tf.concat([t, tf.ones([1, 2])], 0),
        lambda t: tf.concat((tf.ones([1, 2]), t), axis=0),
        lambda t: tf.concat(values=[t], axis=0),
        lambda t: tf.stack([tf.ones([2]), t]),
        lambda t: tf.add_n([tf.ones([2]), t]),
        lambda t: tf.einsum("ij,kj->ik", tf.ones([1, 2]), t),
        lambda t: tf.gather(t, [0]),
        lambda t: tf.matmul(tf.ones([1, 2]), t, transpose_b=True),
        lambda t: tf.maximum(0.0, t),
        lambda t: tf.where([True], t, t),
        lambda t: tf.nn.l2_loss(t),
        lambda t: tf.nn.embedding_lookup([tf.ones([1, 2]), t], [0]),
        lambda t: tf.ones([1, 2]) * t,
        lambda t: t * tf.ones([1, 2]),
        lambda t: 1.0 - t,
        lambda t: t @ tf.ones([2, 1]),
        lambda t: t + t,
        operator.neg,
        abs,
        lambda t: t > 0.0,
        lambda t: tf.ones([2]) > t,
        lambda t: tf.train.ExponentialMovingAverage(0.9).apply(list(getattr(t, "shards", [t]))),
    ],
)
def test_a_table_in_place_of_its_value_is_a_type_error_with_its_name_and_a_remedy(use, tables):
    for table in tables:
        with pytest.raises(TypeError, match=REMEDY):
            use(table)


def test_tensorflows_errors_for_other_arguments_stay():
    rec.get_embedding_variable("t", 2)
    with pytest.raises((TypeError, ValueError), match="types|Unable to convert"):
        tf.concat([tf.ones([2]), tf.constant(["a"])], 0)
    with pytest.raises(TypeError, match="NOT CONVERTIBLE"):
        tf.concat([tf.ones([2]), object()], 0)


def test_a_table_is_compared_by_identity(tables):
    one, parts, shard = tables
    assert one == one and one != parts and one in {one: 1} and shard in list(parts)
    assert bool(one) and one not in [parts, 0.0]


@pytest.mark.parametrize(
    "name, remedy",
    [
        *((name, "read rows with rec") for name in ("value", "read_value", "eval", "sparse_read")),
        *((name, "train rows with") for name in ("assign_add", "scatter_sub", "load")),
        ("is_initialized", "run tf.compat.v1.report_uninitialized_variables"),
        ("set_shape", "its settings are in table.ev_option"),
    ],
)
def test_what_only_a_variable_has_is_an_attribute_error_with_a_remedy(name, remedy, tables):
    entry = tf.global_variables()[-1]
    for table in (*tables, entry) if name != "is_initialized" else tables:
        assert not hasattr(table, name) and getattr(table, name, None) is None
        message = f"^table '{table.name}' has no {name}, because it is no tf.Variable; {remedy}"
        with pytest.raises(AttributeError, match=message):
            getattr(table, name)


def test_every_public_name_of_a_variable_is_there_or_has_a_remedy(tables):
    names = [name for name in dir(tf.Variable) if not name.startswith("_")]
    assert len(names) > 30
    for table in tables:
        for name in names:
            try:
                getattr(table, name)
            except AttributeError as error:
                assert str(error).startswith(f"table {table.name!r} has no {name}, because"), name
            except ValueError as error:
                assert "table must have one shard to have" in str(error)


@pytest.mark.parametrize("name", ["nonsense", "_private"])
def test_any_other_name_is_pythons_attribute_error(name, tables):
    with pytest.raises(AttributeError, match=f"^'EmbeddingTable' object has no attribute '{name}'"):
        getattr(tables[0], name)


def test_functions_that_write_a_variable_refuse_a_table_with_a_remedy(tables):
    with pytest.raises(AttributeError, match="table 'one' .* train rows with an optimizer"):
        tf.scatter_update(tables[0], [0], tf.ones([2]))
    with pytest.raises(TypeError, match=r"call table.assign\(keys, rows\)"):
        tf.assign(tables[0], tf.ones([2]))


def test_the_name_of_a_table_stands_for_that_of_a_variable(tables):
    names = [table.name for table in tables]
    assert names == ["one", "parts", "parts/part_0"]
    assert [name[:-2] for name in names] == [name.split(":")[0] for name in names] == names
    assert [name[0] + name[1:-1] for name in names] == ["on", "part", "parts/part_"]
    assert pickle.loads(pickle.dumps(names)) == copy.deepcopy(names) == names


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
def test_variables_to_restore_of_a_moving_average_bring_the_rows(saver, tables, tmp_path):
    one, parts, _ = tables
    variable = tf.get_variable("v", initializer=[1.0, 2.0])
    averages = tf.train.ExponentialMovingAverage(0.0)
    average = averages.apply([variable])
    ids = tf.constant([1, 2, 3], tf.int64)
    rows = tf.stack([rec.embedding_lookup(table, ids) for table in (one, parts)])
    optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
    train = optimizer.minimize(tf.reduce_sum(rows) + tf.reduce_sum(variable))
    sizes = [one.size(), parts.size()]
    to_restore = averages.variables_to_restore()
    assert sorted(to_restore) == [
        f"{name}/ExponentialMovingAverage" for name in ("one", "parts/part_0", "parts/part_1", "v")
    ]
    whole, restoring = tf.train.Saver(), saver(to_restore)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        session.run(average)
        trained = session.run([rows, variable])
        prefix = whole.save(session, str(tmp_path / "model"))
        session.run(tf.global_variables_initializer())
        assert session.run(sizes) == [0, 0]
        restoring.restore(session, prefix)
        assert session.run(sizes) == [3, 3]
        for actual, expected in zip(session.run([rows, variable]), trained):
            np.testing.assert_array_equal(actual, expected)
