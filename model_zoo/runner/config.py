# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run: a YAML file and settings that override it.

    model: deepfm
    params: {dim: 16, hidden_units: [400, 400], dropout: 0.2}
    data: {name: shop.yaml, folder: ~/shop}
    tables:
      default: {filter: {name: counter, filter_freq: 3}}
      user: {dim: 32}
    train: {batch_size: 512, epochs: 20, optimizer: {name: adam, learning_rate: 0.001}}
    validation: {metric: auc, patience: 2}

Each section is a class of this module, and each name in it an attribute, with its default.
"""

import dataclasses
import pathlib
from typing import Any, Dict, Mapping, Optional, Sequence

from model_zoo import yaml_files
from model_zoo.mappings import parse, set_value

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"

ORDERS = ("shuffled", "time")
EXPORT_KINDS = ("native", "compressed", "portable")
DEFAULT_TABLE = "default"

_ADAM = {"name": "adam", "learning_rate": 0.001}


def _check_least(settings: Any, least: Mapping[str, float]) -> None:
    for name, bound in least.items():
        value = getattr(settings, name)
        if value is not None and not bound <= value < float("inf"):
            raise ValueError(f"{name} must be at least {bound}, got {value}")


def _check_one_of(settings: Any, name: str, known: Sequence[str]) -> None:
    if getattr(settings, name) not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}, got {getattr(settings, name)!r}"
        )


def _check_numbers(settings: Any, *choices: str) -> None:
    """Checks that the arguments of a choice, which stand beside its name, are no text."""
    for choice in choices:
        for name, value in (getattr(settings, choice) or {}).items():
            if name != "name" and isinstance(value, str):
                raise ValueError(f"{choice}.{name} must be a number, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Data:
    """The data.

    Attributes:
      name: A built-in data set, or the path of a schema file.
      folder: Where the files of the schema are. None: as the schema says.
      cache_dir: Folder for downloads. None: ~/.cache/rec_estimator.
    """

    name: str = "movielens_100k"
    folder: Optional[str] = None
    cache_dir: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Table:
    """Settings of a table; None: those of `tables.default`, then those of the model.

    Attributes:
      dim: Floats per row. Most models need the same in all tables.
      filter: counter or bloom, with the arguments of CounterFilter or CBFFilter.
      eviction: global_step or l2_weight, with the arguments of GlobalStepEvict or L2WeightEvict. It
        runs at each full checkpoint, see `train.save_steps`.
      initializer: constant, normal, truncated_normal, uniform or zeros, with their arguments.
      regularizer: l2 or lazy_decay, with the arguments of L2Regularizer or LazyDecay.
    """

    dim: Optional[int] = None
    filter: Optional[Mapping[str, Any]] = None
    eviction: Optional[Mapping[str, Any]] = None
    initializer: Optional[Mapping[str, Any]] = None
    regularizer: Optional[Mapping[str, Any]] = None

    def __post_init__(self) -> None:
        _check_least(self, {"dim": 1})
        _check_numbers(self, "filter", "eviction", "initializer", "regularizer")


@dataclasses.dataclass(frozen=True)
class Train:
    """Training.

    Attributes:
      order: "shuffled": epochs over the shuffled rows. "time": one pass over the rows in their
        order, in windows of `validation.every_steps`; the model predicts each window, then trains
        on it.
      batch_size: Rows per step.
      epochs: Passes over the training rows, at most; early stopping may end it sooner.
      with_validation: Whether the validation rows are training rows too. Then nothing is validated,
        and training ends after `epochs`, which a run with validation has chosen.
      steps: Steps, at most. None: `epochs` decides.
      seed: Of initial values, of the order of rows and of dropout.
      optimizer: A name of model_zoo.minimize.OPTIMIZERS and its arguments.
      table_optimizer: The same for tables. None: `optimizer`.
      schedule: Of the learning rate: a name of model_zoo.minimize.SCHEDULES and its arguments.
      clip_norm: Largest global norm of the gradients. None: they are not clipped.
      save_steps: Steps between two checkpoints. None: one every 10 minutes and at the end of each
        epoch.
      incremental_steps: Steps between two incremental checkpoints. None: none.
      deterministic: Whether ops of a step run one after the other, so that the same seed gives the
        same bits. False is faster on several cores.
    """

    order: str = "shuffled"
    batch_size: int = 512
    epochs: int = 4
    with_validation: bool = False
    steps: Optional[int] = None
    seed: int = 1
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(_ADAM))
    table_optimizer: Optional[Mapping[str, Any]] = None
    schedule: Optional[Mapping[str, Any]] = None
    clip_norm: Optional[float] = None
    save_steps: Optional[int] = None
    incremental_steps: Optional[int] = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        _check_one_of(self, "order", ORDERS)
        least = dict.fromkeys(("batch_size", "epochs", "steps"), 1)
        _check_least(self, {**least, "save_steps": 1, "incremental_steps": 1, "clip_norm": 0})
        _check_numbers(self, "optimizer", "table_optimizer", "schedule")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be from 0 to 2**31 - 1, got {self.seed}")


@dataclasses.dataclass(frozen=True)
class Validation:
    """Validation on the validation rows, early stopping, and the choice of the best checkpoint.

    Attributes:
      metric: A metric of the model, such as auc or log_loss, or of its first label. Names that end
        in loss or normalized_entropy are best when low, those that end in calibration near 1, and
        all others when high. None: auc, or hit_rate_at_10 of two towers.
      patience: Validations without a better metric after which training stops. None: it goes on.
        The best checkpoint is used in either case.
      every_steps: Steps between two validations. None: an epoch; in the order of time, a twentieth
        of the rows.
      learning_rate_factor: Of the learning rates, at each validation without a better metric. 1:
        they stay.
      batch_size: Rows per batch of evaluation and prediction.
    """

    metric: Optional[str] = None
    patience: Optional[int] = 2
    every_steps: Optional[int] = None
    learning_rate_factor: float = 1.0
    batch_size: int = 4096

    def __post_init__(self) -> None:
        _check_least(self, {"patience": 1, "every_steps": 1, "batch_size": 1})
        if not 0 < self.learning_rate_factor <= 1:
            raise ValueError(
                f"learning_rate_factor must be above 0 and at most 1, got "
                f"{self.learning_rate_factor}"
            )


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What else runs in training and evaluation.

    Attributes:
      graph_modification: Whether keys are computed in the input pipeline (GraphModifierHook).
      sample_compression: Whether samples with equal user columns are grouped, and what depends on
        the user alone is computed once (SampleCompression).
      progress: Whether progress is shown.
    """

    graph_modification: bool = False
    sample_compression: bool = False
    progress: bool = True


@dataclasses.dataclass(frozen=True)
class Export:
    """The SavedModel.

    Attributes:
      folder: Where training writes it at its end. None: training writes none.
      kind: native, compressed (one row of user columns per user, and item_size) or portable (ops of
        TensorFlow only).
      row_dtype: int8, float16 or bfloat16: rows of fewer bits. None: as they are trained.
    """

    folder: Optional[str] = None
    kind: str = "native"
    row_dtype: Optional[str] = None

    def __post_init__(self) -> None:
        _check_one_of(self, "kind", EXPORT_KINDS)


@dataclasses.dataclass(frozen=True)
class Config:
    """A run.

    Attributes:
      model: A name of model_zoo.models.MODELS.
      params: Those of the model; its DEFAULTS lists them.
      data: The data.
      tables: Settings of tables by the name of a table or a column; "default" is for all.
      train: Training.
      validation: Validation and early stopping.
      hooks: What else runs.
      export: The SavedModel.
      model_dir: Folder of checkpoints and of run.json. A run that finds its checkpoints goes on.
        None: a temporary folder.
    """

    model: str = "wide_and_deep"
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Data = Data()
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    train: Train = Train()
    validation: Validation = Validation()
    hooks: Hooks = Hooks()
    export: Export = Export()
    model_dir: Optional[str] = None

    def replace(self, **settings: Any) -> "Config":
        """Returns a copy in which settings have other values.

        Args:
          **settings: By path, with two underscores for a point: train__epochs=2.

        Raises:
          ValueError: A name is not known, or a value does not fit.

        Example:
          >>> Config().replace(model="deepfm", train__epochs=2).train.epochs
          2
        """
        values = self.as_dict()
        for path, value in settings.items():
            set_value(values, path.replace("__", "."), value)
        return from_dict(values)

    def as_dict(self) -> Dict[str, Any]:
        """Returns nested dicts, as JSON or YAML can hold them."""
        return dataclasses.asdict(self)


def from_dict(values: Mapping[str, Any]) -> Config:
    """Returns the configuration that nested mappings describe.

    Raises:
      ValueError: A name is not known, or a value does not fit.

    Example:
      >>> from_dict({"model": "din", "train": {"epoch": 3}})
      Traceback (most recent call last):
      ValueError: names in train must be among order, ..., got 'epoch'; did you mean epochs?
    """
    return parse(Config, values)


def load(file: Optional[str] = None, settings: Sequence[str] = ()) -> Config:
    """Reads a configuration.

    Args:
      file: A YAML file, or the name of one in model_zoo/configs. None: the defaults.
      settings: Overrides the file: "train.batch_size=512". A value is YAML, such as [64, 32].

    Raises:
      ValueError: A name is not known, a value does not fit, or a setting has no "=".
      OSError: The file cannot be read.

    Example:
      >>> load(None, ["train.batch_size=128", "params.hidden_units=[8, 4]"]).params
      {'hidden_units': [8, 4]}
    """
    found = {} if file is None else yaml_files.read(_path_of(file))
    return override(from_dict(found or {}), settings)


def override(config: Config, settings: Sequence[str]) -> Config:
    """Returns a copy of a configuration in which settings, as those of `load`, have other values.

    Raises:
      ValueError: As `load`.
    """
    values = config.as_dict()
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ValueError(f"a setting must be NAME=VALUE, got {setting!r}")
        set_value(values, path.strip(), yaml_files.parse(text))
    return from_dict(values)


def _path_of(file: str) -> pathlib.Path:
    built_in = CONFIGS / f"{file}.yaml"
    return built_in if built_in.exists() else pathlib.Path(file).expanduser()
