# SPDX-License-Identifier: Apache-2.0
"""A publisher and a server that are killed at any moment: what is published is always whole."""

import json
import os
import random
import signal
import textwrap
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import ROOT, Process
from test_publishing import IDS, Trained, check_follows, in_tmp_path
from test_refresh import Served

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle

__all__ = ["in_tmp_path"]  # A fixture.

BEGIN = f"""
    import functools, os, sys
    sys.path += [{str(ROOT / "tests")!r}, {str(ROOT / "tests" / "serving")!r}]
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec
    from test_publishing import model_fn, receiver_fn

    folder, ready, prefixes = sys.argv[1], sys.argv[2], sys.argv[3:]
"""

# A new base, and all deltas again and again.
PUBLISHER = f"""
    {BEGIN}
    estimator = rec.RecEstimator(model_fn, os.path.dirname(prefixes[0]))
    export = functools.partial(
        estimator.export_saved_model, serving_input_receiver_fn=receiver_fn)
    open(ready, "w").close()
    while True:
        for prefix in prefixes:
            rec.serving.publish(prefix, folder, export)
"""

# All deltas of the base again and again.
SERVER = f"""
    {BEGIN}
    open(ready, "w").close()
    while True:
        manifest = rec.serving.read_manifest(folder)
        try:
            with rec.serving.load_predictor(os.path.join(folder, manifest["base"])) as predict:
                for delta in manifest["deltas"]:
                    predict.refresh(delta["name"])
        except (OSError, tf.errors.NotFoundError):
            pass  # The publisher has removed this base.
"""


class Killed:
    """A process that is killed at a random moment of its work."""

    def __init__(self, program, folder, ready, prefixes):
        self._process = Process(["-c", textwrap.dedent(program), folder, ready, *prefixes])
        self._ready = ready

    def kill_within(self, secs):
        end = time.monotonic() + 120
        while not self._ready.exists():
            assert time.monotonic() < end, "the process has not begun"
            time.sleep(0.01)
        time.sleep(random.uniform(0, secs))
        os.kill(self._process.pid, signal.SIGKILL)
        done = self._process.wait()
        assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]
        self._ready.unlink()


def check_whole(folder):
    """Checks that base and deltas of the manifest are there, undamaged; returns the manifest."""
    with open(os.path.join(folder, "manifest.json")) as file:
        manifest = json.load(file)
    base = os.path.join(folder, manifest["base"])
    assert tf.saved_model.contains_saved_model(base)
    Bundle(os.path.join(base, "variables", "variables")).check_files()
    for delta in manifest["deltas"]:
        Bundle(os.path.join(folder, "deltas", delta["name"])).check_files()
    return manifest


@pytest.mark.long
def test_what_is_published_stays_whole_when_publisher_and_server_are_killed(tmp_path):
    trained = Trained(tmp_path, str(tmp_path / "published"), steps=20)
    steps = [trained.manifest["step"], *(each["step"] for each in trained.manifest["deltas"])]
    prefixes = [trained.prefix(step) for step in steps]
    begun = time.monotonic()
    rec.serving.publish(prefixes[0], trained.published, trained.export)
    secs = time.monotonic() - begun  # For a base, which is most of the work.
    found = set()
    for killed in range(30):
        if killed >= 6 and len(found) > 1:
            break
        publisher = Killed(PUBLISHER, trained.published, tmp_path / "publisher", prefixes)
        server = Killed(SERVER, trained.published, tmp_path / "server", [])
        publisher.kill_within(4 * secs)
        server.kill_within(secs)
        manifest = check_whole(trained.published)
        found.add((manifest["base"], len(manifest["deltas"])))
    assert len(found) > 1, "no publisher came to publish anything"
    last = rec.serving.publish(prefixes[-1], trained.published, trained.export)
    assert last["deltas"][-1]["step"] == steps[-1]
    check_follows(trained, steps[-1])
    served = Served(os.path.join(trained.published, last["base"]))
    assert np.isfinite(served.predict(IDS)["scores"]).all()
    served.session.close()
