# SPDX-License-Identifier: Apache-2.0
"""create_table: arguments, reuse, row limits, frozen rows, saving and initialization."""

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.table import saveable

ZEROS = tf.zeros_initializer()


def table_of(name="t", dim=2, initializer=ZEROS, **kwargs):
    return rec.create_table(tf.int64, dim, name, initializer, **kwargs)


def read(table, keys, **kwargs):
    return rec.sparse_lookup(table, tf.constant(keys, tf.int64), modify_graph=True, **kwargs)


@pytest.fixture
def expansion():
    rec.init(use_dynamic_expansion=True)
    yield
    rec.terminate_config_initializer()


# ------------------------------------------------------------------ arguments


def test_a_table_has_the_attributes_of_rec_sdk():
    table = table_of("user", tf.TensorShape([4]), device_vocabulary_size=10, host_vocabulary_size=5)
    assert isinstance(table, rec.EmbeddingTable) and table.is_sparse_table
    assert (table.table_name, table.name, table.emb_size, table.dim) == ("user", "user", 4, 4)
    assert table.variable is table and table.emb_initializer is ZEROS
    assert (table.is_save, table.init_param, table.is_grad, table.is_dp) == (
        True,
        1.0,
        False,
        False,
    )
    assert (table.is_hbm, table.send_count, table.rank_size) == (False, None, 1)
    assert table.slice_device_vocabulary_size == 10
    assert table.slice_host_vocabulary_size == 5
    assert table.slice_ssd_vocabulary_size == table.ssd_vocabulary_size == 0
    assert table.max_rows == 15 and table.key_dtype == tf.int64
    read(table, [1], send_count=7)
    assert table.is_grad and table.send_count == 7
    assert tf.get_collection(rec.ASCEND_GLOBAL_HASHTABLE_COLLECTION) == [table]


REFUSED = {
    "key_dtype": (dict(key_dtype=tf.string), "key_dtype must be tf.int64 or tf.int32"),
    "key_dtype by name": (dict(key_dtype="nonsense"), "key_dtype must be"),
    "value_dtype": (dict(value_dtype=tf.float64), "value_dtype must be tf.float32"),
    "dim 0": (dict(dim=0), r"dim must be an integer in \[1, 8192\], got 0"),
    "dim 8193": (dict(dim=8193), "dim must be an integer"),
    "dim True": (dict(dim=True), "dim must be an integer"),
    "dim float": (dict(dim=2.0), "dim must be an integer"),
    "dim of rank 2": (dict(dim=tf.TensorShape([2, 2])), "can only be one dim shape"),
    "dim unknown": (dict(dim=tf.TensorShape([None])), "can only be one dim shape"),
    "dim of rank 0": (dict(dim=tf.TensorShape([])), "can only be one dim shape"),
    "no name": (dict(name=""), "name must be a string of 1 to 100 characters"),
    "long name": (dict(name="x" * 101), "name must be a string of 1 to 100 characters"),
    "name of no string": (dict(name=3), "name must be a string"),
    "name with /": (dict(name="a/b"), "letters, digits, '_' and '.', got 'a/b'"),
    "name of dots": (dict(name=".."), "must have a letter"),
    "initializer": (dict(emb_initializer=0.5), "emb_initializer must be an instance"),
    "initializer class": (dict(emb_initializer=tf.zeros_initializer), "must be an instance"),
    "initializer function": (dict(emb_initializer=lambda shape: shape), "must be an instance"),
    "device 0": (dict(device_vocabulary_size=0), r"must be an integer in \[1, 1000000000\]"),
    "device 1e9 + 1": (dict(device_vocabulary_size=10**9 + 1), "device_vocabulary_size must be"),
    "host -1": (dict(host_vocabulary_size=-1), "host_vocabulary_size must be an integer in"),
    "ssd True": (dict(ssd_vocabulary_size=True), "ssd_vocabulary_size must be an integer in"),
    "ssd without host": (
        dict(ssd_vocabulary_size=1),
        "ssd_vocabulary_size must be 0 without a host_vocabulary_size, got 1",
    ),
    "no path": (dict(ssd_data_path=[]), "ssd_data_path must be a list of at least one string"),
    "path": (dict(ssd_data_path="/tmp"), "ssd_data_path must be a list"),
    "path of no string": (dict(ssd_data_path=[3]), "ssd_data_path must be a list"),
    "empty path": (
        dict(ssd_data_path=["a", ""]),
        "ssd_data_path must be .* none empty or with a N",
    ),
    "NUL": (dict(ssd_data_path=["a\0b"]), "ssd_data_path must be .* none empty or with a NUL, got"),
    "is_save": (dict(is_save=1), "is_save must be a bool, got 1"),
    "is_dp": (dict(is_dp=None), "is_dp must be a bool"),
    "init_param int": (dict(init_param=1), r"init_param must be a float in \[-10, 10\], got 1;"),
    "init_param 10.1": (dict(init_param=10.1), "init_param must be a float"),
    "init_param nan": (dict(init_param=float("nan")), "init_param must be a float"),
    "all2all": (dict(all2all_gradients_op="sum"), "all2all_gradients_op should be one of sum_grad"),
    "enable_merge": (dict(enable_merge=1), "enable_merge must be a bool"),
    "shard_num": (dict(shard_num=8193), r"shard_num must be an integer in \[1, 8192\]"),
    "fusion": (dict(fusion_optimizer_var=0), "fusion_optimizer_var must be a bool"),
    "threshold": (dict(hashtable_threshold=-1), "hashtable_threshold must be an integer in"),
    "mask without keys": (dict(padding_keys_mask=True), "padding_keys must be given with"),
    "len without keys": (dict(padding_keys_len=1), "padding_keys must be given with"),
    "mask of no bool": (dict(padding_keys_mask=1), "padding_keys_mask must be a bool"),
    "keys without mask": (dict(padding_keys=3, padding_keys_len=1), "padding_keys_mask and padd"),
    "keys without len": (dict(padding_keys=3, padding_keys_mask=True), "padding_keys_mask and pad"),
    "no keys": (
        dict(padding_keys=[], padding_keys_mask=True, padding_keys_len=1),
        "padding_keys must be at least one int64",
    ),
    "key beyond int64": (
        dict(padding_keys=[2**63], padding_keys_mask=True, padding_keys_len=1),
        "padding_keys must be at least one int64",
    ),
}


@pytest.mark.parametrize("changed, message", REFUSED.values(), ids=REFUSED)
def test_a_bad_argument_is_a_value_error_and_does_not_change_the_graph(changed, message):
    arguments = dict(key_dtype=tf.int64, dim=2, name="t", emb_initializer=ZEROS)
    with pytest.raises(ValueError, match=message):
        rec.create_table(**{**arguments, **changed})
    assert not tf.get_default_graph().get_operations()


def test_some_bad_arguments_are_type_or_runtime_errors_as_in_rec_sdk():
    for keys in ("3", 3.0, [True], (3,), {3}):
        with pytest.raises(TypeError, match="padding_keys must be an integer or a list"):
            table_of(padding_keys=keys, padding_keys_mask=True, padding_keys_len=1)
    with pytest.raises(RuntimeError, match="is_dp must be False with padding_keys"):
        table_of(padding_keys=3, padding_keys_mask=True, padding_keys_len=1, is_dp=True)
    with pytest.raises(RuntimeError, match="enable_merge requires dynamic expansion mode"):
        table_of(enable_merge=True)


@pytest.mark.parametrize(
    "initializer, expected",
    [
        (tf.constant_initializer(0.5), 0.5),
        (tf2.constant_initializer(0.5), 0.5),
        (tf.ones_initializer(), 1.0),
        (tf2.ones_initializer(), 1.0),
        (tf2.random_uniform_initializer(0.25, 0.25), 0.25),
    ],
    ids=["constant", "constant of 2", "ones", "ones of 2", "uniform of 2"],
)
@pytest.mark.parametrize("init_param", [1.0, -2.0])
def test_every_initializer_is_used_and_multiplied_by_init_param(initializer, expected, init_param):
    values = read(table_of(initializer=initializer, init_param=init_param), [5, 7])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(values), np.full([2, 2], expected * init_param))


# ------------------------------------------------------------------ names and reuse


def test_dots_are_removed_from_a_name(caplog):
    tf.get_logger().setLevel("WARNING")
    try:
        assert table_of("user.id.table").table_name == "useridtable"
    finally:
        tf.get_logger().setLevel("ERROR")
    assert "'user.id.table' becomes 'useridtable'" in caplog.text


def test_the_same_call_returns_the_same_table_in_every_scope():
    table = table_of(initializer=tf.truncated_normal_initializer(seed=3))
    with tf.variable_scope("model"), tf.name_scope("tower"):
        again = table_of(initializer=tf.truncated_normal_initializer(seed=3))
    assert again is table and again.name == "t"


@pytest.mark.parametrize(
    "changed",
    [
        dict(dim=3),
        dict(initializer=tf.ones_initializer()),
        dict(init_param=2.0),
        dict(is_save=False),
        dict(device_vocabulary_size=2),
        dict(host_vocabulary_size=2),
        dict(host_vocabulary_size=1, ssd_vocabulary_size=1),
        dict(padding_keys=[3], padding_keys_mask=True, padding_keys_len=1),
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_name_with_other_settings_is_refused(changed):
    table_of()
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        table_of(**changed)


def test_a_name_that_is_already_used_is_refused():
    rec.get_embedding_variable("deep", 2)
    tf.get_variable("dense", [])
    with pytest.raises(ValueError, match="must not be that of a table of get_embedding_variable"):
        table_of("deep")
    with pytest.raises(ValueError, match="name must not be that of a variable"):
        table_of("dense")


# ------------------------------------------------------------------ limits


def train_op(*values, optimizer=None):
    optimizer = optimizer or rec.optimizers.AdagradOptimizer(0.1)
    return optimizer.minimize(tf.add_n([tf.reduce_sum(value) for value in values]))


def test_a_step_that_exceeds_the_row_limit_changes_no_table():
    ids = tf.placeholder(tf.int64, [None])
    small = table_of("small", device_vocabulary_size=2, host_vocabulary_size=1)
    large = table_of("large", device_vocabulary_size=100)
    deep = rec.get_embedding_variable("deep", 2, initializer=ZEROS)
    dense = tf.get_variable("dense", [], initializer=ZEROS)
    values = [rec.sparse_lookup(table, ids, modify_graph=True) for table in (large, small)]
    values += [rec.embedding_lookup(deep, ids), dense]
    step = train_op(*values)
    state = [dense, *(t.size() for t in (small, large, deep)), *(t.export() for t in (large, deep))]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, {ids: [1, 2, 2, -1, 3]})
        before = session.run(state)
        assert before[1:4] == [3, 3, 4]
        with pytest.raises(tf.errors.ResourceExhaustedError) as error:
            session.run(step, {ids: [1, 4, 5]})
        assert "table small must have at most 3 rows, got 5 with this step" in error.value.message
        for value, expected in zip(session.run(state), before):
            tf.nest.map_structure(np.testing.assert_array_equal, value, expected)
        session.run(step, {ids: [3, 1]})
        assert session.run([small.capacity(), large.capacity()]) == [3, 100]


def test_the_row_limit_is_one_of_the_whole_table():
    with tf.variable_scope("", partitioner=tf.fixed_size_partitioner(2)):
        table = table_of(device_vocabulary_size=4)
    ids = tf.placeholder(tf.int64, [None])
    step = train_op(rec.sparse_lookup(table, ids, modify_graph=True))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, {ids: [0, 2, 4]})  # All in one shard.
        message = "table t must have at most 4 rows, got 5 with this step"
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
            session.run(step, {ids: [0, 1, 6]})
        assert session.run([shard.total_count() for shard in table])[0][0] == 3
        session.run(step, {ids: [0, 1, 1]})
        assert session.run(table.size()) == 4


def test_dynamic_expansion_has_no_limit(expansion):
    table = table_of(device_vocabulary_size=1, enable_merge=True)
    step = train_op(read(table, np.arange(1000)))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        size, capacity = session.run([table.size(), table.capacity()])
    assert size == 1000 <= capacity and table.max_rows == 0


def test_no_op_is_added_for_tables_without_a_threshold(expansion):
    train_op(read(table_of(), [1]), rec.embedding_lookup(rec.get_embedding_variable("d", 2), [1]))
    types = {op.type for op in tf.get_default_graph().get_operations()}
    assert "RecEstimator>TableAdmits" not in types and "SelectV2" not in types


# ------------------------------------------------------------------ padding_keys

PADDING = dict(padding_keys=[7, 8], padding_keys_mask=True, padding_keys_len=2)


def test_padding_keys_keep_their_values_while_their_slots_are_updated():
    table = table_of(initializer=tf.ones_initializer(), device_vocabulary_size=9, **PADDING)
    values = read(table, [7, 3, 7])
    optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.1)
    step = train_op(values, optimizer=optimizer)
    slots = saveable.export_shard(table.shards[0], table.shards[0].slots)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        row7, row3, _ = session.run(values)
        np.testing.assert_array_equal(row7, [1, 1])
        assert (row3 < 1).all()
        moments = session.run(slots.slot_values)[0]
        # 1 - beta1 in float32, times the gradient.
        np.testing.assert_allclose(moments, [[0.1, 0.1], [0.2, 0.2]], rtol=1e-6)


def test_padding_keys_need_a_gradient_and_no_fused_adam():
    table = table_of(**PADDING)
    values = read(table, [1])
    fused = rec.optimizers.lazy_adam.create_hash_optimizer(0.1, use_fusion_optim=True)
    with pytest.raises(RuntimeError, match="use_fusion_optim must be False for table 't'"):
        train_op(values, optimizer=fused)
    bias = tf.get_variable("bias", [], initializer=ZEROS)
    with pytest.raises(RuntimeError, match="'t' has padding_keys, but gets no gradient"):
        train_op(bias)


# ------------------------------------------------------------------ saving and initialization


def test_an_unsaved_table_is_in_no_checkpoint(tmp_path):
    table = table_of("unsaved", initializer=tf.ones_initializer(), is_save=False)
    kept = table_of("kept", initializer=tf.ones_initializer())
    step = train_op(read(table, [1]), read(kept, [1]))
    savers = [tf.train.Saver(), tf.train.Saver(tf.global_variables()), rec.Saver()]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        for i, saver in enumerate(savers):
            path = saver.save(session, str(tmp_path / f"model{i}"))
            names = [name for name, _ in tf.train.list_variables(path)]
            assert "kept-keys" in names
            assert not [name for name in names if "unsaved" in name]
            saver.restore(session, path)
        # Scripts reset their metrics with this.
        session.run(tf.local_variables_initializer())
        assert session.run([table.size(), kept.size()]) == [1, 1]
        session.run(tf.global_variables_initializer())
        assert session.run([table.size(), kept.size()]) == [0, 0]


@pytest.mark.long
def test_a_session_that_restores_initializes_an_unsaved_table(tmp_path):
    def model_fn(features, labels, mode):
        train = mode == rec.ModeKeys.TRAIN
        tables = [table_of("unsaved", is_save=False), table_of("kept")]
        ids = features["ids"]
        values = [rec.sparse_lookup(t, ids, modify_graph=True, is_train=train) for t in tables]
        loss = tf.reduce_sum(tf.add_n(values))
        sizes = tf.stack([table.size() for table in tables])
        step = tf.train.get_global_step()
        op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step) if train else None
        return rec.EstimatorSpec(
            mode, loss=loss, train_op=op, predictions={"sizes": sizes[tf.newaxis], "v": values[1]}
        )

    def input_fn(steps=2):
        return tf.data.Dataset.from_tensors({"ids": np.array([[5, -1]])}).repeat(steps)

    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"))
    estimator.train(input_fn)
    estimator.train(input_fn)  # From the checkpoint.
    assert estimator.get_variable_value("global_step") == 4
    assert "kept-keys" in estimator.get_variable_names()
    assert "unsaved-keys" not in estimator.get_variable_names()
    predicted = next(estimator.predict(lambda: input_fn(1), yield_single_examples=False))
    np.testing.assert_array_equal(predicted["sizes"], [[0, 1]])
    assert (predicted["v"][0, 0] < 0).all() and (predicted["v"][0, 1] == 0).all()
    # A float32 sum in NumPy's order.
    assert estimator.evaluate(input_fn)["loss"] == pytest.approx(predicted["v"].sum(), rel=1e-6)

    warm = rec.RecEstimator(model_fn, str(tmp_path / "warm"), warm_start_from=estimator.model_dir)
    warm.train(lambda: input_fn(1))
    assert (warm.get_variable_value("kept-values") < predicted["v"][0, 0]).all()

    def serving_input_fn():
        ids = tf.placeholder(tf.int64, [None, 2])
        return rec.ServingInputReceiver({"ids": ids}, {"ids": ids})

    folder = estimator.export_saved_model(str(tmp_path / "export"), serving_input_fn)
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], folder.decode()).signature_def
        tensors = signature["serving_default"]
        served = session.run(
            tensors.outputs["v"].name, {tensors.inputs["ids"].name: [[5, 6], [-1, 5]]}
        )
    np.testing.assert_array_equal(served[[0, 1], [0, 1]], predicted["v"][[0, 0], [0, 0]])
    np.testing.assert_array_equal(served[[0, 1], [1, 0]], np.zeros([2, 2]))


def test_a_checkpoint_with_more_rows_than_the_limit_is_refused(tmp_path):
    step = train_op(read(table_of(device_vocabulary_size=9), [1, 2, 3]))
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        path = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.Session() as session:
        table_of(device_vocabulary_size=2)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="got 3 in the checkpoint"):
            rec.Saver().restore(session, path)


def test_a_graph_with_tables_can_be_exported_and_read(tmp_path):
    train_op(read(table_of(is_save=False), [1]), read(table_of("u"), [1]), tf.get_variable("w", []))
    path = str(tmp_path / "graph.meta")
    tf.train.export_meta_graph(path, saver_def=rec.Saver().saver_def)
    with tf.Graph().as_default():
        tf.train.import_meta_graph(path)
        assert tf.get_collection(rec.ASCEND_SPARSE_LOOKUP_ID_OFFSET)[0].dtype == tf.int64
