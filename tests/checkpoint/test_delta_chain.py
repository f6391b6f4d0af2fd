# SPDX-License-Identifier: Apache-2.0
"""Tests of whether a save can be a delta, and of which checkpoint it is one."""

import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import files
from rec_estimator.checkpoint.delta_chain import DeltaChain, SavedCheckpoint, forget_chain


@pytest.fixture
def session():
    with tf.Session() as session:
        yield session


@pytest.fixture
def saved(tmp_path):
    """Returns a function that makes a checkpoint with only an index."""

    def make(name, content="index"):
        (tmp_path / f"{name}.index").write_text(content)
        prefix = str(tmp_path / name)
        return SavedCheckpoint(prefix, files.signature_of(prefix), "identity")

    return make


@pytest.fixture
def chain(session, saved):
    """A chain of at most 2 deltas, which has a full checkpoint and a delta."""
    chain = DeltaChain(2)
    chain.replace(session, (saved("full"), saved("delta1")))
    return chain


def test_a_delta_continues_the_chain(chain, session, tmp_path):
    names = [each.prefix for each in chain.before(session, str(tmp_path / "delta2"))]
    assert names == [str(tmp_path / "full"), str(tmp_path / "delta1")]


def test_the_first_save_of_a_session_is_full(chain, tmp_path):
    with tf.Session() as other:
        assert chain.before(other, str(tmp_path / "delta2")) == ()


def test_a_save_after_a_restore_is_full(chain, session, tmp_path):
    forget_chain(session)
    assert chain.before(session, str(tmp_path / "delta2")) == ()


def test_a_save_after_that_of_another_saver_is_full(chain, session, saved, tmp_path):
    DeltaChain(2).replace(session, (saved("other"),))
    assert chain.before(session, str(tmp_path / "delta2")) == ()


def test_a_save_after_the_most_deltas_is_full(chain, session, saved, tmp_path):
    chain.replace(session, (saved("full"), saved("delta1"), saved("delta2")))
    assert chain.before(session, str(tmp_path / "delta3")) == ()


@pytest.mark.parametrize("name", ["full", "delta1", "folder/delta2"])
def test_a_save_over_the_chain_or_in_another_folder_is_full(chain, session, tmp_path, name):
    assert chain.before(session, str(tmp_path / name)) == ()


@pytest.mark.parametrize("name", ["full", "delta1"])
def test_a_save_after_the_chain_was_changed_or_removed_is_full(
    chain, session, saved, tmp_path, name
):
    saved(name, "another index")
    assert chain.before(session, str(tmp_path / "delta2")) == ()
    (tmp_path / f"{name}.index").unlink()
    assert chain.before(session, str(tmp_path / "delta2")) == ()
