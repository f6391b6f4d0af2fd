# SPDX-License-Identifier: Apache-2.0
"""Initializes tables from the rows of another checkpoint: init_from_checkpoint, warm_start_from.

As for TensorFlow's variables, the table gets an initializer that reads the checkpoint. It runs
wherever the initializer would have run; a training that resumes from its own checkpoint does not
run it. It restores rows, counts, versions and the bank of initial vectors, from any number of
shards. The filter of this graph decides again about keys that were filtered in the checkpoint.
Optimizer slots start fresh, unless warm_start_from selects them.
"""

import os
import re
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as _estimator
from rec_estimator.checkpoint import builder, deltas
from rec_estimator.table import saveable
from rec_estimator.table.initializer_entries import InitializerEntry
from rec_estimator.table.shard import SlotSpec
from rec_estimator.table.table import EmbeddingTable, dense_variables, graph_tables


def init_from_checkpoint(
    ckpt_dir_or_file: str, assignment_map: Union[Mapping[str, object], Sequence[Tuple[str, object]]]
) -> None:
    """``tf.compat.v1.train.init_from_checkpoint`` for variables and tables.

    A table takes the rows of the checkpoint with their counts and versions; its optimizer slots
    start fresh. Filters may differ: keys that own a row in the checkpoint own one here, and the
    filter of this table decides about the others by their counts. The function may be called
    several times, with different checkpoints.

    Args:
      ckpt_dir_or_file: Prefix of a checkpoint, or a folder, which stands for its latest checkpoint.
      assignment_map: What to initialize from which name in the checkpoint, as a dict or as pairs:
        ``"old"`` to ``"new"``, to a table or to the list of its shards; or ``"old_scope/"`` to
        ``"scope/"``, where ``"/"`` is the root.

    Raises:
      ValueError: There is no such checkpoint, or it has no such table, or its table has another
        dimension. Also raises whatever TensorFlow's function raises.
      tf.errors.NotFoundError: The checkpoint is a delta and a parent checkpoint is missing.
      tf.errors.DataLossError: The checkpoint is a delta and a parent checkpoint was overwritten.

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
    """Replaces a table's initializer by one that reads a checkpoint.

    Args:
      table: The table.
      prefix: Prefix of the checkpoint, which is read when the initializer runs.
      source: Name of the table in the checkpoint.
      slots: The slots to read, too; other slots start fresh.
    """
    for shard in table.shards:
        with tf.init_scope(), tf.name_scope(None), tf.name_scope(f"{shard.op.name}/"):
            shard.initializer = saveable.build_restore(shard, prefix, source, slots)
    with tf.name_scope(None):
        initializers = [shard.initializer for shard in table.shards]
        table.initializer = initializers[0] if len(initializers) == 1 else tf.group(initializers)


def initialize_as_option_says(table: EmbeddingTable) -> None:
    """Initializes a new table from the checkpoint of its CheckpointOption, if it has one."""
    source = builder.source_of_option(table)
    if source is not None:
        initialize_table(table, *source)


class TableWarmStart(_estimator.WarmStartSettings):
    """WarmStartSettings for variables and tables.

    After the model_fn has built a graph that starts without a checkpoint, an Estimator calls
    ``tf.compat.v1.train.warm_start(*settings)``. The iterator of this class serves that call: it
    initializes the tables and returns settings for the variables only.
    """

    def __iter__(self) -> Iterator[object]:
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


def as_settings(warm_start_from: object) -> object:
    """Converts RecEstimator's ``warm_start_from`` to settings that TensorFlow accepts.

    Args:
      warm_start_from: Prefix of a checkpoint, a folder with checkpoints, a SavedModel's folder,
        WarmStartSettings, or None.

    Returns:
      A TableWarmStart; None and objects of other classes unchanged, for the Estimator to check.
    """
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = tf.compat.as_str(os.fspath(warm_start_from))
        variables = os.path.join(path, "variables", "variables")
        return TableWarmStart(variables if tf.io.gfile.exists(f"{variables}.index") else path)
    if isinstance(warm_start_from, _estimator.WarmStartSettings):
        return TableWarmStart(*warm_start_from)
    return warm_start_from


def _select(
    chosen: object,
) -> Tuple[object, List[Tuple[EmbeddingTable, List[SlotSpec]]]]:
    """Splits `vars_to_warm_start` into TensorFlow's part and tables, with the slots to read."""
    if isinstance(chosen, str):
        # A string selects trainable variables only, and therefore no slots.
        return dense_variables(chosen), [
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
        # Without duplicates: TensorFlow takes a variable that is listed twice for two parts of it.
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
    # TensorFlow matches the variable's name, which ends in ":0".
    return bool(re.match(expression, name) or re.match(expression, f"{name}:0"))


def _as_table(item: object, by_name: Mapping[str, EmbeddingTable]) -> Optional[EmbeddingTable]:
    """Returns the table that an item of an assignment map names, None if it is no table."""
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
    if not prefix or not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(
            f"{argument} must be a checkpoint or a folder with one, got {path!r}; a "
            "checkpoint is named without .index"
        )
    return prefix


def _check_source(prefix: str, source: str, table: EmbeddingTable) -> None:
    """Checks, before anything is built, that the table can be restored from the checkpoint."""
    deltas.check_parents(prefix)
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
            f"name the table that initializes {table.name!r}"
        )
    if shape[1:] != [table.dim]:
        raise ValueError(
            f"table {source!r} of checkpoint {prefix} must have dim {table.dim}, that of table "
            f"{table.name!r}, got values of shape {shape}"
        )
