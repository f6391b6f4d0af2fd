# SPDX-License-Identifier: Apache-2.0
"""Measures how fast the runner of the zoo trains each model on two public data sets.

    taskset -c 0 python -m benchmarks.bench_zoo_data --folder FOLDER_OF_ONLINE_RETAIL
        [--data movielens_100k ...] [--models din ...] [--steps 600] [--output FILE.json]

The settings are those of compare_zoo.py. A run has --steps steps and one seed. The rate is that of
the runner, from reading a batch to the hooks, without starts, checkpoints and validations. Runs of
a model are a round of all models apart.
"""

import itertools
from typing import Any, Dict

from benchmarks import compare_zoo, result_file


def main() -> None:
    """Runs the command."""
    import tensorflow.compat.v1 as tf

    from model_zoo.data import MemoryDataSet
    from model_zoo.models import MODELS
    from model_zoo.runner import commands, config

    parser = result_file.parser(__doc__, steps=600)
    parser.add_argument("--folder", help="folder of the CSV file of Online Retail")
    parser.add_argument("--data", nargs="+", default=compare_zoo.DATA, choices=compare_zoo.DATA)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    rates: Dict[str, Dict[str, Any]] = {}
    for name in args.data:
        run = config.from_dict({"data": {"name": name, "folder": args.folder}})
        whole: Any = commands.load_data(run)  # One that is in memory.
        data = MemoryDataSet(name, whole.columns, {"train": whole.in_memory("train")})
        groups = compare_zoo.by_group(name, args.models).items()
        cases = [(group, model) for group, models in groups for model in models]
        for seed, (group, model) in itertools.product(compare_zoo.SEEDS, cases):
            settings = {"train__seed": seed, "train__steps": args.steps}
            run = compare_zoo.config_of(group).replace(model=model, **settings)
            rate = commands.train(run, data, lambda line: None)["samples_per_second"]
            rates.setdefault(name, {}).setdefault(model, []).append(rate)
            print(f"{name}, {model}, seed {seed}: {rate:,.0f} samples/s", flush=True)
            found = {"steps": args.steps, "samples_per_second": rates}
            result_file.write(args.output, found)


if __name__ == "__main__":
    main()
