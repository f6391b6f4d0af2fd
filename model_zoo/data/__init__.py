# SPDX-License-Identifier: Apache-2.0
"""Data sets of the model zoo.

Download MovieLens-100k once, to a cache folder:

    python -m model_zoo.data movielens_100k

``load`` returns a DataSet.
"""

import pathlib
from typing import List, Union

from model_zoo.data.cache import DataUnavailableError, default_cache_dir
from model_zoo.data.column import PADDING, Column, id_column
from model_zoo.data.dataset import PARTS, DataSet, MemoryDataSet, Rows
from model_zoo.data.exact_auc import exact_auc
from model_zoo.data.generated import generate_clicks
from model_zoo.data.logged import LoggedDataSet
from model_zoo.data.movielens_100k import fetch_movielens_100k
from model_zoo.data.online_retail import ONLINE_RETAIL_PAGE
from model_zoo.data.prepare import PREPARATIONS, prepare
from model_zoo.data.retrieval import RetrievalDataSet
from model_zoo.data.schema import Schema, read_schema
from model_zoo.data.streamed import StreamedDataSet
from model_zoo.names import check_names

__all__ = [
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
    "RetrievalDataSet",
    "Rows",
    "Schema",
    "StreamedDataSet",
    "default_cache_dir",
    "exact_auc",
    "fetch_movielens_100k",
    "generate_clicks",
    "id_column",
    "load",
    "prepare",
    "read_schema",
    "schema_names",
]

SCHEMAS = pathlib.Path(__file__).parent / "schemas"


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
