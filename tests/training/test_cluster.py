# SPDX-License-Identifier: Apache-2.0
"""Tests of training on a cluster: chief, workers, parameter servers and evaluator on 127.0.0.1."""

import http.server
import re
import socket
import threading

import cluster_jobs
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from cluster_jobs import RULES, STEPS, keys_of
from test_table_summaries import scalars_in

import rec_estimator as rec
from rec_estimator.training import cluster, ps_tasks

# TensorFlow 2.16 took distribution strategies out of its Estimator.
HAS_STRATEGIES = hasattr(tf, "estimator")


def rows_of(folder, table, tensor="values"):
    """{key: row} of the last checkpoint in a folder, over all shards."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "model")))
    rows = {}
    for name in reader.get_variable_to_shape_map():
        owner, _, last = name.rpartition("-")
        if last == "keys" and re.fullmatch(rf"{table}(/part_\d+)?", owner):
            values = reader.get_tensor(f"{owner}-{tensor}")
            rows.update(zip(reader.get_tensor(name).tolist(), values))
    return rows


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    return folder, cluster_jobs.run("one_worker_and_two", folder)


@pytest.mark.long
def test_every_task_of_the_cluster_ends_well(job):
    assert job[1] == {"single": 0, "alone": 0, "both": [0, 0, 0]}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.long
def test_one_worker_with_two_ps_trains_the_bits_of_one_process(job, rule):
    folder, _ = job
    expected, trained = rows_of(folder / "single", rule), rows_of(folder / "alone", rule)
    assert sorted(trained) == sorted(expected) == sorted(np.unique(keys_of(0)).tolist())
    for key, row in expected.items():
        np.testing.assert_array_equal(trained[key], row)


@pytest.mark.long
def test_tables_have_a_shard_on_each_ps(job):
    folder, _ = job
    names = {name for name, _ in tf.train.list_variables(str(folder / "alone" / "model"))}
    assert {"Ftrl/part_0-keys", "Ftrl/part_1-keys"} <= names and "Ftrl/part_2-keys" not in names


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_chief_and_worker_count_every_occurrence(job, rule):
    folder, _ = job
    keys, counts = np.unique([*keys_of(0).flat, *keys_of(1).flat], return_counts=True)
    assert rows_of(folder / "both", rule, "freqs") == dict(zip(keys.tolist(), counts))


@pytest.mark.long
def test_summaries_of_tables_on_ps_are_those_of_one_process(job):
    single, alone = (scalars_in(job[0] / name / "model") for name in ("single", "alone"))
    assert sorted(alone) == sorted(single) and max(alone) == STEPS
    assert {f"tables/{name}/rows" for name in (*RULES, "total")} <= set(alone[STEPS])
    for step, expected in single.items():
        for tag, value in expected.items():
            if not tag.endswith("/bytes"):  # Each shard has room of its own.
                assert alone[step][tag] == value, (step, tag)


@pytest.mark.long
def test_evaluator_evaluates_the_last_checkpoint(job):
    folder, _ = job
    log = (folder / "both" / "evaluator0.log").read_text()
    assert f"Saving dict for global step {2 * STEPS}" in log


@pytest.mark.slow
def test_an_unchanged_script_predicts_the_same_from_a_cluster(tmp_path):
    """Filters, evictions, deltas, graph modification, a stock optimizer, predict and export."""
    assert cluster_jobs.run("one_script", tmp_path, seconds=300) == {"single": 0, "cluster": 0}
    jobs = ("single", "cluster")
    expected, predicted = (np.load(tmp_path / job / "predicted.npy") for job in jobs)
    # A partitioned table combines the vectors of an example by other ops, in another order.
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-6)
    for table in ("user", "item", "tags"):
        expected, counts = (rows_of(tmp_path / job, table, "freqs") for job in jobs)
        assert counts == expected and len(counts) > 10
    assert list((tmp_path / "cluster" / "export").glob("*/saved_model.pb"))


@pytest.mark.slow
def test_train_distribute_with_the_strategy_of_ps_counts_every_occurrence(tmp_path):
    if not HAS_STRATEGIES:
        with pytest.raises(ValueError, match="train_distribute must be None"):
            rec.RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
        return
    result = cluster_jobs.run("strategy", tmp_path, seconds=400)
    assert result["ends"] == [0, 0, 0]
    keys, counts = np.unique([*keys_of(0).flat, *keys_of(1).flat], return_counts=True)
    for rule in RULES:
        found = rows_of(tmp_path / "job", rule, "freqs")
        assert found == dict(zip(keys.tolist(), counts))
    status, log = result["absent"]
    assert status == 1 and "TimeoutError: ps 1 must accept connections at 127.0.0.1:" in log


@pytest.mark.parametrize("name", ["MirroredStrategy", "experimental.ParameterServerStrategy"])
def test_other_strategies_and_one_without_ps_are_refused(name):
    strategy = tf.distribute
    for part in name.split("."):
        strategy = getattr(strategy, part)
    rule = (
        "train_distribute must be None or, with ps tasks, a tf" if HAS_STRATEGIES else "None, got"
    )
    with pytest.raises(ValueError, match=rule):
        cluster.check_config(rec.RunConfig(train_distribute=strategy()))


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return cluster_jobs.run("faults", tmp_path_factory.mktemp("faults"))


@pytest.mark.long
@pytest.mark.parametrize(
    "fault, message",
    [
        ("absent", "TimeoutError: ps 1 must accept connections at 127.0.0.1:"),
        ("swapped", "must be ps 0 of the cluster, got ['/job:ps/replica:0/task:1/"),
        ("headless", "TimeoutError: the chief must initialize the model within 1 seconds"),
        ("taken", "OSError: the port of chief 0 must be free on this machine, got 127.0.0.1:"),
        ("apart", "OSError: model_dir must be a folder that ps 0 at"),
    ],
)
def test_a_cluster_that_cannot_train_fails_by_name(faults, fault, message):
    status, last_line = faults[fault]
    assert status == 1 and message in last_line


@pytest.mark.parametrize("task", ["chief", "worker"])
def test_a_server_that_never_answers_is_an_error_in_every_task(tmp_path, task):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ps_tasks.wait_for_ports([address], seconds=1)
        with pytest.raises(TimeoutError, match=f"ps 0 at {address} must answer within 1 seconds"):
            model_dir = str(tmp_path / "model") if task == "chief" else None
            ps_tasks.check_servers([address], model_dir, seconds=1)
    assert not list(tmp_path.glob("model/*"))


def test_a_server_of_another_protocol_is_an_error_with_its_address():
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(
            (RuntimeError, TimeoutError), match=f"(server at|ps 0 at) {address} must"
        ):
            ps_tasks.check_servers([address], None, seconds=2)
        server.shutdown()
        thread.join()


def test_a_ps_with_the_ops_of_another_version_is_an_error_with_its_address(tmp_path, monkeypatch):
    (port,) = cluster_jobs.free_ports(1)
    address = f"127.0.0.1:{port}"
    tf.train.Server({"ps": [address]}, job_name="ps", task_index=0)
    ps_tasks.check_servers([address], str(tmp_path / "model"), seconds=30)
    # This process has the ops of the server, so it must take its own for others.
    monkeypatch.setattr(ps_tasks, "_fingerprint", lambda: b"01234567")
    with pytest.raises(RuntimeError, match=f"ps 0 at {address} must have .*, got other ops; "):
        ps_tasks.check_servers([address], str(tmp_path / "model"), seconds=30)


def counts_of(lines):
    keys, counts = np.unique([int(key) for key in lines.split()], return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist()))


@pytest.mark.slow
def test_training_survives_kills_of_every_task(tmp_path):
    result = cluster_jobs.run("kills", tmp_path, seconds=500)
    assert result["ends"] == [0, 0] and result["step"] >= 4000 and result["saves"] == 3
    log = (tmp_path / "chief0.log").read_text()
    assert "The chief does not go on with it" in log and "Later steps are lost" in log
    seen = counts_of("".join((tmp_path / f"seen{task}").read_text() for task in (0, 1)))
    for rule in RULES:
        counts = rows_of(tmp_path, rule, "freqs")
        assert set(counts) == set(seen)
        assert all(count <= seen[key] for key, count in counts.items())
        # A rollback loses steps since the last checkpoint only, which every 100 steps has one.
        assert sum(counts.values()) >= 4000 * cluster_jobs.BATCH


@pytest.mark.long
def test_plain_sessions_train_tables_on_ps_within_their_limit(tmp_path):
    found = cluster_jobs.run("sessions", tmp_path)
    assert [device[:14] for device in found["devices"]] == ["/job:ps/task:0", "/job:ps/task:1"]
    # GradientDescent subtracts 0.5 for each occurrence from initial vectors of 1.
    assert found["rows"] == found["restored"] == [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    assert "table limited must have at most 8 rows, got 9 with this step" in found["error"]
    assert found["size"] == 8
    assert (tmp_path / "model" / "sparse-model.ckpt-1" / "limited").is_dir()


@pytest.mark.slow
def test_a_ps_that_never_comes_back_is_an_error_in_every_task(tmp_path):
    for status, last_line in cluster_jobs.run("lost_ps", tmp_path, seconds=300).values():
        assert status == 1
        assert "TimeoutError: ps 1 must accept connections at 127.0.0.1:" in last_line


@pytest.mark.long
def test_a_ps_that_stops_without_closing_connections_is_waited_for_and_then_an_error(tmp_path):
    found = cluster_jobs.run("silent_ps", tmp_path, seconds=300)
    assert found["restores"] == 0
    assert len(found["ends"]) == 3
    for status, last_line in found["ends"]:
        assert status == 1
        assert "TimeoutError: ps 1 at 127.0.0.1:" in last_line
        assert "must answer within 10 seconds, got no answer; end its process" in last_line


@pytest.mark.long
def test_sigterm_to_every_task_saves_the_last_step_and_ends_all(tmp_path):
    """The ps tasks serve until the chief has saved."""
    ends = cluster_jobs.run("sigterm", tmp_path)["ends"]
    assert ends == {"ps 0": 0, "ps 1": 0, "chief 0": 143, "worker 0": 143}
    log = (tmp_path / "chief0.log").read_text()
    last = log[log.index("SIGTERM: the training saves and ends.") :]
    (saved,) = re.findall(r"Saving checkpoints for (\d+) into", last)
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith(f"-{saved}")


@pytest.mark.long
def test_a_killed_worker_repeats_at_most_the_unit_that_it_read_of_a_work_queue(tmp_path):
    """The table counts every row that chief and worker trained."""
    from cluster_scenarios import UNIT_ROWS, UNITS

    assert cluster_jobs.run("work_queue", tmp_path)["ends"] == [0, 0]
    counts = rows_of(tmp_path, "rows", "freqs")
    assert sorted(counts) == list(range(UNITS * UNIT_ROWS))  # No row is lost.
    assert set(counts.values()) <= {1, 2}
    assert len({row // UNIT_ROWS for row, count in counts.items() if count == 2}) <= 1
    for task in ("chief", "worker"):
        seen = [int(row) // UNIT_ROWS for row in (tmp_path / f"{task}.rows").read_text().split()]
        assert len(set(seen)) >= 5, "both must have read some units"


@pytest.mark.slow
def test_a_ps_without_the_library_fails_by_name(tmp_path):
    status, last_line = cluster_jobs.run("ps_without_library", tmp_path)
    assert status == 1 and "RuntimeError: ps 0 at 127.0.0.1:" in last_line
    assert "must have loaded the ops of this version of rec_estimator" in last_line


@pytest.mark.long
def test_a_save_to_a_folder_that_a_ps_does_not_share_says_so(tmp_path):
    relative, error, left = cluster_jobs.run("folder_of_each_task", tmp_path)
    assert "model.index" in relative
    rule = "save_path must be in a writable folder with free space"
    assert f"{rule}, got '/proc/self/cwd/own/model'" in error
    assert "give an absolute path on a file system that all tasks share" in error
    assert left == []
