# SPDX-License-Identifier: Apache-2.0
"""Hours and days of the week of times, against Python's calendar."""

import datetime

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo.data.column import Column
from model_zoo.data.fields import TimeParts
from model_zoo.data.schema import Field


def ids(transform, times, time_format=None):
    field = Field(Column("t", "context"), "t", transform=transform, time_format=time_format)
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(TimeParts(field, ("?",)).convert(tf.constant(times)))


@pytest.fixture(scope="module")
def times():
    random = np.random.default_rng(1)
    seconds = [0, 951_782_399, 951_782_400, 951_868_800, 4_107_542_399, 4_107_542_400]  # leap days
    seconds += random.integers(0, 2**32, 300).tolist()
    utc = datetime.timezone.utc
    return [datetime.datetime.fromtimestamp(each, utc) for each in seconds]


FORMS = {
    "date": ("%Y-%m-%d %H:%M:%S", None),
    "iso": ("%Y-%m-%dT%H:%M:%S", None),
    "digits": ("%Y%m%d%H", "%Y%m%d%H"),
    "european": ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_calendar_is_pythons(times, form):
    written, time_format = FORMS[form]
    texts = [each.strftime(written) for each in times]
    hours, are_good = ids("hour", texts, time_format)
    assert hours.tolist() == [1 + each.hour for each in times] and are_good.all()
    days, _ = ids("weekday", texts, time_format)
    assert days.tolist() == [1 + each.weekday() for each in times]


def test_seconds_are_utc_and_may_be_text_or_numbers(times):
    seconds = np.array([each.timestamp() for each in times])
    expected = [1 + each.hour for each in times]
    for column in (seconds, seconds.astype(np.int64), [f"{each:.3f}" for each in seconds]):
        assert ids("hour", column)[0].tolist() == expected
    assert ids("weekday", seconds)[0].tolist() == [1 + each.weekday() for each in times]


def test_avazu_writes_years_with_two_digits():
    assert ids("hour", ["14102123"], "%y%m%d%H")[0].tolist() == [24]
    assert ids("weekday", ["14102100"], "%y%m%d%H")[0].tolist() == [2]  # a Tuesday


def test_a_missing_time_is_0_and_a_date_may_have_no_hour():
    hours, are_good = ids("hour", ["", "?", "2011-11-01"])
    assert hours.tolist() == [0, 0, 1] and are_good.all()


def test_a_time_of_another_form_is_bad_and_its_problem_says_why():
    field = Field(Column("t", "context"), "t", transform="hour", time_format="%y%m%d%H")
    _, are_good = ids("hour", ["14102123", "2014"], "%y%m%d%H")
    assert are_good.tolist() == [True, False]
    assert "be a time like %y%m%d%H, got '2014'" in TimeParts(field).problem("2014")
    assert TimeParts(field).problem("14102123") == ""
    any_time = Field(Column("t", "context"), "t", transform="hour")
    assert "a number or a date like" in TimeParts(any_time).problem("noon")
