# SPDX-License-Identifier: Apache-2.0
"""Exports with row_dtype=: rows of 16 and 8 bits, what reads them, and the report."""

import json
import os

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import predict
from storage_runs import on_disk
from stored_checkpoints import write

import rec_estimator as rec
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.checkpoint.format.quantized_rows import dequantize, quantize
from rec_estimator.table.row_dtype import exporting_rows_as
from rec_estimator.tools.export_rows import read_rows

DIM = 5
ROW_DTYPES = pytest.mark.parametrize("row_dtype", ["int8", "float16", "bfloat16"])
STORED = {"int8": tf.uint8, "float16": tf.float16, "bfloat16": tf.bfloat16}


def model_fn(features, labels, mode):
    ids = features["ids"]
    sparse = tf.sparse.from_dense(ids)
    weights = sparse.with_values(tf.cast(sparse.values, tf.float32) / 7.0)
    no_permission = rec.InitializerOption(default_value_no_permission=0.25)
    whole = rec.get_embedding_variable("whole", DIM, key_dtype=tf.int64)
    parts = rec.get_embedding_variable("parts", 1, partitioner=tf.fixed_size_partitioner(3))
    rare = rec.get_embedding_variable(
        "rare",
        DIM,
        ev_option=rec.EmbeddingVariableOption(
            init_option=no_permission, filter_option=rec.CounterFilter(3)
        ),
    )
    outputs = {
        "whole": rec.embedding_lookup(whole, ids, max_norm=1.5),
        "parts": rec.embedding_lookup(parts, ids),
        "rare": rec.embedding_lookup(rare, ids),
        "mean": rec.embedding_lookup_sparse(whole, sparse, combiner="mean"),
        "weighted": rec.embedding_lookup_sparse(parts, sparse, weights, combiner="sqrtn"),
    }
    outputs["score"] = tf.add_n(
        [tf.reduce_sum(each, axis=-1) for each in (outputs["mean"], outputs["weighted"])]
    )
    loss = tf.add_n([tf.reduce_sum(tf.square(each)) for each in outputs.values()])
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return rec.EstimatorSpec(mode, predictions=outputs, loss=loss, train_op=train_op)


TABLES = ("whole", "parts", "rare")
IDS = np.array([[1, 2, 3], [-7, 2**60, 2], [4, 1, 99], [98, 1, 1]], np.int64)


def receiver_fn():
    ids = {"ids": tf.placeholder(tf.int64, [None, 3], name="ids")}
    return rec.ServingInputReceiver(ids, ids)


def input_fn():
    return tf.data.Dataset.from_tensors({"ids": IDS[:3]}).repeat()


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    config = rec.RunConfig(
        tf_random_seed=3, save_checkpoints_steps=2, save_incremental_checkpoints_steps=1
    )
    made = rec.RecEstimator(model_fn, str(tmp_path_factory.mktemp("model")), config)
    made.train(input_fn, steps=3)
    return made


def exported(estimator, folder, **arguments):
    return estimator.export_saved_model(str(folder), receiver_fn, **arguments).decode()


def rounded(rows, row_dtype):
    """Rows after they were stored in fewer bits, by the oracle."""
    if row_dtype == "int8":
        return np.array([oracle.dequantize(*oracle.quantize(row)) for row in rows], np.float32)
    return rows.astype(STORED[row_dtype].as_numpy_dtype).astype(np.float32)


def variables_of(folder):
    return os.path.join(folder, "variables", "variables")


def outputs_of(folder):
    return predict(folder, {"ids": IDS}, "serving_default")


@pytest.fixture(scope="module")
def rounded_models(estimator, tmp_path_factory):
    """By row_dtype, an export with rows of float32 that are rounded before."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(estimator.model_dir))
    wide = exported(estimator, tmp_path_factory.mktemp("wide"))
    reader = tf.train.load_checkpoint(variables_of(wide))
    made = {}
    for row_dtype in STORED:
        tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        for name, array in tensors.items():
            if name.endswith(("-values", "/default_values")):
                tensors[name] = rounded(array, row_dtype).reshape(array.shape)
        folder = tmp_path_factory.mktemp(row_dtype)
        prefix = write(folder / "model", tensors)
        made[row_dtype] = exported(estimator, folder / "export", checkpoint_path=prefix)
    return made


def assert_same_outputs(one, other):
    expected, got = outputs_of(one), outputs_of(other)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


# ------------------------------------------------------------------ rows


def test_rows_of_8_bits_have_the_bits_of_the_oracle():
    random = np.random.RandomState(0)
    rows = random.randn(300, 7).astype(np.float32) * np.exp2(random.randint(-40, 40, [300, 1]))
    rows += (random.randn(300, 1) * np.exp2(random.randint(-40, 40, [300, 1]))).astype(np.float32)
    rows[:2] = [[0], [0.1]]
    rows = rows.astype(np.float32)
    stored, scale_offset = quantize(rows)
    for row, got, (scale, offset) in zip(rows, stored, scale_offset):
        expected = oracle.quantize(row)
        np.testing.assert_array_equal(got, expected[0])
        assert (scale, offset) == expected[1:]
    read = dequantize(stored, scale_offset)
    again = quantize(read)
    np.testing.assert_array_equal(again[0], stored)
    np.testing.assert_array_equal(again[1], scale_offset)


def test_a_row_that_bytes_cannot_hold_is_nan():
    rows = np.array([[1, np.nan], [np.inf, 1], [-2e38, 2e38], [1, 2]], np.float32)
    read = dequantize(*quantize(rows))
    assert np.isnan(read[:3]).all()
    assert np.isfinite(read[3]).all()


# ------------------------------------------------------------------ exports


@pytest.mark.long
@ROW_DTYPES
def test_an_export_equals_one_of_rounded_rows(row_dtype, estimator, rounded_models, tmp_path):
    folder = exported(estimator, tmp_path, row_dtype=row_dtype)
    assert_same_outputs(rounded_models[row_dtype], folder)
    wide = tf.train.load_checkpoint(variables_of(rounded_models[row_dtype]))
    narrow = tf.train.load_checkpoint(variables_of(folder))
    for table in ("whole", "parts/part_1", "rare"):
        values = wide.get_tensor(f"{table}-values")
        assert narrow.get_variable_to_dtype_map()[f"{table}-values"] == STORED[row_dtype]
        stored = narrow.get_tensor(f"{table}-values")
        if row_dtype == "int8":
            scale_offset = narrow.get_tensor(f"{table}-scale_offset")
            stored = scale_offset[:, 1:] + scale_offset[:, :1] * stored.astype(np.float32)
        np.testing.assert_array_equal(stored.astype(np.float32), values)


@pytest.mark.long
@ROW_DTYPES
def test_a_portable_export_has_the_bits_of_the_native_one(row_dtype, estimator, tmp_path):
    native, portable = (
        exported(estimator, tmp_path / str(is_portable), row_dtype=row_dtype, portable=is_portable)
        for is_portable in (False, True)
    )
    expected, got = outputs_of(native), outputs_of(portable)
    for name in ("parts", "rare", "whole"):
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    for name in ("mean", "weighted"):  # TensorFlow combines in another order.
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    stored = tf.train.load_checkpoint(variables_of(portable)).get_variable_to_dtype_map()
    assert stored["whole/stock/rows"] == STORED[row_dtype]


@pytest.mark.long
def test_a_report_says_what_the_rows_save_and_change(estimator, tmp_path):
    labels = [0, 1, 1, 0]
    sample = rec.export.RowSample({"ids": IDS}, labels, output="score")
    narrow = exported(estimator, tmp_path / "narrow", row_dtype="int8", row_sample=sample)
    assert os.listdir(tmp_path / "narrow") == [os.path.basename(narrow)]
    wide = exported(estimator, tmp_path / "wide")
    with open(os.path.join(narrow, "assets.extra", "row_report.json")) as file:
        report = json.load(file)
    rows = {table: len(CheckpointTable(variables_of(wide), table)) for table in TABLES}
    widths = {"whole": DIM, "parts": 1, "rare": DIM}
    assert report["row_bytes_before"] == sum(4 * rows[name] * widths[name] for name in TABLES)
    after = sum(rows[name] * (widths[name] + 8) for name in TABLES)
    assert report["row_bytes_after"] == after
    assert (report["row_dtype"], report["examples"]) == ("int8", len(IDS))
    before, after = outputs_of(wide), outputs_of(narrow)
    for name, change in report["outputs"].items():
        difference = np.abs(after[name].astype(np.float64) - before[name])
        assert change == {
            "largest_change": difference.max(),
            "mean_change": pytest.approx(difference.mean()),
        }
    assert set(report["outputs"]) == set(before)
    for when, outputs in (("before", before), ("after", after)):
        ones, zeros = (outputs["score"][np.equal(labels, label)] for label in (1, 0))
        pairs = np.subtract.outer(ones, zeros)
        area = np.mean((pairs > 0) + 0.5 * (pairs == 0))
        assert report[f"auc_{when}"] == pytest.approx(area)


def one_table(value_dtype=None, ev_option=None, **options):
    """A model with one table, which reads nothing else."""

    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable("t", 2, value_dtype=value_dtype, ev_option=ev_option)
        vectors = rec.embedding_lookup(table, features["ids"])
        return rec.EstimatorSpec(mode, predictions={"vectors": vectors}, **options)

    return model_fn


def model_of(folder, rows, make=one_table):
    """An Estimator with a checkpoint of these rows."""
    tensors = {
        "t-keys": np.arange(len(rows), dtype=np.int64),
        "t-values": np.array(rows, np.float32),
        "t/default_values": np.zeros([4096, 2], np.float32),
        "global_step": np.int64(1),
    }
    prefix = write(folder / "model.ckpt-1", tensors)
    tf.train.update_checkpoint_state(str(folder), prefix)
    return rec.RecEstimator(make(), str(folder))


@pytest.mark.parametrize(
    ("row_dtype", "row", "message"),
    [
        (
            "int8",
            [1.0, np.nan],
            "saved in 8 bits, got 1 row that is not: NaN in the value of key 1",
        ),
        ("int8", [-2e38, 2e38], "finite in 8 bits, .* got -2e.38 of key 1; choose float32"),
        ("float16", [1.0, -7e4], "finite in float16, .* got -70000 of key 1; choose float32"),
        ("bfloat16", [np.inf, 0.0], "Inf in the value of key 1"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row_dtype, row, message, tmp_path):
    estimator = model_of(tmp_path, [[1, 2], row])
    with pytest.raises(tf.errors.DataLossError, match=message):
        exported(estimator, tmp_path / "export", row_dtype=row_dtype)
    assert not tf.io.gfile.listdir(str(tmp_path / "export"))


def test_rows_that_were_trained_in_16_bits_are_exported_in_8(tmp_path):
    rows = np.array([[0.5, -3], [1, 2]], np.float32)
    estimator = model_of(tmp_path, rows, lambda: one_table(tf.bfloat16))
    exporter = rec.LatestExporter("latest", receiver_fn, row_dtype="int8")
    prefix = tf.train.latest_checkpoint(estimator.model_dir)
    folder = exporter.export(estimator, str(tmp_path / "export"), prefix, {}, False).decode()
    got = predict(folder, {"ids": IDS[:1] % 2}, "serving_default")["vectors"]
    np.testing.assert_array_equal(got, rounded(rows, "int8")[IDS[:1] % 2])
    # What reads a checkpoint reads the bytes of an export, too.
    stored = read_rows(variables_of(folder), "t")
    np.testing.assert_array_equal(stored.rows, rounded(rows, "int8"))


@pytest.mark.parametrize("row_dtype", ["int8", "bfloat16"])
def test_rows_of_fewer_bits_are_read_from_disk(row_dtype, tmp_path):
    rows = np.random.RandomState(0).randn(3000, 2).astype(np.float32)
    option = rec.EmbeddingVariableOption(storage_option=on_disk(tmp_path / "rows"))
    estimator = model_of(tmp_path, rows, lambda: one_table(ev_option=option))
    folder = exported(estimator, tmp_path / "export", row_dtype=row_dtype)
    ids = np.random.RandomState(1).randint(0, 3000, [500, 3])
    got = predict(folder, {"ids": ids}, "serving_default")["vectors"]
    np.testing.assert_array_equal(got, rounded(rows, row_dtype)[ids])


def test_rows_of_an_export_are_not_trained():
    with exporting_rows_as(tf.uint8):
        table = rec.get_embedding_variable("t", 2)
        assert rec.get_embedding_variable("t", 2) is table
        keys = tf.constant([1], tf.int64)
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.FailedPreconditionError, match="table t has rows of 8 bits"):
            session.run(train)


def test_wrong_arguments_are_refused(tmp_path):
    estimator = model_of(tmp_path, [[1, 2]])
    for message, arguments in (
        (
            "row_dtype must be 'int8', 'float16', 'bfloat16' or None, got 'int4'",
            {"row_dtype": "int4"},
        ),
        ("row_sample must be None without row_dtype", {"row_sample": rec.export.RowSample({})}),
    ):
        with pytest.raises(ValueError, match=message):
            exported(estimator, tmp_path / "export", **arguments)
    with pytest.raises(TypeError, match="RecEstimator with row_dtype='int8'"):
        rec.LatestExporter("a", receiver_fn, row_dtype="int8").export(
            object(), str(tmp_path), None, {}, False
        )


def test_a_row_of_an_export_has_at_most_2048_elements():
    with exporting_rows_as(tf.uint8):
        with pytest.raises(ValueError, match="dim must be <= 2048 with row_dtype=uint8, got 2049"):
            rec.get_embedding_variable("t", 2049)


def test_a_saver_of_the_model_is_refused(tmp_path):
    def make():
        return lambda features, labels, mode: one_table(
            scaffold=tf.train.Scaffold(saver=tf.train.Saver(allow_empty=True, defer_build=True))
        )(features, labels, mode)

    with pytest.raises(ValueError, match="must leave the Saver to RecEstimator with row_dtype"):
        exported(model_of(tmp_path, [[1, 2]], make), tmp_path / "export", row_dtype="bfloat16")


# ------------------------------------------------------------------ checkpoints of exports


def bytes_of_rows(**changes):
    """The tensors of a table with rows of 8 bits."""
    tensors = {
        "t-keys": np.array([0, 1]),
        "t-values": np.array([[0, 255], [7, 0]], np.uint8),
        "t-scale_offset": np.array([[0.5, -1], [0, 3]], np.float32),
        **changes,
    }
    return {name: array for name, array in tensors.items() if array is not None}


def restored(prefix, value_dtype=None):
    """What keys 0 and 1 read after a restore."""
    table = rec.get_embedding_variable("t", 2, value_dtype=value_dtype)
    vectors = rec.embedding_lookup(table, tf.constant([0, 1], tf.int64))
    with tf.Session() as session:
        rec.Saver([table]).restore(session, prefix)
        return session.run(vectors)


@pytest.mark.parametrize("value_dtype", [tf.float32, tf.bfloat16])
def test_rows_of_8_bits_restore_into_a_table_of_another_type(value_dtype, tmp_path):
    got = restored(write(tmp_path / "model", bytes_of_rows()), value_dtype)
    np.testing.assert_array_equal(got, [[-1, 126.5], [3, 3]])


@pytest.mark.parametrize(
    ("scale_offset", "error", "message"),
    [
        (np.zeros([3, 2], np.float32), tf.errors.DataLossError, r"of 2 rows, got shape \[3,2\]"),
        (np.zeros([2, 1], np.float32), tf.errors.DataLossError, r"of 2 rows, got shape \[2,1\]"),
        (np.zeros([2], np.float32), tf.errors.InvalidArgumentError, "must be of rank 2"),
        (np.zeros([2, 2], np.int32), tf.errors.InvalidArgumentError, "must be float, got int32"),
        (None, tf.errors.InvalidArgumentError, "t-values of .* must be float, got uint8"),
    ],
)
def test_scales_that_do_not_fit_the_bytes_are_refused(scale_offset, error, message, tmp_path):
    prefix = write(tmp_path / "model", bytes_of_rows(**{"t-scale_offset": scale_offset}))
    with pytest.raises(error, match=message):
        restored(prefix)
