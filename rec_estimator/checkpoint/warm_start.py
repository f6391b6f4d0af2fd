# SPDX-License-Identifier: Apache-2.0
"""Initializes tables from the rows of another checkpoint: init_from_checkpoint, warm_start_from.

As for TensorFlow's variables, the table gets an initializer that reads the checkpoint. It runs
wherever the initializer would have run; a training that resumes from its own checkpoint does not
run it. It restores rows, counts, versions and the bank of initial vectors, from any number of
shards. The filter of this graph decides again about keys that were filtered in the checkpoint.
Optimizer slots come along where those of a variable would: with a scope, or if they are named.
"""

import os
import re
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as _estimator
from rec_estimator.checkpoint import builder, deltas
from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.checkpoint.restore_warnings import warn_of_table
from rec_estimator.checkpoint.table_selection import TableSource, select, split_map
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.table import saveable
from rec_estimator.table.shard import SlotSpec
from rec_estimator.table.table import EmbeddingTable, graph_tables


def init_from_checkpoint(
    ckpt_dir_or_file: str,
    assignment_map: Union[Mapping[str, object], Sequence[Tuple[str, object]]],
    reset_version: bool = False,
    resize_rows: bool = False,
) -> None:
    """``tf.compat.v1.train.init_from_checkpoint`` for variables and tables.

    A table takes the rows of the checkpoint with their counts and versions. Its optimizer slots
    come along where the slots of a variable would: if they exist when the function is called, and
    a scope or a name in the map covers them. Other slots, and slots that the checkpoint lacks,
    start fresh. Filters may differ: keys that own a row in the checkpoint own one here, and the
    filter of this table decides about the others by their counts. The function may be called
    several times, with different checkpoints; the last call that names a table decides about it.

    Args:
      ckpt_dir_or_file: Prefix of a checkpoint, or a folder, which stands for its latest checkpoint.
      assignment_map: What to initialize from which name in the checkpoint, as a dict or as pairs:
        ``"old"`` to ``"new"``, to a table or to the list of its shards, without the slots;
        ``"old/Adagrad"`` to ``"new/Adagrad"``, besides the table, for a slot; ``"old"`` to a member
        of ``tf.global_variables()``, which is a table with its slots; or ``"old_scope/"`` to
        ``"scope/"``, where ``"/"`` is the root, for all tables of the scope with their slots,
        except tables that checkpoints do not contain.
      reset_version: Whether tables forget the steps at which their keys were trained, as a run
        wants that counts its steps from 0. The versions are 0, as in DeepRec. If GlobalStepEvict,
        TimeEvict, LazyDecay or an eviction_threshold reads them, they are -1: the age of the keys
        then counts from the first eviction or update, at whichever step the run begins.
      resize_rows: Whether tables may have another dim than in the checkpoint. Rows lose their last
        elements, or get those of the key's initial vector; slots get their initial value there.

    Raises:
      ValueError: There is no such checkpoint, or it has no such table, or its table or slot has
        another dimension without resize_rows, or a slot is named without its table. Also raises
        whatever TensorFlow's function raises.
      tf.errors.NotFoundError: The checkpoint is a delta and a parent checkpoint is missing.
      tf.errors.DataLossError: The checkpoint is damaged, or it is a delta and a parent checkpoint
        was overwritten.

    Example:
      >>> with tf.Graph().as_default(), tf.Session() as session:
      ...     table = rec.get_embedding_variable("user", embedding_dim=4)
      ...     session.run(tf.global_variables_initializer())
      ...     prefix = rec.Saver([table]).save(session, "model")
      >>> table = rec.get_embedding_variable("visitor", embedding_dim=4)
      >>> rec.init_from_checkpoint(prefix, {"user": "visitor"})
    """
    pairs = list(assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map)
    prefix = _find_checkpoint("ckpt_dir_or_file", ckpt_dir_or_file)
    deltas.check_chain(prefix)
    state_of().chosen_checkpoints.add(prefix)
    sources, left = split_map(pairs)
    widths = {
        table: _check_source(prefix, source, table, not reset_version, resize_rows)
        for table, source in sources.items()
    }
    if left:
        tf.train.init_from_checkpoint(ckpt_dir_or_file, left)
    for table, source in sources.items():
        version = table.version_after_reset if reset_version else None
        initialize_table(
            table, prefix, source.name, source.slots, version, stored_widths=widths[table]
        )


def initialize_table(
    table: EmbeddingTable,
    prefix: str,
    source: str,
    slots: Sequence[SlotSpec] = (),
    version: Optional[int] = None,
    warns: bool = False,
    stored_widths: Sequence[int] = (),
) -> None:
    """Replaces a table's initializer by one that reads a checkpoint.

    Args:
      table: The table.
      prefix: Prefix of the checkpoint, which is read when the initializer runs.
      source: Name of the table in the checkpoint.
      slots: The slots to read, too; other slots start fresh.
      version: The version of every key; None: that in the checkpoint.
      warns: Whether the op logs what is not kept of the checkpoint.
      stored_widths: As in ``saveable.build_restore``.
    """
    for shard in table.shards:
        with tf.init_scope(), tf.name_scope(None), tf.name_scope(f"{shard.op.name}/"):
            shard.initializer = saveable.build_restore(
                shard, prefix, source, slots, version, warns, stored_widths
            )
    table.set_initializer()


def initialize_as_option_says(table: EmbeddingTable) -> None:
    """Initializes a new table from the checkpoint of its CheckpointOption, if it has one."""
    source = builder.source_of_option(table)
    if source is not None:
        # The checkpoint is not read before the initializer runs: a resumed run does not run it.
        initialize_table(table, *source, warns=True)


class WarmStartSettings(_estimator.WarmStartSettings):
    """``tf.estimator.WarmStartSettings``, for tables of another dim, too.

    Args:
      ckpt_to_initialize_from: As in TensorFlow.
      vars_to_warm_start: As in TensorFlow. Expressions and objects may also select tables.
      var_name_to_vocab_info: As in TensorFlow.
      var_name_to_prev_var_name: As in TensorFlow; may name tables.
      resize_rows: As in ``init_from_checkpoint``.

    Example:
      >>> rec.WarmStartSettings("old_model", ["user", "item"], resize_rows=True).resize_rows
      True
    """

    resize_rows = False

    def __new__(
        cls,
        ckpt_to_initialize_from: str,
        vars_to_warm_start: object = ".*",
        var_name_to_vocab_info: Optional[Mapping[str, object]] = None,
        var_name_to_prev_var_name: Optional[Mapping[str, str]] = None,
        resize_rows: bool = False,
    ) -> "WarmStartSettings":
        """See the class."""
        settings = super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info,
            var_name_to_prev_var_name,
        )
        settings.resize_rows = resize_rows
        return settings


class TableWarmStart(WarmStartSettings):
    """WarmStartSettings for variables and tables.

    After the model_fn has built a graph that starts without a checkpoint, an Estimator calls
    ``tf.compat.v1.train.warm_start(*settings)``. The iterator of this class serves that call: it
    initializes the tables and returns settings for the variables only.
    """

    # The sources before this one, which takes precedence.
    earlier: Tuple["TableWarmStart", ...] = ()

    def __iter__(self) -> Iterator[object]:
        for source in self.earlier:
            tf.train.warm_start(*source)
        previous = dict(self.var_name_to_prev_var_name)
        variables, tables = select(self.vars_to_warm_start)
        for table in graph_tables():
            if table.name in self.var_name_to_vocab_info:
                raise ValueError(
                    f"var_name_to_vocab_info must name variables, got table {table.name!r}; a "
                    "table has keys and no vocabulary"
                )
        prefix = builder.latest_of(self.ckpt_to_initialize_from) or ""
        state_of().chosen_checkpoints.add(prefix)
        # Variables alone may come from what is no V2 checkpoint, for TensorFlow to read or refuse.
        if tables or tf.io.gfile.exists(f"{prefix}.index"):
            prefix = _find_checkpoint("warm_start_from", self.ckpt_to_initialize_from)
            deltas.check_chain(prefix)
        for table, slots in tables:
            source = previous.pop(table.name, table.name)
            for slot in table.shards[0].slots:
                name, expected = f"{table.name}/{slot.name}", f"{source}/{slot.name}"
                given = previous.pop(name, expected)
                if given != expected:
                    raise ValueError(
                        f"var_name_to_prev_var_name of slot {name!r} must be {expected!r}, got "
                        f"{given!r}; slots come with their table"
                    )
            widths = _check_source(
                prefix, TableSource(source, slots), table, resizes=self.resize_rows
            )
            initialize_table(table, prefix, source, slots, stored_widths=widths)
            tf.logging.info("Warm-starting table %s from %s of %s.", table.name, source, prefix)
        return iter(
            (self.ckpt_to_initialize_from, variables, self.var_name_to_vocab_info, previous)
        )


def as_settings(warm_start_from: object) -> object:
    """Converts an Estimator's ``warm_start_from`` to settings that TensorFlow accepts.

    Args:
      warm_start_from: Prefix of a checkpoint, a folder with checkpoints, a SavedModel's folder,
        WarmStartSettings, a list or tuple of these, or None.

    Returns:
      A TableWarmStart; None and objects of other classes unchanged, for the Estimator to check.

    Raises:
      ValueError: The list or tuple is empty or has something else.
    """
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = tf.compat.as_str(os.fspath(warm_start_from))
        variables = os.path.join(path, "variables", "variables")
        return TableWarmStart(variables if tf.io.gfile.exists(f"{variables}.index") else path)
    if isinstance(warm_start_from, _estimator.WarmStartSettings):
        settings = TableWarmStart(*warm_start_from)
        settings.resize_rows = getattr(warm_start_from, "resize_rows", False)
        return settings
    if isinstance(warm_start_from, (list, tuple)):
        converted = [as_settings(each) for each in warm_start_from]
        sources = [each for each in converted if isinstance(each, TableWarmStart)]
        if not sources or len(sources) < len(converted):
            raise ValueError(
                "warm_start_from must be a list of checkpoints and WarmStartSettings, got "
                f"{warm_start_from!r}; leave it out to start fresh"
            )
        sources[-1].earlier = tuple(sources[:-1])
        return sources[-1]
    return warm_start_from


def _find_checkpoint(argument: str, path: str) -> str:
    prefix = builder.latest_of(path)
    if not prefix or not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(
            f"{argument} must be a checkpoint or a folder with one, got {path!r}; a "
            "checkpoint is named without .index"
        )
    return prefix


def _check_source(
    prefix: str,
    source: TableSource,
    table: EmbeddingTable,
    keeps_versions: bool = True,
    resizes: bool = False,
) -> Tuple[int, ...]:
    """Checks, before anything is built, that the table can be restored from the checkpoint.

    Returns:
      The widths of the rows and slots in the checkpoint if they differ from the table's, else ().
    """
    index = Index(prefix)
    part = re.fullmatch(r"(.*)/part_\d+", source.name)
    if part and f"{source.name}-values" in index.names:
        raise ValueError(
            f"the source of table {table.name!r} must be a whole table of checkpoint {prefix}, got "
            f"the part {source.name!r}; name {part[1]!r}"
        )
    shape = _shape_of(index, source.name)
    if shape is None:
        tables = sorted(
            {re.sub(r"(/part_\d+)?-values$", "", n) for n in index.names if n.endswith("-values")}
        )
        raise ValueError(
            f"table {source.name!r} must be in checkpoint {prefix}, got one with tables {tables}; "
            f"name the table that initializes {table.name!r}"
        )
    stored_dim = shape[-1]
    if len(shape) != 2 or (stored_dim != table.dim and not resizes):
        raise ValueError(
            f"table {source.name!r} of checkpoint {prefix} must have dim {table.dim}, that of "
            f"table {table.name!r}, got values of shape {shape}; pass resize_rows=True to "
            "drop the last elements of its rows or to add initial values"
        )
    widths = [stored_dim]
    for slot in source.slots:
        shape = _shape_of(index, source.name, slot.name)
        width = stored_dim if slot.width == table.dim else slot.width
        if resizes and table.dim == 1 and shape is not None and shape[1:] == [1]:
            width = 1  # A slot of the row, not of its only element.
        if shape is not None and shape[1:] != [width]:
            raise ValueError(
                f"slot {source.name + '/' + slot.name!r} of checkpoint {prefix} must have width "
                f"{width}, that of slot {slot.name!r} of table {table.name!r}, got values of "
                f"shape {shape}"
            )
        widths.append(width)
    warn_of_table(index, table, source.name, source.slots, keeps_versions)
    return () if stored_dim == table.dim else tuple(widths)


def _shape_of(index: Index, table: str, slot: Optional[str] = None) -> Optional[List[int]]:
    """The shape of the values of a table or a slot in a checkpoint, or of its first part."""
    ending = "-values" if slot is None else f"/{slot}-values"
    for name in (table + ending, f"{table}/part_0{ending}"):
        if name in index.names:
            return list(index.tensor(name).shape)
    return None
