# SPDX-License-Identifier: Apache-2.0
"""Adult: who earned more than 50,000 dollars in 1994, by the census. Converted from UCI's files."""

import csv
import hashlib
import pathlib
from typing import Optional

from model_zoo.data.cache import DataUnavailableError, default_cache_dir, whole_file

_PAGE = "https://archive.ics.uci.edu/dataset/2/adult"
_FILES = {"train.csv": "adult.data", "test.csv": "adult.test"}
_HEADER = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status"),
    *("occupation", "relationship", "race", "sex", "capital_gain", "capital_loss"),
    *("hours_per_week", "native_country", "income"),
)


def prepare_adult(
    folder: Optional[pathlib.Path], cache_dir: Optional[pathlib.Path] = None
) -> pathlib.Path:
    """Writes train.csv and test.csv, once for each pair of files, with headers.

    UCI's files have a space after each comma and no header; the test file begins with a comment,
    and its incomes end with a point.

    Args:
      folder: Folder of adult.data and adult.test.
      cache_dir: Folder for converted data. None: default_cache_dir().

    Returns:
      The folder of train.csv and test.csv.

    Raises:
      DataUnavailableError: There is no folder, or a file is not in it.
      ValueError: A line has another number of fields.
    """
    if folder is None or not all((folder / name).is_file() for name in _FILES.values()):
        raise DataUnavailableError(
            f"folder must hold {' and '.join(_FILES.values())}, got {folder}; get them from {_PAGE}"
        )
    content = b"".join((folder / name).read_bytes() for name in _FILES.values())
    digest = hashlib.sha256(content).hexdigest()[:16]
    target = pathlib.Path(cache_dir or default_cache_dir()) / "adult" / digest
    for written, name in _FILES.items():
        if not (target / written).exists():
            with whole_file(target / written) as file, (folder / name).open() as lines:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(_HEADER)
                for number, line in enumerate(lines, 1):
                    fields = [field.strip() for field in line.rstrip().rstrip(".").split(",")]
                    if fields == [""] or line.startswith("|"):
                        continue
                    if len(fields) != len(_HEADER):
                        raise ValueError(
                            f"{folder / name} line {number} must have {len(_HEADER)} fields, got "
                            f"{len(fields)}"
                        )
                    writer.writerow(fields)
    return target
