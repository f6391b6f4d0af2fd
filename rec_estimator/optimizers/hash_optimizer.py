# SPDX-License-Identifier: Apache-2.0
"""The arguments of Rec SDK's factories, create_hash_optimizer() and its like, and their ranges.

Source: Rec SDK TensorFlow, "Optimizers" (docs/zh/tensorflow/tf_rec_v1/api/optimizers_apis.md in its
repository). As there, whatever is wrong with an argument is a ValueError, a wrong type included.
"""

import math
from typing import Any

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.table_updates import Hyperparameter, check_hyperparameter
from rec_estimator.rec_sdk import runtime

# Rec SDK's greatest learning rate, and greatest L1, L2 and shrinkage of Ftrl.
MAX_LEARNING_RATE = 10.0
MAX_REGULARIZATION = 1e4
# Characters of a name.
MAX_NAME = 200
MAX_SLOT_NAME = 255


def check_expansion(factory: str, is_by_address: bool) -> None:
    """Refuses a factory that Rec SDK has for the other kind of tables; without init() both do.

    Args:
      factory: As the user calls it.
      is_by_address: Whether it is for tables of dynamic expansion.

    Raises:
      ValueError: init() said otherwise.
    """
    try:
        has_expansion = runtime.ConfigInitializer.get_instance().use_dynamic_expansion
    except OSError:
        return
    if has_expansion != is_by_address:
        remedy = (
            "use the factory of the module without _by_addr"
            if is_by_address
            else "use one of lazy_adam_by_addr, adagrad_by_addr and gradient_descent_by_addr"
        )
        raise ValueError(
            "The dynamic expansion mode is not compatible with the optimizer: "
            f"init(use_dynamic_expansion=) must be {is_by_address} for {factory}, got "
            f"{has_expansion}; {remedy}"
        )


def check_learning_rate(value: Hyperparameter) -> None:
    """Refuses what is neither a float in [0, 10] nor known in a step only.

    Raises:
      ValueError: Says what it must be and what it is.
    """
    if isinstance(value, (tf.Tensor, tf.Variable)) or callable(value):
        return
    check_float("learning_rate", value, at_least=0, at_most=MAX_LEARNING_RATE)


def check_float(
    name: str,
    value: Any,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Refuses what is not a Python float within the bounds.

    Raises:
      ValueError: Says what it must be and what it is.
    """
    if not isinstance(value, float):
        raise ValueError(f"{name} must be a float, got {value!r}; write 1.0 for 1")
    check_hyperparameter(name, value, at_least=at_least, at_most=at_most, above=above, below=below)
