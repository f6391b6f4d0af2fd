# SPDX-License-Identifier: Apache-2.0
"""Answers one request with an exported model, in a new process.

python -m model_zoo.score EXPORT_DIR < request.json

The request is {column: keys}, one list entry per example. The answer has "probabilities" and the
times of loading and answering.
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
      request: Keys by column name: [B], or [B, k] padded with -1.

    Returns:
      "probabilities": B floats; "load_seconds"; "milliseconds", the median time of the request.

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
        inputs = {name: tf.constant(keys, tf.int64) for name, keys in request.items()}
        milliseconds = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            probabilities = signature(**inputs)["probabilities"].numpy()
            milliseconds.append(1e3 * (time.perf_counter() - start))
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"request must hold one list of int64 keys per column, of one length: {reason}"
        ) from None
    return {
        "probabilities": [float(probability) for probability in probabilities],
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
            raise ValueError(f"request must be {{column: keys}}, got {type(request).__name__}")
        print(json.dumps(score(options.export_dir, request)))
    except ValueError as error:
        print(f"model_zoo.score: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
