# SPDX-License-Identifier: Apache-2.0
"""Writes and reads grouped samples in TFRecord files: one tf.train.SequenceExample per group.

The context of the SequenceExample holds the features of the user. Its feature lists hold the
features and labels of the candidates, one entry per candidate. It is the format that
``compressed_serving_input_receiver_fn(serialized=True)`` serves. So the history of a user is
stored, read and parsed once for all candidates.
"""

import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.checked_files import CheckedFiles
from rec_estimator.inputs.grouped_samples import ITEM_SIZE, cut
from rec_estimator.inputs.row_files import RowFiles
from rec_estimator.inputs.row_parsers import as_names, check_count, check_known

_Feature = Union[tf.io.FixedLenFeature, tf.io.RaggedFeature]

_Tensor = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]

# Number of records parsed at once.
_RECORDS = 256

# (values, row splits) of a feature of a batch.
_Flat = Tuple[np.ndarray, np.ndarray]


def write_grouped_samples(
    input_fn: Callable[[], tf.data.Dataset],
    path: Union[str, "os.PathLike[str]"],
    user: Sequence[str],
    *,
    label: str = "label",
    compression_type: Optional[str] = None,
) -> int:
    """Writes grouped batches to a TFRecord file.

    A group that is continued in the next batch becomes two records. To avoid this, group with
    ``batch_size=None`` and with a window as large as memory allows. Integers and bools are stored
    as int64, floats of up to 32 bits as float32. A SparseTensor [rows, k] is stored without its
    column indices.

    Args:
      input_fn: Makes a dataset of ``group_samples``.
      path: The file to write. An existing file is replaced.
      user: Names of the features of the user, as passed to ``group_samples``.
      label: Name under which labels are stored if they are one tensor and not a dict.
      compression_type: "GZIP", "ZLIB" or "" for none. None: "GZIP" if the name ends in .gz.

    Returns:
      The number of records.

    Raises:
      TypeError: A feature has a type or a rank that cannot be stored.
      ValueError: A user feature or "item_size" is missing, or a name is used twice.

    Example:
      >>> import tensorflow as tf2
      >>> def input_fn():
      ...     flat = tf2.data.Dataset.from_tensors({"user": [7, 9, 7], "item": [1, 5, 4]})
      ...     return rec.inputs.group_samples(flat, user=["user"])
      >>> rec.inputs.write_grouped_samples(input_fn, "groups.tfrecord", user=["user"])
      2
    """
    user = as_names("user", user)
    files = RowFiles(path, compression_type, 1, "error")
    count = 0
    with tf.Graph().as_default():
        dataset = input_fn()
        batch = tf.compat.v1.data.make_initializable_iterator(dataset)
        features, labels = _split(batch.get_next(), label)
        check_known("user", [*user, ITEM_SIZE], features)
        for name in labels:
            if name in features:
                raise ValueError(
                    f"label must be a name that no feature has, got {name!r}; pass another label="
                )
        flat = {name: _flat(name, value) for name, value in {**features, **labels}.items()}
        options = tf.io.TFRecordOptions(compression_type=files.compression(os.fspath(path)))
        with (
            tf.compat.v1.Session() as session,
            tf.io.TFRecordWriter(os.fspath(path), options) as writer,
        ):
            session.run([batch.initializer, tf.compat.v1.tables_initializer()])
            for values in _runs(session, flat):
                for record in _records(values, user):
                    writer.write(record)
                    count += 1
    return count


def _runs(session: tf.compat.v1.Session, fetches: Any) -> Iterator[Any]:
    """Runs a session until the input ends."""
    while True:
        try:
            values = session.run(fetches)
        except tf.errors.OutOfRangeError:
            return
        yield values


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
    """Builds an input_fn that reads the files of ``write_grouped_samples``.

    Args:
      file_pattern: Path or glob pattern, or several.
      user: {name: tf.io.FixedLenFeature or RaggedFeature without partitions} of the user features.
      item: The same for the features and labels of one candidate. The entries of the first one are
        counted to get the number of candidates.
      label_column: Name of the label in item, or several names; labels are then a dict.
      batch_size: Samples (candidates) per batch. Only the last batch may have fewer.
      shuffle: Number of groups in the shuffle buffer. 0: groups keep the order of the files.
      seed: Makes the order reproducible. None: the seed of the graph, if it has one.
      num_epochs: Passes over the data. None: unlimited.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.
      compression_type: As in csv_input_fn.

    Returns:
      An input_fn of grouped batches, as ``group_samples`` makes them. Without label_column, its
      elements are features only.

    Raises:
      TypeError: A feature is of another class.
      ValueError: An argument is out of range, or a file does not exist.
      tf.errors.InvalidArgumentError: While running, if a record lacks a feature or its features
        have different numbers of candidates.

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

    checked_files = CheckedFiles()

    def readable(path: bytes, compression: bytes) -> Tuple[bytes, bytes]:
        found = checked_files.readable(path.decode(), compression.decode())
        if found is None:
            raise ValueError(
                f"{path.decode()} must be a complete {compression.decode()} file, got one that is "
                "cut short or damaged; write the file again"
            )
        return found[0].encode(), found[1].encode()

    def records_of(path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        found = tf.numpy_function(readable, [path, compression], [tf.string, tf.string])
        return tf.data.TFRecordDataset(*(tf.ensure_shape(tensor, []) for tensor in found))

    def input_fn() -> tf.data.Dataset:
        paths = files.find()
        kinds = [files.compression(path) for path in paths]
        records = tf.data.Dataset.from_tensor_slices((paths, kinds)).flat_map(records_of)
        if shuffle:
            records = records.shuffle(shuffle, seed, reshuffle_each_iteration=True)
        chunks = records.repeat(num_epochs).batch(_RECORDS)
        chunks = chunks.map(lambda chunk: (chunk, False)).concatenate(
            tf.data.Dataset.from_tensors((tf.zeros([0], tf.string), True))
        )
        nothing = tf.zeros([0], tf.string), tf.zeros([], tf.int64)
        windows = chunks.scan(nothing, lambda *step: _window(parser, batch_size, *step))
        # A window without records cannot be parsed.
        windows = windows.filter(lambda records, begin, end: begin < end)
        return (
            windows.map(parser.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .flat_map(lambda *w: cut(*w, batch_size=batch_size, drop_remainder=drop_remainder))
            .prefetch(prefetch)
        )

    return input_fn


def _window(parser: "_Parser", batch_size: int, state: Any, chunk: Any) -> Any:
    """Appends a chunk to the remaining records, and splits off as many whole batches as possible.

    Args:
      parser: Counts the samples of records.
      batch_size: Samples per batch.
      state: (remaining records string [n], number of samples of the first that are used already).
      chunk: (records to append string [n], whether the chunk is the last one).

    Returns:
      The new state; and the window (records string [m], index of its first sample, index after its
      last sample). The last window contains all samples.
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
    """Parses records of groups.

    Args:
      user: The user features.
      item: The features and labels of a candidate.
      labels: The names of the labels among item.
      is_one: Whether labels are one tensor and not a dict.

    Raises:
      TypeError: A feature is of another class.
      ValueError: user or item is empty.
    """

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
                    f"{features!r}; declare a feature"
                )
            for name, feature in features.items():
                is_plain = isinstance(feature, tf.io.RaggedFeature) and not feature.partitions
                if not is_plain and not isinstance(feature, tf.io.FixedLenFeature):
                    raise TypeError(
                        f"{side} feature {name!r} must be a tf.io.FixedLenFeature or a "
                        f"RaggedFeature without partitions, got {feature!r}; use one of them"
                    )
        self._user, self._item = dict(user), dict(item)
        self._labels, self._is_one = labels, is_one

    def count(self, records: tf.Tensor) -> tf.Tensor:
        """The number of samples of each record, int64 [n]."""
        name = next(iter(self._item))
        kind = tf.io.RaggedFeature(self._item[name].dtype, row_splits_dtype=tf.int64)
        _, lists, _ = tf.io.parse_sequence_example(records, sequence_features={name: kind})
        return lists[name].row_lengths()

    def parse(self, records: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> Any:
        """Returns the arguments of ``cut`` for the samples from begin to end."""
        lists = {
            name: tf.io.RaggedFeature(feature.dtype, row_splits_dtype=tf.int64)
            if isinstance(feature, tf.io.RaggedFeature)
            else tf.io.FixedLenSequenceFeature(feature.shape, feature.dtype)
            for name, feature in self._item.items()
        }
        users, lists, lengths = tf.io.parse_sequence_example(records, self._user, lists)
        counts: Dict[str, tf.Tensor] = {}
        items: Dict[str, _Tensor] = {}
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


def _split(element: Any, label: str) -> Tuple[Dict[str, _Tensor], Dict[str, _Tensor]]:
    """Returns the features and the labels of an element, both as dicts."""
    features, labels = element if isinstance(element, tuple) else (element, {})
    return features, dict(labels) if isinstance(labels, Mapping) else {label: labels}


def _flat(name: str, value: _Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the values of a tensor in one axis, and their row splits."""
    if isinstance(value, tf.SparseTensor) and value.shape.rank == 2:
        value = tf.RaggedTensor.from_value_rowids(
            value.values, value.indices[:, 0], nrows=value.dense_shape[0]
        )
    if isinstance(value, tf.SparseTensor) or value.dtype in (tf.float64, tf.complex64):
        raise TypeError(
            f"feature {name!r} must be of a type and shape that a tf.train.Example can store, got "
            f"{value.dtype.name} {value.shape}; cast float64 to float32, make sparse tensors dense"
        )
    if not isinstance(value, tf.RaggedTensor):
        rows = tf.shape(value, tf.int64)[0]
        width = tf.reduce_prod(tf.shape(value, tf.int64)[1:])
        return tf.reshape(value, [-1]), tf.range(rows + 1) * width
    if value.ragged_rank > 1 or value.flat_values.shape.rank > 1:
        raise TypeError(
            f"feature {name!r} must be [rows, (k)] if it is ragged, got {value!r}; flatten its rows"
        )
    return value.flat_values, tf.cast(value.row_splits, tf.int64)


def _records(batch: Dict[str, _Flat], user: Sequence[str]) -> List[bytes]:
    """Serializes a batch to SequenceExamples, one per group."""
    sizes, _ = batch[ITEM_SIZE]
    ends = np.cumsum(sizes)
    records = []
    for row, end in enumerate(ends):
        example = tf.train.SequenceExample()
        for name, (values, splits) in batch.items():
            if name == ITEM_SIZE:
                continue
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
