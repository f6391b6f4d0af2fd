# SPDX-License-Identifier: Apache-2.0
"""Converts the graph of a SavedModel to TensorFlow's own ops.

A MetaGraph is imported, its lookups are replaced by those of stock_tables.py, the ops around them
by those of stock_ops.py, and everything that a loader cannot reach any more is removed. What is
left must contain no op of this package.
"""

from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

# These messages are part of TensorFlow's promise about SavedModels; the place of their classes is
# not.
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.graph_state import KERNEL_ROWS
from rec_estimator.serving.stock_tables import StockTable, replace_ops

_VARIABLE_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
    tf.GraphKeys.LOCAL_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
)

# The collection in which a SavedModel names the training op; TensorFlow does not export this name.
_TRAIN_OP = "saved_model_train_op"

# The collections of a MetaGraph that a loader reads.
_COLLECTIONS = (
    *_VARIABLE_COLLECTIONS,
    tf.saved_model.ASSETS_KEY,
    tf.saved_model.MAIN_OP_KEY,
)

# Collections that only the conversion reads. The contexts tell which ops are in control flow v1.
_CONVERTER_COLLECTIONS = (tf.GraphKeys.COND_CONTEXT, tf.GraphKeys.WHILE_CONTEXT, KERNEL_ROWS)


def convert_meta_graph(
    source: tf.MetaGraphDef, bundle: Bundle
) -> Tuple[tf.MetaGraphDef, List[StockTable]]:
    """Converts a MetaGraph of a SavedModel to TensorFlow's own ops.

    Args:
      source: A MetaGraph with ops of this package.
      bundle: The checkpoint with its variables and tables.

    Returns:
      The MetaGraph, and the tables that it reads.

    Raises:
      ValueError: An op of this package cannot be replaced, or the checkpoint lacks a table.
    """
    wanted = _external_names(source)
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(
            _with_collections(source, (*_COLLECTIONS, *_CONVERTER_COLLECTIONS))
        )
        needed = _needed(_nodes_by_name(source.graph_def), wanted)
        ours = [
            op
            for op in graph.get_operations()
            if op.type in op_registry.WITH_STOCK_FORM and op.name in needed
        ]
        tables, outputs = replace_ops(ours, bundle)
        saver_def = _add_saver()
        graph_def = graph.as_graph_def()
        nodes = _nodes_by_name(graph_def)
        for name, tensors in outputs.items():
            _make_identity(nodes[name], tensors)
        _initialize_after_restore(source, nodes, tables)
        protos = [
            variable.to_proto().SerializeToString()
            for table in tables
            for variable in table.variables
        ]
        wanted |= _names_in(protos)
        if saver_def is not None:
            wanted |= {
                saver_def.filename_tensor_name,
                saver_def.save_tensor_name,
                saver_def.restore_op_name,
            }
        _prune(graph_def, _needed(nodes, wanted))
        _check_stock(graph_def)
        converted = _export_meta_graph(source, graph_def, saver_def)
    converted.collection_def[tf.GraphKeys.GLOBAL_VARIABLES].bytes_list.value.extend(protos)
    return converted, tables


def _add_saver() -> Optional[tf.train.SaverDef]:
    """Adds a Saver of the graph's variables, if it has any."""
    variables = tf.global_variables()
    return tf.train.Saver(variables, name="portable").as_saver_def() if variables else None


def _initialize_after_restore(
    source: tf.MetaGraphDef, nodes: Dict[str, tf.NodeDef], tables: Sequence[StockTable]
) -> None:
    """Makes the main op, which a loader runs after the restore, fill what is made of variables."""
    # A local_init_op of the model would not know the indices of tables and the rows of kernels.
    (main_op,) = source.collection_def[tf.saved_model.MAIN_OP_KEY].node_list.value
    filled = [table.initializer.name for table in tables]
    filled += [tf.compat.as_str(name) for name in tf.get_collection(KERNEL_ROWS)]
    present = set(nodes[main_op].input)
    nodes[main_op].input.extend(f"^{name}" for name in filled if f"^{name}" not in present)


def _export_meta_graph(
    source: tf.MetaGraphDef, graph_def: tf.GraphDef, saver_def: Optional[tf.train.SaverDef]
) -> tf.MetaGraphDef:
    """Makes a MetaGraph of a graph, with the signatures, assets and collections of another."""
    info = tf.MetaGraphDef.MetaInfoDef()
    info.CopyFrom(source.meta_info_def)
    info.ClearField("stripped_op_list")
    exported = tf.train.export_meta_graph(
        meta_info_def=info,
        graph_def=graph_def,
        saver_def=saver_def,
        collection_list=[],
        strip_default_attrs=True,
    )
    exported.asset_file_def.extend(source.asset_file_def)
    for key, signature in source.signature_def.items():
        exported.signature_def[key].CopyFrom(signature)
    _copy_collections(source, exported, _COLLECTIONS)
    return exported


def _with_collections(source: tf.MetaGraphDef, keys: Iterable[str]) -> tf.MetaGraphDef:
    """Copies a MetaGraph with some of its collections, and without its Saver and signatures."""
    kept = tf.MetaGraphDef()
    kept.meta_info_def.CopyFrom(source.meta_info_def)
    kept.graph_def.CopyFrom(source.graph_def)
    _copy_collections(source, kept, keys)
    return kept


def _copy_collections(
    source: tf.MetaGraphDef, target: tf.MetaGraphDef, keys: Iterable[str]
) -> None:
    for key in keys:
        if key in source.collection_def:
            target.collection_def[key].CopyFrom(source.collection_def[key])


def _external_names(meta: tf.MetaGraphDef) -> Set[str]:
    """Names of the tensors and ops that a loader looks up, except those of the Saver."""
    names = set(meta.collection_def[tf.saved_model.MAIN_OP_KEY].node_list.value)
    # A model_fn may return a train_op in every mode.
    if _TRAIN_OP in meta.collection_def and tf.saved_model.TRAINING in meta.meta_info_def.tags:
        names |= set(meta.collection_def[_TRAIN_OP].node_list.value)
    names |= {asset.tensor_info.name for asset in _assets(meta)}
    for signature in meta.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            names |= set(_tensor_names(info))
    for key in _VARIABLE_COLLECTIONS:
        if key in meta.collection_def:
            names |= _names_in(meta.collection_def[key].bytes_list.value)
    return names


def _assets(meta: tf.MetaGraphDef) -> Iterator[AssetFileDef]:
    """The assets of a MetaGraph. A writer of SavedModels uses a field or a collection for them."""
    yield from meta.asset_file_def
    if tf.saved_model.ASSETS_KEY in meta.collection_def:
        for packed in meta.collection_def[tf.saved_model.ASSETS_KEY].any_list.value:
            asset = AssetFileDef()
            packed.Unpack(asset)
            yield asset


def _tensor_names(info: tf.TensorInfo) -> Iterator[str]:
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        yield from (sparse.values_tensor_name, sparse.indices_tensor_name)
        yield sparse.dense_shape_tensor_name
    elif encoding == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _tensor_names(component)
    else:
        yield info.name


def _names_in(variables: Iterable[bytes]) -> Set[str]:
    """Names of the tensors and ops of variables, from their serialized VariableDefs."""
    names = set()
    for data in variables:
        proto = VariableDef.FromString(data)
        names |= {proto.variable_name, proto.initializer_name, proto.snapshot_name}
        names.add(proto.initial_value_name)
    return names - {""}


def _nodes_by_name(graph_def: tf.GraphDef) -> Dict[str, tf.NodeDef]:
    return {node.name: node for node in graph_def.node}


def _needed(nodes: Dict[str, tf.NodeDef], names: Iterable[str]) -> Set[str]:
    """Names of the nodes that compute the named tensors and ops."""
    seen: Set[str] = set()
    stack = list(names)
    while stack:
        name = _node_of(stack.pop())
        if name not in seen:
            seen.add(name)
            stack.extend(nodes[name].input)
    return seen


def _node_of(name: str) -> str:
    return name.lstrip("^").partition(":")[0]


def _make_identity(node: tf.NodeDef, tensors: Sequence[tf.Tensor]) -> None:
    """Turns a node into an identity of tensors; its name and its consumers stay."""
    control = [name for name in node.input if name.startswith("^")]
    name, device = node.name, node.device
    node.Clear()
    node.name, node.device = name, device
    node.input.extend([*(tensor.name for tensor in tensors), *control])
    types = [tensor.dtype.as_datatype_enum for tensor in tensors]
    if len(types) == 1:
        node.op = "Identity"
        (node.attr["T"].type,) = types
    else:
        node.op = "IdentityN"
        node.attr["T"].list.type.extend(types)


def _prune(graph_def: tf.GraphDef, names: Set[str]) -> None:
    """Removes all nodes but the named ones, and the functions that no kept node calls."""
    nodes = [node for node in graph_def.node if node.name in names]
    for node in nodes:
        if "_class" in node.attr:
            group = node.attr["_class"].list.s
            kept = [value for value in group if value.decode().removeprefix("loc:@") in names]
            if kept:
                group[:] = kept
            else:
                del node.attr["_class"]
    functions = {function.signature.name: function for function in graph_def.library.function}
    called: Set[str] = set()
    stack = [name for node in nodes for name in _calls(node)]
    while stack:
        name = stack.pop()
        if name in functions and name not in called:
            called.add(name)
            stack.extend(name for node in functions[name].node_def for name in _calls(node))
    library = [function for name, function in functions.items() if name in called]
    gradients = [g for g in graph_def.library.gradient if g.function_name in called]
    versions = graph_def.versions
    pruned = tf.GraphDef(node=nodes, versions=versions)
    pruned.library.function.extend(library)
    pruned.library.gradient.extend(gradients)
    graph_def.CopyFrom(pruned)


def _calls(node: tf.NodeDef) -> Iterator[str]:
    """Names of the functions that a node may call. Some are types of ops."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


def _check_stock(graph_def: tf.GraphDef) -> None:
    """Raises a ValueError if an op of this package is left."""
    bodies = [
        (f" in function {f.signature.name!r}", f.node_def) for f in graph_def.library.function
    ]
    left = [
        (node, where)
        for where, nodes in (*bodies, ("", graph_def.node))
        for node in nodes
        if node.op.startswith(op_registry.PREFIX)
    ]
    if not left:
        return
    # The op that uses a table tells the user more than the op that makes its handle.
    node, where = min(left, key=lambda found: found[0].op == op_registry.TABLE_HANDLE)
    remedy = "export a graph that does not train, with signatures that only read"
    if node.op in op_registry.WITH_STOCK_FORM:
        remedy = "look keys up outside of tf.cond, tf.while_loop and tf.function"
    raise ValueError(
        "a portable SavedModel must contain TensorFlow's own ops only, got "
        f"{node.op.removeprefix(op_registry.PREFIX)} {node.name!r}{where}; {remedy}"
    )
