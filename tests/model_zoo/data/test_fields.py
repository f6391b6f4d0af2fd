# SPDX-License-Identifier: Apache-2.0
"""Values of files become ids, numbers and labels as NumPy says."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import yaml
from streamed_rows import keys

from model_zoo.data.column import Column
from model_zoo.data.fields import (
    MISSING_INT,
    Buckets,
    Ids,
    Labels,
    Numbers,
    RawNumbers,
    Times,
    time_of,
)
from model_zoo.data.schema import Condition, Field


def convert(conversion, values, dtype=None):
    """The values, and whether all are good."""
    with tf.Session() as session:
        tensor, is_good = conversion.convert(tf.constant(values, dtype))
        return session.run((tensor, tf.reduce_all(is_good)))


def item(**settings):
    length = settings.pop("max_length", 1)
    return Field(Column("x", "item", max_length=length), "x", **settings)


def number(**settings):
    return Field(Column("x", "item", "number"), "x", **settings)


def test_texts_are_hashed_as_the_package_hashes_them():
    found, is_good = convert(Ids(item(), ("?",)), ["a", "", " ? ", "b"])
    assert found.tolist() == keys("a", "", "", "b") and is_good
    assert convert(Ids(item(default="z")), ["a", ""])[0].tolist() == keys("a", "z")


def test_integers_stay_and_a_missing_one_needs_a_default():
    assert convert(Ids(item()), [7, -5], tf.int64)[0].tolist() == [7, -5]
    assert convert(Ids(item(type="int")), ["7", "-5"])[0].tolist() == [7, -5]
    assert not convert(Ids(item(type="int")), ["7", ""])[1]
    found, is_good = convert(Ids(item(type="int", default="3")), [7, MISSING_INT], tf.int64)
    assert found.tolist() == [7, 3] and is_good
    assert convert(Ids(item(type="text")), [7], tf.int64)[0].tolist() == keys("7")
    # pandas writes integers with missing values as floats.
    assert convert(Ids(item(default="3")), [7.0, np.nan], tf.float64)[0].tolist() == [7, 3]


def test_lists_are_cut_padded_and_lose_what_is_missing():
    field = item(separator=", ", max_length=3, type="int")
    found, is_good = convert(Ids(field), ["1, 2, 3, 4", "", "5, , 6"])
    assert found.tolist() == [[1, 2, 3], [-1, -1, -1], [5, 6, -1]] and is_good
    found, _ = convert(Ids(item(max_length=3)), [["a", "b"], ["c", ""]])
    assert found.tolist() == [[*keys("a", "b"), -1], [*keys("c"), -1, -1]]
    found, _ = convert(Ids(item(max_length=1 + 1)), [[1, 2, 3]], tf.int64)
    assert found.tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", [tf.string, tf.float32])
def test_numbers_are_transformed_and_a_missing_one_is_0(dtype):
    values = np.array([0.5, -3.0, np.nan, 100.0], np.float32)
    raw = ["0.5", "-3", "", " 1e2"] if dtype == tf.string else values
    filled = np.nan_to_num(values)
    assert convert(Numbers(number()), raw)[0].tolist() == filled.tolist()
    found, _ = convert(Numbers(number(transform="log")), raw)
    # Another library's logarithm differs by some units in the last place.
    np.testing.assert_allclose(found, np.sign(filled) * np.log1p(np.abs(filled)), rtol=1e-6)
    found, _ = convert(Numbers(number(transform="standard"), moments=(2.0, 4.0)), raw)
    assert found.tolist() == [-0.375, -1.25, 0.0, 24.5]
    assert convert(Numbers(number(default=8.0)), raw)[0].tolist() == [0.5, -3, 8, 100]
    assert np.array_equal(convert(RawNumbers(number()), raw)[0], values, equal_nan=True)
    assert not convert(Numbers(number()), ["inf"])[1]


def test_a_constant_column_is_0_when_it_is_standardized():
    found, is_good = convert(Numbers(number(transform="standard"), moments=(2.0, 0.0)), ["2", ""])
    assert found.tolist() == [0, 0] and is_good


def test_buckets_make_ids_from_1_on_and_0_is_missing():
    found, _ = convert(Buckets(item(buckets=(1.0, 10.0))), ["0.5", "1", "9.5", "10", ""])
    assert found.tolist() == [1, 2, 2, 3, 0]
    values = [0, 1, 2, 3, 10, 1000, -1, -2]
    found, _ = convert(Buckets(item(transform="log_buckets")), np.array(values, np.float32))
    bucket = [int(np.floor(np.log(v) ** 2)) if v > 2 else v for v in values]
    assert found.tolist() == [b + 1 if b >= 0 else b - 1 for b in bucket]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("r >= 4", [0, 1, 1]), ("r == 5", [0, 0, 1]), ("r != 4.0", [1, 0, 1]), ("r < 4", [1, 0, 0])],
)
def test_labels_compare_a_column_with_a_number(text, expected):
    found, is_good = convert(Labels(Condition.parse(text)), ["3.5", "4", "5"])
    assert found.tolist() == expected and is_good
    assert not convert(Labels(Condition.parse(text)), ["3.5", ""])[1]


def test_labels_compare_a_column_with_a_text():
    assert convert(Labels(Condition.parse("s == sold")), ["sold", "kept"])[0].tolist() == [1, 0]
    assert convert(Labels(Condition.parse("s != '4'")), ["4", "5"])[0].tolist() == [0, 1]


def test_a_label_may_be_whether_a_value_is_there():
    labels = Labels(Condition.parse("order != ''"), ("-",))
    found, is_good = convert(labels, ["A1", "", "-"])
    assert found.tolist() == [1, 0, 0] and is_good
    assert not labels.problem("")
    assert convert(Labels(Condition.parse("order == ''")), [7], tf.int64)[0].tolist() == [0]


def test_a_label_without_a_comparison_is_0_or_1():
    assert convert(Labels(Condition("c")), [0, 1], tf.int64)[0].tolist() == [0, 1]
    assert not convert(Labels(Condition("c")), [0, 2], tf.int64)[1]


def test_times_are_numbers_or_dates_in_their_order():
    texts = ["2011-11-01", "2011-11-01 08:26", "2011-11-01T08:26:30Z", "14102100", "-1.5"]
    found, is_good = convert(Times("t"), texts)
    assert is_good and found.tolist() == [time_of(text) for text in texts]
    assert found.tolist() == [20111101000000, 20111101082600, 20111101082630, 14102100, -1.5]
    assert convert(Times("t"), [2**53 + 2], tf.int64)[0].tolist() == [2.0**53 + 2]


@pytest.mark.parametrize(
    ("conversion", "value", "problem"),
    [
        (Ids(item(type="int")), "x", "be an integer, got 'x'; correct it, or set type: text"),
        (Ids(item(type="int")), "", "not be missing; correct it, or set a default"),
        (Ids(item(type="int", default="1")), "", ""),
        (Ids(item(type="int", separator="|", max_length=2)), "1|x", "be an integer, got 'x'"),
        (Numbers(number()), "1,5", "be a number, got '1,5'; correct it, or list it under missing"),
        (Numbers(number(), ("NA",)), "NA", ""),
        (
            Labels(Condition("c")),
            "",
            "not be missing, because it is a label; fill it in or delete the row",
        ),
        (Labels(Condition("c")), "2", "be 0 or 1 to be a label, got '2'; write a comparison"),
        (Labels(Condition("c")), "no", "be 0 or 1 to be a label, got 'no'; write a comparison"),
        (Labels(Condition.parse("c > 1")), "2", ""),
        (Times("t"), "01/11/2011", "be a number or a date like 2011-11-01 08:26:00, got '01/11"),
    ],
)
def test_a_problem_says_what_is_wrong_and_what_to_do(conversion, value, problem):
    found = conversion.problem(value)
    assert found.startswith(problem) and bool(found) == bool(problem)


@pytest.mark.parametrize("value", ["sold", 'The "Real" Thing 73', "it's", "a: b # c"])
def test_the_comparison_that_a_problem_proposes_is_that_of_a_schema(value):
    proposed = Labels(Condition("my label")).problem(value).partition("for example ")[2]
    assert Condition.parse(yaml.safe_load(proposed)) == Condition("my label", "==", value)
