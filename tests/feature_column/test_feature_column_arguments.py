# SPDX-License-Identifier: Apache-2.0
"""Tests of feature columns that read tables: equality, copies and arguments."""

import copy
import pickle

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator import feature_column as fc
from rec_estimator.feature_column.columns import source_of
from rec_estimator.table.table import graph_tables

INIT = rec.InitializerOption(tf.ones_initializer())
OPTION = rec.EmbeddingVariableOption(init_option=INIT, filter_option=rec.CounterFilter(2))


def column(key="f", dtype=tf.int64, partition_num=None, ev_option=OPTION):
    return fc.categorical_column_with_embedding(key, dtype, partition_num, ev_option)


def dense(key="f", **arguments):
    return fc.embedding_column(column(key), 2, **arguments)


COLUMNS = {
    "categorical": column,
    "embedding": dense,
    "weighted": lambda: fc.embedding_column(fc.weighted_categorical_column(column(), "w"), 2),
    "shared": lambda: fc.shared_embedding_columns([column("a"), column("b")], 2)[1],
    "sequence": lambda: fc.sequence_categorical_column_with_embedding("f", ev_option=OPTION),
}


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS)
def test_columns_are_hashable_copyable_values(make):
    one, other = make(), make()
    assert one == other and hash(one) == hash(other)
    assert copy.copy(one) == one
    # Initializers compare by identity, so this column has none.
    plain = fc.embedding_column(fc.categorical_column_with_embedding("f"), 2)
    assert copy.deepcopy(plain) == plain
    assert pickle.loads(pickle.dumps(plain)) == plain
    with pytest.raises(AttributeError):
        plain.dimension = 3
    assert sorted([dense("b"), dense("a")])[0].name == "a_embedding"


def test_deep_copies_share_the_table():
    one = dense()
    batch = {"f": tf.constant([1], tf.int64)}
    layer = tf.make_template("net", tf.feature_column.input_layer)
    layer(batch, [one])
    layer(batch, [copy.deepcopy(one)])
    assert len(graph_tables()) == 1


def test_sparse_column_is_an_alias_under_contribs_names():
    assert fc.sparse_column_wth_embedding is fc.sparse_column_with_embedding
    option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq=3))
    page = rec.sparse_column_wth_embedding("var", ev_option=option)
    assert page == rec.categorical_column_with_embedding("var", ev_option=option)
    old = fc.sparse_column_with_embedding("var", steps_to_live=5)
    assert old.ev_option.evict == rec.GlobalStepEvict(5)


@pytest.mark.parametrize(
    "make",
    [
        fc.categorical_column_with_embedding,
        fc.sparse_column_with_embedding,
        fc.sequence_categorical_column_with_embedding,
    ],
)
def test_every_column_takes_the_types_of_vectors_and_slots(make):
    source = source_of(make("f", tf.int64, value_dtype=tf.float16, slot_dtype=tf.bfloat16))
    assert (source.value_dtype, source.slot_dtype) == (tf.float16, tf.bfloat16)
    with pytest.raises(ValueError, match="value_dtype must be float32, bfloat16 or float16"):
        make("f", value_dtype=tf.int8)


VOCABULARY = {
    "f": lambda: tf.feature_column.categorical_column_with_hash_bucket("f", 3),
    "g": lambda: tf.feature_column.categorical_column_with_hash_bucket("g", 3),
    "weighted": lambda: fc.weighted_categorical_column(VOCABULARY["f"](), "w"),
}


@pytest.mark.parametrize("name", VOCABULARY)
def test_a_column_with_a_vocabulary_gets_the_embedding_column_of_tensorflow(name):
    initializer = tf.ones_initializer()
    arguments = (2, "sum", initializer, "folder", "tensor", 3.0, False)
    found = fc.embedding_column(VOCABULARY[name](), *arguments)
    assert found == tf.feature_column.embedding_column(VOCABULARY[name](), *arguments)


def test_columns_with_a_vocabulary_share_a_variable_of_tensorflow():
    found = fc.shared_embedding_columns(
        [VOCABULARY["f"](), VOCABULARY["g"]()], 2, "sum", None, "both", max_norm=3.0
    )
    assert [each.name for each in found] == ["f_shared_embedding", "g_shared_embedding"]
    batch = {name: tf.constant(["a"]) for name in ("f", "g")}
    tf.feature_column.input_layer(batch, found)
    assert [variable.shape.as_list() for variable in tf.global_variables()] == [[3, 2]]
    assert not graph_tables()


@pytest.mark.parametrize("value", [True, False])
def test_do_fusion_has_no_effect(value):
    assert dense(do_fusion=value) == dense()
    ids = {"f": tf.constant([["x"]])}
    assert fc.linear_model(ids, [VOCABULARY["f"]()], do_fusion=value).shape.as_list() == [1, 1]
    assert fc.shared_embedding_columns([column()], 2, do_fusion=value)
    stock = fc.embedding_column(VOCABULARY["f"](), 2, do_fusion=value)
    assert type(stock) is type(tf.feature_column.embedding_column(VOCABULARY["f"](), 2))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: column(3), TypeError, "key must be a string, got 3"),
        (lambda: column(""), ValueError, "key must be a non-empty string"),
        (lambda: column(dtype=tf.float32), ValueError, "dtype must be tf.string, .*float32"),
        (lambda: column(dtype="key"), TypeError, "dtype must be a TensorFlow type, got 'key'"),
        (lambda: column(partition_num=0), ValueError, "partition_num must be None or an integer"),
        (lambda: column(partition_num=1001), ValueError, "got 1001"),
        (lambda: column(partition_num=2.0), ValueError, "got 2.0"),
        (lambda: column(ev_option=3), TypeError, "ev_option must be an EmbeddingVariableOption"),
        (
            lambda: fc.categorical_column_with_embedding("f", regularizer=abs),
            TypeError,
            "regularizer must be a rec_estimator.L2Regularizer",
        ),
        (
            lambda: fc.sparse_column_with_embedding("f", init_data_source="a"),
            ValueError,
            "init_data_source must be None, got 'a'",
        ),
        (lambda: fc.embedding_column("f", 2), TypeError, "categorical_column must come from"),
        (
            lambda: fc.embedding_column(tf.feature_column.numeric_column("f"), 2),
            TypeError,
            "categorical_column must come from .*; use tf.feature_column's functions",
        ),
        (
            lambda: fc.weighted_categorical_column(tf.feature_column.numeric_column("f"), "w"),
            TypeError,
            "categorical_column must come from",
        ),
        (
            lambda: fc.shared_embedding_columns([column("a"), VOCABULARY["f"]()], 2),
            TypeError,
            "categorical_column must come from",
        ),
        (
            lambda: dense(ckpt_to_load_from="a"),
            ValueError,
            "ckpt_to_load_from must be None for a column with a table, got 'a'; give it to",
        ),
        (
            lambda: fc.shared_embedding_columns([column()], 2, tensor_name_in_ckpt="b"),
            ValueError,
            "tensor_name_in_ckpt must be None for a column with a table, got 'b'",
        ),
        (
            lambda: fc.weighted_categorical_column(column(), "w", tf.string),
            ValueError,
            "dtype must be integer or floating point, got string",
        ),
        (
            lambda: fc.weighted_categorical_column(column(), ""),
            ValueError,
            "weight_feature_key must be a non-empty string",
        ),
        (lambda: fc.embedding_column(column(), 0), ValueError, "dimension must be an integer >= 1"),
        (
            lambda: fc.embedding_column(column(), tf.Dimension(None)),
            ValueError,
            "dimension must be an integer >= 1, got None",
        ),
        (lambda: fc.embedding_column(column(), 2.0), ValueError, "got 2.0"),
        (lambda: dense(combiner="max"), ValueError, "combiner must be one of sum, .* got 'max'"),
        (lambda: dense(combiner=None), ValueError, "combiner must be one of"),
        (lambda: dense(initializer=3), TypeError, "initializer must be a TensorFlow initializer"),
        (lambda: dense(max_norm=0), ValueError, "max_norm must be None or a number above 0"),
        (lambda: dense(trainable=1), TypeError, "trainable must be True or False, got 1"),
        (lambda: fc.shared_embedding_columns([], 2), ValueError, "one column or more, got none"),
        (
            lambda: fc.shared_embedding_columns([column()], 2, shared_embedding_collection_name=3),
            TypeError,
            "shared_embedding_collection_name must be a string, got 3",
        ),
    ],
)
def test_bad_argument_is_an_error_when_the_column_is_made(call, error, message):
    with pytest.raises(error, match=message):
        call()
