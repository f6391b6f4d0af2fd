# SPDX-License-Identifier: Apache-2.0
"""Initializing tables from another checkpoint: init_from_checkpoint and warm_start_from."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import warm_start
from rec_estimator.table import saveable

ONES = rec.InitializerOption(tf.ones_initializer(), default_value_dim=2)


def option(filter_freq=0):
    return rec.EmbeddingVariableOption(
        init_option=ONES, filter_option=rec.CounterFilter(filter_freq) if filter_freq else None
    )


def make_table(name, shards=1, dim=3, filter_freq=0):
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    return rec.get_embedding_variable(
        name, dim, partitioner=partitioner, ev_option=option(filter_freq)
    )


def train_op_of(tables, keys, variables=()):
    total = tf.add_n([tf.reduce_sum(rec.embedding_lookup(table, keys)) for table in tables])
    for variable in variables:
        total += tf.reduce_sum(variable)
    step = tf.train.get_or_create_global_step()
    return rec.optimizers.AdamOptimizer(0.1).minimize(total, global_step=step)


def write_source(path, scope="", shards=1, filter_freq=0, batch=(1, 1, 2, -3), dim=3):
    """Writes a checkpoint with tables user and item and a variable: (prefix, rows of user)."""
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope(scope) if scope else tf.name_scope(None):
            tables = [make_table(name, shards, dim, filter_freq) for name in ("user", "item")]
            weight = tf.get_variable("weight", [2], initializer=tf.zeros_initializer())
        train = train_op_of(tables, tf.constant(batch, tf.int64), [weight])
        session.run(tf.global_variables_initializer())
        session.run([train])
        session.run([train])
        return rec.Saver().save(session, str(path)), rows_of(session, tables[0])


def rows_of(session, table):
    export = session.run(table.export())
    return {key: (value.tobytes(), freq, version) for key, value, version, freq in zip(*export)}


def slots_of(session, table):
    return np.concatenate(
        session.run(saveable.export_shard(table.shards[0], table.shards[0].slots)).slot_values
    )


def initialized(*tables):
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session, [rows_of(session, table) for table in tables]


@pytest.mark.parametrize(
    "form, shards",
    [
        ("name", (1, 1)),
        ("table", (1, 3)),
        ("shard", (3, 2)),
        ("shards", (3, 3)),
        ("pairs", (3, 1)),
        ("scope", (1, 7)),
        ("root", (1, 1)),
    ],
)
def test_init_from_checkpoint_takes_the_rows_into_any_shards(tmp_path, form, shards):
    prefix, expected = write_source(tmp_path / "model", "old", shards[0])
    with tf.variable_scope("new"):
        user, item = (make_table(name, shards[1]) for name in ("user", "item"))
        weight = tf.get_variable("weight", [2])
    mapping = {
        "name": {"old/user": "new/user"},
        "table": {"old/user": user},
        "shard": {"old/user": user.shards[0]},
        "shards": {"old/user": list(user)},
        "pairs": [("old/user", "new/user"), ("old/user", "new/item")],
        "scope": {"old/": "new/"},
        "root": {"/": "/"},
    }[form]
    if form == "root":
        with pytest.raises(ValueError, match="new/"):
            rec.init_from_checkpoint(prefix, mapping)
        return
    rec.init_from_checkpoint(prefix, mapping)
    session, (users, items) = initialized(user, item)
    assert users == expected and len(users) == 3
    assert items == (expected if form in ("pairs", "scope") else {})
    values = session.run(weight)
    assert (np.abs(values + 0.2) < 1e-4).all() == (form == "scope")
    # The bank was restored: an unknown key reads the same vector as in the source.
    assert session.run(rec.embedding_lookup(user, [77])).tolist() == [[1, 1, 1]]
    session.close()


def test_root_scope_maps_to_a_scope(tmp_path):
    prefix, expected = write_source(tmp_path / "model")
    with tf.variable_scope("new"):
        user = make_table("user")
    rec.init_from_checkpoint(str(tmp_path), {"/": "new/"})
    session, (rows,) = initialized(user)
    assert rows == expected and prefix == tf.train.latest_checkpoint(str(tmp_path))
    session.close()


@pytest.mark.long
def test_several_checkpoints_and_calls(tmp_path):
    first, first_rows = write_source(tmp_path / "first", batch=(1, 2))
    second, second_rows = write_source(tmp_path / "second", batch=(3, 4, 5))
    user, item, other = (make_table(name) for name in ("user", "item", "other"))
    weight = tf.get_variable("weight", [2])
    rec.init_from_checkpoint(first, {"user": "user", "weight": "weight"})
    rec.init_from_checkpoint(second, {"user": item})
    rec.init_from_checkpoint(first, {"item": other})
    rec.init_from_checkpoint(second, {"user": other})
    session, rows = initialized(user, item, other)
    assert rows == [first_rows, second_rows, second_rows]
    # Two steps of Adam, each 0.1 up to epsilon.
    np.testing.assert_allclose(session.run(weight), [-0.2, -0.2], rtol=1e-5)
    session.close()


@pytest.mark.parametrize("filter_freq, admitted, filtered", [(0, 4, 0), (3, 3, 1), (2, 4, 0)])
def test_filters_are_judged_anew(tmp_path, filter_freq, admitted, filtered):
    # Counts 8, 4, 2: with filter_freq=4 the source filters the last key.
    prefix, rows = write_source(
        tmp_path / "model", filter_freq=4, batch=(1, 1, 1, 1, 2, 2, 3, 4, 4)
    )
    assert set(rows) == {1, 2, 4}
    user = make_table("user", filter_freq=filter_freq)
    rec.init_from_checkpoint(prefix, {"user": "user"})
    session, (found,) = initialized(user)
    assert len(found) == admitted and {k: found[k] for k in rows} == rows
    assert session.run(user.total_count()[0]) == admitted + filtered
    assert session.run(user.get_frequency([1, 2, 3, 4])).tolist() == [8, 4, 2, 4]
    session.close()


def test_slots_start_fresh_and_training_goes_on(tmp_path):
    prefix, expected = write_source(tmp_path / "model")
    user = make_table("user", shards=2)
    train = train_op_of([user], tf.constant([1, 9], tf.int64))
    rec.init_from_checkpoint(prefix, {"user": "user"})
    session, (rows,) = initialized(user)
    assert rows == expected
    assert not slots_of(session, user).any()
    session.run(train)
    assert set(rows_of(session, user)) == {1, 2, -3, 9}
    assert session.run(user.get_frequency([1, 9])).tolist() == [5, 1]
    # Running the initializer again restores the checkpoint again.
    session.run(tf.global_variables_initializer())
    assert rows_of(session, user) == expected
    session.close()


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"none": "user"}, "table 'none' must be in checkpoint .* got one with tables .*'user'"),
        ({"item": "wide"}, "table 'item' of checkpoint .* must have dim 5"),
        ({"user": "nothing"}, "nothing|scope"),
    ],
)
def test_invalid_maps_are_errors_and_change_nothing(tmp_path, mapping, message):
    prefix, _ = write_source(tmp_path / "model")
    user, wide = make_table("user"), make_table("wide", dim=5)
    before = [user.initializer, wide.initializer]
    with pytest.raises(ValueError, match=message):
        rec.init_from_checkpoint(prefix, mapping)
    assert [user.initializer, wide.initializer] == before


@pytest.mark.parametrize("path", ["", "nothing", "nothing/", "empty", "empty/"])
def test_a_path_without_a_checkpoint_is_an_error(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".index").touch()
    make_table("user")
    with pytest.raises(ValueError, match="ckpt_dir_or_file must be a checkpoint or a folder"):
        rec.init_from_checkpoint(path, {"user": "user"})


# Estimators.


def model_fn(features, labels, mode):
    bias = tf.get_variable("bias", [4], initializer=tf.zeros_initializer())
    frozen = tf.get_variable("frozen", [], initializer=tf.zeros_initializer(), trainable=False)
    loss = tf.reduce_sum(tf.square(features["user"] + bias - labels[:, None])) + frozen
    train_op = rec.optimizers.AdamOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    with tf.control_dependencies([train_op]):
        train_op = frozen.assign_add(1.0)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=features["user"])


def input_fn(keys=(1, 2, 3, 3)):
    features = {"user": np.array(keys, np.int64)}
    return lambda: tf.data.Dataset.from_tensors((features, np.ones(len(keys), np.float32))).repeat(
        4
    )


def estimator_in(folder, table="user", **kwargs):
    features = [rec.EmbeddingFeature("user", dim=4, table=table)]
    config = rec.RunConfig(tf_random_seed=1, log_step_count_steps=1000)
    return rec.RecEstimator(model_fn, str(folder), config, embedding_features=features, **kwargs)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """An Estimator that trained four steps."""
    folder = tmp_path_factory.mktemp("source")
    with tf.Graph().as_default():
        estimator = estimator_in(folder)
        estimator.train(input_fn())
    return estimator


def start_of(source, tmp_path, table="user", **kwargs):
    """The initial state of an Estimator: its variables after a step that changes none of them."""
    estimator = estimator_in(tmp_path, table, **kwargs)

    class StopAtOnce(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            coord.request_stop()

    estimator.train(input_fn(keys=(7,)), hooks=[StopAtOnce()], max_steps=1)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    reader = tf.train.NewCheckpointReader(state.all_model_checkpoint_paths[0])
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def is_same(source, start, name, there=None):
    value = source.get_variable_value(there or name)
    return start[name].shape == value.shape and start[name].tobytes() == value.tobytes()


ROWS = ("user-keys", "user-values", "user-freqs", "user-versions")


@pytest.mark.long
@pytest.mark.parametrize(
    "settings, same, fresh",
    [
        (None, [*ROWS, "bias"], ["user/Adam-values", "bias/Adam", "frozen"]),
        (".*", [*ROWS, "bias"], ["user/Adam-values", "bias/Adam", "frozen"]),
        ("us", ROWS, ["bias"]),
        ("bias", ["bias"], ROWS),
        (
            [".*"],
            [*ROWS, "bias", "user/Adam-values", "user/Adam_1-values", "bias/Adam", "frozen"],
            [],
        ),
        (["user$", "frozen"], [*ROWS, "frozen"], ["user/Adam-values", "bias"]),
        (["user", "user/", "bias:0"], [*ROWS, "user/Adam-values", "bias"], ["bias/Adam"]),
        (["user:0$"], ROWS, ["user/Adam-values", "bias"]),
        ("none", [], [*ROWS, "bias", "frozen"]),
    ],
)
def test_warm_start_chooses_as_tensorflow_does(source, tmp_path, settings, same, fresh):
    latest = source.latest_checkpoint()
    if settings is None:
        warm = source.model_dir
    elif settings == "none":
        warm = rec.WarmStartSettings(latest, vars_to_warm_start=None)
    else:
        warm = rec.WarmStartSettings(latest, vars_to_warm_start=settings)
    start = start_of(source, tmp_path, warm_start_from=warm)
    assert [name for name in same if not is_same(source, start, name)] == []
    assert [name for name in fresh if is_same(source, start, name)] == []


@pytest.mark.parametrize("chosen", [".*", [".*"]], ids=["expression", "list"])
def test_a_table_that_no_checkpoint_has_starts_afresh(source, chosen):
    table = rec.create_table(tf.int64, 4, "unsaved", tf.ones_initializer(), is_save=False)
    initializer = table.initializer
    settings = rec.WarmStartSettings(source.latest_checkpoint(), vars_to_warm_start=chosen)
    path, variables, _, _ = warm_start.as_settings(settings)
    assert path == source.latest_checkpoint() and variables in (".*", [])
    assert table.initializer is initializer


def test_a_scope_leaves_out_tables_that_no_checkpoint_has(tmp_path):
    prefix, expected = write_source(tmp_path / "model")
    user = make_table("user")
    unsaved = rec.create_table(tf.int64, 3, "unsaved", tf.ones_initializer(), is_save=False)
    before = unsaved.initializer
    rec.init_from_checkpoint(prefix, {"/": "/"})
    session, (rows,) = initialized(user)
    assert rows == expected and unsaved.initializer is before
    session.close()
    with pytest.raises(ValueError, match="table 'unsaved' must be in checkpoint"):
        rec.init_from_checkpoint(prefix, {"unsaved": unsaved})


@pytest.mark.long
def test_warm_start_maps_names_and_takes_saved_models(source, tmp_path):
    def receiver():
        return rec.build_raw_serving_input_receiver_fn(
            {"user": tf.placeholder(tf.int64, [None], name="user")}
        )()

    def with_outputs(features, labels, mode):
        spec = model_fn(features, tf.ones([1]), mode)
        outputs = {"serving_default": rec.PredictOutput({"x": spec.predictions})}
        return spec._replace(export_outputs=outputs)

    exporter = rec.RecEstimator(
        with_outputs, source.model_dir, embedding_features=[rec.EmbeddingFeature("user", dim=4)]
    )
    folder = exporter.export_saved_model(str(tmp_path / "export"), receiver).decode()
    from_export = start_of(source, tmp_path / "a", warm_start_from=folder)
    assert is_same(source, from_export, "user-values") and is_same(source, from_export, "bias")
    settings = rec.WarmStartSettings(
        source.latest_checkpoint(), [".*"], var_name_to_prev_var_name={"visitor": "user"}
    )
    mapped = start_of(source, tmp_path / "b", table="visitor", warm_start_from=settings)
    for suffix in ("-keys", "-values", "/Adam-values"):
        assert is_same(source, mapped, f"visitor{suffix}", f"user{suffix}")


def warm_start_tables(sources):
    tf.train.warm_start(*warm_start.as_settings(sources))


def test_of_several_sources_the_later_one_that_selects_a_table_or_variable_counts(tmp_path):
    first, first_rows = write_source(tmp_path / "first", batch=(1, 2))
    second, second_rows = write_source(tmp_path / "second", batch=(3, 4, 5))
    user, item = make_table("user"), make_table("item", shards=2)
    weight = tf.get_variable("weight", [2])
    warm_start_tables([rec.WarmStartSettings(first, [".*"]), rec.WarmStartSettings(second, ["it"])])
    session, rows = initialized(user, item)
    assert rows == [first_rows, second_rows]
    # Two steps of Adam, each 0.1 up to epsilon.
    np.testing.assert_allclose(session.run(weight), [-0.2, -0.2], rtol=1e-5)
    session.close()


@pytest.mark.parametrize("kind", [list, tuple])
def test_paths_in_a_list_are_sources_too(tmp_path, kind):
    first, _ = write_source(tmp_path / "first", batch=(1, 2))
    second, second_rows = write_source(tmp_path / "second", batch=(3, 4, 5))
    user = make_table("user")
    warm_start_tables(kind([first, second]))
    session, rows = initialized(user)
    assert rows == [second_rows]
    session.close()


@pytest.mark.parametrize("sources", [[], (), ["model", 3]], ids=str)
def test_a_list_without_sources_is_an_error(sources):
    with pytest.raises(ValueError, match="warm_start_from must be a list of checkpoints and"):
        warm_start.as_settings(sources)


@pytest.mark.long
def test_resumed_training_does_not_warm_start(source, tmp_path):
    own = estimator_in(tmp_path, warm_start_from=source.model_dir)
    own.train(input_fn(keys=(8, 8)), steps=2)
    keys = set(own.get_variable_value("user-keys"))
    assert keys == {1, 2, 3, 8}
    again = estimator_in(tmp_path, warm_start_from=str(tmp_path / "nothing"))
    again.train(input_fn(keys=(9,)), steps=1)
    assert set(again.get_variable_value("user-keys")) == {*keys, 9}
    assert again.get_variable_value("global_step") == 3


@pytest.mark.long
def test_without_a_checkpoint_evaluation_and_prediction_warm_start_too(source, tmp_path):
    cold = estimator_in(tmp_path, warm_start_from=source.model_dir)
    expected = source.evaluate(input_fn(), steps=1)["loss"]
    loss = cold.evaluate(input_fn(), steps=1)["loss"]
    assert loss == pytest.approx(expected - 4.0, rel=1e-5)  # Without `frozen`; in float32.


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(var_name_to_prev_var_name={"user": "none"}), "table 'none' must be in checkpoint"),
        (dict(var_name_to_prev_var_name={"usr": "user"}), "usr"),
        (
            dict(var_name_to_prev_var_name={"user/Adam": "other/Adam"}),
            "slot 'user/Adam' must be 'user/Adam', got 'other/Adam'; slots come with",
        ),
        (
            dict(var_name_to_vocab_info={"user": rec.VocabInfo("new", 1, 0, "old")}),
            "var_name_to_vocab_info must name variables, got table 'user'",
        ),
    ],
)
def test_bad_settings_are_errors(source, tmp_path, settings, message):
    warm = rec.WarmStartSettings(source.latest_checkpoint(), [".*"], **settings)
    with pytest.raises(ValueError, match=message):
        estimator_in(tmp_path, warm_start_from=warm).train(input_fn(), steps=1)


def test_invalid_warm_start_from_is_an_error(tmp_path):
    nothing = str(tmp_path / "nothing")
    with pytest.raises(ValueError, match="warm_start_from must be a checkpoint .*, got '.*nothing"):
        estimator_in(tmp_path, warm_start_from=nothing).train(input_fn(), steps=1)
    with pytest.raises(ValueError, match="warm_start_from must be a string"):
        estimator_in(tmp_path, warm_start_from=3)
    with pytest.raises(ValueError, match="ckpt_to_initialize_from"):
        estimator_in(tmp_path, warm_start_from="").train(input_fn(), steps=1)


def evicting_model():
    """A table whose keys live for three steps, its keys' placeholder, train op and global step."""
    rule = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=3))
    table = rec.get_embedding_variable("user", 3, ev_option=rule)
    keys = tf.placeholder(tf.int64, [None])
    return table, keys, train_op_of([table], keys), tf.train.get_global_step()


def save_rows_of_step(step_number, path):
    """Trains keys 1, 2 and 3 of that model at a step, and saves them."""
    with tf.Graph().as_default(), tf.Session() as session:
        _, keys, train, step = evicting_model()
        session.run(tf.global_variables_initializer())
        session.run(step.assign(step_number))
        session.run(train, {keys: [1, 2, 3]})
        return rec.Saver().save(session, path)


def test_warm_started_rows_from_a_later_step_count_as_new_for_eviction(tmp_path):
    source = save_rows_of_step(1000, str(tmp_path / "source"))
    table, keys, train, step = evicting_model()
    rec.init_from_checkpoint(source, {"user": "user"})
    saver = rec.Saver(incremental=True)
    kept = []
    session, _ = initialized(table)
    with session:
        for _ in range(5):
            # As an Estimator does it: the first save is before the first step.
            saver.save(session, str(tmp_path / "own"), global_step=step, full=True)
            kept.append(session.run(table.export()).keys.tolist())
            session.run(train, {keys: [1]})
        assert session.run(table.get_version([1])).tolist() == [4]
        saver.restore(session, saver.last_checkpoints[-1])
        assert session.run(table.export()).keys.tolist() == kept[-1]
    assert kept == [[1, 2, 3]] * 4 + [[1]]


@pytest.mark.parametrize("shards", [(1, 1), (3, 2)], ids=str)
@pytest.mark.parametrize("mapping", [{"user": "user"}, {"/": "/"}], ids=["name", "scope"])
def test_reset_version_makes_all_versions_0(tmp_path, mapping, shards):
    batch = (1, 1, 1, 1, 2, 2, 3, 4, 4)
    prefix, expected = write_source(tmp_path / "model", "", shards[0], filter_freq=4, batch=batch)
    assert {version for _, _, version in expected.values()} == {1}
    user = make_table("user", shards[1], filter_freq=4)
    rec.init_from_checkpoint(prefix, mapping, reset_version=True)
    session, (rows,) = initialized(user)
    assert rows == {key: (value, freq, 0) for key, (value, freq, _) in expected.items()}
    # Key 3 is only counted.
    assert session.run(user.get_frequency([3])) == 2
    assert session.run(user.get_version([1, 3, 5])).tolist() == [0, 0, -1]
    # As a script of DeepRec, without a global step.
    saved = tf.train.load_checkpoint(tf.train.Saver().save(session, str(tmp_path / "again")))
    versions = [saved.get_tensor(name) for name in saved.get_variable_to_shape_map()]
    names = [name for name in saved.get_variable_to_shape_map() if "-versions" in name]
    assert len(versions) and {int(v) for name in names for v in saved.get_tensor(name)} == {0}
    session.close()


@pytest.mark.parametrize("reset_version", [False, True])
@pytest.mark.parametrize("first_step", [0, 1000, 5000])
def test_reset_version_lets_the_age_of_keys_count_from_the_start(
    tmp_path, reset_version, first_step
):
    source = save_rows_of_step(999, str(tmp_path / "source"))
    table, keys, train, step = evicting_model()
    rec.init_from_checkpoint(source, {"/": "/"}, reset_version=reset_version)
    saver = rec.Saver()
    session, _ = initialized(table)
    kept = []
    with session:
        session.run(step.assign(first_step))
        for _ in range(5):
            saver.save(session, str(tmp_path / "own"), global_step=step)
            kept.append(session.run(table.export()).keys.tolist())
            session.run(train, {keys: [1]})
    # A key lives three steps after the one that trained it: step 999 in the source, if its version
    # is kept and this run has come as far. Else it counts from the first save.
    age = first_step - 999 if first_step > 999 and not reset_version else 0
    assert kept == [[1, 2, 3] if age + i <= 3 else [1] if i else [] for i in range(5)]


def test_reset_version_lets_timestamps_count_from_the_first_eviction(tmp_path):
    def model():
        table = rec.create_table(
            tf.int64, 2, "user", tf.ones_initializer(), device_vocabulary_size=10
        )
        keys, now = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [])
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, now)
        config = {"access_threshold": 1, "eviction_threshold": 10}
        values = rec.sparse_lookup(
            table, keys, modify_graph=True, access_and_evict_config=config, is_train=True
        )
        optimizer = rec.optimizers.GradientDescentOptimizer(0.1)
        return table, optimizer.minimize(tf.reduce_sum(values)), (keys, now)

    with tf.Graph().as_default(), tf.Session() as session:
        table, train, inputs = model()
        session.run(tf.global_variables_initializer())
        session.run(train, dict(zip(inputs, ([1, 2], 1000))))
        source = rec.Saver().save(session, str(tmp_path / "source"))
    table, train, inputs = model()
    rec.init_from_checkpoint(source, {"user": "user"}, reset_version=True)
    evict = table.evict()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(table.get_version([1, 2])).tolist() == [-1, -1]
        session.run(train, dict(zip(inputs, ([1], 5000))))
        assert session.run(evict) == 0
        session.run(train, dict(zip(inputs, ([1], 5010))))
        assert session.run(evict) == 1
        assert session.run(table.export()).keys.tolist() == [1]
