# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as DeepRec and as this package write them, built tensor by tensor."""

import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf


def write(prefix, tensors, rows_per_slice=None):
    """Writes tensors {name: array} as a checkpoint, in one piece or in slices of their rows."""
    names, slices, inputs, feed = [], [], [], {}
    for name, array in tensors.items():
        array = np.asarray(array)
        spec = [("", array)]
        if rows_per_slice and array.ndim and array.size:
            shape = " ".join(map(str, array.shape))
            rest = "".join(":-" for _ in array.shape[1:])
            spec = [
                (f"{shape} {begin},{len(part)}{rest}", part)
                for begin in range(0, len(array), rows_per_slice)
                for part in [array[begin : begin + rows_per_slice]]
            ]
        for text, part in spec:
            names.append(name)
            slices.append(text)
            inputs.append(part)
    with tf.Graph().as_default(), tf.Session() as session:
        placeholders = [
            tf.placeholder(tf.string if part.dtype.kind in "SO" else part.dtype) for part in inputs
        ]
        feed = dict(zip(placeholders, inputs))
        session.run(
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=names,
                shape_and_slices=slices,
                tensors=placeholders,
            ),
            feed,
        )
    return str(prefix)


def in_bucket_order(keys):
    return keys[np.lexsort((keys, keys % 1000))]


def offsets(keys):
    return np.concatenate([[0], np.cumsum(np.bincount(keys % 1000, minlength=1000))]).astype("i4")


def rows_and_filtered(name, keys, filtered, dim=4, seed=0, dtype=np.int64):
    """The nine tensors of a shard or of a slot, as DeepRec names them."""
    rng = np.random.default_rng(seed)
    keys = in_bucket_order(np.asarray(keys, dtype))
    filtered = in_bucket_order(np.asarray(filtered, dtype))
    versions = rng.integers(0, 100, len(keys))
    versions[:1] = -1  # Not updated.
    return {
        f"{name}-keys": keys,
        f"{name}-values": rng.standard_normal((len(keys), dim)).astype(np.float32),
        f"{name}-freqs": rng.integers(5, 2000, len(keys)),
        f"{name}-versions": versions,
        f"{name}-keys_filtered": filtered,
        f"{name}-freqs_filtered": rng.integers(1, 5, len(filtered)),
        f"{name}-versions_filtered": rng.integers(0, 100, len(filtered)),
        f"{name}-partition_offset": offsets(keys),
        f"{name}-partition_filter_offset": offsets(filtered),
    }


EDGE_KEYS = (0, -1, 2**63 - 1, -(2**63))


def two_tables(seed=0):
    """Three shards with slots, one int32 table, and dense variables with names that deceive."""
    rng = np.random.default_rng(seed)
    tensors = {}
    keys = np.unique(np.concatenate([rng.integers(-(2**63), 2**63 - 1, 300), EDGE_KEYS]))
    rng.shuffle(keys)
    owned, filtered = keys[:200], keys[200:]
    for part in range(3):
        mine = [some[some % 1000 % 3 == part] for some in (owned, filtered)]
        for place, slot in enumerate(("", "/Adam", "/Adam_1")):
            shard = f"scope/user/part_{part}{slot}"
            tensors.update(rows_and_filtered(shard, *mine, seed=10 * part + place))
    few = rng.choice(10_000, 90, replace=False)
    tensors.update(rows_and_filtered("item", few[:50], few[50:], dim=1, dtype=np.int32, seed=7))
    tensors.update(
        {
            "global_step": np.int64(100),
            "names": np.array([b"a", b"", b"long" * 100]),
            "half": np.arange(6, dtype=np.float16).reshape(2, 3),
            "empty": np.zeros([0, 3], np.float32),
            # Not tables: float keys, different lengths, no values, a matrix of keys.
            "tower-keys": np.ones([3], np.float32),
            "tower-values": np.ones([3, 2], np.float32),
            "uneven-keys": np.arange(3),
            "uneven-values": np.ones([4, 2], np.float32),
            "lonely-keys": np.arange(3),
            "lonely-keys_filtered": np.arange(5),
            "attention-keys_filtered": np.ones([2, 2], np.float32),
        }
    )
    return tensors


def copy_without(prefix, path, is_left_out):
    """Copies the checkpoint without some tensors, which another writer may leave out."""
    reader = tf.train.NewCheckpointReader(prefix)
    names = [name for name in reader.get_variable_to_shape_map() if not is_left_out(name)]
    with tf.Graph().as_default(), tf.Session() as session:
        save = tf.raw_ops.SaveV2(
            prefix=str(path),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[reader.get_tensor(name) for name in names],
        )
        session.run(save)
    return str(path)


@pytest.fixture(scope="session")
def checkpoint_files(tmp_path_factory):
    """Folders with model.ckpt-100 as DeepRec and as rec.Saver store tensors."""
    folders = {}
    for form, rows_per_slice in (("one piece", None), ("slices", 7)):
        folders[form] = tmp_path_factory.mktemp("files")
        write(folders[form] / "model.ckpt-100", two_tables(), rows_per_slice)
    return folders


@pytest.fixture(params=["one piece", "slices"])
def checkpoint(request, checkpoint_files, tmp_path):
    """(prefix, tensors) of two tables and more; a copy of its own for the test."""
    shutil.copytree(checkpoint_files[request.param], tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "model.ckpt-100"), two_tables()


@pytest.fixture
def write_checkpoint():
    """The function ``write``."""
    return write


@pytest.fixture
def table_tensors():
    """The function ``rows_and_filtered``."""
    return rows_and_filtered
