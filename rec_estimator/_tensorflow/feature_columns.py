"""Private classes of feature columns. Checked on TensorFlow 2.15."""

from tensorflow.python.feature_column import feature_column as _feature_column
from tensorflow.python.feature_column import feature_column_v2 as _feature_column_v2
from tensorflow.python.feature_column import utils as _feature_column_utils

# What tf.compat.v1.feature_column.input_layer and make_parse_example_spec take for columns: they
# ask for the older classes, tf.feature_column's functions for the newer ones.
CategoricalColumn = _feature_column_v2.CategoricalColumn
CategoricalColumnV1 = _feature_column._CategoricalColumn
DenseColumn = _feature_column_v2.DenseColumn
DenseColumnV1 = _feature_column._DenseColumn
SequenceDenseColumn = _feature_column_v2.SequenceDenseColumn
SequenceDenseColumnV1 = _feature_column._SequenceDenseColumn

# TensorFlow's own wrappers of a categorical column, whose public functions log a deprecation or
# make columns of a fixed vocabulary only.
SequenceCategoricalColumn = _feature_column_v2.SequenceCategoricalColumn
WeightedCategoricalColumn = _feature_column_v2.WeightedCategoricalColumn

# How many ids each example of a sequence has, as TensorFlow's sequence columns count them.
sequence_length_from_sparse_tensor = _feature_column_utils.sequence_length_from_sparse_tensor
