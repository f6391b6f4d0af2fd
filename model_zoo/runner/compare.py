# SPDX-License-Identifier: Apache-2.0
"""Compares models, over several seeds and with several settings of their tables, on a data set."""

import json
import pathlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from model_zoo.data import PARTS, DataSet
from model_zoo.mappings import differences
from model_zoo.models import MODELS
from model_zoo.names import check_names
from model_zoo.runner import commands, record
from model_zoo.runner.build import build_estimator, view_of
from model_zoo.runner.config import Config
from model_zoo.runner.errors import sentence_of

_Run = Dict[str, Any]

_FILTER_FREQ = 3
_STEPS_TO_LIVE = 1000  # If the number of rows of the data is unknown.


def _plain(config: Config, data: DataSet) -> Dict[str, Any]:
    del config, data
    return {}


def _counter(config: Config, data: DataSet) -> Dict[str, Any]:
    """Keys get a row at their third occurrence."""
    del config, data
    return {"tables__default__filter": {"name": "counter", "filter_freq": _FILTER_FREQ}}


def _eviction(config: Config, data: DataSet) -> Dict[str, Any]:
    """Keys that did not occur in the last half of an epoch lose their row at the next save."""
    steps = _STEPS_TO_LIVE
    if data.rows("train") is not None:  # Two towers train on some of the rows only.
        rows = view_of(config, data).count_training_rows()
        steps = max(1, rows // config.train.batch_size // 2)
    return {"tables__default__eviction": {"name": "global_step", "steps_to_live": steps}}


VARIANTS: Dict[str, Callable[[Config, DataSet], Dict[str, Any]]] = {
    "plain": _plain,
    "counter": _counter,
    "eviction": _eviction,
}


def compare(
    config: Config,
    models: Optional[Sequence[str]] = None,
    seeds: Sequence[int] = (1, 2, 3),
    variants: Sequence[str] = tuple(VARIANTS),
    refit: bool = False,
    output: Optional[str] = None,
    data: Optional[DataSet] = None,
    say: Callable[[str], None] = print,
) -> Dict[str, Any]:
    """Trains each model with each seed and each variant, and tests it.

    A model of which a run fails is left out from then on; the others are compared.

    Args:
      config: The configuration of all runs. Each model takes the params that it has.
      models: Names of models. None: all that fit the data.
      seeds: Seeds of the runs.
      variants: Names of VARIANTS.
      refit: Whether each model is trained with the first seed and validation once, to choose the
        number of epochs; all its runs then take that number, and also train on validation rows.
      output: JSON file that gets each run when it is finished. Runs that it has are not done again.
      data: The data. None: they are loaded.
      say: Takes lines that say what happens.

    Returns:
      "config", "data", "versions", "refit", "epochs" by model that `refit` chose, and "runs", each
      of which has "model", "variant", "seed", "metrics" of the test rows, "rows" of all tables,
      "steps" and "samples_per_second".

    Raises:
      ValueError: A name is not known, the data have no rows for it, no model fits them, or output
        has runs of another configuration.
      ComparisonError: Runs failed; the finished ones are in its attribute `found`, and in output.
      Interrupted: A signal ended a run; the finished ones are in output.
    """
    check_names("variants", variants, VARIANTS)
    check_names("models", models or [], MODELS)
    data = data or commands.load_data(config)
    say(commands.in_words(data))
    _check_rows(data, refit)
    config = config.replace(train__with_validation=refit or config.train.with_validation)
    file = pathlib.Path(output) if output else None
    found = _opened(file, _comparison(config, data, refit))
    done = {_key(run) for run in found["runs"]}
    configs = _configs(config, models, data, say)
    whole = data.without_validation() if config.train.with_validation else data
    # A comparison that is stopped early has as many models as possible.
    wanted = [(m, v, s) for v in _once(variants) for s in _once(seeds) for m in configs]
    failed: Dict[str, str] = {}
    for number, (model, variant, seed) in enumerate(wanted, 1):
        name = f"[{number}/{len(wanted)}] {model}, {variant}, seed {seed}"
        if (model, variant, seed) in done:
            say(f"{name}: done before")
            continue
        if model in failed:
            continue
        run = configs[model].replace(train__seed=seed, model_dir=None)
        try:
            if refit:
                run = run.replace(train__epochs=_epochs(run, seeds[0], data, found, file, say))
            say(name)
            run = run.replace(**VARIANTS[variant](run, whole))
            measured = _measure(run, whole, say)
        except Exception as error:
            sentence = sentence_of(error)
            if sentence is None or isinstance(error, OSError):  # A full disk stops all models.
                raise
            failed[model] = f"{model}, {variant}, seed {seed}: {sentence}"
            say(failed[model])
            continue
        found["runs"].append({"model": model, "variant": variant, "seed": seed, **measured})
        _keep(file, found)
    if failed:
        raise ComparisonError(found, list(failed.values()))
    return found


class ComparisonError(ValueError):
    """Models could not be compared.

    Args:
      found: The comparison of the finished runs.
      sentences: One about each model that failed.

    Attributes:
      found: The comparison of the finished runs.
    """

    def __init__(self, found: Mapping[str, Any], sentences: Sequence[str]) -> None:
        super().__init__(
            "all runs must end well, got these that did not; correct the setting, or leave out the "
            "model: " + "; ".join(sentences)
        )
        self.found = found


def _check_rows(data: DataSet, refit: bool) -> None:
    parts = {"test": "test rows", **({"validation": "validation rows for refit"} if refit else {})}
    for part, rows in parts.items():
        if data.rows(part) == 0:
            raise ValueError(
                f"{data.name} must have {rows}, got none; give the schema a larger {part} split"
            )


def _comparison(config: Config, data: DataSet, refit: bool) -> Dict[str, Any]:
    """A comparison without runs."""
    settings = {
        name: section
        for name, section in config.as_dict().items()
        if name not in ("model", "model_dir", "export", "hooks")
    }
    settings["data"] = {"name": data.name}  # wherever its files are
    described = {
        "name": data.name,
        "label": data.labels[0],
        "rows": {part: data.rows(part) for part in PARTS},
        "columns": [column.name for column in data.columns],
    }
    found = {"versions": record.versions(), "data": described, "config": settings, "refit": refit}
    copied: Dict[str, Any] = json.loads(json.dumps({**found, "epochs": {}, "runs": []}))
    return copied


def _opened(file: Optional[pathlib.Path], new: Dict[str, Any]) -> Dict[str, Any]:
    """What the output file has, or the new comparison if there is no file yet."""
    if file is None:
        return new
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        return new
    remedy = "choose another file"
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got: {error}; {remedy}") from None
    if not isinstance(found, dict) or not {"config", "data", "epochs", "runs"} <= set(found):
        raise ValueError(f"output must be a new file or a comparison, got {file}; {remedy}")
    parts = ("config", "data", "refit")
    changed = [path for part in parts for path in differences(found.get(part), new[part], part)]
    if changed:
        name = changed[0].replace("config.", "", 1)
        raise ValueError(
            f"output must be a new file or one of this configuration and data, got {file}, whose "
            f"runs have another {name}; {remedy}"
        )
    return found


def _keep(file: Optional[pathlib.Path], found: Mapping[str, Any]) -> None:
    if file is not None:
        record.write_json(file, found)


def _once(values: Sequence[Any]) -> List[Any]:
    return list(dict.fromkeys(values))


def _epochs(
    run: Config,
    seed: int,
    data: DataSet,
    found: Dict[str, Any],
    file: Optional[pathlib.Path],
    say: Callable[[str], None],
) -> int:
    """The number of epochs that the validation rows chose for a model, or choose now."""
    epochs: Dict[str, int] = found["epochs"]
    if run.model not in epochs:
        say(f"{run.model}: number of epochs")
        first = run.replace(train__seed=seed, train__with_validation=False)
        epochs[run.model] = max(1, commands.train(first, data, say)["best_epoch"])
        _keep(file, found)
    return epochs[run.model]


def _configs(
    config: Config, models: Optional[Sequence[str]], data: DataSet, say: Callable[[str], None]
) -> Dict[str, Config]:
    """The configuration of each model, with those of the params that it has."""
    names = [name for model in models or MODELS for name in MODELS[model].DEFAULTS]
    check_names("params", config.params, sorted(set(names)))
    found: Dict[str, Config] = {}
    refused: Optional[ValueError] = None
    for model in models or MODELS:
        params = {k: v for k, v in config.params.items() if k in MODELS[model].DEFAULTS}
        found[model] = config.replace(model=model, params=params)
        try:
            build_estimator(found[model], view_of(found[model], data))
        except ValueError as error:
            if models:
                raise
            say(f"{model} is left out: {error}")
            refused = error
            del found[model]
    if not found and refused:
        raise refused
    return found


def _measure(config: Config, data: DataSet, say: Callable[[str], None]) -> _Run:
    results = commands.train(config, data, say)
    return {
        "metrics": results["test"],
        "rows": sum(results["rows"].values()),
        "steps": results["steps"],
        "samples_per_second": results["samples_per_second"],
    }


def _key(run: Mapping[str, Any]) -> Tuple[str, str, int]:
    return run["model"], run["variant"], run["seed"]
