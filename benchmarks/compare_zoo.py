# SPDX-License-Identifier: Apache-2.0
"""Compares the models of the zoo on two public data sets: quality, speed and rows.

    python -m benchmarks.compare_zoo --folder FOLDER_OF_ONLINE_RETAIL --runs FOLDER
        [--data movielens_100k ...] [--models din ...] [--output FILE.json]

The settings are those of model_zoo/configs. Models are trained on the training and validation rows
for EPOCHS; test rows choose nothing. Each model has a run with each variant of the tables and the
first seed, and with plain tables and two further seeds. Finished runs are kept in --runs; the same
command goes on with the others.
"""

import json
import pathlib
from typing import Any, Dict

from benchmarks import result_file

# After which, of five at most, wide & deep with the first seed had the best validation AUC:
# python -m model_zoo train wide_and_deep --config movielens_100k
EPOCHS = {"movielens_100k": 4, "online_retail": 5}
FIRST, *FURTHER = SEEDS = (1, 2, 3)


def main() -> None:
    """Runs the command."""
    import tensorflow.compat.v1 as tf

    from model_zoo.models import MODELS
    from model_zoo.runner import compare, config

    parser = result_file.parser(__doc__)
    parser.add_argument("--folder", help="folder of the CSV file of Online Retail")
    parser.add_argument("--runs", required=True, help="folder that keeps the finished runs")
    parser.add_argument("--data", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--variants", nargs="+", default=list(compare.VARIANTS))
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    folder = pathlib.Path(args.runs)
    folder.mkdir(parents=True, exist_ok=True)
    for name in args.data:
        settings = [f"train.epochs={EPOCHS[name]}", "train.with_validation=true"]
        if args.folder:
            settings.append(f"data.folder={args.folder}")
        run = config.load(name, [*settings, "hooks.progress=false"])
        kept = str(folder / f"{name}.json")
        for seeds, variants in (([FIRST], args.variants), (FURTHER, ["plain"])):
            seeds = [seed for seed in seeds if seed in args.seeds]
            if seeds:
                compare.compare(run, args.models, seeds, variants, output=kept)
            result_file.write(args.output, {"data": _finished(folder)})


def _finished(folder: pathlib.Path) -> Dict[str, Any]:
    """The comparisons that a folder keeps, by data set."""
    files = {name: folder / f"{name}.json" for name in EPOCHS}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    for comparison in found.values():
        for run in comparison["runs"]:  # bench_zoo.py measures speed, on an idle machine.
            del run["samples_per_second"]
    return found


if __name__ == "__main__":
    main()
