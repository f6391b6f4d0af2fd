# SPDX-License-Identifier: Apache-2.0
"""The schemas of public data sets read tiny samples of their files."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import data
from model_zoo.data.schema import read_schema

COUNTS = range(1, 27)
CRITEO = ",".join(["Label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in COUNTS)])
AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)
FRAPPE = "label,user,item,daytime,weekday,isweekend,homework,cost,weather,country,city"
TAOBAO = (
    "clk,btag_his,cate_his,brand_his,userid,cms_segid,cms_group_id,final_gender_code,age_level,"
    "pvalue_level,shopping_level,occupation,new_user_class_level,adgroup_id,cate_id,campaign_id,"
    "customer,brand,price,pid,btag"
)
PERSON = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Male, 2174,"


def key(text):
    """The id of a text, as the package hashes it."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.strings.to_hash_bucket_fast(text, 2**63 - 1))


def write(folder, **files):
    for name, lines in files.items():
        text = "\n".join(lines) + "\n"
        (folder / name.replace("_", ".")).write_text(text)


def first_rows(data_set, part, count):
    """Features and labels of the first rows of a part."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(data_set.input_fn(part, count)())
        following = iterator.get_next()
        session.run(iterator.initializer)
        return session.run(following)


@pytest.mark.parametrize("name", data.schema_names())
def test_a_schema_has_its_own_name_and_says_whose_data_it_is(name):
    schema = read_schema(data.SCHEMAS / f"{name}.yaml")
    assert schema.name == name
    assert "http" in schema.credit


@pytest.mark.long
def test_criteo_x4_has_numbers_in_buckets_and_missing_values(tmp_path):
    rows = [
        ",".join(["1", "3", "-2", "", *["20"] * 10, *["68fd1e64"] * 25, ""]),
        ",".join(["0", *[""] * 13, *["05db9164"] * 26]),
    ]
    write(tmp_path, train_csv=[CRITEO, *rows], valid_csv=[CRITEO, *rows], test_csv=[CRITEO, *rows])
    criteo = data.load("criteo_x4", tmp_path, tmp_path / "cache")
    features, labels = first_rows(criteo, "train", 2)
    assert labels.tolist() == [1, 0]
    # floor(log(x)^2) above 2, x below, one further from 0; a missing number is as 0.
    assert [features[name][0] for name in ("I1", "I2", "I3", "I4")] == [2, -3, 1, 9]
    assert features["C1"].tolist() == [key("68fd1e64"), key("05db9164")]
    assert features["C26"][0] == key("") and len(features) == 39
    assert {criteo.rows(part) for part in data.PARTS} == {2}


@pytest.mark.long
def test_avazu_x4_has_hours_and_days_of_the_week(tmp_path):
    ad = "1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,44956a24,1,2"
    line = f"1000009418151094273,0,14102123,1005,0,{ad},15706,320,50,1722,0,35,-1,79"
    write(tmp_path, train_csv=[AVAZU, line], valid_csv=[AVAZU, line], test_csv=[AVAZU, line])
    features, labels = first_rows(data.load("avazu_x4", tmp_path, tmp_path), "test", 1)
    assert labels.tolist() == [0]
    assert (features["hour"][0], features["weekday"][0]) == (24, 2)  # 2014-10-21 was a Tuesday
    assert features["C20"][0] == key("-1") and features["device_id"][0] == key("a99f214a")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "header", "line"),
    [
        ("frappe_x1", FRAPPE, "1,451.0,5044.0,5149.0,5152.0,5153.0,5158.0,5164.0,5166.0,5178,5193"),
        ("movielenslatest_x1", "label,user_id,item_id,tag_id", "1,2,17029,40908"),
    ],
)
def test_columns_of_ids_are_ids_whatever_they_look_like(tmp_path, name, header, line):
    write(tmp_path, train_csv=[header, line], valid_csv=[header, line], test_csv=[header, line])
    features, labels = first_rows(data.load(name, tmp_path, tmp_path), "validation", 1)
    assert labels.tolist() == [1] and len(features) == len(header.split(",")) - 1
    for column, value in list(zip(header.split(","), line.split(",")))[1:]:
        assert features[column][0] == key(value)


@pytest.mark.long
def test_taobao_ad_has_histories_of_categories_and_brands(tmp_path):
    line = "0,1^2,6261^4520,91286,234,0,5,2,5,,3,0,3,63133,6406,83237,1,95471,170.0,430548_1007,1"
    many = line.replace("6261^4520", "^".join(map(str, range(70)))).replace("95471", "91286")
    write(tmp_path, train_csv=[TAOBAO, *[line] * 40], test_csv=[TAOBAO, line, many])
    taobao = data.load("taobao_ad", tmp_path, tmp_path / "cache")
    features, labels = first_rows(taobao, "test", 2)
    assert labels.tolist() == [0, 0]
    assert features["cate_his"][0].tolist() == [key("6261"), key("4520")] + [-1] * 48
    assert features["cate_his"][1][-1] == key("49")  # cut to 50
    assert features["brand_his"][1][0] == features["brand"][1]
    assert features["price"][0] == np.float32(np.log1p(170.0))
    assert 0 < len(first_rows(taobao, "validation", 40)[1]) < 40


@pytest.mark.long
def test_adult_has_two_labels_and_a_test_file_with_points(tmp_path):
    train = [
        f"{PERSON} 0, 40, United-States, <=50K",
        PERSON.replace("Never-", "") + " 0, 10, ?, >50K",
    ]
    test = ["|1x3 Cross validator", *[line + "." for line in reversed(train)]]
    write(tmp_path, adult_data=[*train * 20, ""], adult_test=test)
    adult = data.load("adult", tmp_path, tmp_path / "cache")
    features, labels = first_rows(adult, "test", 2)
    assert labels["income"].tolist() == [1, 0] and labels["never_married"].tolist() == [0, 1]
    assert features["occupation"][0] == key("") and features["sex"][0] == key("Male")
    assert features["hours_per_week"][0] < 0 < features["hours_per_week"][1]
    assert "marital_status" not in features


def test_files_that_are_not_here_are_asked_for(tmp_path):
    with pytest.raises(ValueError, match="folder must be given with criteo_x4, got none.*Criteo"):
        data.load("criteo_x4", cache_dir=tmp_path)
    with pytest.raises(data.DataUnavailableError, match="adult.test, got .*; get them from http"):
        data.load("adult", tmp_path, tmp_path)
    with pytest.raises(ValueError, match="line 1 must have 15 fields, got 2"):
        write(tmp_path, adult_data=["39, State-gov"], adult_test=["x"])
        data.load("adult", tmp_path, tmp_path / "cache")


def test_names_that_do_not_exist_are_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match="data must be among generated, .* did you mean 'criteo_x4'"
    ):
        data.load("criteo")
