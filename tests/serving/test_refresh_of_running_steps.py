# SPDX-License-Identifier: Apache-2.0
"""A step that runs while its model is refreshed reads one state of all tables."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from table_reads import TableReads
from test_refresh import (
    BASE,
    DIM,
    UNKNOWN,
    Served,
    checkpoint,
    exported,
    folder,
    numbers,
    rows,
    same,
    served,
)

__all__ = ["exported", "folder", "served"]  # Fixtures.

IDS = np.array([*range(12), 1, 20, 20], np.int64)
# Values of float32, of bfloat16 in three shards, and of float16.
SHARDS = {"whole", "parts/part_0", "parts/part_1", "parts/part_2", "made"}


def check_same(got, expected):
    tf.nest.map_structure(np.testing.assert_array_equal, got, expected)


def check_state(got, contents):
    """Checks that reads of the table `whole` found these rows."""
    expected = [contents.get(key, np.full(DIM, UNKNOWN)) for key in IDS]
    np.testing.assert_array_equal(got["whole"]["initial"], expected)
    assert got["whole"]["owns_row"].tolist() == [key in contents for key in IDS]


class Refreshing:
    """Reads of a model that is refreshed between them, by deltas that are set later."""

    def __init__(self, served):
        self.names = []
        self._served = served
        self._reads = TableReads(served.session, IDS, self._refresh)

    def _refresh(self):
        for name in self.names:
            self._served.refresh_by_name(name)

    def run(self, *names):
        self.names = names
        return self._reads.run()


def test_a_step_reads_all_tables_as_they_were_when_it_read_its_first_one(served, folder):
    # Keys that are written, deleted, deleted and reborn, new, and new and deleted.
    first = checkpoint(folder / "model-2", 2, same(rows([1, 2, 20], 2.0)), folder / "model-1", [3])
    checkpoint(folder / "model-3", 3, same(rows([2, 3, 9], 3.0)), first, [1, 20])
    reads = Refreshing(served)
    before, after = reads.run("model-2", "model-3")
    assert set(before) == SHARDS
    check_state(before, BASE)
    check_same(after, before)
    assert numbers(served.refresh_by_name(""))[0] == 3
    before, after = reads.run()
    check_same(after, before)
    contents = {**BASE, **rows([2, 3, 9], 3.0)}
    del contents[1]
    check_state(after, contents)


def test_a_refresh_of_one_session_changes_nothing_in_another_one(served, exported, folder):
    checkpoint(folder / "model-2", 2, same(rows([1, 20], 2.0)), folder / "model-1", [3])
    other = Served(exported[0])
    before, after = TableReads(served.session, IDS, lambda: other.refresh_by_name("model-2")).run()
    other.session.close()
    check_same(after, before)
    check_state(after, BASE)
    assert numbers(served.refresh_by_name(""))[0] == 1


def test_a_model_that_is_restored_within_a_step_reads_the_restored_rows(served, folder, exported):
    def restore():
        served.refresh_by_name("model-2")
        prefix = f"{exported[0]}/variables/variables"
        served.session.run("save/restore_all", {"save/Const:0": prefix})

    checkpoint(folder / "model-2", 2, same(rows([1, 2, 20], 2.0)), folder / "model-1", [3])
    before, after = TableReads(served.session, IDS, restore).run()
    check_same(after, before)


@pytest.mark.long
def test_a_step_that_outlasts_too_many_refreshed_rows_is_aborted(served, folder):
    parent = folder / "model-1"
    large = rows(range(1000, 1001 + (1 << 16)), 2.0)  # More than the rows that are kept.
    for step in (2, 3, 4):
        parent = checkpoint(folder / f"model-{step}", step, {**same({}), "whole": large}, parent)
    reads = Refreshing(served)
    before, after = reads.run("model-2")  # The last ones are kept, however many.
    check_same(after, before)
    with pytest.raises(tf.errors.AbortedError, match="table whole must keep .* run it again"):
        reads.run("model-3", "model-4")
    before, after = reads.run()
    check_same(after, before)


def test_a_session_is_closed_while_a_step_keeps_what_a_refresh_replaced(served, folder):
    running, ends = threading.Event(), threading.Event()

    def wait():
        running.set()
        assert ends.wait(60)

    checkpoint(folder / "model-2", 2, same(rows([1, 2, 20], 2.0)), folder / "model-1", [3])
    reads, errors = TableReads(served.session, IDS, wait), []

    def run():
        try:
            before, after = reads.run()
            check_same(after, before)
        except (tf.errors.CancelledError, RuntimeError):  # The session is closed.
            pass
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(60)
    assert numbers(served.refresh_by_name("model-2"))[0] == 2
    end = threading.Timer(0.05, ends.set)
    end.start()
    served.session.close()
    for each in (thread, end):
        each.join()
    assert not errors
