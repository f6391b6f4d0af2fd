# SPDX-License-Identifier: Apache-2.0
"""MovieLens-100k: 100,000 ratings of 1,682 films by 943 people. Downloaded, not redistributed."""

import csv
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from typing import Iterator, List, Optional, Union

from model_zoo.data.cache import DataUnavailableError, default_cache_dir, whole_file

_WHEEL = "recbole==1.2.1"
_WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_WHEEL_FOLDER = "recbole/dataset_example/ml-100k/"
_SHA256 = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
    "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
}
_RATINGS = "ratings.csv"
_RATINGS_HEADER = (
    *("user", "item", "rating", "time", "age", "gender", "occupation", "zip"),
    *("title", "genres", "year"),
)
_DOWNLOAD_SECONDS = 60  # 2.1 MB; without a network pip stops after 2 attempts of 10 s

CREDIT = """\
MovieLens-100k belongs to GroupLens Research (University of Minnesota): free for research, not to be
redistributed or used commercially without their permission
(https://grouplens.org/datasets/movielens/100k/). Cite F. M. Harper and J. A. Konstan (2015), The
MovieLens Datasets: History and Context, ACM Transactions on Interactive Intelligent Systems 5(4),
19. https://doi.org/10.1145/2827872"""


def fetch_movielens_100k(
    cache_dir: Optional[Union[str, pathlib.Path]] = None,
    *,
    timeout_seconds: float = _DOWNLOAD_SECONDS,
) -> pathlib.Path:
    """Downloads MovieLens-100k to the cache folder, unless it is there and unchanged.

    The files come from a wheel on the Python package index, which is neither installed nor kept.

    Args:
      cache_dir: Folder for data sets. None: default_cache_dir().
      timeout_seconds: Time limit of the download.

    Returns:
      The folder of ml-100k.inter, ml-100k.item and ml-100k.user.

    Raises:
      DataUnavailableError: There is no network or no pip, the wheel has other content, or the
        folder is not writable.
    """
    folder = pathlib.Path(cache_dir or default_cache_dir()) / "movielens_100k"
    if all(_sha256(folder / name) == digest for name, digest in _SHA256.items()):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            wheel = _download_wheel(scratch, timeout_seconds)
            with zipfile.ZipFile(wheel) as archive:
                for name in _SHA256:
                    whole = pathlib.Path(scratch) / name
                    whole.write_bytes(archive.read(_WHEEL_FOLDER + name))
                    os.replace(whole, folder / name)  # a crash leaves no half-written file
    except OSError as error:
        raise DataUnavailableError(
            f"cache_dir must be a folder to write to, got {folder} ({error.strerror}); "
            "choose another with --cache_dir"
        ) from None
    return folder


def _download_wheel(folder: str, timeout_seconds: float) -> pathlib.Path:
    """Downloads the wheel to `folder` and checks it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
    command += ["--dest", folder, _WHEEL]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(f"the package index did not answer in {timeout_seconds:.0f} s") from None
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise _unavailable(_reason(result.stdout))
    if _sha256(wheels[0]) != _WHEEL_SHA256:
        raise DataUnavailableError(
            f"{_WHEEL} must have SHA-256 {_WHEEL_SHA256}, got {_sha256(wheels[0])}; "
            "the package index in use serves another file, nothing of it was kept"
        )
    return wheels[0]


def _unavailable(reason: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"MovieLens-100k is not in the cache, and {_WHEEL}, which carries it, could not be "
        f"downloaded: {reason}. With network access: python -m model_zoo.data movielens_100k"
    )


def _reason(pip_output: str) -> str:
    """Returns the line of pip's output with the error, without its prefix."""
    lines = [line.strip() for line in pip_output.splitlines() if line.strip()]
    if any("timed out" in line for line in lines):
        return "the package index did not answer"
    if any("Retrying" in line for line in lines):  # pip's last line would blame the version
        return "no connection to the package index"
    if any("No matching distribution" in line for line in lines):
        return "the package index in use does not have it"
    lines = [line for line in lines if "ERROR" in line or "No module named" in line] or lines
    return lines[0].replace("ERROR: ", "") if lines else "pip said nothing"


def _sha256(path: pathlib.Path) -> Optional[str]:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def prepare_movielens_100k(cache_dir: Optional[Union[str, pathlib.Path]] = None) -> pathlib.Path:
    """Writes ratings.csv, once: a line for each rating in order of time, with its user and film.

    Args:
      cache_dir: As in fetch_movielens_100k.

    Returns:
      The folder of ratings.csv.

    Raises:
      DataUnavailableError: As fetch_movielens_100k does.
    """
    folder = fetch_movielens_100k(cache_dir)
    if not (folder / _RATINGS).exists():
        films = {row[0]: row[1:] for row in _atomic_rows(folder / "ml-100k.item")}
        users = {row[0]: row[1:] for row in _atomic_rows(folder / "ml-100k.user")}
        ratings = list(_atomic_rows(folder / "ml-100k.inter"))
        ratings.sort(key=lambda row: float(row[3]))  # stable: equal times keep the file's order
        with whole_file(folder / _RATINGS) as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(_RATINGS_HEADER)
            for user, film, rating, time in ratings:
                title, year, genres = films[film]
                described = [_title(title, year), "|".join(genres.split()), _year(year)]
                lines.writerow([user, film, rating, time, *users[user], *described])
    return folder


def _atomic_rows(path: pathlib.Path) -> Iterator[List[str]]:
    """Yields the fields of each line of a RecBole atomic file, without the header."""
    with path.open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            yield line.rstrip("\n").split("\t")


def _year(text: str) -> int:
    return int(text) if text.isdigit() else 0  # the set has one unknown film


def _title(title: str, year: str) -> str:
    """`Usual Suspects, The`, `1995` -> `The Usual Suspects (1995)`."""
    for article in ("The", "A", "An", "Les", "La", "Le", "Il", "Das", "Die", "Der"):
        if title.endswith(f", {article}"):
            title = f"{article} {title[: -len(article) - 2]}"
    return f"{title} ({year})" if year.isdigit() else title
