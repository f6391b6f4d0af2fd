# SPDX-License-Identifier: Apache-2.0
"""Sample-aware graph compression: what depends on the user alone is computed once per user.

A request has one row of user features per user and one row of item features per candidate;
``item_size`` says how many candidates each user has. A model is written for flat samples, with one
row per candidate in every feature. After model_fn has built it, this pass runs the part that
depends on users alone on the users' rows, and repeats rows where that part meets the candidates.
The outputs are those of the model as written.
"""

from typing import Any

from rec_estimator._tensorflow import estimator as _export
from rec_estimator.sample_compression.declare_inputs import (
    SampleCompression,
    enable_sample_awared_graph_compression,
    with_open_rows,
)
from rec_estimator.sample_compression.report.report import CompressionReport, report
from rec_estimator.sample_compression.state import compress, current_state

__all__ = [
    "CompressionReport",
    "SampleCompression",
    "compress",
    "compress_spec",
    "compression_report",
    "enable_sample_awared_graph_compression",
    "use_stock_ops",
    "with_open_rows",
]


def use_stock_ops() -> None:
    """Makes the pass add ops of TensorFlow only, if compression is enabled in the default graph.

    Portable exports call it before the model is compressed. Results are the same, but the model is
    slower. Rows of kernels become local variables, which must be initialized after the restore.
    """
    state = current_state()
    if state is not None:
        state.stock_ops = True


def compress_spec(spec: Any) -> Any:
    """Compresses the model of an EstimatorSpec, if compression is enabled in the default graph.

    Args:
      spec: An EstimatorSpec of any mode.

    Returns:
      The spec, in which every tensor has one row per candidate.
    """
    if current_state() is None:
        return spec
    outputs = {
        name: _compressed_output(output) for name, output in (spec.export_outputs or {}).items()
    }
    return spec._replace(
        predictions=compress(spec.predictions),
        loss=compress(spec.loss),
        eval_metric_ops=compress(spec.eval_metric_ops),
        export_outputs=outputs or None,
    )


def _compressed_output(output: Any) -> Any:
    if isinstance(output, _export.PredictOutput):
        return _export.PredictOutput(compress(output.outputs))
    if isinstance(output, _export.ClassificationOutput):
        return _export.ClassificationOutput(compress(output.scores), compress(output.classes))
    if isinstance(output, _export.RegressionOutput):
        return _export.RegressionOutput(compress(output.value))
    raise TypeError(
        "export_outputs must be PredictOutput, ClassificationOutput or RegressionOutput, got "
        f"{output!r}"
    )


def compression_report(users: int = 1, items: int = 500) -> CompressionReport:
    """Reports what compression did to the default graph.

    Args:
      users: Number of users (B) in the request that FLOPs are counted for.
      items: Number of candidates (N) in that request.

    Returns:
      A CompressionReport. ``str()`` gives the text that is logged.

    Raises:
      ValueError: The graph is not compressed.
    """
    state = current_state()
    if state is None or state.rewrite is None:
        raise ValueError(
            "the default graph must be compressed before compression_report, got one that is not; "
            "export the model, or call rec_estimator.graph_optimizer.compress"
        )
    return report(state.rewrite.records, users, items)
