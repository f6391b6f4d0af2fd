# SPDX-License-Identifier: Apache-2.0
"""Gives the libraries of others the ``tf.estimator`` that TensorFlow 2.16 removed.

Your own scripts take the names from ``rec_estimator`` (docs/migrating.md). A library that spells
``tf.estimator`` cannot. Call ``install()`` before you import it:

    import rec_estimator.compat

    rec_estimator.compat.install()
    import deepctr.estimator

Nothing in this package calls ``install()``.
"""

from typing import Optional

from rec_estimator._tensorflow.estimator_names import EstimatorNames

__all__ = ["install", "uninstall"]

_installed: Optional[EstimatorNames] = None


def install() -> None:
    """Adds ``tf.estimator`` to TensorFlow 2.16 to 2.21, until ``uninstall()``.

    These names then exist in this process: ``tf.estimator``, ``tf.compat.v1.estimator``,
    ``tf.compat.v2.estimator`` and the modules of ``tensorflow.python.estimator``. They are those of
    the tensorflow_estimator package that ``rec_estimator`` uses. Canned estimators and heads need
    Keras 2, as ``rec_estimator``'s; docs/migrating.md lists what does not work. A second call does
    nothing.

    Raises:
      RuntimeError: TensorFlow or another package has such a name, as TensorFlow 2.15 does. Nothing
        has changed.
    """
    global _installed
    if _installed is None:
        names = EstimatorNames()
        names.add()
        _installed = names


def uninstall() -> None:
    """Removes what ``install()`` has added.

    Libraries that have taken a name keep it. Without ``install()``, nothing is done.
    """
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None
