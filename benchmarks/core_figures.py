# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/core_measurements.md and README.md, for figures.py."""

import collections
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from benchmarks import bench_models
from benchmarks.columns import by_row, figure, fill, table

Result = Dict[str, Any]
PAGE = "docs/core_measurements.md"
MODELS = {"wide_and_deep": "wide & deep", "deepfm": "DeepFM", "dlrm": "DLRM"}
OTHERS = {"stock": "`tf.Variable`", "dense": "dense `tf.Variable`", "tfra": "TFRA 0.7.2"}
STEPS = {"train": "train step", "lookup": "lookup"}

# Names of results, by what was measured, on both machines and releases.
TABLES = ("bench_table", "bench_table_newest", "bench_table_amd", "bench_table_newest_amd")
HOT_TABLES = ("bench_table_hot", "bench_table_hot_amd", "bench_table_newest_hot_amd")
MODEL_STEPS = ("bench_models", "bench_models_newest", "bench_models_amd", "bench_models_newest_amd")
APPLIES = ("core_small_batches", "core_small_batches_amd")
RESTORES = ("bench_checkpoint_intel", "bench_checkpoint")


def _minor(found: Result) -> str:
    """The release of TensorFlow of a result, without its patch number."""
    return ".".join(found["tensorflow"].split(".")[:2])


def _maker(found: Result) -> str:
    return "AMD" if found["cpu"].startswith("AMD") else "Intel"


def _where(found: Result) -> str:
    return f"{_maker(found)} {_minor(found)}"


@figure("README.md", *MODEL_STEPS[:2], *TABLES[:2], "bench_table_hot", "bench_table_small")
def speed(models: Result, newest_models: Result, *tables: Result) -> str:
    """Times relative to those of others: what tables add to a model, and of one table alone.

    Args:
      models: Of bench_models.py.
      newest_models: The same with the newest release.
      tables: Of bench_table.py. The second one is that of the newest release.
    """
    newest = {(one["model"], one["batch"]): one for one in newest_models["results"]}
    rows = []
    for one in models["results"]:
        row = {**one["above_floor"]["single"], "newest": None}
        row["name"] = fill(f"{MODELS[one['model']]}, batch {{batch:,}}", one)
        if (one["model"], one["batch"]) in newest:
            of_newest = newest[one["model"], one["batch"]]
            row["newest"] = of_newest["above_floor"]["single"]["stock"]
        rows.append(row)
    batch = "{batch[0]:,} \u00d7 {batch[1]} ids, {unique_share:.0f %} distinct"
    for what, words in STEPS.items():
        for found in (tables[0], *tables[2:]):
            stock, tfra = (1 / found["ratios"][f"{what}/{other}"] for other in ("dense", "tfra"))
            row = {"name": fill(f"one table, {words}, {batch}", found), "newest": None}
            if found is tables[0]:
                row["newest"] = 1 / tables[1]["ratios"][f"{what}/dense"]
            rows.append({**row, "stock": stock, "tfra": tfra})
    columns = {
        "": "{name}",
        f"{OTHERS['stock']}, {_minor(models)}": "{stock:.2f}",
        f"{OTHERS['tfra']}, {_minor(models)}": "{tfra:.2f}",
        f"{OTHERS['stock']}, {_minor(newest_models)}": "{newest:.2f}",
    }
    return by_row(rows, columns)


Measured = Iterable[Tuple[str, Optional[float]]]  # Machines, releases or cases, and ratios.
Results = Mapping[str, Result]


def _of_tables(ratio: str) -> Callable[[Results], Measured]:
    names = (*TABLES, *HOT_TABLES)
    return lambda of: [(_where(of[name]), of[name]["ratios"].get(ratio)) for name in names]


def _of_models(other: str) -> Callable[[Results], Measured]:
    return lambda of: [
        (_where(of[name]), one["above_floor"]["single"].get(other))
        for name in MODEL_STEPS
        for one in of[name]["results"]
    ]


def _of_fbgemm(part: str) -> Callable[[Results], Measured]:
    return lambda of: [
        (_where(of["bench_torch"]), ratio)
        for one in of["bench_torch"][part]
        for ratio in one["ratios"]["train"].values()
    ]


def _of_16_bits(what: str) -> Callable[[Results], Measured]:
    first, narrow = "float32 + Adagrad", "bfloat16 + RowwiseAdagrad"
    return lambda of: [
        (_distinct(one["unique_share"]), values[narrow] / values[first])
        for one in of["bench_narrow_tables"]["results"]
        for values in [{**one["ratios"], "bytes": one["bytes_a_row"]}[what]]
        if one["rows"] == 50_000_000
    ]


def _of_sizes(what: str) -> Callable[[Results], Measured]:
    return lambda of: [
        (_distinct(one["unique_share"]["50000000"]), one["ratios"][f"{what}/rec_estimator"])
        for one in of["bench_table_sizes"]["distributions"]
    ]


def _of_files(what: str) -> Callable[[Results], Measured]:
    return lambda of: [(_maker(of[name]), of[name]["ratios"][what]) for name in RESTORES]


def _of_applies(keys: Sequence[int]) -> Callable[[Results], Measured]:
    return lambda of: [
        (case.replace("_", " "), one[f"apply_{case}"])
        for name in APPLIES
        for case in ("alone", "after_a_lookup")
        for one in of[name]["results"]
        if one["keys"] in keys
    ]


def _bytes_of_a_key(of: Results) -> Measured:
    return [
        (_maker(of["core_speed"]), one["bytes_a_key"]["mean"])
        for one in of["core_speed"]["results"]
    ]


# What is measured, the goal, and where the results have it.
GOALS = (
    ("speed of a train step / dense `tf.Variable`", "\u2265 2", _of_tables("train/dense")),
    ("speed of a train step / TFRA 0.7.2", "\u2265 4", _of_tables("train/tfra")),
    ("speed of a train step / FBGEMM", "\u2265 4", _of_fbgemm("tables")),
    ("speed of a lookup / dense `tf.Variable`", "\u2265 1.3", _of_tables("lookup/dense")),
    ("speed of a lookup / TFRA 0.7.2", "\u2265 3", _of_tables("lookup/tfra")),
    ("models, time above the floor / `tf.Variable`", "\u2264 0.6", _of_models("stock")),
    ("models, time above the floor / TFRA 0.7.2", "\u2264 0.25", _of_models("tfra")),
    ("models, speed / PyTorch with FBGEMM", "\u2265 1", _of_fbgemm("models")),
    ("16-bit rows, 50M, train step / float32", "\u2265 1.25", _of_16_bits("train")),
    ("16-bit rows, 50M, lookup / float32", "\u2265 1.25", _of_16_bits("lookup")),
    ("16-bit rows, 50M, memory / float32", "\u2264 0.55", _of_16_bits("bytes")),
    ("bytes of a key beyond its floats", "\u2264 40", _bytes_of_a_key),
    ("speed of a save / a plain write", "\u2265 0.7", _of_files("save")),
    ("speed of a restore / a plain read", "\u2265 0.7", _of_files("restore")),
    ("speed of a restore from the page cache", "\u2265 0.4", _of_files("restore, cached")),
    ("speed of a train step, 50M rows / 1M", "\u2265 0.6", _of_sizes("train")),
    ("speed of a lookup, 50M rows / 1M", "\u2265 0.6", _of_sizes("lookup")),
    (
        "CPU time of an apply, 256 to 4,096 keys / commit a858d32",
        "\u2264 0.55",
        _of_applies(range(256, 4097)),
    ),
    ("CPU time of an apply, 106,496 keys / commit a858d32", "\u2264 0.8", _of_applies([106_496])),
)
WITH_GOALS = (
    *(*TABLES, *HOT_TABLES, *MODEL_STEPS, *APPLIES, *RESTORES),
    *("bench_torch", "bench_narrow_tables", "bench_table_sizes", "core_speed"),
)


@figure(PAGE, *WITH_GOALS)
def goals(*found: Result) -> str:
    """What the design asks of speed and memory, and what was measured."""
    of = dict(zip(WITH_GOALS, found))
    rows = [[name, bound, *_measured(bound, ratios(of))] for name, bound, ratios in GOALS]
    return table(["", "goal", "measured", "reached"], rows)


def _measured(bound: str, measured: Measured) -> List[str]:
    """What was measured, and where it reaches a goal, which is a sign and a number."""
    values: Dict[str, List[float]] = collections.defaultdict(list)
    for where, value in measured:
        if value is not None:
            values[where].append(round(value, 2))
    sign, number = bound[0], float(bound[1:])
    shown, reached = [], []
    for where, of in values.items():
        least, most = min(of), max(of)
        shown.append(f"{least:.2f}" + f" to {most:.2f}" * (least < most) + f" ({where})")
        if least >= number if sign == "\u2265" else most <= number:
            reached.append(where)
    return [", ".join(shown), "yes" if len(reached) == len(shown) else ", ".join(reached) or "no"]


def _distinct(share: float) -> str:
    return f"{share:.0%} distinct"


FBGEMM = {
    "float32 + Adagrad": "float32, Adagrad",
    "float16 + RowwiseAdagrad": "float16, RowwiseAdagrad",
}


@figure(PAGE, "bench_torch")
def torch(found: Result) -> str:
    """How many times as fast as PyTorch with FBGEMM's tables, by rule; of bench_torch.py."""
    rows: Dict[str, Result] = {}

    def add(name: str, what: str, ratios: Result, of: str, rule: str) -> None:
        times = [ratios[clock][of] for clock in (what, f"{what}, CPU")]
        rows.setdefault(name, {"name": name})[rule] = "{:.2f} ({:.2f})".format(*times)

    for what, words in STEPS.items():
        for one in found["tables"]:
            name = f"one table, {words}, {_distinct(one['unique_share'])}"
            add(name, what, one["ratios"], "fbgemm", f"{one['value_dtype']} + {one['rule']}")
    for one in found["models"]:
        for rule in FBGEMM:
            name = fill(f"{MODELS[one['model']]}, batch {{batch:,}}", one)
            add(name, "train", one["ratios"], f"fbgemm, {rule}", rule)
    return by_row(rows.values(), {"": "{name}", **{FBGEMM[rule]: f"{{{rule}}}" for rule in FBGEMM}})


@figure(PAGE, "core_speed")
def core_speed(found: Result) -> str:
    """Millions of keys a second, and bytes of a key, of bench_embedding_table.cc."""
    whats = [f"{what}, {keys}" for keys in ("Zipf", "uniform") for what in ("lookup", "apply")]
    columns = {
        "rows": "{rows_M}M",
        **{what: f"{{{what}[cpu]:.3g}} [{{{what}[wall]:.3g}}]" for what in whats},
        "apply, all keys new": "{apply, all keys new[cpu]:.3g}",
        "bytes a key: mean, most": "{bytes_a_key[mean]:.1f}, {bytes_a_key[most]:.1f}",
    }
    return by_row(found["results"], columns)


@figure(PAGE, "bench_growth")
def growth(found: Result) -> str:
    """CPU time of new keys, in memory of freed rows and in new memory."""
    return fill(
        "A new key takes {new memory[us_a_key]:.2f} \u00b5s of CPU time in the median step, "
        "{new memory[in_the_kernel]:.0%} of it in the kernel; the slowest step takes "
        "{new memory[slowest_over_median]:.1f} times as long. In memory of an emptied table, a key "
        "takes {kept memory[us_a_key]:.2f} \u00b5s.",
        found["steps"],
    )


@figure(PAGE, "profile_restore")
def restore_profile(found: Result) -> str:
    """Where the CPU time of a restore goes, by functions that perf has sampled."""
    parts = {
        "finding entries for keys in the index and writing them": (
            "HashIndex::Insert",
            "BatchInsert::InsertWritten",
            "BatchInsert::InsertAll",
        ),
        "writing rows and their counts": ("BatchInsert::WriteRows", "BatchInsert::SetCounts"),
        "copying from the page cache": ("_copy_to_iter",),
        "computing checksums": ("ExtendCrc32c",),
    }
    groups, functions = found["restore"]["groups"], found["restore"]["functions"]
    total = sum(groups.values())
    times = {"Python and the new session": groups["other"]}
    for part, names in parts.items():
        times[part] = sum(
            ms for name, ms in functions.items() if any(each in name for each in names)
        )
    ordered = sorted(times.items(), key=lambda item: -item[1])
    shares = [f"{part} ({ms / total:.0%})" for part, ms in ordered]
    return f"Most of its CPU time goes into {', '.join(shares[:-1])} and {shares[-1]}."


@figure(PAGE, "bench_memory", "bench_memory_amd")
def memory(*results: Result) -> str:
    """What a cache line takes on each of two threads, of bench_memory.cc, by machine."""
    makers = [_maker(found) for found in results]
    rows: Dict[str, Result] = {}
    for found in reversed(results):  # The last one has all cases.
        for one in found["figures"]:
            if one["threads"] == 2 and one["pages"] == "huge" and one["MiB"] not in (16, 64):
                case = fill("{what}, {MiB:,} MiB", one)
                row = rows.setdefault(case, {"case": case, **dict.fromkeys(makers)})
                row[_maker(found)] = one["ns_of_cpu_a_line"]
    cells = {maker: f"{{{maker}:.1f}}" for maker in makers}
    return by_row(rows.values(), {"ns of CPU time of a cache line": "{case}", **cells})


def _line_ns(found: Result, what: str, mib: int) -> float:
    """CPU time of a cache line on each of two threads, in huge pages, of bench_memory.cc."""
    case = {"what": what, "MiB": mib, "pages": "huge", "threads": 2}
    [ns] = [one["ns_of_cpu_a_line"] for one in found["figures"] if case.items() <= one.items()]
    return float(ns)


@figure(PAGE, "bench_memory", "core_step_cached", "profile_models", *TABLES[:1], *HOT_TABLES[:1])
def limits(lines: Result, cached: Result, profile: Result, *lookups: Result) -> str:
    """What the cache lines of tables take at least, what the rest takes, and what tables do take.

    Args:
      lines: Of bench_memory.cc.
      cached: Of bench_training_step.cc, with everything in the caches.
      profile: Of profile_models.py.
      lookups: Of bench_table.py.
    """
    at_random = _line_ns(lines, "random", 1024)
    written, read = (_line_ns(lines, f"{what} in sequence", 8) for what in ("written", "read"))
    rows = []

    def add(name: str, n: int, in_sequence: float, work: float, ours: float, stock: float) -> None:
        least = (n * at_random + in_sequence) * 1e-6
        times = {"lines": least, "work": work * 1e-6, "ours": ours, "stock": stock}
        # As shown, so that a reader gets the same ratios.
        times = {what: round(ms, 2) for what, ms in times.items()}
        of = {what: times[what] / times["stock"] for what in ("lines", "ours")}
        rows.append({**times, "name": name, "of": of})

    def work_ns(way: str, widths: Sequence[int], phase: str) -> float:
        """Of an id, in all tables of these widths."""
        case = (way, list(widths))
        [found] = [one for one in cached["figures"] if (one["way"], one["dims"]) == case]
        return float(len(widths) * found["ns_of_cpu_a_key"][phase])

    for found in lookups:
        ids = found["batch"][0] * found["batch"][1]
        cpu = found["seconds_per_step"]["lookup, CPU"]
        # Of a distinct id: a line of the index and the value. Of each id: a line of the output.
        n = 2 * round(ids * found["unique_share"])
        name = f"lookup, {_distinct(found['unique_share'])}"
        times = [cpu[system][1] * 1e3 for system in ("rec_estimator", "dense")]
        add(name, n, ids * written, ids * work_ns("alone", [16], "lookup"), *times)
    for model, by_engine in profile["models"].items():
        widths = bench_models.WIDTHS[model]
        # Two lines of the index, the value twice, and the slot if it is in a line of its own. Of
        # each stripe, its lock and the head of its index, before the net and after it.
        n = profile["distinct_ids"] * sum(5 if width > 1 else 4 for width in widths)
        n += profile["stripes"] * 4 * len(widths)
        in_sequence = profile["ids"] * sum(widths) / 16 * (written + read)
        times = [_beyond_floor(by_engine, engine) for engine in ("single", "stock")]
        work = profile["ids"] * work_ns("listed", widths, "all")
        add(f"{MODELS[model]}, step", n, in_sequence, work, *times)
    columns = {
        "ms of CPU time": "{name}",
        "lines": "{lines:.2f}",
        "work in the caches": "{work:.2f}",
        "measured": "{ours:.2f}",
        "`tf.Variable`": "{stock:.2f}",
        "lines / `tf.Variable`": "{of[lines]:.2f}",
        "measured / `tf.Variable`": "{of[ours]:.2f}",
    }
    return by_row(rows, columns)


GROUPS = ("library", "TensorFlow", "libc", "kernel")  # All but matrix products.


def _beyond_floor(by_engine: Result, engine: str) -> float:
    """CPU ms a step beyond the floor; as shown, so that ratios fit."""
    of, floor = by_engine[engine]["groups"], by_engine["floor"]["groups"]
    return round(sum(of.get(group, 0.0) - floor.get(group, 0.0) for group in GROUPS), 2)


@figure(PAGE, "profile_models", "profile_models_amd")
def models_profile(*results: Result) -> str:
    """CPU time without matrix products beyond that of the floor, of profile_models.py."""
    shares = {}
    for found in results:
        models = found["models"].values()
        ratios = [_beyond_floor(of, "single") / _beyond_floor(of, "stock") for of in models]
        shares[_maker(found)] = [min(ratios), max(ratios)]
    return fill(
        "Above the floor, steps with 2,048 samples take {Intel[0]:.2f} to {Intel[1]:.2f} of the "
        "CPU time of `tf.Variable` on Intel and {AMD[0]:.2f} to {AMD[1]:.2f} on AMD, without "
        "matrix products, which belong to the net.",
        shares,
    )


@figure(PAGE, "bench_table_sizes", "bench_memory_amd")
def table_sizes(found: Result, lines: Result) -> str:
    """Tables of 50M rows against those of 1M, and what their cache lines alone explain."""
    # A table of 1M rows takes 160 MB, one of 50M 8.2 GB.
    line_ns = [_line_ns(lines, "random", mib) for mib in (256, 8192)]
    ids = found["batch"][0] * found["batch"][1]
    rows = []
    for what, of_a_key in (("train", 5), ("lookup", 2)):  # Lines of a distinct id: see limits().
        for one in found["distributions"]:
            cpu = [
                one["seconds_per_step"][f"{what}, CPU"][f"rec_estimator, {n}M"][1] * 1e3
                for n in (1, 50)
            ]
            shares = one["unique_share"].values()
            least = [of_a_key * ids * share * ns * 1e-6 for share, ns in zip(shares, line_ns)]
            row: Result = {"name": f"{STEPS[what]}, {_distinct(one['unique_share']['50000000'])}"}
            row.update({who: one["ratios"][f"{what}/{who}"] for who in ("rec_estimator", "dense")})
            # If all but the lines takes as long as with 1M rows.
            row.update(cpu=cpu[0] / cpu[1], lines=cpu[0] / (cpu[0] - least[0] + least[1]))
            rows.append(row)
    columns = {
        "speed, 50M rows / 1M": "{name}",
        "measured": "{rec_estimator:.2f}",
        "in CPU time": "{cpu:.2f}",
        "by cache lines alone": "{lines:.2f}",
        "`tf.Variable`": "{dense:.2f}",
    }
    return by_row(rows, columns)
