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

        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            return self._one_pass(batch_size, seed, epoch)

        last = tf.int64.max if epochs is None else epochs
        batches = _Dataset.from_tensors(np.int64(0)).flat_map(
            lambda start: _Dataset.range(self._checked_start(start, batch_size, seed), last)
        )
        # A batch is left out before it is parsed.
        batches = batches.flat_map(one_pass).skip(skip)
        parsed = batches.map(self._parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return parsed.prefetch(2)

    def _checked_start(self, start: tf.Tensor, batch_size: int, seed: Optional[int]) -> tf.Tensor:
        """Returns `start` if a pass has a batch. Without one, epochs=None would never end."""
        rows = self._rows(None).rebatch(batch_size, drop_remainder=seed is not None).take(1)
        found = rows.reduce(np.int64(0), lambda count, _: count + 1)
        message = (
            f"there must be rows for one batch of {batch_size}, got fewer in "
            f"{self._source.paths[0]} …; choose a smaller batch_size or another split"
        )
        with tf.control_dependencies([tf.debugging.Assert(found > 0, [message])]):
            return tf.identity(start)

    def _one_pass(self, batch_size: int, seed: Optional[int], epoch: tf.Tensor) -> tf.data.Dataset:
        if seed is None:
            return self._rows(None).rebatch(batch_size)
        seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.stateless_uniform([], seeds, maxval=2**31 - 1, dtype=tf.int64)

        def shuffled(number: tf.Tensor, block: Any) -> Any:
            size = tf.shape(block[1])[:1]
            keys = tf.random.stateless_uniform(
                size, tf.stack([order, number]), minval=None, maxval=None, dtype=tf.int64
            )
            at = tf.argsort(keys)
            return tf.nest.map_structure(lambda each: tf.gather(each, at), block)

        blocks = self._rows(order).rebatch(SHUFFLED_ROWS).enumerate().map(shuffled).prefetch(1)
        return blocks.rebatch(batch_size, drop_remainder=True)

    def _rows(self, order: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of blocks of the chosen rows."""
        blocks = self._source.blocks(self._lengths, order)
        if self._chosen is None:
            return blocks
        chosen = self._chosen

        def choose(rows: Any, locations: tf.Tensor) -> Any:
            values = locations
            if chosen.conversion is not None:
                parsed = self._located({"value": chosen.conversion}, rows, locations)
                values = parsed["value"]
            is_chosen = chosen.chooses(values)
            return tf.nest.map_structure(
                lambda each: tf.boolean_mask(each, is_chosen), (rows, locations)
            )

        return blocks.map(choose, num_parallel_calls=2, deterministic=True)

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
        none = {
            key: tf.zeros([size or 0 for size in each.shape.as_list()], each.dtype)
            for key, each in spec.items()
        }
        bad = _Dataset.from_tensors((none, False))
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


def _dtypes(conversions: Mapping[str, Conversion]) -> Dict[str, tf.DType]:
    """Returns, by column of the files, the type as which text is decoded."""
    dtypes: Dict[str, tf.DType] = {}
    for each in conversions.values():
        same = dtypes.get(each.source, each.dtype) == each.dtype
        dtypes[each.source] = each.dtype if same else tf.string
    return dtypes
