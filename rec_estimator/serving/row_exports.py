# SPDX-License-Identifier: Apache-2.0
"""Exports whose rows have fewer bits than those of the training, and what that changes.

The report is a file of the SavedModel, ``assets.extra/row_report.json``:

    row_dtype           "int8", "float16" or "bfloat16"
    row_bytes_before    bytes of the values of all rows as float32
    row_bytes_after     the same in the SavedModel, with scales and offsets
    examples            number of examples of the sample; this and the next only with a sample
    outputs             {name: {"largest_change": …, "mean_change": …}} of the absolute differences
    auc_before, auc_after   only with labels
"""

import dataclasses
import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, format_bytes
from rec_estimator.checkpoint.format.stored_tables import SCALE_OFFSET, find_tables
from rec_estimator.metrics.exact_auc import auc
from rec_estimator.serving.predictor import load_predictor
from rec_estimator.table.row_dtype import as_row_dtype, exporting_rows_as

REPORT = "row_report.json"

_Arrays = Dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RowSample:
    """Examples on which an export with ``row_dtype=`` is compared with one that keeps all bits.

    Args:
      features: {name: value} for each input of the model, as a predictor takes them: a batch of
        some thousand examples that are like those of the users.
      labels: 0 or 1 for each example, for the AUC. None: there is no AUC.
      output: The output of the model that predicts the labels. None: the only output.

    Example:
      >>> sample = rec.export.RowSample({"user": [3, 7]}, labels=[1, 0], output="probability")
      >>> # estimator.export_saved_model(
      >>> #     "exported", receiver_fn, row_dtype="int8", row_sample=sample)
    """

    features: Mapping[str, Any]
    labels: Optional[Any] = None
    output: Optional[str] = None


def with_rows_as(
    row_dtype: str, sample: Optional[RowSample], write: Callable[[str], str]
) -> Callable[[str], str]:
    """Returns a function that exports a SavedModel with rows of fewer bits, and a report.

    Args:
      row_dtype: One of ROW_DTYPES.
      sample: What to compare; None: the report has only the bytes.
      write: Exports a SavedModel into a new folder of the given folder, and returns the new folder.

    Raises:
      ValueError: row_dtype is something else. The function raises it, too, if the sample does not
        fit the model.
    """
    dtype = as_row_dtype(row_dtype)

    def write_narrow(folder: str) -> str:
        before = None if sample is None else _outputs_with_all_bits(write, folder, sample)
        with exporting_rows_as(dtype):
            made = write(folder)
        report = _report_of_bytes(row_dtype, made)
        if sample is not None and before is not None:
            report.update(_report_of_outputs(before, _outputs(made, sample), sample))
        _write(report, made)
        return made

    return write_narrow


def _outputs_with_all_bits(write: Callable[[str], str], folder: str, sample: RowSample) -> _Arrays:
    wide = write(os.path.join(folder, "wide"))
    outputs = _outputs(wide, sample)
    tf.io.gfile.rmtree(wide)  # A large model would take its room three times.
    return outputs


def _outputs(folder: str, sample: RowSample) -> _Arrays:
    with load_predictor(folder) as predict:
        return predict(sample.features)


def _report_of_bytes(row_dtype: str, folder: str) -> Dict[str, Any]:
    bundle = Bundle(os.path.join(folder, "variables", "variables"))
    before = after = 0
    for table in find_tables(bundle).values():
        for shard in table.shards:
            values = bundle.tensors[f"{shard}-values"]
            scales = bundle.tensors.get(shard + SCALE_OFFSET)
            rows, dim = values.shape
            before += rows * dim * tf.float32.size
            after += values.nbytes + (0 if scales is None else scales.nbytes)
    name = tf.as_dtype(row_dtype).name
    return {"row_dtype": name, "row_bytes_before": before, "row_bytes_after": after}


def _report_of_outputs(before: _Arrays, after: _Arrays, sample: RowSample) -> Dict[str, Any]:
    changes = {
        name: np.abs(after[name].astype(np.float64) - before[name])
        for name in before
        if np.issubdtype(before[name].dtype, np.floating)
    }
    report: Dict[str, Any] = {
        "examples": max((len(change) for change in changes.values() if change.ndim), default=1),
        "outputs": {
            name: {
                "largest_change": float(change.max(initial=0.0)),
                "mean_change": float(change.mean()) if change.size else 0.0,
            }
            for name, change in sorted(changes.items())
        },
    }
    if sample.labels is not None:
        name = _output_of_labels(sorted(changes), sample)
        report["auc_before"], report["auc_after"] = (
            _auc(np.asarray(sample.labels), outputs[name]) for outputs in (before, after)
        )
    return report


def _output_of_labels(names: List[str], sample: RowSample) -> str:
    name = names[0] if sample.output is None and len(names) == 1 else sample.output
    if name is None or name not in names:
        raise ValueError(
            f"output of row_sample must be one of {names}, the outputs of the model that are "
            f"floats, got {sample.output!r}; it predicts the labels"
        )
    return name


def _auc(labels: np.ndarray, scores: np.ndarray) -> float:
    labels, scores = labels.reshape(-1), scores.reshape(-1)
    if labels.shape != scores.shape:
        raise ValueError(
            f"labels of row_sample must be one for each example, got {len(labels)} for "
            f"{len(scores)} predictions"
        )
    with tf.Graph().as_default(), tf.Session() as session:
        value, update = auc(labels.astype(np.float32), scores)
        session.run(tf.local_variables_initializer())
        session.run(update)
        return float(session.run(value))


def _write(report: Dict[str, Any], folder: str) -> None:
    extra = os.path.join(folder, "assets.extra")
    tf.io.gfile.makedirs(extra)
    with tf.io.gfile.GFile(os.path.join(extra, REPORT), "w") as file:
        file.write(json.dumps(report, indent=2) + "\n")
    changes = [
        f"{name} changes by at most {change['largest_change']:.3g}"
        for name, change in report.get("outputs", {}).items()
    ]
    if "auc_before" in report:
        changes.append(f"AUC {report['auc_before']:.5f} becomes {report['auc_after']:.5f}")
    tf.logging.info(
        "Rows are exported as %s: %s instead of %s%s.",
        report["row_dtype"],
        format_bytes(report["row_bytes_after"]),
        format_bytes(report["row_bytes_before"]),
        "".join(f"; {change}" for change in changes),
    )
