# SPDX-License-Identifier: Apache-2.0
"""Online Retail: a year of purchases in a UK shop, read from a file that the user downloaded."""

import csv
import gzip
import hashlib
import pathlib
import zlib
from typing import Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np

from model_zoo.data.cache import DataUnavailableError, default_cache_dir, whole_file

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


def prepare_online_retail(
    path: Union[str, pathlib.Path, None], cache_dir: Optional[Union[str, pathlib.Path]] = None
) -> pathlib.Path:
    """Writes purchases.csv, once for each file: a line for each purchase, in order of time.

    Args:
      path: A CSV file, or .csv.gz, with the columns of the UCI data set (Description may be
        missing) and dates like 2010-12-01 08:26:00; or a folder that holds no other. None: there is
        none, which is an error. Lines without customer, cancellations, prices and quantities of 0
        and codes that are not items are skipped.
      cache_dir: Folder for converted data. None: default_cache_dir().

    Returns:
      The folder of purchases.csv. Its `price` is the median price of the item, in pence.

    Raises:
      DataUnavailableError: The file does not exist; the message names its page.
      ValueError: The file has another form; the message names the line. Or the folder holds several
        CSV files.
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
