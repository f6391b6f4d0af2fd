# SPDX-License-Identifier: Apache-2.0
"""Trains, evaluates and exports the models of the zoo, and predicts with them.

    from model_zoo import runner
    from model_zoo.runner import config

    run = config.load("shop.yaml", ["train.epochs=2"])
    metrics = runner.train(run)

`python -m model_zoo` does the same from the command line.
"""

import re
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data as data_sets
from model_zoo.data import PARTS, DataSet
from model_zoo.data.retrieval import RetrievalDataSet
from model_zoo.models import MODELS
from model_zoo.runner.build import build_estimator, user_columns, view_of
from model_zoo.runner.config import Config
from model_zoo.runner.distributed import is_in_cluster, train_task
from model_zoo.runner.evaluation import evaluate_rows, graph_hooks, warning_of
from model_zoo.runner.predictions import Row, rows_of, with_best
from model_zoo.runner.record import Record, best_checkpoint, check_data, check_model, describe
from model_zoo.runner.rounds import Rounds, latest_step
from model_zoo.runner.stop_signals import StopAtSignals


def train(
    config: Config, data: Optional[DataSet] = None, say: Callable[[str], None] = print
) -> Dict[str, Any]:
    """Trains a model, or goes on with its training, and evaluates the best checkpoint.

    In the shuffled order, each epoch ends with a validation, and the run ends after
    `validation.patience` validations without a better metric. In the order of time, the model
    predicts each window of rows before it trains on it.

    The model folder gets run.json. SIGINT and SIGTERM end the run after the running step; a run
    that finds the checkpoints of its model_dir goes on, and ends with the bits of a run that was
    not interrupted.

    Args:
      config: The configuration.
      data: Its data. None: they are loaded.
      say: Takes lines that say what happens.

    Returns:
      {part: {metric: value}} for the parts "test" and "validation" that have rows;
      in the order of time also "progressive", the mean over all windows; "steps" and the
      "best_epoch", "samples_per_second", and "rows" by table. {} in a task of a cluster that is no
      evaluator.

    Raises:
      ValueError: The configuration does not fit the data, or the folder has another run.
      Interrupted: A signal ended the run.
    """
    with tempfile.TemporaryDirectory() as scratch:
        config = config.replace(model_dir=config.model_dir or scratch)
        data = _loaded(config, data)
        check_data(str(config.model_dir), data)
        view = view_of(config, data)
        record: Optional[Record]
        if is_in_cluster():
            record = train_task(config, view)
        else:
            say(f"{config.model} on {in_words(data)}")
            record = Record(str(config.model_dir), config)
            record.data = describe(data)
            with StopAtSignals() as stop:
                Rounds(config, view, record, stop, say).run()
        if record is None:
            return {}
        record.data = describe(data)
        return _tested(config, view, record, say)


def _tested(
    config: Config, data: DataSet, record: Record, say: Callable[[str], None]
) -> Dict[str, Any]:
    """Tests and exports the best checkpoint; returns what `train` returns."""
    if data.rows("test") != 0:
        with StopAtSignals() as stop:
            record.metrics["test"] = _evaluate(config, "test", data, [stop])
        stop.check(latest_step(str(config.model_dir)))
        warning = warning_of(record.metrics["test"], data)
        if warning:
            say(f"test: {warning}")
    best, in_order = record.best, config.train.order == "time"
    if best and best.metrics and not in_order:
        record.metrics["validation"] = dict(best.metrics)
    record.save("done")
    if config.export.folder:
        say(f"exported to {_export(config, config.export.folder, data)}")
    windows = [each.metrics for each in record.rounds] if in_order else []
    progressive = {
        name: float(np.mean([each[name] for each in windows])) for name in (windows or [{}])[0]
    }
    return {
        **record.metrics,
        **({"progressive": progressive} if progressive else {}),
        "steps": latest_step(str(config.model_dir)),
        "best_epoch": best.epoch if best else record.epoch,
        "samples_per_second": record.samples_per_second,
        "rows": table_rows(str(best_checkpoint(str(config.model_dir)))),
    }


def evaluate(
    config: Config, part: str = "test", data: Optional[DataSet] = None
) -> Dict[str, float]:
    """Evaluates the best checkpoint of a model.

    Args:
      config: The configuration; it has a model_dir.
      part: "train", "validation" or "test".
      data: Its data. None: they are loaded.

    Returns:
      The metrics of the model by name.

    Raises:
      ValueError: The folder has no checkpoint, or that of another model or of other columns.
    """
    return _evaluate(config, part, view_of(config, _of_trained(config, data)))


def _evaluate(
    config: Config, part: str, view: DataSet, hooks: Sequence[tf.train.SessionRunHook] = ()
) -> Dict[str, float]:
    model_dir = _model_dir(config)
    return evaluate_rows(
        build_estimator(config, view, model_dir),
        view.input_fn(part, config.validation.batch_size),
        name=part,
        checkpoint=best_checkpoint(model_dir),
        hooks=[*graph_hooks(config), *hooks],
    )


def predict(
    config: Config, part: str = "test", data: Optional[DataSet] = None, k: int = 10
) -> Iterator[Row]:
    """Predicts rows with the best checkpoint of a model.

    Rows come as the data have them without a seed. A schema may order them by time.

    Args:
      config: The configuration; it has a model_dir.
      part: "train", "validation" or "test".
      data: Its data. None: they are loaded.
      k: Of two towers, the number of items for each row.

    Yields:
      "file" and "line", the place of a row; in files without lines "record" or "row" in place of
      "line", and only "row" of rows of no file. Its user and its item as the data have them, and
      its labels, by their names. The predictions by name; of two towers, which predict the rows
      whose first label is 1: "best", the ids of the k best items, and "score" of each.

    Raises:
      ValueError: The folder has no checkpoint, or that of another model or of other columns; or k
        is below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    data = _of_trained(config, data)
    model_dir, view, size = _model_dir(config), view_of(config, data), config.validation.batch_size
    rows = rows_of(data, part, size)
    predictions = build_estimator(config, view, model_dir).predict(
        view.input_fn(part, size),
        hooks=graph_hooks(config),
        checkpoint_path=best_checkpoint(model_dir),
    )
    if isinstance(view, RetrievalDataSet):
        yield from with_best(rows, predictions, data, view, k)
    else:
        yield from ({**row, **found} for row, found in zip(rows, predictions))


def export(config: Config, folder: Optional[str] = None, data: Optional[DataSet] = None) -> str:
    """Writes the best checkpoint of a model as a SavedModel.

    Args:
      config: The configuration; it has a model_dir.
      folder: Gets a new folder with the SavedModel. None: `export.folder`.
      data: Its data. None: they are loaded.

    Returns:
      The folder of the SavedModel.

    Raises:
      ValueError: There is no folder, or the model_dir has no checkpoint, or that of another model
        or of other columns.
    """
    folder = folder or config.export.folder
    if not folder:
        raise ValueError("export.folder must name a folder, got none")
    return _export(config, folder, view_of(config, _of_trained(config, data)))


def _export(config: Config, folder: str, view: DataSet) -> str:
    model_dir = _model_dir(config)
    path = build_estimator(config, view, model_dir).export_saved_model(
        folder,
        receiver_fn(config, view),
        checkpoint_path=best_checkpoint(model_dir),
        portable=config.export.kind == "portable",
        row_dtype=config.export.row_dtype,
    )
    return str(tf.compat.as_str(path))


def receiver_fn(config: Config, data: DataSet) -> Callable[[], rec.ServingInputReceiver]:
    """Returns the receiver of an export of the kind that the configuration names.

    Raises:
      ValueError: A model whose requests name users and candidates apart is to be compressed.
    """
    if config.export.kind != "compressed":
        return data.receiver_fn()
    if hasattr(MODELS[config.model], "view"):
        raise ValueError(
            f"export.kind must be native or portable with {config.model}, got 'compressed'; its "
            "requests have each user and each candidate once already"
        )
    users = user_columns(data)
    inputs: Dict[bool, List[Any]] = {True: [], False: []}
    for column in data.columns:
        spec = (
            tf.TensorSpec([None], tf.float32, column.name)
            if column.kind == "number"
            else rec.EmbeddingFeature(column.name, dim=1)  # Only its name and type are used.
        )
        inputs[column.name in users].append(spec)
    return rec.compressed_serving_input_receiver_fn(user=inputs[True], item=inputs[False])


def load_data(config: Config) -> DataSet:
    """Loads the data of a configuration.

    Raises:
      ValueError: The data set is not known, or its files are wrong.
      model_zoo.data.DataUnavailableError: The data are not here and the download failed.
    """
    return data_sets.load(config.data.name, config.data.folder, config.data.cache_dir)


def table_rows(checkpoint: str) -> Dict[str, int]:
    """Returns the number of rows of each table in a checkpoint."""
    return {table: sum(rows) for table, rows in table_parts(checkpoint).items()}


def table_parts(checkpoint: str) -> Dict[str, List[int]]:
    """Returns the numbers of rows of each table in a checkpoint, one for each of its parts."""
    suffix = "-keys"
    found = {
        name[: -len(suffix)]: shape[0]
        for name, shape in tf.train.list_variables(checkpoint)
        if name.endswith(suffix)
    }
    rows: Dict[str, List[int]] = {}
    for name, count in found.items():
        if name.rpartition("/")[0] not in found:  # Slots have the keys of their table again.
            rows.setdefault(re.sub(r"/part_\d+$", "", name), []).append(count)
    return rows


def _loaded(config: Config, data: Optional[DataSet]) -> DataSet:
    data = data or load_data(config)
    if config.train.with_validation and data.rows("validation") != 0:
        data = data.without_validation()
    return data


def _of_trained(config: Config, data: Optional[DataSet]) -> DataSet:
    """The data, if the model of the folder is that of the configuration and has their columns."""
    model_dir = _model_dir(config)
    check_model(model_dir, config)
    data = _loaded(config, data)
    check_data(model_dir, data)
    return data


def _model_dir(config: Config) -> str:
    if config.model_dir is None or best_checkpoint(config.model_dir) is None:
        raise ValueError(
            f"model_dir must be a folder with a trained model, got {config.model_dir}; train it "
            "first"
        )
    return config.model_dir


def in_words(data: DataSet) -> str:
    """Returns a line about a data set: its rows and its owner."""
    counts = [(part, data.rows(part)) for part in PARTS]
    rows = ", ".join(f"{count:,} {part} rows" for part, count in counts if count)
    return "\n".join(filter(None, [f"{data.name}: {rows}" if rows else data.name, data.credit]))
