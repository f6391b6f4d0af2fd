# SPDX-License-Identifier: Apache-2.0
"""Data sets of the model zoo, one file each, as click tasks in NumPy columns.

Download MovieLens-100k once, to a cache folder:

    python -m model_zoo.data movielens_100k

``load`` returns a Task: the keys of each feature in training and test rows, and a description of
each column. Nothing here needs TensorFlow.
"""

from typing import Optional

from model_zoo.data.generated import generate
from model_zoo.data.movielens_100k import fetch_movielens_100k, load_movielens_100k
from model_zoo.data.online_retail import ONLINE_RETAIL_PAGE, load_online_retail
from model_zoo.data.task import (
    HISTORY_LENGTH,
    PADDING,
    Column,
    DataUnavailableError,
    Task,
    exact_auc,
    hash_key,
)

__all__ = [
    "DATA_SETS",
    "HISTORY_LENGTH",
    "ONLINE_RETAIL_PAGE",
    "PADDING",
    "Column",
    "DataUnavailableError",
    "Task",
    "exact_auc",
    "fetch_movielens_100k",
    "generate",
    "hash_key",
    "load",
    "load_movielens_100k",
    "load_online_retail",
]

DATA_SETS = ("movielens_100k", "online_retail", "generated")


def load(name: str, *, data_path: Optional[str] = None, cache_dir: Optional[str] = None) -> Task:
    """Loads a data set by name; every call gives the same rows.

    Args:
      name: One of DATA_SETS.
      data_path: The CSV file, for online_retail only.
      cache_dir: Folder for downloaded data, for movielens_100k only. None: default_cache_dir().

    Raises:
      ValueError: The name is unknown, or data_path is missing or must be omitted.
      DataUnavailableError: The data are not on this machine and the download failed.
    """
    if name not in DATA_SETS:
        raise ValueError(f"data must be one of {', '.join(DATA_SETS)}, got {name!r}")
    if name == "online_retail":
        if not data_path:
            raise ValueError(
                "data_path must be given with online_retail, got none; "
                f"get the data from {ONLINE_RETAIL_PAGE} and save it as CSV"
            )
        return load_online_retail(data_path)
    if data_path:
        raise ValueError(f"data_path must be left out with {name}, got {data_path!r}")
    return load_movielens_100k(cache_dir) if name == "movielens_100k" else generate()
