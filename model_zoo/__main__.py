# SPDX-License-Identifier: Apache-2.0
"""Trains, evaluates, compares and exports models on your data.

A run is described by a YAML file and by flags, which override it:

    python -m model_zoo train deepfm --data shop.yaml --model_dir /tmp/shop --epochs 10
    python -m model_zoo train --config criteo_x4 --folder ~/criteo --model_dir /tmp/criteo
    python -m model_zoo evaluate --model_dir /tmp/shop
    python -m model_zoo predict --model_dir /tmp/shop --output predictions.csv
    python -m model_zoo export --model_dir /tmp/shop --export_dir /tmp/shop_export
    python -m model_zoo compare --models deepfm din --data shop.yaml --output comparison.json
"""

import argparse
import csv
import dataclasses
import os
import signal
import sys
import textwrap
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, TextIO

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends the command without a traceback, also while TensorFlow is imported. A training
    # handles it, see stop_signals.py; other commands have nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# TensorFlow reads this at import. Its warnings about missing GPUs would hide the progress line.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo import data, runner
from model_zoo.mappings import value_at
from model_zoo.models import MODELS
from model_zoo.names import check_names
from model_zoo.runner import compare, comparison_table, config, record
from model_zoo.runner.errors import sentence_of
from model_zoo.runner.stop_signals import Interrupted

# Flags that set one setting each: name, what --help shows for the value, the setting, its meaning.
_FLAGS = (
    ("data", "NAME", "data.name", "built-in data set, or schema file"),
    ("folder", "DIR", "data.folder", "folder of the data files"),
    ("model_dir", "DIR", "model_dir", "checkpoints and run.json; a run that finds some goes on"),
    ("export_dir", "DIR", "export.folder", "folder for a SavedModel"),
    ("epochs", "N", "train.epochs", "passes over the training rows, at most"),
    ("steps", "N", "train.steps", "training steps, at most"),
    ("batch_size", "N", "train.batch_size", "rows per step"),
    ("learning_rate", "X", "train.optimizer.learning_rate", "learning rate of the optimizer"),
    ("seed", "N", "train.seed", "seed of initial values, order of rows and dropout"),
    ("patience", "N", "validation.patience", "validations without progress before training stops"),
    ("dim", "N", "params.dim", "floats per row of the tables"),
    ("hidden_units", "LIST", "params.hidden_units", "such as [400, 400, 400]"),
    ("dropout", "X", "params.dropout", "share of hidden units that a step drops"),
)

_COMMANDS = {
    "train": "train a model, or go on with a training; evaluate it on the test rows",
    "evaluate": "evaluate a trained model",
    "predict": "write the predictions of a trained model as CSV, a line for each row",
    "export": "write a trained model as a SavedModel",
    "compare": "train models, seeds and variants of tables on your data and print one table",
}


_COLUMNS = """columns of the output:
  file, line      where the row is in the data; "record" or "row" instead of "line" in files without
                  lines. A schema may order rows by time, so the order is not that of the file.
  user, item      their ids in the data, by the names of their columns
  labels          0 or 1
  probabilities   of a label, or of each label by its name
Two towers rank the items for each row whose first label is 1. Instead of probabilities, there are
  best_1, ...     the ids of the N best items
  score_1, ...    their scores
"""


def _wrapped(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(names), 96, initial_indent="    ", subsequent_indent="    ")


def _settings() -> str:
    """All names of the configuration with their defaults, a paragraph for each section."""
    sections = {
        field.name: field.default
        for field in dataclasses.fields(config.Config)
        if dataclasses.is_dataclass(field.default)
    }
    paragraphs = [["model", "model_dir", "params.NAME (DEFAULTS in the file of the model)"]]
    for section, settings in {**sections, "tables.TABLE": config.Table()}.items():
        paragraphs.append([])
        for name, default in vars(settings).items():
            is_shown = isinstance(default, (str, int, float))
            value = f"={str(default).lower()}" if is_shown else ""
            paragraphs[-1].append(f"{section}.{name}{value}")
    return "\n".join(map(_wrapped, paragraphs))


_EPILOG = f"""settings:
  --set NAME=VALUE sets any name of the configuration; VALUE is YAML:
    --set validation.metric=log_loss
    --set "tables.default.filter={{name: counter, filter_freq: 3}}"
    --set "train.table_optimizer={{name: adagrad, learning_rate: 0.05}}"
  All names, described in model_zoo/runner/config.py; TABLE is a column, or "default" for all:
{_settings()}

configurations that come with the zoo:
{_wrapped(sorted(path.stem for path in config.CONFIGS.glob("*.yaml")))}

models:
{_wrapped(MODELS)}

data sets:
{_wrapped(["generated", *data.schema_names()])}
"""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m model_zoo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, meaning in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=meaning,
            usage=f"{top.prog} {name} {'[MODEL] ' * (name == 'train')}[OPTION ...]",
            description=f"{meaning[0].upper()}{meaning[1:]}.",
            epilog={"train": _EPILOG, "compare": _EPILOG, "predict": _COLUMNS}.get(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(command, name)
    return top


def _add_options(command: argparse.ArgumentParser, name: str) -> None:
    add = command.add_argument
    if name == "train":
        add("model", nargs="?", metavar="MODEL", help="one of the models below (default: --config)")
    if name == "compare":
        add("--models", nargs="+", metavar="MODEL", help="default: all that fit the data")
        add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="default: 1 2 3")
        variants = ", ".join(compare.VARIANTS)
        add(
            "--variants",
            nargs="+",
            metavar="NAME",
            default=list(compare.VARIANTS),
            help=f"of the tables: {variants} (default: all)",
        )
        add(
            "--refit",
            action="store_true",
            help="train on validation rows too, for as many epochs as a first run chose with them",
        )
        add("--output", metavar="FILE", default="comparison.json", help="default: %(default)s")
    if name in ("evaluate", "predict"):
        add("--part", choices=data.PARTS, default="test", help="rows (default: test)")
    if name == "predict":
        add("--output", metavar="FILE", help="default: standard output")
        best = "items of two towers for each row (default: 10)"
        add("--k", type=int, default=10, metavar="N", help=best)
    if name in ("train", "compare"):
        add(
            "--config", metavar="FILE", help="YAML file, or a configuration that comes with the zoo"
        )
    # Later commands take the settings of the training as their defaults.
    defaults = config.Config().as_dict() if name in ("train", "compare") else {}
    for flag, value, path, meaning in _FLAGS:
        if _takes(name, path):
            default = value_at(defaults, path)
            shown = meaning if default is None else f"{meaning} (default: {default})"
            add(f"--{flag}", metavar=value, help=shown)
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")


def _takes(command: str, path: str) -> bool:
    """Whether a command has the flag of a setting."""
    if command == "compare":  # Its runs have seeds and folders of their own.
        return path not in ("model_dir", "export.folder", "train.seed")
    if command == "train" or path.startswith("data.") or path == "model_dir":
        return True
    return command == "export" and path.startswith("export.")


def settings_of(options: argparse.Namespace) -> List[str]:
    """Returns the settings of the flags, as config.load takes them."""
    given = [
        f"{path}={getattr(options, flag)}"
        for flag, _, path, _ in _FLAGS
        if getattr(options, flag, None) is not None
    ]
    model = getattr(options, "model", None)
    return [*([f"model={model}"] if model else []), *given, *options.set]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs a command; returns its exit status: 0, 1 after an error, 128 + the signal after one."""
    options = parser().parse_args(arguments)
    tf.logging.set_verbosity(tf.logging.ERROR)
    run: Optional[config.Config] = None
    try:
        run = _config_of(options)
        _run(options, run)
    except Interrupted as stopped:
        print(f"Stopped by {stopped}. {_what_is_kept(options, run)}", file=sys.stderr)
        return stopped.exit_code
    except BrokenPipeError:  # The reader of the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"model_zoo {options.command}: {sentence}", file=sys.stderr)
        return 1
    return 0


def _what_is_kept(options: argparse.Namespace, run: Optional[config.Config]) -> str:
    if options.command == "compare":
        return f"Run the command again to go on with the runs that {options.output} does not have."
    if run is None or run.model_dir is None:
        return "Nothing is kept of a run without --model_dir; give one to go on after a stop."
    return "Run the command again to go on."


def _config_of(options: argparse.Namespace) -> config.Config:
    settings = settings_of(options)
    if options.command in ("train", "compare"):
        return config.load(options.config, settings)
    if not options.model_dir:
        raise ValueError("--model_dir must name the folder of a trained model, got none")
    return config.override(record.config_of(options.model_dir), settings)


def _run(options: argparse.Namespace, run: config.Config) -> None:
    if options.command == "train":
        _print_metrics(runner.train(run))
    elif options.command == "evaluate":
        _print_metrics({options.part: runner.evaluate(run, options.part)})
    elif options.command == "export":
        print(f"exported to {runner.export(run)}")
    elif options.command == "predict":
        rows = runner.predict(run, options.part, k=options.k)
        if options.output:
            with open(options.output, "w", newline="", encoding="utf-8") as file:
                write_csv(rows, file)
        else:
            write_csv(rows, sys.stdout)
    else:
        check_names("models", options.models or [], MODELS)
        _compare(options, run)


def _compare(options: argparse.Namespace, run: config.Config) -> None:
    try:
        found = compare.compare(
            run, options.models, options.seeds, options.variants, options.refit, options.output
        )
    except compare.ComparisonError as error:
        if error.found["runs"]:
            print(comparison_table.table(error.found))
        raise
    print(comparison_table.table(found))


def write_csv(rows: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    """Writes predictions: a header with their names, and a line per row.

    A value of several elements has a column for each, <name>_1 and so on.
    """
    writer: Any = None
    for row in rows:
        values: Dict[str, Any] = {}
        for name, value in row.items():
            elements = [str(each) for each in np.ravel(value)]
            if len(elements) == 1:
                values[name] = elements[0]
            else:
                values.update({f"{name}_{i}": each for i, each in enumerate(elements, 1)})
        if writer is None:
            writer = csv.DictWriter(file, list(values), lineterminator="\n")
            writer.writeheader()
        writer.writerow(values)


def _print_metrics(results: Dict[str, Any]) -> None:
    for part in ("progressive", *data.PARTS):
        if part in results:
            shown = " | ".join(f"{name} {value:.4f}" for name, value in results[part].items())
            print(f"{part:<11} {shown}")
    if "rows" in results:
        print("rows        " + " | ".join(f"{n} {rows:,}" for n, rows in results["rows"].items()))
    speed = results.get("samples_per_second")
    if speed:
        print(f"{results['steps']:,} steps, {speed:,.0f} samples/s")


if __name__ == "__main__":
    sys.exit(main())
