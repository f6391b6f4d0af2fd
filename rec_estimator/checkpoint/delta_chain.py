# SPDX-License-Identifier: Apache-2.0
"""Decides whether a save of a session can be a delta, and which checkpoint it builds on."""

import os
import weakref
from typing import NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import files
from rec_estimator.checkpoint.files import is_same_path


class SavedCheckpoint(NamedTuple):
    """A checkpoint that this process wrote or restored."""

    prefix: str
    signature: Optional[files.Signature]
    identity: Optional[str] = None  # The identity of its index; None if it was restored.

    def is_unchanged(self) -> bool:
        """Returns whether the checkpoint is still there and was not overwritten."""
        return self.signature is not None and files.signature_of(self.prefix) == self.signature


# A full checkpoint, then deltas.
Chain = Tuple[SavedCheckpoint, ...]


class _SessionChain(NamedTuple):
    owner: "DeltaChain"
    saved: Chain


# Each session has at most one chain, because its tables note the changes since one save only. Any
# other Saver starts with a full checkpoint.
_chains: "weakref.WeakKeyDictionary[tf.Session, _SessionChain]" = weakref.WeakKeyDictionary()


def forget_chain(session: tf.Session) -> None:
    """Makes the next save of a session full, because its tables were restored."""
    _chains.pop(session, None)


class DeltaChain:
    """The checkpoints that the next delta of a Saver builds on, for each session.

    Args:
      max_deltas: The largest number of deltas after a full checkpoint; may be changed.
    """

    def __init__(self, max_deltas: int) -> None:
        self.max_deltas = max_deltas

    def before(self, session: tf.Session, prefix: str) -> Chain:
        """Returns the chain that a delta at ``prefix`` continues; () if the save must be full."""
        chain = _chains.get(session)
        if (
            chain is None
            or chain.owner is not self
            or len(chain.saved) > self.max_deltas
            or any(is_same_path(saved.prefix, prefix) for saved in chain.saved)
            or not is_same_path(os.path.dirname(chain.saved[-1].prefix), os.path.dirname(prefix))
            or not all(saved.is_unchanged() for saved in chain.saved)
        ):
            return ()
        return chain.saved

    def replace(self, session: tf.Session, chain: Chain) -> None:
        """Records the chain that ends with the last save of a session."""
        _chains[session] = _SessionChain(self, chain)
