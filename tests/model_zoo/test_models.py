# SPDX-License-Identifier: Apache-2.0
"""The contract of every model of the zoo, on generated data; test_two_towers.py has that of dssm.

Each model is trained once, for 30 steps; its tests follow one another and look at that training.
`make test-long` runs the contract of every model after tf.disable_v2_behavior(), in about a
minute of CPU; `make test-slow` runs it once more, with TensorFlow's defaults.
"""

import dataclasses
import functools
import inspect
import pathlib
import re
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import LossHook, predict

import rec_estimator as rec
from model_zoo import data, minimize, runner
from model_zoo.models import MODELS, params_of
from model_zoo.runner import build, config

STEPS, BATCH = 30, 100
SIZES = np.array([3, 0, 4], np.int32)  # candidates of each user, in a compressed request

# A model gets those of these params that it has.
SMALL = {
    "dim": 4,
    "hidden_units": (16,),
    "second_units": (8,),
    "attention_units": (4,),
    "block_units": 8,
    "mask_units": 8,
    "maps": (4, 4),
    "num_experts": 2,
    "num_shared_experts": 1,
    "num_task_experts": 1,
    "expert_units": (16,),
    "task_units": (8,),
    "relation_units": (4,),
    "dropout": 0.1,
}

# One label, a history, several labels. Grappler optimizes the graphs of these only:
# it takes nearly as long as all else.
OF_EACH_KIND = ("dcnv2", "din", "mmoe")

# Other values of params, besides batch normalization: what the training of SMALL does not build.
VARIANTS = {
    "dcnv2": [{"structure": "parallel", "rank": 0}],
    "masknet": [{"structure": "serial"}],
    "fibinet": [{"bilinear": "each"}, {"bilinear": "pair"}],
    "finalmlp": [{"gates": ("context", "none")}, {"gates": (), "second_dropout": 0.5}],
    "bst": [{"blocks": 2}],
    "din": [{"softmax": False, "product": False}],
}


def clicks():
    """Generated clicks with short histories and without the hour, which tells nothing.

    At this agreement, the discount tells most of what is to be known, so that 30 steps are enough.
    """
    generated = data.generate_clicks(rows=5000, users=20, items=20, agreement=0.6, seed=3)
    columns = tuple(
        dataclasses.replace(column, max_length=3) if column.role == "history" else column
        for column in generated.columns
        if column.name != "hour"
    )
    parts = {}
    for part in ("train", "test"):
        rows = generated.in_memory(part)
        features = {**rows.features, "history": rows.features["history"][:, :3]}
        parts[part] = data.Rows(features, rows.labels)
    return data.MemoryDataSet("clicks", columns, parts)


CLICKS = clicks()
TEST = CLICKS.in_memory("test")
ON_ROWS = [name for name, module in MODELS.items() if not hasattr(module, "view")]


def small(model):
    params = {name: value for name, value in SMALL.items() if name in MODELS[model].DEFAULTS}
    if model == "ple":
        params["expert_units"] = ((8,), (8,))
    return params


def estimator_of(model, folder):
    settings = config.Config(model=model, params=small(model)).replace(
        train__batch_size=BATCH,
        train__optimizer={"name": "adam", "learning_rate": 0.04},
        train__save_steps=STEPS // 2,
    )
    if model in OF_EACH_KIND:
        return build.build_estimator(settings, CLICKS, str(folder))
    run_config = build.run_config(settings, str(folder))
    run_config.session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    with mock.patch.object(build, "run_config", return_value=run_config):
        return build.build_estimator(settings, CLICKS, str(folder))


def batches(skip=0):
    return CLICKS.input_fn("train", BATCH, seed=1, epochs=None, skip=skip)


class Trained:
    """A model after 30 steps, with checkpoints at the steps 0, 15 and 30."""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.estimator = estimator_of(model, folder)
        hook = LossHook()
        self.estimator.train(batches(), max_steps=STEPS, hooks=[hook])
        self.losses = hook.losses

    def checkpoint(self, step):
        return str(self.folder / f"model.ckpt-{step}")

    def export(self, kind):
        """A SavedModel of one of config.EXPORT_KINDS."""
        settings = config.Config(model=self.model).replace(export__kind=kind)
        receiver_fn = runner.receiver_fn(settings, CLICKS)
        return self.estimator.export_saved_model(
            str(self.folder / kind), receiver_fn, portable=kind == "portable"
        )

    @functools.cached_property
    def predicted(self):
        """Each output of the model, of the test rows and after them of the request's."""
        request, _ = requests()
        rows = {name: np.concatenate([TEST.features[name], request[name]]) for name in request}
        answers = list(self.estimator.predict(rec.inputs.numpy_input_fn(rows, batch_size=1000)))
        return {name: np.array([answer[name] for answer in answers]) for name in answers[0]}

    @property
    def probabilities(self):
        """Probabilities of the test rows, by label."""
        found = {name: values[: -SIZES.sum()] for name, values in self.predicted.items()}
        if "probabilities" in found:
            return {CLICKS.labels[0]: found["probabilities"]}
        return {label: found[f"probabilities/{label}"] for label in CLICKS.labels}


# Of the module, so that pytest runs all tests of a model before it trains the next one.
@pytest.fixture(scope="module", params=ON_ROWS)
def trained(request, tmp_path_factory):
    return Trained(request.param, tmp_path_factory.mktemp(request.param))


def contract(test):
    """Marks a test of each model, of which make test-long leaves none out."""
    return pytest.mark.long(pytest.mark.all_parameters(test))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_a_short_file_with_three_names_that_cites_its_paper(model):
    module = MODELS[model]
    text = pathlib.Path(module.__file__).read_text()
    assert len(text.splitlines()) <= 140
    assert re.search(r"https://(arxiv\.org|doi\.org|dl\.acm\.org)/\S+", module.__doc__)
    assert list(inspect.signature(module.features).parameters) == ["data", "params"]
    expected = ["features", "labels", "mode", "params"]
    assert list(inspect.signature(module.model_fn).parameters) == expected
    read = set(re.findall(r'params\["(\w+)"\]', text))
    given = {"columns", "labels", "training"}
    assert read - given <= set(module.DEFAULTS)
    # layers.network_settings reads two.
    assert set(module.DEFAULTS) - read <= {"dropout", "batch_norm"}


def log_loss(labels, probabilities):
    return -np.mean(np.log(np.where(labels > 0, probabilities, 1 - probabilities)))


@contract
def test_training_beats_a_constant(trained):
    for label, probabilities in trained.probabilities.items():
        truth = TEST.labels[label]
        assert probabilities.shape == truth.shape
        assert log_loss(truth, probabilities) < log_loss(truth, truth.mean()) - 0.005
        # 3 standard errors above 0.5.
        assert data.exact_auc(truth, probabilities) > 0.56


@contract
def test_evaluation_measures_the_predictions(trained):
    expected = {}
    for label, probabilities in trained.probabilities.items():
        prefix = f"{label}/" if len(trained.probabilities) > 1 else ""
        expected[f"{prefix}log_loss"] = log_loss(TEST.labels[label], probabilities)
        expected[f"{prefix}auc"] = data.exact_auc(TEST.labels[label], probabilities)
    found = trained.estimator.evaluate(CLICKS.input_fn("test", 700))
    # Probabilities round logits that differ into ties; float32 sums in batches of another size.
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


@contract
def test_all_variables_and_tables_get_gradients(trained):
    assert untrained(trained.checkpoint(STEPS)) == []


@contract
def test_tables_have_a_row_for_each_key_of_the_training_rows(trained):
    stored = tf.train.load_checkpoint(trained.checkpoint(STEPS))
    seen = CLICKS.in_memory("train").features
    params = params_of(trained.model, CLICKS, small(trained.model))
    for feature in MODELS[trained.model].features(CLICKS, params):
        if feature.source != "history":  # Its items are among those of the candidates.
            keys = stored.get_tensor(f"{feature.table}-keys")
            assert set(keys) == set(seen[feature.source])


def untrained(checkpoint):
    """The names of the trainable tensors of a checkpoint that have a float without a gradient.

    The first moment of Adam is 0 there. Of a dense variable, only the sum is looked at: units of
    a ReLU may be dead.
    """
    stored = tf.train.load_checkpoint(checkpoint)
    names = stored.get_variable_to_shape_map()
    bad = []
    for name in names:
        if name.endswith("/Adam-values"):
            if not np.abs(stored.get_tensor(name)).max(axis=0).all():
                bad.append(name)
        elif name.endswith("/Adam") and not stored.get_tensor(name).any():
            bad.append(name)
    assert any(name.endswith("/Adam") for name in names)
    assert any(name.endswith("/Adam-values") for name in names)
    return sorted(bad)


@contract
def test_a_training_that_goes_on_with_a_modified_graph_ends_with_the_same_bits(trained, tmp_path):
    half = STEPS // 2
    for file in trained.folder.glob(f"model.ckpt-{half}.*"):
        shutil.copy(file, tmp_path)
    tf.train.update_checkpoint_state(str(tmp_path), str(tmp_path / f"model.ckpt-{half}"))
    resumed, losses = estimator_of(trained.model, tmp_path), LossHook()
    hooks = [losses, rec.GraphModifierHook()]
    resumed.train(batches(skip=half), max_steps=STEPS, hooks=hooks)
    assert losses.losses == trained.losses[half:]
    stored, expected = (
        tf.train.load_checkpoint(prefix)
        for prefix in (resumed.latest_checkpoint(), trained.checkpoint(STEPS))
    )
    shapes = expected.get_variable_to_shape_map()
    assert stored.get_variable_to_shape_map() == shapes
    for name in shapes:
        np.testing.assert_array_equal(
            stored.get_tensor(name), expected.get_tensor(name), err_msg=name
        )


def requests():
    """(a request with a row per candidate, the same one with a row per user)."""
    users = [column.name for column in CLICKS.columns if column.role != "item"]
    rows = np.repeat(np.arange(len(SIZES)), SIZES)
    flat, compressed = {}, {"item_size": SIZES}
    for name, values in TEST.features.items():
        compressed[name] = values[5 : 5 + len(SIZES)] if name in users else values[: SIZES.sum()]
        flat[name] = compressed[name][rows] if name in users else compressed[name]
        if compressed[name].ndim == 1 and values.dtype == np.int64:
            compressed[name] = compressed[name][:, None]
    # No table has a row for these; a user without a history.
    flat["item"][0] = compressed["item"][0] = 2**62
    first = flat["history"][:3], compressed["history"][:1]
    for history in first:
        history[:] = data.PADDING
    return flat, compressed


@contract
def test_exports_predict_what_the_model_predicts(trained):
    flat, compressed = requests()
    expected = {name: values[-SIZES.sum() :] for name, values in trained.predicted.items()}
    # A compressed export is a native one with a smaller graph.
    for kind in ("compressed", "portable"):
        request = compressed if kind == "compressed" else flat
        found = predict(trained.export(kind), request)
        assert set(found) == set(expected)
        for name in expected:
            # Float32 sums in another order.
            np.testing.assert_allclose(
                found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=f"{kind} {name}"
            )


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "params"),
    [
        (model, {"batch_norm": True, **params})
        for model in ON_ROWS
        for params in VARIANTS.get(model, [{}])
        if "batch_norm" in MODELS[model].DEFAULTS
    ],
)
def test_variants_have_no_variable_without_gradient(model, params, monkeypatch):
    monkeypatch.setattr(minimize, "train_op", lambda loss, params: tf.no_op())
    params = params_of(model, CLICKS, {**small(model), **params})
    features = looked_up(model, params)
    labels = {label: tf.placeholder(tf.float32, [None]) for label in CLICKS.labels}
    tf.train.get_or_create_global_step()
    spec = MODELS[model].model_fn(features, labels, rec.ModeKeys.TRAIN, params)
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    sources = {variable.op.name: variable for variable in tf.trainable_variables()}
    sources.update({f.name: features[f.name] for f in MODELS[model].features(CLICKS, params)})
    gradients = tf.gradients(spec.loss, list(sources.values()))
    assert [name for name, gradient in zip(sources, gradients) if gradient is None] == []


def looked_up(model, params):
    """Placeholders of what model_fn gets."""
    features = {}
    for feature in MODELS[model].features(CLICKS, params):
        shape = [None, feature.max_length] if feature.combiner is None else [None]
        features[feature.name] = tf.placeholder(tf.float32, [*shape, feature.dim])
        features[feature.mask_name] = tf.placeholder(tf.bool, shape)
        features[feature.ids_name] = tf.placeholder(tf.int64, [None])
    for column in CLICKS.columns:
        if column.kind == "number":
            features[column.name] = tf.placeholder(tf.float32, [None])
    return features


def test_the_tests_know_every_variant():
    for model, variants in VARIANTS.items():
        for params in variants:
            assert set(params) <= set(MODELS[model].DEFAULTS)
