# SPDX-License-Identifier: Apache-2.0
"""A training on a cluster publishes: the chief writes what all ps have."""

import os

import cluster_jobs
import numpy as np
import pytest
from cluster_scenarios import published_estimator, published_receiver_fn

import rec_estimator as rec

KEYS = np.unique([cluster_jobs.keys_of(0), cluster_jobs.keys_of(1)])


@pytest.mark.long
def test_the_chief_publishes_the_rows_of_all_ps(tmp_path, resource_variables):
    assert cluster_jobs.run("publishing", tmp_path) == [0, 0]
    published = str(tmp_path / "published")
    manifest = rec.serving.read_manifest(published)
    assert len(manifest["deltas"]) >= 2
    with rec.serving.load_predictor(os.path.join(published, manifest["base"])) as predict:
        for delta in manifest["deltas"]:
            assert predict.refresh(delta["name"]).step == delta["step"]
        got = predict({"keys": KEYS})["scores"]
    estimator = published_estimator(tmp_path)
    fresh = estimator.export_saved_model(
        str(tmp_path / "fresh"),
        published_receiver_fn,
        checkpoint_path=os.path.join(estimator.model_dir, manifest["deltas"][-1]["name"]),
    )
    with rec.serving.load_predictor(fresh.decode()) as predict:
        np.testing.assert_array_equal(got, predict({"keys": KEYS})["scores"])
