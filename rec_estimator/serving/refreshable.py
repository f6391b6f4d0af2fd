# SPDX-License-Identifier: Apache-2.0
"""Refreshable SavedModels: a signature ``refresh`` brings the model up to date from a delta.

The op ModelRefresh does the work (ops/serving/refresh_kernels.cc). Here it gets the tables and
variables of the graph, the checkpoint that the export begins with, and its signature:

    input    delta              string []  name of a delta in the folder; "" changes nothing
    outputs  step               int64 []   the global step of the model
             rows_written       int64 []   keys that got a row or another one
             rows_deleted       int64 []   keys that lost their row
             variables_written  int64 []
             checkpoint         string []  name of the checkpoint whose rows the model has

TensorFlow's Estimator gives the inputs of the receiver to every signature. So this one is added to
the file of the SavedModel before its folder gets its name.
"""

import contextlib
import contextvars
import os
from typing import Any, Callable, Dict, Iterator, List, Optional

import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs, saving
from rec_estimator.checkpoint.files import identity_of, is_local
from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.serving.staging import staged
from rec_estimator.table.table import graph_tables

# The key of the signature.
REFRESH = "refresh"

_OUTPUTS = ("step", "rows_written", "rows_deleted", "variables_written", "checkpoint")


class Base:
    """The checkpoint that a refreshable export begins with, and the folder of its deltas.

    Args:
      prefix: Prefix of the checkpoint.
      folder: The folder of the deltas; None: the environment of the server names it.

    Attributes:
      signature: The signature, once the graph is built.

    Raises:
      ValueError: The checkpoint is not of TensorFlow's V2 format.
    """

    def __init__(self, prefix: str, folder: Optional[str]) -> None:
        self.prefix = prefix
        if folder is not None and is_local(folder):
            folder = os.path.abspath(folder)
        self.folder = folder or ""
        self.identity = identity_of(prefix)
        if self.identity is None:
            raise ValueError(
                "checkpoint_path must be a checkpoint of TensorFlow's V2 format with "
                f"refreshable=True, got {prefix!r}; save it with rec_estimator.Saver"
            )
        self.index = Index(prefix)
        self.signature: Optional[Any] = None


_base: contextvars.ContextVar = contextvars.ContextVar("base", default=None)


def base_of_export() -> Optional[Base]:
    """What the refreshable export of this thread begins with; None if there is none."""
    return _base.get()


@contextlib.contextmanager
def resource_variables() -> Iterator[None]:
    """Makes all variables of a refreshable export resources, which the op can write."""
    if base_of_export() is None:
        yield
        return

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return next_creator(**{**kwargs, "use_resource": True})

    with tf.variable_creator_scope(create):
        yield


def add_refresh(has_own_saver: bool) -> None:
    """Adds the op and its signature to the default graph, which is complete.

    Args:
      has_own_saver: Whether the model_fn has a Saver of its own.

    Raises:
      ValueError: The model cannot be refreshed; the message says why.
    """
    base = base_of_export()
    if base is None:
        return
    if has_own_saver:
        raise ValueError(
            "model_fn must leave the Saver to RecEstimator with refreshable=True, got a Saver, "
            "whose names deltas may lack; set none in the Scaffold"
        )
    shards = [shard for table in graph_tables() if table.is_save for shard in table.shards]
    if not shards:
        raise ValueError(
            "the model has no table, so it has no deltas to refresh; leave refreshable=True out, "
            "and export again for new rows"
        )
    on_disk = [shard.table.name for shard in shards if shard.table.disk_storage is not None]
    if on_disk:
        raise ValueError(
            f"table {on_disk[0]!r} must have all rows in memory with refreshable=True, got one "
            "with rows on disk, which cannot be exchanged at one moment; leave its storage option "
            "out in ModeKeys.PREDICT"
        )
    for shard in shards:
        graphs.set_attr(shard.handle.op, "refreshable", tf.AttrValue(b=True))
    variables = _variables(base)
    with tf.device("/device:CPU:0"), tf.name_scope(REFRESH):
        delta = tf.placeholder(tf.string, [], "delta")
        refreshed = _ops.gen.rec_estimator_model_refresh(
            delta,
            [shard.handle for shard in shards],
            [variable.handle for variable in variables.values()],
            table_names=[shard.table.name for shard in shards],
            parts=[shard.part for shard in shards],
            num_parts=[shard.num_parts for shard in shards],
            key_dtypes=[shard.table.key_dtype for shard in shards],
            variable_names=list(variables),
            step_name=tf.GraphKeys.GLOBAL_STEP,
            folder=base.folder,
            base_checkpoint=os.path.basename(base.prefix),
            base_identity=base.identity,
            base_step=base.index.read_integer(tf.GraphKeys.GLOBAL_STEP) or 0,
        )
    info = tf.saved_model.build_tensor_info
    base.signature = tf.saved_model.build_signature_def(
        {"delta": info(delta)},
        {name: info(tensor) for name, tensor in zip(_OUTPUTS, refreshed)},
        tf.saved_model.PREDICT_METHOD_NAME,
    )


def _variables(base: Base) -> Dict[str, Any]:
    """The variables of the graph by their names in a checkpoint."""
    found: Dict[str, Any] = {}
    refused: List[str] = []
    for variable in tf.global_variables():
        if not isinstance(variable, saving.ResourceVariable):
            continue  # A table.
        # A part of a partitioned variable is stored as a slice of the whole.
        name = variable.to_proto().save_slice_info_def.full_name or variable.op.name
        if name not in base.index.names:
            continue
        is_whole = not base.index.tensor(name).header.entry.slices
        if not is_whole or not (variable.dtype.is_numpy_compatible and variable.dtype.size):
            refused.append(name)
        found[name] = variable
    if refused:
        raise ValueError(
            "variables must be whole and have numbers with refreshable=True, got "
            f"{', '.join(refused[:8])}; make them without a partitioner and without strings"
        )
    return found


def export(
    write: Callable[[str], str], export_dir_base: Any, prefix: str, folder: Optional[str]
) -> bytes:
    """Exports a SavedModel with the signature ``refresh``.

    Args:
      write: Exports a SavedModel into a new folder of the given folder, and returns the new folder.
      export_dir_base: Folder in which the SavedModel's folder is made.
      prefix: The checkpoint that it exports.
      folder: The folder of the deltas, or None.

    Returns:
      The SavedModel's folder. It appears complete or not at all.

    Raises:
      ValueError: The model cannot be refreshed, or has a signature of this name.
    """
    base = Base(prefix, folder)

    def make(scratch: str) -> str:
        token = _base.set(base)
        try:
            made = write(scratch)
        finally:
            _base.reset(token)
        _add_signature(made, base.signature)
        return made

    return staged(export_dir_base, make)


def _add_signature(folder: str, signature: Any) -> None:
    path = os.path.join(folder, "saved_model.pb")
    is_text = not os.path.exists(path)
    path += "txt" if is_text else ""
    with open(path, "rb") as file:
        data = file.read()
    model = text_format.Parse(data, SavedModel()) if is_text else SavedModel.FromString(data)
    (meta,) = model.meta_graphs
    if REFRESH in meta.signature_def:
        raise ValueError(
            f"export_outputs must not have the key {REFRESH!r} with refreshable=True, got one; "
            "give the output another name"
        )
    meta.signature_def[REFRESH].CopyFrom(signature)
    data = text_format.MessageToString(model).encode() if is_text else model.SerializeToString()
    with open(path, "wb") as file:
        file.write(data)
