# SPDX-License-Identifier: Apache-2.0
"""Portable SavedModels: they contain TensorFlow's own ops only.

RecEstimator exports a SavedModel with ops of this package. This module converts it to one that any
TensorFlow runtime serves without our library. portable_graph.py replaces the lookups in its graph;
here the checkpoint gets variables in place of tables, and everything else is copied unchanged. Rows
are copied in parts of bounded size, so that memory does not grow with the tables.
"""

import contextvars
import os
import shutil
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Union

import tensorflow.compat.v1 as tf
from google.protobuf import text_format

# TensorFlow keeps this message stable for SavedModels, but not the module of its class.
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from rec_estimator._tensorflow.estimator import ModeKeys
from rec_estimator.checkpoint.estimators import Estimator
from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle
from rec_estimator.checkpoint.format.stored_tables import find_tables, tensors_of
from rec_estimator.serving import refreshable as refreshable_exports
from rec_estimator.serving.portable_graph import convert_meta_graph
from rec_estimator.serving.row_exports import RowSample, with_rows_as
from rec_estimator.serving.staging import staged
from rec_estimator.serving.stock_tables import StockTable

# Folders are str, bytes or os.PathLike, as TensorFlow's Estimator takes them.
_Folder = Union[str, bytes, "os.PathLike[str]"]

# Makes a receiver: a ServingInputReceiver, TensorServingInputReceiver or SupervisedInputReceiver.
_ReceiverFn = Callable[[], Any]

# Whether the graphs that this thread builds are for a portable SavedModel.
_is_exporting: contextvars.ContextVar = contextvars.ContextVar("is_exporting", default=False)


class ExportForm(NamedTuple):
    """The form of a SavedModel: arguments of ``RecEstimator.export_saved_model``."""

    portable: bool = False
    refreshable: bool = False
    refresh_folder: Optional[str] = None
    row_dtype: Optional[str] = None
    row_sample: Optional[RowSample] = None

    def check(self) -> None:
        """Refuses arguments that exclude each other."""
        if self.refresh_folder is not None and not self.refreshable:
            raise ValueError(
                f"refresh_folder must be None without refreshable=True, got {self.refresh_folder!r}"
            )
        if self.row_sample is not None and self.row_dtype is None:
            raise ValueError(
                "row_sample must be None without row_dtype, got one; pass row_dtype='int8', for "
                "example"
            )
        if self.portable and self.refreshable:
            raise ValueError(
                "portable must be False with refreshable=True, got True: TensorFlow's own tables "
                "cannot change together, whole or not at all; export again and swap the models"
            )


class PortableExports(Estimator):
    """An Estimator whose export methods take ``portable``, ``refreshable`` and ``row_dtype``.

    TensorFlow refuses an Estimator that overrides public methods, because its public methods call
    each other. Only a base class of the user's Estimator can override them. These overrides do
    exactly what the methods of TensorFlow do, and then convert the SavedModel.
    """

    def export_savedmodel(
        self,
        export_dir_base: _Folder,
        serving_input_receiver_fn: _ReceiverFn,
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        strip_default_attrs: bool = False,
        *,
        portable: bool = False,
        refreshable: bool = False,
        refresh_folder: Optional[str] = None,
        row_dtype: Optional[str] = None,
        row_sample: Optional[RowSample] = None,
    ) -> bytes:
        """Same as ``export_saved_model``, under its older name and with one more argument.

        Args:
          strip_default_attrs: Whether to leave out attributes with default values, which older
            TensorFlow releases may not know. A portable SavedModel never has them.
        """

        def write(base: _Folder, checkpoint: Optional[str]) -> bytes:
            return super(PortableExports, self).export_savedmodel(
                base,
                serving_input_receiver_fn,
                assets_extra,
                as_text,
                checkpoint,
                strip_default_attrs=strip_default_attrs,
            )

        form = ExportForm(portable, refreshable, refresh_folder, row_dtype, row_sample)
        return self._export(write, export_dir_base, checkpoint_path, form)

    def export_saved_model(
        self,
        export_dir_base: _Folder,
        serving_input_receiver_fn: _ReceiverFn,
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        experimental_mode: str = ModeKeys.PREDICT,
        *,
        portable: bool = False,
        refreshable: bool = False,
        refresh_folder: Optional[str] = None,
        row_dtype: Optional[str] = None,
        row_sample: Optional[RowSample] = None,
    ) -> bytes:
        """Writes a SavedModel, as TensorFlow's method does.

        Args:
          export_dir_base: Folder in which the SavedModel's folder is made.
          serving_input_receiver_fn: Makes the receiver. ``compressed_serving_input_receiver_fn``
            and TensorFlow's builders return such a function.
          assets_extra: Files to copy into the folder ``assets.extra``, {destination: source}.
          as_text: Whether to write the graph as text.
          checkpoint_path: The checkpoint to export. None: the latest.
          experimental_mode: One of ModeKeys.
          portable: Whether the SavedModel contains TensorFlow's own ops only, so that any
            TensorFlow runtime serves it without our library. export_dir_base must then be on a
            local or mounted file system.
          refreshable: Whether the SavedModel gets a signature ``refresh``, which brings it up to
            date from a delta: an incremental checkpoint of the training.
          refresh_folder: The folder of these deltas. None: the environment variable
            REC_ESTIMATOR_REFRESH_FOLDER of the server names it; if it is set, it counts.
          row_dtype: "int8", "float16" or "bfloat16" store the rows of tables in fewer bits, also in
            memory when the SavedModel is served; lookups give float32. None: as they are trained.
            ``assets.extra/row_report.json`` of the SavedModel says what this saves.
          row_sample: A RowSample: examples on which the report compares the outputs.

        Returns:
          The SavedModel's folder in export_dir_base; its name is a time stamp.

        Raises:
          ValueError: There is no checkpoint. With portable also if the model reads tables inside
            control flow, or returns information that only our library has, such as counts. With
            refreshable also if the model has no table, one with rows on disk, a Saver of its own,
            variables of strings or partitioned ones; if portable is given; or if experimental_mode
            is not PREDICT. With row_dtype also if it is another word, a table has more than 2048
            elements a row, or the model has a Saver of its own; or if row_sample does not fit.
          tf.errors.DataLossError: With row_dtype: a row is not finite or has numbers that are too
            large for the type. The message names the key.
        """

        def write(base: _Folder, checkpoint: Optional[str]) -> bytes:
            return super(PortableExports, self).export_saved_model(
                base,
                serving_input_receiver_fn,
                assets_extra,
                as_text,
                checkpoint,
                experimental_mode,
            )

        if refreshable and experimental_mode != ModeKeys.PREDICT:
            raise ValueError(
                f"experimental_mode must be PREDICT with refreshable=True, got {experimental_mode}"
                "; leave one of them out"
            )
        form = ExportForm(portable, refreshable, refresh_folder, row_dtype, row_sample)
        return self._export(write, export_dir_base, checkpoint_path, form)

    def experimental_export_all_saved_models(
        self,
        export_dir_base: _Folder,
        input_receiver_fn_map: Dict[str, _ReceiverFn],
        assets_extra: Optional[Dict[str, str]] = None,
        as_text: bool = False,
        checkpoint_path: Optional[str] = None,
        *,
        portable: bool = False,
    ) -> bytes:
        """Same as ``export_saved_model`` for several modes in one SavedModel.

        Args:
          input_receiver_fn_map: {mode: function that makes the receiver}. ModeKeys.TRAIN cannot be
            portable.
        """
        arguments = (input_receiver_fn_map, assets_extra, as_text, checkpoint_path)

        def write(base: _Folder) -> bytes:
            return super(PortableExports, self).experimental_export_all_saved_models(
                base, *arguments
            )

        return export(write, export_dir_base) if portable else write(export_dir_base)

    def _create_global_step(self, graph: tf.Graph) -> tf.Variable:
        """Makes the global step, as TensorFlow asks subclasses to; model_fn is not called yet."""
        with graph.as_default(), refreshable_exports.resource_variables():
            return super()._create_global_step(graph)

    def _export(
        self,
        write: Callable[[_Folder, Optional[str]], bytes],
        export_dir_base: _Folder,
        checkpoint_path: Optional[str],
        form: ExportForm,
    ) -> bytes:
        """Exports with write(folder, checkpoint), in a form."""
        form.check()
        if not any(form):
            return write(export_dir_base, checkpoint_path)
        # The latest one may be another one a moment later.
        prefix = checkpoint_path or tf.train.latest_checkpoint(self.model_dir)
        if prefix is None:  # TensorFlow says so.
            return write(export_dir_base, None)

        def write_as_trained(folder: str) -> str:
            return str(tf.compat.as_str(write(folder, prefix)))

        write_native: Callable[[str], str] = write_as_trained
        if form.row_dtype is not None:
            write_native = with_rows_as(form.row_dtype, form.row_sample, write_as_trained)
        if form.refreshable:
            return refreshable_exports.export(
                write_native, export_dir_base, prefix, form.refresh_folder
            )
        if form.portable:
            return export(write_native, export_dir_base)
        return staged(export_dir_base, write_native)


def export(write: Callable[[str], Union[str, bytes]], export_dir_base: _Folder) -> bytes:
    """Exports a SavedModel and converts it to TensorFlow's own ops.

    Args:
      write: Exports a SavedModel with ops of this package into a new folder of the given folder,
        and returns the new folder.
      export_dir_base: Folder in which the SavedModel's folder is made.

    Returns:
      The SavedModel's folder. It appears complete or not at all.

    Raises:
      ValueError: An op of the model cannot be replaced; the message names it.
    """

    def make(scratch: str) -> str:
        token = _is_exporting.set(True)
        try:
            source = tf.compat.as_str(write(os.path.join(scratch, "source")))
        finally:
            _is_exporting.reset(token)
        made = os.path.join(scratch, os.path.basename(source))
        convert(source, made)
        return made

    return staged(export_dir_base, make)


def is_exporting() -> bool:
    """Whether this thread is building a graph for a portable SavedModel."""
    return _is_exporting.get()


def convert(source: str, destination: str) -> None:
    """Converts a SavedModel with ops of this package to a portable one.

    Args:
      source: The folder of the SavedModel.
      destination: A folder that does not exist yet.

    Raises:
      ValueError: As in ``export``.
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
        converted, read = convert_meta_graph(meta, bundle)
        meta.CopyFrom(converted)
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
    """Writes a checkpoint with the variables of a bundle, and stock tables for its tables."""
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
