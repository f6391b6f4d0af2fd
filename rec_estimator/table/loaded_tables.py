# SPDX-License-Identifier: Apache-2.0
"""Tables in graphs that ``tf.saved_model.load`` of TensorFlow 2 loads: they end with the model.

It turns the graph of a SavedModel into functions and makes a variable outside of them for each
variable of the graph. Any other resource would stay in the process under the name that an op of the
functions has for it. So each table is made outside too, and the functions take its handle: the last
of them that is deleted deletes the table.
"""

from typing import Optional

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, loaded_graphs
from rec_estimator.graph_passes.graph_state import TABLE_HANDLES


def add_handle(op: tf.Operation) -> None:
    """Lets MetaGraphs of the default graph name an op that makes the handle of a table."""
    tf.add_to_collection(TABLE_HANDLES, op)


def _to_proto(op: tf.Operation, export_scope: Optional[str] = None) -> tf.NodeDef:
    # TensorFlow exports what begins with the text of the scope: of scope "a", also "ab" as it is.
    scope = f"{export_scope.rstrip('/')}/" if export_scope else ""
    return tf.NodeDef(name=op.name[len(scope) if op.name.startswith(scope) else 0 :])


def _from_proto(proto: tf.NodeDef, import_scope: Optional[str] = None) -> tf.Operation:
    scope = f"{import_scope.rstrip('/')}/" if import_scope else ""
    op = tf.get_default_graph().get_operation_by_name(scope + proto.name)
    if graphs.is_function_graph(op.graph):
        with tf.init_scope():
            # Otherwise the functions belong to a graph, whose session has the tables.
            if tf.executing_eagerly():
                attrs = {attr.name: op.get_attr(attr.name) for attr in op.op_def.attr}
                attrs["owned_by_handle"] = True
                handle = _ops.gen.rec_estimator_table_handle(**attrs)
                loaded_graphs.lift(op.outputs[0], handle)
    return op


loaded_graphs.call_at_imports(TABLE_HANDLES, _to_proto, _from_proto)
