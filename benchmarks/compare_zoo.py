# SPDX-License-Identifier: Apache-2.0
"""Compares the models of the zoo on two public data sets: quality and rows.

    python -m benchmarks.compare_zoo --folder FOLDER_OF_ONLINE_RETAIL --runs FOLDER
        [--data movielens_100k ...] [--models din ...] [--output FILE.json]

The settings are those of model_zoo/configs. Models are trained on the training and validation rows
for the epochs of GROUPS; test rows choose nothing. Each model has a run with each seed and each
variant of the tables. Finished runs are kept in --runs; the same command goes on with the others.
"measured" says when and where the newest runs of a group were made.
"""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Sequence

from benchmarks import result_file

if TYPE_CHECKING:
    from model_zoo.runner.config import Config


class Group(NamedTuple):
    """Models with the same settings.

    Attributes:
      name: Of its file in --runs.
      data: The configuration, which has the name of its data set.
      epochs: After which its first model, or wide & deep, had the best AUC of the validation rows
        in its trials: see choose_zoo.py.
      models: The models. None: those that no other group of the data set has.
    """

    name: str
    data: str
    epochs: int
    models: Sequence[str] = ()


GROUPS = (
    Group("movielens_100k", "movielens_100k", 4),
    Group("movielens_100k_fibinet", "movielens_100k", 2, ("fibinet",)),
    Group("movielens_100k_masknet", "movielens_100k", 3, ("masknet",)),
    Group("online_retail", "online_retail", 8),
    Group("online_retail_sequences", "online_retail", 4, ("din", "dien", "bst")),
)
DATA = list(dict.fromkeys(group.data for group in GROUPS))
SEEDS = (1, 2, 3)


def main() -> None:
    """Runs the command."""
    import tensorflow.compat.v1 as tf

    from model_zoo.models import MODELS
    from model_zoo.runner import commands, compare, config

    parser = result_file.parser(__doc__)
    parser.add_argument("--folder", help="folder of the CSV file of Online Retail")
    parser.add_argument("--runs", required=True, help="folder that keeps the finished runs")
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--variants", nargs="+", default=list(compare.VARIANTS))
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    folder = pathlib.Path(args.runs)
    folder.mkdir(parents=True, exist_ok=True)
    for name in args.data:
        data = commands.load_data(config.from_dict({"data": {"name": name, "folder": args.folder}}))
        for group, models in by_group(name, args.models).items():
            kept = folder / f"{group.name}.json"
            before = kept.read_text() if kept.exists() else ""
            run = config_of(group)
            found = compare.compare(
                run, models, args.seeds, args.variants, output=str(kept), data=data
            )
            if kept.read_text() != before:  # Runs of several machines do not compare.
                found["measured"] = result_file.provenance()
                kept.write_text(json.dumps(found))
            result_file.write(args.output, {"data": _finished(folder)})


def config_of(group: Group) -> Config:
    """Returns the configuration of the runs of a group.

    Example:
      >>> config_of(GROUPS[0]).train.epochs
      4
    """
    from model_zoo.runner import config

    settings = [f"train.epochs={group.epochs}", "train.with_validation=true"]
    return config.load(group.data, [*settings, "hooks.progress=false"])


def by_group(data: str, models: Sequence[str]) -> Dict[Group, List[str]]:
    """Returns the models of each group of a data set that has any.

    Example:
      >>> {group.epochs: models for group, models in by_group(
      ...     "movielens_100k", ["din", "masknet"]).items()}
      {4: ['din'], 3: ['masknet']}
    """
    groups = [group for group in GROUPS if group.data == data]
    (default,) = (group for group in groups if not group.models)
    found: Dict[Group, List[str]] = {}
    for model in models:
        own = next((group for group in groups if model in group.models), default)
        found.setdefault(own, []).append(model)
    return found


def _finished(folder: pathlib.Path) -> Dict[str, Any]:
    """The comparisons that a folder keeps, by group."""
    files = {group.name: folder / f"{group.name}.json" for group in GROUPS}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    for comparison in found.values():
        for run in comparison["runs"]:  # bench_zoo_data.py measures speed.
            run.pop("samples_per_second", None)
    return found


if __name__ == "__main__":
    main()
