# SPDX-License-Identifier: Apache-2.0
"""Builds input_fns for RecEstimator from CSV and TFRecord files and from columns in memory.

Each builder checks its arguments and returns an input_fn: a function without arguments that makes a
tf.data.Dataset of (features, labels), or of features if no label is named. Pass the input_fn to
train, evaluate, predict, TrainSpec or EvalSpec.

Rows are shuffled, then repeated, then batched. So every pass over the data has its own order, and
one batch may contain the end of a pass and the start of the next. All of this runs in TensorFlow
ops; Python is called only once per file and pass, and for bad rows.
"""

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.batching import Batching
from rec_estimator.inputs.candidates import CandidateSampler as CandidateSampler
from rec_estimator.inputs.checked_files import CheckedFiles
from rec_estimator.inputs.csv_headers import column_names as names_in_files
from rec_estimator.inputs.grouped_files import (
    grouped_tfrecord_input_fn as grouped_tfrecord_input_fn,
)
from rec_estimator.inputs.grouped_files import write_grouped_samples as write_grouped_samples
from rec_estimator.inputs.grouped_samples import group_samples as group_samples
from rec_estimator.inputs.memory_columns import Column, take_rows
from rec_estimator.inputs.parquet_columns import ParquetRows
from rec_estimator.inputs.parquet_files import ParquetBatches, row_groups_of
from rec_estimator.inputs.row_files import BadRows, FilePass, RowFiles
from rec_estimator.inputs.row_parsers import (
    CsvRows,
    ExampleRows,
    as_names,
    check_known,
    csv_rows,
    with_labels,
)
from rec_estimator.inputs.work_queue import WHOLE_FILE, WorkQueue
from rec_estimator.inputs.work_queue import work_queue as work_queue

_Names = Union[str, Sequence[str], None]
_Files = Union[str, Sequence[str], WorkQueue]


def csv_input_fn(
    file_pattern: _Files,
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
    r"""Builds an input_fn that reads CSV files.

    Files are UTF-8 text. Fields may be quoted; "" inside quotes is a quote. A line break inside
    quotes is not supported; it makes a bad row. An empty field reads the default of its column.
    Lines end with \n or \r\n; any other \r is an error. A byte order mark and blank lines are
    ignored.

    Args:
      file_pattern: Path or glob pattern, or several. Files are read in the order of the patterns,
        and by name within a pattern; with shuffle, in a new order on every pass. Or a
        work_queue: then num_epochs and drop_remainder must have their defaults, num_parallel_reads
        has no effect on CSV and TFRecord files, and shuffle mixes the rows of a unit.
      label_column: Name of the label, or several names; labels are then a dict. A label is float32
        if neither dtypes nor defaults give a type. An empty label without a default is a bad row.
      columns: Names of the features to read. None: all columns except the labels.
      column_names: Names of all columns of the files, in their order. None: read from the header.
      dtypes: {column: type}, one of tf.float32, tf.float64, tf.int32, tf.int64 and tf.string. The
        type of other columns is that of their default, else tf.string.
      defaults: {column: value of an empty field}. For other columns it is 0 or "".
      multi_valued: Columns with several values per field, separated by value_delimiter. They are
        read as tf.RaggedTensor [B, (k)]. Empty values are ignored.
      value_delimiter: One character.
      delimiter: The character between fields.
      header: Whether the first line of every file names the columns. All files must have the same
        names.
      batch_size: Rows per batch.
      shuffle: Whether to shuffle, or the number of rows in the shuffle buffer. True: 10,000.
      seed: Makes the order reproducible. None: the seed of the graph, if it has one.
      num_epochs: Passes over the data. None: unlimited.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.
      compression_type: "GZIP", "ZLIB" or "" for none. None: "GZIP" for names that end in .gz.
        Before its first use, a compressed file is read once to check that it is complete, because
        TensorFlow reads a file that is cut short without an error.
      num_parallel_reads: Number of files read at the same time, in turn, in blocks of 1024 lines.
        The order is the same in each run.
      on_bad_row: "error", or "skip" to skip rows that cannot be read. "skip" logs the first bad row
        of each pass, logs their number at its end, and counts them in `bad_rows`. It parses each
        row twice.

    Returns:
      An input_fn. Features are [B], or tf.RaggedTensor [B, (k)] if they are multi_valued.

    Raises:
      ValueError: An argument is out of range, a file or column does not exist, or files have
        different columns. The input_fn checks the files again when it is called.
      tf.errors.InvalidArgumentError: While running, if a row is bad (the message names file, line
        and column), a file is damaged, or there is no row at all.

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
            raise ValueError(
                f"{name} must be one ASCII character, got {value!r}; choose one that is neither a "
                "quote nor a line break"
            )
    if not header and column_names is None:
        raise ValueError(
            "column_names must be given if the files have no header, got None; name all columns"
        )
    queue, paths = _queue_and_paths(file_pattern)
    files = RowFiles(paths, compression_type, num_parallel_reads, on_bad_row)
    batching = Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)

    def rows() -> CsvRows:
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
    return _file_input_fn(files, rows, batching, queue)


def tfrecord_input_fn(
    file_pattern: _Files,
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
    """Builds an input_fn that reads TFRecord files of tf.train.Example.

    Args:
      file_pattern: As in csv_input_fn.
      features: {name: tf.io.FixedLenFeature, VarLenFeature, RaggedFeature, …} of features and
        labels, as in tf.io.parse_example.
      label_column: Name of the label in features, or several names; labels are then a dict.
      batch_size: Rows per batch.
      shuffle: As in csv_input_fn.
      seed: As in csv_input_fn.
      num_epochs: Passes over the data. None: unlimited.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.
      compression_type: As in csv_input_fn, but a compressed file is checked after its first use.
      num_parallel_reads: As in csv_input_fn.
      on_bad_row: As in csv_input_fn. No record after a damaged one can be read: "skip" skips the
        rest of the file, counts it as one bad row, and logs a warning.

    Returns:
      An input_fn. Features are those of tf.io.parse_example.

    Raises:
      ValueError: An argument is out of range, or a file does not exist. The input_fn looks for the
        files again when it is called.
      tf.errors.InvalidArgumentError: While running, if a record is bad or damaged (the message
        names its file and number), or there is no record at all.

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
            f'{features!r}; for example {{"item": tf.io.RaggedFeature(tf.int64)}}'
        )
    labels = as_names("label_column", label_column)
    check_known("label_column", labels, features)
    rows = ExampleRows(dict(features), label_column if isinstance(label_column, str) else labels)
    queue, paths = _queue_and_paths(file_pattern)
    files = RowFiles(paths, compression_type, num_parallel_reads, on_bad_row)
    batching = Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)
    files.find()
    return _file_input_fn(files, lambda: rows, batching, queue)


def parquet_input_fn(
    file_pattern: _Files,
    *,
    label_column: _Names = None,
    columns: Optional[Sequence[str]] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    defaults: Optional[Mapping[str, Any]] = None,
    batch_size: int = 128,
    shuffle: Union[bool, int] = False,
    seed: Optional[int] = None,
    num_epochs: Optional[int] = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
    num_parallel_reads: int = 1,
    on_bad_row: str = "error",
) -> "InputFn":
    """Builds an input_fn that reads Parquet files with pyarrow, one row group at a time.

    Numbers, booleans, strings, bytes, dictionaries of these, and lists of them can be read. A
    column of another type, such as a decimal, a time, a struct or a list of lists, is an error;
    leave it out of columns.

    Args:
      file_pattern: As in csv_input_fn.
      label_column: Name of the label, or several names; labels are then a dict. A label that is a
        number is float32 if dtypes gives no type.
      columns: Names of the features to read. None: all columns except the labels. Other columns are
        not read from the file.
      dtypes: {column: type}, one of tf.float32, tf.float64, tf.int32, tf.int64 and tf.string. Other
        columns have the type of the file; booleans and integers that are not int32 are int64, and
        float16 is float32.
      defaults: {column: value that takes the place of a missing one}. For other columns a missing
        value makes a bad row. A missing list is an empty one.
      batch_size: Rows per batch.
      shuffle: Whether to shuffle. Each pass has another order of row groups, and mixes the rows of
        as many as hold this number of rows. True: 10,000.
      seed: Makes the order reproducible. None: the seed of the graph, if it has one.
      num_epochs: Passes over the data. None: unlimited.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.
      num_parallel_reads: Number of row groups read at the same time, each by a thread. The order of
        rows is the same in each run. In memory are these row groups and those that are mixed.
      on_bad_row: "error", or "skip" to skip rows with a value that is missing or does not fit into
        its type. "skip" logs and counts them as in csv_input_fn.

    Returns:
      An input_fn. Features are [B], or tf.RaggedTensor [B, (k)] if they are lists.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
      ValueError: An argument is out of range, a file or column does not exist, a column has a type
        that cannot be read, or files have different columns. The input_fn checks the files again
        when it is called.
      tf.errors.InvalidArgumentError: While running, if a row is bad (the message names file, row
        and column), a file is damaged, or there is no row at all.

    Example:
      >>> import pyarrow, pyarrow.parquet
      >>> table = pyarrow.table({"user": [7, 8], "tags": [["new"], []], "click": [1.0, 0.0]})
      >>> pyarrow.parquet.write_table(table, "clicks.parquet")
      >>> input_fn = rec.inputs.parquet_input_fn("clicks.parquet", label_column="click")
      >>> features, labels = tf.data.make_initializable_iterator(input_fn()).get_next()
      >>> features["user"].dtype, features["tags"].dtype
      (tf.int64, tf.string)
    """
    queue, paths = _queue_and_paths(file_pattern)
    files = RowFiles(paths, "", num_parallel_reads, on_bad_row)
    batching = Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)
    _check_queue(queue, batching)
    bad_rows = BadRows()
    rows = ParquetRows(columns, label_column, dtypes or {}, defaults or {})

    def dataset() -> tf.data.Dataset:
        features, targets = rows.features_and_labels(files.find())
        both = [*features, *targets]
        batches = ParquetBatches(both, batching, num_parallel_reads, bad_rows, on_bad_row == "skip")

        def named(*tensors: Any) -> Any:
            read = dict(zip((column.name for column in both), tensors))
            return with_labels(
                {column.name: read[column.name] for column in features}, label_column, read
            )

        groups = {path: row_groups_of(path) for path in files.find()}
        if queue is None:
            everything = [group for groups_of_file in groups.values() for group in groups_of_file]
            read = batches.dataset([everything], tf.constant(0, tf.int64), batching.least_rows)
            return read.map(named).prefetch(prefetch)
        units = [
            [group for group in groups[path] if number in (WHOLE_FILE, group.number)]
            for path, number in queue.units
        ]
        return queue.dataset(lambda index: batches.dataset(units, index, 0).map(named), prefetch)

    rows.features_and_labels(files.find())
    return InputFn(dataset, bad_rows)


def _queue_and_paths(file_pattern: Any) -> Tuple[Optional[WorkQueue], Any]:
    """Returns the queue, if there is one, and its files."""
    if not isinstance(file_pattern, WorkQueue):
        return None, file_pattern
    return file_pattern, list(dict.fromkeys(path for path, _ in file_pattern.units))


def _check_queue(queue: Optional[WorkQueue], batching: Batching) -> None:
    """Checks the arguments that a queue decides itself."""
    if queue is None:
        return
    for name, value, default in (
        ("num_epochs", batching.num_epochs, 1),
        ("drop_remainder", batching.drop_remainder, False),
    ):
        if value != default:
            raise ValueError(
                f"{name} must be {default} with a work queue, got {value!r}; the queue has its own "
                "num_epochs, and a batch has rows of one unit"
            )


def numpy_input_fn(
    columns: Any = None,
    labels: Any = None,
    batch_size: int = 128,
    num_epochs: Optional[int] = 1,
    shuffle: Union[bool, int] = False,
    queue_capacity: Optional[int] = None,
    num_threads: Optional[int] = None,
    *,
    x: Any = None,
    y: Any = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    seed: Optional[int] = None,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> "InputFn":
    """Builds an input_fn that reads columns in memory. The columns are not copied to the graph.

    It can be called as ``tf.compat.v1.estimator.inputs.numpy_input_fn``, whose arguments come in
    this order.

    Args:
      columns: {name: NumPy array [n] or [n, …], or list of n values}. A list of lists, or an object
        array of lists or arrays, is a multi-valued column. A single array: the features are one
        tensor and not a dict.
      labels: One such column, or a dict of several. None: no labels.
      batch_size: Rows per batch.
      num_epochs: Passes over the data. None: unlimited.
      shuffle: Whether to shuffle. A number means the same as True: all rows are shuffled.
      queue_capacity: Ignored: no queue is needed.
      num_threads: Ignored: rows are taken from memory by one thread, so that the order of the rows
        is the same in each run.
      x: Another name of columns.
      y: Another name of labels.
      dtypes: {column or label: type}. Other columns keep their type, float64 too. A number that its
        type cannot represent is an error.
      seed: Makes the order reproducible. None: the seed of the graph, if it has one.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.

    Returns:
      An input_fn. Features are [B, …], or tf.RaggedTensor [B, (k)] if they are multi-valued.

    Raises:
      TypeError: A column contains neither numbers nor strings, or an argument is given twice.
      ValueError: An argument is out of range, there is no row, columns have different lengths, or
        a value is missing or does not fit into its type.

    Example:
      >>> columns = {"user": np.array([7, 8]), "tags": [["new"], []]}
      >>> input_fn = rec.inputs.numpy_input_fn(columns, np.array([1.0, 0.0]), batch_size=2)
      >>> features, labels = tf.data.make_initializable_iterator(input_fn()).get_next()
      >>> features["tags"].dtype, labels.dtype
      (tf.string, tf.float64)
    """
    del queue_capacity, num_threads
    columns = _one_of("columns", columns, "x", x)
    labels = _one_of("labels", labels, "y", y)
    is_single = isinstance(columns, np.ndarray)
    named = {"x": columns} if is_single else columns
    if not isinstance(named, Mapping) or not named:
        raise ValueError(
            f"columns must be a dict of name to array with one entry or more, got {columns!r}; for "
            'example {"user": users}'
        )
    dtypes = dict(dtypes or {})
    label_columns = {}
    if labels is not None:
        label_columns = dict(labels) if isinstance(labels, Mapping) else {"labels": labels}
    check_known("dtypes", dtypes, [*named, *label_columns])
    rows = {name: Column.of(name, value, dtypes.get(name)) for name, value in named.items()}
    targets = {name: Column.of(name, v, dtypes.get(name)) for name, v in label_columns.items()}
    batching = Batching(batch_size, shuffle, seed, num_epochs, drop_remainder, prefetch)
    num_rows = _count_rows({**rows, **targets}, batching)

    def gather(indices: tf.Tensor) -> Any:
        tensors = take_rows([*rows.values(), *targets.values()], indices)
        features = tensors[0] if is_single else dict(zip(rows, tensors))
        if labels is None:
            return features
        target = dict(zip(targets, tensors[len(rows) :]))
        return features, (target if isinstance(labels, Mapping) else target["labels"])

    def dataset() -> tf.data.Dataset:
        return batching.indices(num_rows).map(gather).prefetch(batching.prefetch)

    return InputFn(dataset, BadRows())


def _one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    """The value of an argument that has two names."""
    if value is not None and other is not None:
        raise TypeError(f"{name} must be given once, got {alias} as well; leave one of them out")
    return other if value is None else value


def _count_rows(columns: Dict[str, Column], batching: Batching) -> int:
    """The number of rows of columns in memory, checked."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"columns must have the same length, got {lengths}; every row needs all columns"
        )
    num_rows = next(iter(lengths.values()))
    if not num_rows:
        raise ValueError(
            f"columns must have at least one row, got none in {sorted(lengths)}; pass some data"
        )
    if num_rows < batching.least_rows:
        raise ValueError(
            f"columns must have at least {batching.least_rows} rows, got {num_rows}; "
            f"drop_remainder=True leaves no batch of {batching.batch_size}"
        )
    return num_rows


def pandas_input_fn(
    dataframe: Any = None,
    label_column: Any = None,
    batch_size: int = 128,
    num_epochs: Optional[int] = 1,
    shuffle: Union[bool, int] = False,
    queue_capacity: Optional[int] = None,
    num_threads: Optional[int] = None,
    target_column: Optional[str] = None,
    *,
    x: Any = None,
    y: Any = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    seed: Optional[int] = None,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> "InputFn":
    """Builds an input_fn that reads a pandas DataFrame or another mapping of name to column.

    It can be called as ``tf.compat.v1.estimator.inputs.pandas_input_fn``, whose arguments come in
    this order.

    Args:
      dataframe: A DataFrame, or a mapping of name to column. A column of lists is multi-valued.
      label_column: Name of the label, or several names; labels are then a dict. Or the labels
        themselves: a Series, or a DataFrame of several, with the index of dataframe.
      batch_size: Rows per batch.
      num_epochs: Passes over the data. None: unlimited.
      shuffle: As in numpy_input_fn.
      queue_capacity: Ignored, as in numpy_input_fn.
      num_threads: Ignored, as in numpy_input_fn.
      target_column: Ignored: labels need no name.
      x: Another name of dataframe.
      y: Another name of label_column.
      dtypes: As in numpy_input_fn. The type of a Series of labels is that of "labels".
      seed: As in numpy_input_fn.
      drop_remainder: Whether to drop a last batch that is not full.
      prefetch: Number of batches made in advance.

    Returns:
      An input_fn as in numpy_input_fn. The index of the DataFrame is not a feature.

    Raises:
      TypeError: A column contains neither numbers nor strings, or a name is not a string.
      ValueError: As in numpy_input_fn; or label_column is not a column, a column is named twice, or
        labels have another index than dataframe.

    Example:
      >>> table = {"user": [7, 8], "liked": [1.0, 0.0]}
      >>> input_fn = rec.inputs.pandas_input_fn(table, "liked", shuffle=True, num_epochs=None)
      >>> tf.data.make_initializable_iterator(input_fn()).get_next()[1].dtype
      tf.float64
    """
    del target_column
    dataframe = _one_of("dataframe", dataframe, "x", x)
    label_column = _one_of("label_column", label_column, "y", y)
    table = _columns_of("dataframe", dataframe)
    target_dtypes = dict(dtypes or {})
    labels: Any = None
    if hasattr(label_column, "index") and hasattr(label_column, "to_numpy"):
        if not label_column.index.equals(dataframe.index):
            raise ValueError(
                "label_column must have the index of dataframe, got another one; use "
                "y.reindex(x.index)"
            )
        labels = label_column
        if hasattr(label_column, "keys") and hasattr(label_column, "columns"):
            labels = _columns_of("label_column", label_column)
    else:
        label_names = as_names("label_column", label_column)
        check_known("label_column", label_names, table)
        labels = {name: table.pop(name) for name in label_names} or None
        if isinstance(label_column, str):
            labels = labels[label_column]
            if label_column in target_dtypes:
                target_dtypes["labels"] = target_dtypes.pop(label_column)
    return numpy_input_fn(
        table,
        labels,
        batch_size,
        num_epochs,
        shuffle,
        dtypes=target_dtypes,
        seed=seed,
        drop_remainder=drop_remainder,
        prefetch=prefetch,
    )


def _columns_of(argument: str, table: Any) -> Dict[str, Any]:
    """{name: column} of a DataFrame or another mapping."""
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise TypeError(
            f"{argument} must be a DataFrame or a mapping, got {table!r}; for arrays without "
            "names use numpy_input_fn"
        )
    # dict and DataFrame both have keys() and []. The columns of a DataFrame are Series, which NumPy
    # can read.
    names = list(table.keys())
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{argument} must name each column once, got {name!r} {names.count(name)} times; "
                "rename a column"
            )
    return {name: table[name] for name in names}


class InputFn:
    """The input_fn that the builders of this module return. Calling it makes a dataset."""

    def __init__(self, make_dataset: Callable[[], tf.data.Dataset], bad_rows: BadRows) -> None:
        self._make_dataset = make_dataset
        self._bad_rows = bad_rows

    def __call__(self) -> tf.data.Dataset:
        """Makes the dataset in the default graph, as an Estimator expects it."""
        return self._make_dataset()

    @property
    def bad_rows(self) -> int:
        """Number of rows skipped so far with on_bad_row="skip"; each counts once per pass."""
        return self._bad_rows.count


def _file_input_fn(
    files: RowFiles,
    make_rows: Callable[[], Union[CsvRows, ExampleRows]],
    batching: Batching,
    queue: Optional[WorkQueue],
) -> InputFn:
    _check_queue(queue, batching)
    if queue is not None and any(unit.row_group != WHOLE_FILE for unit in queue.units):
        raise ValueError(
            "file_pattern must be a work queue of whole files, got one of row groups; leave out "
            "row_groups"
        )
    bad_rows = BadRows()
    checked_files = CheckedFiles()

    def dataset() -> tf.data.Dataset:
        one_pass = FilePass(files, make_rows(), bad_rows, checked_files)

        def parsed(blocks: tf.data.Dataset) -> tf.data.Dataset:
            return batching.batches(blocks).map(
                one_pass.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )

        if queue is not None:
            return queue.dataset(lambda file: parsed(one_pass.blocks_of(file)), batching.prefetch)
        blocks = one_pass.blocks(batching.seed, bool(batching.shuffle), batching.least_rows)
        return parsed(blocks).prefetch(batching.prefetch)

    return InputFn(dataset, bad_rows)
