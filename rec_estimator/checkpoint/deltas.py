# SPDX-License-Identifier: Apache-2.0
"""Reads which checkpoint a delta builds on, and checks that it is still there.

A delta, written by ``Saver(incremental=True)``, stores the name of its parent and the identity of
the parent's index. The parent may be a delta, too. To restore a delta, TableRestore reads the full
checkpoint at the start of the chain and then every delta in order.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.files import Signature, identity_of, signature_of


class Parent(NamedTuple):
    """The checkpoint that a delta holds the changes to."""

    prefix: str
    identity: Optional[str]  # Of its index; None in deltas of older releases.


def check_parents(prefix: str) -> None:
    """Checks the chain of a delta, before a restore changes anything.

    The op that restores a table makes the same checks, but by then variables may have been
    restored.

    Args:
      prefix: Prefix of a checkpoint. A full one passes.

    Raises:
      tf.errors.NotFoundError: A checkpoint of the chain is missing.
      tf.errors.DataLossError: A checkpoint of the chain was overwritten or exchanged.
    """
    seen: Set[str] = set()
    parent = _read_parent(prefix)
    while parent is not None and prefix not in seen:
        seen.add(prefix)
        _check_parent(prefix, parent)
        prefix, parent = parent.prefix, _read_parent(parent.prefix)


def _check_parent(prefix: str, parent: Parent) -> None:
    identity = identity_of(parent.prefix)
    if identity is None:
        message = (
            f"checkpoint {parent.prefix} must be there, as {prefix} holds the changes to it, "
            "got none; copy its files beside or restore another checkpoint"
        )
        raise tf.errors.NotFoundError(None, None, message)
    if parent.identity is None:
        tf.logging.log_first_n(
            tf.logging.WARN,
            "%s was written by an older release, which stored no identity of its parent %s: an "
            "overwritten parent cannot be detected. Save a full checkpoint.",
            1,
            prefix,
            parent.prefix,
        )
    elif parent.identity != identity:
        message = (
            f"checkpoint {parent.prefix} must be the one that {prefix} holds the changes to, "
            f"with an index of identity {parent.identity}, got {identity}; it was written "
            "again or exchanged: bring back its files, or restore a checkpoint that does not build "
            "on it"
        )
        raise tf.errors.DataLossError(None, None, message)


class Deltas:
    """Finds the parents of checkpoints; reads an index again only if it has changed."""

    def __init__(self) -> None:
        self._parents: Dict[str, Tuple[Signature, Optional[Parent]]] = {}

    def parent_of(self, prefix: str) -> Optional[str]:
        """Returns the prefix of a delta's parent, None for a full or a missing checkpoint."""
        signature = signature_of(prefix)
        if signature is None:
            return None
        known = self._parents.get(prefix)
        if known is None or known[0] != signature:
            known = self._parents[prefix] = (signature, _read_parent(prefix))
        parent = known[1]
        return None if parent is None else parent.prefix

    def family_of(self, prefix: str) -> "Family":
        """Returns all checkpoints that are now in the folder of ``prefix``."""
        folder = os.path.dirname(prefix)
        try:
            files = tf.io.gfile.listdir(folder or ".")
        except tf.errors.OpError:
            files = []
        parents: Dict[str, Optional[str]] = {}
        for file in sorted(files):
            name, suffix = os.path.splitext(file)
            if suffix == ".index":
                parent = self.parent_of(os.path.join(folder, name))
                parents[name] = None if parent is None else os.path.basename(parent)
        return Family(folder, parents)


class Family(NamedTuple):
    """The checkpoints of a folder: for each name, the name of its parent or None."""

    folder: str
    parents: Dict[str, Optional[str]]

    def dependents_of(self, prefix: str) -> List[str]:
        """Returns the prefixes of the deltas that cannot be restored without this checkpoint."""
        name = os.path.basename(prefix)
        return [os.path.join(self.folder, n) for n in self.parents if self._needs(n, name)]

    def without(self, prefix: str) -> "Family":
        """Returns the family without this checkpoint."""
        name = os.path.basename(prefix)
        return Family(self.folder, {n: p for n, p in self.parents.items() if n != name})

    def _needs(self, name: str, other: str) -> bool:
        seen = {name}
        parent = self.parents.get(name)
        while parent is not None and parent not in seen:
            if parent == other:
                return True
            seen.add(parent)
            parent = self.parents.get(parent)
        return False


def _read_parent(prefix: str) -> Optional[Parent]:
    try:
        reader = tf.train.NewCheckpointReader(prefix)
        for name in reader.get_variable_to_shape_map():
            if name.endswith("-delta_of"):
                parent = os.path.join(os.path.dirname(prefix), reader.get_tensor(name).decode())
                has_identity = reader.has_tensor(f"{name}_index")
                identity = reader.get_tensor(f"{name}_index").decode() if has_identity else None
                return Parent(parent, identity)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):
        # The file is damaged, or was just removed: restoring it reports that. For damaged data
        # files TensorFlow's reader raises various classes.
        return None
    return None
