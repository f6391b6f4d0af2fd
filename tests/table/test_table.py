# SPDX-License-Identifier: Apache-2.0
"""get_embedding_variable and EmbeddingTable: names, settings, collections, initial vectors."""

import copy
import pickle
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import eagerly

import rec_estimator as rec
from rec_estimator.table.table import graph_tables

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def bank_option(bank):
    """An option whose initial vectors are the rows of `bank`."""
    init = rec.InitializerOption(tf.constant_initializer(bank), default_value_dim=len(bank))
    return rec.EmbeddingVariableOption(init_option=init)


def train_keys(table, keys, learning_rate=1.0):
    """One step with gradient 1 on every occurrence of keys."""
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant(keys, tf.int64)))
    return rec.optimizers.GradientDescentOptimizer(learning_rate).minimize(loss)


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def test_key_reads_row_floormod_of_the_bank_before_it_is_trained():
    bank = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = rec.get_embedding_variable("t", 3, ev_option=bank_option(bank))
    keys = np.array([0, 5, -1, -4, INT64_MIN, INT64_MAX])
    values = rec.embedding_lookup(table, tf.constant(keys))
    with initialized_session() as session:
        np.testing.assert_array_equal(session.run(values), bank[keys % 4])
        assert session.run(table.size()) == 0


def test_positional_name_and_dimension_are_enough():
    table = rec.get_embedding_variable("emb_var", 10)
    assert table.dim == 10
    assert table.initial_value.shape == [4096, 10]


def test_bank_equals_a_dense_variable_with_the_same_seeded_initializer():
    initializer = tf.random_normal_initializer(seed=3)
    table = rec.get_embedding_variable("t", 2, initializer=initializer)
    dense = tf.get_variable("dense", [4096, 2], initializer=tf.random_normal_initializer(seed=3))
    with initialized_session() as session:
        bank, expected = session.run([rec.embedding_lookup(table, tf.range(4096)), dense])
    np.testing.assert_array_equal(bank, expected)


def test_initializer_of_the_option_takes_precedence_over_the_argument_and_the_scope():
    option = rec.EmbeddingVariableOption(
        init_option=rec.InitializerOption(tf.ones_initializer, default_value_dim=2)
    )
    with tf.variable_scope("s", initializer=tf.constant_initializer(3.0)):
        tables = [
            rec.get_embedding_variable(
                "a", 1, initializer=tf.zeros_initializer(), ev_option=option
            ),
            rec.get_embedding_variable("b", 1, initializer=tf.zeros_initializer()),
            rec.get_embedding_variable("c", 1),
        ]
    values = [rec.embedding_lookup(table, [7]) for table in tables]
    with initialized_session() as session:
        assert [v.item() for v in session.run(values)] == [1.0, 0.0, 3.0]


@pytest.mark.parametrize("where", ["argument", "option"])
@pytest.mark.parametrize(
    "make",
    [list, tuple, np.float32, np.float64, lambda row: np.float16([row]), tf.constant],
    ids=["list", "tuple", "float32", "float64", "a row of a matrix", "tensor"],
)
def test_a_row_as_initializer_is_the_initial_vector_of_every_key(make, where):
    row = make([0.5, -2.0])
    arguments = {"initializer": row}
    if where == "option":
        option = rec.InitializerOption(row, default_value_dim=3)
        arguments = {"ev_option": rec.EmbeddingVariableOption(init_option=option)}
    cut = tf.fixed_size_partitioner(2)
    tables = [
        rec.get_embedding_variable("one", 2, **arguments),
        rec.get_embedding_variable("parts", 2, partitioner=cut, **arguments),
    ]
    assert rec.get_embedding_variable("one", 2, **arguments) is tables[0]
    train = [train_keys(table, [1, 2]) for table in tables]
    rows = [rec.embedding_lookup(table, [1, -5, 2**62]) for table in tables]
    with initialized_session() as session:
        for before in session.run(rows):
            np.testing.assert_array_equal(before, [[0.5, -2.0]] * 3)
        session.run(train)
        for after in session.run(rows):
            np.testing.assert_array_equal(
                after == [0.5, -2.0], [[False] * 2, [True] * 2, [True] * 2]
            )


def test_equal_rows_as_initializer_are_the_same_setting():
    table = rec.get_embedding_variable("t", 2, initializer=[0.1, 0.2])
    assert rec.get_embedding_variable("t", 2, initializer=np.float32([0.1, 0.2])) is table
    with pytest.raises(ValueError, match=r"got initializer = .*\[0.1.*, 0.5\].* after .*0.2"):
        rec.get_embedding_variable("t", 2, initializer=[0.1, 0.5])


def test_variable_scope_prefixes_the_name():
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        table = rec.get_embedding_variable("t", 2)
    assert table.name == "outer/inner/t"
    assert table.handle.op.name == "outer/inner/t"


def test_name_scope_and_earlier_ops_do_not_change_the_name():
    tf.placeholder(tf.float32, name="t")
    with tf.name_scope("ignored"):
        table = rec.get_embedding_variable("t", 2)
    assert table.name == "t"


def test_same_name_and_settings_give_the_same_table():
    make = lambda: rec.get_embedding_variable(  # noqa: E731
        "t", 2, initializer=tf.random_normal_initializer(stddev=0.1)
    )
    assert make() is make()
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        assert len({make(), make()}) == 1
    assert len(graph_tables()) == 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"embedding_dim": 3}, "dim = 3 after 2"),
        ({"initializer": tf.zeros_initializer()}, "initializer = "),
        ({"partitioner": tf.fixed_size_partitioner(2)}, "num_shards = 2 after 1"),
        ({"trainable": False}, "trainable = False after True"),
        ({"ev_option": bank_option(np.ones((3, 2), np.float32))}, "settings it was made with"),
    ],
    ids=["dim", "initializer", "shards", "trainable", "option"],
)
def test_same_name_with_other_settings_is_an_error(settings, message):
    rec.get_embedding_variable("t", 2)
    with pytest.raises(ValueError, match=f"table 't' must have the settings.*{message}|{message}"):
        rec.get_embedding_variable("t", **{"embedding_dim": 2, **settings})


def test_a_table_is_found_without_its_initializer():
    table = rec.get_embedding_variable("t", 2, initializer=tf.ones_initializer())
    assert rec.get_embedding_variable("t", 2) is table


def test_reuse_of_a_table_that_does_not_exist_is_an_error():
    with (
        tf.variable_scope("s", reuse=True),
        pytest.raises(ValueError, match="got 's/t' under reuse"),
    ):
        rec.get_embedding_variable("t", 2)


def test_name_of_a_variable_is_refused():
    tf.get_variable("t", [2])
    with pytest.raises(ValueError, match="name must not be that of a variable.*'t'"):
        rec.get_embedding_variable("t", 2)


def test_name_of_a_partitioned_variable_is_refused():
    tf.get_variable("t", [4], partitioner=tf.fixed_size_partitioner(2))
    with pytest.raises(ValueError, match="name must not be that of a variable.*'t'"):
        rec.get_embedding_variable("t", 2)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("reuse", [False, tf.AUTO_REUSE])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_a_variable_that_takes_the_name_of_a_table_is_an_error(shards, reuse, is_cut):
    cut = tf.fixed_size_partitioner(2)
    with tf.variable_scope("s", reuse=reuse):
        rec.get_embedding_variable("t", 2, partitioner=cut if shards > 1 else None)
        tf.global_variables_initializer()
        tf.get_variable("t", [4, 2], partitioner=cut if is_cut else None)
    message = "name of tf.get_variable must not be that of a table, got 's/t'; call rec_estimator"
    with pytest.raises(ValueError, match=message):
        tf.global_variables_initializer()
    for saver in (tf.train.Saver, rec.Saver):
        with pytest.raises(ValueError, match=message):
            saver(tf.global_variables())
    with pytest.raises(ValueError, match=message):
        tf.train.MonitoredTrainingSession()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"name": ""}, ValueError, "name must be a non-empty string"),
        ({"name": 3}, ValueError, "name must be a non-empty string, got 3"),
        ({"embedding_dim": 0}, ValueError, "embedding_dim must be an integer >= 1, got 0"),
        ({"embedding_dim": 2.5}, ValueError, "got 2.5"),
        ({"embedding_dim": 2**20 + 1}, ValueError, "embedding_dim must be <= 1048576, got 1048577"),
        ({"embedding_dim": 2**31}, ValueError, "got 2147483648; it is the length of a vector"),
        ({"embedding_dim": True}, ValueError, "got True"),
        (
            {"key_dtype": tf.string},
            ValueError,
            "key_dtype must be int64 or int32, got string; hash",
        ),
        (
            {"value_dtype": tf.float64},
            ValueError,
            "value_dtype must be float32, bfloat16 or float16, got float64",
        ),
        (
            {"regularizer": abs},
            TypeError,
            r"regularizer must be a rec_estimator.L2Regularizer, .*; .*L2Regularizer\(scale\)",
        ),
        ({"constraint": abs}, ValueError, "constraint must be None, got .*; bound .* max_norm="),
        ({"custom_getter": abs}, ValueError, "custom_getter must be None, got .*, leave it out"),
        ({"validate_shape": False}, ValueError, "validate_shape must be True"),
        ({"steps_to_live": -1}, ValueError, "steps_to_live must be None or an integer >= 0"),
        ({"initializer": 1.0}, TypeError, "initializer must be a TensorFlow initializer"),
        ({"initializer": lambda shape, dtype: tf.zeros([1])}, ValueError, "must give float32"),
        ({"initializer": [0.1]}, ValueError, "one row of embedding_dim=2 numbers, got .* with 1"),
        ({"initializer": np.zeros([3, 2])}, ValueError, "one row .* several rows use"),
        ({"initializer": np.float32(1)}, TypeError, "or one row, got .*constant_initializer"),
        ({"initializer": ["a", "b"]}, TypeError, "initializer must be a row of numbers"),
        ({"initializer": [0.1, float("nan")]}, ValueError, "a row of finite numbers, got"),
        ({"ev_option": 3}, TypeError, "ev_option must be an EmbeddingVariableOption, got 3"),
        (
            {"partitioner": lambda shape, dtype: [1, 2]},
            ValueError,
            "partitioner must cut the first",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_argument_is_an_error_that_names_it(arguments, error, message):
    with pytest.raises(error, match=message):
        rec.get_embedding_variable(**{"name": "t", "embedding_dim": 2, **arguments})
    assert graph_tables() == []


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_default_value_dim_must_be_a_positive_integer(value):
    with pytest.raises(ValueError, match="default_value_dim must be an integer >= 1"):
        rec.InitializerOption(default_value_dim=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0", None])
def test_default_value_no_permission_must_be_finite(value):
    with pytest.raises(ValueError, match="default_value_no_permission must be a finite number"):
        rec.InitializerOption(default_value_no_permission=value)


def test_options_survive_copy_and_pickle():
    option = rec.EmbeddingVariableOption(init_option=rec.InitializerOption(default_value_dim=8))
    assert copy.deepcopy(option) == option
    assert pickle.loads(pickle.dumps(option)) == option


def test_the_dimension_may_be_the_size_of_a_tensor():
    # After tf.disable_v2_behavior() the size is a Dimension; in TensorFlow 2 it is an int.
    table = rec.get_embedding_variable("t", tf.Dimension(3))
    assert rec.get_embedding_variable("t", tf.zeros([2, 3]).shape[1]) is table
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(rec.embedding_lookup(table, [1, 2])).shape == (2, 3)
    with pytest.raises(ValueError, match="embedding_dim must be an integer >= 1, got None"):
        rec.get_embedding_variable("u", tf.Dimension(None))


@pytest.mark.parametrize("setting", ["regularizer", "constraint"])
def test_setting_of_the_scope_that_tables_ignore_is_a_warning(setting, monkeypatch):
    told = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: told.append(text % values))
    with tf.variable_scope("tower", **{setting: tf.nn.l2_loss}):
        rec.get_embedding_variable("t", 2)
    assert len(told) == 1
    assert re.search(f"Table 'tower/t' ignores {setting}=.* of variable scope 'tower'", told[0])


def test_eager_mode_is_refused():
    assert eagerly(tf.executing_eagerly)
    for name, call in (
        ("get_embedding_variable", lambda: rec.get_embedding_variable("t", 2)),
        (
            "AdagradOptimizer.minimize",
            lambda: rec.optimizers.AdagradOptimizer(0.1).minimize(tf.constant(1.0)),
        ),
    ):
        rule = f"{name} must be called while a graph is built, got eager mode"
        with pytest.raises(ValueError, match=rule):
            eagerly(call)


def test_table_is_in_two_collections_and_its_initializer_in_the_global_one():
    table = rec.get_embedding_variable("t", 2, collections=["mine"])
    assert tf.get_collection(rec.EMBEDDING_VARIABLES) == [table]
    assert tf.get_collection("mine") == [table]
    assert tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS) == [table.shards[0].saveable]
    assert tf.trainable_variables() == [table]
    (entry,) = tf.global_variables()
    assert (entry.name, entry.initializer) == ("t", table.initializer)


def test_uninitialized_table_is_reported_and_refuses_to_be_read():
    table = rec.get_embedding_variable("scope/t", 2)
    values = rec.embedding_lookup(table, [1])
    report = tf.report_uninitialized_variables()
    with tf.Session() as session:
        assert session.run(report).tolist() == [b"scope/t"]
        with pytest.raises(tf.errors.FailedPreconditionError, match="scope/t"):
            session.run(values)
        session.run(tf.global_variables_initializer())
        assert session.run(report).tolist() == []


def test_running_the_initializer_again_empties_the_table():
    table = rec.get_embedding_variable("t", 2)
    train = train_keys(table, [1, 2, 3])
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.size()) == 3
        session.run(tf.global_variables_initializer())
        assert session.run(table.size()) == 0
        session.run(train)
        assert session.run(table.get_frequency([1, 9])).tolist() == [1, 0]


def test_two_sessions_share_no_rows():
    table = rec.get_embedding_variable("t", 2)
    train = train_keys(table, [1, 2])
    with initialized_session() as first, initialized_session() as second:
        first.run(train)
        assert first.run(table.size()) == 2
        assert second.run(table.size()) == 0


def test_train_ops_of_two_tables_run_one_without_the_other():
    step = tf.train.get_or_create_global_step()
    tables = [rec.get_embedding_variable(name, 2) for name in ("a", "b")]
    train = [
        rec.optimizers.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_sum(rec.embedding_lookup(table, [4])), global_step=step, var_list=[table]
        )
        for table in tables
    ]
    with initialized_session() as session:
        for i in (0, 1, 0):
            session.run(train[i])
        assert session.run([table.get_frequency([4]) for table in tables]) == [[2], [1]]
        assert session.run([table.get_version([4]) for table in tables]) == [[2], [1]]


def test_lookups_that_the_loss_does_not_reach_are_not_counted():
    table = rec.get_embedding_variable("t", 2)
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    loss = weight * tf.reduce_sum(tf.stop_gradient(rec.embedding_lookup(table, [1, 2])))
    rec.embedding_lookup(table, tf.placeholder(tf.int64, [None]))  # An eval tower's.
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.get_frequency([1, 2])).tolist() == [1, 1]
        assert session.run(table.size()) == 2


def test_failed_update_leaves_the_table_free_for_another():
    table = rec.get_embedding_variable("t", 2)
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    keys = tf.constant([1], tf.int64)
    with pytest.raises(ValueError, match="gradient of table 't' must have a row of 2 floats for"):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.zeros([2, 2]), keys), table)])
    optimizer.apply_gradients([(tf.IndexedSlices(tf.zeros([1, 2]), keys), table)])


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_saver_of_the_global_variables_saves_the_rows(tmp_path, saver, as_dict):
    table = rec.get_embedding_variable("t", 2)
    train = train_keys(table, [1, 2, 3])
    variables = tf.global_variables()
    saver = saver({v.op.name: v for v in variables} if as_dict else variables)
    with initialized_session() as session:
        session.run(train)
        prefix = saver.save(session, str(tmp_path / "model"))
        session.run(tf.global_variables_initializer())
        saver.restore(session, prefix)
        assert session.run(table.size()) == 3


def test_custom_gradients_work_beside_a_table():
    table = rec.get_embedding_variable("t", 2)
    values = rec.embedding_lookup(table, [1])
    (actual,) = tf.gradients(tf.reduce_sum(tf.nn.swish(values)), table)
    (expected,) = tf.gradients(tf.reduce_sum(values * tf.sigmoid(values)), table)
    with initialized_session() as session:
        # The same formula in two orders of operations.
        np.testing.assert_allclose(*session.run([actual.values, expected.values]), rtol=1e-5)


@pytest.mark.parametrize(
    "use", [tf.convert_to_tensor, lambda table: tf.nn.embedding_lookup(table, [1])]
)
def test_table_in_place_of_a_tensor_is_an_error_with_a_remedy(use):
    table = rec.get_embedding_variable("t", 2)
    with pytest.raises(TypeError, match="table 't' cannot be converted .*; read rows with"):
        use(table)


def test_saver_refuses_another_name_of_a_table_in_a_dict():
    table = rec.get_embedding_variable("t", 2)
    for name in ("other", "t2", "a/t"):
        with pytest.raises(TypeError, match="var_list must be a list to save tables"):
            rec.Saver({name: table})
    rec.Saver({"t": table})


@pytest.mark.parametrize("name", ["a b", "/a", "_a", "é", "a:0", "a\\b"])
def test_name_that_tensorflow_does_not_take_is_an_error(name):
    with pytest.raises(ValueError, match="name must be one that TensorFlow accepts"):
        rec.get_embedding_variable(name, 2)


def test_initializers_differ_if_the_values_they_capture_differ():
    def constant(value):
        return lambda shape, dtype: tf.fill(shape, tf.constant(value, dtype))

    table = rec.get_embedding_variable("t", 2, initializer=constant(1.0))
    assert rec.get_embedding_variable("t", 2, initializer=constant(1.0)) is table
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        rec.get_embedding_variable("t", 2, initializer=constant(2.0))


@pytest.mark.parametrize("shards", [1, 3])
def test_training_counts_stamps_and_exports(shards):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    step = tf.train.get_or_create_global_step()
    table = rec.get_embedding_variable("t", 2, partitioner=partitioner)
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([4, -7, 4, 1003], tf.int64)))
    train = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    with initialized_session() as session:
        for _ in range(3):
            session.run(train)
        assert session.run(table.get_frequency([4, -7, 1003, 5])).tolist() == [6, 3, 3, 0]
        assert session.run(table.get_version([4, -7, 1003, 5])).tolist() == [2, 2, 2, -1]
        assert session.run(table.size()) == 3
        assert session.run(table.capacity()) >= 3
        assert session.run(table.memory_bytes()) > 0
        export = session.run(table.export())
        assert sorted(export.keys) == [-7, 4, 1003]
        rows = session.run(rec.embedding_lookup(table, export.keys))
        np.testing.assert_array_equal(export.values, rows)
        assert dict(zip(export.keys, export.freqs)) == {4: 6, -7: 3, 1003: 3}


def test_partitioned_table_is_one_object_of_shards():
    with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(3)):
        table = rec.get_embedding_variable("t", 2)
    assert [shard.name for shard in table] == ["s/t/part_0", "s/t/part_1", "s/t/part_2"]
    assert tf.get_collection(rec.EMBEDDING_VARIABLES) == [table]
    with pytest.raises(ValueError, match="must have one shard to have a handle.*list\\(table\\)"):
        table.handle  # noqa: B018


@pytest.mark.parametrize("use_list", [False, True])
def test_tf_gradients_gives_indexed_slices_for_table_and_handle(use_list):
    table = rec.get_embedding_variable("t", 2)
    keys = tf.constant([5, 6, 5], tf.int64)
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys) * [[1.0], [2.0], [3.0]])
    xs = [table, table.handle, table.shards[0]] if use_list else table
    for grad in tf.gradients(loss, xs):
        assert isinstance(grad, tf.IndexedSlices)
        with initialized_session() as session:
            result = session.run(grad)
        assert result.indices.tolist() == [5, 6, 5]
        assert result.values.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_meta_graph_of_a_graph_with_tables_is_written_and_read(tmp_path):
    with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(2)):
        rec.get_embedding_variable("t", 2)
    tf.get_variable("dense", [2])
    saver = tf.train.Saver()
    with initialized_session() as session:
        prefix = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
        assert [v.op.name for v in tf.global_variables()] == ["dense"]
        assert graph_tables() == []


def test_monitored_training_session_initializes_saves_and_resumes(tmp_path):
    def run(steps):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            table = rec.get_embedding_variable("t", 2)
            loss = tf.reduce_sum(rec.embedding_lookup(table, tf.stack([step, -step])))
            train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
            size = table.size()
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), log_step_count_steps=None, save_checkpoint_steps=10
            ) as session:
                for _ in range(steps):
                    session.run(train)
                return session.run(size)

    assert run(3) == 5  # Keys 0, +-1, +-2.
    assert run(2) == 9


def test_table_made_in_a_cond_branch_lives_outside_of_it():
    def branch():
        return rec.embedding_lookup(rec.get_embedding_variable("t", 2), [1])

    values = tf.cond(tf.constant(True), branch, lambda: tf.zeros([1, 2]))
    assert [table.name for table in graph_tables()] == ["t"]
    with initialized_session() as session:
        assert session.run(values).shape == (1, 2)


# ------------------------------------------------------------------ the type of keys


def lookups_of(table, ids):
    sparse = tf.RaggedTensor.from_tensor(tf.reshape(ids, [1, -1]))
    return [
        rec.embedding_lookup(table, ids),
        rec.embedding_lookup_sparse(table, sparse, None),
        rec.safe_embedding_lookup_sparse(table, sparse, combiner="sum", default_id=7),
        *rec.group_embedding_lookup_sparse([table], [ids], [None]),
        table.get_frequency(ids),
        table.get_version(ids),
    ]


@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64])
def test_int64_table_takes_both_types(ids_dtype):
    table = rec.get_embedding_variable("t", 2)
    assert table.key_dtype == tf.int64
    with initialized_session() as session:
        session.run(lookups_of(table, tf.constant([3, -3], ids_dtype)))


def test_int32_table_takes_int32_only():
    bank = np.arange(8, dtype=np.float32).reshape(4, 2)
    table = rec.get_embedding_variable("t", 2, key_dtype=tf.int32, ev_option=bank_option(bank))
    assert table.key_dtype == tf.int32
    with initialized_session() as session:
        found = session.run(lookups_of(table, tf.constant([2**31 - 1, -(2**31)], tf.int32)))
        np.testing.assert_array_equal(found[0], bank[[3, 0]])
        # A Python list has no dtype.
        assert session.run(table.get_frequency([[1, 2], [3, 4]])).tolist() == [[0, 0], [0, 0]]
    wide = tf.constant([3], tf.int64)
    for call in (
        lambda: rec.embedding_lookup(table, wide),
        lambda: rec.embedding_lookup(table, np.array([3])),
        lambda: rec.embedding_lookup(table, [2**31]),
        lambda: rec.embedding_lookup_sparse(table, tf.sparse.from_dense([wide]), None),
        lambda: rec.safe_embedding_lookup_sparse(table, tf.sparse.from_dense([wide])),
        lambda: rec.group_embedding_lookup_sparse([table], [wide], [None]),
        lambda: table.get_frequency(wide),
        lambda: table.get_version(wide),
    ):
        with pytest.raises(TypeError, match="must be int32, the key_dtype of table 't', got int64"):
            call()


@pytest.mark.parametrize("ids", [[1.5], ["a"], [True]], ids=str)
def test_keys_that_are_no_integers_are_an_error_with_a_remedy(ids):
    table = rec.get_embedding_variable("t", 2)
    for ask in (table.get_frequency, table.get_version):
        with pytest.raises(TypeError, match="keys must be int64 or int32, got .*; (hash|cast)"):
            ask(ids)


def test_same_name_with_another_type_of_keys_is_an_error():
    rec.get_embedding_variable("t", 2)
    with pytest.raises(ValueError, match="got key_dtype = tf.int32 after tf.int64"):
        rec.get_embedding_variable("t", 2, key_dtype=tf.int32)


# ------------------------------------------------------------------ options


def test_option_of_a_table_is_the_one_it_was_given():
    load = rec.CheckpointOption("model.ckpt-1", "item")
    option = rec.EmbeddingVariableOption(ckpt=load)
    assert rec.get_embedding_variable("t", 2, ev_option=option).ev_option.ckpt == load
