# SPDX-License-Identifier: Apache-2.0
"""The command that trains on a cluster, and what follows the validations of its evaluator."""

import cluster_jobs
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import data
from model_zoo.runner import config, distributed, record

SCHEMA = """
files: clicks.csv
format: csv
columns: {user: {role: user}, item: {role: item}}
labels: click
split: {by: fraction, test: 0.2}
"""


@pytest.mark.long
def test_the_command_trains_a_csv_without_validation_rows_in_every_task(tmp_path):
    rows = "".join(f"u{i % 7},i{i % 11},{i % 2}\n" for i in range(400))
    (tmp_path / "clicks.csv").write_text(f"user,item,click\n{rows}")
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    assert cluster_jobs.run("zoo", tmp_path, seconds=200) == [0, 0, 0]
    found = record.read(str(tmp_path / "model"))
    assert found["status"] == "done" and 0 < found["metrics"]["test"]["auc"] <= 1
    training = data.load(tmp_path / "schema.yaml", cache_dir=tmp_path / "cache").rows("train")
    assert found["rounds"][-1]["step"] >= 2 * (training // 16)


def test_the_learning_rates_fall_with_each_validation_without_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "_POLL_SECONDS", 0)
    run = config.Config(model_dir=str(tmp_path)).replace(validation__learning_rate_factor=0.5)
    kept = record.Record(str(tmp_path), run)
    factors = []
    with tf.Graph().as_default(), tf.Session() as session:
        factor = distributed._Factor(run)()
        for is_best in (True, False, True, False):
            factors.append(session.run(factor))
            kept.rounds.append(record.Round(len(factors), 0, {}, is_best))
            kept.save("running")
        factors.append(session.run(factor))
    assert factors == [1, 1, 0.5, 0.5, 0.25]


def test_the_order_of_time_is_refused():
    run = config.Config().replace(train__order="time")
    with pytest.raises(ValueError, match="train.order must be shuffled on a cluster, whose worke"):
        distributed.train_task(run, data.generate_clicks(rows=100))
