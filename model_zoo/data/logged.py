# SPDX-License-Identifier: Apache-2.0
"""Data sets whose rows follow from those before them: histories and negatives from a log."""

import functools
import os
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.column import Column, id_column
from model_zoo.data.dataset import PARTS, InputFn, MemoryDataSet, Reading, Rows
from model_zoo.data.event_log import Columns, Drawing, History, RowBuilder
from model_zoo.data.fields import Conversion, Ids, Labels, Texts, Times
from model_zoo.data.measures import arrays
from model_zoo.data.places import Place, places_of
from model_zoo.data.schema import EVERY, Condition, EventLog, Field, Split
from model_zoo.data.splits import (
    conversion_of_split,
    row_filter,
    time_limits,
    time_of_begin,
)
from model_zoo.data.streamed import StreamedDataSet

# Columns besides those of the schema, whose names have no slash.
_TIME, _PART, _SPLIT, _NAMES = "//time", "//part", "//split", "//names"
_FILES, _LOCATION = "//files", "//location"  # an index of the files of the schema, and of a row

_COMPARISONS: Mapping[str, Callable[..., np.ndarray]] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
}


class LoggedDataSet(StreamedDataSet):
    """The data set of a schema with histories or negatives from a log, or a split for each user.

    The files are read at the first use; then all rows are in memory. They are in order of time,
    those of one time in the order of the files. Arguments are those of StreamedDataSet.
    """

    def rows(self, part: str) -> int:
        """Returns the number of rows of a part."""
        return self._memory.rows(part)

    def late_row(self) -> str:
        """Returns "": rows are in order of time, whatever the order of the files is."""
        return ""

    def in_memory(self, part: str) -> Rows:
        """Returns the rows of a part, for analyses in NumPy."""
        return self._memory.in_memory(part)

    def read(self, reading: Reading) -> InputFn:
        """Returns the input_fn of a reading, as `input_fn` describes it."""
        return self._memory.read(reading)

    def places(self, part: str) -> Iterator[Place]:
        """Yields where each row of a part is, in the order of `input_fn` without a seed.

        A negative is where the row is that it was drawn for.
        """
        return iter(self._places[part] if self.rows(part) else [])

    def texts(self, column: str, part: Optional[str] = None) -> Dict[int, str]:
        """Returns the text that each key of a column stands for, in all parts."""
        del part  # Negatives have items of other parts.
        return super().texts(column)

    def item_name(self, key: int) -> str:
        """Returns the name of an item, for output."""
        return self._memory.item_name(key)

    @functools.cached_property
    def _memory(self) -> MemoryDataSet:
        columns = self._read()
        order = np.argsort(columns[_TIME], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        columns[_PART] = self._parts(columns)
        names = self._item_names(columns.pop(_NAMES, None), columns)
        try:
            rows = self._builder().extend(columns, columns[_PART] >= 0)
            parts = {
                part: Rows(
                    {column.name: rows[column.name][rows[_PART] == at] for column in self.columns},
                    {label: rows[label][rows[_PART] == at] for label in self.labels},
                )
                for at, part in enumerate(PARTS)
                if np.any(rows[_PART] == at)
            }
            self._locations = rows[_PART], rows[_FILES], rows[_LOCATION]
            return MemoryDataSet(
                self.name, self.columns, parts, credit=self.credit, item_names=names
            )
        except ValueError as error:
            raise ValueError(f"{self.schema.path}: {error}") from None

    @functools.cached_property
    def _places(self) -> Dict[str, List[Place]]:
        """Where the rows of each part are, in their order."""
        parts, files, locations = self._locations
        found: List[Place] = [("", "", 0)] * len(parts)
        for at, key in enumerate(self.schema.files):
            rows = np.flatnonzero(files == at)
            for row, place in zip(rows, places_of(self._source(key), locations[rows])):
                found[row] = place
        return {
            part: [found[row] for row in np.flatnonzero(parts == at)]
            for at, part in enumerate(PARTS)
        }

    def _parts(self, columns: Columns) -> np.ndarray:
        """Returns the part of each row, an index of PARTS, or -1; rows are in order of time."""
        split, parts = self.schema.split, columns[_PART]
        if split is None or split.by != "time":
            return parts
        times = columns[_SPLIT] if split.column else np.arange(len(parts), dtype=np.float64)
        is_divided = parts == 0  # other parts have files of their own
        if split.each is not None:
            groups = columns[self._key(split.each)]
            divided = _parts_of_each(split, groups[is_divided], times[is_divided])
        else:
            limits = time_limits(split, np.sort(times[is_divided]))
            begins = [time_of_begin(split), limits["validation"], limits["test"]]
            divided = np.searchsorted(begins, times[is_divided], side="right") - 1
        parts[is_divided] = divided
        return parts

    def _builder(self) -> RowBuilder:
        histories = [
            History(
                name=field.column.name,
                user=self._key(log.user),
                item=str(field.column.table),
                time=_TIME,
                max_length=field.column.max_length,
                group=None if log.group is None else self._key(log.group),
                where=None if log.where is None else self._condition(log.where),
            )
            for field, log in self._logs()
        ]
        drawn = self.schema.negatives
        if drawn is None:
            return RowBuilder(histories)
        of_items = [c.name for c in self.columns if c.role == "item"]
        drawing = Drawing(
            item=id_column(self.columns, "item", self.name).name,
            columns=of_items,
            labels=self.labels,
            group=_TIME if drawn.group is None else self._key(drawn.group),
            count=drawn.count,
            window=drawn.window,
            seed=drawn.seed,
        )
        return RowBuilder(histories, drawing)

    def _item_names(self, names: Optional[np.ndarray], columns: Columns) -> Dict[int, str]:
        if names is None:
            return {}
        named = next(f.column.name for f in self.schema.fields if f.names is not None)
        keys, first = np.unique(columns[named], return_index=True)
        return {int(key): names[row].decode() for key, row in zip(keys, first)}

    def _key(self, name: str) -> str:
        """The name here of a column that the log needs: one of the schema, or else of the files."""
        is_field = any(f.column.name == name and f.log is None for f in self.schema.fields)
        return name if is_field else f"/{name}"

    def _logs(self) -> List[Tuple[Field, EventLog]]:
        return [(field, field.log) for field in self.schema.fields if field.log is not None]

    def _condition(self, where: Condition) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Returns which rows enter a history: by a label, or by a column of the files."""
        if where.source not in self.labels:
            return lambda columns: columns[_name_of(where)] == 1
        compare, value = _COMPARISONS[where.operator or "=="], where.value if where.operator else 1
        return lambda columns: compare(columns[where.source], value)

    def _read(self) -> Columns:
        """Returns all columns of all files, and the part of each row, in the order of the files."""
        self._check_size()
        found: List[Mapping[str, np.ndarray]] = []
        for key in self.schema.files:
            found += arrays(functools.partial(self._batches, key))
        if not found:
            raise ValueError(f"{self.schema.path}: the files have no rows")
        columns = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        if _TIME not in columns:
            columns[_TIME] = np.arange(len(columns[_PART]), dtype=np.float64)
        return columns

    def _check_size(self) -> None:
        """Refuses files that would fill the memory; rows with histories are larger than lines."""
        paths = {path for key in self.schema.files for path in self._source(key).paths}
        size, most = sum(tf.io.gfile.stat(path).length for path in paths), _memory_bytes() // 4
        if size > most:
            raise ValueError(
                f"{self.schema.path}: files must have at most {most / 2**30:.1f} GiB, a quarter of "
                "the memory of this machine, because from, negatives and each read all rows at "
                f"once, got {size / 2**30:.1f} GiB; shorten the log, or write histories into files"
            )

    def _batches(self, key: str, batch_size: int) -> tf.data.Dataset:
        part = "train" if key == EVERY else key
        is_standard = any(field.transform == "standard" for field in self.schema.fields)
        moments = self._measured().moments if is_standard else {}
        conversions = {**self._conversions(moments), **self._log_conversions()}
        batches = self._pipeline(part, conversions, None).batches(batch_size)
        files = list(self.schema.files).index(key)
        return batches.map(
            lambda found, locations: {
                **self._with_part(part, found, locations),
                _FILES: tf.fill(tf.shape(locations), np.int64(files)),
                _LOCATION: locations,
            }
        )

    def _with_part(
        self, part: str, found: Dict[str, tf.Tensor], locations: tf.Tensor
    ) -> Dict[str, tf.Tensor]:
        """Adds the part of each row, unless times decide it: the index in PARTS, or -1 for none."""
        split = self.schema.split
        parts = tf.fill(tf.shape(locations), np.int64(PARTS.index(part)))
        if split is not None and split.by != "time" and part == "train":
            parts = tf.fill(tf.shape(locations), np.int64(-1))
            for at, each in enumerate(PARTS):
                chosen = row_filter(split, each, self.schema.format.missing, {})
                values = locations if chosen.conversion is None else found[_SPLIT]
                is_chosen = chosen.chooses(values)
                parts = tf.where(is_chosen, tf.fill(tf.shape(parts), np.int64(at)), parts)
        is_text = split is not None and split.by != "time"
        kept = {name: each for name, each in found.items() if name != _SPLIT or not is_text}
        return {**kept, _PART: parts}

    def _log_conversions(self) -> Dict[str, Conversion]:
        """The conversions of columns that only the log needs."""
        missing = self.schema.format.missing
        conversions: Dict[str, Conversion] = {}
        split, negatives = self.schema.split, self.schema.negatives
        times = [log.time for _, log in self._logs()]
        if split is not None:
            conversion = conversion_of_split(split, missing)
            if conversion is not None:
                conversions[_SPLIT] = conversion
            times += [split.column] if split.by == "time" and split.column else []
        if times:
            conversions[_TIME] = Times(times[0], missing)
        keys = [name for _, log in self._logs() for name in (log.user, log.group)]
        keys += [negatives.group if negatives else None, split.each if split else None]
        for name in keys:
            if name and self._key(name) not in conversions and self._key(name)[0] == "/":
                conversions[self._key(name)] = Ids(Field(Column("key", "context"), name), missing)
        for _, log in self._logs():
            if log.where is not None and log.where.source not in self.labels:
                conversions[_name_of(log.where)] = Labels(log.where, missing)
        for field in self.schema.fields:
            if field.names is not None:
                conversions[_NAMES] = Texts(field.names, missing)
        return conversions


def _memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _name_of(where: Condition) -> str:
    return f"//{where.source} {where.operator} {where.value}"


def _parts_of_each(split: Split, groups: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns the part of each row, an index of PARTS: the last rows of each group are its test.

    Args:
      split: Its fractions are of the rows of a group.
      groups: int64 [n], such as users, in order of time.
      times: float64 [n].
    """
    parts = np.where(times >= time_of_begin(split), 0, -1)
    rows = np.flatnonzero(parts == 0)
    order = rows[np.argsort(groups[rows], kind="stable")]
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    test = np.round(float(split.test) * counts).astype(np.int64)
    validation = np.round(float(split.validation) * counts).astype(np.int64)
    # How many rows of its group follow a row.
    after = np.repeat(starts + counts, counts) - 1 - np.arange(len(order))
    parts[order[after < np.repeat(test + validation, counts)]] = PARTS.index("validation")
    parts[order[after < np.repeat(test, counts)]] = PARTS.index("test")
    return parts
