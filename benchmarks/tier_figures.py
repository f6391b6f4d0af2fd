# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/storage.md, for benchmarks/figures.py.

Each function takes a raw result: of bench_tiers.py, unless it says otherwise.
"""

from typing import Any, Dict, List, Tuple

Table = Tuple[List[str], List[List[str]]]


def steps(found: Dict[str, Any]) -> Table:
    """Steps of a table without files, of one with files and of RocksDB, one law of keys a line."""
    header = [
        "keys of a step",
        "all in memory, ms",
        f"{found['steps']['share']:.0%} in memory, ms",
        "misses",
        "misses/s",
        "of the disk's reads 32 at a time",
        "of the most it reads",
        "CPU \u00b5s a miss",
    ]
    rows = []
    for what, one in found["steps"]["summary"].items():
        misses = ["0", *4 * ["\u2013"]]
        if "misses_per_second" in one:
            misses = [
                f"{one['misses']:,.0f}",
                f"{one['misses_per_second']:,.0f}",
                f"{one['of_32_in_flight']:.2f}",
                f"{one['of_the_limit']:.2f}",
                f"{one['cpu_us_a_miss']:.1f}",
            ]
        times = [f"{one['memory_ms']:.0f}", f"{one['disk_ms']:.0f}"]
        rows.append([what.replace("zipf", "Zipf"), *times, *misses])
    return header, rows


def ahead(found: Dict[str, Any]) -> Table:
    """Steps whose rows the dataset reads ahead, of bench_tiers_ahead.py, a net and keys a line.

    The last column: a step waits for the disk at least as long as it does without reading ahead,
    and for the cores at least until they have done its work, as busy as they are with all rows in
    memory.
    """
    header = [
        "net",
        "keys of a step",
        "all in memory, ms",
        "read by the step, ms",
        "read ahead, ms",
        "times as fast",
        "at most",
    ]
    rows = []
    for net, of_net in found["nets"].items():
        for what, one in of_net["summary"].items():
            memory, step = one["memory_ms"], one["step_ms"]
            work = one["ahead_cpu_ms"] / one["memory_cpu_ms"] * memory
            times = [f"{ms:.0f}" for ms in (memory, step, one["ahead_ms"])]
            most = step / max(work, step - memory)
            gains = [f"{gain:.2f}" for gain in (one["gain"], most)]
            rows.append([net, what.replace("zipf", "Zipf"), *times, *gains])
    return header, rows


def sentences(found: Dict[str, Any]) -> List[str]:
    """What the cases save and rocksdb have found."""
    said = []
    if "save" in found:
        one = found["save"]["summary"]
        said.append(
            f"A save of this table takes {one['table_seconds']:.1f} s. A program that reads its "
            "files and writes as much as the checkpoint, in sequence, takes "
            f"{one['plain_seconds']:.1f} s from and to ordinary memory "
            f"({one['of_the_plain_file']:.2f} of its speed), and {one['contiguous_seconds']:.1f} s "
            f"from and to a huge page ({one['of_contiguous']:.2f}). A save needs "
            f"{one['memory_mib']:.0f} MiB beyond the table; {one['promised_mib']:.0f} are promised."
        )
    if "rocksdb" in found:
        ((what, one),) = found["rocksdb"]["summary"].items()
        ours = found["steps"]["summary"][what]["disk_ms"]
        said.append(
            f"RocksDB, with the same rows and a cache as large as these in memory, takes "
            f"{one['ms']:,.0f} ms to read and write the {one['rows']:,.0f} rows of a step of "
            f"{what.replace('zipf', 'Zipf')}, {one['ms'] / ours:.1f} times as long as a whole step "
            "here."
        )
    return said
