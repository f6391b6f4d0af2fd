# SPDX-License-Identifier: Apache-2.0
"""Reads which checkpoint a delta builds on, and checks checkpoints before they are restored.

A delta, written by ``Saver(incremental=True)``, stores the name of its parent and the identity of
the parent's index. The parent may be a delta, too. To restore a delta, TableRestore reads the full
checkpoint at the start of the chain and then every delta in order.
"""

import os
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, TypeVar

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.files import Signature, identity_of, signature_of
from rec_estimator.checkpoint.format.bundle import Bundle, Compare, Index
from rec_estimator.checkpoint.format.stored_tables import find_tables, parent_of, tensors_of

_Index = TypeVar("_Index", bound=Index)


class Parent(NamedTuple):
    """The checkpoint that a delta holds the changes to."""

    prefix: str
    identity: Optional[str]  # The identity of its index; None in deltas of older releases.


def check_chain(prefix: str, compare: Optional[Compare] = None) -> Index:
    """Checks a checkpoint, and those it builds on, before a restore changes anything.

    Checks the structure of every index, the lengths of all data files and the checksums of small
    tensors. TensorFlow restores variables and tables at the same time, and ends the process for
    some entries of an index.

    Args:
      prefix: Prefix of a checkpoint, full or not.
      compare: Compares the checksums of large tensors. None: they are compared when they are
        restored.

    Returns:
      The index of the checkpoint.

    Raises:
      tf.errors.NotFoundError: A parent checkpoint is missing.
      tf.errors.DataLossError: A checkpoint is damaged, or a parent was overwritten or exchanged.
    """
    first: Optional[Index] = None
    for checkpoint in _chain(prefix, Bundle):
        checkpoint.check_files(compare)
        first = first or checkpoint
    assert first is not None
    return first


def check_is_whole(prefix: str, name: str) -> None:
    """Refuses to read a tensor of which a checkpoint has the changed rows only.

    Args:
      prefix: Prefix of a checkpoint, full or not.
      name: The tensor's name.

    Raises:
      ValueError: The checkpoint is a delta, and the tensor is one of a table's.
    """
    bundle = Bundle(prefix)
    for table in find_tables(bundle).values():
        parent = parent_of(bundle, table)
        parts = [*table.shards, *(part for parts in table.slots.values() for part in parts)]
        if parent is not None and any(
            tensor.name == name for part in parts for tensor in tensors_of(bundle, part)
        ):
            raise ValueError(
                f"{name!r} must be read from a full checkpoint, got {prefix}, which has only what "
                f"changed in {table.name!r} since {parent}; resume the training, which begins and "
                "ends with a full checkpoint, or restore it in a session and call table.export()"
            )


def bundles_of(prefix: str) -> List[Bundle]:
    """Opens a checkpoint and those it builds on, the full one first.

    Raises:
      tf.errors.NotFoundError: A parent checkpoint is missing.
      tf.errors.DataLossError: An index is damaged, or a parent was overwritten.
    """
    return list(_chain(prefix, Bundle))[::-1]


def bundles_since(prefix: str, identity: str) -> Optional[List[Bundle]]:
    """Opens a checkpoint and those it builds on, back to one that it does not open.

    Args:
      prefix: Prefix of a checkpoint, full or not.
      identity: The identity of an index, as ``identity_of`` returns it.

    Returns:
      The checkpoints after the one with this identity, in their order; none if it is ``prefix``
      itself. None: ``prefix`` does not build on it.

    Raises:
      tf.errors.NotFoundError: A parent checkpoint is missing.
      tf.errors.DataLossError: An index is damaged, or a parent was overwritten.
    """
    found: List[str] = []
    for index in _chain(prefix, Index):
        if identity_of(index.prefix) == identity:
            return [Bundle(each) for each in reversed(found)]
        found.append(index.prefix)
    return None


def check_lengths(prefix: str) -> None:
    """Checks that the files of a checkpoint, and of those it builds on, are there in full length.

    Raises:
      tf.errors.NotFoundError: A parent checkpoint is missing.
      tf.errors.DataLossError: A data file is missing or cut, or a parent was overwritten.
    """
    for checkpoint in _chain(prefix, Bundle):
        checkpoint.check_lengths()


def _chain(prefix: str, read: Callable[[str], _Index]) -> Iterator[_Index]:
    """Yields a checkpoint and its parents, each after it was checked to be the parent."""
    seen: Set[str] = set()
    while prefix not in seen:
        seen.add(prefix)
        index = read(prefix)
        yield index
        parent = _parent_in(index)
        if parent is None:
            return
        _check_parent(prefix, parent)
        prefix = parent.prefix


def _check_parent(prefix: str, parent: Parent) -> None:
    identity = identity_of(parent.prefix)
    if identity is None:
        message = (
            f"checkpoint {parent.prefix}, to which {prefix} holds the changes, is missing; copy "
            "its files to the same folder, or restore another checkpoint"
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
            f"checkpoint {parent.prefix} was written again or exchanged: {prefix} holds the "
            f"changes to one whose index has the identity {parent.identity}, got {identity}; bring "
            "back its files, or restore a checkpoint that does not build on it"
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
            try:
                parent = _parent_in(Index(prefix))
            except (tf.errors.OpError, OSError, ValueError):
                parent = None  # It is damaged, or was just removed: restoring it reports that.
            known = self._parents[prefix] = (signature, parent)
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


def _parent_in(index: Index) -> Optional[Parent]:
    """Returns the parent of a delta, None for a full checkpoint. All tables have the same."""
    prefix = index.prefix
    for name in index.names:
        shard, _, suffix = name.rpartition("-")
        if suffix not in ("delta_of", "delta_of_index", "keys_erased"):
            continue
        if f"{shard}-delta_of" not in index.names:
            message = (
                f"checkpoint {prefix} has tensor {name} without {shard}-delta_of; the file is "
                "damaged"
            )
            raise tf.errors.DataLossError(None, None, message)
        parent = index.read_string(f"{shard}-delta_of")
        if os.path.basename(parent) != parent:
            message = (
                f"tensor {shard}-delta_of of {prefix} must name a checkpoint in the same folder, "
                f"got {parent!r}; the file is damaged"
            )
            raise tf.errors.DataLossError(None, None, message)
        has_identity = f"{shard}-delta_of_index" in index.names
        identity = index.read_string(f"{shard}-delta_of_index") if has_identity else None
        return Parent(os.path.join(os.path.dirname(prefix), parent), identity)
    return None
