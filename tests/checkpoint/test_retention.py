# SPDX-License-Identifier: Apache-2.0
"""Tests of which checkpoints are kept, and of the state file."""

import os

import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.deltas import Deltas, Family
from rec_estimator.checkpoint.retention import Retention, StateFile


class KnownDeltas(Deltas):
    """Deltas whose parents are given: {name: name of the parent}."""

    def __init__(self, parents):
        super().__init__()
        self.parents = parents

    def family_of(self, prefix):
        folder = os.path.dirname(prefix)
        names = [name[: -len(".index")] for name in os.listdir(folder) if name.endswith(".index")]
        return Family(folder, {name: self.parents.get(name) for name in names})


class Folder:
    """A folder of empty checkpoints and the Retention of its Saver."""

    def __init__(self, path, parents=None, relative=False, **saver_def):
        self.path = path
        self.saver_def = tf.train.SaverDef(keep_checkpoint_every_n_hours=10_000, **saver_def)
        self.retention = Retention(KnownDeltas(parents or {}), StateFile(relative))
        self.retention.start(self.saver_def)

    def write(self, *names):
        for name in names:
            for suffix in ("index", "data-00000-of-00001", "meta"):
                (self.path / f"{name}.{suffix}").touch()
            self.retention.add(self.prefix(name), self.saver_def, "checkpoint", "meta")

    def prefix(self, name):
        return str(self.path / name)

    def state(self):
        """The latest checkpoint and all that are kept, as the state file names them."""
        state = tf.train.get_checkpoint_state(str(self.path))
        base = os.path.basename
        return base(state.model_checkpoint_path), list(map(base, state.all_model_checkpoint_paths))

    def names(self):
        """The checkpoints of which every file is there."""
        files = set(os.listdir(self.path)) - {"checkpoint"}
        names = sorted({name.partition(".")[0] for name in files})
        assert len(files) == 3 * len(names)
        return names


def test_the_newest_are_kept(tmp_path):
    folder = Folder(tmp_path, max_to_keep=2)
    folder.write("a", "b", "c")
    assert folder.names() == ["b", "c"] and folder.state() == ("c", ["b", "c"])


def test_a_checkpoint_that_is_written_again_is_the_newest(tmp_path):
    folder = Folder(tmp_path, max_to_keep=2)
    folder.write("a", "b", "a", "c")
    assert folder.names() == ["a", "c"]


def test_without_a_limit_nothing_is_listed_or_deleted(tmp_path):
    folder = Folder(tmp_path, max_to_keep=0)
    folder.write("a", "b")
    assert folder.names() == ["a", "b"] and folder.retention.prefixes == []
    assert folder.state() == ("b", ["b"])


def test_what_a_kept_delta_needs_is_kept_until_the_delta_goes(tmp_path):
    folder = Folder(tmp_path, {"d1": "a", "d2": "d1"}, max_to_keep=1)
    folder.write("a", "d1", "d2")
    assert folder.names() == ["a", "d1", "d2"] and folder.state() == ("d2", ["a", "d1", "d2"])
    folder.write("b")
    assert folder.names() == ["b"]


def test_one_is_kept_for_good_after_the_given_hours(tmp_path):
    folder = Folder(tmp_path, max_to_keep=1)
    folder.saver_def.keep_checkpoint_every_n_hours = 1e-9
    folder.retention.start(folder.saver_def)
    folder.write("a")
    folder.saver_def.keep_checkpoint_every_n_hours = 10_000
    folder.write("b", "c")
    assert folder.names() == ["a", "c"] and folder.state() == ("c", ["c"])


def test_old_checkpoints_of_another_saver_are_listed_and_not_deleted(tmp_path):
    folder = Folder(tmp_path, max_to_keep=1)
    folder.write("a")
    folder.retention.records = [(folder.prefix("a"), float("inf"))]
    folder.write("b")
    assert folder.names() == ["a", "b"] and folder.state() == ("b", ["b"])


def test_a_checkpoint_that_cannot_be_removed_fails_no_save(tmp_path, caplog):
    folder = Folder(tmp_path, max_to_keep=1)
    folder.write("a")
    (tmp_path / "a.meta").unlink()
    (tmp_path / "a.meta").mkdir()
    caplog.set_level("WARNING", logger="tensorflow")
    folder.write("b")
    assert folder.state() == ("b", ["b"]) and "could not be removed" in caplog.text


def test_deltas_of_a_checkpoint_that_is_replaced_are_removed(tmp_path):
    folder = Folder(tmp_path, {"d1": "a", "d2": "d1"}, max_to_keep=9)
    folder.write("a", "d1", "d2", "b", "d2")
    folder.retention.remove_deltas_of(folder.prefix("a"))
    assert sorted(folder.retention.prefixes) == [folder.prefix("a"), folder.prefix("b")]
    latest, listed = folder.state()
    assert latest == "a" and set(listed) == {"a", "b"}
    left = {name.partition(".")[0] for name in os.listdir(tmp_path) if name.endswith(".index")}
    assert left == {"a", "b"}


def test_deltas_stay_where_no_checkpoint_is_replaced(tmp_path):
    folder = Folder(tmp_path, {"d1": "a"}, max_to_keep=9)
    folder.write("d1")
    folder.retention.remove_deltas_of(folder.prefix("a"))
    assert folder.names() == ["d1"]


@pytest.mark.parametrize("relative", [True, False])
def test_the_state_file_has_relative_or_absolute_paths(tmp_path, relative):
    Folder(tmp_path, relative=relative, max_to_keep=2).write("a")
    text = (tmp_path / "checkpoint").read_text()
    assert (str(tmp_path) in text) != relative


def test_the_state_file_has_the_given_name(tmp_path):
    StateFile().write(str(tmp_path / "a"), [str(tmp_path / "a")], "mine")
    assert os.listdir(tmp_path) == ["mine"]
