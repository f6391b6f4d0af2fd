# SPDX-License-Identifier: Apache-2.0
"""The tables of figures of the speed of tables and models, for benchmarks/figures.py.

Each function takes raw results and returns the header and the rows of a table.
"""

import statistics
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from benchmarks import bench_models, core_figures
from benchmarks.core_figures import Table

MODELS = {"wide_and_deep": "wide & deep", "deepfm": "DeepFM", "dlrm": "DLRM"}
OTHERS = {"stock": "`tf.Variable`", "dense": "dense `tf.Variable`", "tfra": "TFRA 0.7.2"}
OURS = {"single": "single lookups", "features": "`EmbeddingFeature`", "modified": "modified"}
STEPS = {"train": "train step", "lookup": "lookup"}
SIZES = ("1M", "50M")  # Rows, of bench_table_sizes.py.
AT_LEAST, AT_MOST = "\u2265", "\u2264"


def minor(found: Dict[str, Any]) -> str:
    """The release of TensorFlow that a raw result was measured on, without its patch number."""
    return ".".join(found["tensorflow"].split(".")[:2])


def tables(oldest: Sequence[Dict[str, Any]], newest: Dict[str, Any]) -> Table:
    """The table against a dense variable and TFRA, of bench_table.py.

    Args:
      oldest: Results of the oldest release, by batch and distribution of ids.
      newest: That of the newest release for the first of these.
    """
    columns = [(oldest, "dense"), (oldest, "tfra"), ([newest], "dense")]
    rows = []
    for what, words in STEPS.items():
        for i, found in enumerate(oldest):
            examples, fields = found["batch"]
            distinct = f"{100 * found['unique_share']:.0f} % distinct"
            cells = [
                f"{results[i]['ratios'][f'{what}/{other}']:.2f}\u00d7 as fast"
                if i < len(results)
                else "\u2013"
                for results, other in columns
            ]
            rows.append([f"{words}, {examples:,} \u00d7 {fields} ids, {distinct}", *cells])
    return ["", *(f"{OTHERS[other]}, {minor(results[0])}" for results, other in columns)], rows


def models(results: Sequence[Dict[str, Any]]) -> Table:
    """What tables add to a step of a model, relative to what others add, of bench_models.py.

    Args:
      results: One for each release. The first has all models and batches.
    """
    columns = [
        (found, other)
        for found in results
        for other in found["results"][0]["above_floor"]["single"]
    ]

    def share(found: Dict[str, Any], case: Tuple[str, int], other: str) -> str:
        for one in found["results"]:
            if (one["model"], one["batch"]) == case:
                return f"{one['above_floor']['single'][other]:.2f}"
        return "\u2013"

    rows = [
        [
            f"{MODELS[one['model']]}, batch {one['batch']:,}",
            *(share(found, (one["model"], one["batch"]), other) for found, other in columns),
        ]
        for one in results[0]["results"]
    ]
    return ["", *(f"{OTHERS[other]}, {minor(found)}" for found, other in columns)], rows


def models_cpu(results: Sequence[Dict[str, Any]]) -> Table:
    """CPU time of steps of whole models, of bench_models.py.

    Args:
      results: One for each release.
    """
    rows = []
    for found in results:
        for one in found["results"]:
            cpu = {
                engine: statistics.median(times) * 1e3
                for engine, times in one["cpu_seconds_per_step"].items()
            }
            ratios = one["cpu_above_floor"]
            rows.append(
                [
                    f"{MODELS[one['model']]}, batch {one['batch']:,}, {minor(found)}",
                    *(
                        f"{cpu[engine]:.1f} ms" if engine in cpu else "\u2013"
                        for engine in ("floor", "stock", "tfra", *OURS)
                    ),
                    *(f"{ratios[each]['stock']:.2f}" for each in OURS),
                ]
            )
    header = ["CPU time a step", "floor", "stock", "TFRA", *OURS.values()]
    return [*header, *(f"above the floor, {name} / stock" for name in OURS.values())], rows


def models_profile(results: Sequence[Dict[str, Any]]) -> Table:
    """CPU time by group of functions beyond that of the floor, of profile_models.py.

    Args:
      results: One for each machine.
    """
    groups, products = ["library", "TensorFlow", "libc", "kernel"], "matrix products"
    rows = []
    for found in results:
        for model, by_engine in found["models"].items():
            stock = _beyond_floor(by_engine, "stock")
            for engine, words in (("stock", OTHERS["stock"]), ("single", OURS["single"])):
                of, floor = by_engine[engine]["groups"], by_engine["floor"]["groups"]
                *beyond, of_products = (
                    of.get(group, 0.0) - floor.get(group, 0.0) for group in (*groups, products)
                )
                total = _beyond_floor(by_engine, engine)
                shown = (*beyond, total, total / stock, of_products)
                # No "-0.0".
                cells = [
                    f"{round(each, digits) + 0:.{digits}f}"
                    for each, digits in zip(shown, (1, 1, 1, 1, 1, 2, 1))
                ]
                rows.append([f"{_maker(found)}: {MODELS[model]}, {words}", *cells])
    sums = ["sum", f"sum / {OTHERS['stock']}", products]
    return ["CPU beyond the floor, ms a step", *groups, *sums], rows


def _beyond_floor(by_engine: Dict[str, Any], engine: str) -> float:
    """CPU ms a step beyond the floor, but for matrix products, of profile_models.py."""
    of, floor = by_engine[engine]["groups"], by_engine["floor"]["groups"]
    return sum(
        of.get(group, 0.0) - floor.get(group, 0.0)
        for group in ("library", "TensorFlow", "libc", "kernel")
    )


def limits(
    memory_found: Dict[str, Any],
    cached: Dict[str, Any],
    profile: Dict[str, Any],
    lookups: Sequence[Dict[str, Any]],
) -> Table:
    """What the cache lines of tables take at least, and what the rest takes, beside what tables do.

    Args:
      memory_found: Of bench_memory.cc.
      cached: Of bench_training_step.cc, with everything in the caches.
      profile: Of profile_models.py.
      lookups: Of bench_table.py.
    """
    at_random = core_figures.line_ns(memory_found, "random", 1024, "huge", 2)
    written, read = (
        core_figures.line_ns(memory_found, f"{what} in sequence", 8, "huge", 2)
        for what in ("written", "read")
    )
    rows = []

    def add(
        name: str, lines: int, in_sequence: float, work: float, ours: float, stock: float
    ) -> None:
        least, work = (lines * at_random + in_sequence) * 1e-6, work * 1e-6
        times = (f"{ms:.1f} ms" for ms in (least, work, ours, stock))
        shares = (f"{ms / stock:.2f}" for ms in (least, least + work, ours))
        rows.append([name, f"{lines:,}", *times, *shares])

    def work_ns(way: str, widths: Sequence[int], phase: str) -> float:
        """Of an id, in all tables of these widths."""
        [found] = [
            one for one in cached["figures"] if (one["way"], one["dims"]) == (way, list(widths))
        ]
        return len(widths) * found["ns_of_cpu_a_key"][phase]

    for found in lookups:
        ids = found["batch"][0] * found["batch"][1]
        cpu = {
            system: statistics.median(times) * 1e3
            for system, times in found["seconds_per_step"]["lookup, CPU"].items()
        }
        # Of a distinct id: a line of the index and the value. Of each id: a line of the output.
        lines = 2 * round(ids * found["unique_share"])
        name = f"lookup, {found['unique_share']:.0%} of {ids:,} ids distinct"
        work = ids * work_ns("alone", [16], "lookup")
        add(name, lines, ids * written, work, cpu["rec_estimator"], cpu["dense"])
    for model, by_engine in profile["models"].items():
        widths = bench_models.WIDTHS[model]
        # Two lines of the index, the value twice, and the slot if it is in a line of its own. Of
        # each shard, its lock and the head of its index, before the net and after it.
        lines = profile["distinct_ids"] * sum(5 if width > 1 else 4 for width in widths)
        lines += profile["shards"] * 4 * len(widths)
        in_sequence = profile["ids"] * sum(widths) / 16 * (written + read)
        beyond = {engine: _beyond_floor(by_engine, engine) for engine in ("single", "stock")}
        work = profile["ids"] * work_ns("listed", widths, "all")
        add(f"{MODELS[model]}, step", lines, in_sequence, work, beyond["single"], beyond["stock"])
    times = ["lines", "work in the caches", "measured", "`tf.Variable`"]
    shares = [f"{what} / `tf.Variable`" for what in ("lines", "lines and work", "measured")]
    return ["", "lines at random", *times, *shares], rows


def group_lookups(result: Dict[str, Any]) -> Table:
    """A group lookup against the single lookups it replaces, of bench_group_lookup.py."""
    found: Dict[int, Dict[int, str]] = {}
    for one in result["results"]:
        ratios = ", ".join(f"{ratio:.2f}" for ratio in one["group_over_single"].values())
        found.setdefault(one["keys"], {})[one["tables"]] = ratios
    sizes = list(next(iter(found.values())))
    rows = [[f"{keys:,}", *(by[n] for n in sizes)] for keys, by in found.items()]
    return ["keys a table", *(f"{n} tables" for n in sizes)], rows


def weighted_lookups(found: Dict[str, Any]) -> Table:
    """Train steps of lookups whose ids have weights, of bench_weighted_lookups.py."""
    ways = {
        "weighted": "with weights",
        "stock": "`tf.Variable` with weights",
        "products": "products and segment sum",
        "plain": "without weights",
        "reads": "reads alone",
    }
    rows = []
    for one in found["results"]:
        times = (
            f"{statistics.median(one['seconds'][way]) * 1e3:.2f} ms"
            + ("" if way == "weighted" else f" [{one['weighted_over'][way]['time']:.2f}]")
            for way in ways
        )
        rows.append([f"{one['examples']:,}", str(one["ids_an_example"]), *times])
    return ["examples", "ids of an example and table", *ways.values()], rows


def table_sizes(found: Dict[str, Any]) -> Table:
    """Tables of 50M rows against those of 1M, of bench_table_sizes.py."""
    rows = []
    for what, words in STEPS.items():
        for one in found["distributions"]:
            seconds = one["seconds_per_step"][what]
            ours = (statistics.median(seconds[f"rec_estimator, {size}"]) for size in SIZES)
            ratios = (f"{one['ratios'][f'{what}/{who}']:.2f}" for who in ("rec_estimator", "dense"))
            name = f"{words}, {' and '.join(_distinct(one))}"
            rows.append([name, *(f"{each * 1e3:.2f} ms" for each in ours), *ratios])
    shares = ("speed, 50M / 1M", "the same of `tf.Variable`")
    return ["", "1M rows", "50M rows", *shares], rows


def restore_profile(found: Dict[str, Any]) -> Table:
    """Where the CPU time of a restore goes, of profile_restore.py."""
    parts = {
        "finding places of keys in the index, and writing them": (
            "HashIndex::Insert",
            "BatchInsert::InsertWritten",
            "BatchInsert::InsertAll",
        ),
        "writing rows and their counts": ("BatchInsert::WriteRows", "BatchInsert::SetCounts"),
        "copies out of the page cache": ("_copy_to_iter",),
        "checksums": ("ExtendCrc32c",),
        "zeroed pages": ("clear_page_erms",),
    }
    left = dict(found["restore"]["groups"])
    total = sum(left.values())
    times = {"Python, also for the new session": left.pop("other")}
    for part, names in parts.items():
        functions = found["restore"]["functions"].items()
        times[part] = sum(ms for name, ms in functions if any(each in name for each in names))
    rest = "the rest: sorting keys by shard, locks, TensorFlow, the kernel"
    times[rest] = total - sum(times.values())
    ordered = sorted(times, key=lambda part: (part == rest, -times[part]))
    return ["part", "CPU time"], [
        [part, f"{times[part]:.0f} ms, {times[part] / total:.0%}"] for part in ordered
    ]


def table_sizes_profile(found: Dict[str, Any]) -> Table:
    """Where the CPU time of tables of 1M and of 50M rows goes, of profile_table_sizes.py."""
    loops = {
        "train": {
            "finds keys, fetches their rows": "ShardSet::FindEach",
            "updates rows": "BatchApply::UpdateTiles",
        },
        "lookup": {
            "finds keys, fetches their rows": "RowLookup::FindChunk",
            "copies rows": "RowLookup::CopyEach",
        },
    }
    rows = []
    for what, words in STEPS.items():
        profiles = found["steps"][what].values()
        left = [sum(profile["groups"].values()) for profile in profiles]
        for part, loop in loops[what].items():
            times = [
                sum(ms for name, ms in profile["functions"].items() if loop in name)
                for profile in profiles
            ]
            left = [all_of_it - ms for all_of_it, ms in zip(left, times)]
            rows.append([f"{words}: {part} (`{loop}`)", *(f"{ms:.2f} ms" for ms in times)])
        rows.append([f"{words}: the rest", *(f"{ms:.2f} ms" for ms in left)])
    return ["CPU time a step", "1M rows", "50M rows"], rows


def table_sizes_limits(found: Dict[str, Any], memory_found: Dict[str, Any]) -> Table:
    """How much slower tables of 50M rows are if only their cache lines take longer.

    Args:
      found: Of bench_table_sizes.py.
      memory_found: Of bench_memory.cc.
    """
    # A table of 1M rows takes 160 MB, one of 50M 8.2 GB.
    line_ns = [core_figures.line_ns(memory_found, "random", mib, "huge", 2) for mib in (256, 8192)]
    # Of a distinct id: see limits().
    lines_each = {"train": 5, "lookup": 2}
    ids = found["batch"][0] * found["batch"][1]
    rows = []
    for what, words in STEPS.items():
        for one in found["distributions"]:
            cpu = one["seconds_per_step"][f"{what}, CPU"]
            measured = [statistics.median(cpu[f"rec_estimator, {size}"]) * 1e3 for size in SIZES]
            lines = [lines_each[what] * ids * share for share in one["unique_share"].values()]
            least = [n * ns * 1e-6 for n, ns in zip(lines, line_ns)]
            with_them = measured[0] - least[0] + least[1]
            rows.append(
                [
                    f"{words}, {' and '.join(_distinct(one))}",
                    *(f"{n:,.0f}: {ms:.2f} ms" for n, ms in zip(lines, least)),
                    *(f"{ms:.2f} ms" for ms in measured),
                    f"{measured[0] / with_them:.2f}",
                    f"{measured[0] / measured[1]:.2f}",
                ]
            )
    of_both = (f"{what}, {size} rows" for what in ("lines at random", "measured") for size in SIZES)
    return ["CPU time", *of_both, "speed, 50M / 1M, by lines", "measured"], rows


def _distinct(one: Dict[str, Any]) -> List[str]:
    """Shares of distinct ids by number of rows, of bench_table_sizes.py."""
    return [f"{share:.0%} distinct" for share in one["unique_share"].values()]


def goals(
    tables_found: Sequence[Sequence[Dict[str, Any]]],
    models_found: Sequence[Dict[str, Any]],
    small: Mapping[str, Dict[str, Any]],
    sizes: Dict[str, Any],
    checkpoints: Sequence[Dict[str, Any]],
) -> Table:
    """What the design asks of speed, and what was measured.

    Args:
      tables_found: Of bench_table.py, for each distribution of ids, by machine and release.
      models_found: Of bench_models.py, one for each release.
      small: Of bench_paired.cc, by machine.
      sizes: Of bench_table_sizes.py.
      checkpoints: Of bench_checkpoint.py, one for each machine.
    """
    restore = {_maker(found): found["ratios"]["restore, cached"] for found in checkpoints}
    rows = [
        *_table_goals("train", "train step", {"dense": 2, "tfra": 4}, tables_found),
        *_table_goals("lookup", "lookup", {"dense": 1.3, "tfra": 3.5}, tables_found),
        *_model_goals("stock", 0.5, 0.65, models_found),
        *_model_goals("tfra", 0.25, 0.35, models_found),
        _apply_goal("256 to 4,096", 0.55, small),
        _apply_goal("106,496", 0.8, small),
        _size_goal("train", "train step", sizes),
        _size_goal("lookup", "lookup", sizes),
        _goal("speed of a restore from the page cache / a plain read", AT_LEAST, 0.4, restore),
    ]
    return ["", "goal", "measured", "reached"], rows


def _goal(name: str, sign: str, bound: float, measured: Mapping[str, float]) -> List[str]:
    """A row of goals(); `measured` is by machine, release or case."""
    shown = {where: round(value, 2) for where, value in measured.items()}
    reached = [
        where
        for where, value in shown.items()
        if (value >= bound if sign == AT_LEAST else value <= bound)
    ]
    words = "yes" if len(reached) == len(shown) else ", ".join(reached) or "no"
    values = ", ".join(f"{value:.2f} ({where})" for where, value in shown.items())
    return [name, f"{sign} {bound:g}", values, words]


def _table_goals(
    what: str,
    words: str,
    bounds: Mapping[str, float],
    results: Sequence[Sequence[Dict[str, Any]]],
) -> Iterator[List[str]]:
    for other, bound in bounds.items():
        for found in results:
            distinct = f"{found[0]['unique_share']:.0%} distinct"
            ratios = {
                f"{_maker(one)} {minor(one)}": one["ratios"][f"{what}/{other}"]
                for one in found
                if f"{what}/{other}" in one["ratios"]
            }
            name = f"speed of a {words}, {distinct} / {OTHERS[other]}"
            yield _goal(name, AT_LEAST, bound, ratios)


def _model_goals(
    other: str, mean: float, most: float, results: Sequence[Dict[str, Any]]
) -> Iterator[List[str]]:
    shares = {
        f"{_maker(found)} {minor(found)}": [
            one["above_floor"]["single"][other] for one in found["results"] if one["batch"] == 2048
        ]
        for found in results
        if other in found["results"][0]["above_floor"]["single"]
    }
    name = f"models, 2,048 samples, time above the floor / {OTHERS[other]}"
    means = {where: statistics.geometric_mean(values) for where, values in shares.items()}
    yield _goal(f"{name}: geometric mean", AT_MOST, mean, means)
    largest = {where: max(values) for where, values in shares.items()}
    yield _goal(f"{name}: largest", AT_MOST, most, largest)


def _apply_goal(keys: str, bound: float, small: Mapping[str, Dict[str, Any]]) -> List[str]:
    """Of batches of so many keys: "least to most", or one number."""
    least, _, most = keys.partition(" to ")
    largest = {}
    for machine, found in small.items():
        _, rows = core_figures.small_batches({machine: found})
        sizes = [row[0].partition(", ")[2] for row in rows]
        within = rows[sizes.index(least) : sizes.index(most or least) + 1]
        for case, columns in (("alone", (1, 4)), ("after a lookup", (2, 5))):
            shares = (float(row[column]) for row in within for column in columns)
            largest[f"{machine} {case}"] = max(shares)
    name = f"CPU time of an apply of {keys} keys / commit a858d32: largest"
    return _goal(name, AT_MOST, bound, largest)


def _size_goal(what: str, words: str, sizes: Dict[str, Any]) -> List[str]:
    ratios = {
        _distinct(one)[-1]: one["ratios"][f"{what}/rec_estimator"] for one in sizes["distributions"]
    }
    return _goal(f"speed of a {words}, 50M rows / 1M", AT_LEAST, 0.6, ratios)


def _maker(found: Dict[str, Any]) -> str:
    return "AMD" if found["cpu"].startswith("AMD") else "Intel"
