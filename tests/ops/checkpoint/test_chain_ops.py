# SPDX-License-Identifier: Apache-2.0
"""TableRestore from a chain: a full checkpoint and the deltas after it."""

import itertools
import os
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from written_checkpoints import ADAGRAD, BANK, DIM, SAVE, contents, rows_of, train, write

from rec_estimator.checkpoint.format.index_file import identity_of


def chain(table, folder, names):
    rng = np.random.default_rng(5)
    for name, parent in zip(names, ["", *names]):
        train(table, rng.integers(-100, 100, 50))
        table.save(folder / name, **SAVE, delta_of=parent)
        table.commit_save()


def test_a_broken_chain_is_an_error_that_names_the_file(make_table, tmp_path):
    table = make_table(DIM, BANK)
    chain(table, tmp_path, ["a", "b", "c"])
    target = make_table(DIM, BANK, name="r")
    for file in tmp_path.glob("a.*"):
        file.unlink()
    message = "checkpoint .*/a, to which .*/b holds the changes, is missing"
    with pytest.raises(tf.errors.NotFoundError, match=message):
        target.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    for parent in ("b", "c", "d", "../x", "/", "folder/x"):
        write(tmp_path / "a", {**rows_of([1]), "t-delta_of": np.array(parent)})
        kind = tf.errors.NotFoundError if parent == "d" else tf.errors.DataLossError
        with pytest.raises(kind, match=f"{tmp_path}/a .*{parent}|{tmp_path}/{parent} .*/a"):
            target.restore(tmp_path / "c", BANK, slots=ADAGRAD)
    assert target.size() == 0


@pytest.mark.parametrize(
    "parent", [np.array(["a"]), np.array(7), np.array("x" * 5000), np.array(b"")], ids=repr
)
def test_a_parent_must_be_a_name(make_table, tmp_path, parent):
    write(tmp_path / "c", {**rows_of([1]), "t-delta_of": parent})
    table = make_table(DIM, BANK)
    if parent.dtype.kind == "S":
        table.restore(tmp_path / "c", BANK)  # An empty parent name means a full checkpoint.
        assert table.size() == 1
        return
    with pytest.raises(tf.errors.DataLossError, match="t-delta_of .* string of shape .. and at mo"):
        table.restore(tmp_path / "c", BANK)


def test_shards_must_build_on_the_same_checkpoint(make_table, tmp_path):
    tensors = {**rows_of([0], "t/part_0"), **rows_of([1], "t/part_1")}
    tensors["t/part_1-delta_of"] = np.array("b")
    path = write(tmp_path / "c", tensors)
    with pytest.raises(tf.errors.DataLossError, match="part_1-delta_of .* same for all shards"):
        make_table(DIM, BANK).restore(path, BANK)


def exchange(folder, name, tensors):
    """Atomically replaces a checkpoint by another one of the same name."""
    path = write(folder / "exchange", tensors)
    path.with_name("exchange.data-00000-of-00001").replace(folder / f"{name}.data-00000-of-00001")
    path.with_name("exchange.index").replace(folder / f"{name}.index")


def save_chain(table, folder, names):
    """Saves a chain with the identities of the parents. Returns the contents at each save."""
    found = {}
    for name, parent in zip(names, [None, *names]):
        identity = parent and identity_of((folder / f"{parent}.index").read_bytes())
        train(table, [*range(50), len(found)])
        table.save(folder / name, **SAVE, delta_of=[parent, identity] if parent else ["", ""])
        table.commit_save()
        found[name] = contents(table)
    return found


@pytest.mark.parametrize("exchanged", ["a", "b"])
def test_an_overwritten_parent_is_an_error_that_names_both(make_table, tmp_path, exchanged):
    saved = save_chain(make_table(DIM, BANK), tmp_path, ["a", "b", "c", "d"])
    target = make_table(DIM, BANK, name="r")
    target.restore(tmp_path / "d", BANK, slots=ADAGRAD)
    assert contents(target) == saved["d"]
    exchange(tmp_path, exchanged, rows_of([1, 2]))
    child = {"a": "b", "b": "c"}[exchanged]
    message = (
        rf"{tmp_path}/{exchanged} was written again or exchanged: {tmp_path}/{child} holds the "
        rf"changes to one whose index has the identity \d+-[0-9a-f]{{8}}, got \d+-[0-9a-f]{{8}}; br"
    )
    for name in "d", child:
        with pytest.raises(tf.errors.DataLossError, match=message):
            target.restore(tmp_path / name, BANK, slots=ADAGRAD)
        assert contents(target) == saved["d"]
    target.restore(tmp_path / exchanged, BANK)
    assert target.size() == 2


def test_a_parent_overwritten_during_a_restore_never_mixes_rows(make_table, tmp_path):
    saved = save_chain(make_table(DIM, BANK), tmp_path, ["a", "b"])["b"]
    # The data files have other names, as those of rec_estimator.Saver, so only the index decides.
    with tf.Graph().as_default(), tf.Session() as session:
        write(tmp_path / "other", rows_of(np.arange(60)))
        write(tmp_path / "dense", {"w": np.ones(3, np.float32)})
        merge = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[f"{tmp_path}/{name}" for name in ("other", "dense")],
            destination_prefix=f"{tmp_path}/merged",
        )
        session.run(merge)
    for data in tmp_path.glob("merged.data-*"):
        data.rename(tmp_path / data.name.replace("merged", "a"))
    indices = [(tmp_path / f"{name}.index").read_bytes() for name in ("a", "merged")]
    done = threading.Event()

    def exchange_all_the_time():
        for index in itertools.cycle(indices):
            (tmp_path / "new").write_bytes(index)
            os.replace(tmp_path / "new", tmp_path / "a.index")
            if done.is_set():
                return

    writer = threading.Thread(target=exchange_all_the_time)
    writer.start()
    target, refused = make_table(DIM, BANK, name="r"), 0
    try:
        for _ in range(60):
            try:
                target.restore(tmp_path / "b", BANK, slots=ADAGRAD)
            except (tf.errors.DataLossError, tf.errors.FailedPreconditionError):
                refused += 1
            else:
                assert contents(target) == saved
    finally:
        done.set()
        writer.join()
    assert refused > 0


@pytest.mark.parametrize("identity", [np.array(7), np.array(["x"]), np.array("x" * 5000)], ids=repr)
def test_an_identity_must_be_a_string(make_table, tmp_path, identity):
    write(
        tmp_path / "c", {**rows_of([1]), "t-delta_of": np.array("a"), "t-delta_of_index": identity}
    )
    with pytest.raises(tf.errors.DataLossError, match="t-delta_of_index .* string of shape .. and"):
        make_table(DIM, BANK).restore(tmp_path / "c", BANK)


def test_keys_of_a_delta_must_be_ordered(make_table, tmp_path):
    write(tmp_path / "a", rows_of([1, 2, 3]))
    tensors = {**rows_of([3, 2]), "t-delta_of": np.array("a"), "t-keys_erased": np.array([9])}
    write(tmp_path / "c", tensors)
    with pytest.raises(tf.errors.DataLossError, match="t-keys .* must be ordered by floormod"):
        make_table(DIM, BANK).restore(tmp_path / "c", BANK)
    del tensors["t-keys_erased"]
    write(tmp_path / "c", tensors)
    with pytest.raises(tf.errors.DataLossError, match="t-keys_erased"):
        make_table(DIM, BANK).restore(tmp_path / "c", BANK)
