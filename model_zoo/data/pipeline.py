# SPDX-License-Identifier: Apache-2.0
"""Streams rows: reads blocks, chooses rows, shuffles, makes batches and converts them.

Rows stay as they are in the files until they are in their batch: shuffling moves one text per row,
and the conversion of whole batches runs in parallel.
"""

from typing import Any, Dict, Mapping, NoReturn, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.fields import Conversion
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

    Raises:
      ValueError: The files lack a column.
    """

    def __init__(
        self,
        source: Source,
        conversions: Mapping[str, Conversion],
        chosen: Optional[RowFilter] = None,
        lengths: Optional[Mapping[str, int]] = None,
    ) -> None:
        self._source = source
        self._conversions = dict(conversions)
        self._chosen = chosen
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
        batches = epochs_left.flat_map(one_pass).skip(skip)
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
        message = (
            f"there must be {least} rows or more for a batch, got fewer in "
            f"{self._source.paths[0]} …; choose a smaller batch_size or another split"
        )

        def count(total: tf.Tensor, block: Any) -> Any:
            (rows, locations), is_end = block
            total += tf.size(locations, out_type=tf.int64)
            is_enough = tf.logical_or(total >= least, tf.logical_not(is_end))
            # Without the error, unlimited epochs without a batch would never end.
            with tf.control_dependencies([tf.debugging.Assert(is_enough, [message])]):
                return tf.identity(total), (rows, locations)

        return blocks.scan(np.int64(0), count)

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

        def attempt(rows: Any) -> Tuple[Dict[str, tf.Tensor], tf.Tensor]:
            dtypes = _dtypes(conversions)
            raw = self._source.columns(rows, dtypes)
            found = {key: each.convert(raw[each.source]) for key, each in conversions.items()}
            are_good = tf.stack([tf.reduce_all(is_good) for _, is_good in found.values()])
            return {key: tensor for key, (tensor, _) in found.items()}, tf.reduce_all(are_good)

        good = _Dataset.from_tensors(rows).map(attempt)
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

    def _explain(
        self,
        conversions: Mapping[str, Conversion],
        structure: Any,
        places: np.ndarray,
        parts: Tuple[np.ndarray, ...],
    ) -> NoReturn:
        """Raises a ValueError about the first bad row."""
        rows = tf.nest.pack_sequence_as(structure, list(parts))
        for row, place in enumerate(places):
            try:
                values = self._source.values(rows, row)
            except ValueError as error:
                raise ValueError(f"{self._source.place(place)}: {error}") from None
            for conversion in conversions.values():
                problem = conversion.problem(values[conversion.source])
                if problem:
                    raise ValueError(
                        f"{self._source.place(place)}: column {conversion.source!r} must {problem}"
                    )
        raise ValueError(
            f"{self._source.place(places[0])}: one of {len(places)} rows from here on cannot be "
            "converted, although each of them looks right"
        )


def _no_rows(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)


def _dtypes(conversions: Mapping[str, Conversion]) -> Dict[str, tf.DType]:
    """Returns, by column of the files, the type as which text is decoded."""
    dtypes: Dict[str, tf.DType] = {}
    for each in conversions.values():
        same = dtypes.get(each.source, each.dtype) == each.dtype
        dtypes[each.source] = each.dtype if same else tf.string
    return dtypes
