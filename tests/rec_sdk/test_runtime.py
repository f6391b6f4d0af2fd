# SPDX-License-Identifier: Apache-2.0
"""init() and the functions that read its settings: ranges, default values and errors."""

import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator._init_settings import init_settings
from rec_estimator.rec_sdk import runtime


@pytest.fixture(autouse=True)
def terminated():
    yield
    runtime._forget()


@pytest.fixture(name="log")
def log_of_init(monkeypatch):
    lines = []
    for level in ("info", "warning"):
        monkeypatch.setattr(tf.logging, level, lambda text, *values: lines.append(text % values))
    return lines


def test_settings_have_default_values_without_init():
    assert rec.get_use_dynamic_expansion() is False
    assert runtime.is_static() is False
    assert runtime.hashtable_collection() == rec.ASCEND_GLOBAL_HASHTABLE_COLLECTION
    with pytest.raises(EnvironmentError, match="init.. must be called before"):
        rec.ConfigInitializer.get_instance()


def test_get_instance_returns_the_settings_of_init():
    given = dict(
        max_steps=200,
        train_steps=100,
        eval_steps=10,
        save_steps=50,
        if_load=True,
        use_dynamic=False,
        use_dynamic_expansion=True,
        is_incremental_checkpoint=True,
        save_checkpoint_due_time=60,
        save_delta_checkpoints_secs=5,
        restore_model_version=7,
        recent_key_count_threshold=2,
    )
    rec.init(**given)
    config = rec.ConfigInitializer.get_instance()
    assert config.use_static is True
    assert {name: getattr(config, name) for name in given if name != "use_dynamic"} == {
        name: value for name, value in given.items() if name != "use_dynamic"
    }
    assert rec.get_use_dynamic_expansion() is True
    assert runtime.is_static() is True


def test_defaults_of_init():
    rec.init()
    config = rec.ConfigInitializer.get_instance()
    steps = config.max_steps, config.train_steps, config.eval_steps, config.save_steps
    assert steps == (-1, -1, -1, -1)
    assert (config.if_load, config.use_static, config.use_dynamic_expansion) == (False,) * 3
    assert config.restore_model_version is None
    assert config.recent_key_count_threshold == 0


MAX = 2**31 - 1
STEPS = ("max_steps", "train_steps", "eval_steps", "save_steps")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({name: -2}, f"{name} must be an integer in .-1, {MAX}., got -2") for name in STEPS),
        *(({name: MAX + 1}, f"{name} must be an integer") for name in STEPS),
        ({"max_steps": True}, "max_steps must be an integer .*, got True"),
        ({"max_steps": 1.0}, "max_steps must be an integer .*, got 1.0"),
        ({"max_steps": None}, "max_steps must be an integer .*, got None"),
        ({"if_load": 1}, "if_load must be a bool, got 1"),
        ({"use_dynamic": None}, "use_dynamic must be a bool"),
        ({"use_dynamic_expansion": "yes"}, "use_dynamic_expansion must be a bool, got 'yes'"),
        ({"bind_cpu": 0}, "bind_cpu must be a bool, got 0"),
        ({"use_lccl": 0}, "use_lccl must be a bool, got 0"),
        ({"save_checkpoint_due_time": 0}, "save_checkpoint_due_time must be an integer in .1,"),
        ({"save_delta_checkpoints_secs": 0}, "save_delta_checkpoints_secs must be an integer"),
        ({"restore_model_version": -1}, "restore_model_version must be an integer in .0,"),
        ({"recent_key_count_threshold": -1}, "recent_key_count_threshold must be an integer"),
        (
            {"max_steps": 0, "train_steps": 0, "eval_steps": 0},
            "at least one of max_steps, train_steps, eval_steps must not be 0",
        ),
        (
            {"is_incremental_checkpoint": True, "save_checkpoint_due_time": 9},
            "save_checkpoint_due_time and save_delta_checkpoints_secs must be given .* 9 and None",
        ),
    ],
)
def test_init_refuses_a_bad_setting_and_keeps_none(settings, message):
    with pytest.raises(ValueError, match=message):
        rec.init(**settings)
    with pytest.raises(EnvironmentError):
        rec.ConfigInitializer.get_instance()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("value", [-1, 0, MAX])
def test_init_accepts_the_least_and_the_greatest_number_of_steps(name, value):
    rec.init(**{name: value})
    assert getattr(rec.ConfigInitializer.get_instance(), name) == value


def test_a_second_init_is_refused_until_the_first_is_terminated():
    rec.init(max_steps=5)
    with pytest.raises(EnvironmentError, match="init.. must be called once"):
        rec.init(max_steps=6)
    assert rec.ConfigInitializer.get_instance().max_steps == 5
    rec.terminate_config_initializer()
    rec.init(max_steps=6)
    assert rec.ConfigInitializer.get_instance().max_steps == 6


def test_terminating_twice_or_without_init_only_warns(log):
    rec.terminate_config_initializer()
    assert len(log) == 1
    assert "init() was not called" in log[0]
    rec.init()
    rec.terminate_config_initializer()
    assert len(log) == 1
    rec.terminate_config_initializer()
    assert len(log) == 2


def test_init_settings_are_kept_between_init_and_terminate():
    assert init_settings() is None
    rec.init(max_steps=5, use_dynamic_expansion=True)
    settings = init_settings()
    assert (settings.max_steps, settings.use_dynamic_expansion) == (5, True)
    with pytest.raises(AttributeError):
        settings.max_steps = 6
    rec.terminate_config_initializer()
    assert init_settings() is None


def test_init_logs_switches_without_effect_and_unknown_names(log):
    rec.init(bind_cpu=True, use_lccl=False, use_shm_swap=True, prefetch_batch_number=3)
    assert len(log) == 2
    assert log[0] == "init: without effect on a CPU: bind_cpu, use_lccl, use_shm_swap"
    assert log[1].startswith("init: unknown and ignored: prefetch_batch_number; known are max_")


def test_if_load_may_be_set_after_init():
    rec.init()
    config = rec.ConfigInitializer.get_instance()
    config.if_load = True
    assert config.if_load is True
    with pytest.raises(ValueError, match="if_load must be a bool, got 1"):
        config.if_load = 1


def test_train_params_config_has_the_members_of_rec_sdk():
    rec.init()
    params = rec.ConfigInitializer.get_instance().train_params_config
    assert params.get_training_mode_channel_id(True) == 0
    assert params.get_training_mode_channel_id(False) == 1
    with pytest.raises(ValueError, match="is_training must be a bool"):
        params.get_training_mode_channel_id(1)
    params.ascend_global_hashtable_collection = "mine"
    assert runtime.hashtable_collection() == "mine"
    for name in ("", "x" * 256, 3):
        with pytest.raises(ValueError, match="must be a string of 1 to 255 characters"):
            params.ascend_global_hashtable_collection = name
    params.ascend_global_hashtable_collection = "x" * 255


def test_train_params_config_returns_the_initializer_and_the_batch_of_a_modified_graph():
    rec.init()
    config = rec.ConfigInitializer.get_instance()
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(5).batch(2))
    batch = iterator.get_next()
    table = rec.get_embedding_variable("user", embedding_dim=2)
    rec.embedding_lookup(table, batch * 3)
    assert config.modify_graph is False
    rec.modify_graph_and_start_emb_cache()
    assert config.modify_graph is True
    params = config.train_params_config
    assert params.get_initializer(False) is rec.get_initializer(False)
    assert params.get_target_batch(False) is rec.get_target_batch(False)
    with tf.Session() as session:
        session.run(tf.get_collection(rec.ASCEND_CUTTING_POINT_INITIALIZER))
        assert session.run(batch).tolist() == [0, 1]


def test_ranks_are_read_from_the_variables_of_the_mpi_launcher(monkeypatch):
    ranks = rec.get_rank_id, rec.get_rank_size, rec.get_local_rank_size
    variables = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_SIZE")]
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    assert [rank() for rank in ranks] == [0, 1, 1]
    for variable, value in zip(variables, ("3", "8", "4")):
        monkeypatch.setenv(variable, value)
    assert [rank() for rank in ranks] == [3, 8, 4]
    for rank, variable in zip(ranks, variables):
        for value in ("x", "-1", "1.5", ""):
            monkeypatch.setenv(variable, value)
            with pytest.raises(ValueError, match=f"{variable} must be an integer from"):
                rank()


def test_a_launch_of_several_processes_warns_that_each_trains_its_own_tables(monkeypatch, log):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    rec.init()
    assert log == ["init: 2 processes were launched; each trains its own tables"]


FORGOTTEN = """
import rec_estimator as rec
rec.init(max_steps=3)
print(rec.ConfigInitializer.get_instance().max_steps)
"""


def test_a_script_without_terminate_config_initializer_ends_cleanly():
    assert python_processes.run(["-c", FORGOTTEN]).stdout == "3\n"
