# SPDX-License-Identifier: Apache-2.0
"""Private names for graphs that an import makes of a MetaGraph. Checked on TensorFlow 2.15."""

from typing import Callable

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as _ops


def call_at_imports(
    collection: str,
    to_proto: Callable[..., tf.NodeDef],
    from_proto: Callable[..., tf.Operation],
) -> None:
    """Makes a MetaGraph hold a collection of ops, and every import of one call ``from_proto``.

    Args:
      collection: The collection. To be registered once in a process.
      to_proto: Called with an op that is exported and ``export_scope``.
      from_proto: Called with what to_proto returned and ``import_scope``, the new graph being the
        default one. Returns the op in that graph.
    """
    # An import has no public hook. TensorFlow's own variables are imported by this one.
    _ops.register_proto_function(
        collection, proto_type=tf.NodeDef, to_proto=to_proto, from_proto=from_proto
    )


def lift(inside: tf.Tensor, outside: tf.Tensor) -> None:
    """Makes a function take a tensor from outside for one that an op of its body computes.

    Args:
      inside: A tensor of the body of a function that is being built.
      outside: An eager tensor. Lives as long as the function, and as those that
        tf.saved_model.load cuts out of it.
    """
    # tf.saved_model.load does so with the handle of each variable; a FuncGraph is private.
    inside.graph.add_capture(outside, inside)
