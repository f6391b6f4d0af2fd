# SPDX-License-Identifier: Apache-2.0
"""Compressed batches in TFRecord files: one tf.train.SequenceExample per group.

Its context holds the user's features, its feature lists those of the candidates and their labels,
one entry each: the form that ``compressed_serving_input_receiver_fn(serialized=True)`` serves. A
user's history is stored, read and parsed once for all of her candidates.
"""

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.grouped_samples import ITEM_SIZE, cut
from rec_estimator.inputs.row_files import RowFiles
from rec_estimator.inputs.row_parsers import as_names, check_count, check_known

_Feature = Union[tf.io.FixedLenFeature, tf.io.RaggedFeature]

# Records parsed at once.
_RECORDS = 256


def write_grouped_samples(
    input_fn: Callable[[], tf.data.Dataset],
    path: Union[str, "os.PathLike[str]"],
    user: Sequence[str],
    *,
    label: str = "label",
    compression_type: Optional[str] = None,
) -> int:
    """Writes compressed batches into a TFRecord file.

    A group that goes on in the next batch becomes two records: group with ``batch_size=None``, and
    a window as large as memory allows. Integers and bools are stored as int64, floats of up to 32
    bits as float32. Of a SparseTensor [rows, k] the values are stored, not their places in a row.

    Args:
      input_fn: Makes a dataset as ``group_samples`` returns it.
      path: Of the file; what was there is replaced.
      user: Names of the features of the user, as given to ``group_samples``.
      label: Name under which labels that are a single tensor are stored; those in a dict have
        names.
      compression_type: "GZIP", "ZLIB" or "" for none; None: "GZIP" for a name that ends in .gz.

    Returns:
      The number of records.

    Raises:
      TypeError: A feature of another type or of more axes than can be stored.
      ValueError: A user feature or the number of samples is missing, or a name is used twice.

    Example:
      >>> import tensorflow as tf2
      >>> def input_fn():
      ...     flat = tf2.data.Dataset.from_tensors({"user": [7, 9, 7], "item": [1, 5, 4]})
      ...     return rec.inputs.group_samples(flat, user=["user"])
      >>> rec.inputs.write_grouped_samples(input_fn, "groups.tfrecord", user=["user"])
      2
    """
    user = as_names("user", user)
    files = RowFiles([os.fspath(path)], compression_type, 1, "error")
    count = 0
    with tf.Graph().as_default():
        dataset = input_fn()
        batch = tf.compat.v1.data.make_initializable_iterator(dataset)
        features, labels = _split(batch.get_next(), label)
        check_known("user", [*user, ITEM_SIZE], features)
        for name in labels:
            if name in features:
                raise ValueError(
                    f"label must be a name that no feature has, got {name!r}; give label="
                )
        fetched = {**features, **labels}
        parts = {name: _parts(name, value) for name, value in fetched.items()}
        options = tf.io.TFRecordOptions(compression_type=files.compression(os.fspath(path)))
        with (
            tf.compat.v1.Session() as session,
            tf.io.TFRecordWriter(os.fspath(path), options) as writer,
        ):
            session.run([batch.initializer, tf.compat.v1.tables_initializer()])
            while True:
                try:
                    values = session.run(parts)
                except tf.errors.OutOfRangeError:
                    return count
                for record in _records(values, user):
                    writer.write(record)
                    count += 1


def grouped_tfrecord_input_fn(
    file_pattern: Union[str, Sequence[str]],
    user: Mapping[str, _Feature],
    item: Mapping[str, _Feature],
    *,
    label_column: Union[str, Sequence[str], None] = None,
    batch_size: int = 128,
    shuffle: int = 0,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
    compression_type: Optional[str] = None,
) -> Callable[[], tf.data.Dataset]:
    """Reads TFRecord files of groups, as ``write_grouped_samples`` writes them.

    Args:
      file_pattern: Path or glob pattern, or several.
      user: tf.io.FixedLenFeature or RaggedFeature without partitions of each user feature to read.
      item: Likewise of each item feature and label, as it is of one candidate; the first one's
        entries say how many candidates there are.
      label_column: Name of the label among item, or several: labels are then a dict too.
      batch_size: Samples, that is items, in a batch. Only the last batch has fewer.
      shuffle: Groups to draw the next one from; 0: in the order of the files.
      seed: Makes the order repeatable; None: the graph's seed if it has one.
      num_epochs: Passes over the data; None: without end.
      drop_remainder: Whether to leave out a last batch that is not full.
      prefetch: Batches made ahead of their use.
      compression_type: As in csv_input_fn.

    Returns:
      An input_fn of compressed batches, as ``group_samples`` makes them. Without a label of
      features alone.

    Raises:
      TypeError: A feature of another kind.
      ValueError: An argument out of range, or no such file.
      tf.errors.InvalidArgumentError: A record without a feature, or whose features have different
        numbers of candidates (while running).

    Example:
      >>> open("groups.tfrecord", "w").close()
      >>> input_fn = rec.inputs.grouped_tfrecord_input_fn(
      ...     "groups.tfrecord", user={"user": tf.io.FixedLenFeature([], tf.int64)},
      ...     item={"item": tf.io.FixedLenFeature([], tf.int64)})
      >>> sorted(input_fn().element_spec)
      ['item', 'item_size', 'user']
    """
    files = RowFiles(file_pattern, compression_type, 1, "error")
    labels = as_names("label_column", label_column)
    check_known("label_column", labels, item)
    check_count("batch_size", batch_size)
    if shuffle:
        check_count("shuffle", shuffle)
    parser = _Parser(user, item, labels, is_one=isinstance(label_column, str))
    files.find()

    def input_fn() -> tf.data.Dataset:
        paths = files.find()
        kinds = [files.compression(path) for path in paths]
        records = tf.data.Dataset.from_tensor_slices((paths, kinds)).flat_map(
            lambda path, kind: tf.data.TFRecordDataset(path, kind)
        )
        if shuffle:
            records = records.shuffle(shuffle, seed, reshuffle_each_iteration=True)
        chunks = records.repeat(num_epochs).batch(_RECORDS)
        chunks = chunks.map(lambda chunk: (chunk, False)).concatenate(
            tf.data.Dataset.from_tensors((tf.zeros([0], tf.string), True))
        )
        nothing = tf.zeros([0], tf.string), tf.zeros([], tf.int64)
        windows = chunks.scan(nothing, lambda *step: _window(parser, batch_size, *step))
        # No record at all is not parsed.
        windows = windows.filter(lambda records, begin, end: begin < end)
        return (
            windows.map(parser.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .flat_map(lambda *w: cut(*w, batch_size=batch_size, drop_remainder=drop_remainder))
            .prefetch(prefetch)
        )

    return input_fn


def _window(parser: "_Parser", batch_size: int, state: Any, chunk: Any) -> Any:
    """Full batches of what was left over and of a chunk, all at the end; and what is left over.

    Both are records, string [n], with the number of samples of the first one that are used up; of
    the window also where its last sample is.
    """
    (left, skip), (added, is_last) = state, chunk
    records = tf.concat([left, added], axis=0)
    ends = tf.cumsum(parser.count(records))
    available = tf.reduce_sum(ends[-1:]) - skip
    taken = tf.where(is_last, available, available // batch_size * batch_size)
    end = skip + taken
    used = tf.searchsorted(ends, [end], side="right", out_type=tf.int64)[0]
    before = tf.where(used > 0, tf.reduce_sum(ends[used - 1 : used]), 0)
    return (records[used:], end - before), (records[: used + 1], skip, end)


class _Parser:
    """Parses records of groups."""

    def __init__(
        self,
        user: Mapping[str, _Feature],
        item: Mapping[str, _Feature],
        labels: Sequence[str],
        is_one: bool,
    ) -> None:
        for side, features in (("user", user), ("item", item)):
            if not isinstance(features, Mapping) or not features:
                raise ValueError(
                    f"{side} must be a dict of name to tf.io feature with one entry or more, got "
                    f"{features!r}"
                )
            for name, feature in features.items():
                is_plain = isinstance(feature, tf.io.RaggedFeature) and not feature.partitions
                if not is_plain and not isinstance(feature, tf.io.FixedLenFeature):
                    raise TypeError(
                        f"{side} feature {name!r} must be a tf.io.FixedLenFeature or a "
                        f"RaggedFeature without partitions, got {feature!r}"
                    )
        self._user, self._item = dict(user), dict(item)
        self._labels, self._is_one = labels, is_one

    def count(self, records: tf.Tensor) -> tf.Tensor:
        """int64 [n], how many samples each record has."""
        name = next(iter(self._item))
        kind = tf.io.RaggedFeature(self._item[name].dtype, row_splits_dtype=tf.int64)
        _, lists, _ = tf.io.parse_sequence_example(records, sequence_features={name: kind})
        return lists[name].row_lengths()

    def parse(self, records: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> Any:
        """The arguments of ``cut`` for the samples from begin to end."""
        lists = {
            name: tf.io.RaggedFeature(feature.dtype, row_splits_dtype=tf.int64)
            if isinstance(feature, tf.io.RaggedFeature)
            else tf.io.FixedLenSequenceFeature(feature.shape, feature.dtype)
            for name, feature in self._item.items()
        }
        users, lists, lengths = tf.io.parse_sequence_example(records, self._user, lists)
        counts: Dict[str, tf.Tensor] = {}
        items: Dict[str, Any] = {}
        for name, value in lists.items():
            if isinstance(value, tf.RaggedTensor):
                counts[name], items[name] = value.row_lengths(), value.values
            else:
                counts[name] = lengths[name]
                items[name] = tf.boolean_mask(value, tf.sequence_mask(lengths[name]))
        first, *others = self._item
        same = [
            tf.debugging.assert_equal(
                counts[first],
                counts[name],
                message=f"feature lists {first!r} and {name!r} must be of one length in a record",
            )
            for name in others
        ]
        with tf.control_dependencies(same):
            rows = tf.repeat(tf.range(tf.size(records, tf.int64)), counts[first])
        labels: Any = {name: items.pop(name) for name in self._labels} or ()
        if self._is_one:
            (labels,) = labels.values()
        samples = tf.range(tf.size(rows, tf.int64))
        return users, (items, labels), rows[begin:end], samples[begin:end]


def _split(element: Any, label: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Features and labels by name."""
    features, labels = element if isinstance(element, tuple) else (element, {})
    return features, labels if isinstance(labels, Mapping) else {label: labels}


def _parts(name: str, value: Any) -> Tuple[tf.Tensor, ...]:
    """(values, row splits) of a tensor, flat."""
    if isinstance(value, tf.SparseTensor) and value.shape.rank == 2:
        value = tf.RaggedTensor.from_value_rowids(
            value.values, value.indices[:, 0], nrows=value.dense_shape[0]
        )
    if isinstance(value, tf.SparseTensor) or value.dtype in (tf.float64, tf.complex64):
        raise TypeError(
            f"feature {name!r} must be of a type and shape that an example stores, got "
            f"{value.dtype.name} {value.shape}; cast float64 to float32, make sparse ones dense"
        )
    if not isinstance(value, tf.RaggedTensor):
        rows = tf.shape(value, tf.int64)[0]
        width = tf.reduce_prod(tf.shape(value, tf.int64)[1:])
        return tf.reshape(value, [-1]), tf.range(rows + 1) * width
    if value.ragged_rank > 1 or value.flat_values.shape.rank > 1:
        raise TypeError(f"feature {name!r} must be [rows, (k)] where it is ragged, got {value!r}")
    return value.flat_values, tf.cast(value.row_splits, tf.int64)


def _records(parts: Dict[str, Any], user: Sequence[str]) -> List[bytes]:
    """Serialized SequenceExamples of a batch."""
    parts = dict(parts)
    sizes, _ = parts.pop(ITEM_SIZE)
    ends = np.cumsum(sizes)
    records = []
    for row, end in enumerate(ends):
        example = tf.train.SequenceExample()
        for name, (values, splits) in parts.items():
            if name in user:
                _fill(example.context.feature[name], values[splits[row] : splits[row + 1]])
                continue
            entries = example.feature_lists.feature_list[name].feature
            for item in range(end - sizes[row], end):
                _fill(entries.add(), values[splits[item] : splits[item + 1]])
        records.append(example.SerializeToString())
    return records


def _fill(feature: tf.train.Feature, values: np.ndarray) -> None:
    if values.dtype.kind == "O":
        feature.bytes_list.value.extend(values.tolist())
    elif values.dtype.kind == "f":
        feature.float_list.value.extend(values.tolist())
    else:
        feature.int64_list.value.extend(values.tolist())
