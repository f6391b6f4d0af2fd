# SPDX-License-Identifier: Apache-2.0
"""Tests of options: their names, and the values that they accept and refuse."""

import copy
import dataclasses
import pickle

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

BLOOM = {"filter_freq": 3, "max_element_size": 1000, "false_positive_probability": 0.01}


def zeros(shape, dtype):
    return tf.zeros(shape, dtype)


OPTIONS = {
    "InitializerOption": rec.InitializerOption(zeros, 8, 0.5),
    "CounterFilter": rec.CounterFilter(3),
    "CBFFilter": rec.CBFFilter(**BLOOM, counter_type=tf.uint16),
    "GlobalStepEvict": rec.GlobalStepEvict(4000),
    "L2WeightEvict": rec.L2WeightEvict(0.5),
    "CheckpointOption": rec.CheckpointOption("model.ckpt-1", "item", True),
    "StorageOption": rec.StorageOption(
        rec.StorageType.DRAM_SSDHASH, "/tmp/rows", [1, 2], rec.CacheStrategy.LRU
    ),
    "EmbeddingVariableOption": rec.EmbeddingVariableOption(
        evict_option=rec.L2WeightEvict(0.5), filter_option=rec.CBFFilter(**BLOOM)
    ),
}


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_options_are_frozen_and_can_be_copied(option):
    assert copy.deepcopy(option) == option
    assert pickle.loads(pickle.dumps(option)) == option
    assert hash(copy.copy(option)) == hash(option)
    field = dataclasses.fields(option)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(option, field, getattr(option, field))


def test_defaults_are_those_of_deeprec():
    option = rec.EmbeddingVariableOption()
    assert (option.ht_type, option.ht_partition_num) == ("", 1000)
    assert option.evict is option.ckpt is option.filter_strategy is None
    assert option.init == rec.InitializerOption(None, 4096, 0.0)
    assert option.storage_option == rec.StorageOption(
        None, None, [1024**3], rec.CacheStrategy.LFU, None
    )
    assert rec.CounterFilter().filter_freq == 0
    assert dataclasses.astuple(rec.CBFFilter()) == (0, 0, -1.0, tf.uint64)
    assert rec.GlobalStepEvict().steps_to_live is None
    assert rec.L2WeightEvict().l2_weight_threshold == -1.0
    assert dataclasses.astuple(rec.CheckpointOption()) == (None, None, False, None)


def test_attributes_have_the_names_of_deeprec():
    counter, evict, init = rec.CounterFilter(3), rec.GlobalStepEvict(5), rec.InitializerOption()
    option = rec.EmbeddingVariableOption(
        filter_option=counter, evict_option=evict, init_option=init, ckpt=None
    )
    assert option.filter_strategy is option.filter_option is counter
    assert option.evict is option.evict_option is evict
    assert option.init is option.init_option is init


def test_positions_are_those_of_deeprec():
    evict, counter = rec.L2WeightEvict(0.5), rec.CounterFilter(2)
    storage, init = rec.StorageOption(), rec.InitializerOption()
    option = rec.EmbeddingVariableOption("", 1000, evict, None, counter, storage, init)
    assert (option.evict, option.filter_strategy) == (evict, counter)


def test_storage_types_have_the_numbers_of_deeprec():
    assert {kind.name: kind.value for kind in rec.StorageType} == {
        "DEFAULT": 0,
        "DRAM": 1,
        "PMEM_MEMKIND": 2,
        "PMEM_LIBPMEM": 3,
        "SSDHASH": 4,
        "LEVELDB": 5,
        "HBM": 6,
        "DRAM_PMEM": 11,
        "DRAM_SSDHASH": 12,
        "HBM_DRAM": 13,
        "DRAM_LEVELDB": 14,
        "DRAM_PMEM_SSDHASH": 101,
        "HBM_DRAM_SSDHASH": 102,
    }
    assert (rec.CacheStrategy.LRU, rec.CacheStrategy.LFU) == (0, 1)


def test_example_of_the_page_on_filters_is_accepted():
    bloom = rec.CBFFilter(
        filter_freq=3,
        max_element_size=2**30,
        false_positive_probability=0.01,
        counter_type=tf.int64,
    )
    option = rec.EmbeddingVariableOption(filter_option=bloom)
    assert option.filter_strategy.has_size


@pytest.mark.parametrize(
    "counter_type, largest", [(tf.uint8, 255), (tf.uint16, 65535), (tf.uint32, 2**31 - 1)]
)
def test_counter_type_limits_filter_freq(counter_type, largest):
    rec.CBFFilter(**{**BLOOM, "filter_freq": largest, "counter_type": counter_type})
    with pytest.raises(ValueError, match=f"filter_freq must be .*, got {largest + 1}"):
        rec.CBFFilter(**{**BLOOM, "filter_freq": largest + 1, "counter_type": counter_type})


def test_counter_type_may_be_a_name():
    assert rec.CBFFilter(**BLOOM, counter_type="uint8").counter_type is tf.uint8


def test_storage_size_is_copied():
    sizes = [1, 2]
    option = rec.StorageOption(storage_size=sizes)
    sizes.append(3)
    assert option.storage_size == (1, 2)
    assert dataclasses.replace(option, cache_strategy=rec.CacheStrategy.LRU).storage_size == (1, 2)
    assert rec.StorageOption().storage_size == (1024**3,)


def test_storage_path_is_not_created(tmp_path):
    path = tmp_path / "rows"
    rec.StorageOption(rec.StorageType.SSDHASH, str(path))
    assert not path.exists()


@pytest.mark.parametrize("option", [rec.GlobalStepEvict(), rec.GlobalStepEvict(0)], ids=str)
def test_steps_to_live_of_none_or_zero_evicts_nothing(option):
    assert not option.is_on


# ------------------------------------------------------------------ errors

FILES = [kind for kind in rec.StorageType if "SSDHASH" in kind.name or "LEVELDB" in kind.name]
TIERS = [kind for kind in rec.StorageType if "_" in kind.name and not kind.name.startswith("PMEM")]

NAN, INF = float("nan"), float("inf")

REFUSED = [
    *(
        (
            rec.CounterFilter,
            {"filter_freq": value},
            ValueError,
            r"filter_freq must be an integer in",
        )
        for value in (-1, 2**31, 1.5, True, None, "3")
    ),
    *(
        (rec.CBFFilter, {**BLOOM, "filter_freq": value}, ValueError, "filter_freq must be")
        for value in (-1, 2**31, 2.0)
    ),
    *(
        (
            rec.CBFFilter,
            {**BLOOM, "false_positive_probability": value},
            ValueError,
            r"false_positive_probability must be in \(0, 1\), or -1.0 .*, got",
        )
        # As float32, the last two are 0 and 1.
        for value in (0, 1, 1.5, -0.5, -2.0, NAN, INF, "0.1", None, True, 1e-60, 1 - 1e-12)
    ),
    *(
        (
            rec.CBFFilter,
            {**BLOOM, "max_element_size": value},
            ValueError,
            "max_element_size must be",
        )
        for value in (-1, 0, 1.5, 2**40 + 1, True, None)
    ),
    (rec.CBFFilter, {"max_element_size": -1}, ValueError, "max_element_size must be an integer"),
    (
        rec.CBFFilter,
        {"max_element_size": 5},
        ValueError,
        "max_element_size must be 0 without a false_positive_probability, got 5",
    ),
    *(
        (
            rec.CBFFilter,
            {**BLOOM, "counter_type": value},
            ValueError,
            "counter_type must be tf.uint8",
        )
        for value in (tf.int32, tf.float32, "counter", None, 3)
    ),
    *(
        (rec.GlobalStepEvict, {"steps_to_live": value}, ValueError, "steps_to_live must be None or")
        for value in (-1, 1.5, True, 2**63, "5")
    ),
    *(
        (
            rec.L2WeightEvict,
            {"l2_weight_threshold": value},
            ValueError,
            "l2_weight_threshold must be a finite number above 0, or -1.0",
        )
        for value in (0, -0.5, -2, NAN, INF, 1e300, 1e-60, True, None, "0.5")
    ),
    (rec.CheckpointOption, {"ckpt_to_load_from": 3}, TypeError, "ckpt_to_load_from must be a str"),
    (rec.CheckpointOption, {"ckpt_to_load_from": ""}, ValueError, "must be a non-empty string"),
    (
        rec.CheckpointOption,
        {"ckpt_to_load_from": "a", "always_load_from_specific_ckpt": 1},
        TypeError,
        "always_load_from_specific_ckpt must be True or False, got 1",
    ),
    *(
        (rec.CheckpointOption, value, ValueError, "ckpt_to_load_from must be given with")
        for value in ({"tensor_name_in_ckpt": "a"}, {"always_load_from_specific_ckpt": True})
    ),
    (rec.CheckpointOption, {"init_data_source": "a"}, ValueError, "init_data_source must be None"),
    (
        rec.StorageOption,
        {"storage_path": "/tmp"},
        ValueError,
        "storage_type must be given with a storage_path, got None with '/tmp'",
    ),
    *(
        (rec.StorageOption, {"storage_size": value}, ValueError, "storage_size must be a list of")
        for value in (1024, [], [0], [-1], [1.5], [1] * 5, "1", None, [True])
    ),
    *(
        (rec.StorageOption, {"storage_type": kind}, ValueError, f"given with .* {kind.name}, got N")
        for kind in (rec.StorageType.SSDHASH, rec.StorageType.DRAM_SSDHASH)
    ),
    (rec.StorageOption, {"storage_type": 12}, TypeError, "storage_type must be a StorageType"),
    (rec.StorageOption, {"storage_path": 3}, TypeError, "storage_path must be a string or None"),
    (rec.StorageOption, {"storage_path": "a\0b"}, ValueError, "storage_path must have no NUL"),
    (rec.StorageOption, {"cache_strategy": 1}, TypeError, "cache_strategy must be a CacheStrategy"),
    (rec.StorageOption, {"layout": "light"}, ValueError, "layout must be None, got 'light'"),
    *(
        (rec.EmbeddingVariableOption, {name: 3}, TypeError, f"{name} must be .*, got 3; .* by name")
        for name in (
            *("ht_type", "evict_option", "ckpt"),
            *("filter_option", "storage_option", "init_option"),
        )
    ),
    *(
        (rec.EmbeddingVariableOption, {name: None}, TypeError, f"{name} must be of type")
        for name in ("ht_type", "storage_option", "init_option")
    ),
    (rec.EmbeddingVariableOption, {"ht_partition_num": 0}, ValueError, "ht_partition_num must be"),
    (
        rec.EmbeddingVariableOption,
        {"evict_option": [rec.GlobalStepEvict(3), rec.L2WeightEvict(0.5)]},
        ValueError,
        "evict_option must be one rule, .*; step and L2 eviction cannot be enabled at the same",
    ),
    *(
        (
            rec.EmbeddingVariableOption,
            {
                "filter_option": rec.CBFFilter(**BLOOM),
                "storage_option": rec.StorageOption(kind, "/tmp/rows"),
            },
            ValueError,
            f"filter_option must not be a CBFFilter with storage_type {kind.name}, .*CounterFilter",
        )
        for kind in sorted({*FILES, *TIERS})
    ),
]


@pytest.mark.parametrize(
    "option, arguments, error, message",
    REFUSED,
    ids=[f"{option.__name__}-{arguments}"[:80] for option, arguments, _, _ in REFUSED],
)
def test_bad_value_is_an_error_when_the_option_is_built(option, arguments, error, message):
    with pytest.raises(error, match=message):
        option(**arguments)


@pytest.mark.parametrize("kind", sorted({*FILES, *TIERS}), ids=lambda kind: kind.name)
def test_counter_filter_is_accepted_with_every_storage_type(kind):
    rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(3), storage_option=rec.StorageOption(kind, "/tmp/rows")
    )


@pytest.mark.parametrize(
    "option, name, argument",
    [
        (rec.EmbeddingVariableOption(), "filter_strategy", "filter_option"),
        (rec.EmbeddingVariableOption(), "evict", "evict_option"),
        (rec.EmbeddingVariableOption(), "init", "init_option"),
        (rec.EmbeddingVariableOption(), "ckpt", "ckpt"),
        (rec.InitializerOption(), "default_value_dim", "default_value_dim"),
        (rec.StorageOption(), "storage_path", "storage_path"),
        (rec.CounterFilter(3), "filter_freq", "filter_freq"),
    ],
)
def test_an_assignment_to_an_option_names_the_argument(option, name, argument):
    before = repr(option)
    message = f"{name} of {type(option).__name__} cannot be assigned, got 7; pass {argument}= to"
    with pytest.raises(AttributeError, match=message):
        setattr(option, name, 7)
    assert repr(option) == before
