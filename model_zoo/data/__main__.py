# SPDX-License-Identifier: Apache-2.0
"""Downloads a data set and prints its license: python -m model_zoo.data NAME."""

import argparse
import sys
from typing import Optional, Sequence

from model_zoo.data import DataUnavailableError
from model_zoo.data.cache import default_cache_dir
from model_zoo.data.movielens_100k import CREDIT, fetch_movielens_100k


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.data", description=__doc__)
    parser.add_argument("name", choices=["movielens_100k"])
    parser.add_argument(
        "--cache_dir", metavar="DIR", help=f"folder for the data (default: {default_cache_dir()})"
    )
    options = parser.parse_args(arguments)
    try:
        folder = fetch_movielens_100k(options.cache_dir)
    except DataUnavailableError as error:
        print(f"model_zoo.data: {error}", file=sys.stderr)
        return 1
    print(f"MovieLens-100k is in {folder}\n\n{CREDIT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
