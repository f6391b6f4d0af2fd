# SPDX-License-Identifier: Apache-2.0
"""Tests of grouped samples: group_samples, and the files of groups."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


def values(dataset):
    """The elements of a dataset; sparse and ragged tensors are tf.compat.v1 values."""
    step = tf.data.make_one_shot_iterator(dataset).get_next()
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(step))
            except tf.errors.OutOfRangeError:
                return found


def rows_of(value):
    """The rows of a dense, sparse or ragged value, as a list of comparable objects."""
    if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
        return [repr(row) for row in value.to_list()]
    if isinstance(value, tf.SparseTensorValue):
        rows = [[] for _ in range(value.dense_shape[0])]
        for index, element in zip(value.indices, value.values):
            rows[index[0]].append((*index[1:], element))
        return [repr((list(value.dense_shape[1:]), row)) for row in rows]
    return [repr((value.dtype.str, row)) for row in value.tolist()]


def flat_rows(element):
    """Converts a grouped batch to one tuple per sample; rows of users are repeated."""
    features, labels = element if isinstance(element, tuple) else (element, None)
    features = dict(features)
    sizes = features.pop("item_size", None)
    columns = {name: rows_of(value) for name, value in features.items()}
    if sizes is not None:
        assert sizes.dtype == np.int32 and (sizes > 0).all()
        users = np.repeat(np.arange(len(sizes)), sizes)
        for name in set(USERS) & set(columns):
            assert len(columns[name]) == len(sizes)
            columns[name] = [columns[name][row] for row in users]
    if labels is not None:
        columns["labels"] = rows_of(labels)
    assert len({len(column) for column in columns.values()}) == 1
    return list(zip(*(columns[name] for name in sorted(columns))))


USERS = ("age", "history", "name", "words", "weights")


def flat_batches(random, rows, most_users):
    """Features of every kind for a few users. Some have equal ids and different histories."""
    users = random.randint(0, most_users, rows)
    of_users = np.random.RandomState(7)
    ages = of_users.choice([0.0, -0.0, np.nan, 1.5], (most_users, 2)).astype(np.float32)
    histories = [of_users.randint(0, 3, of_users.randint(0, 3)) for _ in range(most_users)]
    histories = tf.ragged.constant([histories[user].tolist() for user in users], dtype=tf.int64)
    words = of_users.choice(["", "a", "b"], (most_users, 2))
    weights = of_users.choice([0.0, 1.0, 2.0], (most_users, 4))
    features = {
        "age": tf.constant(ages[users]),
        "history": histories,
        "name": tf.constant((users // 2).astype(str)),
        "words": tf.constant(words[users]),
        "weights": tf.sparse.from_dense(weights[users]),
        "item": tf.constant(np.arange(rows)),
        "tags": tf.sparse.from_dense(random.randint(0, 3, (rows, 3))),
    }
    return tf.data.Dataset.from_tensor_slices((features, tf.constant(random.rand(rows))))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_grouping_keeps_every_sample_exactly_once(seed):
    random = np.random.RandomState(seed)
    rows, batch, most_users = (int(n) for n in random.randint(1, [60, 9, 12]))
    flat = flat_batches(random, rows, most_users).batch(int(random.randint(1, 20)))
    settings = [
        dict(batch_size=batch, window=3 * batch),
        dict(batch_size=batch),
        dict(),
        dict(window=50),
    ][seed % 4]
    grouped = rec.inputs.group_samples(flat, USERS, **settings)
    expected = [row for element in values(flat) for row in flat_rows(element)]
    batches = [flat_rows(element) for element in values(grouped)]
    assert sorted(row for rows in batches for row in rows) == sorted(expected)
    if batch in settings.values():
        assert max(map(len, batches)) <= batch


def grouped(columns, user, **settings):
    """Groups columns in memory that are one flat batch."""
    flat = tf.data.Dataset.from_tensors({name: np.array(rows) for name, rows in columns.items()})
    found = values(rec.inputs.group_samples(flat, user, **settings))
    return [{name: value.tolist() for name, value in batch.items()} for batch in found]


def test_groups_are_ordered_by_their_first_sample_and_continue_in_the_next_batch():
    columns = {"user": [7, 9, 7, 3, 7], "item": [0, 1, 2, 3, 4]}
    assert grouped(columns, ["user"], batch_size=2) == [
        {"user": [7], "item": [0, 2], "item_size": [2]},
        {"user": [7, 9], "item": [4, 1], "item_size": [1, 1]},
        {"user": [3], "item": [3], "item_size": [1]},
    ]
    assert len(grouped(columns, ["user"], batch_size=2, drop_remainder=True)) == 2


def test_equal_keys_do_not_join_different_rows():
    columns = {"user": [7, 7, 7], "age": [1, 2, 1], "item": [0, 1, 2]}
    assert grouped(columns, ["age"], key="user") == [
        {"age": [1, 2], "item": [0, 2, 1], "item_size": [2, 1]}
    ]


def test_different_keys_separate_equal_rows():
    columns = {"request": [1, 2, 1], "age": [5, 5, 5], "item": [0, 1, 2]}
    expected = {"age": [5, 5], "item": [0, 2, 1], "item_size": [2, 1]}
    assert grouped(columns, ["age"], key="request") == [expected]
    (both,) = grouped(columns, ["age"], item=["item", "request"], key=["request"])
    assert both == {**expected, "request": [1, 1, 2]}


def test_an_empty_batch_gives_no_batch():
    assert grouped({"user": np.zeros([0]), "item": np.zeros([0])}, ["user"]) == []


@pytest.mark.parametrize(
    ("columns", "arguments", "error", "message"),
    [
        (["user", "item"], dict(user=["who"]), ValueError, "user must name features .* 'who'"),
        (["user", "item"], dict(user=["user"], key="k"), ValueError, "key must name features"),
        (["user", "item"], dict(user=[]), ValueError, "user must name at least one feature"),
        (["user"], dict(user=["user"]), ValueError, "item must name at least one feature"),
        (["user", "item"], dict(user=["user"], item=["user"]), ValueError, "'user' in both"),
        (["user", "item_size"], dict(user=["user"]), ValueError, "leave the name 'item_size'"),
        (["user", "item"], dict(user=["user"], batch_size=0), ValueError, "batch_size must be"),
        (["user", "item"], dict(user=["user"], window=1.5), ValueError, "window must be"),
        (
            ["user", "item"],
            dict(user=["user"], window=5, batch_size=2),
            ValueError,
            "multiple of batch_size, got 5 and 2",
        ),
        (
            ["user", "item"],
            dict(user=["user"], drop_remainder=True),
            ValueError,
            "batch_size must be given",
        ),
    ],
)
def test_bad_arguments_are_refused(columns, arguments, error, message):
    flat = tf.data.Dataset.from_tensors({name: [1, 2] for name in columns})
    with pytest.raises(error, match=message):
        rec.inputs.group_samples(flat, **arguments)


def test_single_samples_are_refused():
    flat = tf.data.Dataset.from_tensor_slices({"user": [1, 2], "item": [1, 2]})
    with pytest.raises(TypeError, match=r"rows on axis 0.*dataset.batch\(512\)"):
        rec.inputs.group_samples(flat, ["user"])
    with pytest.raises(TypeError, match="features as a dict"):
        rec.inputs.group_samples(tf.data.Dataset.range(3).batch(2), ["user"])
    with pytest.raises(TypeError, match="tuple of 3"):
        rec.inputs.group_samples(tf.data.Dataset.from_tensors((1, 2, 3)), ["user"])


@pytest.mark.long
def test_entries_of_sparse_features_may_come_in_any_order():
    def sparse(rows):
        return tf.SparseTensor([[row, 0] for row in rows], rows, [3, 1])

    features = {"user": sparse([2, 0]), "item": sparse([1, 2, 0])}
    flat = tf.data.Dataset.from_tensors((features, {"likes": sparse([1, 0])}))
    ((found, labels),) = values(rec.inputs.group_samples(flat, ["user"]))
    assert found["item_size"].tolist() == [1, 1, 1]
    assert found["user"].indices.tolist() == [[0, 0], [2, 0]]
    assert found["item"].values.tolist() == [0, 1, 2]
    assert labels["likes"].values.tolist() == [0, 1]


@pytest.mark.long
def test_a_feature_with_a_different_number_of_rows_is_an_error():
    columns = {"user": [7, 9, 7], "item": [0, 1, 2]}
    for more in ({"item": [0, 1, 2, 3]}, {"tags": tf.sparse.from_dense([[1], [2]])}):
        flat = tf.data.Dataset.from_tensors({**columns, **more})
        with pytest.raises(tf.errors.InvalidArgumentError, match="one row per sample"):
            values(rec.inputs.group_samples(flat, ["user"]))
    labelled = tf.data.Dataset.from_tensors((columns, [1.0, 2.0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="among user, item and 1 labels"):
        values(rec.inputs.group_samples(labelled, ["user"]))
    scalar = tf.data.Dataset.from_tensors((columns, 1.0))
    with pytest.raises(TypeError, match="labels must be a tensor with rows"):
        rec.inputs.group_samples(scalar, ["user"])


def test_labels_may_be_missing_and_batches_empty():
    empty = {"user": np.zeros([0], np.int64), "item": np.zeros([0, 2])}
    flat = tf.data.Dataset.from_tensors((empty, None))
    batches = rec.inputs.group_samples(flat, ["user"])
    assert batches.element_spec[0].keys() == {"user", "item", "item_size"}
    assert values(batches.map(lambda features, labels: features)) == []


def test_a_window_of_dense_features_spans_batches():
    columns = {"user": [7, 9, 7, 7, 3], "item": [[0], [1], [2], [3], [4]]}
    flat = tf.data.Dataset.from_tensor_slices(columns).batch(2)
    found = values(rec.inputs.group_samples(flat.repeat(2), ["user"], batch_size=3, window=6))
    assert [batch["user"].tolist() for batch in found] == [[7], [7, 9, 3], [9, 7], [3]]
    assert [batch["item_size"].tolist() for batch in found] == [[3], [1, 1, 1], [1, 2], [1]]
    assert np.concatenate([batch["item"][:, 0] for batch in found]).tolist() == (
        [0, 2, 3, 0, 1, 4, 1, 2, 3, 4]
    )


@pytest.mark.parametrize("kind", [tf.bool, tf.uint32, tf.bfloat16, tf.complex64, tf.complex128])
def test_features_of_any_type_are_grouped(kind):
    features = {"user": tf.cast([[1], [0], [1]], kind), "item": tf.constant([1, 2, 3])}
    flat = tf.data.Dataset.from_tensors(features)
    (found,) = values(rec.inputs.group_samples(flat, ["user"]))
    assert found["item"].tolist() == [1, 3, 2]


READ_USER = {
    "age": tf.io.FixedLenFeature([2], tf.float32),
    "history": tf.io.RaggedFeature(tf.int64),
    "name": tf.io.FixedLenFeature([], tf.string),
    "words": tf.io.FixedLenFeature([2], tf.string),
}
READ_ITEM = {
    "item": tf.io.FixedLenFeature([], tf.int64),
    "tags": tf.io.RaggedFeature(tf.int64),
    "label": tf.io.FixedLenFeature([], tf.float32),
}


def written(path, rows=70, **settings):
    """Groups and writes flat samples; returns the flat samples and the number of records."""

    def flat():
        batches = flat_batches(np.random.RandomState(3), rows, 9).batch(30)
        return batches.map(
            lambda f, label: (
                {
                    **{name: f[name] for name in (*READ_USER, "item")},
                    "tags": tf.ragged.range(f["item"] % 3),
                },
                tf.cast(label, tf.float32),
            )
        )

    records = rec.inputs.write_grouped_samples(
        lambda: rec.inputs.group_samples(flat(), list(READ_USER)), path, list(READ_USER), **settings
    )
    return [row for element in values(flat()) for row in flat_rows(element)], records


@pytest.mark.long
@pytest.mark.parametrize(("name", "batch_size"), [("groups", 7), ("groups.gz", 200)])
def test_groups_read_from_files_equal_those_written(name, batch_size, tmp_path):
    expected, records = written(str(tmp_path / name))
    assert 9 <= records < 70
    input_fn = rec.inputs.grouped_tfrecord_input_fn(
        str(tmp_path / "groups*"),
        READ_USER,
        READ_ITEM,
        label_column="label",
        batch_size=batch_size,
        num_epochs=2,
    )
    batches = [flat_rows(element) for element in values(input_fn())]
    assert sorted(row for rows in batches for row in rows) == sorted(expected * 2)
    full, rest = divmod(140, batch_size)
    assert [len(rows) for rows in batches] == [batch_size] * full + [rest] * bool(rest)


@pytest.mark.long
def test_groups_are_shuffled_as_units_and_reproducibly(tmp_path):
    expected, _ = written(str(tmp_path / "groups"))

    def read(seed):
        input_fn = rec.inputs.grouped_tfrecord_input_fn(
            str(tmp_path / "groups"),
            READ_USER,
            READ_ITEM,
            label_column=["label"],
            batch_size=10,
            shuffle=50,
            seed=seed,
        )
        found = [(f, labels["label"]) for f, labels in values(input_fn())]
        return [row for element in found for row in flat_rows(element)]

    first, other = read(1), read(2)
    assert read(1) == first != other
    assert sorted(first) == sorted(other) == sorted(expected)


def test_features_that_a_file_cannot_store_are_refused(tmp_path):
    def write(features, labels, **settings):
        def input_fn():
            made = {name: f() if callable(f) else f for name, f in features.items()}
            return tf.data.Dataset.from_tensors((made, labels))

        path = str(tmp_path / "groups")
        rec.inputs.write_grouped_samples(input_fn, path, "user", **settings)

    group = {"item_size": [1], "user": [1]}
    with pytest.raises(TypeError, match="'price' must be of a type .* float64"):
        write({**group, "price": np.zeros([1])}, [1])
    with pytest.raises(TypeError, match=r"'tags' must be \[rows, \(k\)\] if it is ragged"):
        write({**group, "tags": lambda: tf.ragged.constant([[[1], [2, 3]]])}, [1])
    with pytest.raises(ValueError, match="got 'item_size'; there are"):
        write({"user": [1]}, [1])
    with pytest.raises(ValueError, match="no feature has, got 'user'"):
        write(group, [1], label="user")


def test_records_with_lists_of_different_lengths_are_an_error(tmp_path):
    example = tf.train.SequenceExample()
    example.context.feature["user"].int64_list.value.append(1)
    lists = example.feature_lists.feature_list
    lists["item"].feature.add().int64_list.value.append(1)
    for _ in range(2):
        lists["price"].feature.add().float_list.value.append(1)
    with tf.io.TFRecordWriter(str(tmp_path / "groups")) as writer:
        writer.write(example.SerializeToString())
    number = tf.io.FixedLenFeature([], tf.int64)
    item = {"item": number, "price": tf.io.FixedLenFeature([], tf.float32)}
    input_fn = rec.inputs.grouped_tfrecord_input_fn(
        str(tmp_path / "groups"), {"user": number}, item
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="lists .*item.* and .*price"):
        values(input_fn())
    with pytest.raises(TypeError, match="user feature 'user' must be a tf.io.FixedLen"):
        rec.inputs.grouped_tfrecord_input_fn(
            str(tmp_path / "groups"), {"user": tf.io.VarLenFeature(tf.int64)}, item
        )
    with pytest.raises(ValueError, match="item must be a dict"):
        rec.inputs.grouped_tfrecord_input_fn(str(tmp_path / "groups"), {"user": number}, {})
