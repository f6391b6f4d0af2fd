# SPDX-License-Identifier: Apache-2.0
"""SavedModels of TensorFlow's own ops, made of SavedModels with ours.

RecEstimator writes the SavedModel it always writes; this module turns it into one that any
TensorFlow runtime serves without our library: lookups become stock ones (stock_tables.py), the
checkpoint in it gets their variables in place of the tables, all else is copied as it is. Rows are
copied piece by piece: memory does not grow with the tables.
"""

import contextvars
import os
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf
from google.protobuf import text_format

# Messages that are part of TensorFlow's promise about SavedModels; only where their classes are, is
# not.
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_estimator import estimator as _estimator

from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle
from rec_estimator.checkpoint.format.stored_tables import find_tables, tensors_of
from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.rewrite.stock_expansion import KERNEL_ROWS
from rec_estimator.serving.stock_tables import StockTable, replace_lookups

# Whether the graphs that are built in this thread are for a portable SavedModel.
_is_exporting: contextvars.ContextVar = contextvars.ContextVar("is_exporting", default=False)

_VARIABLE_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
    tf.GraphKeys.LOCAL_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
)

# Where a SavedModel names the op that trains; TensorFlow keeps the name to itself.
_TRAIN_OP = "saved_model_train_op"

# What a loader reads of a MetaGraph's collections.
_COLLECTIONS = (
    *_VARIABLE_COLLECTIONS,
    tf.saved_model.ASSETS_KEY,
    tf.saved_model.MAIN_OP_KEY,
)

# What is read here beyond that. Contexts tell whether an op is in TensorFlow 1's control flow.
_READ_HERE = (tf.GraphKeys.COND_CONTEXT, tf.GraphKeys.WHILE_CONTEXT, KERNEL_ROWS)


class PortableExports(_estimator.Estimator):
    """The Estimator, whose exports take one argument more.

    A class of its own, because TensorFlow refuses an Estimator that overrides public methods
    itself: they call each other. These do what they always did, then more.
    """

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        strip_default_attrs: bool = False,
        *,
        portable: bool = False,
    ) -> bytes:
        """``export_saved_model`` under its older name, with the same arguments and one more.

        Args:
          strip_default_attrs: Whether to leave out what older TensorFlows may not know; a portable
            one always does.
        """
        arguments = (serving_input_receiver_fn, assets_extra, as_text, checkpoint_path)
        return export(
            lambda base: super(PortableExports, self).export_savedmodel(
                base, *arguments, strip_default_attrs=strip_default_attrs
            ),
            export_dir_base,
            portable,
        )

    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        experimental_mode: str = _estimator.ModeKeys.PREDICT,
        *,
        portable: bool = False,
    ) -> bytes:
        """Writes a SavedModel, as TensorFlow's method does.

        Args:
          export_dir_base: Folder in which it comes, in one of a time stamp.
          serving_input_receiver_fn: Makes the receiver; ``compressed_serving_input_receiver_fn``
            and TensorFlow's builders write one.
          assets_extra: Files to copy into its folder ``assets.extra``, source by destination.
          as_text: Whether to write the graph as text.
          checkpoint_path: Which checkpoint; None: the latest.
          experimental_mode: One of ModeKeys.
          portable: Whether it is to be of TensorFlow's own ops, so that any TensorFlow runtime
            serves it without our library. export_dir_base is then local or mounted.

        Returns:
          The folder, of a time stamp, in export_dir_base.

        Raises:
          ValueError: There is no checkpoint; or portable, and the model reads tables inside of
            control flow, or gives what only our library can know of a table.
        """
        arguments = (serving_input_receiver_fn, assets_extra, as_text, checkpoint_path)
        return export(
            lambda base: super(PortableExports, self).export_saved_model(
                base, *arguments, experimental_mode
            ),
            export_dir_base,
            portable,
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: Any,
        input_receiver_fn_map: Dict[str, Callable[[], Any]],
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        *,
        portable: bool = False,
    ) -> bytes:
        """``export_saved_model`` of several modes, with the same arguments but one.

        Args:
          input_receiver_fn_map: What makes the receiver, by mode; ModeKeys.TRAIN cannot be
            portable.
        """
        arguments = (input_receiver_fn_map, assets_extra, as_text, checkpoint_path)
        return export(
            lambda base: super(PortableExports, self).experimental_export_all_saved_models(
                base, *arguments
            ),
            export_dir_base,
            portable,
        )


def export(write: Callable[[str], bytes], export_dir_base: Any, portable: bool) -> bytes:
    """Exports a SavedModel, of TensorFlow's own ops if that is asked for.

    Args:
      write: Exports a SavedModel with our ops into a new folder of the folder it is given, and
        returns the new one.
      export_dir_base: Where the SavedModel comes, in a folder of a time stamp.
      portable: Whether it is to be of TensorFlow's own ops. The folder is then local or mounted.

    Returns:
      The folder of the SavedModel; there whole, or not at all.

    Raises:
      ValueError: The model cannot be made of stock ops alone; says which op is in the way.
    """
    if not portable:
        return write(export_dir_base)
    base = tf.compat.as_str(os.fspath(export_dir_base))
    os.makedirs(base, exist_ok=True)
    # Servers pass over folders that are not named by a number.
    with tempfile.TemporaryDirectory(prefix="temp-portable-", dir=base) as scratch:
        token = _is_exporting.set(True)
        try:
            source = tf.compat.as_str(write(os.path.join(scratch, "source")))
        finally:
            _is_exporting.reset(token)
        made = os.path.join(scratch, "made")
        convert(source, made)
        stamp = int(os.path.basename(source))
        while os.path.exists(os.path.join(base, str(stamp))):
            stamp += 1
        destination = os.path.join(base, str(stamp))
        os.rename(made, destination)
    return tf.compat.as_bytes(destination)


def is_exporting() -> bool:
    """Whether the graph that is being built is for a portable SavedModel."""
    return _is_exporting.get()


def convert(source: str, destination: str) -> None:
    """Makes a portable SavedModel of one with our ops.

    Args:
      source: Its folder.
      destination: A folder that does not exist.

    Raises:
      ValueError: As of ``export``.
    """
    name = "saved_model.pb"
    is_text = not os.path.exists(os.path.join(source, name))
    name += "txt" if is_text else ""
    with open(os.path.join(source, name), "rb") as file:
        data = file.read()
    model = text_format.Parse(data, SavedModel()) if is_text else SavedModel.FromString(data)
    bundle = Bundle(os.path.join(source, "variables", "variables"))
    tables: Dict[str, StockTable] = {}
    for meta in model.meta_graphs:
        portable, read = _portable(meta, bundle)
        meta.CopyFrom(portable)
        tables.update((table.name, table) for table in read)
    os.makedirs(os.path.join(destination, "variables"))
    _write_variables(bundle, tables.values(), os.path.join(destination, "variables", "variables"))
    for folder in ("assets", "assets.extra"):
        if os.path.isdir(os.path.join(source, folder)):
            shutil.copytree(os.path.join(source, folder), os.path.join(destination, folder))
    data = text_format.MessageToString(model).encode() if is_text else model.SerializeToString()
    with open(os.path.join(destination, name), "wb") as file:
        file.write(data)


def _write_variables(bundle: Bundle, tables: Iterable[StockTable], prefix: str) -> None:
    """A checkpoint of a bundle's variables and of stock tables in place of its tables."""
    left_out = {
        tensor.name
        for table in find_tables(bundle).values()
        for name in (*table.shards, *(name for names in table.slots.values() for name in names))
        for tensor in tensors_of(bundle, name)
    }
    left_out |= {f"{name}/default_values" for name in find_tables(bundle)}
    with NewBundle(prefix, bundle.header.version) as copy:
        for tensor in bundle.tensors.values():
            if tensor.name in left_out:
                continue
            if tensor.header.entry.slices:
                copy.add_header(tensor.header)
            for piece in tensor.ranges:
                copy.add(piece.key, piece.entry, bundle.read(piece))
        for table in tables:
            table.write(copy)


def _portable(source: Any, bundle: Bundle) -> Tuple[Any, List[StockTable]]:
    """A MetaGraphDef of TensorFlow's own ops, and the tables that it reads.

    Args:
      source: A MetaGraphDef with our ops.
      bundle: The checkpoint of its variables and tables.
    """
    wanted = _names_outside(source)
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(_with_collections(source, (*_COLLECTIONS, *_READ_HERE)))
        nodes = {node.name: node for node in source.graph_def.node}
        needed = _needed(nodes, wanted)
        lookups = [
            op
            for op in graph.get_operations()
            if op.type in op_registry.WITH_STOCK_FORM and op.name in needed
        ]
        tables, values = replace_lookups(lookups, bundle)
        saver = tf.train.Saver(tf.global_variables(), name="portable", allow_empty=True)
        saver_def = saver.as_saver_def() if tf.global_variables() else None
        graph_def = graph.as_graph_def()
        nodes = {node.name: node for node in graph_def.node}
        for name, tensors in values.items():
            _make_identity(nodes[name], tensors)
        # What is made of variables is filled after the restore, with all initialization; a model's
        # own local_init_op knows of neither the indices nor the kernels' rows.
        (main_op,) = source.collection_def[tf.saved_model.MAIN_OP_KEY].node_list.value
        filled = [table.initializer.name for table in tables]
        filled += [tf.compat.as_str(name) for name in tf.get_collection(KERNEL_ROWS)]
        present = set(nodes[main_op].input)
        nodes[main_op].input.extend(f"^{name}" for name in filled if f"^{name}" not in present)
        made = [variable for table in tables for variable in table.variables]
        protos = [variable.to_proto().SerializeToString() for variable in made]
        wanted |= _names_in(protos)
        if saver_def is not None:
            wanted |= {
                saver_def.filename_tensor_name,
                saver_def.save_tensor_name,
                saver_def.restore_op_name,
            }
        _prune(graph_def, _needed(nodes, wanted))
        _check_stock(graph_def)
        info = tf.MetaGraphDef.MetaInfoDef()
        info.CopyFrom(source.meta_info_def)
        info.ClearField("stripped_op_list")
        portable = tf.train.export_meta_graph(
            meta_info_def=info,
            graph_def=graph_def,
            saver_def=saver_def,
            collection_list=[],
            strip_default_attrs=True,
        )
    portable.asset_file_def.extend(source.asset_file_def)
    for key, signature in source.signature_def.items():
        portable.signature_def[key].CopyFrom(signature)
    for key in _COLLECTIONS:
        if key in source.collection_def:
            portable.collection_def[key].CopyFrom(source.collection_def[key])
    portable.collection_def[tf.GraphKeys.GLOBAL_VARIABLES].bytes_list.value.extend(protos)
    return portable, tables


def _with_collections(source: Any, keys: Iterable[str]) -> Any:
    """A MetaGraphDef with some of its collections and without Saver and signatures."""
    kept = tf.MetaGraphDef()
    kept.meta_info_def.CopyFrom(source.meta_info_def)
    kept.graph_def.CopyFrom(source.graph_def)
    for key in keys:
        if key in source.collection_def:
            kept.collection_def[key].CopyFrom(source.collection_def[key])
    return kept


def _names_outside(meta: Any) -> Set[str]:
    """Names of the tensors and ops that a loader asks a MetaGraph for, its Saver's left out."""
    names = set(meta.collection_def[tf.saved_model.MAIN_OP_KEY].node_list.value)
    # A model_fn may give one in every mode.
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


def _assets(meta: Any) -> Iterator[Any]:
    """AssetFileDefs: writers of SavedModels put them into a field or into a collection."""
    yield from meta.asset_file_def
    if tf.saved_model.ASSETS_KEY in meta.collection_def:
        for packed in meta.collection_def[tf.saved_model.ASSETS_KEY].any_list.value:
            asset = tf.MetaGraphDef().asset_file_def.add()
            packed.Unpack(asset)
            yield asset


def _tensor_names(info: Any) -> Iterator[str]:
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
    """Names of what variables consist of, by their serialized VariableDefs."""
    names = set()
    for data in variables:
        proto = VariableDef.FromString(data)
        names |= {proto.variable_name, proto.initializer_name, proto.snapshot_name}
        names.add(proto.initial_value_name)
    return names - {""}


def _needed(nodes: Dict[str, Any], names: Iterable[str]) -> Set[str]:
    """Names of the nodes that some tensors and ops depend on, their own included."""
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


def _make_identity(node: Any, tensors: Sequence[tf.Tensor]) -> None:
    """Makes a node give tensors: what asked for its outputs, or waited for it, still does."""
    control = [name for name in node.input if name.startswith("^")]
    device = node.device
    name = node.name
    node.Clear()
    node.name, node.device = name, device
    node.input.extend([*(tensor.name for tensor in tensors), *control])
    types = [tensor.dtype.as_datatype_enum for tensor in tensors]
    if len(tensors) == 1:
        node.op = "Identity"
        node.attr["T"].type = types[0]
    else:
        node.op = "IdentityN"
        node.attr["T"].list.type.extend(types)


def _prune(graph_def: tf.GraphDef, names: Set[str]) -> None:
    """Leaves of a graph the nodes of some names, and the functions that they call."""
    nodes = [node for node in graph_def.node if node.name in names]
    for node in nodes:
        if "_class" in node.attr:
            group = node.attr["_class"].list.s
            kept = [place for place in group if place.decode().removeprefix("loc:@") in names]
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


def _calls(node: Any) -> Iterator[str]:
    """Names of the functions that a node may call; others among them."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


def _check_stock(graph_def: tf.GraphDef) -> None:
    """Refuses what is left of our ops."""
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
    # What uses a table says more than the table.
    node, where = min(left, key=lambda found: found[0].op == op_registry.TABLE_HANDLE)
    remedy = "export a graph that does not train, with signatures that only read"
    if node.op in op_registry.WITH_STOCK_FORM:
        remedy = "look keys up outside of tf.cond, tf.while_loop and tf.function"
    raise ValueError(
        "a portable SavedModel must be of TensorFlow's own ops, got "
        f"{node.op.removeprefix(op_registry.PREFIX)} {node.name!r}{where}; {remedy}"
    )
