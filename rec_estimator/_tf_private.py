"""The only file that imports ``tensorflow.python``: every private name we use, and why.

A new TensorFlow release is first tried against this list.
"""

import contextlib

from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.client import session as _session
from tensorflow.python.data.util import structure as _structure
from tensorflow.python.feature_column import feature_column as _feature_column
from tensorflow.python.feature_column import feature_column_v2 as _feature_column_v2
from tensorflow.python.feature_column import utils as _feature_column_utils
from tensorflow.python.framework import dtypes as _dtypes
from tensorflow.python.framework import op_def_registry as _op_def_registry
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2
from tensorflow.python.trackable import base as _trackable
from tensorflow.python.training import saver as _saver
from tensorflow.python.training.saving import saveable_object as _saveable_object
from tensorflow.python.util import object_identity as _object_identity

# Places an op beside a table's rows. The public tf.compat.v1.colocate_with is the same function
# behind a warning that would be the user's first impression; the placer does not know our ops'
# colocation.
colocate_with = _ops.colocate_with

# What all of TensorFlow's initializers are instances of: tf.compat.v1's and tf's.
INITIALIZERS = (_init_ops.Initializer, _init_ops_v2.Initializer)

# What tf.compat.v1.train.Saver asks of an object in SAVEABLE_OBJECTS; TF exports only the Saver.
SaveableObject = _saveable_object.SaveableObject
SaveSpec = _saveable_object.SaveSpec

# What tf.compat.v1.train.Saver.save() takes: a session, a debugger's wrapper of one, but no
# MonitoredSession, whose hooks would run within a hook.
SessionInterface = _session.SessionInterface

# The public update_checkpoint_state() warns that it is deprecated on each save.
write_checkpoint_state = _checkpoint_management.update_checkpoint_state_internal


class SaverBuilder(_saver.BulkSaverBuilder):
    """The builder behind tf.compat.v1.train.Saver, which calls a method without public name.

    Ours reads tables itself instead of through RestoreV2, whose tensor names are fixed when the
    graph is built.
    """

    def building(self):
        """A context that a build happens in; for subclasses to override."""
        return contextlib.nullcontext()

    def _build_internal(self, *args, **kwargs):
        with self.building():
            return super()._build_internal(*args, **kwargs)


# In GLOBAL_VARIABLES a Saver asks a Trackable what to save instead of taking it for a tensor: so a
# table's initializer can be run by global_variables_initializer() and reported by
# report_uninitialized_variables() without a tensor of its own in the checkpoint.
Trackable = _trackable.Trackable

# What tf.Variable.ref() returns; tf.custom_gradient (and with it tf.nn.swish) asks every member of
# GLOBAL_VARIABLES for one.
Reference = _object_identity.Reference

# What tf.compat.v1.feature_column.input_layer and make_parse_example_spec take for columns: they
# ask for the older classes, tf.feature_column's functions for the newer ones.
CategoricalColumn = _feature_column_v2.CategoricalColumn
CategoricalColumnV1 = _feature_column._CategoricalColumn
DenseColumn = _feature_column_v2.DenseColumn
DenseColumnV1 = _feature_column._DenseColumn
SequenceDenseColumn = _feature_column_v2.SequenceDenseColumn
SequenceDenseColumnV1 = _feature_column._SequenceDenseColumn

# TensorFlow's own wrappers of a categorical column, whose public functions log a deprecation or
# make columns of a fixed vocabulary only.
SequenceCategoricalColumn = _feature_column_v2.SequenceCategoricalColumn
WeightedCategoricalColumn = _feature_column_v2.WeightedCategoricalColumn

# How many ids each example of a sequence has, as TensorFlow's sequence columns count them.
sequence_length_from_sparse_tensor = _feature_column_utils.sequence_length_from_sparse_tensor


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


def is_stateful_op_type(op_type) -> bool:
    """Whether ops of a type keep or read state; unknown types do."""
    # Bodies of functions name their ops' types only.
    op_def = _op_def_registry.get(op_type)
    return op_def is None or op_def.is_stateful


def iterator_resource(iterator):
    """The handle that a tf.data.Iterator takes its batches from."""
    # A graph does not know the structure of a batch; its iterator, found by this, does.
    return iterator._iterator_resource


def batch_of_tensors(element_spec, tensors):
    """The batch of the structure ``element_spec`` from the first ones of ``tensors``."""
    # SparseTensor and RaggedTensor leave an iterator as variants; only TF knows how to read them.
    count = len(_structure.get_flat_tensor_specs(element_spec))
    return _structure.from_compatible_tensor_list(element_spec, list(tensors)[:count])


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
