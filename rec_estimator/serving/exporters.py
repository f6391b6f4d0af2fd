# SPDX-License-Identifier: Apache-2.0
"""Exporters of train_and_evaluate: TensorFlow's, with portable and refreshable SavedModels.

For a compressed SavedModel, give them the receiver that ``compressed_serving_input_receiver_fn``
returns.
"""

import json
import os
import uuid
from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as stock
from rec_estimator.serving.portable import ExportForm, PortableExports
from rec_estimator.serving.row_exports import RowSample

# The result of an evaluation, by the names of the metrics.
_Result = Dict[str, Any]

# The file with the result of the best model, beside the exports. Servers ignore it: a folder with a
# model has a number as its name.
_RECORD = "best_eval_result.json"


class LatestExporter(stock.LatestExporter):
    """Exports the model after each evaluation, and keeps the newest exports.

    Args:
      *args, **kwargs: Those of ``tf.estimator.LatestExporter``: name, serving_input_receiver_fn,
        assets_extra, as_text, exports_to_keep.
      portable: As in ``RecEstimator.export_saved_model``: whether the SavedModels contain
        TensorFlow's own ops only. Needs a RecEstimator.
      refreshable, refresh_folder: As there: whether deltas bring the SavedModels up to date, and
        the folder of the deltas. Needs a RecEstimator.
      row_dtype, row_sample: As there: the type of their rows, and examples for the report. Needs a
        RecEstimator.

    Raises:
      ValueError: exports_to_keep is below 1; in an export, as ``export_saved_model``.
      TypeError: In an export: portable, refreshable or row_dtype is given, and the estimator is not
        a RecEstimator.
    """

    def __init__(
        self,
        *args: Any,
        portable: bool = False,
        refreshable: bool = False,
        refresh_folder: Optional[str] = None,
        row_dtype: Optional[str] = None,
        row_sample: Optional[RowSample] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._form = ExportForm(portable, refreshable, refresh_folder, row_dtype, row_sample)

    def export(self, estimator: stock.Estimator, *args: Any, **kwargs: Any) -> Optional[bytes]:
        """Exports the model, as TensorFlow calls it; returns the folder of the SavedModel."""
        return super().export(_exporting(estimator, self._form), *args, **kwargs)


class FinalExporter(stock.FinalExporter):
    """Exports the model once, when training has ended.

    Args:
      *args, **kwargs: Those of ``tf.estimator.FinalExporter``: name, serving_input_receiver_fn,
        assets_extra, as_text.
      portable, refreshable, refresh_folder, row_dtype, row_sample: As in LatestExporter.

    Raises:
      ValueError, TypeError: In an export: as LatestExporter.
    """

    def __init__(
        self,
        *args: Any,
        portable: bool = False,
        refreshable: bool = False,
        refresh_folder: Optional[str] = None,
        row_dtype: Optional[str] = None,
        row_sample: Optional[RowSample] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._form = ExportForm(portable, refreshable, refresh_folder, row_dtype, row_sample)

    def export(self, estimator: stock.Estimator, *args: Any, **kwargs: Any) -> Optional[bytes]:
        """Exports the model if training has ended; returns the folder of the SavedModel."""
        return super().export(_exporting(estimator, self._form), *args, **kwargs)


class BestExporter(stock.BestExporter):
    """Exports each model that is better than all before it, also those of earlier runs.

    TensorFlow's exporter exports the first model after a restart, better or not. This one keeps the
    result of the best model in a file beside the exports. A folder with exports and without this
    file is one of TensorFlow's exporter: then the best result is that of the event files, except
    those of the same step.

    Args:
      name: The name of the folder of the exports, in ``<model_dir>/export``.
      serving_input_receiver_fn: Makes the receiver.
      event_file_pattern: The event files of evaluations, relative to model_dir. None: none.
      compare_fn: A function of best_eval_result and current_eval_result that returns whether the
        current one is better. None: whether its loss is smaller. From a file, a result has the
        numbers only.
      assets_extra: Files to copy into ``assets.extra``, {destination: source}.
      as_text: Whether to write the graph as text.
      exports_to_keep: The number of newest exports to keep; None: all.
      portable, refreshable, refresh_folder, row_dtype, row_sample: As in LatestExporter.

    Raises:
      ValueError: exports_to_keep is below 1, or compare_fn has other arguments. In an export: the
        record is not readable; or as LatestExporter.
      TypeError: In an export: as LatestExporter.

    Example:
      >>> def receiver_fn():
      ...     user = tf.placeholder(tf.int64, [None])
      ...     return rec.export.ServingInputReceiver({"user": user}, {"user": user})
      >>> exporter = rec.BestExporter("best", receiver_fn, portable=True)
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Optional[Callable[[], Any]] = None,
        event_file_pattern: Optional[str] = "eval/*.tfevents.*",
        compare_fn: Optional[Callable[..., bool]] = None,
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        exports_to_keep: Optional[int] = 5,
        *,
        portable: bool = False,
        refreshable: bool = False,
        refresh_folder: Optional[str] = None,
        row_dtype: Optional[str] = None,
        row_sample: Optional[RowSample] = None,
    ) -> None:
        compare_fn = compare_fn or _has_smaller_loss
        # Checks the arguments. Its own choice of exports is not used.
        super().__init__(name, event_file_pattern=event_file_pattern, compare_fn=compare_fn)
        self._events = event_file_pattern
        self._is_better = compare_fn
        self._exporter = LatestExporter(
            name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep,
            portable=portable, refreshable=refreshable, refresh_folder=refresh_folder,
            row_dtype=row_dtype, row_sample=row_sample,
        )  # fmt: skip

    def export(
        self,
        estimator: stock.Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: _Result,
        is_the_final_export: bool,
    ) -> Optional[bytes]:
        """Exports the model if it is the best one; returns the folder of the SavedModel, or None.

        Args:
          estimator: The estimator.
          export_path: The folder of the exports.
          checkpoint_path: The checkpoint that was evaluated.
          eval_result: The result of its evaluation.
          is_the_final_export: Whether training has ended.
        """
        best = _recorded(export_path)
        if best is None and self._events is not None and _has_exports(export_path):
            pattern = os.path.join(estimator.model_dir, self._events)
            best = self._best_of_events(pattern, eval_result.get(tf.GraphKeys.GLOBAL_STEP))
        if best is not None and not self._is_better(
            best_eval_result=best, current_eval_result=eval_result
        ):
            return None
        exported = self._exporter.export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )
        _record(export_path, eval_result)
        return exported

    def _best_of_events(self, pattern: str, step: Optional[int]) -> Optional[_Result]:
        """The best result of event files, less those of a step, which are the current ones."""
        best: Optional[_Result] = None
        for file in sorted(tf.io.gfile.glob(pattern)):
            for event in tf.train.summary_iterator(file):
                result = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if not result or event.step == step:
                    continue
                if best is None or self._is_better(
                    best_eval_result=best, current_eval_result=result
                ):
                    best = result
        return best


class _FormedEstimator:
    """What exporters use of an estimator; its exports have a form."""

    def __init__(self, estimator: PortableExports, form: ExportForm) -> None:
        self._estimator = estimator
        self._form = form
        self.model_dir = estimator.model_dir

    def export_saved_model(self, *args: Any, **kwargs: Any) -> bytes:
        return self._estimator.export_saved_model(
            *args,
            portable=self._form.portable,
            refreshable=self._form.refreshable,
            refresh_folder=self._form.refresh_folder,
            row_dtype=self._form.row_dtype,
            row_sample=self._form.row_sample,
            **kwargs,
        )


def _exporting(estimator: stock.Estimator, form: ExportForm) -> Any:
    if not any(form):
        return estimator
    if not isinstance(estimator, PortableExports):
        name, value = next(item for item in form._asdict().items() if item[1])
        raise TypeError(
            f"estimator must be a RecEstimator with {name}={value!r}, got {estimator!r}; leave "
            f"{name} out"
        )
    return _FormedEstimator(estimator, form)


def _has_smaller_loss(best_eval_result: _Result, current_eval_result: _Result) -> bool:
    for name, result in (("best", best_eval_result), ("current", current_eval_result)):
        if not result or "loss" not in result:
            raise ValueError(
                f"{name}_eval_result must have a loss, got {result}; pass a compare_fn of another "
                "metric"
            )
    return best_eval_result["loss"] > current_eval_result["loss"]


def _has_exports(export_path: str) -> bool:
    if not tf.io.gfile.isdir(export_path):
        return False
    return any(name.strip("/").isdigit() for name in tf.io.gfile.listdir(export_path))


def _recorded(export_path: str) -> Optional[_Result]:
    """The result of the best model of all runs; None if there is no record."""
    path = os.path.join(export_path, _RECORD)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise ValueError(
            f"{path} must be the result of an evaluation as JSON, got {text[:100]!r}; delete it to "
            "export the next model whatever its result"
        )
    return result


def _record(export_path: str, result: _Result) -> None:
    """Writes the numbers of a result, whole or not at all."""
    numbers = {
        name: np.asarray(value).item()
        for name, value in result.items()
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number)
    }
    path = os.path.join(export_path, _RECORD)
    unfinished = f"{path}.{uuid.uuid4().hex}"
    with tf.io.gfile.GFile(unfinished, "w") as file:
        file.write(json.dumps(numbers, indent=2, sort_keys=True) + "\n")
    tf.io.gfile.rename(unfinished, path, overwrite=True)
