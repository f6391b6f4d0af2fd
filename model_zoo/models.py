# SPDX-License-Identifier: Apache-2.0
"""The models of the zoo by name. A model is a file and a line here.

Each module has three names:

    DEFAULTS                                  every param that the model reads, with its default
    features(data, params)                    the embedded features of a data set
    model_fn(features, labels, mode, params)  the EstimatorSpec

A model that reads the data in another form, as two towers do, has a fourth:

    view(data, params)                        the data set in that form

`params` are DEFAULTS with the user's settings, and "columns" and "labels" of the data set and
"training", a minimize.Training. `features` of model_fn are the columns of the data set: float32
[B, dim] for a column of ids, float32 [B] for a number; a model that asks for the items of a
history one by one gets float32 [B, max_length, dim] with the mask "<name>_mask" bool
[B, max_length]; "<name>_ids" has the ids themselves. `labels` are float32 [B], 0 or 1, by name if
there are several, and None in prediction. `mode` is one of rec.ModeKeys.
"""

import importlib
from typing import Any, Dict, Mapping, Optional

from model_zoo.data import DataSet
from model_zoo.mappings import parse
from model_zoo.minimize import Training
from model_zoo.names import check_names

MODELS = {
    name: importlib.import_module(f"model_zoo.{name}")
    for name in (
        "wide_and_deep",
        "deepfm",
        "xdeepfm",
        "dcn",
        "dcnv2",
        "dlrm",
        "masknet",
        "fibinet",
        "finalmlp",
        "din",
        "dien",
        "bst",
        "neumf",
        "simple_multitask",
        "mmoe",
        "ple",
        "esmm",
        "dbmtl",
        "dssm",
    )
}


def view_of(model: str, data: DataSet, settings: Optional[Mapping[str, Any]] = None) -> DataSet:
    """Returns a data set in the form that a model reads; for most models, as it is.

    Args:
      model: A key of MODELS.
      data: The data set.
      settings: Values in place of those of DEFAULTS.

    Raises:
      ValueError: The model or a setting is unknown.
    """
    params = params_of(model, data, settings)
    return MODELS[model].view(data, params) if hasattr(MODELS[model], "view") else data


def params_of(
    model: str,
    data: DataSet,
    settings: Optional[Mapping[str, Any]] = None,
    training: Optional[Training] = None,
) -> Dict[str, Any]:
    """Returns the params of a model for a data set.

    Args:
      model: A key of MODELS.
      data: The data set.
      settings: Values in place of those of DEFAULTS.
      training: None: the defaults of Training.

    Raises:
      ValueError: The model or a setting is unknown, or a value has another type than the default.
    """
    check_names("model", [model], MODELS)
    defaults = MODELS[model].DEFAULTS
    check_names(f"params of {model}", settings or (), defaults)
    own = {
        name: _like(defaults[name], value, f"params.{name}")
        for name, value in (settings or {}).items()
    }
    if own.get("dim", 1) < 1:
        raise ValueError(f"params.dim must be at least 1, got {own['dim']}")
    return {
        **defaults,
        **own,
        "columns": data.columns,
        "labels": data.labels,
        "training": training or Training(),
    }


def _like(default: Any, value: Any, path: str) -> Any:
    """Converts a value to the type of a default."""
    if default is None or value is None or isinstance(default, Mapping):
        return value
    if isinstance(default, (list, tuple)):
        values = value if isinstance(value, (list, tuple)) else [value]
        example = default[0] if default else None
        return tuple(_like(example, each, f"{path}[{i}]") for i, each in enumerate(values))
    return parse(type(default), value, path)
