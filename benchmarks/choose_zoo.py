# SPDX-License-Identifier: Apache-2.0
"""Tries settings of a model of the zoo on the validation rows of a data set.

    python -m benchmarks.choose_zoo --data online_retail --folder FOLDER --model wide_and_deep
        --try "" --try "params.dropout=0.2" --try "params.dim=8 train.batch_size=1024"
        [--seeds 1 2] [--epochs 5] [--output FILE.json]

Each --try is one set of settings, which override the defaults of model_zoo/runner/config.py. A
trial trains on the training rows for --epochs; the result has the metrics of the validation rows
after each epoch. Test rows are not read. The trials of --output are kept and not made again.
"""

import json
import pathlib
import tempfile
from typing import Any, Dict, List, Sequence

from benchmarks import result_file

METRICS = ("auc", "grouped_auc", "log_loss")


def try_settings(
    data: Any, model: str, settings: Sequence[str], seed: int, epochs: int
) -> Dict[str, List[float]]:
    """Trains a model; returns the metrics of the validation rows after each epoch, by name.

    Args:
      data: A data set without test rows.
      model: A model of the zoo.
      settings: As those of model_zoo.runner.config.load.
      seed: Of the run.
      epochs: Passes over the training rows.
    """
    from model_zoo.runner import commands, config, record

    run = config.load(None, settings).replace(
        model=model,
        train__seed=seed,
        train__epochs=epochs,
        validation__metric="auc",
        validation__patience=None,
        hooks__progress=False,
    )
    with tempfile.TemporaryDirectory() as model_dir:
        commands.train(run.replace(model_dir=model_dir), data, say=lambda line: None)
        rounds = (record.read(model_dir) or {})["rounds"]
    of_label = {name: f"{data.labels[0]}/{name}" for name in METRICS}
    return {
        name: [each["metrics"].get(name, each["metrics"].get(other)) for each in rounds]
        for name, other in of_label.items()
    }


def main() -> None:
    """Runs the command."""
    import tensorflow.compat.v1 as tf

    from model_zoo import data as data_sets
    from model_zoo.models import MODELS

    parser = result_file.parser(__doc__)
    parser.add_argument("--data", required=True, help="a data set of the zoo")
    parser.add_argument("--folder", help="folder of its files")
    parser.add_argument("--model", required=True, choices=list(MODELS))
    parser.add_argument("--try", action="append", required=True, help="settings of a trial")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    kept = pathlib.Path(args.output) if args.output else None
    trials = json.loads(kept.read_text())["trials"] if kept and kept.exists() else []
    whole: Any = data_sets.load(args.data, args.folder)  # One that is in memory.
    parts = {part: whole.in_memory(part) for part in ("train", "validation")}
    data = data_sets.MemoryDataSet(args.data, whole.columns, parts)
    for settings in getattr(args, "try"):
        for seed in args.seeds:
            trial = {"data": args.data, "model": args.model, "settings": settings, "seed": seed}
            if any(trial.items() <= each.items() for each in trials):
                continue
            found = try_settings(data, args.model, settings.split(), seed, args.epochs)
            trials.append({**trial, **found})
            print(f"{settings or 'defaults'}, seed {seed}: {found['auc']}", flush=True)
            result_file.write(args.output, {"trials": trials})


if __name__ == "__main__":
    main()
