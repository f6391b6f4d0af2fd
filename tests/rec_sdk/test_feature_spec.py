# SPDX-License-Identifier: Apache-2.0
"""FeatureSpec mode: ranges of a spec's values, and how a lookup finds its ids in a batch."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK

import rec_estimator as rec
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.rec_sdk import runtime
from rec_estimator.rec_sdk.feature_spec import batch_timestamp

MAX = 2**31 - 1


@pytest.fixture(name="static")
def static_shapes():
    rec.init(use_dynamic=False)
    yield
    runtime._forget()


def table_of(name="user"):
    return rec.create_table(tf.int64, 2, name, tf.ones_initializer(), device_vocabulary_size=100)


def batch_of(columns, specs, is_training=True, batch_size=2, one_shot=False):
    data = tf.data.Dataset.from_tensor_slices(columns).batch(batch_size, drop_remainder=True)
    data = data.map(rec.get_asc_insert_func(tgt_key_specs=specs, is_training=is_training))
    data = data.prefetch(3)
    if one_shot:
        return tf.data.make_one_shot_iterator(data).get_next()
    iterator = tf.data.make_initializable_iterator(data)
    tf.add_to_collection("starts", iterator.initializer)
    return iterator.get_next()


def run(fetches):
    with tf.Session(config=QUICK) as session:
        session.run([tf.global_variables_initializer(), tf.get_collection("starts")])
        return session.run(fetches)


IDS = np.arange(8, dtype=np.int64).reshape(4, 2)


def test_a_spec_has_the_default_values_of_rec_sdk():
    spec = rec.FeatureSpec("user.ids")
    assert (spec.name, spec.table_name, spec.index_key) == ("user.ids", "userids", "user.ids")
    assert (spec.access_threshold, spec.eviction_threshold) == (None, None)
    assert (spec.is_timestamp, spec.batch_size, spec.faae_coefficient) == (None, None, 1)


def test_a_spec_is_immutable_and_equal_to_its_copies():
    spec = rec.FeatureSpec("user", "table", 3, 1, 2, batch_size=9, faae_coefficient=4)
    for other in (copy.copy(spec), copy.deepcopy([spec])[0], pickle.loads(pickle.dumps(spec))):
        assert other == spec
        assert hash(other) == hash(spec)
    assert rec.FeatureSpec("user", "table", 3, 1, 2, feat_count=7) != spec
    with pytest.raises(AttributeError):
        spec.name = "item"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name must be a string of 1 to 255 characters, got ''"),
        ({"name": "x" * 256}, "name must be a string of 1 to 255"),
        ({"name": 3}, "name must be a string"),
        ({"table_name": ""}, "table_name must be a string of 1"),
        ({"table_name": "..."}, "table_name must have a letter"),
        ({"index_key": ""}, "index_key must be a string"),
        ({"index_key": -1}, "index_key must be an integer in .0, 255."),
        ({"index_key": 256}, "index_key must be an integer"),
        ({"index_key": True}, "index_key must be an integer"),
        ({"index_key": 1.0}, "index_key must be an integer"),
        ({"access_threshold": -2}, "access_threshold must be an integer in .-1, "),
        ({"access_threshold": MAX + 1}, "access_threshold must be an integer"),
        ({"access_threshold": 1, "eviction_threshold": -2}, "eviction_threshold must be an int"),
        ({"eviction_threshold": 5}, "access_threshold must be given with eviction_threshold"),
        ({"is_timestamp": 1}, "is_timestamp must be a bool"),
        ({"batch_size": 0}, "batch_size must be an integer in .1,"),
        ({"faae_coefficient": 0}, "faae_coefficient must be an integer in .1,"),
        ({"faae_coefficient": None}, "faae_coefficient must be an integer"),
        ({"feat_count": 0}, "feat_count must be an integer in .1,"),
    ],
)
def test_a_bad_spec_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rec.FeatureSpec(**{"name": "user", **arguments})


def test_a_spec_accepts_the_least_and_the_greatest_values():
    assert rec.FeatureSpec("x" * 255, "y" * 255, 255, -1, -1).index_key == 255
    assert (
        rec.FeatureSpec("u", access_threshold=0, eviction_threshold=MAX).eviction_threshold == MAX
    )


SPEC = rec.FeatureSpec("user")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "exactly one of tgt_key_specs and args_index_list"),
        (
            {"tgt_key_specs": SPEC, "args_index_list": [0]},
            ValueError,
            "exactly one of tgt_key_specs and args_index_list",
        ),
        ({"args_index_list": [0]}, RuntimeError, "table_names must be given with args_index_list"),
        (
            {"tgt_key_specs": SPEC, "table_names": ["user"]},
            ValueError,
            "table_names must be None with tgt_key_specs",
        ),
        ({"tgt_key_specs": []}, ValueError, "tgt_key_specs must be one or more FeatureSpecs"),
        ({"tgt_key_specs": ["user"]}, ValueError, "must be one or more FeatureSpecs"),
        ({"tgt_key_specs": {"a": [SPEC, 3]}}, ValueError, "must be one or more FeatureSpecs"),
        ({"args_index_list": [], "table_names": []}, ValueError, "args_index_list must be a non-"),
        ({"args_index_list": ["0"], "table_names": ["u"]}, ValueError, "args_index_list must be a"),
        ({"args_index_list": [True], "table_names": ["u"]}, ValueError, "args_index_list must be"),
        (
            {"args_index_list": [0], "table_names": [0]},
            ValueError,
            "table_names must be a non-empty list of",
        ),
        (
            {"args_index_list": [0], "table_names": "u"},
            ValueError,
            "table_names must be a non-empty list of",
        ),
        (
            {"args_index_list": [0, 1], "table_names": ["u"]},
            ValueError,
            "args_index_list must be positions from 0, one for each of table_names",
        ),
        ({"args_index_list": [-1], "table_names": ["u"]}, ValueError, "positions from 0"),
        ({"tgt_key_specs": SPEC, "is_training": 1}, ValueError, "is_training must be a bool"),
        ({"tgt_key_specs": SPEC, "dump_graph": 0}, ValueError, "dump_graph must be a bool"),
        ({"tgt_key_specs": SPEC, "training": True}, TypeError, "training"),
    ],
)
def test_bad_arguments_of_an_insert_function_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        rec.get_asc_insert_func(**arguments)


COUNT = np.int32(4)


@pytest.mark.parametrize(
    ("columns", "specs", "expected"),
    [
        (
            {"user": IDS, "x": IDS},
            SPEC,
            lambda b: {"user": b, "x": b, "x_read_emb_key": COUNT},
        ),
        (IDS, SPEC, lambda b: (b, COUNT)),
        ((IDS, IDS), rec.FeatureSpec("user", index_key=1), lambda b: (b, b, COUNT)),
        (({"user": IDS}, IDS), SPEC, lambda b: ({"user": b, "user_read_emb_key": COUNT}, b)),
        (
            ((IDS, {"a": IDS}), IDS),
            [[rec.FeatureSpec("user", index_key=0)]],
            lambda b: ((b, {"a": b}, COUNT), b),
        ),
        (
            {"a": (IDS, {"user": IDS}), "b": IDS},
            {"a": (SPEC, [SPEC]), "b": SPEC},
            lambda b: {"a": (b, {"user": b}), "b": b, "b_read_emb_key": np.int32(12)},
        ),
        ((IDS, IDS, IDS), [2, 0], lambda b: (b, b, b, np.int32(8))),
    ],
)
def test_an_insert_function_adds_the_number_of_ids_to_the_batch(columns, specs, expected):
    data = tf.data.Dataset.from_tensor_slices(columns).batch(2)
    if specs == [2, 0]:
        insert = rec.get_asc_insert_func(args_index_list=specs, table_names=["user", "item"])
    else:
        insert = rec.get_asc_insert_func(tgt_key_specs=specs)
    batch = tf.data.make_one_shot_iterator(data.map(insert)).get_next()
    found, wanted = run(batch), expected(IDS[:2])
    tf.nest.assert_same_structure(found, wanted)
    for value, right in zip(tf.nest.flatten(found), tf.nest.flatten(wanted)):
        np.testing.assert_array_equal(value, right)
        assert value.dtype == right.dtype


def with_timestamp(name, value):
    return {"user": IDS, name: value}, [SPEC, rec.FeatureSpec(name, is_timestamp=True)]


@pytest.mark.parametrize(
    ("columns", "specs", "error", "message"),
    [
        ({"item": IDS}, SPEC, KeyError, r"got 'user', and the batch has the keys \['item'\]"),
        ((IDS, IDS, IDS), SPEC, KeyError, "got 'user', and the batch has 3 entries"),
        ((IDS, IDS), rec.FeatureSpec("user", index_key=2), KeyError, "got 2, and the batch has 2"),
        ({"a": IDS}, {"b": SPEC}, KeyError, "must have an entry at .'b',., where tgt_key_specs"),
        ({"user": IDS * 0.5}, SPEC, ValueError, "'user' must be a dense tensor of integers"),
        ({"user": IDS.astype(str)}, SPEC, ValueError, "'user' must be a dense tensor of integers"),
        (
            *with_timestamp("time", np.arange(4)),
            ValueError,
            "'time' must be a timestamp, one integer for the whole batch",
        ),
        ({3: IDS}, rec.FeatureSpec("user", index_key=3), EnvironmentError, "strings for keys"),
    ],
)
def test_mapping_a_dataset_refuses_a_batch_that_does_not_fit(columns, specs, error, message):
    data = tf.data.Dataset.from_tensor_slices(columns).batch(2)
    with pytest.raises(error, match=message):
        data.map(rec.get_asc_insert_func(tgt_key_specs=specs))


def test_sparse_ids_are_refused_with_the_remedy():
    data = tf.data.Dataset.from_tensors({"user": tf.sparse.from_dense(IDS)})
    with pytest.raises(ValueError, match="must be a dense tensor of integers, .*sparse.to_dense"):
        data.map(rec.get_asc_insert_func(tgt_key_specs=SPEC))


def test_positions_beyond_the_batch_are_refused():
    insert = rec.get_asc_insert_func(args_index_list=[1], table_names=["user"])
    with pytest.raises(ValueError, match="positions in a batch of 1 tensors, got .1."):
        tf.data.Dataset.from_tensors(IDS).map(insert)


def test_two_timestamps_are_refused_in_training_only():
    specs = [SPEC, *(rec.FeatureSpec(name, is_timestamp=True) for name in "ab")]
    data = tf.data.Dataset.from_tensors({"user": IDS, "a": 1, "b": 2})
    with pytest.raises(EnvironmentError, match=r"one timestamp, got \['a', 'b'\]"):
        data.map(rec.get_asc_insert_func(tgt_key_specs=specs))
    data.map(rec.get_asc_insert_func(tgt_key_specs=specs, is_training=False))


@pytest.mark.usefixtures("static")
def test_static_shapes_allow_no_scalar_and_no_second_shape():
    insert = rec.get_asc_insert_func(tgt_key_specs=SPEC)
    with pytest.raises(ValueError, match="'user' must have at least one dimension"):
        tf.data.Dataset.from_tensors({"user": np.int64(3)}).map(insert)
    tf.data.Dataset.from_tensors({"user": IDS}).map(insert)
    with pytest.raises(ValueError, match=r"'user' must have one shape .*, got \[2, 2\] after \[4"):
        tf.data.Dataset.from_tensors({"user": IDS[:2]}).map(insert)


def test_dump_graph_writes_the_graph_of_the_insert_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    insert = rec.get_asc_insert_func(tgt_key_specs=SPEC, dump_graph=True)
    tf.data.Dataset.from_tensors({"user": IDS}).map(insert)
    graph_def = tf.GraphDef.FromString((tmp_path / "export_graph/pipeline_graph.pb").read_bytes())
    assert "rec_estimator_training_ids" in [node.name for node in graph_def.node]


@pytest.mark.parametrize(
    ("columns", "specs"),
    [
        ({"user": IDS}, SPEC),
        (({"user": IDS}, IDS), SPEC),
        ({"a": {"user": IDS}}, {"a": SPEC}),
    ],
)
@pytest.mark.parametrize("one_shot", [False, True])
def test_a_lookup_finds_its_ids_in_a_batch_or_in_a_part_of_it(columns, specs, one_shot):
    batch = batch_of(columns, specs, one_shot=one_shot)
    parts = {tuple: lambda: batch[0], dict: lambda: batch.get("a", batch)}
    for part in (batch, parts[type(batch)]()):
        vectors = rec.sparse_lookup(table_of(), copy.deepcopy(SPEC), batch=part)
        assert vectors.shape == [2, 2, 2]
    rec.start_asc_pipeline()
    rec.start_asc_pipeline()
    assert run(vectors).tolist() == np.ones([2, 2, 2]).tolist()


def test_specs_that_share_a_name_read_their_own_entries():
    specs = [
        rec.FeatureSpec("ids", "user", index_key="a"),
        rec.FeatureSpec("ids", "item", index_key="b"),
    ]
    batch = batch_of({"a": IDS, "b": IDS + 100}, specs)
    keys = []
    for spec in specs:
        lookup = rec.sparse_lookup(table_of(spec.table_name), spec, batch=batch)
        keys.append(next(op for op in ancestors([lookup.op]) if op.type.endswith(">TableLookup")))
    found = run([op.inputs[1] for op in keys])
    np.testing.assert_array_equal(found, [IDS[:2], IDS[:2] + 100])


@pytest.mark.usefixtures("static")
def test_static_shapes_need_no_batch_if_one_iterator_has_the_ids():
    batch_of({"user": IDS}, [SPEC])
    other = batch_of({"user": IDS + 50}, [SPEC], is_training=False, one_shot=True)
    train = rec.sparse_lookup(table_of(), [SPEC], send_count=9)
    evaluate = rec.sparse_lookup(table_of(), SPEC, send_count=9, is_train=False)
    rec.start_asc_pipeline()
    found = run([train, evaluate, other])
    assert found[0].sum() == 8
    assert found[1].sum() == 0
    batch_of({"user": IDS}, [SPEC])
    with pytest.raises(ValueError, match="batch must be given where not exactly one get_next"):
        rec.sparse_lookup(table_of(), SPEC, send_count=9)


def test_dynamic_shapes_need_the_batch():
    batch_of({"user": IDS}, SPEC)
    with pytest.raises(RuntimeError, match="batch must be given to look up FeatureSpec 'user'"):
        rec.sparse_lookup(table_of(), SPEC)


@pytest.mark.parametrize(
    ("spec", "is_train", "error", "message"),
    [
        (rec.FeatureSpec("user", "item"), True, ValueError, "must name ids of table 'user'"),
        (rec.FeatureSpec("time", "user", is_timestamp=True), True, ValueError, "is_timestamp=True"),
        (rec.FeatureSpec("other", "user"), True, RuntimeError, r"training of this graph, got \['t"),
        (
            SPEC,
            False,
            RuntimeError,
            r"evaluation of this graph, got \[\]; call .*is_training=False",
        ),
    ],
)
def test_a_lookup_by_a_spec_that_does_not_fit_is_refused(spec, is_train, error, message):
    columns = {"user": IDS, "time": np.arange(1, 5)}
    data = tf.data.Dataset.from_tensor_slices(columns)
    specs = [SPEC, rec.FeatureSpec("time", is_timestamp=True)]
    data = data.map(rec.get_asc_insert_func(tgt_key_specs=specs))
    batch = tf.data.make_one_shot_iterator(data).get_next()
    with pytest.raises(error, match=message):
        rec.sparse_lookup(table_of(), spec, batch=batch, is_train=is_train)
    with pytest.raises(KeyError, match="batch must hold FeatureSpec 'user' at .'user',."):
        rec.sparse_lookup(table_of(), SPEC, batch={"item": batch["user"]})
    with pytest.raises(KeyError, match="batch must hold FeatureSpec 'time'"):
        rec.sparse_lookup(table_of(), SPEC, batch={"user": batch["user"]})
    with pytest.raises(ValueError, match="one FeatureSpec"):
        rec.sparse_lookup(table_of(), [SPEC, SPEC], batch=batch)


@pytest.mark.parametrize(
    ("batch", "spec"),
    [
        (lambda ids: {"user": ids}, SPEC),
        (lambda ids: {"ids": ids}, rec.FeatureSpec("user", index_key="ids")),
        (lambda ids: ({"user": ids}, None), SPEC),
        (lambda ids: [tf.constant([0.5]), ids], rec.FeatureSpec("user", index_key=1)),
        (lambda ids: ids, SPEC),
    ],
)
@pytest.mark.parametrize("has_dataset", [False, True])
def test_a_lookup_finds_its_ids_by_the_index_key_in_a_batch_of_no_dataset(batch, spec, has_dataset):
    if has_dataset:
        batch_of({"user": IDS}, SPEC)
    ids = tf.placeholder(tf.int32, [None, 2])
    lookup = rec.sparse_lookup(table_of(), spec, batch=batch(ids), is_train=False)
    rec.start_asc_pipeline()
    (read,) = [op for op in ancestors([lookup.op]) if op.type == "RecEstimator>TableLookup"]
    with tf.Session(config=QUICK) as session:
        assert session.run(read.inputs[1], {ids: [[7, 9]]}).tolist() == [[7, 9]]


def test_ids_of_no_dataset_are_checked_and_do_not_train():
    def look_up(batch, **arguments):
        rec.sparse_lookup(table_of(), SPEC, batch=batch, **{"is_train": False, **arguments})

    ids = tf.placeholder(tf.int64, [None])
    with pytest.raises(KeyError, match="index_key of FeatureSpec 'user' must name an entry"):
        look_up({"item": ids})
    for bad in (tf.sparse_placeholder(tf.int64), tf.placeholder(tf.string)):
        with pytest.raises(ValueError, match="FeatureSpec 'user' must be a dense tensor of int"):
            look_up({"user": bad})
    for batch, is_train in (({"user": ids}, True), ({"user": IDS}, False), (None, False)):
        with pytest.raises(RuntimeError, match="must be known to a dataset"):
            look_up(batch, is_train=is_train)


def test_start_asc_pipeline_refuses_a_graph_without_tables():
    with pytest.raises(RuntimeError, match="table_info_list"):
        rec.start_asc_pipeline()


def test_start_asc_pipeline_refuses_a_lookup_of_the_batch_of_the_other_mode():
    train = batch_of({"user": IDS}, SPEC)
    evaluation = batch_of({"user": IDS}, SPEC, is_training=False)
    rec.sparse_lookup(table_of(), SPEC, batch=train)
    rec.start_asc_pipeline()
    rec.sparse_lookup(table_of(), SPEC, batch=train, is_train=False)
    with pytest.raises(RuntimeError, match="lookup with is_train=False must come from a dataset"):
        rec.start_asc_pipeline()
    del evaluation


def timed_batch(times, is_training=True):
    data = tf.data.Dataset.from_tensor_slices({"user": IDS, "time": times})
    specs = [SPEC, rec.FeatureSpec("time", is_timestamp=True)]
    data = data.map(rec.get_asc_insert_func(tgt_key_specs=specs, is_training=is_training))
    return tf.data.make_one_shot_iterator(data).get_next()


def test_batch_timestamp_is_the_entry_of_the_spec_and_must_be_above_0():
    assert batch_timestamp() is None
    batch = timed_batch(np.array([7, 2**40, 0, -1]))
    rec.sparse_lookup(table_of(), SPEC, batch=batch)
    evaluation = timed_batch(np.array([8, 9, 10, 11]), is_training=False)
    rec.sparse_lookup(table_of(), SPEC, batch=evaluation, is_train=False)
    time = batch_timestamp()
    with tf.Session(config=QUICK) as session:
        assert session.run([time, batch["user"]])[0] == 7
        assert session.run(time) == 2**40
        for bad in (0, -1):
            with pytest.raises(tf.errors.InvalidArgumentError, match="timestamp .*above 0") as info:
                session.run(time)
            assert f"[{bad}]" in str(info.value)


def test_batch_timestamp_may_come_from_the_collection_of_rec_sdk():
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, tf.constant(9, tf.int32))
    assert batch_timestamp().dtype == tf.int64
    assert run(batch_timestamp()) == 9


def test_batch_timestamp_is_that_of_the_training_batch_among_several():
    batches = []
    for start in (10, 20):
        data = tf.data.Dataset.from_tensor_slices({"user": IDS, "time": np.arange(4) + start})
        batches.append(tf.data.make_one_shot_iterator(data).get_next())
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, batches[-1]["time"])
    for batch, is_train in zip(batches, (False, True)):
        rec.sparse_lookup(table_of(), batch["user"], modify_graph=True, is_train=is_train)
    assert run(batch_timestamp()) == 20
    rec.sparse_lookup(table_of(), batches[0]["user"], modify_graph=True)
    with pytest.raises(EnvironmentError, match="must have one timestamp, got"):
        batch_timestamp()


@pytest.mark.parametrize("time", [np.array([1, 2]), np.float32(1), "1"])
def test_a_timestamp_in_the_collection_must_be_one_integer(time):
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, tf.constant(time))
    with pytest.raises(ValueError, match="ASCEND_TIMESTAMP must be a timestamp, one integer"):
        batch_timestamp()


def test_a_metagraph_contains_the_recorded_entries_of_specs(caplog):
    caplog.set_level("WARNING", logger="tensorflow")
    batch = timed_batch(np.arange(1, 5))
    rec.sparse_lookup(table_of(), SPEC, batch=batch)
    graph = tf.get_default_graph()
    names = {key for key in graph.get_all_collection_keys() if key.startswith("rec_estimator/")}
    assert len(names) == 3
    assert names <= set(tf.train.export_meta_graph().collection_def)
    assert "rec_estimator/" not in caplog.text


@pytest.mark.long
def test_specs_in_the_params_of_an_estimator_find_their_ids(tmp_path):
    """Estimator copies its params in each call; lookups find their ids by the spec's name."""
    spec = rec.FeatureSpec("user", access_threshold=2)

    def model_fn(features, labels, mode, params):
        is_train = mode == rec.ModeKeys.TRAIN
        (copied,) = params["specs"]
        assert copied is not spec
        vectors = rec.sparse_lookup(table_of(), [copied], is_train=is_train, batch=features)
        loss = train_op = None
        if mode != rec.ModeKeys.PREDICT:
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(vectors, axis=[1, 2]) - labels))
        if is_train:
            optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.01)
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        outputs = {"vectors": vectors}
        return rec.EstimatorSpec(mode, outputs, loss, train_op)

    def input_fn(is_training):
        columns = ({"user": IDS % 3}, np.ones(4, np.float32))
        data = tf.data.Dataset.from_tensor_slices(columns).batch(2)
        insert = rec.get_asc_insert_func(tgt_key_specs=spec, is_training=is_training)
        return data.map(insert).repeat(4)

    estimator = rec.RecEstimator(model_fn, str(tmp_path), params={"specs": [spec]})
    hooks = [rec.GraphModifierHook(modify_graph=False)]
    estimator.train(lambda: input_fn(True), hooks=hooks)
    results = estimator.evaluate(lambda: input_fn(False), hooks=hooks)
    assert results["global_step"] == 8
    reader = tf.train.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(np.sort(reader.get_tensor("user-keys")), [0, 1, 2])

    def serving_input_fn():
        features = {"user": tf.placeholder(tf.int64, [None, 2])}
        return rec.ServingInputReceiver(features, features)

    for arguments in ({}, {"portable": True}):
        exported = estimator.export_saved_model(str(tmp_path / "e"), serving_input_fn, **arguments)
        with tf.Graph().as_default(), tf.Session() as session:
            model = tf.saved_model.loader.load(session, ["serve"], exported.decode())
            (signature,) = [s for name, s in model.signature_def.items() if name[0] != "_"]
            (output,) = signature.outputs.values()
            served = session.run(output.name, {signature.inputs["user"].name: [[0, 2]]})
        rows = reader.get_tensor("user-values")[np.argsort(reader.get_tensor("user-keys"))]
        np.testing.assert_array_equal(served[0], rows[[0, 2]])
