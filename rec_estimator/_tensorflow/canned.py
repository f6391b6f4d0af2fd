# SPDX-License-Identifier: Apache-2.0
"""Canned estimators and heads that are made of Keras 2's layers and metrics.

They work where ``tf.keras`` is Keras 2, and are refused where it is Keras 3. ``tf.keras`` is looked
at when one is made, not before. Checked on TensorFlow 2.15 to 2.21.
"""

import functools
from typing import Any

import tensorflow as tf


def checked(made: Any) -> Any:
    """Returns ``made``, a class or function, with a check of ``tf.keras`` before it is called.

    The check raises a RuntimeError that names ``made`` if ``tf.keras`` is Keras 3.
    """
    # With Keras 3 they fail somewhere inside of Keras, with messages about its attributes.
    is_class = isinstance(made, type)
    call = vars(made)["__init__"] if is_class else made

    @functools.wraps(call)
    def checked_call(*args: Any, **kwargs: Any) -> Any:
        _check(made.__name__)
        return call(*args, **kwargs)

    if not is_class:
        return checked_call
    members = {"__init__": checked_call, "__doc__": made.__doc__, "__module__": made.__module__}
    return type(made)(made.__name__, (made,), members)


def _check(name: str) -> None:
    # Keras 3 dropped this layer, which canned estimators are built on.
    if hasattr(tf.keras.layers, "DenseFeatures"):
        return
    minor = ".".join(tf.__version__.split(".")[:2])
    raise RuntimeError(
        f"tf.keras must be Keras 2 for {name}, which consists of its layers and metrics, got "
        f"Keras 3; run: pip install --no-deps tf-keras=={minor}.*, and set TF_USE_LEGACY_KERAS=1 "
        "before TensorFlow is imported, or write the loss and the metrics in a model_fn"
    )
