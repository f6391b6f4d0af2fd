# SPDX-License-Identifier: Apache-2.0
"""Refreshable models over time, and in TensorFlow 2."""

import contextlib
import json
import os
import textwrap
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import run
from stored_checkpoints import in_bucket_order
from tensorflow.core.framework.versions_pb2 import VersionDef
from test_refresh import Served, checkpoint, numbers, receiver_fn, rows

import rec_estimator as rec
from rec_estimator.checkpoint.files import identity_of
from rec_estimator.checkpoint.format.bundle import NewBundle

DIM = 4


def model_fn(features, labels, mode, params):
    table = rec.get_embedding_variable("whole", DIM)
    scores = rec.embedding_lookup(table, features["ids"]) * tf.get_variable("dense", [DIM])
    return rec.EstimatorSpec(mode, predictions={"scores": scores})


def export(folder, base):
    estimator = rec.RecEstimator(model_fn, str(folder / "model"), params={})
    return estimator.export_saved_model(
        str(folder / "export"),
        receiver_fn,
        checkpoint_path=base,
        refreshable=True,
        refresh_folder=str(folder),
    ).decode()


PROGRAM = textwrap.dedent(
    """
    import json, sys
    import tensorflow as tf
    import rec_estimator as rec

    model, other = (tf.saved_model.load(sys.argv[1]) for _ in range(2))

    def scores(model):
        ids = tf.constant([1, 5, 20], tf.int64)
        return model.signatures["serving_default"](ids=ids)["scores"][:, 0].numpy().tolist()

    refresh = model.signatures["refresh"]
    before = scores(model)
    result = refresh(delta=tf.constant("model-2"))
    try:
        refresh(delta=tf.constant("model-2"))
    except tf.errors.AlreadyExistsError as error:
        again = "is in the model already" in str(error)
    print(json.dumps([before, int(result["step"]), scores(model), again, scores(other)]))
    """
)


@pytest.mark.long
def test_a_model_that_tensorflow_2_loads_is_refreshed_alone(tmp_path):
    base = checkpoint(tmp_path / "model-1", 1, {"whole": rows([1, 5, 20], 1.0)}, dense=1.0)
    checkpoint(tmp_path / "model-2", 2, {"whole": rows([5], 2.0)}, base, [20], dense=3.0)
    done = run(["-c", PROGRAM, export(tmp_path, base)])
    before, step, after, again, other = json.loads(done.stdout.splitlines()[-1])
    assert before == other == [1.0, 1.0, 1.0]
    # 7 is what the bank of these checkpoints holds.
    assert (step, after, again) == (2, [3.0, 6.0, 21.0], True)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def requests_all_the_time(served, ids):
    """Requests, each of which keeps what refreshes replace while it runs."""
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            served.predict(ids)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [False, True])
def test_memory_of_a_thousand_refreshes_of_one_percent_is_level(tmp_path, is_asked):
    count, changed = 100_000, 1000
    rng = np.random.default_rng(0)
    base = checkpoint(tmp_path / "model-1", 1, {"whole": rows(range(count), 1.0)}, dense=1.0)
    served = Served(export(tmp_path, base))
    alive, parent, sizes = np.arange(count), base, []
    asked = requests_all_the_time(served, alive) if is_asked else contextlib.nullcontext()
    with asked:
        for step in range(2, 1002):
            # As many keys are new as are deleted.
            keys = rng.choice(alive, changed, replace=False)
            erased, fresh = keys[:50], np.arange(50) + count + 50 * step
            written = in_bucket_order(np.concatenate([keys[50:], fresh]))
            alive = np.concatenate([np.setdiff1d(alive, erased), fresh])
            prefix = str(tmp_path / f"model-{step}")
            with NewBundle(prefix, VersionDef(producer=1)) as delta:
                delta.add_array("whole-keys", written)
                delta.add_array("whole-values", np.full([changed, DIM], step, np.float32))
                delta.add_array("whole-keys_erased", erased)
                delta.add_string("whole-delta_of", os.path.basename(parent))
                delta.add_string("whole-delta_of_index", identity_of(parent))
                delta.add_array("dense", np.full([DIM], 1, np.float32))
                delta.add_array("global_step", np.array(step))
            assert numbers(served.refresh(prefix)) == [step, changed, 50, 2]
            for suffix in (".index", ".data-00000-of-00001"):
                if parent != base:
                    os.remove(parent + suffix)
            parent = prefix
            if step % 100 == 0:
                sizes.append(resident())
    served.session.close()
    # 100,000 rows take about 5 MB.
    assert max(sizes[2:]) - sizes[1] < 1 << 20, sizes
