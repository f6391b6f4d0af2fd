# SPDX-License-Identifier: Apache-2.0
"""Configurations: files, settings that override them, and what is refused."""

import dataclasses
import inspect
import json
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, mappings, models
from model_zoo.data.schema import read_schema
from model_zoo.runner import config
from model_zoo.runner.build import build_estimator, with_tables
from model_zoo.runner.choices import CHOICES, choose
from model_zoo.runner.config import Table

DATA = data.generate_clicks(rows=100, users=6, items=4, seed=3)
SCHEMAS = config.CONFIGS.parent / "data" / "schemas"

FILE = """
model: deepfm
params: {dim: 8, hidden_units: [400, 400], dropout: 2e-1}
data: {name: shop.yaml, folder: /data/shop}
tables:
  default:
    filter: {name: counter, filter_freq: 3}
    eviction: {name: global_step, steps_to_live: 9}
  user: {dim: 32, filter: {name: none}}
train:
  batch_size: 64
  optimizer: {name: adagrad, learning_rate: 5e-2}
  clip_norm: 10
validation: {metric: log_loss, patience: null}
hooks: {graph_modification: yes}
export: {kind: portable}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    return str(path)


def test_a_file_gives_all_sections_their_values(file):
    found = config.load(file)
    assert found.model == "deepfm" and found.params["hidden_units"] == [400, 400]
    assert found.params["dropout"] == 0.2  # YAML 1.1 takes 2e-1 for a text.
    assert found.data == config.Data("shop.yaml", "/data/shop")
    assert found.tables["user"].dim == 32
    assert found.train.batch_size == 64 and found.train.clip_norm == 10.0
    assert found.train.epochs == config.Train().epochs
    assert found.validation.metric == "log_loss" and found.validation.patience is None
    assert found.hooks.graph_modification and not found.hooks.sample_compression
    assert found.export.kind == "portable"


def test_settings_override_the_file_and_nothing_else(file):
    settings = [
        "train.batch_size=512",
        "train.optimizer.learning_rate=0.01",
        "params.hidden_units=[8, 4]",
        "tables.item.dim=4",
        "validation.metric=null",
    ]
    before, found = config.load(file), config.load(file, settings)
    assert found.train.optimizer == {"name": "adagrad", "learning_rate": 0.01}
    assert found.validation.metric is None
    assert mappings.differences(before.as_dict(), found.as_dict()) == [
        "params.hidden_units",
        "tables.item.dim",
        "train.batch_size",
        "train.optimizer.learning_rate",
        "validation.metric",
    ]


def test_a_learning_rate_alone_changes_the_default_optimizer():
    found = config.load(None, ["train.optimizer.learning_rate=1e-2"])
    assert found.train.optimizer == {"name": "adam", "learning_rate": 0.01}


def test_a_configuration_survives_json(file):
    found = config.load(file)
    assert config.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_replace_sets_values_by_path(file):
    found = config.load(file).replace(train__seed=7, tables__default__filter=None)
    assert found.train.seed == 7 and found.tables["default"].filter is None
    assert found.tables["default"].eviction is not None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trian.epochs=3", "sections must be among model, .* got 'trian'; did you mean 'train'?"),
        ("train.epoch=3", "names in train must be among .* did you mean 'epochs'?"),
        ("tables.user.dims=3", "names in tables.user must be among .* did you mean 'dim'?"),
        ("train.epochs=many", "train.epochs must be a whole number, got 'many'"),
        ("train.epochs=1.5", "train.epochs must be a whole number, got 1.5"),
        ("train.epochs=true", "train.epochs must be a whole number, got True"),
        ("train.epochs=0", "train.epochs must be at least 1, got 0"),
        ("train.clip_norm=.inf", "train.clip_norm must be at least 0, got inf"),
        ("train.seed=-1", "train.seed must be from 0 to"),
        ("train.order=times", "train.order must be one of shuffled, time, got 'times'"),
        ("train=3", "train must be a mapping of names to values, got 3"),
        ("validation.learning_rate_factor=0", "validation.learning_rate_factor must be above 0"),
        ("hooks.progress=1", "hooks.progress must be true or false, got 1"),
        ("export.kind=tflite", "export.kind must be one of native, compressed, portable"),
        ("tables.user.filter=counter", "tables.user.filter must be a mapping"),
        ("train.epochs", "a setting must be NAME=VALUE, got 'train.epochs'"),
        ("train.epochs=[1", "while parsing a flow sequence"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(setting, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        config.load(None, [setting])


def test_a_file_that_is_not_yaml_is_named_with_the_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("model: din\ntrain: {epochs: 3\n")
    with pytest.raises(ValueError, match=r"broken.yaml must be YAML, got: .* line"):
        config.load(str(path))


def test_a_name_that_a_file_has_twice_is_refused_with_its_line(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("model: din\ntrain:\n  epochs: 3\n  seed: 1\n  epochs: 4\n")
    with pytest.raises(ValueError, match=r"twice.yaml .*'epochs' is there twice.* line 5"):
        config.load(str(path))


def test_an_empty_file_means_the_defaults(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert config.load(str(path)) == config.Config()


DEFAULTS = {"dim": 16, "hidden_units": (128, 64), "dropout": 0.0, "batch_norm": False, "name": None}


@pytest.fixture
def params_of(monkeypatch):
    """Returns the params of a model "m" with DEFAULTS."""
    monkeypatch.setitem(models.MODELS, "m", types.SimpleNamespace(DEFAULTS=DEFAULTS))
    return lambda settings: models.params_of("m", DATA, settings)


def test_params_get_the_defaults_and_types_of_the_model(params_of):
    found = params_of({"hidden_units": [8], "dropout": 1, "name": "x"})
    wanted = {**DEFAULTS, "hidden_units": (8,), "dropout": 1.0, "name": "x"}
    assert {name: found[name] for name in DEFAULTS} == wanted
    assert params_of({"hidden_units": 8})["hidden_units"] == (8,)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dropuot": 0.1}, "params of m must be among dim, .* did you mean 'dropout'?"),
        ({"dim": "many"}, "params.dim must be a whole number, got 'many'"),
        ({"hidden_units": [8, 0.5]}, r"params.hidden_units\[1\] must be a whole number, got 0.5"),
        ({"batch_norm": 1}, "params.batch_norm must be true or false, got 1"),
    ],
)
def test_params_that_the_model_does_not_have_are_refused(params_of, params, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        params_of(params)


# ---------------------------------------------------------------- tables


FEATURES = [
    rec.EmbeddingFeature("user", 16),
    rec.EmbeddingFeature("item", 16, filter_option=rec.CounterFilter(7)),
    rec.EmbeddingFeature("history", 16, table="item", combiner=None, max_length=3),
]


def test_tables_have_their_own_settings_then_the_default_ones_then_those_of_the_model():
    tables = {
        "default": Table(
            eviction={"name": "l2_weight", "l2_weight_threshold": 0.5},
            regularizer={"name": "l2", "scale": 1e-5},
        ),
        "user": Table(
            dim=4,
            filter={"name": "counter", "filter_freq": 3},
            initializer={"name": "constant", "value": 2.0},
            regularizer={"name": "l2", "scale": 1e-5},
        ),
    }
    user, item, history = with_tables(FEATURES, tables)
    assert (user.dim, item.dim, history.dim) == (4, 16, 16)
    assert user.ev_option.filter_option == rec.CounterFilter(3)
    assert item.ev_option.filter_option == rec.CounterFilter(7)
    assert user.initializer.get_config()["value"] == 2.0
    assert user.ev_option.regularizer == rec.L2Regularizer(1e-5)
    assert item.initializer is None
    for feature in (user, item, history):
        assert feature.ev_option.evict_option == rec.L2WeightEvict(0.5)
        assert feature.ev_option.regularizer == rec.L2Regularizer(1e-5)
    assert (history.table, history.combiner, history.max_length) == ("item", None, 3)


def test_all_features_of_a_table_get_its_settings():
    _, item, history = with_tables(FEATURES, {"item": Table(dim=8)})
    assert item.dim == history.dim == 8


def test_a_name_that_is_no_table_is_refused():
    message = "names in tables must be among default, user, item, got 'itme'; did you mean 'item'"
    with pytest.raises(ValueError, match=message):
        with_tables(FEATURES, {"itme": Table()})


def test_none_is_a_choice_that_the_default_does_not_override():
    tables = {
        "default": Table(filter={"name": "counter", "filter_freq": 3}),
        "item": Table(filter={"name": "none"}),
    }
    user, item, _ = with_tables(FEATURES, tables)
    assert user.ev_option.filter_option == rec.CounterFilter(3)
    assert item.ev_option.filter_option is None


@pytest.mark.parametrize(
    ("kind", "choice", "message"),
    [
        ("filter", {"name": "count"}, "t.name must be among counter, bloom, none, got 'count'"),
        ("filter", {"filter_freq": 3}, "t.name must be among counter"),
        ("filter", {"name": "counter", "freq": 3}, "names in t must be among name, filter_freq"),
        ("filter", {"name": "counter", "filter_freq": -1}, "t: filter_freq must be"),
        (
            "initializer",
            {"name": "normal", "std": 1},
            "names in t must be .* did you mean 'stddev'",
        ),
    ],
)
def test_a_wrong_choice_is_refused_with_its_path(kind, choice, message):
    with pytest.raises(ValueError, match=message):
        choose(kind, choice, "t")


def test_every_choice_of_the_documentation_exists():
    documented = Table.__doc__
    for choices in CHOICES.values():
        for name in choices:
            assert name in documented, name


def test_initializers_are_those_of_tensorflow():
    found = choose("initializer", {"name": "normal", "stddev": 1e-4}, "t")
    assert isinstance(found, tf.random_normal_initializer)
    assert found.get_config()["stddev"] == 1e-4


def test_every_attribute_of_a_section_is_documented():
    for section in (config.Config, config.Data, config.Train, config.Validation, config.Hooks):
        for field in dataclasses.fields(section):
            assert f"\n  {field.name}: " in inspect.getdoc(section), field.name


# ---------------------------------------------------------------- what comes with the zoo


@pytest.mark.parametrize("name", sorted(path.stem for path in config.CONFIGS.glob("*.yaml")))
def test_a_configuration_of_the_zoo_builds_its_model(name):
    found = config.load(name)
    schema = SCHEMAS / f"{found.data.name}.yaml"
    columns, labels = DATA.columns, DATA.labels
    if schema.exists():
        described = read_schema(schema)
        columns, labels = described.columns, tuple(described.labels)
    rows = DATA.in_memory("train")[:4]
    features = {
        column.name: np.zeros((4, column.max_length) if column.is_padded else 4)
        for column in columns
    }
    few = data.Rows(features, dict.fromkeys(labels, rows.labels["like"]))
    build_estimator(found, data.MemoryDataSet(name, columns, {"train": few}))
