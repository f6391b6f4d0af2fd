# SPDX-License-Identifier: Apache-2.0
"""rec-estimator import and export: files of vectors to checkpoints and back."""

import numpy as np
import pyarrow.parquet
import pytest
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
    with pytest.raises(FileExistsError, match="output must not exist"):
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
    assert "output must not exist" in capsys.readouterr().err
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
