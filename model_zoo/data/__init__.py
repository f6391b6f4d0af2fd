# SPDX-License-Identifier: Apache-2.0
"""The model zoo's data sets, one file each, as click tasks in NumPy columns.

Fetch MovieLens-100k once, into a cache folder:

    python -m model_zoo.data movielens_100k

``load`` returns a Task: keys of every feature for the rows to train on and the rows to test on, and
what a model must know about each column. Nothing here needs TensorFlow.
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
      cache_dir: Folder of fetched data, for movielens_100k only. None: rec_estimator in the user's
        cache folder.

    Raises:
      ValueError: An unknown name, or a path missing or not wanted.
      DataUnavailableError: The data is not on this machine and cannot be fetched.
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
