# SPDX-License-Identifier: Apache-2.0
"""Preparations: what makes the files of a schema, once, before they are read."""

import pathlib
from typing import Callable, Dict, Optional

from model_zoo.data.adult import prepare_adult
from model_zoo.data.movielens_100k import prepare_movielens_100k
from model_zoo.data.online_retail import prepare_online_retail
from model_zoo.names import check_names

Folder = Optional[pathlib.Path]

# By name, a function of the folder with the files of the user and of the cache folder, which
# returns the folder with the files of the schema.
PREPARATIONS: Dict[str, Callable[[Folder, Folder], pathlib.Path]] = {
    "adult": prepare_adult,
    "movielens_100k": lambda folder, cache_dir: prepare_movielens_100k(cache_dir),
    "online_retail": prepare_online_retail,
}


def prepare(name: str, folder: Folder, cache_dir: Folder) -> pathlib.Path:
    """Runs a preparation.

    Args:
      name: One of PREPARATIONS.
      folder: Folder or file that the user has. None: what the preparation downloads.
      cache_dir: Folder for what is downloaded and converted. None: default_cache_dir().

    Returns:
      The folder with the files of the schema.

    Raises:
      DataUnavailableError: The data are not on this machine and cannot be downloaded.
      ValueError: There is no such preparation, or the files are wrong.
    """
    check_names("prepare", [name], list(PREPARATIONS))
    return PREPARATIONS[name](folder, cache_dir)
