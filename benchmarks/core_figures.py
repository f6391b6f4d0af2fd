# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/core_measurements.md and README.md, for figures.py."""

import statistics
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from benchmarks import bench_models
from benchmarks.columns import by_row, figure, fill, table

Result = Dict[str, Any]
PAGE = "docs/core_measurements.md"
MODELS = {"wide_and_deep": "wide & deep", "deepfm": "DeepFM", "dlrm": "DLRM"}
OTHERS = {"stock": "`tf.Variable`", "dense": "dense `tf.Variable`", "tfra": "TFRA 0.7.2"}
STEPS = {"train": "train step", "lookup": "lookup"}
AT_LEAST, AT_MOST = "\u2265", "\u2264"

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


@figure(PAGE, *TABLES, *HOT_TABLES, *MODEL_STEPS, *APPLIES, *RESTORES, "bench_table_sizes")
def goals(*found: Result) -> str:
    """What the design asks of speed, and what was measured."""
    results = iter(found)
    tables, hot, models, applies, restores, [sizes] = (
        [next(results) for _ in names]
        for names in (TABLES, HOT_TABLES, MODEL_STEPS, APPLIES, RESTORES, ["sizes"])
    )
    rows = []
    for what, bounds in (("train", (2, 4)), ("lookup", (1.3, 3.5))):
        for other, bound in zip(("dense", "tfra"), bounds):
            rows += [_table_goal(what, other, bound, of) for of in (tables, hot)]
    for other, mean, most in (("stock", 0.5, 0.65), ("tfra", 0.25, 0.35)):
        rows += _model_goals(other, mean, most, models)
    rows.append(_apply_goal("256 to 4,096", range(256, 4097), 0.55, applies))
    rows.append(_apply_goal("106,496", [106_496], 0.8, applies))
    for what, words in STEPS.items():
        speeds = {
            _distinct(one)[-1]: one["ratios"][f"{what}/rec_estimator"]
            for one in sizes["distributions"]
        }
        rows.append(_goal(f"speed of a {words}, 50M rows / 1M", AT_LEAST, 0.6, speeds))
    cached = {_maker(one): one["ratios"]["restore, cached"] for one in restores}
    name = "speed of a restore from the page cache / a plain read"
    rows.append(_goal(name, AT_LEAST, 0.4, cached))
    return table(["", "goal", "measured", "reached"], rows)


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


def _table_goal(what: str, other: str, bound: float, results: Sequence[Result]) -> List[str]:
    ratio = f"{what}/{other}"
    ratios = {_where(one): one["ratios"][ratio] for one in results if ratio in one["ratios"]}
    distinct = f"{results[0]['unique_share']:.0%} distinct"
    return _goal(f"speed of a {STEPS[what]}, {distinct} / {OTHERS[other]}", AT_LEAST, bound, ratios)


def _model_goals(
    other: str, mean: float, most: float, results: Sequence[Result]
) -> Iterator[List[str]]:
    shares = {
        _where(found): [
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


def _apply_goal(
    words: str, keys: Sequence[int], bound: float, results: Sequence[Result]
) -> List[str]:
    largest = {
        f"{_maker(found)} {case.replace('_', ' ')}": max(
            one[f"apply_{case}"] for one in found["results"] if one["keys"] in keys
        )
        for found in results
        for case in ("alone", "after_a_lookup")
    }
    name = f"CPU time of an apply of {words} keys / commit {results[0]['base']}: largest"
    return _goal(name, AT_MOST, bound, largest)


def _distinct(one: Result) -> List[str]:
    """Shares of distinct ids by number of rows, of bench_table_sizes.py."""
    return [f"{share:.0%} distinct" for share in one["unique_share"].values()]


@figure(PAGE, "bench_torch")
def torch(found: Result) -> str:
    """Tables and models beside PyTorch with FBGEMM's tables, of bench_torch.py."""
    rows = []

    def add(name: str, one: Result, what: str) -> None:
        for system, ratio in one["ratios"][what].items():
            wall, cpu = one["seconds_per_step"][what], one["ratios"][f"{what}, CPU"][system]
            times = {"ours": wall["rec_estimator"][1], "theirs": wall[system][1]}
            shown = name + system.replace("fbgemm", "").replace(", float", ", FBGEMM has float")
            rows.append({"name": shown.replace(" + ", ", "), **times, "wall": ratio, "cpu": cpu})

    for what, words in STEPS.items():
        for one in found["tables"]:
            rows_of = f"{one['value_dtype']}, {one['rule']}"
            add(f"one table, {words}, {rows_of}, {one['unique_share']:.0%} distinct", one, what)
    for one in found["models"]:
        add(f"{MODELS[one['model']]}, batch {one['batch']:,}", one, "train")
    columns = {
        "": "{name}",
        "rec_estimator": "{ours:.2f ms}",
        "FBGEMM": "{theirs:.2f ms}",
        "times as fast": "{wall:.2f}",
        "in CPU time": "{cpu:.2f}",
    }
    return by_row(rows, columns)


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


@figure(PAGE, "profile_apply")
def apply_profile(found: Result) -> str:
    """Where the CPU time of an apply alone goes, by functions that perf has sampled."""
    keys, *parts = found["results"][0]
    columns = {part: f"{{{part}:.1f}} ns" for part in parts}
    return by_row(found["results"], {"keys of a batch": f"{{{keys}:,}}", **columns})


@figure(PAGE, "bench_growth")
def growth(found: Result) -> str:
    """CPU time of new keys, and page faults."""
    columns = {
        "": "{memory}",
        "a key, median step": "{us_a_key:.2f} \u00b5s",
        "slowest step": "{slowest_over_median:.1f} medians",
        "in the kernel": "{in_the_kernel:.0%}",
        "page faults": "{page_faults:,}",
    }
    return by_row([{**one, "memory": memory} for memory, one in found["steps"].items()], columns)


@figure(PAGE, "profile_restore")
def restore_profile(found: Result) -> str:
    """Where the CPU time of a restore goes, by functions that perf has sampled."""
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
    groups, functions = found["restore"]["groups"], found["restore"]["functions"]
    total = sum(groups.values())
    times = {"Python, also for the new session": groups["other"]}
    for part, names in parts.items():
        times[part] = sum(
            ms for name, ms in functions.items() if any(each in name for each in names)
        )
    times = dict(sorted(times.items(), key=lambda item: -item[1]))
    rest = "the rest: sorting keys by stripe, locks, TensorFlow, the kernel"
    times[rest] = total - sum(times.values())
    rows = [[part, f"{ms:.0f} ms, {ms / total:.0%}"] for part, ms in times.items()]
    return table(["part", "CPU time"], rows)


@figure(PAGE, "bench_memory", "bench_memory_amd")
def memory(*results: Result) -> str:
    """What a cache line takes, of bench_memory.cc, by machine."""
    rows: Dict[str, Result] = {}
    makers = [_maker(found) for found in results]
    threads = {1: "one thread", 2: "each of two"}
    cells = {f"{maker}, {threads[n]}": f"{{{maker}{n}}}" for maker in makers for n in threads}
    for found in reversed(results):  # The last one has all cases.
        for one in found["figures"]:
            if one["pages"] == "huge" or one["MiB"] == 1024:
                case = fill("{what}, {MiB:,} MiB, {pages} pages", one)
                row = rows.setdefault(case, {"case": case, "Intel1": None, "Intel2": None})
                row[f"{_maker(found)}{one['threads']}"] = f"{one['ns_of_cpu_a_line']:.1f} ns"
    return by_row(rows.values(), {"CPU time of a cache line": "{case}", **cells})


def _line_ns(found: Result, what: str, mib: int) -> float:
    """CPU time of a cache line on each of two threads, in huge pages, of bench_memory.cc."""
    case = {"what": what, "MiB": mib, "pages": "huge", "threads": 2}
    [ns] = [one["ns_of_cpu_a_line"] for one in found["figures"] if case.items() <= one.items()]
    return float(ns)


@figure(PAGE, "bench_memory", "core_step_cached", "profile_models", *TABLES[:1], *HOT_TABLES[:1])
def limits(lines: Result, cached: Result, profile: Result, *lookups: Result) -> str:
    """What the cache lines of tables take at least, and what the rest takes, beside what tables do.

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
        of["both"] = (times["lines"] + times["work"]) / times["stock"]
        rows.append({**times, "name": name, "n": n, "of": of})

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
        name = f"lookup, {found['unique_share']:.0%} of {ids:,} ids distinct"
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
        "": "{name}",
        "lines at random": "{n:,}",
        "lines": "{lines:.2f} ms",
        "work in the caches": "{work:.2f} ms",
        "measured": "{ours:.2f} ms",
        "`tf.Variable`": "{stock:.2f} ms",
        "lines / `tf.Variable`": "{of[lines]:.2f}",
        "lines and work / `tf.Variable`": "{of[both]:.2f}",
        "measured / `tf.Variable`": "{of[ours]:.2f}",
    }
    return by_row(rows, columns)


GROUPS = ("library", "TensorFlow", "libc", "kernel")  # All but matrix products.


def _beyond_floor(by_engine: Result, engine: str, groups: Sequence[str] = GROUPS) -> float:
    """CPU ms a step beyond the floor, of groups of functions; as shown, so that sums fit."""
    of, floor = by_engine[engine]["groups"], by_engine["floor"]["groups"]
    return round(sum(of.get(group, 0.0) - floor.get(group, 0.0) for group in groups), 2)


@figure(PAGE, "profile_models", "profile_models_amd")
def models_profile(*results: Result) -> str:
    """CPU time by group of functions beyond that of the floor, of profile_models.py."""
    rows = []
    for found in results:
        for model, by_engine in found["models"].items():
            stock = _beyond_floor(by_engine, "stock")
            for engine, words in (("stock", OTHERS["stock"]), ("single", "single lookups")):
                total = _beyond_floor(by_engine, engine)
                library = _beyond_floor(by_engine, engine, ["library"])
                times = {"library": library, "rest": total - library, "sum": total}
                name = f"{_maker(found)}: {MODELS[model]}, {words}"
                rows.append({**times, "name": name, "of": total / stock})
    columns = {
        "CPU beyond the floor, ms a step": "{name}",
        "library": "{library:.2f}",
        "TensorFlow, libc, kernel": "{rest:.2f}",
        "sum": "{sum:.2f}",
        f"sum / {OTHERS['stock']}": "{of:.2f}",
    }
    return by_row(rows, columns)


@figure(PAGE, "bench_table_sizes", "bench_memory_amd")
def table_sizes(found: Result, lines: Result) -> str:
    """Tables of 50M rows against those of 1M, and what their cache lines alone explain."""
    # A table of 1M rows takes 160 MB, one of 50M 8.2 GB.
    line_ns = [_line_ns(lines, "random", mib) for mib in (256, 8192)]
    ids = found["batch"][0] * found["batch"][1]
    rows = []
    for what, of_a_key in (("train", 5), ("lookup", 2)):  # Lines of a distinct id: see limits().
        for one in found["distributions"]:
            wall, cpu = (
                [one["seconds_per_step"][clock][f"rec_estimator, {n}M"][1] * 1e3 for n in (1, 50)]
                for clock in (what, f"{what}, CPU")
            )
            shares = one["unique_share"].values()
            least = [of_a_key * ids * share * ns * 1e-6 for share, ns in zip(shares, line_ns)]
            row: Result = {"name": f"{STEPS[what]}, {' and '.join(_distinct(one))}", "ms": wall}
            row.update({who: one["ratios"][f"{what}/{who}"] for who in ("rec_estimator", "dense")})
            # If all but the lines takes as long as with 1M rows.
            row.update(cpu=cpu[0] / cpu[1], lines=cpu[0] / (cpu[0] - least[0] + least[1]))
            rows.append(row)
    columns = {
        "": "{name}",
        "1M rows": "{ms[0]:.2f} ms",
        "50M rows": "{ms[1]:.2f} ms",
        "speed, 50M / 1M": "{rec_estimator:.2f}",
        "the same of `tf.Variable`": "{dense:.2f}",
        "in CPU time": "{cpu:.2f}",
        "by cache lines alone": "{lines:.2f}",
    }
    return by_row(rows, columns)
