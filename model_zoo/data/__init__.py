# SPDX-License-Identifier: Apache-2.0
"""Data sets of the model zoo.

Download MovieLens-100k once, to a cache folder:

    python -m model_zoo.data movielens_100k

``load`` returns a DataSet. ``load_task`` returns a Task, which DataSet replaces: it goes as soon as
the models, the runner and the data sets no longer use it.
"""

import pathlib
from typing import List, Optional, Union

from model_zoo.data.column import PADDING, Column
from model_zoo.data.dataset import PARTS, DataSet, MemoryDataSet, Rows
from model_zoo.data.generated import generate, generate_clicks
from model_zoo.data.logged import LoggedDataSet
from model_zoo.data.movielens_100k import (
    default_cache_dir,
    fetch_movielens_100k,
    load_movielens_100k,
)
from model_zoo.data.online_retail import ONLINE_RETAIL_PAGE, load_online_retail
from model_zoo.data.prepare import PREPARATIONS, prepare
from model_zoo.data.schema import Schema, read_schema
from model_zoo.data.streamed import StreamedDataSet
from model_zoo.data.task import HISTORY_LENGTH, DataUnavailableError, Task, exact_auc, hash_key
from model_zoo.names import check_names

__all__ = [
    "DATA_SETS",
    "HISTORY_LENGTH",
    "ONLINE_RETAIL_PAGE",
    "PADDING",
    "PARTS",
    "PREPARATIONS",
    "SCHEMAS",
    "Column",
    "DataSet",
    "DataUnavailableError",
    "LoggedDataSet",
    "MemoryDataSet",
    "Rows",
    "Schema",
    "StreamedDataSet",
    "Task",
    "default_cache_dir",
    "exact_auc",
    "fetch_movielens_100k",
    "generate",
    "generate_clicks",
    "hash_key",
    "load",
    "load_movielens_100k",
    "load_online_retail",
    "load_task",
    "prepare",
    "read_schema",
    "schema_names",
]

SCHEMAS = pathlib.Path(__file__).parent / "schemas"

DATA_SETS = ("movielens_100k", "online_retail", "generated")


def load(
    name: Union[str, pathlib.Path],
    folder: Union[str, pathlib.Path, None] = None,
    cache_dir: Union[str, pathlib.Path, None] = None,
) -> DataSet:
    """Loads a data set; every call gives the same rows.

    Args:
      name: "generated", one of the schemas in schemas/, or a schema file, which README.md in this
        folder describes.
      folder: Folder of the files that a schema names. None: that of the schema file.
      cache_dir: Folder for what is downloaded and measured. None: default_cache_dir().

    Raises:
      DataUnavailableError: The data are not on this machine and cannot be downloaded.
      ModuleNotFoundError: PyYAML, or pyarrow for Parquet, is not installed.
      ValueError: The name is unknown, the file is no schema, or there is no folder.

    Example:
      >>> load("generated").labels
      ('like', 'love')
    """
    if str(name) == "generated":
        return generate_clicks()
    built_in = SCHEMAS / f"{name}.yaml"
    path = built_in if built_in.exists() else pathlib.Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        check_names("data", [str(name)], ["generated", *schema_names()])
    schema = read_schema(path)
    cache = pathlib.Path(cache_dir or default_cache_dir()).expanduser()
    files = None if folder is None else pathlib.Path(folder).expanduser()
    if schema.prepare is not None:
        files = prepare(schema.prepare, files, cache)
    elif files is None and path == built_in:
        raise ValueError(
            f"folder must be given with {name}, got none; it must hold the files of {schema.credit}"
        )
    kind = LoggedDataSet if schema.is_log else StreamedDataSet
    return kind(schema, files or path.parent, cache)


def schema_names() -> List[str]:
    """Returns the names of the schemas in schemas/."""
    return sorted(path.stem for path in SCHEMAS.glob("*.yaml"))


def load_task(
    name: str, *, data_path: Optional[str] = None, cache_dir: Optional[str] = None
) -> Task:
    """Loads a data set by name as a Task; goes with Task.

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
