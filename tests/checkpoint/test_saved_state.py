# SPDX-License-Identifier: Apache-2.0
"""Tests of whether a checkpoint already holds the state of a session."""

import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import files, removal
from rec_estimator.checkpoint.delta_chain import SavedCheckpoint
from rec_estimator.checkpoint.saved_state import SavedState, step_of


@pytest.fixture
def session():
    """A session at step 3 of a graph that counts steps."""
    step = tf.train.get_or_create_global_step()
    tf.assign_add(step, 1)
    with tf.Session() as session:
        session.run(step.initializer)
        session.run(step.assign(3))
        yield session


@pytest.fixture
def checkpoint(session, tmp_path):
    prefix = str(tmp_path / "model-3")
    tf.train.Saver().save(session, prefix)
    return SavedCheckpoint(prefix, files.signature_of(prefix))


def test_a_checkpoint_of_this_step_holds_the_state(session, checkpoint):
    state = SavedState()
    assert not state.is_at(checkpoint.prefix, session, 3)
    state.record(session, step_of(session), checkpoint)
    assert state.is_at(checkpoint.prefix, session, 3)


def test_a_checkpoint_of_another_step_session_or_prefix_does_not(session, checkpoint):
    state = SavedState()
    state.record(session, 3, checkpoint)
    assert not state.is_at(checkpoint.prefix, session, 4)
    assert not state.is_at(f"{checkpoint.prefix}-other", session, 3)
    with tf.Session() as other:
        assert not state.is_at(checkpoint.prefix, other, 3)


def test_a_checkpoint_that_is_gone_does_not(session, checkpoint):
    state = SavedState()
    state.record(session, 3, checkpoint)
    removal.remove(checkpoint.prefix)
    assert not state.is_at(checkpoint.prefix, session, 3)


def test_a_state_without_a_step_or_that_is_forgotten_is_not_known(session, checkpoint):
    state = SavedState()
    state.record(session, None, checkpoint)
    assert not state.is_at(checkpoint.prefix, session, 3)
    state.record(session, 3, checkpoint)
    state.forget()
    assert not state.is_at(checkpoint.prefix, session, 3)


def test_a_graph_that_does_not_count_steps_may_have_another_state_at_the_same_step(tmp_path):
    step = tf.train.get_or_create_global_step()
    with tf.Session() as session:
        session.run(step.initializer)
        prefix = tf.train.Saver().save(session, str(tmp_path / "model-0"))
        state = SavedState()
        state.record(session, 0, SavedCheckpoint(prefix, files.signature_of(prefix)))
        assert not state.is_at(prefix, session, 0)


def test_a_step_that_is_not_there_or_not_initialized_is_none(session):
    assert step_of(session) == 3
    with tf.Graph().as_default(), tf.Session() as other:
        assert step_of(other) is None
        tf.train.get_or_create_global_step()
        assert step_of(other) is None
