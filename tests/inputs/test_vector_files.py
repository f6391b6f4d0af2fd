# SPDX-License-Identifier: Apache-2.0
"""Files of keys and vectors: the formats that are read, and what is refused."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator.inputs.vector_files import hash_strings, keys_path, read_vectors

ROWS = np.array([[1.5, -2], [0.25, 3]], np.float32)
WORDS = ["red", "dark blue"]


def write_npy(folder, keys, rows=ROWS):
    path = str(folder / "vectors.npy")
    np.save(path, rows)
    np.save(keys_path(path), keys)
    return path


def write_parquet(folder, keys, rows=ROWS, key="key"):
    path = str(folder / "vectors.parquet")
    lists = [list(map(float, row)) for row in rows]
    pyarrow.parquet.write_table(pyarrow.table({key: keys, "vector": lists}), path)
    return path


def write_text(folder, text):
    path = folder / "vectors.txt"
    path.write_bytes(text.encode())
    return str(path)


def hashes(words):
    with tf.Session() as session:
        return session.run(tf.strings.to_hash_bucket_fast(words, 2**63 - 1)).tolist()


@pytest.mark.parametrize("write", [write_npy, write_parquet])
def test_integers_are_keys_and_strings_are_hashed(write, tmp_path):
    found = read_vectors(write(tmp_path, [-7, 2**40]))
    assert found.keys.tolist() == [-7, 2**40] and found.keys.dtype == np.int64
    assert found.rows.tolist() == ROWS.tolist() and found.rows.dtype == np.float32
    assert read_vectors(write(tmp_path, WORDS)).keys.tolist() == hashes(WORDS)
    assert read_vectors(write(tmp_path, ["12", "-3"]), True).keys.tolist() == [12, -3]


@pytest.mark.parametrize("header", ["", "2 2\n"], ids=["GloVe", "word2vec"])
def test_words_of_text_are_hashed_or_are_decimal_numbers(header, tmp_path):
    # The first word has no space: it shows how long the vectors are.
    path = write_text(tmp_path, f"{header}red 1.5 -2 \r\ndark blue 2.5e-1 3\n\n")
    found = read_vectors(path)
    assert found.keys.tolist() == hashes(WORDS) == hash_strings(np.array(WORDS)).tolist()
    assert found.rows.tolist() == ROWS.tolist()
    path = write_text(tmp_path, f"{header}7 1 2\n-8 3 4\n")
    assert read_vectors(path, integer_keys=True).keys.tolist() == [7, -8]


@pytest.mark.parametrize(
    "text, rows",
    [
        ("5 100\n7 200\n", {5: [100], 7: [200]}),
        ("2 1\n5 100\n7 200\n", {5: [100], 7: [200]}),
        ("2  2\n5 1 2\n7 3 4\n", {5: [1, 2], 7: [3, 4]}),
        ("5 1 2\n7 3 4\n", {5: [1, 2], 7: [3, 4]}),
    ],
)
def test_a_first_line_of_two_integers_is_a_header_if_it_fits_the_rows(text, rows, tmp_path):
    found = read_vectors(write_text(tmp_path, text), integer_keys=True)
    assert dict(zip(found.keys.tolist(), found.rows.tolist())) == rows


BAD_TEXT = {
    "line 2 of .* must be a word and 2 numbers, got 'b 3'": "a 1 2\nb 3\n",
    "line 1 of .* must be a word and 1 numbers": "alone\n",
    "line 2 of .* must be a word": "a 1 2\nb x y\n",
    "must have each key once, got the same key for b'a' and b'a'": "a 1 2\nb 1 2\na 3 4\n",
    r"must have vectors that are finite in float32, got \[nan, 2.0\] for b'b'": "a 1 2\nb nan 2\n",
    r"finite in float32, got \[inf, 2.0\] for b'b'": "a 1 2\nb 1e39 2\n",
    "must have at least one vector, got none": "",
    "must have at least one vector": "0 300\n",
    "must have 3 vectors, as its first line says, got 2; get the whole": "3 2\na 1 2\nb 3 4\n",
    "must have 1 vectors, as its first line says, got 2": "1 2\na 1 2\nb 3 4\n",
    "must have 5 vectors, as its first line says, got 0": "5 300\n",
    "line 2 of .* must be a word and 3 numbers, got 'a 1 2'": "2 3\na 1 2\nb 3 4\n",
}


@pytest.mark.parametrize("message", BAD_TEXT)
def test_text_that_is_not_of_the_format_is_refused(message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_vectors(write_text(tmp_path, BAD_TEXT[message]))


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(
        ValueError, match=r"path must end in .npy, .parquet, .txt, .vec, got 'a.csv'"
    ):
        read_vectors("a.csv")
    with pytest.raises(ValueError, match="must have the columns key and vector, got"):
        read_vectors(write_parquet(tmp_path, [1, 2], key="id"))
    with pytest.raises(ValueError, match="vectors of one length, got 1, 2"):
        read_vectors(write_parquet(tmp_path, [1, 2], rows=[[1.0], [1.0, 2.0]]))
    with pytest.raises(ValueError, match=r"one vector for each key.* keys of shape \(3,\)"):
        read_vectors(write_npy(tmp_path, [1, 2, 3]))
    with pytest.raises(ValueError, match="must have floats, got int64"):
        read_vectors(write_npy(tmp_path, [1, 2], rows=np.array([[1], [2]])))
    with pytest.raises(ValueError, match="must be integers or strings, got float64"):
        read_vectors(write_npy(tmp_path, [1.0, 2.0]))
    with pytest.raises(ValueError, match="must be decimal numbers, got one with"):
        read_vectors(write_npy(tmp_path, WORDS), integer_keys=True)
    with pytest.raises(ValueError, match="must be int64, got 18446744073709551615"):
        read_vectors(write_npy(tmp_path, np.array([1, 2**64 - 1], np.uint64)))
    for array in (np.zeros([0, 2]), np.full([2, 2], 1e39)):
        with pytest.raises(ValueError, match="at least one vector|finite in float32, got .inf"):
            read_vectors(write_npy(tmp_path, [1, 2][: len(array)], rows=array))
    with pytest.raises(FileNotFoundError, match=r"missing.keys.npy"):
        read_vectors(str(tmp_path / "missing.npy"))
