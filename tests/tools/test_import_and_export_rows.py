# SPDX-License-Identifier: Apache-2.0
"""rec-estimator import and export: files of vectors to checkpoints and back."""

import numpy as np
import pyarrow.parquet
import pytest
import stored_checkpoints
import tensorflow.compat.v1 as tf
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec
from rec_estimator.inputs.vector_files import Vectors, hash_strings, read_vectors
from rec_estimator.tools import command
from rec_estimator.tools.import_rows import import_rows

DIM = 2


class Trained:
    """A table after a step of Adagrad on some keys, with keys that a filter counts."""

    def __init__(self, shards=1, value_dtype=None):
        self.table = rec.get_embedding_variable(
            "t",
            DIM,
            value_dtype=value_dtype,
            ev_option=rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2)),
            partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
            initializer=tf.ones_initializer(),
        )
        self.keys = tf.placeholder(tf.int64, [None])
        self.step = tf.train.get_or_create_global_step()
        self.values = rec.embedding_lookup(self.table, self.keys)
        self.train = rec.optimizers.AdagradOptimizer(0.5).minimize(
            tf.reduce_sum(self.values), self.step
        )
        self.saver, self.export = rec.Saver(), self.table.export()

    def save(self, prefix, batches):
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for batch in batches:
                session.run(self.train, {self.keys: batch})
            return self.saver.save(session, str(prefix)), session.run(self.export)


@VALUE_DTYPES
@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_takes_over_an_imported_table(shards, value_dtype, tmp_path):
    keys = np.arange(-1500, 1500, 7)
    rows = np.random.default_rng(0).normal(size=[len(keys), DIM]).astype(np.float32)
    prefix = str(tmp_path / "imported" / "model.ckpt")
    import_rows(Vectors(keys, rows), "word", prefix)
    model = Trained(shards, value_dtype)
    rec.init_from_checkpoint(prefix, {"word": "t"})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = rows.astype(value_dtype.as_numpy_dtype).astype(np.float32)
        np.testing.assert_array_equal(session.run(model.values, {model.keys: keys}), expected)
        assert set(session.run(model.export).freqs) == {2}, "the filter admits them"


@VALUE_DTYPES
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_go_into_a_copy_of_a_checkpoint_as_assign_writes_them(shards, value_dtype, tmp_path):
    model = Trained(shards, value_dtype)
    prefix, before = model.save(tmp_path / "model.ckpt", [[1, 1, 2, 2, 3, 1001], [1, 1, 3]])
    assert sorted(before.keys) == [1, 2, 3]
    keys, rows = np.array([1, 5, 1001]), np.full([3, DIM], 1 / 3, np.float32)
    copy = str(tmp_path / "copy.ckpt")
    import_rows(Vectors(keys, rows), "t", copy, checkpoint=prefix)
    assign = model.table.assign(keys, rows, [4, 0, 1])
    with tf.Session() as session:
        results = []
        for restored in (prefix, copy):
            model.saver.restore(session, restored)
            if restored == prefix:
                session.run(assign)
            found = [session.run(model.export)]
            session.run(model.train, {model.keys: [1, 2, 5, 1001]})
            results.append([*found, session.run(model.export)])
        for expected, found in zip(*results):
            for field in ("keys", "values", "freqs", "versions"):
                assert getattr(found, field).tolist() == getattr(expected, field).tolist(), field


def test_what_cannot_be_imported_is_refused_by_name(tmp_path):
    prefix, _ = Trained().save(tmp_path / "model.ckpt", [[1, 1]])
    vectors = Vectors(np.array([1]), np.ones([1, DIM], np.float32))
    wide = Vectors(np.array([1]), np.ones([1, 3], np.float32))
    with pytest.raises(FileExistsError, match="output must be a prefix of files that do not exist"):
        import_rows(vectors, "t", prefix)
    for rows, table, message in (
        (vectors, "u", r"table must be one of \['t'\] of .*, got 'u'"),
        (wide, "t", "vectors must be of length 2, the dimension of table 't', got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            import_rows(rows, table, str(tmp_path / "new.ckpt"), checkpoint=prefix)


def test_commands_export_what_they_import(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["red", "dark\tblue", "green"]
    (tmp_path / "words.txt").write_text("\n".join(words[:2]) + "\n")
    with open("words.vec", "w") as file:
        file.writelines(f"{word} {i} 0.5\n" for i, word in enumerate(words))
    imported = ["import", "words.vec", "--table", "word", "--output", "w/model.ckpt"]
    assert command.main(imported) == 0 and command.main(imported) == 2
    assert "output must be a prefix of files that do not exist" in capsys.readouterr().err
    export = ["export", "w/model.ckpt", "--table", "word", "--vocabulary", "words.txt", "--output"]
    for output in ("out.npy", "out.parquet", "projector"):
        assert command.main([*export, output]) == 0
        assert capsys.readouterr().out == "word: 3 rows of 2 numbers, 2 with a string\n"
    expected = dict(zip(hash_strings(np.array(words)).tolist(), ([0, 0.5], [1, 0.5], [2, 0.5])))
    for output in ("out.npy", "out.parquet"):
        keys, rows = read_vectors(output)
        assert dict(zip(keys.tolist(), rows.tolist())) == expected
    table = pyarrow.parquet.read_table("out.parquet").to_pydict()
    strings = dict(zip(table["key"], table["string"]))
    assert set(strings.values()) == {*words[:2], None}
    names = (tmp_path / "projector/metadata.tsv").read_text().splitlines()
    tensors = np.loadtxt("projector/tensors.tsv", delimiter="\t")
    assert names[0] == "name\tcount" and len(names) == 1 + len(tensors)
    assert "dark blue\t0" in names and tensors[names.index("red\t0") - 1].tolist() == [0, 0.5]
    assert "tensors.tsv" in (tmp_path / "projector/projector_config.pbtxt").read_text()
    assert command.main([*export, "out.npy", "--table", "none"]) == 2


@VALUE_DTYPES
def test_export_takes_the_most_frequent_rows_and_refuses_deltas(tmp_path, capsys, value_dtype):
    model = Trained(2, value_dtype)
    prefix, trained = model.save(tmp_path / "model.ckpt", [[1, 1], [2, 2, 2], [3, 3]])
    output = str(tmp_path / "out.npy")
    command.main(["export", prefix, "--table", "t", "--output", output, "--most_frequent", "2"])
    keys, rows = read_vectors(output)
    assert keys.tolist() == [2, 1]
    by_key = dict(zip(trained.keys, trained.values.tolist()))
    assert rows.tolist() == [by_key[2], by_key[1]]
    saver = rec.Saver(incremental=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "a.ckpt"))
        session.run(model.train, {model.keys: [1, 1]})
        delta = saver.save(session, str(tmp_path / "b.ckpt"))
    assert command.main(["export", delta, "--table", "t", "--output", output]) == 2
    assert "checkpoint must be a full one" in capsys.readouterr().err


NOW, DAY = 1_700_000_000, 86_400


def table_with_time_evict(keys, time):
    del time  # The rule finds it by its name.
    rule = rec.TimeEvict(30 * DAY, timestamp="time")
    option = rec.EmbeddingVariableOption(evict_option=rule)
    table = rec.get_embedding_variable("t", DIM, ev_option=option)
    return table, rec.embedding_lookup(table, keys)


def table_of_rec_sdk(keys, time):
    tf.add_to_collection(rec.ASCEND_TIMESTAMP, time)
    table = rec.create_table(tf.int64, DIM, "t", tf.ones_initializer(), device_vocabulary_size=99)
    thresholds = {"access_threshold": 0, "eviction_threshold": 30 * DAY, "faae_coefficient": 1}
    config = {"access_and_evict_config": thresholds}
    return table, rec.sparse_lookup(table, keys, modify_graph=True, **config)


class Timed:
    """A table whose versions are times, with a step that trains keys at a time."""

    def __init__(self, make_table):
        self.keys = tf.placeholder(tf.int64, [None])
        self.time = tf.placeholder(tf.int64, [], name="time")
        self.table, values = make_table(self.keys, self.time)
        self.train = rec.optimizers.AdagradOptimizer(0.5).minimize(
            tf.reduce_sum(values), tf.train.get_or_create_global_step()
        )
        self.assign = self.table.assign([7, 8], np.ones([2, DIM]))
        self.evict, self.export = self.table.evict(), self.table.export()

    def versions(self, session):
        rows = session.run(self.export)
        return dict(zip(rows.keys.tolist(), rows.versions.tolist()))


@pytest.mark.parametrize("make_table", [table_with_time_evict, table_of_rec_sdk])
def test_imported_rows_of_a_table_with_times_have_the_time_as_assigned_ones(make_table, tmp_path):
    model, saver, copy = Timed(make_table), rec.Saver(), str(tmp_path / "copy.ckpt")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(3):
            session.run(model.train, {model.keys: [1, 2], model.time: NOW + step})
        prefix = saver.save(session, str(tmp_path / "model.ckpt"))
        session.run(model.assign)
        assigned = model.versions(session)
        import_rows(Vectors(np.array([7, 8]), np.ones([2, DIM], np.float32)), "t", copy, prefix)
        saver.restore(session, copy)
        assert model.versions(session) == assigned == dict.fromkeys([1, 2, 7, 8], NOW + 2)
        session.run(model.train, {model.keys: [1], model.time: NOW + 3})
        saver.save(session, str(tmp_path / "next.ckpt"))
        assert sorted(model.versions(session)) == [1, 2, 7, 8]
        session.run(model.evict)
        assert sorted(model.versions(session)) == [1, 2, 7, 8]


@pytest.mark.parametrize("make_table", [table_with_time_evict, table_of_rec_sdk])
def test_rows_that_are_written_before_the_first_step_age_from_the_first_eviction(
    make_table, tmp_path
):
    model, saver, copy = Timed(make_table), rec.Saver(), str(tmp_path / "copy.ckpt")
    rows = Vectors(np.array([7, 8]), np.ones([2, DIM], np.float32))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        import_rows(rows, "t", copy, saver.save(session, str(tmp_path / "model.ckpt")))
        for write in (lambda: session.run(model.assign), lambda: saver.restore(session, copy)):
            session.run(tf.global_variables_initializer())
            write()
            assert model.versions(session) == {7: -1, 8: -1}
            session.run(model.train, {model.keys: [1], model.time: NOW})
            session.run(model.evict)
            assert model.versions(session) == dict.fromkeys([1, 7, 8], NOW)


def rewritten(folder, prefix, change):
    """A copy of a checkpoint with other tensors."""
    reader = tf.train.load_checkpoint(prefix)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    change(tensors)
    return stored_checkpoints.write(folder / "changed.ckpt", tensors)


def test_rows_of_an_export_and_unknown_tensors_of_rows_are_refused(tmp_path):
    prefix, _ = Trained().save(tmp_path / "model.ckpt", [[1, 1, 2, 2]])
    rows = Vectors(np.array([1, 9]), np.ones([2, DIM], np.float32))

    def quantize(tensors):
        tensors["t-values"] = tensors["t-values"].astype(np.uint8)
        tensors["t-scale_offset"] = np.ones([len(tensors["t-keys"]), 2], np.float32)

    changes = {
        "table 't' has rows of 8 bits in .* import into the training checkpoint": quantize,
        "tensor 't-color' of .* is unknown, and may belong to the rows of 't'": (
            lambda tensors: tensors.update({"t-color": np.ones([2, 3])})
        ),
        "tensor 't/Adagrad-color' of .* is unknown": (
            lambda tensors: tensors.update({"t/Adagrad-color": np.ones([2])})
        ),
    }
    for message, change in changes.items():
        changed = rewritten(tmp_path, prefix, change)
        with pytest.raises(ValueError, match=message):
            import_rows(rows, "t", str(tmp_path / "new" / "model.ckpt"), changed)
    assert not (tmp_path / "new").exists()
    # Variables that only have a similar name are copied.
    similar = {"t-2-keys": np.ones([2]), "t-bias": np.ones([3]), "t/Adagrad-x": np.ones([])}
    changed = rewritten(tmp_path, prefix, lambda tensors: tensors.update(similar))
    import_rows(rows, "t", str(tmp_path / "copy.ckpt"), changed)
    assert set(similar) <= set(dict(tf.train.list_variables(str(tmp_path / "copy.ckpt"))))


def test_counts_and_versions_that_deeprec_has_not_recorded_stay_empty(tmp_path):
    prefix, _ = Trained().save(tmp_path / "model.ckpt", [[1, 1, 2, 2, 3]])

    def forget(tensors):
        for name in ("t-freqs", "t-versions", "t-freqs_filtered", "t-versions_filtered"):
            tensors[name] = np.zeros([0], np.int64)

    rows, copy = Vectors(np.array([1, 3]), np.ones([2, DIM], np.float32)), str(tmp_path / "copy")
    import_rows(rows, "t", copy, rewritten(tmp_path, prefix, forget))
    reader = tf.train.load_checkpoint(copy)
    assert reader.get_tensor("t-keys").tolist() == [1, 2, 3]
    assert len(reader.get_tensor("t-keys_filtered")) == len(reader.get_tensor("t-freqs")) == 0


@pytest.mark.parametrize(
    "dtype, lost, kept",
    [
        (tf.float16, 65_520.0, 65_519.0),
        (tf.bfloat16, np.finfo(np.float32).max, 3.389e38),
    ],
)
def test_numbers_that_the_type_of_the_table_lacks_are_refused(dtype, lost, kept, tmp_path):
    rec.get_embedding_variable("t", DIM, value_dtype=dtype)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        prefix = rec.Saver().save(session, str(tmp_path / "model.ckpt"))
    rows = Vectors(np.array([5, 6]), np.array([[1, 2], [3, -lost]], np.float32))
    output = tmp_path / "new" / "model.ckpt"
    with pytest.raises(ValueError, match=f"finite in {dtype.name}.* of key 6; choose float32"):
        import_rows(rows, "t", str(output), prefix)
    assert not output.parent.exists()
    rows.rows[1, 1] = kept
    import_rows(rows, "t", str(output), prefix)
    assert np.isfinite(
        tf.train.load_checkpoint(str(output)).get_tensor("t-values").astype(np.float32)
    ).all()


def test_arguments_that_would_write_nothing_of_use_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.vec").write_text("red 1 0.5\nblue 2 0.5\n")
    (tmp_path / "empty.vec").write_text("")
    assert command.main(["import", "words.vec", "--table", "t", "--output", "a.ckpt"]) == 0
    files = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["import", "empty.vec", "--table", "t", "--output", "b"], "must have at least one vector"),
        (["import", "words.vec", "--table", "bad name!", "--output", "b"], "table must be a name"),
        (["import", "words.vec", "--table", "t", "--output", ""], "output must be a prefix"),
        (["import", "words.vec", "--table", "t", "--output", "b/"], "output must be a prefix"),
        (["export", "a.ckpt", "--table", "t", "--output", "b.npy", "--most_frequent", "-1"], "-1"),
        (["export", "a.ckpt", "--table", "t", "--output", "b.npy", "--most_frequent", "0"], "0"),
    ):
        assert command.main(arguments) == 2
        assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == files
    with pytest.raises(ValueError, match="vectors must have at least one key"):
        import_rows(Vectors(np.zeros([0], np.int64), np.zeros([0, DIM])), "t", "b.ckpt")
