# SPDX-License-Identifier: Apache-2.0
"""Reads TFRecord files of tf.train.Example."""

from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.fields import MISSING_INT
from model_zoo.data.measures import arrays
from model_zoo.data.readers.source import RecordFiles
from model_zoo.data.schema import Format

_SAMPLE = 256  # records that are read to learn which features there are

_KINDS = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
_MISSING = {tf.string: "", tf.int64: MISSING_INT, tf.float32: np.float32(np.nan)}


class ExampleFiles(RecordFiles):
    """TFRecord files whose records are serialized tf.train.Examples.

    The first records say which features there are, and of which type. A feature that has more than
    one value in one of them is a column of lists. A feature may be missing in a record.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written.

    Raises:
      ValueError: A pattern matches no file, or the first file has no examples.
    """

    number_name = "record"
    is_text = False
    header = False

    def __init__(self, patterns: Sequence[str], form: Format) -> None:
        super().__init__(patterns, form)
        self._types = self._learn_types()
        self.names = tuple(self._types)

    def blocks(self, lengths: Mapping[str, int], seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of (records string [n], locations) of one pass."""
        return self.blocks_of(self, seed)

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The records of a file."""
        return tf.data.TFRecordDataset(path, compression_type=compression)

    def columns(self, rows: Any, dtypes: Mapping[str, tf.DType]) -> Dict[str, tf.Tensor]:
        """Returns the columns of some records, of the types of the files."""
        features: Dict[str, Any] = {}
        for name in dtypes:
            dtype, is_list = self._types[name]
            if is_list:
                features[name] = tf.io.RaggedFeature(dtype)
            else:
                features[name] = tf.io.FixedLenFeature([], dtype, _MISSING[dtype])
        parsed = tf.io.parse_example(rows, features)
        return {
            name: each.to_tensor(_MISSING[each.dtype]) if self._types[name][1] else each
            for name, each in parsed.items()
        }

    def values(self, rows: Any, row: int) -> Dict[str, Any]:
        """Returns the features of one record."""
        found = {name: self._missing(name) for name in self.names}
        for name, (kind, values) in _features_of(rows[row]).items():
            if name not in self._types:
                continue
            dtype, is_list = self._types[name]
            if _KINDS[kind] != dtype:
                raise ValueError(f"feature {name!r} must be {dtype.name}, got a {kind}")
            if not is_list and len(values) != 1:
                raise ValueError(f"feature {name!r} must have one value, got {len(values)}")
            values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]
            found[name] = np.array(values) if is_list else values[0]
        return found

    def place(self, location: int) -> str:
        """Returns the file and the number of a record."""
        return self.place_of(self, location)

    def _missing(self, name: str) -> Any:
        dtype, is_list = self._types[name]
        return np.zeros([0], dtype.as_numpy_dtype) if is_list else _MISSING[dtype]

    def _learn_types(self) -> Dict[str, Tuple[tf.DType, bool]]:
        """Returns, by feature, its type and whether it is a list."""
        types: Dict[str, Tuple[tf.DType, bool]] = {}
        path, compression = self.first_compressed()
        try:
            for record in _first_records(path, compression):
                for name, (kind, values) in _features_of(record).items():
                    is_list = types.get(name, (None, False))[1] or len(values) > 1
                    types[name] = (_KINDS[kind], is_list)
        except tf.errors.DataLossError:
            raise ValueError(
                f"{path} must contain complete TFRecords, got a damaged or cut record; write the "
                "file again"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} must have tf.train.Examples, got {error}") from None
        if not types:
            raise ValueError(f"the tf.train.Examples of {path} have no features")
        return types


def _first_records(path: str, compression: str) -> Iterator[bytes]:
    """Yields the first records of a file, which are read in a graph of their own."""
    for batch in arrays(
        lambda size: tf.data.TFRecordDataset(path, compression).take(size).batch(size), _SAMPLE
    ):
        yield from batch


def _features_of(record: bytes) -> Dict[str, Tuple[str, Sequence[Any]]]:
    """Returns, by feature that has values, its kind and its values."""
    try:
        example = tf.train.Example.FromString(record)
    except Exception:
        # The class of this error differs between releases of protobuf.
        raise ValueError(
            f"record must be a tf.train.Example, got {len(record)} other bytes"
        ) from None
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None and getattr(feature, kind).value:
            found[name] = (kind, getattr(feature, kind).value)
    return found
