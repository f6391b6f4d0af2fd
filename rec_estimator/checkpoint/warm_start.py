# SPDX-License-Identifier: Apache-2.0
"""Tables that start from rows of another checkpoint: init_from_checkpoint, warm_start_from.

As with TensorFlow's variables, a table's initializer is replaced by one that reads the checkpoint:
it runs where the initializer would have run, and not where training resumes from a checkpoint of
its own. Rows, counts, versions and the bank of initial vectors are taken, from any number of
shards; keys that a filter kept out there are judged by the filter here; optimizer slots start
fresh, unless warm_start_from asks for them.
"""

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf
from tensorflow_estimator import estimator as _estimator

from rec_estimator.checkpoint import builder
from rec_estimator.checkpoint import files as checkpoint_files
from rec_estimator.table import saveable
from rec_estimator.table.shard import InitializerEntry, SlotSpec
from rec_estimator.table.table import EmbeddingTable, graph_tables


def init_from_checkpoint(
    ckpt_dir_or_file: str, assignment_map: Union[Mapping[str, Any], Sequence[Tuple[str, Any]]]
) -> None:
    """``tf.compat.v1.train.init_from_checkpoint`` that knows tables as well as variables.

    Of a table its rows with their counts and versions are taken, but no optimizer slots, which
    start fresh. Filters may differ: keys that own a row there own one here, others are judged anew
    by their counts. It may be called several times, with several checkpoints.

    Args:
      ckpt_dir_or_file: Prefix of a checkpoint, or a folder whose latest one is meant.
      assignment_map: Names in the checkpoint to what is initialized from them, as a dict or pairs:
        ``"old"`` to ``"new"``, to the table or to the list of its shards; ``"old_scope/"`` to
        ``"scope/"``, where ``"/"`` is the root.

    Raises:
      ValueError: There is no such checkpoint, the checkpoint has no such table, or one of another
        dimension; else as of TensorFlow.
      tf.errors.NotFoundError, tf.errors.DataLossError: It is incremental, and one that it builds on
        is gone or is another one than it was.

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
    by_name = {table.name: table for table in graph_tables()}
    sources: Dict[EmbeddingTable, str] = {}
    left = []
    for old, new in pairs:
        table = _as_table(new, by_name)
        if table is not None:
            sources[table] = old
            continue
        left.append((old, new))
        if isinstance(new, str) and old.endswith("/"):
            sources.update(_tables_of_scope(old, new, by_name))
    for table, source in sources.items():
        _check_source(prefix, source, table)
    if left:
        tf.train.init_from_checkpoint(ckpt_dir_or_file, left)
    for table, source in sources.items():
        initialize_table(table, prefix, source)


def initialize_table(
    table: EmbeddingTable, prefix: str, source: str, slots: Sequence[SlotSpec] = ()
) -> None:
    """Makes a table's initializer read a checkpoint.

    Args:
      table: The table.
      prefix: Of the checkpoint, which is read when the initializer runs.
      source: Name of the table in the checkpoint.
      slots: Those of the table's slots to take as well.
    """
    entries = {
        entry.op: entry for entry in tf.global_variables() if isinstance(entry, InitializerEntry)
    }
    for shard in table.shards:
        with tf.init_scope(), tf.name_scope(None), tf.name_scope(f"{shard.op.name}/"):
            shard.initializer = saveable.build_restore(shard, prefix, source, slots)
        # Of several graphs' tables, those of this graph are in its collection.
        if shard.op in entries:
            entries[shard.op].initializer = shard.initializer
    with tf.name_scope(None):
        initializers = [shard.initializer for shard in table.shards]
        table.initializer = initializers[0] if len(initializers) == 1 else tf.group(initializers)


def initialize_as_option_says(table: EmbeddingTable) -> None:
    """Makes a new table start from the checkpoint of its CheckpointOption, if it has one."""
    source = builder.source_of_option(table)
    if source is not None:
        initialize_table(table, *source)


class TableWarmStart(_estimator.WarmStartSettings):
    """WarmStartSettings that take the tables out before TensorFlow sees the rest.

    An Estimator hands its settings on as ``tf.compat.v1.train.warm_start(*settings)``, in each
    graph that starts without a checkpoint, when the model_fn has built it. To be unpacked there is
    what this class answers: the tables get their initializers, and TensorFlow gets variables only.
    """

    def __iter__(self) -> Iterator[Any]:
        previous = dict(self.var_name_to_prev_var_name)
        variables, tables = _select(self.vars_to_warm_start)
        for table in graph_tables():
            if table.name in self.var_name_to_vocab_info:
                raise ValueError(
                    f"var_name_to_vocab_info must name variables, got table {table.name!r}; a "
                    "table has keys and no vocabulary"
                )
        if tables:
            prefix = _find_checkpoint("warm_start_from", self.ckpt_to_initialize_from)
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
            _check_source(prefix, source, table)
            initialize_table(table, prefix, source, slots)
            tf.logging.info("Warm-starting table %s from %s of %s.", table.name, source, prefix)
        return iter(
            (self.ckpt_to_initialize_from, variables, self.var_name_to_vocab_info, previous)
        )


def as_settings(warm_start_from: Any) -> Any:
    """What RecEstimator's ``warm_start_from`` means, in a form that TensorFlow takes.

    Args:
      warm_start_from: Prefix of a checkpoint, a folder with one, a SavedModel's folder,
        WarmStartSettings, or None.

    Returns:
      A TableWarmStart, or what is none of those as it is.
    """
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = tf.compat.as_str(os.fspath(warm_start_from))
        variables = os.path.join(path, "variables", "variables")
        return TableWarmStart(variables if tf.io.gfile.exists(f"{variables}.index") else path)
    if isinstance(warm_start_from, _estimator.WarmStartSettings):
        return TableWarmStart(*warm_start_from)
    return warm_start_from


def _select(
    chosen: Any,
) -> Tuple[Any, List[Tuple[EmbeddingTable, List[SlotSpec]]]]:
    """What of `vars_to_warm_start` is TensorFlow's, and the tables with the slots to take."""
    if isinstance(chosen, str):
        # The trainable variables, and so no slots.
        return chosen, [
            (t, []) for t in graph_tables() if t.trainable and t.is_save and _matches(chosen, t)
        ]
    if not isinstance(chosen, list):
        return chosen, []
    if all(isinstance(each, str) for each in chosen):
        variables = [
            variable
            for each in chosen
            for variable in tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope=each)
            if not isinstance(variable, InitializerEntry)
        ]
        found = [
            (table, [slot for slot in table.shards[0].slots if _matches_slot(chosen, table, slot)])
            for table in graph_tables()
            if table.is_save and any(_matches(each, table) for each in chosen)
        ]
        # Overlapping expressions give a variable twice, which TensorFlow takes for two parts of it.
        return list({id(variable): variable for variable in variables}.values()), found
    by_name = {table.name: table for table in graph_tables()}
    tables = [_as_table(each, by_name) for each in chosen if not isinstance(each, str)]
    left = [each for each in chosen if isinstance(each, str) or _as_table(each, by_name) is None]
    return left, [(table, []) for table in dict.fromkeys(tables) if table is not None]


def _matches(expression: str, table: EmbeddingTable) -> bool:
    names = [table.name, *(shard.name for shard in table.shards)]
    return any(_matches_name(expression, name) for name in names)


def _matches_slot(expressions: Sequence[str], table: EmbeddingTable, slot: SlotSpec) -> bool:
    return any(_matches_name(each, f"{table.name}/{slot.name}") for each in expressions)


def _matches_name(expression: str, name: str) -> bool:
    # TensorFlow compares with a variable's name, which ends in ":0".
    return bool(re.match(expression, name) or re.match(expression, f"{name}:0"))


def _as_table(item: Any, by_name: Mapping[str, EmbeddingTable]) -> Optional[EmbeddingTable]:
    """The table that an item of an assignment map stands for, None if it stands for none."""
    if isinstance(item, str):
        return by_name.get(item)
    if isinstance(item, list) and item:
        tables = {getattr(each, "table", None) for each in item}
        item = tables.pop() if len(tables) == 1 else None
    item = getattr(item, "table", item)
    return item if isinstance(item, EmbeddingTable) else None


def _tables_of_scope(
    old: str, new: str, by_name: Mapping[str, EmbeddingTable]
) -> Dict[EmbeddingTable, str]:
    scope = new[: new.rindex("/") + 1] if "/" in new else ""
    scope = "" if scope == "/" else scope
    return {
        table: (old if old != "/" else "") + name[len(scope) :]
        for name, table in by_name.items()
        if name.startswith(scope)
    }


def _find_checkpoint(argument: str, path: str) -> str:
    prefix = builder.latest_of(path)
    if prefix is None or not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(
            f"{argument} must be a checkpoint or a folder with one, got {path!r}; a "
            "checkpoint is named without .index"
        )
    return prefix


def _check_source(prefix: str, source: str, table: EmbeddingTable) -> None:
    """Refuses, before anything is built, a checkpoint that cannot fill the table."""
    checkpoint_files.check_parents(prefix)
    shapes = tf.train.NewCheckpointReader(prefix).get_variable_to_shape_map()
    shape = next(
        (shapes[n] for n in (f"{source}-values", f"{source}/part_0-values") if n in shapes), None
    )
    if shape is None:
        tables = sorted(
            {re.sub(r"(/part_\d+)?-values$", "", n) for n in shapes if n.endswith("-values")}
        )
        raise ValueError(
            f"table {source!r} must be in checkpoint {prefix}, got one with tables {tables}; "
            f"name the one that {table.name!r} starts from"
        )
    if shape[1:] != [table.dim]:
        raise ValueError(
            f"table {source!r} of checkpoint {prefix} must have dim {table.dim}, that of table "
            f"{table.name!r}, got values of shape {shape}"
        )
