# SPDX-License-Identifier: Apache-2.0
"""Writes the measured figures of the pages from the raw results in benchmarks/results.

    python -m benchmarks.figures    # `make docs` runs it

A page has a block between two markers; everything between them is generated:

    <!-- figures: NAME -->
    …
    <!-- end -->

To add a block, write a function that returns its text, add it to FIGURES and put the markers into
the page. After a new measurement, run `make docs`. tests/test_figures.py fails if a page is stale.
"""

import json
import pathlib
import re
import statistics
from typing import Any, Callable, Dict, Iterable, List, Sequence

from benchmarks import cluster_figures, core_figures, filter_figures, speed_figures, tier_figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(^<!-- end -->$)", re.DOTALL | re.MULTILINE)


def result(name: str) -> Dict[str, Any]:
    """The raw result that benchmarks/<name>.py, or model_zoo.reach, wrote."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def table_speed() -> str:
    """README.md: the table against a dense variable and TFRA, on each release that was measured."""
    oldest, newest = result("bench_table"), result("bench_table_newest")
    others = [result("bench_table_hot"), result("bench_table_small")]
    return table(*speed_figures.tables([oldest, *others], newest))


def test_matrix() -> str:
    """docs/compatibility.md: results of the tests on each pair of TensorFlow and Python."""
    rows = []
    for pair, one in result("test_matrix").items():
        if one is None:
            minor, python = pair.split("/")
            rows.append([minor, python, *"\u2013\u2013\u2013", "not run", "\u2013"])
            continue
        packages = [one[name] for name in ("tensorflow", "python", "numpy", "protobuf", "keras")]
        tests = f"{one['passed']:,} passed, {one['failed']} failed, {one['skipped']} skipped"
        if one.get("again"):
            tests += f"; {one['again']} of those passed alone, after a failure beside others"
        if one.get("mended"):
            tests += f"; {one['mended']} of those in a second run, after the tests were mended"
        minutes = f"{one['test_seconds'] / 60:.0f}"
        if "parts" in one:
            minutes = "\u2013"
            tests += f"; only {', '.join(f'`{part}`' for part in one['parts'])}"
        rows.append([*packages, tests, minutes])
    packages = ["TensorFlow", "Python", "NumPy", "protobuf", "Keras"]
    return table([*packages, "tests", "minutes"], rows)


def filter_costs() -> str:
    """docs/filters.md: time and memory of a filter against the same table without one."""
    return table(*filter_figures.costs(result("bench_filters")))


def bloom_plain() -> str:
    """docs/filters.md: false positive rates of a Bloom filter without blocks."""
    return table(*filter_figures.bloom_plain(result("bloom_rates")))


def bloom_blocks() -> str:
    """docs/filters.md: false positive rates of this library's blocked filter at full load."""
    return table(*filter_figures.bloom_blocks(result("bloom_rates")))


def bloom_churn() -> str:
    """docs/filters.md: false positive rates and memory of that filter under eviction."""
    return table(*filter_figures.bloom_churn(result("bloom_rates")))


def bloom_generations() -> str:
    """docs/core_measurements.md: two generations of a Bloom filter against three."""
    return table(*filter_figures.bloom_generations(result("core_generations")))


def small_batches() -> str:
    """docs/core_measurements.md: applies of all sizes against those shard by shard."""
    return table(*core_figures.small_batches(_small_batches()))


def _small_batches() -> Dict[str, Dict[str, Any]]:
    return {"Intel": result("core_small_batches"), "AMD": result("core_small_batches_amd")}


def apply_profile() -> str:
    """docs/core_measurements.md: where the CPU time of an apply alone goes."""
    return table(*core_figures.apply_profile(result("profile_apply")))


def step_lists() -> str:
    """docs/core_measurements.md: the tables of a model's step, with and without shared lists."""
    return table(*core_figures.step_lists(result("core_step_lists")))


def core_speed() -> str:
    """docs/core_measurements.md: how fast the core is by itself, by number of rows."""
    return table(*core_figures.speed(result("core_speed")))


def chunks() -> str:
    """docs/core_measurements.md: lookups by the keys whose lines are fetched at a time."""
    return table(*core_figures.chunks(result("core_chunks")))


def table_sizes() -> str:
    """docs/core_measurements.md: tables of 50M rows against those of 1M."""
    return table(*speed_figures.table_sizes(result("bench_table_sizes")))


def restore_profile() -> str:
    """docs/core_measurements.md: where the CPU time of a restore goes."""
    return table(*speed_figures.restore_profile(result("profile_restore")))


def table_sizes_profile() -> str:
    """docs/core_measurements.md: where the CPU time of tables of 1M and 50M rows goes."""
    return table(*speed_figures.table_sizes_profile(result("profile_table_sizes")))


def table_sizes_limits() -> str:
    """docs/core_measurements.md: what the cache lines of tables of 1M and 50M rows take."""
    found = result("bench_table_sizes"), result("bench_memory_amd")
    return table(*speed_figures.table_sizes_limits(*found))


def memory_large() -> str:
    """docs/core_measurements.md: what a cache line takes in memory of 8 GiB."""
    return table(*core_figures.memory(result("bench_memory_amd")))


def group_lookups() -> str:
    """docs/core_measurements.md: a group lookup against the single lookups it replaces."""
    return table(*speed_figures.group_lookups(result("bench_group_lookup")))


def weighted_lookups() -> str:
    """docs/core_measurements.md: train steps of lookups whose ids have weights."""
    return table(*speed_figures.weighted_lookups(result("bench_weighted_lookups")))


def models() -> str:
    """docs/core_measurements.md: CPU time of steps of whole models, on both releases."""
    return table(*speed_figures.models_cpu(_models()))


def model_speed() -> str:
    """README.md: what tables add to a step of a whole model, relative to what others add."""
    return table(*speed_figures.models(_models()))


def memory() -> str:
    """docs/core_measurements.md: what a cache line takes."""
    return table(*core_figures.memory(result("bench_memory")))


def limits() -> str:
    """docs/core_measurements.md: what the cache lines of tables take at least."""
    lookups = [result("bench_table"), result("bench_table_hot")]
    costs = result("bench_memory"), result("core_step_cached")
    return table(*speed_figures.limits(*costs, result("profile_models"), lookups))


def goals() -> str:
    """docs/core_measurements.md: what the design asks of speed, and what was measured."""
    kinds = ("", "_newest", "_amd", "_newest_amd"), ("_hot", "_hot_amd", "_newest_hot_amd")
    tables = [[result(f"bench_table{kind}") for kind in of_ids] for of_ids in kinds]
    checkpoints = [result("bench_checkpoint_intel"), result("bench_checkpoint")]
    found = _small_batches(), result("bench_table_sizes"), checkpoints
    return table(*speed_figures.goals(tables, _models() + _models("_amd"), *found))


def models_profile() -> str:
    """docs/core_measurements.md: where the CPU time of whole models goes."""
    found = [result(f"profile_models{machine}") for machine in ("", "_amd")]
    return table(*speed_figures.models_profile(found))


def _models(machine: str = "") -> List[Dict[str, Any]]:
    return [result(f"bench_models{release}{machine}") for release in ("", "_newest")]


def distinct_lookups() -> str:
    """docs/core_measurements.md: lookups that find each distinct key of a block once."""
    found = {"AMD": result("core_distinct_lookups"), "Intel": result("core_distinct_lookups_intel")}
    return table(*core_figures.distinct_lookups(found))


def soak() -> str:
    """docs/filters.md: tables under churn after many steps."""
    found = result("soak")
    filters = {"none": "none", "counter": "`CounterFilter`", "bloom": "`CBFFilter`"}
    evictions = {"steps": "`GlobalStepEvict`", "values": "`L2WeightEvict`"}
    rows = []
    for case, one in found["cases"].items():
        filter_name, eviction = case.split("-")
        readings = one["readings"]
        rows.append(
            [
                filters[filter_name],
                evictions[eviction],
                *(f"{readings[what][-1]:,}" for what in ("rows", "entries")),
                f"{readings['table'][-1] / 1e6:.1f} MB",
                f"{readings['checkpoint'][-1] / 1e6:.1f} MB",
                f"\u00b1 {100 * one['deviation of resident']:.1f} %",
            ]
        )
    header = ["filter", "eviction", "rows", "entries", "table", "checkpoint", "resident set"]
    steps = f"After {found['steps']:,} steps with {found['new_keys']} new keys each:"
    return f"{steps}\n\n{table(header, rows)}"


def filter_sweep() -> str:
    """docs/filters.md: what thresholds do to generated clicks."""
    return table(*filter_figures.sweep(result("filter_sweep")))


def checkpoint() -> str:
    """docs/checkpoints.md: speed and memory of a save and a restore."""
    found = result("bench_checkpoint_intel")
    whats = {
        "save": "save",
        "restore": "restore, nothing cached",
        "restore, cached": "restore, all cached",
        "restore, cached, into memory": "restore, all cached, beside a read into as much memory",
        "restore over rows": "restore over rows, nothing cached",
    }
    size = found["bytes"] / 1e6
    rows = []
    for what, words in whats.items():
        seconds = statistics.median(found["seconds"][what]["saver"])
        memory = found["memory"].get(what)
        beyond = "" if memory is None else f"{memory['beyond'] / 2**20:.0f} MiB"
        rows.append([words, f"{size / seconds:,.0f}", f"{found['ratios'][what]:.2f}", beyond])
    header = ["", "MB/s", "of the speed of a plain file", "memory beyond the table"]
    return table(header, rows)


def growth() -> str:
    """docs/core_measurements.md: CPU time of new keys, and page faults."""
    found = result("bench_growth")
    rows = []
    for memory, steps in found["steps"].items():
        cpu, scale = sorted(steps["cpu"]), 1e6 / found["keys_a_step"]
        rows.append(
            [
                memory,
                f"{statistics.median(cpu) * scale:.2f} µs",
                f"{cpu[-1] / statistics.median(cpu):.1f} medians",
                f"{sum(steps['kernel']) / sum(cpu):.0%}",
                f"{sum(steps['faults']):,.0f}",
            ]
        )
    return table(["", "a key, median step", "slowest step", "in the kernel", "page faults"], rows)


def _serving(graph: str, request: str) -> Dict[str, Dict[str, Any]]:
    """Points of a graph and request, by model."""
    points = result("bench_serving")["points"]
    return {p["model"]: p for p in points if (p["graph"], p["request"]) == (graph, request)}


def serving_time() -> str:
    """docs/serving.md: time of uncompressed and hand-written graphs over the compressed one's."""
    models = {
        "DIN": "DIN, history of 100",
        "DIEN-like": "DIEN-like, a GRU over the history",
        "DSSM": "DSSM",
        "wide & deep": "wide & deep",
    }

    def ratio(graph: str, request: str, model: str) -> str:
        return f"{_serving(graph, request)[model]['time_over_compressed']:.1f}"

    users = [f"1 x {candidates}" for candidates in (50, 500, 1000)]
    return table(
        [
            "time over the compressed graph's",
            "as written, 1 user × 50 / 500 / 1000 candidates",
            "by hand, the same",
            "as written, 256 users × 1",
        ],
        [
            [
                words,
                *(
                    " / ".join(ratio(graph, request, model) for request in users)
                    for graph in ("as written", "by hand")
                ),
                ratio("as written", "256 x 1", model),
            ]
            for model, words in models.items()
        ],
    )


def serving_bytes() -> str:
    """docs/serving.md: what a request of 500 candidates takes."""
    return table(
        ["DIN, 1 user × 500 candidates", "request", "memory at its peak"],
        [
            [
                graph,
                f"{_serving(graph, '1 x 500')['DIN']['request_bytes'] / 1e3:.0f} KB",
                f"{_serving(graph, '1 x 500')['DIN']['peak_bytes'] / 1e6:.0f} MB",
            ]
            for graph in ("as written", "compressed")
        ],
    )


def serving_zoo() -> str:
    """docs/serving.md: compressed exports of the model zoo."""
    names = {"wide_and_deep": "wide & deep", "deepfm": "DeepFM", "din": "DIN"}
    points = result("bench_serving_zoo")["points"]
    return table(
        ["model zoo, 1 user × 500 candidates", *(names[point["model"]] for point in points)],
        [["times as fast as uncompressed", *(f"{point['speed_up']:.2f}" for point in points)]],
    )


def portable() -> str:
    """docs/serving.md: what a portable export costs."""
    found = result("bench_portable")
    kinds = ("ours", "portable")

    def cells(what: str) -> List[str]:
        points = (found[f"{kind}_{what}"] for kind in kinds)
        return [f"{one['s']:.1f} s, {one['peak_mb']:.0f} MB" for one in points]

    least, middle, most = sorted(found["request_portable_over_ours"])
    ours, theirs = (f"{found[f'{kind}_request_ms']:.1f} ms" for kind in kinds)
    return table(
        ["", "with our ops", "portable"],
        [
            ["variables on disk", *(f"{found[f'{kind}_export']['mb']:.0f} MB" for kind in kinds)],
            ["export, memory beyond the process", *cells("export")],
            ["load, memory beyond the process", *cells("load")],
            ["request", ours, f"{theirs}, {middle:.1f} times ({least:.1f} to {most:.1f})"],
        ],
    )


def grouped() -> str:
    """docs/serving.md: files of grouped samples."""
    found = result("bench_grouped")

    def thousands(rate: float) -> str:
        return f"{rate / 1000:.0f},000"

    def bytes_a_row(suffix: str) -> List[str]:
        return [f"{found[f'{kind}{suffix}_bytes_a_row']:.1f}" for kind in ("flat", "grouped")]

    def rate(kind: str, what: str) -> str:
        return thousands(found[f"{kind}_rows_{what}_a_second"])

    return table(
        ["", "flat `tf.train.Example`", "grouped `tf.train.SequenceExample`"],
        [
            ["bytes a row", *bytes_a_row("")],
            ["bytes a row, GZIP", *bytes_a_row(".gz")],
            [
                "rows read a second, batches of 512",
                rate("flat", "read"),
                f"{rate('grouped', 'read')}, {found['read_speed_up']:.2f} times",
            ],
            ["rows written a second, in Python", "", rate("grouped", "written")],
            ["rows written a second, GZIP", "", rate("grouped.gz", "written")],
        ],
    )


def distributed_costs() -> str:
    """docs/distributed.md: what a step with parameter servers costs."""
    return table(*cluster_figures.costs(result("bench_distributed")))


def distributed_model() -> str:
    """docs/scaling.md: the fitted model, and a large cluster on paper."""
    return table(*cluster_figures.model(result("bench_distributed")))


def soak_ps() -> str:
    """docs/distributed.md: a cluster whose tasks are killed again and again."""
    return table(*cluster_figures.soak(result("soak_ps")))


def pipeline() -> str:
    """docs/porting.md: speed of modified graphs."""
    found = result("bench_pipeline")["speed_up"]
    return (
        f"The modified graph is {found['modified']:.2f} times as fast, and "
        f"{found['modified, prefetch']:.2f} times where the dataset ends in `prefetch`."
    )


def zoo() -> str:
    """model_zoo/README.md: test AUC of the models."""
    points: Dict[str, Dict[str, str]] = {}
    for one in result("model_zoo")["results"]:
        auc = "{auc_mean:.4f} ({auc_least:.4f}\u2013{auc_most:.4f})".format(**one)
        points.setdefault(one["model"], {})[one["data"]] = auc
    return table(
        ["model", "MovieLens-100k", "Online Retail"],
        [[name, found["movielens_100k"], found["online_retail"]] for name, found in points.items()],
    )


def row_stddev() -> str:
    """docs/decisions.md: test AUC by the standard deviation of new rows."""
    names = {"movielens_100k": "MovieLens-100k", "online_retail": "Online Retail"}
    found: Dict[str, Dict[str, str]] = {}
    for one in result("row_stddev")["points"]:
        row = f"{one['model']}, {names[one['data']]}, dim {one['dim']}"
        found.setdefault(row, {})[one["stddev"]] = f"{one['auc']:.3f}"
    candidates = next(iter(found.values()))
    return table(
        ["test AUC, mean of three seeds", *candidates],
        [[row, *(aucs[name] for name in candidates)] for row, aucs in found.items()],
    )


def storage() -> str:
    """docs/storage.md: tables whose rows are mostly on disk."""
    found = result("bench_tiers")
    caption = f"speed of steps over the share of {found['shares']['rows']:,} rows in memory"
    picture = f"![{caption}](storage_shares.png)"
    steps = table(*tier_figures.steps(found))
    return "\n\n".join([steps, *tier_figures.sentences(found), picture])


def storage_ahead() -> str:
    """docs/storage.md: reading ahead of the step."""
    return table(*tier_figures.ahead(result("bench_tiers_ahead")))


FIGURES: Dict[str, Callable[[], str]] = {
    "distributed-costs": distributed_costs,
    "distributed-model": distributed_model,
    "table-speed": table_speed,
    "test-matrix": test_matrix,
    "filter-costs": filter_costs,
    "bloom-plain": bloom_plain,
    "bloom-blocks": bloom_blocks,
    "bloom-churn": bloom_churn,
    "bloom-generations": bloom_generations,
    "small-batches": small_batches,
    "apply-profile": apply_profile,
    "distinct-lookups": distinct_lookups,
    "step-lists": step_lists,
    "core-speed": core_speed,
    "chunks": chunks,
    "table-sizes": table_sizes,
    "restore-profile": restore_profile,
    "table-sizes-profile": table_sizes_profile,
    "table-sizes-limits": table_sizes_limits,
    "group-lookups": group_lookups,
    "weighted-lookups": weighted_lookups,
    "models": models,
    "goals": goals,
    "models-profile": models_profile,
    "memory": memory,
    "memory-large": memory_large,
    "limits": limits,
    "model-speed": model_speed,
    "storage": storage,
    "storage-ahead": storage_ahead,
    "soak": soak,
    "soak-ps": soak_ps,
    "filter-sweep": filter_sweep,
    "growth": growth,
    "checkpoint": checkpoint,
    "serving-time": serving_time,
    "serving-bytes": serving_bytes,
    "serving-zoo": serving_zoo,
    "portable": portable,
    "grouped": grouped,
    "pipeline": pipeline,
    "model-zoo": zoo,
    "row-stddev": row_stddev,
}


def pages() -> List[pathlib.Path]:
    """Every page that may have figures."""
    return sorted(p for pattern in ("*.md", "docs/*.md", "*/README.md") for p in ROOT.glob(pattern))


def names_in(text: str) -> List[str]:
    """Names of the blocks of a page."""
    return [match.group(2) for match in BLOCK.finditer(text)]


def generate(text: str) -> str:
    """The text of a page with all its blocks written again.

    Raises:
      ValueError: A block has a name that FIGURES lacks.
    """

    def block(match: "re.Match[str]") -> str:
        begin, name, end = match.groups()
        if name not in FIGURES:
            raise ValueError(f"figures must be one of {sorted(FIGURES)}, got {name!r}")
        return f"{begin}\n{FIGURES[name]()}\n\n{end}"

    return BLOCK.sub(block, text)


def main() -> None:
    """Runs the command."""
    for page in pages():
        text = page.read_text()
        written = generate(text)
        if written != text:
            page.write_text(written)
            print(f"{page.relative_to(ROOT)}: figures written")


if __name__ == "__main__":
    main()
