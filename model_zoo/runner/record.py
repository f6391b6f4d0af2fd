# SPDX-License-Identifier: Apache-2.0
"""run.json: the settings, versions, progress and metrics of a run, in the folder of its model.

The file is replaced as a whole, after the checkpoint that it speaks of is complete.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shlex
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.data import PARTS, DataSet
from model_zoo.mappings import differences, value_at
from model_zoo.runner.config import Config, from_dict

_FILE = "run.json"
_BEST = "best"  # The folder with the best checkpoint.

# A run that goes on may change these settings; another data set, model or order of rows would be
# another run.
_CHANGEABLE = (
    *("data.folder", "data.cache_dir", "export", "hooks", "model_dir", "validation"),
    *("train.epochs", "train.steps", "train.save_steps", "train.incremental_steps"),
    *("train.deterministic", "train.optimizer.learning_rate"),
    *("train.table_optimizer.learning_rate", "train.clip_norm"),
)


@dataclasses.dataclass(frozen=True)
class Round:
    """Training up to a validation.

    Attributes:
      step: The global step at the end.
      epoch: The number of finished epochs.
      metrics: Of the validation, by name.
      is_best: Whether the metric of the validation was better than all before.
    """

    step: int
    epoch: int
    metrics: Mapping[str, float]
    is_best: bool


class Record:
    """The record of a run.

    Args:
      model_dir: The folder of the model; it is made if it is missing.
      config: The configuration of this run.

    Attributes:
      rounds: The finished rounds.
      epoch: The number of finished epochs.
      epoch_begin: The global step at which the running epoch began.
      steps, seconds: Measured training, without starts, checkpoints and validations.
      data: What `describe` says about the data.

    Raises:
      ValueError: The folder has the model of another configuration.
    """

    def __init__(self, model_dir: str, config: Config) -> None:
        self._folder = pathlib.Path(model_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config = config
        found = read(model_dir) or {}
        if found:
            _check_same(model_dir, found["config"], config)
        self.rounds: List[Round] = [Round(**each) for each in found.get("rounds", [])]
        self.epoch: int = found.get("epoch", 0)
        self.epoch_begin: int = found.get("epoch_begin", 0)
        self.steps: int = found.get("steps", 0)
        self.seconds: float = found.get("seconds", 0.0)
        self.metrics: Dict[str, Dict[str, float]] = found.get("metrics", {})
        self.commands: List[str] = [*found.get("commands", []), command()]
        self.data: Dict[str, Any] = found.get("data", {})
        self.status = "running"

    @property
    def best(self) -> Optional[Round]:
        """The best round; None before the first validation."""
        return next((each for each in reversed(self.rounds) if each.is_best), None)

    @property
    def failures(self) -> int:
        """The number of validations without a better metric."""
        return sum(not each.is_best for each in self.rounds)

    @property
    def failures_since_best(self) -> int:
        """The number of validations since the best one."""
        return next((i for i, each in enumerate(reversed(self.rounds)) if each.is_best), 0)

    @property
    def samples_per_second(self) -> Optional[float]:
        """Rows trained per second; None if no step was measured."""
        rows = self.steps * self._config.train.batch_size
        return rows / self.seconds if self.steps else None

    def keep_best(self, checkpoint: str) -> None:
        """Copies a checkpoint to the folder of the best one; save() then deletes the others."""
        folder = self._folder / _BEST
        folder.mkdir(exist_ok=True)
        for file in pathlib.Path(checkpoint).parent.glob(f"{pathlib.Path(checkpoint).name}.*"):
            unfinished = folder / f"{file.name}.unfinished"
            shutil.copyfile(file, unfinished)
            unfinished.replace(folder / file.name)

    def save(self, status: str) -> None:
        """Writes the file.

        Args:
          status: "running", "stopped" or "done".
        """
        self.status = status
        rounds = [dataclasses.asdict(each) for each in self.rounds]
        speed = self.samples_per_second
        write_json(
            self._folder / _FILE,
            {
                "status": status,
                "commands": self.commands,
                "config": self._config.as_dict(),
                "data": self.data,
                "versions": versions(),
                "written": datetime.datetime.now().isoformat(timespec="seconds"),
                "epoch": self.epoch,
                "epoch_begin": self.epoch_begin,
                "steps": self.steps,
                "seconds": round(self.seconds, 3),
                "samples_per_second": None if speed is None else round(speed),
                "rounds": rounds,
                "metrics": self.metrics,
            },
        )
        self._delete_old_bests()

    def _delete_old_bests(self) -> None:
        if self.best is not None:
            for file in (self._folder / _BEST).glob("model.ckpt-*"):
                if file.name.partition(".ckpt-")[2].partition(".")[0] != str(self.best.step):
                    file.unlink()


def read(model_dir: str) -> Optional[Dict[str, Any]]:
    """Returns what run.json of a folder holds; None if there is none."""
    file = pathlib.Path(model_dir) / _FILE
    try:
        found: Optional[Dict[str, Any]] = json.loads(file.read_text()) if file.exists() else None
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got: {error}; delete it, or train again") from None
    return found


def command() -> str:
    """Returns the command of this process, as it can be run again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m
    program = [sys.argv[0]] if spec is None else ["-m", spec.name.replace(".__main__", "")]
    return shlex.join(["python", *program, *sys.argv[1:]])


def describe(data: DataSet) -> Dict[str, Any]:
    """Returns what run.json has about data: rows by part (None: not counted), labels and columns.

    Settings of columns that have their defaults are left out.
    """
    fields = {
        each.column.name: each for each in getattr(getattr(data, "schema", None), "fields", ())
    }
    columns: Dict[str, Dict[str, Any]] = {}
    for column in data.columns:
        settings: Dict[str, Any] = dataclasses.asdict(column)
        for name in ("type", "transform", "buckets"):
            settings[name] = getattr(fields.get(column.name), name, None)
        defaults = {"name": column.name, "kind": "id", "max_length": 1}
        columns[column.name] = {
            name: value for name, value in settings.items() if value != defaults.get(name)
        }
    return {
        "name": data.name,
        "rows": {part: data.rows(part) for part in PARTS},
        "labels": list(data.labels),
        "columns": columns,
    }


def check_data(model_dir: str, data: DataSet) -> None:
    """Checks that data have the columns and labels with which the model of a folder was trained.

    Raises:
      ValueError: They have others.
    """
    found = (read(model_dir) or {}).get("data")
    if not found:  # Nothing was trained yet, or by a program that did not write it.
        return
    wanted = json.loads(json.dumps(describe(data), default=_as_number))
    for name in ("columns", "labels"):
        path, *_ = [*differences(found[name], wanted[name], name), None]
        if path or list(found[name]) != list(wanted[name]):
            before, now = (value_at({name: each[name]}, path or name) for each in (found, wanted))
            raise ValueError(
                f"{path or f'the order of {name}'} of {data.name} must be as in the training of "
                f"{model_dir}, {_shown(before)}, got {_shown(now)}; correct the schema, or train a "
                "model in another model_dir"
            )


def check_model(model_dir: str, config: Config) -> None:
    """Checks that a configuration has the model, params and dims of the model of a folder.

    Raises:
      ValueError: It has others.
    """
    found = read(model_dir)
    if found:
        _check_same(model_dir, found["config"], config, (*_CHANGEABLE, "data", "train"))


def config_of(model_dir: str) -> Config:
    """Returns the configuration of the run that trained the model of a folder.

    Raises:
      ValueError: The folder has no run.json.
    """
    found = read(model_dir)
    if found is None:
        raise ValueError(
            f"model_dir must hold a model that this program trained, got {model_dir} without "
            f"{_FILE}; train it first"
        )
    return from_dict({**found["config"], "model_dir": str(model_dir)})


def best_checkpoint(model_dir: str) -> Optional[str]:
    """Returns the prefix of the best checkpoint of a folder, else of the latest one."""
    found = read(model_dir) or {}
    for each in reversed(found.get("rounds", [])):
        prefix = pathlib.Path(model_dir) / _BEST / f"model.ckpt-{each['step']}"
        if each["is_best"] and prefix.with_name(f"{prefix.name}.index").exists():
            return str(prefix)
    latest: Optional[str] = tf.train.latest_checkpoint(model_dir)
    return latest


def write_json(file: pathlib.Path, value: Any) -> None:
    """Writes a JSON file as a whole or not at all."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(json.dumps(value, indent=2, default=_as_number) + "\n")
    os.replace(unfinished, file)


def versions() -> Dict[str, str]:
    """Returns the versions of what a result depends on."""
    return {
        "rec_estimator": rec.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _shown(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, dict) else repr(value)


def _as_number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else list(value)


def _check_same(
    model_dir: str,
    found: Mapping[str, Any],
    config: Config,
    changeable: Tuple[str, ...] = _CHANGEABLE,
) -> None:
    wanted = json.loads(json.dumps(config.as_dict(), default=_as_number))
    for path in differences(found, wanted):
        if not path.startswith(changeable) and not _is_of_table(path):
            raise ValueError(
                f"{path} must be as in the run of {model_dir}; choose another model_dir, or the "
                "same setting"
            )


def _is_of_table(path: str) -> bool:
    """Whether a path is a setting of a table that a checkpoint does not depend on."""
    return path.startswith("tables.") and not path.endswith(".dim")
