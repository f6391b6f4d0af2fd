# SPDX-License-Identifier: Apache-2.0
"""Streams rows: reads blocks, chooses rows, shuffles, makes batches and converts them.

Rows stay as they are in the files until they are in their batch: shuffling moves one text per row,
and the conversion of whole batches runs in parallel.
"""

from typing import Any, Dict, Mapping, NoReturn, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.fields import Conversion
from model_zoo.data.measures import arrays
from model_zoo.data.readers import Source
from model_zoo.data.readers.source import check_names
from model_zoo.data.splits import RowFilter

SHUFFLED_ROWS = 100_000  # at a time

_Dataset = tf.data.Dataset

# Autograph would rewrite the functions that make datasets, which costs seconds and changes nothing:
# no condition in them depends on a tensor.
_as_written = tf.autograph.experimental.do_not_convert


class Pipeline:
    """Streams rows of files.

    Args:
      source: The files.
      conversions: By key of the result, how a column is converted.
      chosen: Which rows are read. None: all.
      lengths: By column of the files, how many values of a list are needed. None: 1.
      part: What the rows are for, for errors.

    Raises:
      ValueError: The files lack a column.
    """

    def __init__(
        self,
        source: Source,
        conversions: Mapping[str, Conversion],
        chosen: Optional[RowFilter] = None,
        lengths: Optional[Mapping[str, int]] = None,
        part: str = "train",
    ) -> None:
        self._source = source
        self._conversions = dict(conversions)
        self._chosen = chosen
        self._part = part
        needed = [conversion.source for conversion in conversions.values()]
        if chosen is not None and chosen.conversion is not None:
            needed.append(chosen.conversion.source)
        check_names(source.names, needed, source.paths)
        self._lengths = {name: (lengths or {}).get(name, 1) for name in needed}

    def batches(
        self,
        batch_size: int,
        *,
        seed: Optional[int] = None,
        epochs: Optional[int] = 1,
        skip: int = 0,
    ) -> tf.data.Dataset:
        """Makes a dataset of batches, as DataSet.input_fn describes them.

        With a seed, files are read in a random order, some at a time, and their rows are shuffled
        SHUFFLED_ROWS at a time.

        Returns:
          A dataset of ({key: tensor}, locations int64 [n]).
        """
        least = 1 if seed is None else batch_size

        @_as_written
        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            return self._one_pass(batch_size, seed, epoch, least)

        epochs_left = _Dataset.range(tf.int64.max if epochs is None else epochs)
        # A batch is left out before it is parsed.
        return self._parsed(epochs_left.flat_map(one_pass).skip(skip))

    def count(self) -> int:
        """Converts all rows, of which there may be none, and returns their number."""
        batches = arrays(lambda size: self._parsed(self._rows(None, 0).rebatch(size)))
        return sum(len(locations) for _, locations in batches)

    def _parsed(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        parsed = batches.map(
            _as_written(self._parse), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return parsed.prefetch(2)

    def _one_pass(
        self, batch_size: int, seed: Optional[int], epoch: tf.Tensor, least: int
    ) -> tf.data.Dataset:
        if seed is None:
            return self._rows(None, least).rebatch(batch_size)
        seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.stateless_uniform([], seeds, maxval=2**31 - 1, dtype=tf.int64)

        def shuffled(number: tf.Tensor, block: Any) -> Any:
            size = tf.shape(block[1])[:1]
            keys = tf.random.stateless_uniform(
                size, tf.stack([order, number]), minval=None, maxval=None, dtype=tf.int64
            )
            at = tf.argsort(keys)
            return tf.nest.map_structure(lambda each: tf.gather(each, at), block)

        blocks = self._rows(order, least).rebatch(SHUFFLED_ROWS).enumerate()
        blocks = blocks.map(shuffled).prefetch(1)
        return blocks.rebatch(batch_size, drop_remainder=True)

    def _rows(self, order: Optional[tf.Tensor], least: int) -> tf.data.Dataset:
        """Makes a dataset of blocks of the chosen rows; fewer than `least` are an error."""
        blocks = self._source.blocks(self._lengths, order)
        if self._chosen is not None:
            blocks = blocks.map(self._choose, num_parallel_calls=2, deterministic=True)
        end = tf.nest.map_structure(_no_rows, blocks.element_spec)
        blocks = blocks.map(lambda *block: (block, False))
        blocks = blocks.concatenate(_Dataset.from_tensors((end, True)))

        def count(total: tf.Tensor, block: Any) -> Any:
            (rows, locations), is_end = block
            total += tf.size(locations, out_type=tf.int64)
            is_enough = tf.logical_or(total >= least, tf.logical_not(is_end))
            # Without the error, unlimited epochs without a batch would never end.
            checked = tf.cond(
                is_enough,
                lambda: tf.constant(0, tf.int64),
                lambda: tf.numpy_function(self._refuse, [total, np.int64(least)], tf.int64),
            )
            with tf.control_dependencies([checked]):
                return tf.identity(total), (rows, locations)

        return blocks.scan(np.int64(0), count)

    def _refuse(self, count: int, least: int) -> NoReturn:
        """Raises the ValueError about a pass with fewer rows than it must have."""
        paths = self._source.paths
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} other files"
        if count:
            raise ValueError(
                f"there must be {least} rows or more for a batch of {self._part}, got {count} in "
                f"{where}; choose a smaller batch_size or another split"
            )
        raise ValueError(
            f"files must have rows for {self._part}, got none in {where}; add rows, or change the "
            "split"
        )

    def _choose(self, rows: Any, locations: tf.Tensor) -> Any:
        """Returns the chosen rows of a block, and their locations."""
        assert self._chosen is not None
        values = locations
        if self._chosen.conversion is not None:
            values = self._located({"value": self._chosen.conversion}, rows, locations)["value"]
        is_chosen = self._chosen.chooses(values)
        return tf.nest.map_structure(
            lambda each: tf.boolean_mask(each, is_chosen), (rows, locations)
        )

    def _parse(self, rows: Any, locations: tf.Tensor) -> Any:
        return self._located(self._conversions, rows, locations), locations

    def _located(
        self, conversions: Mapping[str, Conversion], rows: Any, locations: tf.Tensor
    ) -> Dict[str, tf.Tensor]:
        """Converts rows; an error names the file and the line.

        TensorFlow's op for a batch does not say which row is bad. So the batch is converted in a
        dataset of its own, in which errors can be caught, and rows are only looked at if it fails.
        """
        if not conversions:
            return {}
        good = _Dataset.from_tensors(rows).map(lambda *rows: self._attempt(conversions, *rows))
        spec, _ = good.element_spec
        bad = _Dataset.from_tensors((tf.nest.map_structure(_no_rows, spec), False))
        tensors, is_good = good.ignore_errors().concatenate(bad).take(1).get_single_element()

        def explain() -> tf.Tensor:
            return tf.numpy_function(
                lambda places, *parts: self._explain(conversions, rows, places, parts),
                [locations, *tf.nest.flatten(rows)],
                tf.int64,
            )

        checked = tf.cond(is_good, lambda: tf.constant(0, tf.int64), explain)
        size = locations.shape[:1]
        with tf.control_dependencies([checked]):
            return {
                key: tf.ensure_shape(tensor, size.concatenate(spec[key].shape[1:]))
                for key, tensor in tensors.items()
            }

    def _attempt(
        self, conversions: Mapping[str, Conversion], rows: Any
    ) -> Tuple[Dict[str, tf.Tensor], tf.Tensor]:
        """Returns the converted rows, and whether all of them are good; a bad one may also fail."""
        raw = self._source.columns(rows, _dtypes(conversions))
        found = {key: each.convert(raw[each.source]) for key, each in conversions.items()}
        are_good = tf.stack([tf.reduce_all(is_good) for _, is_good in found.values()])
        return {key: tensor for key, (tensor, _) in found.items()}, tf.reduce_all(are_good)

    def _explain(
        self,
        conversions: Mapping[str, Conversion],
        structure: Any,
        places: np.ndarray,
        parts: Tuple[np.ndarray, ...],
    ) -> NoReturn:
        """Raises a ValueError about the first bad row."""
        rows = tf.nest.pack_sequence_as(structure, list(parts))
        row = self._first_bad_row(conversions, rows, len(places))
        place = self._source.place(places[row])
        try:
            values = self._source.values(rows, row)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        for conversion in conversions.values():
            problem = conversion.problem(values[conversion.source])
            if problem:
                raise ValueError(f"{place}: column {conversion.source!r} must {problem}")
        raise ValueError(f"{place}: row must be one that TensorFlow can convert, got {values}")

    def _first_bad_row(self, conversions: Mapping[str, Conversion], rows: Any, count: int) -> int:
        """Halves rows in NumPy, one of which is bad, until the first bad one is left."""
        first, end = 0, count
        with tf.Graph().as_default():
            some = tf.nest.map_structure(
                lambda each: tf.placeholder(each.dtype, [None, *each.shape[1:]]), rows
            )
            converted = self._attempt(conversions, some)
            # The session that waits for this one may have taken all shared threads.
            config = tf.ConfigProto(use_per_session_threads=True, device_count={"GPU": 0})
            with tf.Session(config=config) as session:
                while end - first > 1:
                    middle = (first + end) // 2
                    feed = {
                        placeholder: each[first:middle]
                        for placeholder, each in zip(tf.nest.flatten(some), tf.nest.flatten(rows))
                    }
                    try:
                        _, is_good = session.run(converted, feed)
                    except (tf.errors.OpError, ValueError):
                        is_good = False
                    first, end = (middle, end) if is_good else (first, middle)
        return first


def _no_rows(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)


def _dtypes(conversions: Mapping[str, Conversion]) -> Dict[str, tf.DType]:
    """Returns, by column of the files, the type as which text is decoded."""
    dtypes: Dict[str, tf.DType] = {}
    for each in conversions.values():
        same = dtypes.get(each.source, each.dtype) == each.dtype
        dtypes[each.source] = each.dtype if same else tf.string
    return dtypes
