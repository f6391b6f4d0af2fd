# SPDX-License-Identifier: Apache-2.0
"""Writes the files of the installed TensorFlow's release, which test_golden.py reads on all.

    python tests/golden/write_golden.py [PART...]    # into tests/golden/<release>/, such as 2.15/

    checkpoints/      a whole checkpoint and two deltas, what the tables held at each of them
    timed/            a checkpoint of a table that evicts by seconds
    small/            a checkpoint of tables of values or slots of 16 bits
    saved_model/      an export of RecEstimator
    portable/         the same export with TensorFlow's own ops only
    predictions.npz   what the Estimator predicted for golden_models.REQUEST
    int8/             both exports of another Estimator with rows of 8 bits, and what they predict
    grouped.tfrecord  samples grouped by user
    grouped.npz       the same before they were written

PART is checkpoints, timed, small, exports, int8 or grouped; without it, all are written. The files
of a release are written again only if their model changes: they stand for those that users have.
"""

import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
sys.path.insert(0, str(ROOT))

import golden_models  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import rec_estimator as rec  # noqa: E402


def _empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _write_checkpoints(folder):
    folder = _empty(folder / "checkpoints")
    with tf.Graph().as_default(), tf.Session() as session:
        tables = golden_models.Tables()
        saver = rec.Saver(incremental=True)
        session.run(tables.initialize)
        for before, step in zip((0, *golden_models.STEPS), golden_models.STEPS):
            tables.train(session, before, step)
            prefix = str(folder / "model.ckpt")
            saver.save(session, prefix, global_step=step, write_meta_graph=False)
            np.savez_compressed(folder / f"contents-{step}.npz", **tables.contents(session))
    # It holds the path of this checkout.
    (folder / "checkpoint").unlink()


def _write_timed(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        table = golden_models.TimedTable()
        session.run(table.initialize)
        table.train(session)
        prefix = str(_empty(folder / "timed") / "model.ckpt")
        tf.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)


def _write_small(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        tables = golden_models.SmallTables()
        session.run(tables.initialize)
        tables.train(session)
        prefix = str(_empty(folder / "small") / "model.ckpt")
        rec.Saver().save(session, prefix, write_meta_graph=False, write_state=False)


def _write_exports(folder):
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = golden_models.estimator(model_dir)
        estimator.train(golden_models.training_data)

        def request():
            return tf.data.Dataset.from_tensors(golden_models.REQUEST)

        predictions = list(estimator.predict(request, yield_single_examples=False))
        np.savez_compressed(folder / "predictions.npz", **predictions[0])
        _export(estimator, folder)


def _write_int8(folder):
    folder = _empty(folder / "int8")
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = golden_models.estimator(model_dir, **golden_models.INT8_MODEL)
        estimator.train(golden_models.training_data)
        _export(estimator, folder, row_dtype="int8")
    predictions = golden_models.predictions(folder / "saved_model")
    np.savez_compressed(folder / "predictions.npz", **predictions)


def _export(estimator, folder, **arguments):
    for name, is_portable in (("saved_model", False), ("portable", True)):
        exported = estimator.export_saved_model(
            estimator.model_dir, golden_models.serving_input, portable=is_portable, **arguments
        )
        shutil.copytree(exported.decode(), _empty(folder / name), dirs_exist_ok=True)


def _write_grouped(folder):
    with tf.Graph().as_default():
        batches = golden_models.batches(golden_models.grouped_samples())
    (batch,) = batches
    np.savez_compressed(folder / "grouped.npz", *batch)
    rec.inputs.write_grouped_samples(
        golden_models.grouped_samples, folder / "grouped.tfrecord", list(golden_models.GROUPED_USER)
    )


PARTS = {
    "checkpoints": _write_checkpoints,
    "timed": _write_timed,
    "small": _write_small,
    "exports": _write_exports,
    "int8": _write_int8,
    "grouped": _write_grouped,
}


def main():
    """Writes the parts that the command names, or all, for the installed release."""
    folder = ROOT / "tests/golden" / ".".join(tf.__version__.split(".")[:2])
    folder.mkdir(exist_ok=True)
    for part in sys.argv[1:] or PARTS:
        PARTS[part](folder)


if __name__ == "__main__":
    main()
