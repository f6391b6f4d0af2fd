# SPDX-License-Identifier: Apache-2.0
"""Tests of work queues: which rows are trained, and how often, over restores and kills."""

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow.compat.v1 as tf
from local_cluster import LocalCluster

import rec_estimator as rec
from rec_estimator.inputs.queue_state import END, HEADER, WAIT, QueueState
from rec_estimator.inputs.work_queue import WorkQueue

ROWS = 10  # in each file


@pytest.fixture
def files(tmp_path):
    def write(count, prefix="day"):
        for number in range(count):
            ids = range(ROWS * number, ROWS * number + ROWS)
            text = "\n".join(["id", *map(str, ids)]) + "\n"
            (tmp_path / f"{prefix}-{number}.csv").write_text(text)
        return str(tmp_path / f"{prefix}-*.csv")

    return write


def batches_of(source, batch_size=4, limit=1000, folder=None, config=None):
    """The ids of each batch that a new graph and session train, until the end or `limit`."""
    input_fn = source
    if isinstance(source, WorkQueue):
        input_fn = rec.inputs.csv_input_fn(source, dtypes={"id": tf.int64}, batch_size=batch_size)
    found = []
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(input_fn())
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        batch = iterator.get_next()["id"]
        train_op = tf.train.get_or_create_global_step().assign_add(1)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder and str(folder), config=config, log_step_count_steps=None
        ) as session:
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while len(found) < limit:
                    found.append(session.run([batch, train_op])[0].tolist())
    return found


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.long
def test_each_unit_is_read_once_a_pass_and_batches_do_not_cross_units(files):
    queue = rec.inputs.work_queue(files(3), num_epochs=2)
    # One thread each: no thread of the session may wait for a unit.
    config = tf.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    found = batches_of(queue, config=config)
    assert [len(batch) for batch in found] == [4, 4, 2] * 6
    assert flat(found) == [*range(30), *range(30)]


@pytest.mark.long
def test_shuffled_passes_have_another_order_and_the_same_with_a_seed(files):
    def order(seed):
        queue = rec.inputs.work_queue(files(6), num_epochs=2, shuffle=True, seed=seed)
        found = batches_of(queue, batch_size=ROWS)
        return [batch[0] // ROWS for batch in found]

    found = order(seed=1)
    assert sorted(found[:6]) == sorted(found[6:]) == list(range(6))
    assert found[:6] != found[6:] and found == order(seed=1)


@pytest.mark.long
def test_files_without_rows_are_done_too(files, tmp_path):
    pattern = files(3)
    for number in (0, 2):
        (tmp_path / f"day-{number}.csv").write_text("id\n")
    assert flat(batches_of(rec.inputs.work_queue(pattern, num_epochs=2))) == [*range(10, 20)] * 2


def test_row_groups_are_units_and_their_bad_rows_are_named(tmp_path):
    for number, rows in enumerate([[*range(5)], [*range(5, 8), None]]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": rows}), path, row_group_size=2)
    queue = rec.inputs.work_queue(str(tmp_path / "*.parquet"), row_groups=True)
    assert [unit.row_group for unit in queue.units] == [0, 1, 2, 0, 1]
    input_fn = rec.inputs.parquet_input_fn(queue, on_bad_row="skip")
    assert flat(batches_of(input_fn)) == list(range(8)) and input_fn.bad_rows == 1
    # TensorFlow crashed where a session was closed while the dataset waited for a unit.
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="1.parquet, row 4"):
            batches_of(rec.inputs.parquet_input_fn(queue))
    with pytest.raises(tf.errors.InvalidArgumentError, match="1.parquet, row 4: column 'id' must"):
        batches_of(rec.inputs.parquet_input_fn(queue))
    with pytest.raises(ValueError, match="file_pattern must be a work queue of whole files"):
        rec.inputs.tfrecord_input_fn(queue, {"id": tf.io.VarLenFeature(tf.int64)})


@pytest.mark.long
def test_a_dataset_of_ones_own_gets_the_index_of_a_unit(files):
    queue = rec.inputs.work_queue(files(2), name="mine")
    paths = tf.constant([path for path, _ in queue.units])
    lines = queue.dataset(lambda unit: tf.data.TextLineDataset(paths[unit]).batch(20))
    iterator = tf.data.make_initializable_iterator(lines)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch = iterator.get_next()
    with tf.train.MonitoredSession() as session:
        assert [len(session.run(batch)) for _ in range(2)] == [11, 11]


@pytest.mark.long
def test_a_training_resumes_with_the_unit_that_it_read_and_repeats_no_other(files, tmp_path):
    pattern, model = files(4), tmp_path / "model"
    # Three batches of each file; one batch of the third file.
    first = batches_of(rec.inputs.work_queue(pattern), limit=7, folder=model)
    assert flat(first) == list(range(24))
    second = batches_of(rec.inputs.work_queue(pattern), folder=model)
    assert flat(second) == list(range(20, 40))


@pytest.mark.long
def test_a_shuffled_second_pass_resumes_where_it_was(files, tmp_path):
    queue = rec.inputs.work_queue(files(4), num_epochs=2, shuffle=True)
    found = batches_of(queue, limit=3 * 5 + 1, folder=tmp_path / "model")
    rest = batches_of(queue, folder=tmp_path / "model")
    assert rest[0] == found[-1]  # The unit that it read.
    both = [batch[0] // ROWS for batch in found[:-1:3] + rest[::3]]
    assert sorted(both[:4]) == sorted(both[4:]) == list(range(4))


@pytest.mark.long
def test_other_files_are_refused_until_all_are_read(files, tmp_path):
    first = rec.inputs.work_queue(files(3))
    second = rec.inputs.work_queue(files(2, prefix="night"))
    batches_of(first, limit=4, folder=tmp_path / "model")
    with pytest.raises(
        ValueError, match="files of work queue 'work_queue' must be those that.*while 2 units"
    ):
        batches_of(second, folder=tmp_path / "model")
    batches_of(first, folder=tmp_path / "model")
    assert batches_of(first, folder=tmp_path / "model") == []  # All are read.
    assert flat(batches_of(second, folder=tmp_path / "model")) == list(range(20))


@pytest.mark.long
def test_a_recestimator_without_a_queue_begins_one_and_resumes_it(files, tmp_path):
    """Its Saver restores a checkpoint without a queue; the table counts the rows."""

    def model_fn(features, mode):
        table = rec.get_embedding_variable("ids", 1, initializer=tf.ones_initializer())
        loss = tf.reduce_sum(rec.embedding_lookup(table, features["id"]))
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(source, **kwargs):
        input_fn = rec.inputs.csv_input_fn(source, dtypes={"id": tf.int64}, batch_size=4)
        estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"))
        estimator.train(input_fn, **kwargs)
        values = [estimator.get_variable_value(f"ids-{name}") for name in ("keys", "freqs")]
        counts = dict(zip(*(value.tolist() for value in values)))
        return [counts[row] for row in range(30)]

    pattern = files(3)
    assert train(pattern) == [1] * 30
    with pytest.raises(ValueError, match="makes batches ahead, which work queue 'work_queue'"):
        train(rec.inputs.work_queue(pattern), hooks=[rec.GraphModifierHook()])
    queue = rec.inputs.work_queue(pattern)
    assert train(queue, steps=5) == [2] * 18 + [1] * 12
    assert train(queue) == [2] * 10 + [3] * 8 + [2] * 12


@pytest.mark.long
def test_an_imported_metagraph_is_an_error_and_does_not_wait(files):
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(
            rec.inputs.csv_input_fn(rec.inputs.work_queue(files(1)))()
        )
        batch = iterator.get_next()["id"].name
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        exported = tf.train.export_meta_graph()
    tf.train.import_meta_graph(exported)
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be read in an imported Meta"):
        with tf.train.MonitoredSession() as session:
            session.run(batch)


@pytest.mark.long
def test_a_unit_of_a_worker_that_never_comes_back_is_read_by_another(files):
    queue = rec.inputs.work_queue(files(4), takeover_secs=0.5)
    input_fn = rec.inputs.csv_input_fn(queue, dtypes={"id": tf.int64}, batch_size=4, prefetch=0)
    cluster = LocalCluster(1, workers=1)

    @contextlib.contextmanager
    def task(index):
        """A session of a task, and a function that trains a batch."""
        with tf.Graph().as_default(), cluster.device(index):
            iterator = tf.data.make_initializable_iterator(input_fn())
            batch = iterator.get_next()["id"]
            initialize = tf.global_variables_initializer()
            with cluster.session(index) as session:
                if index == 0:
                    session.run(initialize)
                coord = tf.train.Coordinator()
                tf.train.start_queue_runners(session, coord)
                session.run(iterator.initializer)
                yield lambda: session.run(batch).tolist()
                coord.request_stop()
                coord.join()

    with task(0) as chief, task(1) as worker:
        assert chief() == [0, 1, 2, 3]
        assert worker() == [10, 11, 12, 13]
        rest = []
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                rest.append(chief())
        assert flat(rest) == [*range(4, 10), *range(20, 40), *range(10, 20)]
        # What the worker still has in hand is not its unit any more.
        assert worker() == [14, 15, 16, 17] and worker() == [18, 19]
        with pytest.raises(tf.errors.OutOfRangeError):
            worker()


@pytest.mark.long
def test_arguments_are_checked(files):
    pattern = files(2)
    for arguments, message in [
        ({"file_pattern": []}, "file_pattern must be a path or pattern"),
        ({"file_pattern": "none-*.csv"}, "file_pattern must match a file, got 'none-"),
        ({"num_epochs": 0}, "num_epochs must be an integer >= 1"),
        ({"takeover_secs": -1}, "takeover_secs must be at least 0, got -1"),
        ({"name": ""}, "name must be the name of a variable"),
    ]:
        with pytest.raises(ValueError, match=message):
            rec.inputs.work_queue(**{"file_pattern": pattern, **arguments})
    queue = rec.inputs.work_queue(pattern)
    for arguments in ({"num_epochs": 2}, {"drop_remainder": True}):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be .* work queue"):
            rec.inputs.csv_input_fn(queue, **arguments)
    input_fn = rec.inputs.csv_input_fn(queue)
    input_fn()
    with pytest.raises(ValueError, match="one work queue of a graph, got 'work_queue' twice"):
        input_fn()


class Oracle:
    """What a QueueState promises, in Python."""

    def __init__(self, total):
        self.total, self.next = total, 0
        self.taken = {}  # {position: (owner, ticket)}; the owner is None if it waits

    def take(self, owner, ticket):
        waiting = [position for position, (by, _) in self.taken.items() if by is None]
        if waiting:
            position = min(waiting)
        elif self.next < self.total:
            position, self.next = self.next, self.next + 1
        else:
            return WAIT if any(by != owner for by, _ in self.taken.values()) else END
        self.taken[position] = (owner, ticket)
        return position

    def settle(self, ticket, is_done):
        for position, (owner, given) in self.taken.items():
            if owner is not None and given == ticket:
                if is_done:
                    del self.taken[position]
                return True
        return False

    def release(self, owner, others):
        for position, (by, ticket) in self.taken.items():
            if by is not None and (by != owner) == others:
                self.taken[position] = (None, ticket)

    def copy(self):
        other = Oracle(self.total)
        other.next, other.taken = self.next, {p: (None, t) for p, (_, t) in self.taken.items()}
        return other


@pytest.mark.long
def test_random_takes_kills_and_restores_do_what_an_oracle_does(tmp_path):
    random = np.random.default_rng(3)
    owners, total = (1, 2, 3), 60
    state = QueueState(11, -1, total, "queue")
    takes = [state.take(owner) for owner in owners]
    releases = [[state.release(owner, others) for others in (False, True)] for owner in owners]
    ticket, is_done = tf.placeholder(tf.int64, []), tf.placeholder(tf.bool, [])
    settled = state.settle(ticket, is_done)
    saver, oracle, saved, tickets, done = tf.train.Saver(), Oracle(total), None, [], []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(600):
            what, owner = random.integers(100), int(random.integers(3))
            if what < 45:
                position, given, seed = session.run(takes[owner])
                assert position == oracle.take(owner, given) and seed == -1
                if position >= 0:
                    assert given > max(tickets, default=0)
                    tickets.append(given)
            elif what < 90 and tickets:
                given, ends = random.choice(tickets[-6:]), bool(random.integers(4))
                found = session.run(settled, {ticket: given, is_done: ends})
                assert found == oracle.settle(given, ends)
            elif what < 95:
                others = bool(random.integers(4) == 0)
                session.run(releases[owner][others])
                oracle.release(owner, others)
            elif what < 98:
                saved = saver.save(session, str(tmp_path / "state")), oracle.copy()
            elif saved:
                saver.restore(session, saved[0])
                oracle = saved[1].copy()
            positions = session.run(state)[HEADER::3].tolist()
            assert sorted(positions) == sorted(oracle.taken)
            done.append(oracle.next - len(positions))
    assert max(done) == total  # All units were done at some time.
