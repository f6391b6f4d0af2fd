# SPDX-License-Identifier: Apache-2.0
"""Private names for graphs and ops: placement, control flow, rewiring.

Checked on TensorFlow 2.15 and 2.21.
"""

from typing import Hashable, Iterable, Optional

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import backprop as _backprop
from tensorflow.python.framework import dtypes as _dtypes
from tensorflow.python.framework import op_def_registry as _op_def_registry
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import gradients_impl as _gradients

# The files of these functions, as call stacks name them. Every function of the first one builds
# gradients.
_GRADIENTS_FILE = _gradients.gradients.__code__.co_filename
_TAPE_METHODS = ("batch_jacobian", "gradient", "jacobian")
_TAPE_FILE = _backprop.GradientTape.gradient.__code__.co_filename

# Places an op on the device of a table's rows. TensorFlow's placer knows no colocation for our ops,
# and the public name of this function, tf.compat.v1.colocate_with, logs a deprecation warning.
colocate_with = _ops.colocate_with


def is_function_graph(graph: tf.Graph) -> bool:
    """Whether ``graph`` is the body of a function (tf.data map, tf.cond v2, tf.while_loop v2)."""
    # FuncGraph is private. TensorFlow tests the same attribute; it is False in a tf.Graph.
    return bool(getattr(graph, "building_function", False))


def outermost_graph(graph: tf.Graph) -> tf.Graph:
    """Returns the graph that contains the function with body ``graph``, or ``graph`` itself.

    Functions inside functions are resolved up to the outermost graph.
    """
    # FuncGraph.outer_graph has no public reader.
    while is_function_graph(graph):
        graph = graph.outer_graph
    return graph


def in_control_flow(op: tf.Operation) -> bool:
    """Whether ``op`` is inside tf.cond or tf.while_loop, control flow v1 or v2."""
    # The control flow v1 context of an op has no public reader.
    return is_function_graph(op.graph) or op._get_control_flow_context() is not None


def place_of_new_ops(graph: tf.Graph) -> Hashable:
    """Returns what decides when an op that is built in ``graph`` now would run.

    Two ops with equal inputs and equal places run in the same order to all other ops.
    """
    # The current control flow v1 context and control dependencies of a graph have no public reader.
    return graph._get_control_flow_context(), frozenset(graph._current_control_dependencies())


def function_graph(graph: tf.Graph, name: str) -> Optional[tf.Graph]:
    """Returns the body of the function ``name`` of ``graph``, or None if it was loaded."""
    # The bodies of tf.while_loop and tf.cond have no public reader.
    function = graph._get_function(name)
    return getattr(function, "graph", None)


def outermost_control_flow(op: tf.Operation) -> Optional[object]:
    """Returns a token for the outermost control flow v1 loop or condition around ``op``.

    All ops of one loop or condition give the same token. None: ``op`` is in none.
    """
    # As in in_control_flow. The token is the context itself.
    context = op._get_control_flow_context()
    while context is not None and context.outer_context is not None:
        context = context.outer_context
    return context


def add_control_inputs(op: tf.Operation, inputs: Iterable[tf.Operation]) -> None:
    """Makes the existing op ``op`` wait for the ops ``inputs``."""
    # tf.Graph.control_dependencies affects new ops only; the train_op of a stock optimizer exists
    # before our ops.
    op._add_control_inputs(list(inputs))


def update_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces the input ``index`` of the existing op ``op`` by ``tensor``."""
    # A graph is rewired in place, so that a user's references to its ops stay valid.
    op._update_input(index, tensor)


def set_attr(op: tf.Operation, name: str, value: tf.AttrValue) -> None:
    """Sets an attribute of the existing op ``op``."""
    # There is no public way to change an attribute of an op that a user has built.
    op._set_attr(name, value)


def is_of_gradients(op: _ops.Operation) -> bool:
    """Whether tf.gradients or a tf.GradientTape built ``op``.

    TensorFlow keeps the Python call stack in which an op was built. An op belongs to gradients if
    a call of tf.gradients or of a tape's gradient() or jacobian() is on that stack. This includes
    the sums, ones and zeros that lie between the gradients of single ops.

    An op that was imported (from a GraphDef, a MetaGraph or a SavedModel) has no stack: whether it
    was once part of gradients cannot be known.
    """
    # Operation._original_op is set by tf.gradients only, not by tapes, and not on sums, ones and
    # zeros. Name scopes ("x_grad", "gradient_tape") may also be the user's own.
    return any(
        frame.filename == _GRADIENTS_FILE
        or (frame.filename == _TAPE_FILE and frame.name in _TAPE_METHODS)
        for frame in op.traceback or ()
    )


def is_stateful_op_type(op_type: str) -> bool:
    """Whether ops of a type read or keep state. True for unknown types."""
    # Inside a function only the types of its ops are known, as strings.
    op_def = _op_def_registry.get(op_type)
    return op_def is None or op_def.is_stateful


def has_kernel_state(op_type: str) -> bool:
    """Whether ops of a type keep state in their kernel and not in a resource.

    Random ops, for example, keep their generator in the kernel. True for unknown types.
    """
    # As in is_stateful_op_type.
    op_def = _op_def_registry.get(op_type)
    if op_def is None:
        return True
    arguments = [*op_def.input_arg, *op_def.output_arg]
    return op_def.is_stateful and not any(
        argument.type in (_dtypes.resource, _dtypes.variant) for argument in arguments
    )
