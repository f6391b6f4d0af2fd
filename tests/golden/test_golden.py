# SPDX-License-Identifier: Apache-2.0
"""What one release of TensorFlow wrote, the others load: files of the oldest and the newest one."""

import pathlib

import golden_models
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import rec_estimator as rec

HERE = pathlib.Path(__file__).parent
FOLDERS = sorted(HERE.glob("[2-9].*"))
EXPORTS = [path.parent for path in sorted(HERE.glob("[2-9].*/**/predictions.npz"))]

# float32 numbers agree to 6 digits: the kernels of releases round in other orders.
DIGITS = dict(rtol=1e-6, atol=1e-6)


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    """The files that a release of TensorFlow wrote."""
    return request.param


def stored(folder, step):
    return dict(np.load(folder / "checkpoints" / f"contents-{step}.npz"))


def checkpoint_contents(prefix):
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_the_oldest_and_the_newest_release_have_files():
    assert [folder.name for folder in FOLDERS] == ["2.15", "2.21"]
    assert {*FOLDERS, FOLDERS[0] / "int8"} <= {*EXPORTS}


@pytest.mark.parametrize("saver", [rec.Saver, tf.train.Saver], ids=["ours", "stock"])
@pytest.mark.parametrize("step", golden_models.STEPS)
def test_checkpoints_and_deltas_hold_the_live_tables_bit_for_bit(folder, step, saver):
    with tf.Session() as session:
        tables = golden_models.Tables()
        saver().restore(session, str(folder / "checkpoints" / f"model.ckpt-{step}"))
        found = tables.contents(session)
    expected = stored(folder, step)
    assert found.keys() == expected.keys()
    different = [name for name in found if found[name].tobytes() != expected[name].tobytes()]
    assert not different
    assert all(len(expected[f"{name}-0-keys-0"]) > 3 for name in golden_models.FILTERS)


def test_training_goes_on_from_a_checkpoint_to_the_rows_of_the_release_that_wrote_it(folder):
    first, _, last = golden_models.STEPS
    with tf.Session() as session:
        tables = golden_models.Tables()
        rec.Saver().restore(session, str(folder / "checkpoints" / f"model.ckpt-{first}"))
        tables.train(session, first, last)
        found = tables.contents(session)
    expected = stored(folder, last)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, err_msg=name, **DIGITS)
    counts = "counter-0-freqs-0"
    assert expected[counts].sum() > stored(folder, first)[counts].sum()


def test_a_table_that_evicts_by_seconds_finds_the_unit_and_the_time_of_its_keys(folder):
    prefix = str(folder / "timed" / "model.ckpt")
    assert tf.train.load_checkpoint(prefix).get_tensor("timed-version_unit") == b"second"
    with tf.Session() as session:
        model = golden_models.TimedTable()
        rec.Saver().restore(session, prefix)
        assert session.run(model.versions).tolist() == list(golden_models.TRAINED_AT.values())
        session.run(model.evict)
        assert session.run(model.table.size()) == 1
        keys, rows = session.run(model.table.export())[:2]
    assert (keys.tolist(), rows.tolist()) == ([2], [[golden_models.VALUE] * 2])


def test_numbers_of_16_bits_are_read_and_trained_to_the_same_bits(folder, tmp_path):
    prefixes = [str(folder / "small" / "model.ckpt"), str(tmp_path / "read"), str(tmp_path / "new")]
    golden, read, new = prefixes
    with tf.Session() as session:
        model = golden_models.SmallTables()
        saver = rec.Saver()
        session.run(model.initialize)
        model.train(session)
        saver.save(session, new)
        session.run(model.initialize)
        saver.restore(session, golden)
        saver.save(session, read)
    contents, *others = map(checkpoint_contents, prefixes)
    for name, (value_dtype, slot_dtype) in golden_models.SMALL_DTYPES.items():
        assert contents[f"{name}-values"].dtype == value_dtype.as_numpy_dtype
        assert contents[f"{name}/Adagrad-values"].dtype == slot_dtype.as_numpy_dtype
    for other in others:
        assert other.keys() == contents.keys()
        assert all(other[name].tobytes() == contents[name].tobytes() for name in contents)


@pytest.mark.parametrize("form", ["saved_model", "portable"])
@pytest.mark.parametrize("exported", EXPORTS, ids=lambda folder: str(folder.relative_to(HERE)))
def test_saved_models_predict_what_the_release_that_wrote_them_predicted(exported, form):
    model = SavedModel.FromString((exported / form / "saved_model.pb").read_bytes())
    ops = {node.op for node in model.meta_graphs[0].graph_def.node}
    assert any("RecEstimator>" in op for op in ops) == (form == "saved_model")
    found = golden_models.predictions(exported / form)
    expected = np.load(exported / "predictions.npz")
    assert sorted(found) == sorted(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], **DIGITS)
    # Trained rows, rows of filtered keys and those of unknown keys differ.
    assert len(set(expected["logits"].tolist())) == len(expected["logits"])


@pytest.mark.long
def test_grouped_samples_are_read_as_they_were_written(folder):
    input_fn = rec.inputs.grouped_tfrecord_input_fn(
        str(folder / "grouped.tfrecord"),
        golden_models.GROUPED_USER,
        golden_models.GROUPED_ITEM,
        label_column="label",
    )
    (found,) = golden_models.batches(input_fn())
    expected = np.load(folder / "grouped.npz")
    assert len(found) == len(expected.files)
    for array, name in zip(found, expected.files):
        assert (array.dtype, array.tolist()) == (expected[name].dtype, expected[name].tolist())
