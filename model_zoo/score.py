# SPDX-License-Identifier: Apache-2.0
"""Answers one request with an exported model, in a new process.

python -m model_zoo.score EXPORT_DIR < request.json

The request is {column: values}, one list entry per example. The answer has the predictions of the
model, such as "probabilities", and the times of loading and answering.
"""

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Dict, Mapping, Optional, Sequence

# TensorFlow reads this at import. Nothing but the answer may be printed.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import rec_estimator as rec

_REPEATS = 20  # requests to time


def score(export_dir: str, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Loads a SavedModel and scores the examples of a request.

    Args:
      export_dir: Folder of the SavedModel.
      request: By column name, keys [B] or [B, k] padded with -1, or numbers [B].

    Returns:
      The predictions by name, B floats each; "load_seconds"; "milliseconds", the median time of
      the request.

    Raises:
      ValueError: There is no model, or the request has other columns or shapes than the model.
    """
    start = time.perf_counter()
    try:
        model = tf.saved_model.load(export_dir)
    except OSError:
        raise ValueError(f"export_dir must hold a SavedModel, got {export_dir}") from None
    signature = model.signatures["serving_default"]
    load_seconds = time.perf_counter() - start

    wanted = signature.structured_input_signature[1]
    if set(request) != set(wanted):
        raise ValueError(
            f"request must have the columns {', '.join(sorted(wanted))}, got {sorted(request)}"
        )
    try:
        inputs = {name: tf.constant(values, wanted[name].dtype) for name, values in request.items()}
        milliseconds = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            answer = signature(**inputs)
            milliseconds.append(1e3 * (time.perf_counter() - start))
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"request must hold one list of keys or numbers per column, of one length: {reason}"
        ) from None
    return {
        **{name: scores.numpy().tolist() for name, scores in answer.items()},
        "load_seconds": load_seconds,
        "milliseconds": statistics.median(milliseconds),
        "rec_estimator": rec.__version__,
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo.score", description=__doc__.splitlines()[0]
    )
    parser.add_argument("export_dir")
    options = parser.parse_args(arguments)
    try:
        request = json.load(sys.stdin)
        if not isinstance(request, dict):
            raise ValueError(f"request must be {{column: values}}, got {type(request).__name__}")
        print(json.dumps(score(options.export_dir, request)))
    except ValueError as error:
        print(f"model_zoo.score: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
