# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: checksums, indexes and byte ranges as TensorFlow's, and damage."""

import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format import index_file
from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle
from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.index_file import DamagedIndexError, build_index, parse_index


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
    ids=["zeros", "ones", "ascending", "descending", "empty"],
)
def test_checksum_gives_the_vectors_of_rfc_3720(data, expected):
    assert crc32c(np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16384, 100_000])
def test_checksum_of_a_whole_is_the_checksum_byte_by_byte(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    expected = 0xFFFFFFFF
    for byte in data.tolist():
        expected ^= byte
        for _ in range(8):
            expected = expected >> 1 ^ (0x82F63B78 if expected & 1 else 0)
    assert crc32c(data) == expected ^ 0xFFFFFFFF


@pytest.mark.parametrize("cut", [0, 1, 8192, 20_001, 49_999, 50_000])
def test_checksum_goes_on_after_other_bytes(cut):
    data = np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_index_of_many_blocks_is_read_back():
    rng = np.random.default_rng(0)
    entries = sorted((rng.bytes(20), rng.bytes(int(rng.integers(0, 300)))) for _ in range(2000))
    file = build_index([(b"", b"header"), *entries])
    assert list(parse_index(file)) == [(b"", b"header"), *entries]


@pytest.mark.parametrize("where", range(40))
def test_index_with_a_flipped_bit_is_never_read_as_another(where):
    entries = [(b"", b"header"), *((b"key%04d" % i, b"value%d" % i) for i in range(30))]
    file = bytearray(build_index(entries))
    # The footer's padding, between the places and the magic number, is not checked.
    rng = np.random.default_rng(where)
    file[int(rng.integers(0, len(file) - 40))] ^= 1 << int(rng.integers(0, 8))
    with pytest.raises(DamagedIndexError):
        list(parse_index(bytes(file)))


@pytest.mark.parametrize("size", [0, 1, 47, 48, 100, -1, -8, -60])
def test_cut_index_is_an_error(size):
    file = build_index([(b"a", b"1"), (b"b", b"2" * 500)])
    with pytest.raises(DamagedIndexError):
        list(parse_index(file[:size]))


@pytest.mark.long
def test_every_tensor_is_found_with_its_bytes(checkpoint):
    prefix, tensors = checkpoint
    bundle = Bundle(prefix)
    assert set(bundle.tensors) == set(tensors)
    for name, array in tensors.items():
        tensor = bundle.tensors[name]
        assert tensor.shape == np.shape(array)
        read = [chunk for part in tensor.ranges for chunk in bundle.read(part)]
        if tensor.dtype != tf.string:
            assert tensor.dtype == tf.as_dtype(np.asarray(array).dtype)
            # Slices have whole rows here, so that their bytes in order are the tensor's.
            assert b"".join(chunk.tobytes() for chunk in read) == np.asarray(array).tobytes()


@pytest.mark.parametrize("rows", [1, 3, 7, 100, 10_000])
def test_rows_come_in_arrays_of_the_asked_length(checkpoint, rows):
    prefix, tensors = checkpoint
    expected = tensors["item-keys"]
    arrays = list(Bundle(prefix).read_rows("item-keys", rows))
    assert [len(array) for array in arrays[:-1]] == [rows] * (len(arrays) - 1)
    np.testing.assert_array_equal(np.concatenate(arrays), expected)
    assert arrays[0].dtype == np.int32


def test_slices_across_columns_and_of_large_tensors_are_found(tmp_path):
    # Lengths and starts that need one, two and three bytes in the slices' keys.
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape, axis, parts in (
            ("rows", [20_000, 2], 0, 3),
            ("columns", [3, 20_000], 1, 4),
            ("few", [5, 1, 2], 0, 5),
            ("halves", [128], 0, 2),
        ):
            partitioner = tf.fixed_size_partitioner(parts, axis=axis)
            tf.get_variable(name, shape, partitioner=partitioner)
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver(sharded=True).save(session, str(tmp_path / "model"))
    tensors = Bundle(prefix).tensors
    assert {name: len(tensor.ranges) for name, tensor in tensors.items()} == {
        "rows": 3,
        "columns": 4,
        "few": 5,
        "halves": 2,
    }


def test_slices_of_a_large_tensor_are_left_to_the_restore(tmp_path, monkeypatch):
    tf.disable_eager_execution()
    with tf.Graph().as_default():
        scope = {"use_resource": False, "partitioner": tf.fixed_size_partitioner(20)}
        tf.get_variable("large", initializer=tf.range(20000), **scope)  # 20 slices of 4 kB.
        tf.get_variable("small", initializer=tf.range(2000), **scope)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    read = []
    read_part = Bundle.read
    monkeypatch.setattr(
        Bundle, "read", lambda self, part: read.append(part.name) or read_part(self, part)
    )
    Bundle(prefix).check_files()
    assert len(read) == 20 and all("small" in name for name in read)
    compared = []
    Bundle(prefix).check_files(lambda path, parts: compared.extend(parts) or [True] * len(parts))
    assert len(compared) == 20
    # One slice is in the middle; TensorFlow chooses their order in the file.
    eleventh = [number != 10 for number in range(20)]
    damaged = r"the checksum of tensor 'large', rows from [1-9]\d*000 on does not match"
    with pytest.raises(tf.errors.DataLossError, match=damaged):
        Bundle(prefix).check_files(lambda path, parts: eleventh)


@pytest.mark.parametrize("count", [1, 3000], ids=["one", "many"])
def test_tensorflow_reads_what_is_written(tmp_path, checkpoint_files, count):
    version = Bundle(checkpoint_files["slices"] / "model.ckpt-100").header.version
    arrays = {f"tensor/{'x' * (i % 50)}{i}": np.arange(i % 9) + i for i in range(count)}
    prefix = str(tmp_path / "model")
    with NewBundle(prefix, version) as new:
        for name, array in arrays.items():
            new.add_array(name, array)
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == set(arrays)
    for name in list(arrays)[:100]:
        np.testing.assert_array_equal(reader.get_tensor(name), arrays[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.data-00000-of-00001",
        "model.index",
    ]


# An index of two entries: length shared, length of the rest, length of the value, rest, value.
TWO_ENTRIES = [(b"aa", b"1"), (b"ab", b"2")]
BLOCK = b"\0\2\1aa1\1\1\1b2\0\0\0\0\1\0\0\0"


@pytest.mark.parametrize(
    "at, changed, message",
    [
        (6, b"\5", "the entry at byte 6 does not fit"),
        (7, b"\x7f", "the entry at byte 6 does not fit"),
        (8, b"\x7f", "the entry at byte 6 does not fit"),
        (6, b"\x80" * 5, "does not fit"),
        (9, b"a", "its keys are not in order"),
        (11, b"\1", "positions within an entry"),
        (11, b"\6", "positions within an entry"),
        (15, b"\xff\xff\xff\xff", "the block at byte 0 has 4294967295 positions"),
        (15, b"\0", "its keys are not in order"),
    ],
)
def test_entries_that_lie_under_a_right_checksum_are_refused(at, changed, message):
    data = build_index(TWO_ENTRIES)
    assert data.startswith(BLOCK)
    block = BLOCK[:at] + changed + BLOCK[at + len(changed) :] + b"\0"
    checksum = masked(crc32c(np.frombuffer(block, np.uint8))).to_bytes(4, "little")
    with pytest.raises(DamagedIndexError, match=message):
        list(parse_index(block + checksum + data[len(block) + 4 :]))


def test_keys_must_ascend():
    for entries in (TWO_ENTRIES[::-1], TWO_ENTRIES[:1] * 2):
        with pytest.raises(DamagedIndexError, match="its keys are not in order"):
            list(parse_index(build_index(entries)))


@pytest.mark.long
def test_keys_that_share_all_they_can_are_refused_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(index_file, "_SHARING", 10**9)
    monkeypatch.setattr(index_file, "_BLOCK", 10**9)
    data = build_index([(b"k" * 5000 + b"%04d" % i, b"") for i in range(1000)])
    with pytest.raises(DamagedIndexError, match="its keys are longer than the file can hold"):
        list(parse_index(data))


@pytest.mark.parametrize("seed", range(10))
def test_flipped_bit_in_a_tensor_is_a_data_loss_that_names_the_file(tmp_path, checkpoint, seed):
    prefix, _ = checkpoint
    path = pathlib.Path(prefix + ".data-00000-of-00001")
    rng = np.random.default_rng(seed)
    bundle = Bundle(prefix)
    tensor = bundle.tensors["scope/user/part_1-values"]
    part = tensor.ranges[int(rng.integers(len(tensor.ranges)))]
    data = bytearray(path.read_bytes())
    data[part.entry.offset + int(rng.integers(part.entry.size))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match=r"data-00000-of-00001 is damaged.*checksum"):
        list(bundle.read(part))


def test_cut_and_missing_data_files_are_a_data_loss(checkpoint):
    prefix, _ = checkpoint
    path = pathlib.Path(prefix + ".data-00000-of-00001")
    bundle = Bundle(prefix)
    last = max(
        (part for tensor in bundle.tensors.values() for part in tensor.ranges),
        key=lambda part: part.entry.offset + part.entry.size,
    )
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tf.errors.DataLossError, match="damaged: it ends too early"):
        list(bundle.read(last))
    path.unlink()
    with pytest.raises(tf.errors.DataLossError, match="damaged: it is missing"):
        list(bundle.read(last))


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_checkpoint_that_goes_away_while_it_is_read_is_not_called_damaged(
    checkpoint, is_replaced
):
    prefix, _ = checkpoint
    index = pathlib.Path(prefix + ".index")
    bundle = Bundle(prefix)
    part = next(part for tensor in bundle.tensors.values() for part in tensor.ranges)
    data = index.read_bytes()
    index.unlink()
    if is_replaced:
        index.write_bytes(data + b"another")
    pathlib.Path(prefix + ".data-00000-of-00001").unlink()
    message = f"{prefix} was replaced or deleted while it was read; read it again"
    with pytest.raises(tf.errors.NotFoundError, match=message):
        list(bundle.read(part))


def test_damaged_index_is_a_data_loss_that_names_it(checkpoint):
    prefix, _ = checkpoint
    path = pathlib.Path(prefix + ".index")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(tf.errors.DataLossError, match=r"model.ckpt-100.index is damaged"):
        Bundle(prefix)
