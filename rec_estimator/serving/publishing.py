# SPDX-License-Identifier: Apache-2.0
"""Publishes a training for serving: a base, then deltas that bring it up to date.

    folder/
      1795820229/            the base: a refreshable SavedModel
      deltas/model.ckpt-120  its deltas, as ordinary V2 checkpoints (.index, .data-…)
      manifest.json          which base and deltas there are, in order; for people, too

A delta for serving is the training's delta without slots, without counts of filters and without the
variables that the model does not read. The first names the checkpoint of the base as its parent,
each other one the delta before it.

The manifest is written last. So what it names is whole, and what it does not name is nothing.
"""

import json
import os
import re
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import deltas as training_deltas
from rec_estimator.checkpoint.files import identity_of, is_local
from rec_estimator.checkpoint.format.bundle import Bundle, Index, NewBundle
from rec_estimator.checkpoint.format.stored_tables import (
    FILTERED,
    SKETCH,
    StoredTable,
    find_tables,
    rows_of,
    tensors_of,
)
from rec_estimator.checkpoint.saver import Saver
from rec_estimator.graph_passes.graph_state import state_of

# What the folder has, and the folder of the deltas in it.
MANIFEST = "manifest.json"
DELTAS = "deltas"

# Exports a SavedModel: ``functools.partial(estimator.export_saved_model, serving_input_receiver_fn=
# receiver_fn)``.
_Export = Callable[..., bytes]

_Manifest = Dict[str, Any]


def publish(
    checkpoint: str, folder: str, export: Optional[_Export] = None, *, max_deltas: int = 100
) -> _Manifest:
    """Brings a folder for serving up to date with a checkpoint of a training.

    If the checkpoint leads on from what the folder has by deltas, these are written. Otherwise a
    new base is exported, and what belonged to the bases before the last one is removed. Whoever
    calls this for a folder is alone.

    Args:
      checkpoint: Prefix of a checkpoint, full or a delta of ``rec.Saver(incremental=True)``.
      folder: The folder, local or of a file system of ``tf.io.gfile``. Its parent exists.
      export: ``functools.partial(estimator.export_saved_model,
        serving_input_receiver_fn=receiver_fn)``, which is called for a new base.
      max_deltas: The most deltas of a base, at least 1.

    Returns:
      The manifest: ``base``, the name of the base; ``checkpoint`` and ``step``, of which it has the
      rows; ``deltas``, a list in which each has ``name``, for the signature ``refresh``, ``step``,
      ``rows_written``, ``rows_deleted`` and ``time``, seconds since 1970.

    Raises:
      ValueError: A new base is needed, and there is no export; or max_deltas is below 1.
      tf.errors.DataLossError: A checkpoint is damaged. The folder is as it was.

    Example:
      >>> import functools
      >>> def publish_latest(estimator, receiver_fn):
      ...     export = functools.partial(
      ...         estimator.export_saved_model, serving_input_receiver_fn=receiver_fn)
      ...     return rec.serving.publish(
      ...         tf.train.latest_checkpoint(estimator.model_dir), "published", export)
    """
    if max_deltas < 1:
        raise ValueError(f"max_deltas must be >= 1, got {max_deltas}; the default is 100")
    manifest = read_manifest(folder)
    if manifest is not None:
        new = training_deltas.bundles_since(checkpoint, manifest["source"])
        if new is not None and len(manifest["deltas"]) + len(new) <= max_deltas:
            for bundle in new:
                manifest = _publish_delta(bundle, folder, manifest)
            return manifest
    if export is None:
        raise ValueError(
            f"export must be a function, got None: {folder} has no base that {checkpoint} leads "
            "on from; pass functools.partial(estimator.export_saved_model, "
            "serving_input_receiver_fn=receiver_fn)"
        )
    return _publish_base(checkpoint, folder, export, manifest)


def read_manifest(folder: str) -> Optional[_Manifest]:
    """The manifest of a folder, as ``publish`` returns it; None if nothing was published.

    Raises:
      ValueError: The file is no manifest.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        with tf.io.gfile.GFile(path) as file:
            text = file.read()
    except tf.errors.NotFoundError:
        return None
    try:
        manifest = json.loads(text)
        return {key: manifest[key] for key in (*_FIELDS, *_PRIVATE)}
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} must be a manifest that publish() wrote, got {text[:100]!r}; remove it to "
            "publish a new base"
        ) from None


_FIELDS = ("base", "checkpoint", "step", "deltas")
# The base and the names of its deltas before this one, and the identity of the training's
# checkpoint that was published last.
_PRIVATE = ("previous", "source")


def _publish_base(
    checkpoint: str, folder: str, export: _Export, before: Optional[_Manifest]
) -> _Manifest:
    path = export(
        folder,
        checkpoint_path=checkpoint,
        refreshable=True,
        refresh_folder=os.path.join(folder, DELTAS),
    )
    base = os.path.basename(tf.compat.as_str(path))
    manifest: _Manifest = {
        "base": base,
        "checkpoint": os.path.basename(checkpoint),
        "step": Index(checkpoint).read_integer(tf.GraphKeys.GLOBAL_STEP),
        "deltas": [],
        "previous": None
        if before is None
        else {"base": before["base"], "deltas": [each["name"] for each in before["deltas"]]},
        "source": identity_of(checkpoint),
    }
    tf.io.gfile.makedirs(os.path.join(folder, DELTAS))
    _write_manifest(folder, manifest)
    _remove_old(folder, base, manifest["previous"] or {"base": None, "deltas": []})
    return manifest


def _remove_old(folder: str, base: str, previous: Dict[str, Any]) -> None:
    """Removes the bases before the previous one, and their deltas."""
    for name in tf.io.gfile.listdir(folder):
        name = name.rstrip("/")  # Some file systems mark folders so.
        if name.isdigit() and name not in (base, previous["base"]):
            tf.io.gfile.rmtree(os.path.join(folder, name))
    for name in tf.io.gfile.listdir(os.path.join(folder, DELTAS)):
        if re.sub(r"\.(index|data-\d+-of-\d+)(\.unfinished)?$", "", name) not in previous["deltas"]:
            tf.io.gfile.remove(os.path.join(folder, DELTAS, name))


def _publish_delta(source: Bundle, folder: str, manifest: _Manifest) -> _Manifest:
    base, published = manifest["base"], manifest["deltas"]
    # The first delta's parent is the checkpoint of the base, which is not in the folder.
    parent = published[-1]["name"] if published else manifest["checkpoint"]
    identity = manifest["source"]
    if published:
        identity = identity_of(os.path.join(folder, DELTAS, parent))
    variables = Index(os.path.join(folder, base, "variables", "variables")).names
    name = os.path.basename(source.prefix)
    source.check_files()
    tables = find_tables(source)
    dropped = _dropped(source, tables, set(variables))
    _write_whole(
        os.path.join(folder, DELTAS, name),
        lambda prefix: _write_delta(prefix, source, tables, dropped, parent, identity),
    )
    entry = {
        "name": name,
        "step": source.read_integer(tf.GraphKeys.GLOBAL_STEP),
        "rows_written": sum(rows_of(source, t.shards, "-keys") for t in tables.values()),
        "rows_deleted": sum(rows_of(source, t.shards, "-keys_erased") for t in tables.values()),
        "time": time.time(),
    }
    manifest = {
        **manifest,
        "deltas": [*published, entry],
        "source": identity_of(source.prefix),
    }
    _write_manifest(folder, manifest)
    return manifest


def _dropped(source: Bundle, tables: Dict[str, StoredTable], variables: Set[str]) -> Set[str]:
    """The tensors of a training's delta that serving does not need or that are written anew."""
    of_tables: Set[str] = set()
    dropped: Set[str] = set()
    for table in tables.values():
        dropped.add(f"{table.name}/default_values")  # The base has them.
        for names in table.slots.values():
            dropped.update(tensor.name for name in names for tensor in tensors_of(source, name))
        for shard in table.shards:
            of_tables.update(tensor.name for tensor in tensors_of(source, shard))
            left_out = (*FILTERED, *SKETCH, "-partition_filter_offset")
            dropped.update(shard + suffix for suffix in left_out)
            dropped.update(shard + suffix for suffix in ("-delta_of", "-delta_of_index"))
    return dropped | (set(source.tensors) - of_tables - variables)


def _write_delta(
    prefix: str,
    source: Bundle,
    tables: Dict[str, StoredTable],
    dropped: Set[str],
    parent: str,
    identity: Optional[str],
) -> None:
    with NewBundle(prefix, source.header.version) as copy:
        ranges: List[Any] = []
        for name, tensor in source.tensors.items():
            if name in dropped:
                continue
            ranges += tensor.ranges
            if tensor.header.entry.slices:
                copy.add_header(tensor.header)
        for part in sorted(ranges, key=lambda part: (part.entry.shard_id, part.entry.offset)):
            copy.add(part.key, part.entry, source.read(part))
        for shard in (shard for table in tables.values() for shard in table.shards):
            copy.add_string(f"{shard}-delta_of", parent)
            copy.add_string(f"{shard}-delta_of_index", identity or "")


def _write_whole(prefix: str, write: Callable[[str], None]) -> None:
    """Writes a checkpoint with write(local prefix), and copies it to a remote file system."""
    if is_local(prefix):
        for name in ("data-00000-of-00001", "index"):
            left = f"{prefix}.{name}.unfinished"  # A killed run left it.
            if os.path.exists(left):
                os.remove(left)
        write(prefix)
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, os.path.basename(prefix))
        write(local)
        for suffix in (".data-00000-of-00001", ".index"):  # The index last: it makes the delta.
            tf.io.gfile.copy(local + suffix, prefix + suffix, overwrite=True)


def _write_manifest(folder: str, manifest: _Manifest) -> None:
    path = os.path.join(folder, MANIFEST)
    with tf.io.gfile.GFile(f"{path}.unfinished", "w") as file:
        file.write(json.dumps(manifest, indent=2) + "\n")
    tf.io.gfile.rename(f"{path}.unfinished", path, overwrite=True)


class PublishHook(tf.train.SessionRunHook):
    """Saves a delta and publishes it, every so many seconds or steps of a training.

    The training must save incremental checkpoints, as RecEstimator does with a RunConfig that has
    ``save_incremental_checkpoints_secs`` or ``_steps``. After each full checkpoint the next
    publication is a new base: save them rarely. In a cluster the chief publishes.

    Args:
      folder: As in ``publish``.
      export: As in ``publish``.
      checkpoint_dir: The folder of the training's checkpoints.
      every_secs: Seconds between two publications. Give either every_secs or every_steps.
      every_steps: Steps between two publications.
      max_deltas: As in ``publish``. The Saver then writes that many after a full checkpoint.
      saver: The Saver of the training, such as the one of a Scaffold. None: that of the graph.

    Raises:
      ValueError: Not exactly one interval is given, or it is not above 0. When training begins: the
        Saver is not incremental.

    Example:
      >>> import functools
      >>> def train(estimator, input_fn, receiver_fn):
      ...     export = functools.partial(
      ...         estimator.export_saved_model, serving_input_receiver_fn=receiver_fn)
      ...     hook = rec.serving.PublishHook(
      ...         "published", export, estimator.model_dir, every_secs=5)
      ...     estimator.train(input_fn, hooks=[hook])
    """

    def __init__(
        self,
        folder: str,
        export: _Export,
        checkpoint_dir: str,
        *,
        every_secs: Optional[float] = None,
        every_steps: Optional[int] = None,
        max_deltas: int = 100,
        saver: Optional[Saver] = None,
    ) -> None:
        interval = every_steps if every_secs is None else every_secs
        if (every_secs is None) == (every_steps is None) or not (interval or 0) > 0:
            raise ValueError(
                "exactly one of every_secs and every_steps must be given and above 0, got "
                f"{every_secs} and {every_steps}; for example every_secs=5"
            )
        self._folder, self._export, self._max_deltas = folder, export, max_deltas
        self._saver = saver
        self._path = os.path.join(checkpoint_dir, "model.ckpt")
        self._timer = tf.train.SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)

    def begin(self) -> None:
        """Finds the global step; TensorFlow calls it when the model is in the graph."""
        self._is_chief = state_of().is_chief
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Finds the Saver, which a session may add to the graph when all hooks have begun."""
        del coord
        if self._saver is None:
            savers = session.graph.get_collection(tf.GraphKeys.SAVERS)
            self._saver = next(iter(savers), None)
        if self._is_chief and not getattr(self._saver, "is_incremental", False):
            raise ValueError(
                f"the Saver of the graph must be incremental for PublishHook, got {self._saver!r}; "
                "set save_incremental_checkpoints_secs in the RunConfig, or give the hook the "
                "rec_estimator.Saver(incremental=True) of the Scaffold"
            )
        if self._saver is not None and self._is_chief:
            # Each full checkpoint is a new base, so the Saver must not write one earlier.
            self._saver.allow_deltas(self._max_deltas)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Fetches the global step."""
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Publishes if it is time."""
        if not self._is_chief or not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        session = run_context.session
        step = int(session.run(self._step))
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        assert self._saver is not None
        prefix = self._saver.save(
            session, self._path, global_step=step, write_meta_graph=False, full=False
        )
        if prefix is not None:  # Otherwise rows are not finite, and the Saver has said so.
            publish(prefix, self._folder, self._export, max_deltas=self._max_deltas)
