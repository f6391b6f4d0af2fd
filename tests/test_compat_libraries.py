# SPDX-License-Identifier: Apache-2.0
"""Code that nobody here wrote runs on compat.install(): DeepCTR, tensorflow-ranking, the census.

The libraries come from the package index, into a folder of the test. They need Keras 2 and a
TensorFlow without tf.estimator.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from rec_estimator._tensorflow.releases import SUPPORTS_ESTIMATOR_PACKAGE

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Without what they require: that would replace TensorFlow.
LIBRARIES = ("deepctr==0.9.3", "tensorflow-ranking==0.5.5", "tensorflow-serving-api==2.19.1")
OTHERS = ("tensorboard", "tf-keras=={}.*")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The folder of the libraries."""
    folder = tmp_path_factory.mktemp("libraries")
    minor = ".".join(tf.__version__.split(".")[:2])
    names = [name.format(minor) for name in (*LIBRARIES, *OTHERS)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), *names], check=True)
    return folder


def run(code, libraries, folder):
    """Runs a script in an empty folder; returns what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(libraries)]),
        "TF_USE_LEGACY_KERAS": "1",
    }
    head = "import rec_estimator.compat\n\nrec_estimator.compat.install()\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


DEEPCTR = """
import numpy as np
import pandas as pd
import tensorflow as tf
from tensorflow.python.keras import layers

layers.LSTM = layers.LSTMV1  # TensorFlow 2 dropped the name, which DeepCTR imports.
from deepctr import estimator as models
from deepctr.estimator.inputs import input_fn_pandas

tf.compat.v1.disable_v2_behavior()
rng = np.random.default_rng(0)
ids, floats = ["C1", "C2", "C3"], ["I1", "I2"]
data = pd.DataFrame({name: rng.integers(0, 20, 512) for name in ids})
for name in floats:
    data[name] = rng.random(512).astype(np.float32)
data["label"] = (data["C1"] % 2).astype(np.float32)
column = tf.feature_column
linear = [column.categorical_column_with_identity(name, 20) for name in ids]
dense = [column.numeric_column(name) for name in floats]
deep = [column.embedding_column(each, 4) for each in linear]


def input_fn(epochs):
    return input_fn_pandas(
        data, ids + floats, "label", shuffle=False, batch_size=128, num_epochs=epochs
    )


fields = [deep + dense] if "MODEL" == "PNNEstimator" else [linear + dense, deep + dense]
model = models.MODEL(*fields, model_dir="model")
model.train(input_fn(30))
print(model.evaluate(input_fn(1))["AUC"] > 0.9)
print(sorted(next(iter(model.predict(input_fn(1))))))
"""


DEEPCTR_MODELS = ("AFM", "AutoInt", "CCPM", "DCN", "DeepFEFM", "DeepFM", "FNN", "FiBiNET", "FwFM")


def where_it_is_missing(examples):
    """The examples, none of them where TensorFlow has tf.estimator, which nothing may hide."""
    return [] if SUPPORTS_ESTIMATOR_PACKAGE else list(examples)


@pytest.mark.parametrize(
    "model", where_it_is_missing(f"{name}Estimator" for name in DEEPCTR_MODELS)
)
def test_an_estimator_of_deepctr_trains_evaluates_and_predicts(model, libraries, tmp_path):
    printed = run(DEEPCTR.replace("MODEL", model), libraries, tmp_path)
    assert "True" in printed.splitlines() and "['logits', 'pred']" in printed.splitlines()


RANKING = """
import numpy as np
import tensorflow as tf
import tensorflow_ranking as tfr

v1 = tf.compat.v1


def input_fn():
    x = np.random.default_rng(0).random((64, 5, 3)).astype(np.float32)
    relevance = (x[..., 0] > 0.5).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, relevance)).repeat(20).batch(16)


def score(context, group, mode, params, config):
    weights = v1.get_variable("weights", [3, 1], initializer=v1.zeros_initializer())
    return tf.matmul(v1.reshape(group["x"], [-1, 3]), weights)


def train_op(loss):
    return v1.train.AdagradOptimizer(0.5).minimize(loss, v1.train.get_global_step())


head = tfr.head.create_ranking_head(
    loss_fn=tfr.losses.make_loss_fn(tfr.losses.RankingLossKey.SOFTMAX_LOSS),
    eval_metric_fns={"ndcg": tfr.metrics.make_ranking_metric_fn("ndcg")},
    train_op_fn=train_op,
)
model_fn = tfr.model.make_groupwise_ranking_fn(
    group_score_fn=score,
    group_size=1,
    transform_fn=lambda features, mode: ({}, {"x": features["x"]}),
    ranking_head=head,
)
model = tf.estimator.Estimator(model_fn, "model")
model.train(input_fn)
print(model.evaluate(input_fn, steps=4)["ndcg"] > 0.9)
"""


@pytest.mark.parametrize("code", where_it_is_missing([RANKING]), ids=lambda code: "groupwise")
def test_the_estimator_of_tensorflow_ranking_learns_an_order(code, libraries, tmp_path):
    assert run(code, libraries, tmp_path).splitlines()[-1] == "True"


CENSUS = """
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
people = {
    "age": rng.integers(17, 90, 512).astype(np.float32),
    "education": rng.choice(["Bachelors", "HS-grad", "Masters"], 512),
    "hours_per_week": rng.integers(1, 99, 512).astype(np.float32),
    "occupation": rng.choice(["Sales", "Craft-repair", "Tech-support"], 512),
}
income = (people["age"] > 45).astype(np.int64)
column = tf.feature_column
age, hours = column.numeric_column("age"), column.numeric_column("hours_per_week")
education = column.categorical_column_with_vocabulary_list(
    "education", ["Bachelors", "HS-grad", "Masters"]
)
occupation = column.categorical_column_with_hash_bucket("occupation", 100)
ages = column.bucketized_column(age, [18, 25, 30, 35, 40, 45, 50, 55, 60, 65])
crossed = column.crossed_column([ages, "education"], 1000)
wide = [education, occupation, ages, crossed]
deep = [age, hours, column.indicator_column(education), column.embedding_column(occupation, 8)]


def input_fn(epochs=20):
    return tf.data.Dataset.from_tensor_slices((people, income)).repeat(epochs).batch(64)


model = MODEL
train = tf.estimator.TrainSpec(input_fn, max_steps=100)
tf.estimator.train_and_evaluate(model, train, tf.estimator.EvalSpec(lambda: input_fn(1)))
print(bool(np.isfinite(model.evaluate(lambda: input_fn(1))["loss"])))
receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
    column.make_parse_example_spec(wide + deep)
)
model.export_saved_model("export", receiver)
"""

CENSUS_MODELS = {
    "linear": "tf.estimator.LinearClassifier(wide, 'model')",
    "linear v1": "tf.compat.v1.estimator.LinearClassifier(wide, 'model')",
    "deep": "tf.estimator.DNNClassifier([32, 16], deep, 'model')",
    "wide and deep": (
        "tf.estimator.DNNLinearCombinedClassifier('model', linear_feature_columns=wide, "
        "dnn_feature_columns=deep, dnn_hidden_units=[32, 16])"
    ),
}


@pytest.mark.parametrize("model", where_it_is_missing(CENSUS_MODELS))
def test_a_canned_estimator_of_the_census_tutorial_trains_and_exports(model, libraries, tmp_path):
    code = CENSUS.replace("MODEL", CENSUS_MODELS[model])
    assert run(code, libraries, tmp_path).splitlines()[-1] == "True"
    assert list(tmp_path.glob("export/*/saved_model.pb"))
