# SPDX-License-Identifier: Apache-2.0
"""Constants that a page, or the essay on the table in memory, names are those of the sources."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The folder whose files define a constant.
SOURCES = {
    "kBloomGenerations": "ops/core/filter",
    "kChunk": "ops/core/stripes",
    "kCompactedLater": "ops/core/tier",
    "kCompactedPerSpilled": "ops/core/tier",
    "kCountsPerRow": "ops/core/evict",
    "kDiskBlock": "ops/core/storage",
    "kEntries": "ops/core/index",
    "kGrowth": "ops/core/index",
    "kKeepBytes": "ops/core/base",
    "kKeyClasses": "ops/core/base",
    "kLeast": "ops/lookup",
    "kLeastCounts": "ops/core/evict",
    "kLockBlock": "ops/core/stripes",
    "kMaxBytes": "ops/checkpoint",
    "kMaxChainLength": "ops/checkpoint",
    "kMaxCount": "ops/pipeline",
    "kMaxLoad": "ops/core/index",
    "kMinSegment": "ops/core/storage",
    "kPart": "ops/lookup",
    "kShort": "ops/core/keys",
    "kStripes": "ops/core/base",
    "PS_WAIT_SECS": "rec_estimator/training",
    "_MOST_SHARED": "rec_estimator/checkpoint/format",
    "_PREFETCHED_BATCHES": "rec_estimator/graph_modifier",
    "_ROW_STDDEV": "rec_estimator",
    "_SMALL": "rec_estimator/checkpoint/format",
}

# By page: what it says, with the number as a group, and the constant.
PROSE = {
    "docs/architecture.md": [
        (r"one of the (\d+) parts of a shard", "kStripes"),
        (r"divides a shard into (\d+) stripes", "kStripes"),
        (r"key class \| `floormod\(key, (\d+)\)", "kKeyClasses"),
        (r"two cache lines, which hold (\w+)", "kEntries"),
    ],
    "docs/checkpoints.md": [
        (r"`floormod\(key, (\d+)\)`", "kKeyClasses"),
        (r"tensors up to (\d+ KiB)", "_SMALL"),
    ],
    "docs/core_measurements.md": [(r"keeps up to (\d+ MiB) of scratch memory", "kKeepBytes")],
    "docs/decisions.md": [
        (r"a lookup of (\d+) keys or more", "kLeast"),
        (r"More than (\d+) keys are grouped", "kShort"),
        (r"or (\d+) keys of a lookup of more than", "kPart"),
        (r"keys of a lookup of more than (\d+)", "kShort"),
        (r"and at least ([\d,]+)\. Their versions", "kLeastCounts"),
        (r"(\w+) may be compacted", "kCompactedPerSpilled"),
        (r"A step waits if (\w+) are due", "kCompactedLater"),
        (r"So `kChunk` is (\d+)\.", "kChunk"),
        (r"start with a standard deviation of (0[.\d]+\d)\.", "_ROW_STDDEV"),
    ],
    "docs/distributed.md": [
        (r"`floormod\(k, (\d+)\) % n`", "kKeyClasses"),
        (r"ps_wait_secs=(\d+)\)", "PS_WAIT_SECS"),
    ],
    "docs/filters.md": [
        (r"that occurred last: (\w+) for each row", "kCountsPerRow"),
        (r"and at least ([\d,]+)\.", "kLeastCounts"),
        (r"up to (\w+) generations", "kBloomGenerations"),
    ],
    "docs/storage.md": [
        (r"each of the (\d+) stripes", "kStripes"),
        (r"A step waits if (\w+) segments", "kCompactedLater"),
        (r"segments of at least (\d+ MiB)", "kMinSegment"),
        (r"costs a read of at least (\d+ KiB)", "kDiskBlock"),
        (r"up to (\w+) earlier ones", "_PREFETCHED_BATCHES"),
    ],
    "ops/core/table/embedding_table.h": [
        (r"choose one of (\d+) stripes", "kStripes"),
        (r"128 bytes, (\d+) entries", "kEntries"),
        (r"(\d+) keys at once", "kEntries"),
        (r"its locks for (\d+) keys at a time", "kLockBlock"),
    ],
    "ops/core/index/hash_index.h": [
        (r"grows to (\d\.\d) times its buckets", "kGrowth"),
        (r"when (\d+ %) of its entries", "kMaxLoad"),
    ],
    "ops/core/table/row_lookup.h": [
        (r"takes (\d+) keys at a time", "kChunk"),
        (r"compare the (\d+) keys of the bucket", "kEntries"),
    ],
    "SECURITY.md": [
        (r"deltas has at most ([\d,]+)", "kMaxChainLength"),
        (r"in a checkpoint have at most (\d+ KiB)", "kMaxBytes"),
        (r"`StepLoop` does at most ([\d,]+)", "kMaxCount"),
        (r"claim more than (\d+) times", "_MOST_SHARED"),
    ],
}
SUFFIXES = {".cc", ".h", ".py"}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
UNITS = {None: 1, " %": 0.01, " KiB": 2**10, " MiB": 2**20}


def number_of_prose(text: str) -> float:
    """`65,536`, `four`, `85 %` or `64 KiB` as a number."""
    if text in WORDS:
        return WORDS.index(text)
    number, unit = re.fullmatch(r"([\d.,]+)( %| [KM]iB)?", text).groups()
    return float(number.replace(",", "")) * UNITS[unit]


def number_of_source(text: str) -> float:
    """`int64_t{1} << 16`, `1_000_000` or `4096` as a number."""
    text = re.sub(r"\w+_t\{(\d+)\}", r"\1", text)
    assert re.fullmatch(r"[\d_.<*+ ]+", text), f"{text!r} is not a number"
    return float(eval(text))


@pytest.mark.parametrize(
    ("page", "prose", "constant"),
    [
        pytest.param(page, *row, id=f"{page}: {row[1]}: {row[0]}")
        for page, rows in PROSE.items()
        for row in rows
    ],
)
def test_constant_of_a_page_is_that_of_the_source(page, prose, constant):
    # A page may break a line between any two words.
    text = " ".join((ROOT / page).read_text().split())
    said = {number_of_prose(match) for match in re.findall(prose, text)}
    assert said, f"{page} no longer says {prose!r}: change the row of PROSE, or delete it"
    files = [path for path in (ROOT / SOURCES[constant]).glob("*.*") if path.suffix in SUFFIXES]
    definition = rf"\b{constant} = ([^;\n#]+)"
    written = [number for path in files for number in re.findall(definition, path.read_text())]
    assert len(written) == 1, f"a file in {SOURCES[constant]}/ must define {constant} once"
    assert said == {number_of_source(written[0].strip())}, f"{page} must say what {constant} is"


def test_every_constant_is_named():
    assert {constant for rows in PROSE.values() for _, constant in rows} == set(SOURCES)
