# SPDX-License-Identifier: Apache-2.0
"""Argument checks shared by Rec SDK's optimizer factories, such as create_hash_optimizer().

As in Rec SDK every bad argument is a ValueError, also one of a wrong type.

Source: Rec SDK TensorFlow, "Optimizers" (docs/zh/tensorflow/tf_rec_v1/api/optimizers_apis.md in its
repository).
"""

import math

import tensorflow.compat.v1 as tf

from rec_estimator._init_settings import init_settings
from rec_estimator.optimizers.table_optimizer import Hyperparameter, check_hyperparameter

# Rec SDK's limits: the learning rate; L1, L2 and shrinkage of Ftrl; characters of names.
MAX_LEARNING_RATE = 10.0
MAX_REGULARIZATION = 1e4
MAX_NAME = 200
MAX_SLOT_NAME = 255


def check_expansion(factory: str, is_by_address: bool) -> None:
    """Checks that a factory fits init(use_dynamic_expansion=). Without init() every factory does.

    Args:
      factory: Name of the factory, for the message.
      is_by_address: Whether Rec SDK has it for tables with dynamic expansion.

    Raises:
      ValueError: The factory is for the other kind of tables.
    """
    settings = init_settings()
    if settings is None:
        return
    has_expansion = settings.use_dynamic_expansion
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
    """Checks a learning rate. The value of a tensor, variable or callable is not checked.

    Raises:
      ValueError: It is not a float in [0, 10].
    """
    if isinstance(value, (tf.Tensor, tf.Variable)) or callable(value):
        return
    check_float("learning_rate", value, at_least=0, at_most=MAX_LEARNING_RATE)


def check_float(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Checks that a value is a Python float within the bounds.

    Raises:
      ValueError: It is not.
    """
    if not isinstance(value, float):
        raise ValueError(f"{name} must be a float, got {value!r}; write 1.0 for 1")
    check_hyperparameter(name, value, at_least=at_least, at_most=at_most, above=above, below=below)
