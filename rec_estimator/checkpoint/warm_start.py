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
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as _estimator
from rec_estimator.checkpoint import builder, deltas
from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.table import saveable
from rec_estimator.table.initializer_entries import InitializerEntry
from rec_estimator.table.shard import SlotSpec
from rec_estimator.table.table import EmbeddingTable, dense_variables, graph_tables


class _Source(NamedTuple):
    """What initializes a table: a table of the checkpoint, and those slots of it."""

    name: str
    slots: Tuple[SlotSpec, ...]


def init_from_checkpoint(
    ckpt_dir_or_file: str,
    assignment_map: Union[Mapping[str, object], Sequence[Tuple[str, object]]],
    reset_version: bool = False,
) -> None:
    """``tf.compat.v1.train.init_from_checkpoint`` for variables and tables.

    A table takes the rows of the checkpoint with their counts and versions. Its optimizer slots
    come along where the slots of a variable would: if they exist when the function is called, and
    a scope or a name in the map covers them. Other slots, and slots that the checkpoint lacks,
    start fresh. Filters may differ: keys that own a row in the checkpoint own one here, and the
    filter of this table decides about the others by their counts. The function may be called
    several times, with different checkpoints.

    Args:
      ckpt_dir_or_file: Prefix of a checkpoint, or a folder, which stands for its latest checkpoint.
      assignment_map: What to initialize from which name in the checkpoint, as a dict or as pairs:
        ``"old"`` to ``"new"``, to a table or to the list of its shards, without the slots;
        ``"old/Adagrad"`` to ``"new/Adagrad"``, besides the table, for a slot; ``"old"`` to a member
        of ``tf.global_variables()``, which is a table with its slots; or ``"old_scope/"`` to
        ``"scope/"``, where ``"/"`` is the root, for all tables of the scope with their slots,
        except tables that checkpoints do not contain.
      reset_version: Whether tables forget the steps at which their keys were trained, as a run
        wants that counts its steps from 0. The versions are 0, as in DeepRec. If GlobalStepEvict
        or an eviction_threshold reads them, they are -1: the age of the keys then counts from the
        first eviction, at whichever step the run begins.

    Raises:
      ValueError: There is no such checkpoint, or it has no such table, or its table or slot has
        another dimension, or a slot is named without its table. Also raises whatever TensorFlow's
        function raises.
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
    sources, left = _split_map(pairs)
    for table, source in sources.items():
        _check_source(prefix, source, table)
    if left:
        tf.train.init_from_checkpoint(ckpt_dir_or_file, left)
    for table, source in sources.items():
        version = table.version_after_reset if reset_version else None
        initialize_table(table, prefix, source.name, source.slots, version)


def initialize_table(
    table: EmbeddingTable,
    prefix: str,
    source: str,
    slots: Sequence[SlotSpec] = (),
    version: Optional[int] = None,
) -> None:
    """Replaces a table's initializer by one that reads a checkpoint.

    Args:
      table: The table.
      prefix: Prefix of the checkpoint, which is read when the initializer runs.
      source: Name of the table in the checkpoint.
      slots: The slots to read, too; other slots start fresh.
      version: The version of every key; None: that in the checkpoint.
    """
    for shard in table.shards:
        with tf.init_scope(), tf.name_scope(None), tf.name_scope(f"{shard.op.name}/"):
            shard.initializer = saveable.build_restore(shard, prefix, source, slots, version)
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
        prefix = builder.latest_of(self.ckpt_to_initialize_from) or ""
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
            _check_source(prefix, _Source(source, slots), table)
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


def _split_map(
    pairs: Sequence[Tuple[str, object]],
) -> Tuple[Dict[EmbeddingTable, _Source], List[Tuple[str, object]]]:
    """Splits an assignment map into its tables and TensorFlow's part, which has scopes, too."""
    by_name = {table.name: table for table in graph_tables()}
    by_slot = {f"{t.name}/{slot.name}": (t, slot) for t in graph_tables() for slot in _slots(t)}
    sources: Dict[EmbeddingTable, _Source] = {}
    left = []
    # In TensorFlow's order, in which a scope comes before its members and a table before its slots.
    for old, new in sorted(pairs, key=lambda pair: pair[0]):
        found = _as_table(new, by_name)
        if found is not None:
            _add(sources, found, old, _slots(found) if _is_of_initialization(new) else ())
        elif isinstance(new, str) and new.rstrip("/") in by_slot:
            # In TensorFlow's store of variables, the names of slots end in "/".
            _add_slot(sources, *by_slot[new.rstrip("/")], old)
        else:
            left.append((old, new))
            if isinstance(new, str) and old.endswith("/"):
                for table, source in _tables_of_scope(old, new, by_name).items():
                    _add(sources, table, source, _slots(table))
    return sources, left


def _add(
    sources: Dict[EmbeddingTable, _Source],
    table: EmbeddingTable,
    name: str,
    slots: Sequence[SlotSpec],
) -> None:
    present = sources.get(table)
    if present is not None and present.name == name:
        slots = tuple(dict.fromkeys([*present.slots, *slots]))
    sources[table] = _Source(name, tuple(slots))


def _add_slot(
    sources: Dict[EmbeddingTable, _Source], table: EmbeddingTable, slot: SlotSpec, old: str
) -> None:
    source = sources.get(table)
    if source is None or old != f"{source.name}/{slot.name}":
        raise ValueError(
            f"assignment_map must map a table and its slot {slot.name!r} from one table, got "
            f"{old!r} to {table.name + '/' + slot.name!r} with {table.name!r} from "
            f"{source.name if source else None!r}; slots come with their table"
        )
    _add(sources, table, source.name, [slot])


def _slots(table: EmbeddingTable) -> Tuple[SlotSpec, ...]:
    return table.shards[0].slots


def _select(
    chosen: object,
) -> Tuple[object, List[Tuple[EmbeddingTable, Tuple[SlotSpec, ...]]]]:
    """Splits `vars_to_warm_start` into TensorFlow's part and tables, with the slots to read."""
    if isinstance(chosen, str):
        # A string selects trainable variables only, and therefore no slots.
        return dense_variables(chosen), [
            (t, ()) for t in graph_tables() if t.trainable and t.is_save and _matches([chosen], t)
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
            (table, tuple(slot for slot in _slots(table) if _matches(chosen, table, slot)))
            for table in graph_tables()
            if table.is_save and _matches(chosen, table)
        ]
        # Without duplicates: TensorFlow takes a variable that is listed twice for two parts of it.
        return list({id(variable): variable for variable in variables}.values()), found
    return _select_objects(chosen)


def _select_objects(
    chosen: Sequence[object],
) -> Tuple[List[object], List[Tuple[EmbeddingTable, Tuple[SlotSpec, ...]]]]:
    by_name = {table.name: table for table in graph_tables()}
    left: List[object] = []
    found: Dict[EmbeddingTable, Tuple[SlotSpec, ...]] = {}
    for each in chosen:
        table = None if isinstance(each, str) else _as_table(each, by_name)
        if table is None:
            left.append(each)
        elif _is_of_initialization(each):
            found[table] = _slots(table)
        else:
            found.setdefault(table, ())
    return left, list(found.items())


def _matches(
    expressions: Sequence[str], table: EmbeddingTable, slot: Optional[SlotSpec] = None
) -> bool:
    """Whether an expression selects a table, or a slot of it, by the name of any of its shards."""
    names = [table.name, *(shard.name for shard in table.shards)]
    if slot is not None:
        names = [f"{name}/{slot.name}" for name in names]
    # TensorFlow matches the variable's name, which ends in ":0".
    return any(
        re.match(expression, name) or re.match(expression, f"{name}:0")
        for expression in expressions
        for name in names
    )


def _as_table(item: object, by_name: Mapping[str, EmbeddingTable]) -> Optional[EmbeddingTable]:
    """Returns the table that an item of an assignment map names, None if it is no table."""
    if isinstance(item, str):
        return by_name.get(item)
    if isinstance(item, list) and item:
        tables = {_as_table(each, {}) for each in item}
        return tables.pop() if len(tables) == 1 else None
    if isinstance(item, InitializerEntry):
        item = item.shard
    item = getattr(item, "table", item)
    return item if isinstance(item, EmbeddingTable) else None


def _is_of_initialization(item: object) -> bool:
    """Whether an item is from GLOBAL_VARIABLES, which also has the slots of variables."""
    return isinstance(item[0] if isinstance(item, list) else item, InitializerEntry)


def _tables_of_scope(
    old: str, new: str, by_name: Mapping[str, EmbeddingTable]
) -> Dict[EmbeddingTable, str]:
    scope = new[: new.rindex("/") + 1] if "/" in new else ""
    scope = "" if scope == "/" else scope
    return {
        table: (old if old != "/" else "") + name[len(scope) :]
        for name, table in by_name.items()
        if name.startswith(scope) and table.is_save
    }


def _find_checkpoint(argument: str, path: str) -> str:
    prefix = builder.latest_of(path)
    if not prefix or not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(
            f"{argument} must be a checkpoint or a folder with one, got {path!r}; a "
            "checkpoint is named without .index"
        )
    return prefix


def _check_source(prefix: str, source: _Source, table: EmbeddingTable) -> None:
    """Checks, before anything is built, that the table can be restored from the checkpoint."""
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
    if shape[1:] != [table.dim]:
        raise ValueError(
            f"table {source.name!r} of checkpoint {prefix} must have dim {table.dim}, that of "
            f"table {table.name!r}, got values of shape {shape}"
        )
    for slot in source.slots:
        name = f"{source.name}/{slot.name}"
        shape = _shape_of(index, source.name, slot.name)
        if shape is None:
            tf.logging.warning("%s has no slot %s: it starts fresh.", prefix, name)
        elif shape[1:] != [slot.width]:
            raise ValueError(
                f"slot {name!r} of checkpoint {prefix} must have width {slot.width}, that of slot "
                f"{slot.name!r} of table {table.name!r}, got values of shape {shape}"
            )


def _shape_of(index: Index, table: str, slot: Optional[str] = None) -> Optional[List[int]]:
    """The shape of the values of a table or a slot in a checkpoint, or of its first part."""
    ending = "-values" if slot is None else f"/{slot}-values"
    for name in (table + ending, f"{table}/part_0{ending}"):
        if name in index.names:
            return list(index.tensor(name).shape)
    return None
