# SPDX-License-Identifier: Apache-2.0
"""A table counts as initialized, and may be read, when all rows of the checkpoint are there."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import ADAGRAD, BANK, DIM, SAVE, contents, rows_of, train, write

DELTAS = 40
KEYS = np.arange(100 * (DELTAS + 1))


@pytest.fixture
def long_chain(make_table, tmp_path):
    """The newest checkpoint of a chain, whose deltas each add 100 keys, and its rows."""
    table = make_table(DIM, BANK, name="stored")
    for i, keys in enumerate(np.split(KEYS, DELTAS + 1)):
        train(table, keys)
        table.save(tmp_path / f"c{i}", **SAVE, delta_of=f"c{i - 1}" if i else "")
        table.commit_save()
    return tmp_path / f"c{DELTAS}", table.lookup(KEYS)


class Poller(threading.Thread):
    """Another worker, which asks again and again whether the table is ready and reads it."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.expected = ()
        self.seen = []  # What each poll saw: the number of an expected array, or another word.
        self._done = threading.Event()
        self._begun = threading.Event()
        self._poll()  # Builds the ops, which another thread cannot.

    def poll(self, expected):
        """Starts to poll for rows that equal one of some arrays."""
        self.expected = expected
        self.start()
        self._begun.wait()

    def stop(self):
        self._done.set()
        self.join()

    def run(self):
        while not self._done.is_set():
            self.seen.append(self._poll())
            self._begun.set()

    def _poll(self):
        was_ready = self.table.call("is_initialized")
        try:
            rows = self.table.lookup(KEYS)
        except (tf.errors.AbortedError, tf.errors.FailedPreconditionError):
            return "refused"
        same = [i for i, each in enumerate(self.expected) if np.array_equal(rows, each)]
        return same[0] if same else f"wrong, initialized: {was_ready}"


def test_a_new_table_refuses_lookups_until_every_row_is_restored(make_table, long_chain):
    prefix, rows = long_chain
    table = make_table(DIM, name="restored")
    other = Poller(table)
    other.poll([rows])
    table.restore(prefix, BANK, slots=ADAGRAD)
    assert table.call("is_initialized")
    np.testing.assert_array_equal(table.lookup(KEYS), rows)
    other.stop()
    assert set(other.seen) in ({"refused"}, {"refused", 0})


@pytest.mark.long
def test_a_table_with_rows_gives_the_old_rows_or_the_new_ones_or_refuses(make_table, long_chain):
    prefix, rows = long_chain
    table = make_table(DIM, BANK, name="restored")
    train(table, KEYS[::2])
    other = Poller(table)
    other.poll([table.lookup(KEYS), rows])
    for _ in range(3):
        table.restore(prefix, BANK, slots=ADAGRAD)
    other.stop()
    assert set(other.seen) in ({0, "refused"}, {0, 1, "refused"})


# The keys are not ordered, so that the repeated key is detected after all rows are inserted.
REPEATED = rows_of([5, 4, 5])


def test_a_new_table_is_not_ready_after_a_failed_restore(make_table, tmp_path):
    path = write(tmp_path / "c", {**REPEATED, "t/default_values": BANK})
    table = make_table(DIM)
    with pytest.raises(tf.errors.DataLossError, match="distinct"):
        table.restore(path, BANK)
    assert not table.call("is_initialized")
    for read in (table.lookup, table.frequencies, table.versions, table.contains, table.admits):
        with pytest.raises(tf.errors.AbortedError, match="failed to restore; try"):
            read([5])
    with pytest.raises(tf.errors.AbortedError, match="before it is trained"):
        train(table, [1])
    # Not Aborted, after which a training loop would try again.
    with pytest.raises(tf.errors.UnknownError, match="before it is saved"):
        table.save(tmp_path / "saved")
    with pytest.raises(tf.errors.AbortedError, match="before it is saved"):
        table.export()
    table.restore(write(tmp_path / "good", rows_of([5])), BANK)
    assert table.contains([5, 6]).tolist() == [True, False]


def test_a_table_that_lost_its_rows_is_not_ready_and_says_so(make_table, tmp_path):
    table = make_table(DIM, BANK)
    train(table, [1, 2])
    path = write(tmp_path / "c", REPEATED)
    with pytest.raises(tf.errors.DataLossError, match="table t has lost its rows: restore"):
        table.restore(path, BANK)
    assert not table.call("is_initialized")
    with pytest.raises(tf.errors.AbortedError):
        table.lookup([1])
    table.initialize(BANK)
    assert table.call("is_initialized") and table.size() == 0


def test_a_table_that_kept_its_rows_stays_ready(make_table, tmp_path):
    table = make_table(DIM, BANK)
    train(table, [1, 2])
    before = contents(table)
    path = write(tmp_path / "c", {**rows_of([1]), "t-values": np.ones([1, DIM + 1], np.float32)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="t-values"):
        table.restore(path, BANK)
    assert table.call("is_initialized")
    assert contents(table) == before


def test_a_save_waits_for_all_rows_of_a_restore(make_table, long_chain, tmp_path):
    prefix, _ = long_chain
    table = make_table(DIM, BANK, name="restored")
    train(table, KEYS[:100])
    old = contents(table)
    table.restore(prefix, BANK, slots=ADAGRAD)
    new = contents(table)
    table.initialize(BANK)
    train(table, KEYS[:100])
    restoring = threading.Thread(
        target=table.restore, args=(prefix, BANK), kwargs={"slots": ADAGRAD}
    )
    restoring.start()
    seen = []
    while restoring.is_alive():
        with contextlib.suppress(tf.errors.AbortedError):
            seen.append(contents(table))
    restoring.join()
    assert contents(table) == new
    assert all(each in (old, new) for each in seen) and seen
