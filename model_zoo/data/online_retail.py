# SPDX-License-Identifier: Apache-2.0
"""Online Retail: a year of purchases in a UK shop, read from a file that the user downloaded."""

import csv
import gzip
import hashlib
import pathlib
import zlib
from typing import Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np

from model_zoo.data.cache import default_cache_dir, whole_file
from model_zoo.data.column import PADDING, Column
from model_zoo.data.task import (
    HISTORY_LENGTH,
    DataUnavailableError,
    Task,
    hash_key,
)

ONLINE_RETAIL_PAGE = "https://archive.ics.uci.edu/dataset/352/online+retail"
CREDIT = f"Online Retail: Daqing Chen, UCI Machine Learning Repository, {ONLINE_RETAIL_PAGE}"

_RETAIL_HEADER = (
    "InvoiceNo",
    "StockCode",
    "Quantity",
    "InvoiceDate",
    "UnitPrice",
    "CustomerID",
    "Country",
)
_PURCHASES = "purchases.csv"
_RECENT_LINES = 20_000  # negatives are recent purchases, so popularity alone predicts nothing
_NEGATIVES = 2  # per purchase
_MOST_DRAWS = 1000  # for one negative; the real data need at most 5
_TRAIN_FROM, _TEST_FROM = np.datetime64("2011-01-15"), np.datetime64("2011-11-01")


def load_online_retail(path: Union[str, pathlib.Path], *, seed: int = 1) -> Task:
    """Loads the task: will this customer buy this item now?

    Each purchase is one positive row with two negative rows. The negatives are drawn from the items
    of the 20,000 lines before it that are not in the same invoice, so the popularity of an item
    alone has AUC 0.5. The history is the last 20 items of the customer's earlier invoices. Training
    rows are from 2011-01-15 to 2011-10-31, test rows are later.

    Args:
      path: A CSV file, or .csv.gz, with the columns of the UCI data set (Description may be
        missing) and dates like 2010-12-01 08:26:00. Lines without customer, cancellations, prices
        and quantities of 0 and codes that are not items are skipped.
      seed: Seed of the negatives.

    Raises:
      DataUnavailableError: The file does not exist; the message names its page.
      ValueError: The file has another form; the message names the line.
    """
    lines = _retail_lines(_purchases_file(pathlib.Path(path)))
    times = lines["InvoiceDate"]
    in_train = np.count_nonzero((times >= _TRAIN_FROM) & (times < _TEST_FROM))
    if not in_train or not np.any(times >= _TEST_FROM):
        raise ValueError(
            f"{path} must hold purchases from {_TRAIN_FROM} on and from {_TEST_FROM} on, got "
            f"{len(times)} purchases, {in_train} of them between these dates"
        )
    items, item = np.unique(lines["StockCode"], return_inverse=True)
    _, invoice = np.unique(lines["InvoiceNo"], return_inverse=True)
    # Median price of each item: lexsort by (item, price), middle of each run.
    order = np.lexsort((lines["UnitPrice"], item))
    starts, counts = np.unique(item[order], return_index=True, return_counts=True)[1:]
    median = lines["UnitPrice"][order][starts + counts // 2]
    price_bucket = np.floor(np.log2(np.maximum(100.0 * median, 1.0))).astype(np.int64)  # of pence

    time = lines["InvoiceDate"]
    history = _invoice_history(lines["CustomerID"], invoice, item)
    positives = np.flatnonzero(time >= _TRAIN_FROM)
    negatives = _draw_negatives(item, invoice, positives, np.random.default_rng(seed))

    line = np.repeat(positives, 1 + _NEGATIVES)
    shown = np.stack([item[positives], *negatives], axis=1).ravel()
    labels = np.tile(np.array([1] + [0] * _NEGATIVES, np.float32), len(positives))
    hours = time.astype("datetime64[h]").astype(np.int64)
    arrays = {
        "user": lines["CustomerID"][line],
        "country": np.array([hash_key(c) for c in lines["Country"]], np.int64)[line],
        "hour": (hours % 24)[line],
        "day_of_week": ((hours // 24 + 3) % 7)[line],  # 0 is Monday; 1970-01-01 was a Thursday
        "item": shown,
        "price_bucket": price_bucket[shown],
        "history": history[line],
    }
    test = time[line] >= _TEST_FROM
    return Task(
        name="online_retail",
        columns=(
            Column("user", "user"),
            Column("country", "user"),
            Column("hour", "context"),
            Column("day_of_week", "context"),
            Column("item", "item"),
            Column("price_bucket", "item"),
            Column("history", "history", table="item", max_length=HISTORY_LENGTH),
        ),
        train={name: array[~test] for name, array in arrays.items()},
        train_labels=labels[~test],
        test={name: array[test] for name, array in arrays.items()},
        test_labels=labels[test],
        item_names={key: f"stock code {code}" for key, code in enumerate(items)},
        credit=CREDIT,
    )


def prepare_online_retail(
    path: Union[str, pathlib.Path, None], cache_dir: Optional[Union[str, pathlib.Path]] = None
) -> pathlib.Path:
    """Writes purchases.csv, once for each file: a line for each purchase, in order of time.

    Args:
      path: The CSV file of load_online_retail, or a folder that holds no other. None: there is
        none, which is an error.
      cache_dir: Folder for converted data. None: default_cache_dir().

    Returns:
      The folder of purchases.csv. Its `price` is the median price of the item, in pence.

    Raises:
      DataUnavailableError: As load_online_retail does.
      ValueError: As load_online_retail does, or the folder holds several CSV files.
    """
    if path is None:
        raise DataUnavailableError(
            "folder must hold a CSV file of purchases, got none; get the data from "
            f"{ONLINE_RETAIL_PAGE} and save it as CSV"
        )
    source = _purchases_file(pathlib.Path(path))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = pathlib.Path(cache_dir or default_cache_dir()) / "online_retail" / digest
    if not (folder / _PURCHASES).exists():
        lines = _retail_lines(source)
        columns = {
            "invoice": lines["InvoiceNo"],
            "user": lines["CustomerID"],
            "country": lines["Country"],
            "item": lines["StockCode"],
            "price": np.round(100.0 * _median_prices(lines)).astype(np.int64),
            "quantity": lines["Quantity"],
            "time": lines["InvoiceDate"],
        }
        with whole_file(folder / _PURCHASES) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values()))
    return folder


def _purchases_file(path: pathlib.Path) -> pathlib.Path:
    """The CSV file that a path or its folder means."""
    found = [path]
    if path.is_dir():
        found = sorted([*path.glob("*.csv"), *path.glob("*.csv.gz")])
    if len(found) > 1:
        raise ValueError(
            f"folder must hold one CSV file of purchases, got {', '.join(map(str, found))}; "
            "give the file itself"
        )
    file = found[0] if found else path / _PURCHASES
    if not file.is_file():
        raise DataUnavailableError(
            f"folder must hold a CSV file of purchases, got {file}, which does not exist; "
            f"get the data from {ONLINE_RETAIL_PAGE} and save it as CSV"
        )
    return file


def _median_prices(lines: Mapping[str, np.ndarray]) -> np.ndarray:
    """The median price of the item of each line: float64 [lines]; the upper of two middles."""
    _, item = np.unique(lines["StockCode"], return_inverse=True)
    order = np.lexsort((lines["UnitPrice"], item))
    starts, counts = np.unique(item[order], return_index=True, return_counts=True)[1:]
    return lines["UnitPrice"][order][starts + counts // 2][item]


def _retail_lines(path: pathlib.Path) -> Dict[str, np.ndarray]:
    """Returns the purchases in order of time, one array per column."""
    kept: Dict[str, List] = {name: [] for name in _RETAIL_HEADER}
    seen = set()
    for number, row in _csv_rows(path):
        try:
            if None in row or None in row.values():  # csv marks too many and too few fields by None
                raise ValueError("as many fields as the header has are needed")
            pair = (row["InvoiceNo"], row["StockCode"])
            if not _is_purchase(row) or pair in seen:
                continue
            seen.add(pair)
            kept["CustomerID"].append(int(float(row["CustomerID"])))
            kept["UnitPrice"].append(float(row["UnitPrice"]))
            kept["Quantity"].append(round(float(row["Quantity"])))
            kept["InvoiceDate"].append(np.datetime64(row["InvoiceDate"], "s"))
            for name in ("InvoiceNo", "StockCode", "Country"):
                kept[name].append(row[name])
        except ValueError as error:
            raise ValueError(
                f"{path} line {number} must be a purchase with a date like 2010-12-01 08:26:00, "
                f"got {dict(row)} ({error})"
            ) from None
    times = np.array(kept["InvoiceDate"], "datetime64[s]")
    order = np.argsort(times, kind="stable")
    return {name: np.array(values)[order] for name, values in kept.items()}


def _csv_rows(path: pathlib.Path) -> Iterator[Tuple[int, Dict[str, str]]]:
    """The rows of a file with a header, and the line each ends on."""
    # Only the item descriptions have letters beyond ASCII, in whatever encoding; nobody reads them.
    opened = (gzip.open if path.suffix == ".gz" else open)(
        path, "rt", newline="", encoding="utf-8", errors="replace"
    )
    try:
        with opened as file:
            reader = csv.DictReader(file)
            if not set(_RETAIL_HEADER) <= set(reader.fieldnames or ()):
                raise ValueError(
                    f"{path} must be a CSV file with the columns {', '.join(_RETAIL_HEADER)}, got "
                    f"{str(reader.fieldnames)[:200]}"
                )
            for row in reader:
                yield reader.line_num, row
    except (EOFError, OSError, csv.Error, zlib.error) as error:
        raise ValueError(f"{path} must be a whole CSV file, got one with: {error}") from None


def _is_purchase(row: Mapping[str, str]) -> bool:
    """Whether a line is a purchase of an item by a known customer, not a return."""
    return (
        bool(row["CustomerID"])
        and not row["InvoiceNo"].startswith("C")
        and row["StockCode"][:5].isdigit()
        and float(row["Quantity"]) > 0
        and float(row["UnitPrice"]) > 0
    )


def _invoice_history(customer: np.ndarray, invoice: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Returns int64 [lines, 20]: the last items of the customer's earlier invoices."""
    history = np.full((len(item), HISTORY_LENGTH), PADDING, np.int64)
    order = np.argsort(invoice, kind="stable")
    starts = np.unique(invoice[order], return_index=True)[1]
    groups = np.split(order, starts[1:])  # lines of one invoice, in order of time
    groups.sort(key=lambda lines: lines[0])
    bought: Dict[int, np.ndarray] = {}
    for lines in groups:
        buyer = int(customer[lines[0]])
        before = bought.get(buyer, np.empty(0, np.int64))
        history[lines, : len(before)] = before
        bought[buyer] = np.concatenate([item[lines][::-1], before])[:HISTORY_LENGTH]
    return history


def _draw_negatives(
    item: np.ndarray, invoice: np.ndarray, positives: np.ndarray, random: np.random.Generator
) -> List[np.ndarray]:
    """Draws per negative a recent item for each line in `positives`, not of the same invoice."""
    item_count = int(item.max()) + 1
    in_invoice = np.unique(invoice * item_count + item)
    drawn = []
    for _ in range(_NEGATIVES):
        chosen = np.empty(len(positives), np.int64)
        left = np.arange(len(positives))
        for _ in range(_MOST_DRAWS):
            line = positives[left]
            low = np.maximum(line - _RECENT_LINES, 0)
            chosen[left] = item[random.integers(low, np.maximum(line, 1))]
            left = left[np.isin(invoice[line] * item_count + chosen[left], in_invoice)]
            if not len(left):
                break
        else:
            raise ValueError(
                "purchases must be of many invoices, got none but the items of its own invoice "
                f"before line {positives[left[0]]} in order of time"
            )
        drawn.append(chosen)
    return drawn
