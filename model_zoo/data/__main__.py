# SPDX-License-Identifier: Apache-2.0
"""Downloads or converts a data set, once, and prints its license: python -m model_zoo.data NAME."""

import argparse
import pathlib
import sys
from typing import Optional, Sequence

from model_zoo.data import PREPARATIONS, SCHEMAS, DataUnavailableError, prepare, read_schema
from model_zoo.data.cache import default_cache_dir


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.data", description=__doc__)
    parser.add_argument("name", choices=sorted(PREPARATIONS))
    parser.add_argument(
        "--folder", metavar="DIR", help="folder of the files, if they are not downloaded"
    )
    parser.add_argument(
        "--cache_dir", metavar="DIR", help=f"folder for the data (default: {default_cache_dir()})"
    )
    options = parser.parse_args(arguments)
    folder, cache_dir = (
        each and pathlib.Path(each) for each in (options.folder, options.cache_dir)
    )
    try:
        written = prepare(options.name, folder, cache_dir)
    except (DataUnavailableError, OSError, ValueError) as error:
        print(f"model_zoo.data: {error}", file=sys.stderr)
        return 1
    credit = read_schema(SCHEMAS / f"{options.name}.yaml").credit
    print(f"{options.name} is in {written}\n\n{credit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
