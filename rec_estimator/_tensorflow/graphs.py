"""Private names about graphs and ops: placement, control flow, rewiring.

Checked on TensorFlow 2.15.
"""

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

# Places an op beside a table's rows. The public tf.compat.v1.colocate_with is the same function
# behind a warning that would be the user's first impression; the placer does not know our ops'
# colocation.
colocate_with = _ops.colocate_with


def is_function_graph(graph) -> bool:
    """Whether ``graph`` is the body of a function (tf.data map, tf.cond v2, tf.while_loop v2)."""
    # FuncGraph is private; TF itself tells them apart by this attribute (tf.Graph has False).
    return bool(getattr(graph, "building_function", False))


def outermost_graph(graph):
    """The graph that the function whose body is ``graph`` is made for; ``graph`` if it is none."""
    # FuncGraph.outer_graph: what a dataset's function finds is for the lookups of the whole graph.
    while is_function_graph(graph):
        graph = graph.outer_graph
    return graph


def in_control_flow(op) -> bool:
    """Whether ``op`` is inside tf.cond or tf.while_loop, of either version."""
    # The v1 control flow context of an op has no public reader.
    return is_function_graph(op.graph) or op._get_control_flow_context() is not None


def function_graph(graph, name):
    """The graph of the function ``name`` that ``graph`` knows; None if it was loaded."""
    # The bodies of tf.while_loop and tf.cond have no public reader.
    function = graph._get_function(name)
    return getattr(function, "graph", None)


def outermost_control_flow(op):
    """What names the outermost tf.while_loop or tf.cond (v1) around ``op``; None outside of any."""
    # As in_control_flow; contexts are the same object for all ops of a loop.
    context = op._get_control_flow_context()
    while context is not None and context.outer_context is not None:
        context = context.outer_context
    return context


def add_control_inputs(op, inputs) -> None:
    """Makes ``op``, which exists already, wait for the ops ``inputs``."""
    # tf.Graph.control_dependencies reaches new ops only; a stock train_op is there before ours.
    op._add_control_inputs(list(inputs))


def update_input(op, index, tensor) -> None:
    """Makes ``tensor`` the input ``index`` of ``op``, which exists already."""
    # A graph is rewired in place: what a user holds of it stays valid.
    op._update_input(index, tensor)


def set_attr(op, name, value) -> None:
    """Sets an attribute of ``op``, which exists already, to the tf.AttrValue ``value``."""
    # Attributes can be given to an op that a user has made in no other way.
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


def is_stateful_op_type(op_type) -> bool:
    """Whether ops of a type keep or read state; unknown types do."""
    # Bodies of functions name their ops' types only.
    op_def = _op_def_registry.get(op_type)
    return op_def is None or op_def.is_stateful


def has_kernel_state(op_type) -> bool:
    """Whether ops of a type keep something between steps that no resource holds; or are unknown."""
    # Random ops, for example, keep where their generator is in their kernel.
    op_def = _op_def_registry.get(op_type)
    if op_def is None:
        return True
    arguments = [*op_def.input_arg, *op_def.output_arg]
    return op_def.is_stateful and not any(
        argument.type in (_dtypes.resource, _dtypes.variant) for argument in arguments
    )
