# SPDX-License-Identifier: Apache-2.0
"""EmbeddingFeature declarations, and the vectors that lookup_features returns for a batch."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.features import check_declarations, lookup_features

DIM, VOCABULARY = 3, 11


def row(key):
    """The initial vector of a key. Keys 0 to 10 have different vectors, none of them zero."""
    return np.array([1, key % VOCABULARY + 1, (key % VOCABULARY + 1) ** 2], np.float32)


ROWS = tf.constant_initializer(np.stack([row(key) for key in range(VOCABULARY)]))
OPTION = rec.EmbeddingVariableOption(
    init_option=rec.InitializerOption(ROWS, default_value_dim=VOCABULARY)
)


def feature(name="f", dim=DIM, **kwargs):
    return rec.EmbeddingFeature(name, dim, ev_option=OPTION, **kwargs)


def look_up(features, *declarations):
    looked_up = lookup_features(features, declarations)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(looked_up)


def mean(*keys):
    return np.mean([row(key) for key in keys], 0).tolist() if keys else [0.0] * DIM


LISTS = [[1, 4], [], [7]]
PADDED = [[1, -1, 4], [-1, -1, -1], [7, -1, -1]]
FORMS = {
    "dense": lambda dtype: tf.constant(PADDED, dtype),
    "sparse": lambda dtype: tf.ragged.constant(LISTS, dtype).to_sparse(),
    "ragged": lambda dtype: tf.ragged.constant(LISTS, dtype),
    "ragged int32 splits": lambda dtype: tf.ragged.constant(
        LISTS, dtype, row_splits_dtype=tf.int32
    ),
    "sparse with holes": lambda dtype: tf.SparseTensor(
        [[0, 1], [0, 5], [2, 3]], tf.constant([1, 4, 7], dtype), [3, 9]
    ),
}
ANY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


# Lookups.


@ANY_FORM
@pytest.mark.parametrize("dtype", [tf.int64, tf.int32], ids=["int64", "int32"])
def test_ids_of_every_form_are_combined_per_example_and_padding_is_ignored(form, dtype):
    found = look_up({"f": form(dtype)}, feature(dtype=dtype))
    assert found["f"].tolist() == [mean(1, 4), mean(), mean(7)]


@ANY_FORM
def test_without_combiner_vectors_are_padded_with_zeros_and_have_a_mask(form):
    found = look_up({"f": form(tf.int64)}, feature(combiner=None, max_length=3))
    none = [0.0] * DIM
    assert found["f"].tolist() == [[mean(1), mean(4), none], [none] * 3, [mean(7), none, none]]
    assert found["f_mask"].tolist() == [[True, True, False], [False] * 3, [True, False, False]]


@ANY_FORM
def test_without_combiner_ids_beyond_max_length_are_cut_off(form):
    found = look_up({"f": form(tf.int64)}, feature(combiner=None, max_length=1))
    assert found["f"].tolist() == [[mean(1)], [mean()], [mean(7)]]
    assert found["f_mask"].tolist() == [[True], [False], [True]]


def test_one_id_per_example_gives_its_row_and_minus_one_gives_zeros():
    found = look_up({"f": tf.constant([3, -1, 5], tf.int64)}, feature())
    assert found["f"].tolist() == [mean(3), mean(), mean(5)]


def test_sparse_and_ragged_ids_may_be_any_int64():
    keys = [[-1, -5], [2**63 - 1, -(2**63)], [0]]
    found = look_up({"f": tf.ragged.constant(keys, tf.int64)}, feature())
    assert found["f"].tolist() == [mean(-1, -5), mean(2**63 - 1, -(2**63)), mean(0)]


@pytest.mark.parametrize("combiner, divisor", [("sum", 1), ("mean", 4), ("sqrtn", 10**0.5)])
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
def test_weights_belong_to_their_ids(combiner, divisor, form):
    ids = FORMS[form](tf.int64)
    if form == "dense":
        weights = tf.constant([[3, 100, 1], [1, 1, 1], [2, 1, 1]], tf.float64)
    else:
        weights = ids.with_values(tf.constant([3.0, 1.0, 2.0]))
    found = look_up({"f": ids, "w": weights}, feature(combiner=combiner, weight="w"))
    # A few operations in float32.
    assert found["f"][0] == pytest.approx((3 * row(1) + row(4)) / divisor, rel=1e-6)
    assert found["f"][1].tolist() == [0, 0, 0]
    assert found["f"][2] == pytest.approx(row(7) * (2 if combiner == "sum" else 1), rel=1e-6)
    assert "w" in found


@pytest.mark.parametrize("combiner", ["mean", None])
def test_strings_are_hashed_to_keys_and_empty_ones_are_padding(combiner):
    values = tf.constant([["x", "", "y"], ["", "", ""]])
    declaration = feature(dtype=tf.string, combiner=combiner, max_length=None if combiner else 2)
    found = look_up({"f": values}, declaration)["f"]
    with tf.Session() as session:
        x, y = session.run(tf.strings.to_hash_bucket_fast(["x", "y"], 2**63 - 1)).tolist()
    if combiner:
        assert found.tolist() == [mean(x, y), mean()]
    else:
        assert found.tolist() == [[mean(x), mean(y)], [mean(), mean()]]


def test_other_entries_pass_and_the_given_dict_does_not_change():
    batch = {"f": tf.constant([1], tf.int64), "price": tf.constant([2.5])}
    ids = batch["f"]
    found = look_up(batch, feature())
    assert found["price"].tolist() == [2.5] and sorted(batch) == ["f", "price"]
    assert batch["f"] is ids


def test_features_share_a_table_where_they_name_it():
    batch = {"item": tf.constant([2], tf.int64), "history": tf.ragged.constant([[2, 3]], tf.int64)}
    declarations = [
        feature("item"),
        feature("history", table="item", combiner=None, max_length=2),
    ]
    looked_up = lookup_features(batch, declarations)
    assert len(tf.get_collection(rec.EMBEDDING_VARIABLES)) == 1
    loss = tf.reduce_sum(looked_up["item"]) + tf.reduce_sum(looked_up["history"])
    step = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        found = session.run(looked_up)
    assert found["item"].tolist() == [(row(2) - 2).tolist()]
    assert found["history"].tolist() == [[(row(2) - 2).tolist(), (row(3) - 1).tolist()]]


@ANY_FORM
@pytest.mark.parametrize("combiner", ["mean", None])
def test_the_ids_of_a_feature_are_those_of_the_batch(form, combiner):
    ids = form(tf.int64)
    declaration = feature(combiner=combiner, max_length=None if combiner else 1)
    assert lookup_features({"f": ids}, [declaration])["f_ids"] is ids


def test_the_ids_of_strings_are_strings_with_their_padding():
    values = tf.constant([["x", ""], ["", "y"]])
    found = look_up({"f": values}, feature(dtype=tf.string))["f_ids"]
    assert found.tolist() == [[b"x", b""], [b"", b"y"]]


def test_a_column_serves_a_sequence_and_its_mean():
    ids = tf.ragged.constant([[2, 3, 5], []], tf.int64)
    sequence = feature("history", table="item", combiner=None, max_length=2)
    average = feature("taste", source="history", table="item")
    found = look_up({"history": ids}, sequence, average)
    assert found["history"].tolist() == [[mean(2), mean(3)], [mean(), mean()]]
    assert found["taste"].tolist() == [mean(2, 3, 5), mean()]
    assert found["taste_ids"].to_list() == found["history_ids"].to_list() == [[2, 3, 5], []]


def test_a_column_that_no_feature_is_named_after_keeps_its_ids():
    batch = {"user": tf.constant([4, -1], tf.int64)}
    found = look_up(batch, feature("vector", source="user", table="user"))
    assert found["vector"].tolist() == [mean(4), mean()]
    assert found["user"].tolist() == found["vector_ids"].tolist() == [4, -1]


def test_a_column_may_have_the_name_of_the_ids_of_its_feature():
    batch = {"user_ids": tf.constant([4, -1], tf.int64)}
    found = look_up(batch, feature("user", source="user_ids"))
    assert found["user"].tolist() == [mean(4), mean()]
    assert found["user_ids"].tolist() == [4, -1]


def test_weights_belong_to_the_ids_of_the_source():
    batch = {
        "tags": tf.constant([[1, 4]], tf.int64),
        "scores": tf.constant([[3.0, 1.0]]),
    }
    found = look_up(
        batch,
        feature("plain", source="tags", table="tag"),
        feature("weighted", source="tags", table="tag", combiner="sum", weight="scores"),
    )
    assert found["plain"].tolist() == [mean(1, 4)]
    assert found["weighted"].tolist() == [(3 * row(1) + row(4)).tolist()]


def made_table(*declarations):
    """The table that lookups of one id by each feature make."""
    lookup_features(
        {each.source: tf.constant([1], tf.int64) for each in declarations}, declarations
    )
    (table,) = tf.get_collection(rec.EMBEDDING_VARIABLES)
    return table


@pytest.mark.parametrize("order", [1, -1])
def test_features_of_a_table_inherit_what_one_of_them_sets(order):
    rule = rec.GlobalStepEvict(5)
    declarations = [
        rec.EmbeddingFeature("item", 3, filter_option=rec.CounterFilter(2)),
        rec.EmbeddingFeature("seen", 3, table="item", evict_option=rule),
        rec.EmbeddingFeature("liked", 3, table="item", initializer=tf.ones_initializer()),
        rec.EmbeddingFeature(
            "bought",
            3,
            table="item",
            ev_option=rec.EmbeddingVariableOption(
                filter_option=rec.CounterFilter(2),
                init_option=rec.InitializerOption(default_value_no_permission=7.0),
            ),
        ),
    ]
    option = made_table(*declarations[::order]).ev_option
    assert option.filter_option == rec.CounterFilter(2)
    assert option.evict_option == rule
    assert option.init_option.default_value_no_permission == 7.0
    assert isinstance(option.init_option.initializer, type(tf.ones_initializer()))


def test_a_filter_that_one_feature_sets_filters_the_ids_of_all():
    item = rec.EmbeddingFeature("item", 1, initializer=tf.ones_initializer())
    seen = rec.EmbeddingFeature("seen", 1, table="item", filter_option=rec.CounterFilter(2))
    batch = {name: tf.constant([1], tf.int64) for name in ("item", "seen")}
    found = look_up(batch, item, seen)
    assert found["item"].tolist() == found["seen"].tolist() == [[0.0]]


@pytest.mark.parametrize("num_features", [1, 2])
def test_each_feature_counts_the_ids_of_a_source_that_it_shares(num_features):
    names = ["sum", "mean"][:num_features]
    declared = [
        rec.EmbeddingFeature(
            name, 2, source="ids", table="t", combiner=name, filter_option=rec.CounterFilter(4)
        )
        for name in names
    ]
    found = lookup_features({"ids": tf.constant([[7, 9, 7]], tf.int64)}, declared)
    loss = tf.add_n([tf.reduce_sum(found[name]) for name in names])
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    (table,) = tf.get_collection(rec.EMBEDDING_VARIABLES)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        counts = session.run(table.get_frequency([7, 9])).tolist()
        assert counts == [2 * num_features, num_features]
        assert session.run(table.size()) == num_features - 1, "4 occurrences admit key 7"


def test_a_thread_looks_up_all_features_of_a_batch_in_one_op():
    names = [f"f{i}" for i in range(8)]
    batch = {name: tf.constant([1, 2], tf.int64) for name in names}
    found = lookup_features(batch, [feature(name) for name in names])
    metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        session.run([found[name] for name in names], None, options, metadata)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    assert [node.attr["N"].i for node in nodes if "Lookup" in node.op] == [8]


@pytest.mark.parametrize("combiner", ["mean", None])
def test_training_inserts_the_real_ids_only(combiner):
    max_length = None if combiner else 2
    batch = {"f": tf.constant([[1, -1, 4, 9], [-1, -1, -1, -1], [7, 1, -1, -1]], tf.int64)}
    found = lookup_features(batch, [feature(combiner=combiner, max_length=max_length)])
    [table] = tf.get_collection(rec.EMBEDDING_VARIABLES)
    step = rec.optimizers.AdagradOptimizer(0.1).minimize(tf.reduce_sum(found["f"]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        keys, counts = session.run([table.export().keys, table.export().freqs])
    cut_off = [9] if combiner is None else []
    assert sorted(keys.tolist()) == sorted({1, 4, 7, 9} - set(cut_off))
    assert dict(zip(keys.tolist(), counts.tolist()))[1] == 2


@ANY_FORM
def test_each_row_of_a_sequence_gets_the_gradient_of_its_place(form):
    found = lookup_features({"f": form(tf.int64)}, [feature(combiner=None, max_length=3)])
    gradient = np.arange(1, 9 * DIM + 1, dtype=np.float32).reshape(3, 3, DIM)
    loss = tf.reduce_sum(found["f"] * gradient)
    step = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss)
    # TensorFlow's own gradient pads a second time, to find the place of each row.
    types = [op.type for op in tf.get_default_graph().get_operations()]
    assert types.count("RaggedTensorToTensor") == 1
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before, mask = session.run([found["f"], found["f_mask"]])
        session.run(step)
        after = session.run(found["f"])
    np.testing.assert_array_equal(after, before - gradient * mask[..., np.newaxis])


def test_shapes_are_as_static_as_those_of_the_batch():
    batch = {
        "one": tf.placeholder(tf.int64, [5]),
        "many": tf.placeholder(tf.int64, [None, 4]),
        "list": tf.sparse_placeholder(tf.int64, [None, None]),
    }
    found = lookup_features(
        batch, [feature("one"), feature("many"), feature("list", combiner=None, max_length=6)]
    )
    assert found["one"].shape.as_list() == [5, DIM]
    assert found["many"].shape.as_list() == [None, DIM]
    assert found["list"].shape.as_list() == [None, 6, DIM]
    assert found["list_mask"].shape.as_list() == [None, 6]


@ANY_FORM
@pytest.mark.parametrize("combiner", ["sum", None])
def test_batch_without_examples_gives_no_vectors(form, combiner):
    empty = tf.constant(np.zeros([0, 3]), tf.int64)
    if form is not FORMS["dense"]:
        empty = tf.RaggedTensor.from_tensor(empty)
        empty = empty if form is FORMS["ragged"] else empty.to_sparse()
    found = look_up({"f": empty}, feature(combiner=combiner, max_length=None if combiner else 2))
    assert found["f"].shape == ((0, DIM) if combiner else (0, 2, DIM))


def values_of(vectors):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(vectors)


# The standard deviation of a normal distribution that is cut at two of its own.
CUT = 0.8796


@pytest.mark.parametrize("dim", [4, 64])
@pytest.mark.parametrize("filter_option", [None, rec.CounterFilter(0)])
def test_new_rows_are_small(dim, filter_option):
    keys = tf.range(4096, dtype=tf.int64)
    small = rec.EmbeddingFeature("f", dim, filter_option=filter_option)
    found = values_of(lookup_features({"f": keys}, [small])["f"])
    # The deviation of 16,384 draws or more is within 2 % of that of the distribution.
    assert found.std() == pytest.approx(0.05 * CUT, rel=0.02)


def test_an_initializer_or_that_of_the_scope_comes_before_the_default():
    keys = {name: tf.constant([1], tf.int64) for name in ("own", "f")}
    own = rec.EmbeddingFeature("own", 2, initializer=tf.ones_initializer())
    with tf.variable_scope("scope", initializer=tf.constant_initializer(2.0)):
        found = lookup_features(keys, [own, rec.EmbeddingFeature("f", 2)])
    assert values_of(found["own"]).tolist() == [[1.0, 1.0]]
    assert values_of(found["f"]).tolist() == [[2.0, 2.0]]


def test_rows_of_get_embedding_variable_and_of_columns_start_as_in_deeprec():
    keys = tf.range(4096, dtype=tf.int64)
    made = rec.get_embedding_variable("made", 16)
    user = rec.categorical_column_with_embedding("user", tf.int64)
    layer = tf.feature_column.input_layer({"user": keys}, [rec.embedding_column(user, 16)])
    # The deviation of 65,536 draws is within 2 % of that of the distribution.
    found = values_of(rec.embedding_lookup(made, keys))
    assert found.std() == pytest.approx(CUT, rel=0.02)
    assert values_of(layer).std() == pytest.approx(CUT / 4, rel=0.02)


# Bad batches.


def sparse_floats(shape):
    return tf.SparseTensor(np.zeros([1, len(shape)], np.int64), [1.0], shape)


@pytest.mark.parametrize(
    "batch, arguments, error, message",
    [
        ({"g": [1]}, {}, ValueError, r"feature 'f' must be in the .*, got \['g'\]; add it"),
        ([1, 2], {}, TypeError, "features must be a dict of tensors"),
        ({"f": [1.5]}, {}, TypeError, "feature 'f' must have ids of tf.int64, .*got float32"),
        ({"f": [True]}, {}, TypeError, "feature 'f' must have ids of tf.int64, .*got bool"),
        ({"f": ["a"]}, {}, TypeError, "declared dtype int64, got string; .*dtype=tf.string"),
        ({"f": [1]}, {"dtype": tf.string}, TypeError, "declared dtype string, got int32"),
        (
            {"f": 1},
            {},
            ValueError,
            r"'f' must have ids of shape .*, got dense ids of shape \(\); batch the dataset",
        ),
        ({"f": [[[1]]]}, {}, ValueError, r"must have ids of shape .* of shape \(1, 1, 1\)"),
        (
            {"f": [1]},
            {"weight": "w"},
            ValueError,
            "weight 'w' of feature 'f' must be in the features",
        ),
        (
            {"f": [1], "w": [1]},
            {"weight": "w"},
            TypeError,
            "weight 'w' of .* floating point, got int32",
        ),
        ({"f": [1], "w": [[1.0]]}, {"weight": "w"}, ValueError, "of the kind and shape of the ids"),
        (
            {"f": [1], "w": sparse_floats},
            {"weight": "w"},
            ValueError,
            "of the kind and shape of the ids, .*got SparseTensor",
        ),
        (
            {"f": [1], "f_mask": [1]},
            {"combiner": None, "max_length": 2},
            ValueError,
            "features must leave the name 'f_mask' to the mask of 'f'",
        ),
        (
            {"f": [1], "f_ids": [1]},
            {},
            ValueError,
            "features must leave the name 'f_ids' to the ids of 'f', got .*; rename that entry, or",
        ),
        (
            {"f": [1], "g": [1]},
            {"source": "g"},
            ValueError,
            "features must leave the name 'f' to the vectors of 'f'",
        ),
        (
            {"f": [1]},
            {"source": "g"},
            ValueError,
            r"'g', the ids of feature 'f' must be in the features of the batch, got \['f'\]",
        ),
    ],
    ids=[
        "missing",
        "no dict",
        "float",
        "bool",
        "string",
        "no string",
        "scalar",
        "rank 3",
        "no weight",
        "weight type",
        "weight shape",
        "weight kind",
        "mask",
        "ids",
        "vectors",
        "no source",
    ],
)
def test_bad_batch_is_an_error_that_names_the_feature(batch, arguments, error, message):
    if isinstance(batch, dict):
        batch = {k: v([1, 1]) if callable(v) else tf.constant(v) for k, v in batch.items()}
    with pytest.raises(error, match=message):
        lookup_features(batch, [feature(**arguments)])


def test_ragged_ids_of_rank_three_and_unknown_dense_rank_are_errors():
    for ids in (tf.ragged.constant([[[1]]], tf.int64), tf.placeholder(tf.int64)):
        with pytest.raises(ValueError, match="feature 'f' must have ids of shape"):
            lookup_features({"f": ids}, [feature()])


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_weights_at_other_positions_than_their_ids_are_an_error(kind):
    ids, weights = (
        tf.ragged.constant([[1], [2, 3]], tf.int64),
        tf.ragged.constant([[1.0, 2.0], [3.0]]),
    )
    if kind == "sparse":
        ids, weights = ids.to_sparse(), weights.to_sparse()
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must"):
        look_up({"f": ids, "w": weights}, feature(weight="w"))


def test_sparse_ids_out_of_order_are_an_error_where_order_matters():
    ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        look_up({"f": ids}, feature(combiner=None, max_length=1))


# Declarations.


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"name": 3}, TypeError, "name must be a string, got 3"),
        ({"name": ""}, ValueError, "name must be a non-empty string, got ''"),
        ({"name": "user id"}, ValueError, "table must be a name .*, got 'user id'; pass table="),
        ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
        ({"dim": 2.0}, TypeError, "dim must be an integer, got 2.0"),
        ({"dim": True}, TypeError, "dim must be an integer, got True"),
        ({"table": 3}, TypeError, "table must be a string, got 3"),
        ({"source": 3}, TypeError, "source must be a string, got 3"),
        ({"source": ""}, ValueError, "source must be a non-empty string, got ''"),
        ({"combiner": "max"}, ValueError, "combiner must be \"mean\", .*, got 'max'"),
        (
            {"combiner": None},
            ValueError,
            "max_length must be given where combiner is None, got None",
        ),
        ({"combiner": None, "max_length": 0}, ValueError, "max_length must be at least 1, got 0"),
        ({"max_length": 5}, ValueError, "max_length must be None where ids are combined, got 5"),
        ({"dtype": tf.float32}, ValueError, "dtype must be tf.int64, .*got tf.float32"),
        ({"dtype": "key"}, ValueError, "dtype must be tf.int64, .*got 'key'"),
        (
            {"combiner": None, "max_length": 1, "weight": "w"},
            ValueError,
            "weight must be None where combiner is None, got 'w'",
        ),
        ({"weight": 3}, TypeError, "weight must be a string, got 3"),
        ({"initializer": 3}, TypeError, "initializer must be a TensorFlow initializer, got 3"),
        ({"ev_option": 3}, TypeError, "ev_option must be an EmbeddingVariableOption, got 3"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_declaration_is_an_error_where_it_is_made(arguments, error, message):
    with pytest.raises(error, match=message):
        rec.EmbeddingFeature(**{"name": "f", "dim": 4, **arguments})


def test_declaration_survives_copying_and_pickling_and_cannot_be_changed():
    declaration = rec.EmbeddingFeature(
        "history", 8, table="item", combiner=None, max_length=5, dtype="string"
    )
    assert declaration.dtype == tf.string
    for other in (copy.deepcopy(declaration), pickle.loads(pickle.dumps(declaration))):
        assert other == declaration and other.max_length == 5
    with pytest.raises(AttributeError):
        declaration.dim = 9


def test_name_with_a_space_takes_a_table_of_another_name():
    found = look_up({"user id": tf.constant([1], tf.int64)}, feature("user id", table="user"))
    assert found["user id"].tolist() == [mean(1)]


@pytest.mark.parametrize(
    "declarations, error, message",
    [
        (lambda: [feature("a"), feature("a")], ValueError, "different names, got 'a' twice"),
        (
            lambda: [feature("a", table="t"), feature("b", dim=4, table="t")],
            ValueError,
            "table 't' must have one dim for all its features, got 3 for 'a' and 4 for 'b'",
        ),
        (
            lambda: [
                rec.EmbeddingFeature("a", 3, initializer=tf.zeros_initializer()),
                rec.EmbeddingFeature("b", 3, table="a", initializer=tf.ones_initializer()),
            ],
            ValueError,
            r"must have one initializer .*, got Zeros\(.*\) for 'a' and Ones\(.*\) for 'b'",
        ),
        (
            lambda: [
                rec.EmbeddingFeature("a", 3, filter_option=rec.CounterFilter(2)),
                rec.EmbeddingFeature("b", 3, table="a"),
                rec.EmbeddingFeature("c", 3, table="a", filter_option=rec.CounterFilter(3)),
            ],
            ValueError,
            r"table 'a' must have one filter_option for all its features, got CounterFilter\("
            r"filter_freq=2\) for 'a' and CounterFilter\(filter_freq=3\) for 'c'; use one, or give",
        ),
        (
            lambda: [
                feature("a"),
                rec.EmbeddingFeature(
                    "b",
                    3,
                    table="a",
                    ev_option=rec.EmbeddingVariableOption(
                        init_option=rec.InitializerOption(default_value_dim=8)
                    ),
                ),
            ],
            ValueError,
            "must have one default_value_dim for all its features, got 11 for 'a' and 8 for 'b'",
        ),
        (
            lambda: [feature("a", combiner=None, max_length=1), feature("a_mask")],
            ValueError,
            "must leave the name 'a_mask' to the mask of 'a'",
        ),
        (
            lambda: [feature("a_ids"), feature("a")],
            ValueError,
            "must leave the name 'a_ids' to the ids of 'a', got a feature of that name; pass",
        ),
        (lambda: ["a"], TypeError, "embedding_features must be EmbeddingFeature .*, got 'a'; for"),
        (
            lambda: feature("a"),
            TypeError,
            r"must be a list .*, got EmbeddingFeature.*; write \[",
        ),
    ],
    ids=["name", "dim", "initializer", "filter", "init option", "mask", "ids", "type", "no list"],
)
def test_declarations_that_contradict_each_other_are_an_error(declarations, error, message):
    with pytest.raises(error, match=message):
        check_declarations(declarations())


def test_each_feature_of_a_table_may_build_its_own_equal_initializer():
    check_declarations(
        [
            rec.EmbeddingFeature("a", 3, initializer=tf.random_normal_initializer(seed=1)),
            rec.EmbeddingFeature(
                "b", 3, table="a", initializer=tf.random_normal_initializer(seed=1)
            ),
        ]
    )
    values = [[1.0, 2.0, 3.0]]
    check_declarations(
        [
            rec.EmbeddingFeature(name, 3, table="t", initializer=tf.constant_initializer(value))
            for name, value in (("a", np.array(values)), ("b", np.array(values)))
        ]
    )
