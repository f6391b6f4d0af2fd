# SPDX-License-Identifier: Apache-2.0
"""The figures of pages without a module of their own, for figures.py."""

import collections
import statistics
from typing import Any, Dict, List

from benchmarks import bench_capacity, bench_distributed, bench_narrow_tables, bench_pipeline
from benchmarks.columns import NONE, by_kind, by_line, by_row, figure, fill, table

Result = Dict[str, Any]


@figure("docs/compatibility.md", "test_matrix")
def test_matrix(found: Result) -> str:
    rows = []
    for pair, one in found.items():
        if one is None:
            names = dict(zip(("tensorflow", "python"), pair.split("/")))
            rows.append({**dict.fromkeys(("numpy", "protobuf", "keras")), **names})
            rows[-1].update(tests="not run", minutes=NONE)
            continue
        tests = fill("{passed:,} passed, {failed} failed, {skipped} skipped", one)
        if one.get("again"):
            tests += f"; {one['again']} of those passed alone, after a failure among others"
        if one.get("mended"):
            tests += f"; {one['mended']} of those in a second run, after the tests were mended"
        minutes = f"{one['test_seconds'] / 60:.0f}"
        if "parts" in one:
            tests += "; only " + ", ".join(f"`{part}`" for part in one["parts"])
            minutes = NONE
        rows.append({**one, "tests": tests, "minutes": minutes})
    packages = ("TensorFlow", "Python", "NumPy", "protobuf", "Keras")
    columns = {name: f"{{{name.lower()}}}" for name in packages}
    return by_row(rows, {**columns, "tests": "{tests}", "minutes": "{minutes}"})


@figure("docs/filters.md", "bench_filters")
def filter_costs(found: Result) -> str:
    filters = {"`CounterFilter`": "counter", "`CBFFilter`, p = 0.01": "bloom"}
    names = {"counter": "CounterFilter", "bloom": "CBFFilter of 10 M"}
    beyond = {
        each: found["memory"][f"not admitted, {name}"]["beyond_floats"]
        for each, name in names.items()
    }
    lines = {
        "bytes for a key that is not admitted": "{beyond[KIND]:.1f}",
        "train step, known keys": "{cost[known/KIND]:+.1f %}",
        "train step, a stream of new keys": "{cost[stream/KIND]:+.1f %}",
    }
    return by_kind({**found, "beyond": beyond}, filters, lines).replace(" -", " \u2212")


@figure("docs/filters.md", "bench_capacity")
def capacity(found: Result) -> str:
    policies = bench_capacity.POLICIES

    def line(text: str, cell: str) -> List[str]:
        return [text, *(cell.replace("POLICY", policy) for policy in policies)]

    lines = []
    for size in found["sizes"]:
        for base, text in (("all", "has all ids"), ("grows", "grows")):
            for what, name in (("step", "time"), ("step, CPU", "CPU time")):
                cell = f"{{sizes[{size}][cost][{what}][{base}][POLICY]:.2f}}"
                lines.append(
                    line(f"{size}: {name} of a step over that of a table that {text}", cell)
                )
        lines.append(
            line(f"{size}: distinct ids without a row", f"{{sizes[{size}][new][POLICY]:.1f %}}")
        )
    for name in ("Zipf", "drifting"):
        hits = f"{{hits[{name}/POLICY][table]:.1f %}} / {{hits[{name}/POLICY][cache]:.1f %}}"
        lines.append(line(f"hits, {name} ids: table / all rows", hits))
    growth = line(
        "memory after 100,000 steps over that after 10,000", "{memory[POLICY][growth]:.2f}"
    )
    return by_line(found, ["", *(f'`"{policy}"`' for policy in policies)], *lines, growth)


@figure("docs/small_tables.md", "bench_row_dtypes")
def smaller_exports(found: Result) -> str:
    sizes = [{"rows": int(rows), **one} for rows, one in found["rows"].items()]
    ratio = "{{ratios[lookup, CPU/{}]:.2f}}".format
    names = ("bfloat16", "float16", "int8")
    return by_row(sizes, {"rows": "{rows:,}", **{f"`{name}`": ratio(name) for name in names}})


@figure("docs/filters.md", "soak")
def soak(found: Result) -> str:
    names = {"none": "none", "counter": "`CounterFilter`", "bloom": "`CBFFilter`"}
    names.update(steps="`GlobalStepEvict`", values="`L2WeightEvict`")
    rows = []
    for case, one in found["cases"].items():
        rule, eviction = (names[part] for part in case.split("-"))
        last = {what: readings[-1] for what, readings in one["readings"].items()}
        rows.append({**one, **last, "filter": rule, "eviction": eviction})
    columns = {
        "filter": "{filter}",
        "eviction": "{eviction}",
        "rows": "{rows:,}",
        "entries": "{entries:,}",
        "table": "{table:.1f MB}",
        "checkpoint": "{checkpoint:.1f MB}",
        "resident set": "\u00b1 {deviation of resident:.1f %}",
    }
    steps = fill("After {steps:,} steps with {new_keys} new keys each:", found)
    return f"{steps}\n\n{by_row(rows, columns)}"


@figure("docs/checkpoints.md", "bench_checkpoint_intel")
def checkpoint(found: Result) -> str:
    whats = {
        "save": "save",
        "restore": "restore, nothing cached",
        "restore, cached": "restore, all cached",
        "restore, cached, into memory": "restore, all cached; the plain read fills as much memory",
        "restore over rows": "restore over rows, nothing cached",
    }
    rows = []
    for what, words in whats.items():
        speed = found["bytes"] / 1e6 / found["seconds"][what]["saver"][1]
        memory = fill("{beyond:.0f MiB}", found["memory"][what]) if what in found["memory"] else ""
        rows.append([words, f"{speed:,.0f}", f"{found['ratios'][what]:.2f}", memory])
    header = ["", "MB/s", "of the speed of a plain file", "memory beyond the table"]
    return by_line({}, header, *rows)


@figure("docs/serving.md", "bench_serving")
def serving_time(found: Result) -> str:
    names = {"DIN": "DIN, history of 100", "DIEN-like": "DIEN-like, a GRU over the history"}
    models: Dict[str, Result] = {}
    for one in found["points"]:
        row = models.setdefault(one["model"], {"name": names.get(one["model"], one["model"])})
        row[f"{one['graph']}, {one['request']}"] = one["time_over_compressed"]
    user = "{{{0}, 1 x 50:.1f}} / {{{0}, 1 x 500:.1f}} / {{{0}, 1 x 1000:.1f}}".format
    columns = {
        "time over the compressed graph's": "{name}",
        "as written, 1 user × 50 / 500 / 1000 candidates": user("as written"),
        "by hand, the same": user("by hand"),
        "as written, 256 users × 1": "{as written, 256 x 1:.1f}",
    }
    return by_row(models.values(), columns)


@figure("docs/serving.md", "bench_serving")
def serving_bytes(found: Result) -> str:
    columns = {
        "DIN, 1 user × 500 candidates": "{graph}",
        "request": "{request_bytes:.0f KB}",
        "memory at its peak": "{peak_bytes:.0f MB}",
    }
    rows = [one for one in found["points"] if (one["model"], one["request"]) == ("DIN", "1 x 500")]
    return by_row([one for one in rows if one["graph"] != "by hand"], columns)


@figure("docs/serving.md", "bench_serving_zoo")
def serving_zoo(found: Result) -> str:
    names = {"wide_and_deep": "wide & deep", "deepfm": "DeepFM", "din": "DIN"}
    columns = {
        "model zoo, 1 user × 500 candidates": "{name}",
        "times as fast as uncompressed": "{speed_up:.2f}",
    }
    return by_row([{**one, "name": names[one["model"]]} for one in found["points"]], columns)


@figure("docs/serving.md", "bench_portable")
def portable(found: Result) -> str:
    request = {kind: found[f"{kind}_request_ms"] for kind in ("ours", "portable")}
    ratio = round(request["portable"], 2) / round(request["ours"], 2)
    least, _, most = found["request_portable_over_ours"]
    over = {"ours": "", "portable": f", {ratio:.2f} times ({least:.1f} to {most:.1f} in a round)"}
    lines = {
        "variables on disk": "{KIND_export[mb]:.0f} MB",
        "export, memory beyond the process": (
            "{KIND_export[s]:.1f} s, {KIND_export[peak_mb]:.0f} MB"
        ),
        "load, memory beyond the process": "{KIND_load[s]:.1f} s, {KIND_load[peak_mb]:.0f} MB",
        "request": "{KIND_request_ms:.2f} ms{over[KIND]}",
    }
    return by_kind({**found, "over": over}, {"with our ops": "ours", "portable": "portable"}, lines)


@figure("docs/serving.md", "bench_grouped")
def grouped(found: Result) -> str:
    # Rates of a shared machine: to a thousand.
    shown = {
        name.replace(".", "_"): round(value, -3) if name.endswith("_a_second") else value
        for name, value in found.items()
    }
    ratio = shown["grouped_rows_read_a_second"] / shown["flat_rows_read_a_second"]
    read = f"{{grouped_rows_read_a_second:,.0f}}, {ratio:.2f} times"
    return by_line(
        shown,
        ["", "flat `tf.train.Example`", "grouped `tf.train.SequenceExample`"],
        ["bytes a row", "{flat_bytes_a_row:.1f}", "{grouped_bytes_a_row:.1f}"],
        ["bytes a row, GZIP", "{flat_gz_bytes_a_row:.1f}", "{grouped_gz_bytes_a_row:.1f}"],
        ["rows read a second, batches of 512", "{flat_rows_read_a_second:,.0f}", read],
        ["rows written a second, in Python", "", "{grouped_rows_written_a_second:,.0f}"],
        ["rows written a second, GZIP", "", "{grouped_gz_rows_written_a_second:,.0f}"],
    )


@figure("docs/distributed.md", "bench_distributed")
def distributed_costs(found: Result) -> str:
    systems = bench_distributed.SYSTEMS
    rows = []
    for name, one in found["clusters"].items():
        workers, ps, tables = name.replace("/", "+").split("+")
        row: Result = {"cluster": f"{workers} + {ps}", "tables": tables}
        for system in systems:
            row[f"{system} tensors"] = one[system]["tensors"] / int(ps)
            row[f"{system} MB"] = one[system]["bytes"] / 1e6
            row[f"{system} CPU"] = one[system]["cpu_over_stock"]
        rows.append(row)
    columns = {
        "workers + ps": "{cluster}",
        "tables": "{tables}",
        **{f"tensors a ps: {system}": f"{{{system} tensors:.1f}}" for system in systems},
        **{f"MB: {system}": f"{{{system} MB:.1f}}" for system in systems},
        **{f"CPU: {system}": f"{{{system} CPU:.2f}}" for system in systems[1:]},
    }
    return by_row(rows, columns)


@figure("docs/scaling.md", "bench_distributed")
def distributed_model(found: Result) -> str:
    fitted = bench_distributed.fit(found)
    ps, workers = 100, 1000
    step = fitted.worker_step(ps)
    unpacked = fitted.worker_step(ps, tensors=3 * bench_distributed.COLUMNS)
    return by_line(
        {},
        ["", "CPU ms"],
        ["a tensor between two tasks, both ends", f"{fitted.tensor:.3f}"],
        [f"the keys of a step: {found['keys']:,} ids", f"{fitted.keys:.1f}"],
        [f"a step with {ps} ps: {5 * ps} tensors and the keys", f"{step:.0f}"],
        ["of these, tensors", f"{step - fitted.keys:.0f}"],
        [f"a step with {ps} ps, 26 tables, not packed", f"{unpacked:.0f}"],
        [f"a ps, for one step of each of {workers:,} workers", f"{step / ps * workers:.0f}"],
    )


@figure("docs/distributed.md", "soak_ps")
def soak_ps(found: Result) -> str:
    of_tasks = collections.Counter(kill["task"] for kill in found["kills"])
    healthy = [kill["healthy_after"] for kill in found["kills"]]
    sums = {
        "killed": ", ".join(f"{n} \u00d7 {task}" for task, n in sorted(of_tasks.items())),
        "saves": sum(kill["during_save"] for kill in found["kills"]),
        "healthy": [statistics.median(healthy), max(healthy)],
        "wait": max(found["longest_wait"].values()),
        "fed": sum(found["fed_batches"].values()),
        "lost": len(found["faults"]),
    }
    trained = "seconds until all training tasks trained again: median, most"
    return by_line(
        {**found, **sums},
        [fill("{minutes:.0f} minutes", found), ""],
        ["kills", "{killed}"],
        ["of these during a save", "{saves}"],
        [trained, "{healthy[0]:.0f}, {healthy[1]:.0f}"],
        ["longest wait of a training task for its next batch", "{wait:.0f} s"],
        ["checkpoints that were compared", "{checkpoints:,}"],
        ["steps; batches that were fed", "{steps:,}; {fed:,}"],
        ["AUC at the end; of one process without kills", "{auc:.4f}; {reference_auc:.4f}"],
        ["faults", "{lost}"],
    )


def _law(what: str) -> str:
    return what.replace("zipf", "Zipf")


@figure("docs/storage.md", "bench_tiers")
def storage(found: Result) -> str:
    optional = ("misses_per_second", "of_32_in_flight", "of_the_limit", "cpu_us_a_miss")
    rows = [
        {**dict.fromkeys(optional), **one, "keys": _law(what)}
        for what, one in found["steps"]["summary"].items()
    ]
    columns = {
        "keys of a step": "{keys}",
        "all in memory, ms": "{memory_ms:.0f}",
        f"{found['steps']['share']:.0%} in memory, ms": "{disk_ms:.0f}",
        "misses": "{misses:,.0f}",
        "misses/s": "{misses_per_second:,.0f}",
        "of the disk's reads 32 at a time": "{of_32_in_flight:.2f}",
        "of the most it reads": "{of_the_limit:.2f}",
        "CPU \u00b5s a miss": "{cpu_us_a_miss:.1f}",
    }
    save = fill(
        "A save of this table takes {table_seconds:.1f} s. A program that reads its files and "
        "writes as much as the checkpoint, in sequence, takes {plain_seconds:.1f} s from and to "
        "ordinary memory ({of_the_plain_file:.2f} of its speed), and {contiguous_seconds:.1f} s "
        "from and to a huge page ({of_contiguous:.2f}). A save needs {memory_mib:.0f} MiB beyond "
        "the table; {promised_mib:.0f} are promised.",
        found["save"]["summary"],
    )
    caption = f"speed of steps over the share of {found['shares']['rows']:,} rows in memory"
    return f"{by_row(rows, columns)}\n\n{save}\n\n![{caption}](storage_shares.png)"


@figure("docs/storage.md", "bench_tiers_ahead")
def storage_ahead(found: Result) -> str:
    rows = []
    for net, of_net in found["nets"].items():
        for what, one in of_net["summary"].items():
            # A step waits for the disk at least as long as it does without reading ahead, and for
            # the cores until they have done its work, as busy as with all rows in memory.
            work = one["ahead_cpu_ms"] / one["memory_cpu_ms"] * one["memory_ms"]
            most = one["step_ms"] / max(work, one["step_ms"] - one["memory_ms"])
            rows.append({**one, "net": net, "keys": _law(what), "most": most})
    columns = {
        "net": "{net}",
        "keys of a step": "{keys}",
        "all in memory, ms": "{memory_ms:.0f}",
        "read by the step, ms": "{step_ms:.0f}",
        "read ahead, ms": "{ahead_ms:.0f}",
        "times as fast": "{gain:.2f}",
        "at most": "{most:.2f}",
    }
    return by_row(rows, columns)


@figure("docs/porting.md", "bench_pipeline")
def pipeline(found: Result) -> str:
    plain, modified = bench_pipeline.best_of_each_side(found)
    return fill(
        "The modified graph is {ratio:.2f} times as fast as the plain one, each with or without "
        "`prefetch` at the end of the dataset, whichever is faster.",
        {"ratio": found["seconds_per_step"][plain][1] / found["seconds_per_step"][modified][1]},
    )


@figure("docs/decisions.md", "bench_step_loop")
def step_loop(found: Result) -> str:
    times = [f"{ratio:.1f} for N = {n}" for n, ratio in found["speed_up"].items() if n != "1"]
    return f"Steps that take less than 0.3 ms run so many times as fast: {', '.join(times)}."


@figure("docs/decisions.md", "bench_weighted_lookups")
def weighted_lookups(found: Result) -> str:
    times = {
        way: [one["weighted_over"][way]["time"] for one in found["results"]]
        for way in ("stock", "products", "plain")
    }
    return fill(
        "A train step of {tables} weighted lookups takes {stock[0]:.2f} to {stock[1]:.2f} of the "
        "time of those of `tf.Variable`, {products[0]:.2f} to {products[1]:.2f} of that of a "
        "product for each value and a segment sum, and {plain[0]:.2f} to {plain[1]:.2f} of that "
        "without weights.",
        {**found, **{way: [min(ratios), max(ratios)] for way, ratios in times.items()}},
    )


@figure("docs/decisions.md", "bench_group_lookup")
def group_lookups(found: Result) -> str:
    times: Dict[int, List[float]] = {}
    for one in found["results"]:
        times.setdefault(one["tables"], []).append(one["group_over_single"]["time"])
    shares = [f"{min(of):.2f} to {max(of):.2f} for {n} tables" for n, of in times.items() if n > 2]
    return f"Fused lookups take this part of the time of ops of their own: {', '.join(shares)}."


@figure("docs/small_tables.md", "bench_narrow_tables")
def narrow_tables(found: Result) -> str:
    first, *others = bench_narrow_tables.SYSTEMS

    def cells(values: Dict[str, str]) -> List[str]:
        return [values.get(system, NONE) for system in others]

    def named(one: Result) -> str:
        return f"{one['rows'] // 1_000_000}M rows of dim {one['dim']}"

    lines = []
    for name, of in {named(one): one["bytes_a_row"] for one in found["results"]}.items():
        shares = {system: f"{of[system] / of[first]:.2f}" for system in of}
        lines.append([f"memory of {name}", *cells(shares)])
    for what, words in (("train", "train step"), ("lookup", "lookup")):
        for one in found["results"]:
            wall, cpu = one["ratios"][what], one["ratios"][f"{what}, CPU"]
            speeds = {system: f"{wall[system]:.2f} ({cpu[system]:.2f})" for system in wall}
            name = f"{named(one)}, {one['unique_share']:.0%} distinct"
            lines.append([f"speed of a {words}, {name}", *cells(speeds)])
    return table(["", *(system.replace(" + ", ", ") for system in others)], lines)
