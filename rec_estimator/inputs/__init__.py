# SPDX-License-Identifier: Apache-2.0
"""input_fn builders: files and columns in memory as batches for RecEstimator.

The start of the data flow. Each builder checks its arguments and returns a function without
arguments that makes a tf.data.Dataset of (features, labels), or of features where no label is
named; that is what train, evaluate, predict, TrainSpec and EvalSpec take as input_fn.

Rows are shuffled, then repeated, then batched: every pass has an order of its own, and a batch may
hold the end of one pass and the start of the next. All of it runs in TensorFlow ops; Python is
called once per file and pass, and for bad rows.
"""

import dataclasses
from typing import Any, Callable, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.grouped_files import (
    grouped_tfrecord_input_fn as grouped_tfrecord_input_fn,
)
from rec_estimator.inputs.grouped_files import write_grouped_samples as write_grouped_samples
from rec_estimator.inputs.grouped_samples import group_samples as group_samples
from rec_estimator.inputs.memory_columns import Column
from rec_estimator.inputs.row_files import BadRows, FilePass, RowFiles
from rec_estimator.inputs.row_files import column_names as names_in_files
from rec_estimator.inputs.row_parsers import (
    ExampleRows,
    as_names,
    check_count,
    check_known,
    csv_rows,
)

_Dataset = tf.data.Dataset
_Names = Union[str, Sequence[str], None]

# Buffer of shuffle=True for files, in rows; columns in memory are always shuffled as a whole.
_SHUFFLE_ROWS = 10_000

# Rows whose numbers are made at once where columns in memory are read in order.
_INDEX_BLOCK = 65536


def csv_input_fn(
    file_pattern: Union[str, Sequence[str]],
    *,
    label_column: _Names = None,
    columns: Optional[Sequence[str]] = None,
    column_names: Optional[Sequence[str]] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    defaults: Optional[Mapping[str, Any]] = None,
    multi_valued: Sequence[str] = (),
    value_delimiter: str = "|",
    delimiter: str = ",",
    header: bool = True,
    batch_size: int = 128,
    shuffle: Union[bool, int] = False,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
    compression_type: Optional[str] = None,
    num_parallel_reads: int = 1,
    on_bad_row: str = "error",
) -> "InputFn":
    r"""Reads CSV files.

    Fields may be quoted, with "" for a quote inside; a line break inside quotes is not supported,
    it makes a bad row. Empty fields take the column's default. Line ends may be \n or \r\n; a byte
    order mark and blank lines are left out.

    Args:
      file_pattern: Path or glob pattern, or several. Files are read in the order of the patterns,
        and of the names within a pattern; with shuffle, in a new order on every pass.
      label_column: Name of the label, or several: labels are then a dict too. A label is float32
        unless dtypes or defaults say otherwise, and an empty label without a default is a bad row.
      columns: Names of the features to read; None: all but the labels.
      column_names: Names of all columns of the files, in their order; None: from the header.
      dtypes: Type by column: tf.float32, tf.float64, tf.int32, tf.int64 or tf.string. Others take
        it from their default, else they are tf.string.
      defaults: What an empty field reads, by column; others read 0 or "".
      multi_valued: Columns that hold several values between value_delimiter: they become
        tf.RaggedTensor [B, (k)]. Empty values are left out.
      value_delimiter: One character.
      delimiter: One character between fields.
      header: Whether the first line of every file names the columns; all must name the same.
      batch_size: Rows per batch.
      shuffle: Whether to shuffle, or the number of rows to draw from; True: 10,000.
      seed: Makes the order repeatable; None: the graph's seed if it has one.
      num_epochs: Passes over the data; None: without end.
      drop_remainder: Whether to leave out a last batch that is not full.
      prefetch: Batches made ahead of their use.
      compression_type: "GZIP", "ZLIB" or "" for none; None: "GZIP" for names that end in .gz. A
        file is read once more, before its first use, to see that it is whole: TensorFlow takes a
        file cut short for a shorter file.
      num_parallel_reads: Files read at once, in blocks of 1024 lines taken in turn: the order stays
        the same from run to run.
      on_bad_row: "error", or "skip" to leave out rows that cannot be read, with a warning on the
        first and on how many at the end of every pass, and a count in `bad_rows`. "skip" reads each
        row twice.

    Returns:
      An input_fn. Features are [B], or tf.RaggedTensor [B, (k)] where multi_valued.

    Raises:
      ValueError: An argument out of range, no such file or column, or files of different columns;
        the files are looked at again when the input_fn is called.
      tf.errors.InvalidArgumentError: A bad row, with its file, line and column; a damaged file; no
        row at all (while running).

    Example:
      >>> _ = open("films.csv", "w").write("user,genres,liked\n7,war|drama,1\n8,,0\n")
      >>> input_fn = rec.inputs.csv_input_fn(
      ...     "films.csv", label_column="liked", dtypes={"user": tf.int64}, multi_valued=["genres"])
      >>> features, labels = tf.data.make_initializable_iterator(input_fn()).get_next()
      >>> features["genres"].dtype, labels.dtype
      (tf.string, tf.float32)
    """
    for name, value in (("delimiter", delimiter), ("value_delimiter", value_delimiter)):
        if not isinstance(value, str) or len(value.encode()) != 1 or value in '"\r\n':
            raise ValueError(f"{name} must be one ASCII character, got {value!r}")
    if not header and column_names is None:
        raise ValueError("column_names must be given where the files have no header, got None")
    files = RowFiles(file_pattern, compression_type, num_parallel_reads, on_bad_row)
    batching = _Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)

    def rows() -> Any:
        return csv_rows(
            names_in_files(files, column_names, header, delimiter),
            features=columns,
            labels=label_column,
            dtypes=dict(dtypes or {}),
            defaults=dict(defaults or {}),
            multi_valued=multi_valued,
            delimiter=delimiter,
            value_delimiter=value_delimiter,
            header=header,
        )

    rows()
    return _file_input_fn(files, rows, batching)


def tfrecord_input_fn(
    file_pattern: Union[str, Sequence[str]],
    features: Mapping[str, Any],
    *,
    label_column: _Names = None,
    batch_size: int = 128,
    shuffle: Union[bool, int] = False,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
    compression_type: Optional[str] = None,
    num_parallel_reads: int = 1,
    on_bad_row: str = "error",
) -> "InputFn":
    """Reads TFRecord files of tf.train.Example.

    Args:
      file_pattern: As in csv_input_fn.
      features: tf.io.FixedLenFeature, VarLenFeature, RaggedFeature, … by name, as in
        tf.io.parse_example; labels included.
      label_column: Name of the label among features, or several: labels are then a dict too.
      batch_size: Rows per batch.
      shuffle: As in csv_input_fn.
      seed: As in csv_input_fn.
      num_epochs: Passes over the data; None: without end.
      drop_remainder: Whether to leave out a last batch that is not full.
      prefetch: Batches made ahead of their use.
      compression_type: As in csv_input_fn; a compressed file is seen to be whole after its first
        use.
      num_parallel_reads: As in csv_input_fn.
      on_bad_row: As in csv_input_fn. Nothing can be read behind a damaged record: with "skip" the
        rest of its file is left out, which counts as one bad row and is said in a warning.

    Returns:
      An input_fn. Features are as tf.io.parse_example gives them.

    Raises:
      ValueError: An argument out of range, or no such file; the files are looked for again when the
        input_fn is called.
      tf.errors.InvalidArgumentError: A bad or damaged record, with its file and number; no record
        at all (while running).

    Example:
      >>> with tf.io.TFRecordWriter("clicks.tfrecord") as writer:
      ...     writer.write(tf.train.Example().SerializeToString())
      >>> input_fn = rec.inputs.tfrecord_input_fn(
      ...     "clicks.tfrecord", {"item": tf.io.RaggedFeature(tf.int64)})
      >>> tf.data.make_initializable_iterator(input_fn()).get_next()["item"].dtype
      tf.int64
    """
    if not isinstance(features, Mapping) or not features:
        raise ValueError(
            "features must be a dict of name to tf.io feature with one entry or more, got "
            f"{features!r}"
        )
    labels = as_names("label_column", label_column)
    check_known("label_column", labels, features)
    rows = ExampleRows(dict(features), label_column if isinstance(label_column, str) else labels)
    files = RowFiles(file_pattern, compression_type, num_parallel_reads, on_bad_row)
    batching = _Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)
    files.find()
    return _file_input_fn(files, lambda: rows, batching)


def numpy_input_fn(
    columns: Mapping[str, Any],
    labels: Any = None,
    *,
    dtypes: Optional[Mapping[str, Any]] = None,
    batch_size: int = 128,
    shuffle: Union[bool, int] = False,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> "InputFn":
    """Reads columns in memory; they stay outside the graph.

    Args:
      columns: Name to NumPy array [n] or [n, …], or list of n. A list of lists, or an object array
        of lists or arrays, is a multi-valued column.
      labels: Like one column, or a dict of several; None: no labels.
      dtypes: Type by column or label, for those that should not keep their own; float64 stays so.
      batch_size: Rows per batch.
      shuffle: Whether to shuffle. A number does the same as True: all rows are drawn from.
      seed: Makes the order repeatable; None: the graph's seed if it has one.
      num_epochs: Passes over the data; None: without end.
      drop_remainder: Whether to leave out a last batch that is not full.
      prefetch: Batches made ahead of their use.

    Returns:
      An input_fn. Features are [B, …], or tf.RaggedTensor [B, (k)] where multi-valued.

    Raises:
      TypeError: A column that is neither numbers nor strings.
      ValueError: An argument out of range, no row, or columns of different lengths.

    Example:
      >>> columns = {"user": np.array([7, 8]), "tags": [["new"], []]}
      >>> input_fn = rec.inputs.numpy_input_fn(columns, np.array([1.0, 0.0]), batch_size=2)
      >>> features, labels = tf.data.make_initializable_iterator(input_fn()).get_next()
      >>> features["tags"].dtype, labels.dtype
      (tf.string, tf.float64)
    """
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError(
            f"columns must be a dict of name to array with one entry or more, got {columns!r}; for "
            'example {"user": users}'
        )
    dtypes = dict(dtypes or {})
    label_columns = {}
    if labels is not None:
        label_columns = dict(labels) if isinstance(labels, Mapping) else {"labels": labels}
    check_known("dtypes", dtypes, [*columns, *label_columns])
    rows = {name: Column.of(name, value, dtypes.get(name)) for name, value in columns.items()}
    targets = {name: Column.of(name, v, dtypes.get(name)) for name, v in label_columns.items()}
    lengths = {name: len(column) for name, column in [*rows.items(), *targets.items()]}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns must be of one length, got {lengths}")
    num_rows = next(iter(lengths.values()))
    if not num_rows:
        raise ValueError(f"columns must have at least one row, got none in {sorted(lengths)}")
    batching = _Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)
    if num_rows < batching.least_rows:
        raise ValueError(
            f"columns must have at least {batching.least_rows} rows, got {num_rows}: "
            f"drop_remainder leaves no batch of {batch_size}"
        )
    everything = [*rows.values(), *targets.values()]

    def dataset() -> tf.data.Dataset:
        def gather(indices: tf.Tensor) -> Any:
            dtypes = [dtype for column in everything for dtype in column.part_dtypes]
            parts = tf.numpy_function(
                lambda picked: [part for column in everything for part in column.take(picked)],
                [indices],
                dtypes,
            )
            parts = iter(parts)
            tensors = [column.tensor(parts, indices.shape[0]) for column in everything]
            features = dict(zip(rows, tensors))
            if labels is None:
                return features
            target = dict(zip(targets, tensors[len(rows) :]))
            return features, (target if isinstance(labels, Mapping) else target["labels"])

        return batching.indices(num_rows).map(gather).prefetch(batching.prefetch)

    return InputFn(dataset, BadRows())


def pandas_input_fn(
    dataframe: Any,
    label_column: _Names = None,
    *,
    dtypes: Optional[Mapping[str, Any]] = None,
    batch_size: int = 128,
    shuffle: Union[bool, int] = False,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> "InputFn":
    """Reads a pandas DataFrame, or anything else that gives a column by name.

    Args:
      dataframe: A DataFrame, or a mapping of name to column. A column of lists is multi-valued.
      label_column: Name of the label, or several: labels are then a dict too.
      dtypes: As in numpy_input_fn.
      batch_size: Rows per batch.
      shuffle: As in numpy_input_fn.
      seed: As in numpy_input_fn.
      num_epochs: Passes over the data; None: without end.
      drop_remainder: Whether to leave out a last batch that is not full.
      prefetch: Batches made ahead of their use.

    Returns:
      An input_fn as numpy_input_fn's. The index of the DataFrame is not a feature.

    Raises:
      TypeError: A column that is neither numbers nor strings, or a name that is not a string.
      ValueError: As numpy_input_fn, or no such column.

    Example:
      >>> table = {"user": [7, 8], "liked": [1.0, 0.0]}
      >>> input_fn = rec.inputs.pandas_input_fn(table, "liked", shuffle=True, num_epochs=None)
      >>> tf.data.make_initializable_iterator(input_fn()).get_next()[1].dtype
      tf.float64
    """
    if not hasattr(dataframe, "keys") or not hasattr(dataframe, "__getitem__"):
        raise TypeError(f"dataframe must be a DataFrame or a mapping, got {dataframe!r}")
    # dict and DataFrame agree on these; a DataFrame's values are Series, which NumPy can read.
    table = {name: dataframe[name] for name in dataframe.keys()}  # noqa: SIM118
    label_names = as_names("label_column", label_column)
    check_known("label_column", label_names, table)
    labels: Any = {name: table.pop(name) for name in label_names} or None
    target_dtypes = dict(dtypes or {})
    if isinstance(label_column, str):
        labels = labels[label_column]
        if label_column in target_dtypes:
            target_dtypes["labels"] = target_dtypes.pop(label_column)
    return numpy_input_fn(
        table,
        labels,
        dtypes=target_dtypes,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
        prefetch=prefetch,
    )


class InputFn:
    """What the builders of this module return: call it for a tf.data.Dataset."""

    def __init__(self, make_dataset: Callable[[], tf.data.Dataset], bad_rows: BadRows) -> None:
        self._make_dataset = make_dataset
        self._bad_rows = bad_rows

    def __call__(self) -> tf.data.Dataset:
        """Makes the dataset in the default graph, as an Estimator asks for it."""
        return self._make_dataset()

    @property
    def bad_rows(self) -> int:
        """Rows left out so far with on_bad_row="skip", each once per pass that met it."""
        return self._bad_rows.count


@dataclasses.dataclass(frozen=True)
class _Batching:
    """The arguments that all builders share, checked."""

    batch_size: int
    shuffle: Union[bool, int]
    seed: Optional[int]
    num_epochs: Optional[int]
    drop_remainder: bool
    prefetch: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.num_epochs is not None:
            check_count("num_epochs", self.num_epochs)
        if not isinstance(self.shuffle, (bool, np.bool_)):
            try:
                check_count("shuffle", self.shuffle)
            except ValueError:
                raise ValueError(
                    f"shuffle must be True, False or a number of rows >= 1, got {self.shuffle!r}"
                ) from None
        if self.seed is not None and not hasattr(self.seed, "__index__"):
            raise ValueError(f"seed must be an integer or None, got {self.seed!r}")
        if not isinstance(self.drop_remainder, (bool, np.bool_)):
            raise ValueError(f"drop_remainder must be True or False, got {self.drop_remainder!r}")
        if not hasattr(self.prefetch, "__index__") or self.prefetch < tf.data.AUTOTUNE:
            raise ValueError(
                f"prefetch must be a number of batches >= 0 or tf.data.AUTOTUNE, got "
                f"{self.prefetch!r}"
            )

    @property
    def least_rows(self) -> int:
        """Rows a pass must have so that there is a batch."""
        if not self.drop_remainder or self.num_epochs is None:
            return 1
        return -(-self.batch_size // self.num_epochs)

    @property
    def shuffle_rows(self) -> int:
        """Rows to draw from; 0: no shuffling."""
        return int(self.shuffle) if not self.shuffle or self.shuffle is not True else _SHUFFLE_ROWS

    def batches(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
        """Blocks [n] of rows as batches [batch_size], over all passes."""
        if not self.shuffle:
            return blocks.repeat(self.num_epochs).rebatch(self.batch_size, self.drop_remainder)
        rows = blocks.unbatch().shuffle(self.shuffle_rows, self.seed, reshuffle_each_iteration=True)
        return rows.repeat(self.num_epochs).batch(self.batch_size, self.drop_remainder)

    def indices(self, num_rows: int) -> tf.data.Dataset:
        """Batches int64 [batch_size] of the numbers of rows in memory, over all passes."""
        if not self.shuffle:
            blocks = _Dataset.range(0, num_rows, _INDEX_BLOCK).map(
                lambda start: tf.range(start, tf.minimum(start + _INDEX_BLOCK, num_rows))
            )
            return self.batches(blocks)
        seed = self.seed if self.seed is not None else tf.compat.v1.get_default_graph().seed
        if seed is None:
            seed = np.random.SeedSequence().entropy
        # NumPy's seeds are not negative.
        seed = abs(int(seed)) * 2 + (int(seed) < 0)

        def permutation(epoch: Any) -> Any:
            return np.random.default_rng([seed, int(epoch)]).permutation(num_rows)

        def shuffled(epoch: tf.Tensor) -> tf.Tensor:
            order = tf.numpy_function(permutation, [epoch], tf.int64)
            order.set_shape([num_rows])
            return order

        epochs = _Dataset.range(tf.int64.max if self.num_epochs is None else self.num_epochs)
        # The next order is drawn while a pass is read.
        orders = epochs.map(shuffled).prefetch(1)
        return orders.rebatch(self.batch_size, self.drop_remainder)


def _file_input_fn(files: RowFiles, make_rows: Callable[[], Any], batching: _Batching) -> InputFn:
    bad_rows = BadRows()
    whole_files: Set[Tuple[str, int, int]] = set()

    def dataset() -> tf.data.Dataset:
        one_pass = FilePass(files, make_rows(), bad_rows, whole_files)
        blocks = one_pass.blocks(batching.seed, bool(batching.shuffle), batching.least_rows)
        batches = batching.batches(blocks).map(
            one_pass.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return batches.prefetch(batching.prefetch)

    return InputFn(dataset, bad_rows)
