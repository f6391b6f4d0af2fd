# SPDX-License-Identifier: Apache-2.0
"""Trains a model of the zoo, evaluates it and exports it.

python -m model_zoo.run din --data movielens_100k --export_dir /tmp/din
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from typing import Any, Callable, Dict, Optional, Sequence

# TensorFlow reads this at import. Its warnings about missing GPUs would hide the progress line.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, models
from model_zoo.minimize import Training

# A Task has one label, and no candidates.
_NOT_HERE = ("neumf", "simple_multitask", "mmoe", "ple", "esmm", "dbmtl", "dssm")
MODELS = {name: each for name, each in models.MODELS.items() if name not in _NOT_HERE}

_EVALUATION_BATCH = 4096
_SETTINGS_FILE = "model_zoo.json"  # in model_dir: which model its checkpoints are of


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a training run; README.md shows the results of the defaults.

    Attributes:
      embedding_dim: Floats per row.
      hidden_units: Units of the hidden layers.
      learning_rate: Learning rate of LazyAdam.
      batch_size: Examples per step.
      epochs: Passes over the training rows if steps is None.
      steps: Number of training steps; None: epochs decides.
      seed: Seed of initial values and of the order of rows.

    Raises:
      ValueError: A number is out of range.
    """

    embedding_dim: int = 16
    hidden_units: Sequence[int] = (128, 64)
    learning_rate: float = 1e-3
    batch_size: int = 512
    epochs: int = 4
    steps: Optional[int] = None
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("embedding_dim", 2), ("batch_size", 1), ("epochs", 1), ("steps", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not self.hidden_units or min(self.hidden_units) < 1:
            raise ValueError(f"hidden_units must be numbers from 1 on, got {self.hidden_units}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be from 0 to 2**31 - 1, got {self.seed}")

    def steps_for(self, rows: int) -> int:
        """Returns the number of training steps for a number of training rows."""
        return self.steps or max(1, self.epochs * rows // self.batch_size)


def build_estimator(
    model: str,
    task: data.Task,
    settings: Settings,
    model_dir: Optional[str] = None,
    initializer: Optional[Callable[..., tf.Tensor]] = None,
    config: Optional[rec.RunConfig] = None,
) -> rec.RecEstimator:
    """Returns an Estimator with a model of the zoo for a task.

    Args:
      model: A key of MODELS.
      task: The task; its columns are the features of the model.
      settings: The settings of the model.
      model_dir: Folder for checkpoints. None: a temporary folder.
      initializer: Of the rows of all tables. None: the default of EmbeddingFeature.
      config: None: one with the seed of the settings.

    Raises:
      ValueError: The model is unknown.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    adam = {"name": "adam", "learning_rate": settings.learning_rate}
    params = {
        **MODELS[model].DEFAULTS,
        "dim": settings.embedding_dim,
        "hidden_units": tuple(settings.hidden_units),
        "columns": task.columns,
        "labels": ("label",),
        "training": Training(optimizer=adam),
    }
    features = MODELS[model].features(task, params)
    if initializer is not None:
        features = [dataclasses.replace(each, initializer=initializer) for each in features]
    return rec.RecEstimator(
        MODELS[model].model_fn,
        model_dir=model_dir,
        config=config or rec.RunConfig(tf_random_seed=settings.seed, save_summary_steps=1000),
        params=params,
        embedding_features=features,
    )


def train_and_test(
    estimator: rec.RecEstimator, task: data.Task, settings: Settings
) -> Dict[str, Any]:
    """Trains, shows progress, and returns the metrics on the test rows."""
    done = 0
    if estimator.latest_checkpoint():
        done = int(estimator.get_variable_value("global_step"))
    train_fn = rec.inputs.numpy_input_fn(
        task.train,
        task.train_labels,
        batch_size=settings.batch_size,
        shuffle=True,
        # A training that goes on reads the rows in an order of its own.
        seed=settings.seed + done,
        num_epochs=None,
    )
    last_step = done + settings.steps_for(len(task.train_labels))
    progress = rec.ProgressHook(last_step, settings.batch_size, metrics=("auc", "log_loss"))
    estimator.train(train_fn, max_steps=last_step, hooks=[progress])
    return estimator.evaluate(test_input_fn(task), hooks=[progress])


def test_input_fn(task: data.Task) -> Callable[[], tf.data.Dataset]:
    """Returns the input_fn of the test rows and labels, in order, one pass."""
    return rec.inputs.numpy_input_fn(task.test, task.test_labels, batch_size=_EVALUATION_BATCH)


def serving_input_receiver_fn(
    columns: Sequence[data.Column],
) -> Callable[[], rec.ServingInputReceiver]:
    """Returns the receiver of an export: int64 [B], or [B, k] padded with -1, by column name."""

    def receiver() -> rec.ServingInputReceiver:
        placeholders = {
            column.name: tf.placeholder(
                tf.int64, [None] if column.max_length == 1 else [None, None], name=column.name
            )
            for column in columns
        }
        return rec.ServingInputReceiver(placeholders, placeholders)

    return receiver


def export(estimator: rec.RecEstimator, task: data.Task, export_dir: str) -> str:
    """Writes a SavedModel to a new folder in `export_dir`; returns that folder."""
    receiver = serving_input_receiver_fn(task.columns)
    return tf.compat.as_str(estimator.export_saved_model(export_dir, receiver))


def _check_model_dir(model_dir: str, model: str, task: data.Task, settings: Settings) -> None:
    """Refuses checkpoints of another model; TensorFlow's error would not say why."""
    wanted = {
        "model": model,
        "data": task.name,
        "embedding_dim": settings.embedding_dim,
        "hidden_units": list(settings.hidden_units),
    }
    folder = pathlib.Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / _SETTINGS_FILE
    if not file.exists():
        file.write_text(json.dumps(wanted, indent=2) + "\n")
        return
    found = json.loads(file.read_text())
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"model_dir must hold a model with {name} {value}, got {found.get(name)} in "
                f"{model_dir}; choose another folder or the same {name}"
            )


def parse_arguments(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Parses the command line; exits with a message if it is invalid."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo.run", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("model", choices=MODELS)
    add("--data", choices=data.DATA_SETS, default="movielens_100k", help="default: %(default)s")
    add("--data_path", metavar="FILE", help="CSV file, for online_retail")
    add("--cache_dir", metavar="DIR", help="folder for downloaded data")
    add("--steps", type=int, help="training steps (default: --epochs decides)")
    add("--epochs", type=int, default=defaults.epochs, help="default: %(default)s")
    add("--batch_size", type=int, default=defaults.batch_size, help="default: %(default)s")
    add("--learning_rate", type=float, default=defaults.learning_rate, help="default: %(default)s")
    add("--embedding_dim", type=int, default=defaults.embedding_dim, help="default: %(default)s")
    add(
        "--hidden_units",
        type=int,
        nargs="+",
        default=defaults.hidden_units,
        help=f"default: {' '.join(map(str, defaults.hidden_units))}",
    )
    add("--seed", type=int, default=defaults.seed, help="default: %(default)s")
    add("--model_dir", metavar="DIR", help="checkpoints; training continues from the last one")
    add("--export_dir", metavar="DIR", help="folder for a SavedModel (default: none is written)")
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit status."""
    options = parse_arguments(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)
    names = [field.name for field in dataclasses.fields(Settings)]
    try:
        settings = Settings(**{name: getattr(options, name) for name in names})
        task = data.load_task(
            options.data, data_path=options.data_path, cache_dir=options.cache_dir
        )
        with tempfile.TemporaryDirectory() as scratch:
            model_dir = options.model_dir or scratch
            _check_model_dir(model_dir, options.model, task, settings)
            if options.export_dir:  # fails before training, not after it
                os.makedirs(options.export_dir, exist_ok=True)
            _run(options, task, settings, model_dir)
    except (data.DataUnavailableError, OSError, ValueError) as error:
        print(f"model_zoo.run: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace, task: data.Task, settings: Settings, model_dir: str) -> None:
    print(task.credit)
    print(f"{task.name}: {len(task.train_labels):,} training rows, {len(task.test_labels):,} test")
    estimator = build_estimator(options.model, task, settings, model_dir)
    metrics = train_and_test(estimator, task, settings)
    attainable = "" if task.attainable_auc is None else f" (attainable {task.attainable_auc:.4f})"
    print(
        f"test AUC {metrics['auc']:.4f}{attainable}, log loss {metrics['log_loss']:.4f} at step "
        f"{metrics['global_step']:,}"
    )
    if options.export_dir:
        print(f"exported to {export(estimator, task, options.export_dir)}")


if __name__ == "__main__":
    sys.exit(main())
