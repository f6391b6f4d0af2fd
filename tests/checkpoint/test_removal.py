# SPDX-License-Identifier: Apache-2.0
"""Tests of how checkpoints are removed, of killed removals, and of lists that nobody can trust."""

import json
import os
import pathlib
import threading

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import files, removal
from rec_estimator.checkpoint.atomic_checkpoint import AtomicCheckpoint
from rec_estimator.checkpoint.retention import StateFile

FILES = ("m-1.index", "m-1.data-00000-of-00001", "m-1.meta")
OTHERS = ("m-3.index", "m-3.data-00000-of-00001", "m-10.index", "victim")


@pytest.fixture
def folder(tmp_path):
    for name in (*FILES, *OTHERS):
        (tmp_path / name).write_text(name)
    return tmp_path


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def abandon(folder, state_file=None, **changes):
    """Leaves the folder of a removal of m-1 whose process was killed before it removed anything."""
    made = removal.Removal(str(folder / "m-1"), state_file=state_file)
    os.close(made._lock)
    path = next(folder.glob(".rec_estimator-save-*/removed.json"))
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def save(folder):
    """What a save does with the folders of killed processes."""
    with AtomicCheckpoint(str(folder / "new")):
        pass


def test_a_removal_removes_the_files_of_its_checkpoint_alone(folder):
    removal.remove(str(folder / "m-1"))
    assert names_in(folder) == set(OTHERS)


def test_a_killed_removal_is_finished_once_the_state_file_does_not_name_the_checkpoint(folder):
    abandon(folder, "checkpoint")
    StateFile().write(str(folder / "m-3"), [str(folder / "m-1"), str(folder / "m-3")])
    save(folder)
    assert set(FILES) <= names_in(folder), "killed before the state file was written"
    abandon(folder, "checkpoint")
    StateFile().write(str(folder / "m-3"), [str(folder / "m-3")])
    save(folder)
    assert names_in(folder) == {*OTHERS, "checkpoint"}


def test_a_killed_removal_leaves_a_checkpoint_that_was_saved_anew(folder):
    abandon(folder, "checkpoint")
    StateFile().write(str(folder / "m-3"), [str(folder / "m-3")])
    (folder / "m-1.index").write_text("another one")
    save(folder)
    assert set(FILES) <= names_in(folder)


def test_the_next_save_removes_what_a_kill_after_the_state_file_left(tmp_path, monkeypatch):
    """A complete old checkpoint, of which the state file says nothing any more."""
    tf.get_variable("v", initializer=1.0)
    step = tf.train.get_or_create_global_step()
    advance = tf.assign_add(step, 1)
    saver = rec.Saver(max_to_keep=1)

    class Killed(BaseException):
        pass

    def run(self, removes_sparse_folder=True):
        os.close(self._lock)
        self._lock = self._own_folder = None  # Nothing of this process goes on.
        raise Killed

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "m"), step)
        session.run(advance)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(removal.Removal, "run", run)
            saver.save(session, str(tmp_path / "m"), step)
        assert "m-0.index" in names_in(tmp_path)
        session.run(advance)
        saver.save(session, str(tmp_path / "m"), step)
    assert not [name for name in names_in(tmp_path) if name.startswith(("m-0", ".rec"))]


def test_a_removal_whose_list_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    before = names_in(folder)
    with monkeypatch.context() as patch:
        patch.setattr(removal.json, "dump", fail)
        with pytest.raises(OSError, match="No space left"):
            removal.remove(str(folder / "m-1"))
    assert names_in(folder) == before


GOOD = {"names": list(FILES), "signature": [9, 0, 0], "state_file": None}
NOT_LISTS = {
    "list": [],
    "object": {},
    "null": None,
    "number": 5,
    "names": {**GOOD, "names": []},
    "other checkpoint": {**GOOD, "names": ["gone.index", "m-3.index"]},
    "other data": {**GOOD, "names": ["gone.index", "m-3.data-00000-of-00001"]},
    "other file": {**GOOD, "names": ["gone.index", "victim"]},
    "above": {**GOOD, "names": ["gone.index", "../victim"]},
    "no index": {**GOOD, "names": ["victim"]},
    "NUL": {**GOOD, "names": ["gone.index", "gone.me\0ta"]},
    "not names": {**GOOD, "names": ["gone.index", 3]},
    "signature": {**GOOD, "signature": [1]},
    "state file": {**GOOD, "state_file": "../checkpoint"},
}


@pytest.mark.parametrize("content", NOT_LISTS.values(), ids=NOT_LISTS)
def test_a_list_that_cannot_be_understood_is_moved_aside(folder, content, caplog):
    abandon(folder).write_text(json.dumps(content))
    save(folder)
    assert {*FILES, *OTHERS} < names_in(folder)
    [aside] = folder.glob(".rec_estimator-not-understood-*/removed.json")
    assert json.loads(aside.read_text()) == content
    save(folder)
    assert aside.exists() and not list(folder.glob(".rec_estimator-save-*"))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff"])
def test_a_list_that_is_no_json_is_moved_aside(folder, text):
    abandon(folder).write_text(text)
    save(folder)
    assert {*FILES, *OTHERS} < names_in(folder)
    assert list(folder.glob(".rec_estimator-not-understood-*"))


def test_a_list_that_is_a_fifo_is_moved_aside(folder):
    path = abandon(folder)
    path.unlink()
    os.mkfifo(path)
    save(folder)
    assert {*FILES, *OTHERS} < names_in(folder)


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_checkpoint_with_a_fifo_is_refused(tmp_path, suffix):
    tf.get_variable("v", initializer=1.0)
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"))
        os.remove(f"{path}.{suffix}")
        os.mkfifo(f"{path}.{suffix}")
        with pytest.raises(tf.errors.DataLossError, match=f"m.{suffix} is damaged: it must be a r"):
            saver.restore(session, path)


def test_max_to_keep_removes_folders_only_beside_its_own_checkpoints(tmp_path):
    """The state file, which names the checkpoints to remove, may come from anywhere."""
    other = tmp_path / "home" / "sparse-data"
    other.mkdir(parents=True)
    (other / "thesis").write_text("")
    tf.get_variable("v", initializer=1.0)
    saver = rec.Saver(max_to_keep=1)
    saver.set_last_checkpoints_with_time([(str(tmp_path / "home" / "data"), 0.0)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "models" / "m"))
    assert (other / "thesis").exists()


@pytest.mark.long
def test_two_savers_may_begin_in_one_folder_at_once(tmp_path):
    errors = []

    def begin():
        try:
            for _ in range(500):
                save(tmp_path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_work_folder_that_another_save_took_for_abandoned_is_made_again(tmp_path, monkeypatch):
    made = []

    def mkdtemp(prefix, dir):
        made.append(os.path.join(dir, f"{prefix}{len(made)}"))
        if len(made) > 1:
            os.mkdir(made[-1])
        return made[-1]

    monkeypatch.setattr(files.tempfile, "mkdtemp", mkdtemp)
    path, lock = files.make_work_folder(str(tmp_path))
    os.close(lock)
    assert path == made[1]


def test_a_checkpoint_whose_data_files_are_gone_is_written_again(tmp_path):
    tf.get_variable("v", initializer=1.0)
    step = tf.train.get_or_create_global_step()
    tf.assign_add(step, 1)
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"), step)
        for damage in (pathlib.Path.unlink, lambda path: path.write_bytes(b"")):
            [data] = tmp_path.glob("*.data-*")
            damage(data)
            assert saver.save(session, str(tmp_path / "m"), step) == path
            saver.restore(session, path)


def test_a_state_file_that_is_a_folder_is_refused_before_anything_is_written(tmp_path):
    tf.get_variable("v", initializer=1.0)
    (tmp_path / "checkpoint").mkdir()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(ValueError, match="latest_filename must not be a folder, got"):
            rec.Saver().save(session, str(tmp_path / "m"))
    assert names_in(tmp_path) == {"checkpoint"}
