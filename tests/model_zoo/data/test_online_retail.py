# SPDX-License-Identifier: Apache-2.0
"""Purchases are cleaned, sorted and written once for each file that holds them."""

import gzip

import pytest

from model_zoo import data
from model_zoo.data.online_retail import prepare_online_retail

HEADER = "InvoiceNo,StockCode,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"


def purchase(invoice, item, date, customer="17850.0", price="2.55", quantity="6.0"):
    return f"{invoice},{item},{quantity},{date} 08:26:00,{price},{customer},United Kingdom"


# Customer 17850 buys 10001 and 10002, then 10003 (train), then 10004 (test).
PURCHASES = [
    purchase("536365", "10001", "2010-12-01"),
    purchase("536365", "10002", "2010-12-01"),
    purchase("540000", "10003", "2011-03-01", price="0.5"),
    purchase("540001", "10001", "2011-03-02", customer="99", price="2"),
    purchase("580000", "10004", "2011-11-02"),
]


def retail_file(tmp_path, lines, header=HEADER, name="purchases.csv"):
    path = tmp_path / name
    text = "\n".join([header, *lines]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def lines_of(path, tmp_path):
    return (prepare_online_retail(path, tmp_path / "cache") / "purchases.csv").read_text()


def test_each_purchase_is_a_line_with_the_median_price_of_its_item(tmp_path):
    header, *lines = lines_of(retail_file(tmp_path, PURCHASES), tmp_path).splitlines()
    assert header == "invoice,user,country,item,price,quantity,time"
    assert lines[2] == "540000,17850,United Kingdom,10003,50,6,2011-03-01T08:26:00"
    assert [line.split(",")[4] for line in lines] == ["255", "255", "50", "255", "255"]


def test_what_is_no_purchase_is_left_out_and_order_does_not_matter(tmp_path):
    clean = lines_of(retail_file(tmp_path, PURCHASES), tmp_path)
    dirty = [
        *reversed(PURCHASES[2:]),
        *PURCHASES[:2],
        PURCHASES[0],
        purchase("C540002", "10009", "2011-03-03"),
        purchase("540003", "POST", "2011-03-03"),
        purchase("540003", "10009", "2011-03-03", customer=""),
        purchase("540003", "10009", "2011-03-03", quantity="-1"),
        purchase("540003", "10009", "2011-03-03", price="0"),
    ]
    assert lines_of(retail_file(tmp_path, dirty, name="dirty.csv"), tmp_path) == clean


def test_a_folder_stands_for_its_only_file_and_gzip_is_read(tmp_path):
    clean = lines_of(retail_file(tmp_path, PURCHASES), tmp_path)
    folder = tmp_path / "download"
    folder.mkdir()
    retail_file(folder, PURCHASES, name="anything.csv.gz")
    assert lines_of(folder, tmp_path) == clean
    retail_file(folder, PURCHASES, name="more.csv")
    with pytest.raises(ValueError, match="folder must hold one CSV file of purchases, got .*more"):
        lines_of(folder, tmp_path)


def test_a_file_is_converted_once_and_a_changed_file_anew(tmp_path):
    path = retail_file(tmp_path, PURCHASES)
    first = prepare_online_retail(path, tmp_path / "cache")
    written = (first / "purchases.csv").stat().st_mtime_ns
    assert prepare_online_retail(path, tmp_path / "cache") == first
    assert (first / "purchases.csv").stat().st_mtime_ns == written
    retail_file(tmp_path, [*PURCHASES, purchase("580001", "10009", "2011-11-03")])
    assert "580001" in lines_of(path, tmp_path)


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (PURCHASES, "InvoiceNo,StockCode", "must be a CSV file with the columns"),
        ([*PURCHASES, purchase("1", "10009", "1.12.2010")], HEADER, "line 7 must be a purchase"),
        ([*PURCHASES, "540009,10009,six,2011-03-03,1,2,UK"], HEADER, "line 7 must be a purchase"),
        ([*PURCHASES, "540009"], HEADER, "line 7 must be a purchase"),
    ],
    ids=["columns", "date", "number", "short"],
)
def test_a_file_that_is_something_else_is_refused_by_line(tmp_path, lines, header, message):
    with pytest.raises(ValueError, match=message):
        lines_of(retail_file(tmp_path, lines, header), tmp_path)
    assert not list((tmp_path / "cache").glob("**/*.csv"))


def test_a_gzip_file_cut_short_is_refused(tmp_path):
    path = retail_file(tmp_path, PURCHASES, name="purchases.csv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="must be a whole CSV file"):
        lines_of(path, tmp_path)


@pytest.mark.parametrize("name", ["nowhere.csv", "."])
def test_a_missing_file_names_the_page_where_anyone_gets_it(tmp_path, name):
    with pytest.raises(data.DataUnavailableError, match="archive.ics.uci.edu/dataset/352"):
        lines_of(tmp_path / name, tmp_path)


@pytest.fixture
def retail(tmp_path, monkeypatch):
    """The schema with a window that a few purchases fill."""
    schema = (data.SCHEMAS / "online_retail.yaml").read_text()
    (tmp_path / "retail.yaml").write_text(schema.replace("window: 20000", "window: 2"))
    lines = [*PURCHASES, purchase("575000", "10001", "2011-10-20", quantity="12")]
    path = retail_file(tmp_path, lines)
    return data.load(tmp_path / "retail.yaml", path, tmp_path / "cache")


@pytest.mark.long
def test_times_divide_the_purchases_and_each_has_two_negatives(retail):
    assert [retail.rows(part) for part in data.PARTS] == [6, 3, 3]
    train, validation = retail.in_memory("train"), retail.in_memory("validation")
    assert retail.labels == ("buy", "bulk")
    assert train.labels["buy"].tolist() == [1, 0, 0, 1, 0, 0]
    assert validation.labels["bulk"].tolist() == [1, 0, 0]
    assert train.labels["bulk"].max() == 0  # six pieces


@pytest.mark.long
def test_the_history_holds_earlier_invoices_only(retail):
    train, test = retail.in_memory("train").features, retail.in_memory("test").features
    first, second = train["history"][0][:2].tolist()  # 10002 and 10001, before the training part
    assert train["history"][3].max() == -1  # another customer's first
    third = train["item"][0]
    assert test["history"][0][:4].tolist() == [second, third, first, second]


@pytest.mark.long
def test_time_and_price_become_ids(retail):
    train = retail.in_memory("train").features
    assert train["hour"][0] == 1 + 8
    assert train["day_of_week"][0] == 2  # 2011-03-01 was a Tuesday
    assert train["price_bucket"][0] == 1 + 5  # 2**5 <= 50 pence < 2**6
