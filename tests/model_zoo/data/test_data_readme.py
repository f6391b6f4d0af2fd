# SPDX-License-Identifier: Apache-2.0
"""The example of the reference of schemas runs, and the reference has every key."""

import pathlib
import re

import pytest
import tensorflow.compat.v1 as tf
from streamed_rows import load, rows

from model_zoo.data import schema

README = pathlib.Path(schema.__file__).with_name("README.md").read_text()
CLICKS = """\
user,item,hour,price,tags,seen,rating,time
ann,tea,9,2.5,hot|green,,5,2024-01-01 09:00
bob,tea,10,,hot,milk,3,2024-01-01 10:00
ann,milk,11,1,,tea,4,2024-01-02 11:00
bob,jam,12,3,sweet,tea milk,5,2024-01-03 12:00
ann,jam,13,3,sweet,milk tea,1,2024-01-04 13:00
"""


@pytest.mark.long
def test_the_example_loads_what_it_describes(tmp_path, monkeypatch):
    (example,) = re.findall("```yaml\n(.*?)```", README, re.DOTALL)
    (code,) = re.findall("```python\n(.*?)```", README, re.DOTALL)
    shop = load(tmp_path, example, **{"clicks-1__csv": CLICKS})
    assert [len(rows(shop, part)["like"]) for part in ("train", "test")] == [4, 1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "shop.yaml").write_text(example)
    names = {}
    with tf.Graph().as_default():
        exec(code, names)
    assert sorted(names["features"]) == sorted(shop.schema.columns[i].name for i in range(6))
    assert sorted(names["labels"]) == ["like", "love"]


def test_the_reference_has_every_key_that_a_schema_takes():
    source = pathlib.Path(schema.__file__).read_text()
    calls = re.findall(r"\.only\((.*?)\)\n", source, re.DOTALL)
    keys = {key for call in calls for key in re.findall(r'"(\w+)"', call)}
    keys |= {*schema.FORMATS, *schema.TRANSFORMS, *schema.ROLES, *schema.KINDS}
    assert len(keys) > 30
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", README)) == []
