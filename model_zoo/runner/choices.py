# SPDX-License-Identifier: Apache-2.0
"""What a configuration chooses by name: filters, evictions, initializers and regularizers.

A choice is a mapping with the name and the arguments of the class: {name: counter, filter_freq: 3}.
"""

import inspect
from typing import Any, Callable, Dict, Mapping, Optional

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.names import check_names

CHOICES: Dict[str, Dict[str, Callable[..., Any]]] = {
    "filter": {"counter": rec.CounterFilter, "bloom": rec.CBFFilter},
    "eviction": {"global_step": rec.GlobalStepEvict, "l2_weight": rec.L2WeightEvict},
    "initializer": {
        "constant": tf.constant_initializer,
        "normal": tf.random_normal_initializer,
        "truncated_normal": tf.truncated_normal_initializer,
        "uniform": tf.random_uniform_initializer,
        "zeros": tf.zeros_initializer,
    },
    "regularizer": {"l2": rec.L2Regularizer, "lazy_decay": rec.LazyDecay},
}


def choose(kind: str, choice: Optional[Mapping[str, Any]], path: str) -> Any:
    """Makes the object that a choice describes.

    Args:
      kind: A key of CHOICES.
      choice: The name and the arguments. None, or the name "none": there is none.
      path: Of the choice in the configuration, for errors.

    Returns:
      The object, or None.

    Raises:
      ValueError: The name or an argument is not known, or a value does not fit.

    Example:
      >>> choose("filter", {"name": "counter", "filter_freq": 3}, "tables.default.filter")
      CounterFilter(filter_freq=3)
    """
    if choice is None or choice.get("name") == "none":
        return None
    known = CHOICES[kind]
    name = str(choice.get("name"))
    check_names(f"{path}.name", [name], [*known, "none"])
    arguments = {key: value for key, value in choice.items() if key != "name"}
    taken = [each for each in inspect.signature(known[name]).parameters if each != "self"]
    check_names(f"names in {path}", arguments, ["name", *taken])
    try:
        return known[name](**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
