# SPDX-License-Identifier: Apache-2.0
"""Every measured figure of a page is that of a raw result in benchmarks/results, rounded.

Who measures again writes the pages again: a figure that is left behind fails here by its line.
"""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBER = r"[+]?(\u2212?\d+(?:\.\d+)?)"
WORKLOADS = ("known", "stream")
BLOOM = ("hashes", "measured", "bytes_per_key")


def result(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def table_ratios(what):
    ratios = result("bench_table")["ratios"]
    return [ratios[f"{what}/dense"], ratios[f"{what}/tfra"]]


def filter_costs():
    cost = result("bench_filters")["cost"]
    return [100 * cost[f"{keys}/{kind}"] for kind in ("counter", "bloom") for keys in WORKLOADS]


def filter_memory():
    memory = result("bench_filters")["memory"]
    kinds = ("CounterFilter", "CBFFilter of 10 M")
    return [memory[f"not admitted, {kind}"]["beyond_floats"] for kind in kinds]


def clicks():
    runs = {run["filter_freq"]: run for run in result("filter_sweep")["data"]["clicks"]}
    left = {f: 100 * run["rows"] / (run["rows"] + run["filtered"]) for f, run in runs.items()}
    return [left[10], runs[0]["auc"], runs[10]["auc"], left[50], runs[50]["auc"]]


def zoo(model):
    return [
        found[f"auc_{what}"]
        for data in ("movielens_100k", "online_retail")
        for found in result("model_zoo")["results"]
        if (found["model"], found["data"]) == (model, data)
        for what in ("mean", "least", "most")
    ]


def checkpoint(*path):
    found = result("bench_checkpoint")
    for key in path:
        found = found[key]
    return found


def serving_points(graph, request):
    points = result("bench_serving")["points"]
    return [point for point in points if (point["graph"], point["request"]) == (graph, request)]


def serving(model, graph, field="time_over_compressed", requests=("50", "500", "1000")):
    return [
        point[field]
        for request in requests
        for point in serving_points(graph, f"1 x {request}")
        if point["model"] == model
    ]


def serving_single_candidates():
    found = {p["model"]: p["time_over_compressed"] for p in serving_points("as written", "256 x 1")}
    return [found[model] for model in ("DIN", "DIEN-like", "DSSM", "wide & deep")]


def serving_zoo():
    speed_ups = {p["model"]: p["speed_up"] for p in result("bench_serving_zoo")["points"]}
    return [speed_ups[model] for model in ("wide_and_deep", "deepfm", "din")]


def serving_bytes():
    def of(graph, field):
        return serving("DIN", graph, field, ["500"])[0]

    sizes = [of(graph, "request_bytes") for graph in ("compressed", "as written")]
    peaks = [of(graph, "peak_bytes") for graph in ("compressed", "as written")]
    return [sizes[0] / 1e3, sizes[1] / 1e6, peaks[0] / 1e6, peaks[1] / 1e6]


def portable(*fields):
    found = result("bench_portable")
    return [found[name][part] for name, part in (field.split(".") for field in fields)]


def portable_request():
    found = result("bench_portable")
    over = sorted(found["request_portable_over_ours"])
    return [found["ours_request_ms"], found["portable_request_ms"], over[1], over[0], over[2]]


def grouped(*fields, unit=1):
    return [result("bench_grouped")[field] / unit for field in fields]


# Page, its words with # for each figure, and the figures.
FIGURES = [
    ("README.md", "| train step, Adagrad | #~ as fast | #~ as fast |", table_ratios("train")),
    ("README.md", "| lookup alone | #~ as fast | #~ as fast |", table_ratios("lookup")),
    (
        "docs/filters.md",
        "known keys / a stream of new ones | # % / # % | # % / # % |",
        filter_costs(),
    ),
    (
        "docs/filters.md",
        "costs | an entry, # bytes | # bytes at p = 0.01, no entry",
        filter_memory(),
    ),
    (
        "docs/filters.md",
        "filter_freq=10 leaves # % of the rows and lifts test AUC from # to #, 50 leaves # % and "
        "reaches #.",
        clicks(),
    ),
    *(
        ("docs/filters.md", f"| {one['asked']:g} | # | # | # |", [one[name] for name in BLOOM])
        for one in result("bloom_rates")["own"]
    ),
    (
        "docs/checkpoints.md",
        "a save runs at # of the speed of a plain file of that size, a restore at # of a cold",
        [checkpoint("ratios", "save"), checkpoint("ratios", "restore")],
    ),
    (
        "docs/checkpoints.md",
        "Beyond the table they take # and # MiB",
        [checkpoint("memory", what, "beyond") / 2**20 for what in ("save", "restore")],
    ),
    *(
        (
            "docs/serving.md",
            f"| {words} | # / # / # | # / # / # |",
            [*serving(model, "as written"), *serving(model, "by hand")],
        )
        for words, model in (
            ("DIN, history of 100", "DIN"),
            ("DIEN-like, a GRU over the history", "DIEN-like"),
            ("DSSM", "DSSM"),
            ("wide & deep", "wide & deep"),
        )
    ),
    (
        "docs/serving.md",
        "a DIN request of 500 candidates takes # KB instead of # MB, and # MB of memory instead "
        "of #.",
        serving_bytes(),
    ),
    (
        "docs/serving.md",
        "the four models as written take #, #, # and # times as long.",
        serving_single_candidates(),
    ),
    (
        "docs/serving.md",
        "# (wide & deep), # (DeepFM) and # times (DIN) as fast as uncompressed ones",
        serving_zoo(),
    ),
    (
        "docs/serving.md",
        "| variables on disk | # MB (with counts and versions) | # MB |",
        portable("ours_export.mb", "portable_export.mb"),
    ),
    (
        "docs/serving.md",
        "| export | # s, # MB beyond the process | # s, # MB beyond the process: rows",
        portable("ours_export.s", "ours_export.peak_mb", "portable_export.s")
        + portable("portable_export.peak_mb"),
    ),
    (
        "docs/serving.md",
        "| load | # s, # MB | # s, # MB:",
        portable("ours_load.s", "ours_load.peak_mb", "portable_load.s", "portable_load.peak_mb"),
    ),
    ("docs/serving.md", "| request | # ms | # ms, # times (# to #) |", portable_request()),
    (
        "docs/serving.md",
        "| bytes a row | # | # |",
        grouped("flat_bytes_a_row", "grouped_bytes_a_row"),
    ),
    (
        "docs/serving.md",
        "| bytes a row, GZIP | # | # |",
        grouped("flat.gz_bytes_a_row", "grouped.gz_bytes_a_row"),
    ),
    (
        "docs/serving.md",
        "| rows read a second, batches of 512 | #,000 | #,000, # times |",
        grouped("flat_rows_read_a_second", "grouped_rows_read_a_second", unit=1000)
        + grouped("read_speed_up"),
    ),
    (
        "docs/serving.md",
        "They are written by Python: # thousand rows a second, # with GZIP.",
        grouped("grouped_rows_written_a_second", "grouped.gz_rows_written_a_second", unit=1000),
    ),
    *(
        (
            "model_zoo/README.md",
            f"| [{model}]({model}.py) |~| # (#~#) | # (#~#) | `python -m model_zoo.run {model}` |",
            zoo(model),
        )
        for model in ("wide_and_deep", "deepfm", "din")
    ),
]


def pattern_of(words):
    """# is a figure, ~ anything within a line, white space any."""
    text = re.escape(" ".join(words.split())).replace(r"\#", NUMBER).replace(r"\~", ".*?")
    return text.replace(r"\ ", r"\s+")


@pytest.mark.parametrize(
    ("page", "words", "figures"), FIGURES, ids=[f"{p}: {w[:50]}" for p, w, _ in FIGURES]
)
def test_figures_of_a_page_are_those_of_the_raw_results(page, words, figures):
    found = re.search(pattern_of(words), (ROOT / page).read_text())
    assert found, f"{page} must say {words!r}; who says it in other words writes them here as well"
    assert len(found.groups()) == len(figures)
    for text, figure in zip(found.groups(), figures):
        digits = len(text.partition(".")[2])
        # Half of the last digit, and what the raw result was rounded by itself.
        error = abs(float(text.replace("\u2212", "-").replace(",", "")) - figure)
        assert error <= 0.5001 * 10**-digits, f"{page}: {text} in {words!r} must be {figure}"


@pytest.mark.parametrize("cells", range(2, 18, 2))
def test_the_table_of_bloom_rates_is_the_raw_result(cells):
    points = [p for p in result("bloom_rates")["plain"] if p["cells_per_key"] == cells]
    shown = [
        " / ".join(f"{float(f'{point[kind]:.2g}'):g}" for kind in ("computed", "measured"))
        for point in points
    ]
    line = f"| {cells} | {' | '.join(shown)} |"
    assert line in (ROOT / "docs" / "filters.md").read_text().splitlines()
