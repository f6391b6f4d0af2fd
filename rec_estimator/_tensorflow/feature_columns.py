# SPDX-License-Identifier: Apache-2.0
"""Private classes of feature columns. Checked on TensorFlow 2.15."""

from tensorflow.python.feature_column import feature_column as _feature_column
from tensorflow.python.feature_column import feature_column_v2 as _feature_column_v2
from tensorflow.python.feature_column import utils as _feature_column_utils

# The base classes that TensorFlow checks columns for: tf.compat.v1.feature_column.input_layer and
# make_parse_example_spec check for the V1 classes, the functions of tf.feature_column for the
# others.
CategoricalColumn = _feature_column_v2.CategoricalColumn
CategoricalColumnV1 = _feature_column._CategoricalColumn
DenseColumn = _feature_column_v2.DenseColumn
DenseColumnV1 = _feature_column._DenseColumn
SequenceDenseColumn = _feature_column_v2.SequenceDenseColumn
SequenceDenseColumnV1 = _feature_column._SequenceDenseColumn

# TensorFlow's wrappers of a categorical column. Their public functions log a deprecation warning or
# make only columns with a fixed vocabulary.
SequenceCategoricalColumn = _feature_column_v2.SequenceCategoricalColumn
WeightedCategoricalColumn = _feature_column_v2.WeightedCategoricalColumn

# Counts the ids of each example of a sequence in the same way as TensorFlow's sequence columns.
sequence_length_from_sparse_tensor = _feature_column_utils.sequence_length_from_sparse_tensor

# The parts of TensorFlow's linear_model: its checks of columns, its cache of transformed features,
# and the weights of one column. The public function would make a variable for each column.
normalize_feature_columns = _feature_column._normalize_feature_columns
LazyBuilder = _feature_column._LazyBuilder
create_weighted_sum = _feature_column._create_weighted_sum
