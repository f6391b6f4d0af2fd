# SPDX-License-Identifier: Apache-2.0
"""Compares the quality of models by the type of their vectors, over several seeds.

    python -m benchmarks.compare_row_dtypes --runs FOLDER [--models wide_and_deep din]
        [--seeds 1 2 3 4 5] [--output FILE.json]

The models of the zoo train on MovieLens-100k as in compare_zoo.py, with each of SETTINGS and each
of ROWS. Steps of 16-bit tables round stochastically. "bfloat16, to the nearest" shows what the
usual rounding does: its tables are float32, and after each step all rows are rounded as tf.cast
does. Only the first step of a key reads a vector that was not rounded. Finished runs are kept in
--runs; the same command goes on with the others.
"""

from __future__ import annotations

import dataclasses
import pathlib
import types
from typing import Any, Dict, List, Sequence

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from benchmarks import result_file
from model_zoo.models import MODELS
from model_zoo.runner import commands, compare, comparison_table, config

DATA = "movielens_100k"
NEAREST = "bfloat16, to the nearest"
ROWS = ("float32", "bfloat16", "float16", NEAREST)
# "usual" are those of compare_zoo.py. With "slow", most changes of an element are less than half
# the distance of its two neighbours in bfloat16, as they also are at the end of a decaying rate.
SETTINGS: Dict[str, List[str]] = {
    "usual": ["train.epochs=4"],
    "slow": ["train.epochs=8", "train.table_optimizer={name: adam, learning_rate: 0.0001}"],
}


class RoundRows(tf.train.SessionRunHook):
    """Rounds all rows of float32 tables to bfloat16 after each step, to the nearest.

    Args:
      tables: The tables.
    """

    def __init__(self, tables: Sequence[rec.EmbeddingTable]) -> None:
        self._tables = tables

    def begin(self) -> None:
        """Builds the op."""
        self._round = tf.group([round_rows(table) for table in self._tables])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Rounds."""
        del run_values
        run_context.session.run(self._round)


def round_rows(table: rec.EmbeddingTable) -> tf.Operation:
    """Returns the op that rounds the rows of a float32 table to bfloat16, to the nearest.

    A step of gradient descent subtracts the difference, which leaves the slots as they are. The
    result is exact: both subtractions are of numbers within a factor of 2.
    """
    found = table.export()
    nearest = tf.cast(tf.cast(found.values, tf.bfloat16), tf.float32)
    gen = rec._ops.gen
    reservation, _ = gen.rec_estimator_tables_reserve(
        [table.handle],
        [found.keys],
        [tf.zeros([0], tf.int64)],
        rule="GradientDescent",
        slot_names=[],
        slot_widths=[],
        slot_initials=[],
    )
    difference = found.values - nearest
    no_step = tf.constant(-1, tf.int64)
    return gen.rec_estimator_tables_apply(reservation, [difference], no_step, [tf.constant(1.0)])


def with_rows(model: str, rows: str) -> types.ModuleType:
    """A model of the zoo whose tables have vectors of one of ROWS, as a module of the zoo."""
    module = MODELS[model]
    value_dtype = tf.float32 if rows == NEAREST else tf.as_dtype(rows)

    def features(data: Any, params: Any) -> List[rec.EmbeddingFeature]:
        declared = module.features(data, params)
        return [dataclasses.replace(each, value_dtype=value_dtype) for each in declared]

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> rec.EstimatorSpec:
        spec = module.model_fn(features, labels, mode, params)
        if rows != NEAREST or mode != rec.ModeKeys.TRAIN:
            return spec
        rounding = RoundRows(tf.get_collection("embedding_variables"))
        return spec._replace(training_hooks=[*spec.training_hooks, rounding])

    changed = types.ModuleType(f"{module.__name__}, {rows}")
    vars(changed).update(DEFAULTS=module.DEFAULTS, features=features, model_fn=model_fn)
    return changed


def main() -> None:
    """Runs the command."""
    parser = result_file.parser(__doc__)
    parser.add_argument("--runs", required=True, help="folder that keeps the finished runs")
    parser.add_argument("--models", nargs="+", default=["wide_and_deep"], choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    folder = pathlib.Path(args.runs)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for model in args.models:
        for rows in ROWS:
            names.append(f"{model}, {rows}")
            MODELS[names[-1]] = with_rows(model, rows)
    data = commands.load_data(config.load(DATA))
    found: Dict[str, Any] = {}
    for name in args.settings:
        shared = ["train.with_validation=true", "hooks.progress=false"]
        run = config.load(DATA, [*SETTINGS[name], *shared])
        kept = str(folder / f"{name}.json")
        found[name] = compare.compare(run, names, args.seeds, ["plain"], output=kept, data=data)
        result_file.write(args.output, {"settings": {n: _part(f) for n, f in found.items()}})
        print(f"\n{name}\n{comparison_table.table(found[name])}", flush=True)


def _part(comparison: Dict[str, Any]) -> Dict[str, Any]:
    """What a result has of a comparison."""
    runs = [
        {
            **dict(zip(("model", "rows"), run["model"].split(", ", 1))),
            **{name: run[name] for name in ("seed", "metrics", "steps")},
        }
        for run in comparison["runs"]
    ]
    return {"data": comparison["data"], "train": comparison["config"]["train"], "runs": runs}


if __name__ == "__main__":
    main()
