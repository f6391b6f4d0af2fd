# SPDX-License-Identifier: Apache-2.0
"""Data sets that a schema describes: rows are streamed from files and never loaded whole."""

import dataclasses
import functools
import pathlib
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.dataset import PARTS, DataSet, InputFn, Reading, check_part
from model_zoo.data.fields import Conversion, Labels, RawNumbers, Texts, conversion_of
from model_zoo.data.measures import Measures, MeasuresFile, Moments, arrays
from model_zoo.data.pipeline import Pipeline
from model_zoo.data.places import Place, places_of
from model_zoo.data.readers import Source, open_files
from model_zoo.data.schema import EVERY, Schema
from model_zoo.data.splits import (
    RowFilter,
    TimeSample,
    conversion_of_split,
    row_filter,
    time_limits,
)

_SMALL_BYTES = 2**24  # of files that are read once before a training, which takes seconds


class StreamedDataSet(DataSet):
    """The data set of a schema.

    Limits of a split by time, and means and deviations of numbers, are measured at the first use
    and kept in a small file in `cache_dir`.

    Args:
      schema: What the files, columns and labels are.
      folder: Folder of the files that the schema names.
      cache_dir: Folder for what is measured.
    """

    def __init__(self, schema: Schema, folder: pathlib.Path, cache_dir: pathlib.Path) -> None:
        self.schema = schema
        self.name = schema.name
        self.columns = schema.columns
        self.labels = tuple(schema.labels)
        self.credit = schema.credit
        self._folder = folder
        self._cache_dir = cache_dir
        self._sources: Dict[str, Source] = {}
        self._measures: Optional[Measures] = None

    def rows(self, part: str) -> Optional[int]:
        """Returns the number of rows of a part; None: not known, because the files are large.

        Rows of small files are all converted when they are counted, so that an error in a row ends
        no training.
        """
        check_part(part)
        if not self._has(part):
            return 0
        return None if self._rows is None else self._rows[part]

    @functools.cached_property
    def _rows(self) -> Optional[Mapping[str, int]]:
        """The number of rows of each part; None: the files are large."""
        paths = self._paths()
        if sum(tf.io.gfile.stat(path).length for path in paths) > _SMALL_BYTES:
            return None
        file = self._measures_file(f"{self.name}-rows", paths)
        return file.get(lambda: Measures(rows=self._count())).rows

    def count_training_rows(self) -> int:
        """Returns the number of training rows, which are counted once and kept in `cache_dir`."""
        rows = self.rows("train")
        if rows is None:
            file = self._measures_file(f"{self.name}-training-rows", self._source("train").paths)
            rows = file.get(lambda: Measures(rows=self._count_training())).rows["train"]
        return rows

    def late_row(self) -> str:
        """Returns where a row is earlier than the one before it; "" if the split names no times."""
        late, split = self._measured().late, self.schema.split
        return f"{late}: column {split.column!r}" if late and split else ""

    def without_validation(self) -> "StreamedDataSet":
        """Returns the data set whose validation rows are training rows."""
        return type(self)(self.schema.without_validation(), self._folder, self._cache_dir)

    def read(self, reading: Reading) -> InputFn:
        """Returns the input_fn of a reading, as `input_fn` describes it."""
        part = reading.part
        if not self._has(part):
            raise ValueError(
                f"part must be one that {self.schema.path} has, got {part!r}; add it to files or "
                "to split"
            )
        measures = self._measured()
        conversions = self._conversions(measures.moments)
        if part == "train":
            self._paths()  # so that files which are not there are no error at the end of a training
        pipeline = self._pipeline(part, conversions, self._filter(part, measures.time_limits))

        def features_and_labels(found: Dict[str, tf.Tensor], _: tf.Tensor) -> Any:
            features = {column.name: found[column.name] for column in self.columns}
            labels = {name: found[name] for name in self.labels}
            return features, labels if len(labels) > 1 else labels[self.labels[0]]

        def make() -> tf.data.Dataset:
            batches = pipeline.batches(
                reading.batch_size, seed=reading.seed, epochs=reading.epochs, skip=reading.skip
            )
            return batches.map(features_and_labels)

        return make

    def places(self, part: str) -> Iterator[Place]:
        """Yields where each row of a part is, in the order of `input_fn` without a seed."""
        chosen = self._filter(part, self._measured().time_limits)
        for _, locations in list(arrays(self._pipeline(part, {}, chosen).batches)):
            yield from places_of(self._source(part), locations)

    def texts(self, column: str, part: Optional[str] = None) -> Dict[int, str]:
        """Returns the text that each key of a column stands for; {} if ids are integers."""
        missing = self.schema.format.missing
        field = next(each for each in self.schema.fields if each.column.name == column)
        if field.type == "int" or field.transform or field.buckets:
            return {}
        conversions = {
            "key": conversion_of(field, missing, {}),
            "text": Texts(field.source, missing),
        }
        found: Dict[int, str] = {}
        for key in self.schema.files if part is None else [part]:
            chosen = part and self._filter(part, self._measured().time_limits)
            pipeline = self._pipeline(key, conversions, chosen or None)
            for batch, _ in arrays(pipeline.batches):
                keys, first = np.unique(batch["key"], return_index=True)
                found.update(zip(keys.tolist(), map(tf.compat.as_str, batch["text"][first])))
        return found

    def _has(self, part: str) -> bool:
        split = self.schema.split
        if part in self.schema.files or part == "train":
            return True
        if split is not None and split.by == "column":
            return bool(split.values.get(part))
        return split is not None and bool(getattr(split, part))

    def _conversions(self, moments: Mapping[str, Tuple[float, float]]) -> Dict[str, Conversion]:
        missing = self.schema.format.missing
        conversions = {
            field.column.name: conversion_of(field, missing, moments)
            for field in self.schema.fields
            if field.log is None
        }
        for name, condition in self.schema.labels.items():
            conversions[name] = Labels(condition, missing)
        return conversions

    def _pipeline(
        self,
        part: str,
        conversions: Mapping[str, Conversion],
        chosen: Optional[RowFilter],
    ) -> Pipeline:
        lengths: Dict[str, int] = {}
        for field in self.schema.fields:
            length = max(lengths.get(field.source, 1), field.column.max_length)
            lengths[field.source] = length
        source = self._source(part)
        try:
            return Pipeline(source, conversions, chosen, lengths, part)
        except ValueError as error:
            raise ValueError(f"{self.schema.path}: {error}") from None

    def _filter(self, part: str, limits: Mapping[str, float]) -> Optional[RowFilter]:
        """Returns which rows of the files of a part are of it; None: all."""
        split = self.schema.split
        if split is None or (part in self.schema.files and part != "train"):
            return None
        return row_filter(split, part, self.schema.format.missing, limits)

    def _paths(self) -> Tuple[str, ...]:
        """Returns all files of all parts, and opens them."""
        return tuple(p for each in dict.fromkeys(map(self._source, PARTS)) for p in each.paths)

    def _source(self, part: str) -> Source:
        """Returns the files of a part: its own, or those that the split divides."""
        files = self.schema.files
        key = part if part in files else EVERY if EVERY in files else "train"
        if key not in self._sources:
            patterns = [str(self._folder / pattern) for pattern in files[key]]
            name = "files" if key == EVERY else f"files.{key}"
            try:
                self._sources[key] = open_files(patterns, self.schema.format, name)
            except ValueError as error:
                raise ValueError(f"{self.schema.path}: {error}") from None
        return self._sources[key]

    def _measured(self) -> Measures:
        """Returns what must be known before rows are read."""
        if self._measures is None:
            split = self.schema.split
            is_standard = any(field.transform == "standard" for field in self.schema.fields)
            is_needed = is_standard or (split is not None and split.by == "time")
            file = self._measures_file(self.name, self._source("train").paths)
            self._measures = file.get(self._measure) if is_needed else Measures()
        return self._measures

    def _measures_file(self, name: str, files: Tuple[str, ...]) -> MeasuresFile:
        content = dataclasses.replace(self.schema, path="", name="", credit="")
        return MeasuresFile(self._cache_dir, name, content, files)

    def _measure(self) -> Measures:
        measures = self._measure_time()
        missing = self.schema.format.missing
        standard = {
            field.column.name: RawNumbers(field, missing)
            for field in self.schema.fields
            if field.transform == "standard"
        }
        if not standard:
            return measures
        moments = {name: Moments() for name in standard}
        chosen = self._filter("train", measures.time_limits)
        for found, _ in arrays(self._pipeline("train", standard, chosen).batches):
            for name, numbers in found.items():
                moments[name].extend(numbers)
        return dataclasses.replace(
            measures, moments={name: each.result() for name, each in moments.items()}
        )

    def _measure_time(self) -> Measures:
        """Measures the limits of a split by time, and whether rows are in order of time."""
        split = self.schema.split
        if split is None or split.by != "time":
            return Measures()
        conversion = conversion_of_split(split, self.schema.format.missing)
        conversions = {} if conversion is None else {"time": conversion}
        sample, last, late = TimeSample(), -np.inf, ""
        for found, locations in arrays(self._pipeline("train", conversions, None).batches):
            times = locations if conversion is None else found["time"]
            is_late = times < np.append(last, times[:-1])
            if not late and is_late.any():
                late = self._source("train").place(locations[np.argmax(is_late)])
            last = times[-1]
            sample.extend(times)
        try:
            return Measures(time_limits(split, sample.sorted()), late=late)
        except ValueError as error:
            raise ValueError(f"{self.schema.path}: {error}") from None

    def _count(self) -> Dict[str, int]:
        """Counts the rows of all parts, and converts them."""
        measures = self._measured()
        conversions = self._conversions(measures.moments)
        return {
            part: self._pipeline(
                part, conversions, self._filter(part, measures.time_limits)
            ).count()
            for part in PARTS
            if self._has(part)
        }

    def _count_training(self) -> Dict[str, int]:
        """Counts the training rows, of which no more is read than the split needs."""
        chosen = self._filter("train", self._measured().time_limits)
        return {"train": self._pipeline("train", {}, chosen).count()}
