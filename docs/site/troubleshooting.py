# SPDX-License-Identifier: Apache-2.0
"""Writes the list of errors in docs/troubleshooting.md, from the sources.

python -m docs.site.troubleshooting    # `make docs` runs it
"""

import pathlib
import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Tuple

from docs.site import errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
_BEGIN, _END = "<!-- errors of the sources -->\n", "<!-- end of errors -->\n"


class Section(NamedTuple):
    """Errors of files whose paths begin with a prefix; the first section that fits has an error."""

    title: str
    introduction: str
    prefixes: Tuple[str, ...]


_INNER_WORDS = (
    "Kernels check everything that they read. A graph that functions of rec_estimator have built "
    "meets these errors only if the data are wrong, or if it was edited or fed by hand."
)

SECTIONS = (
    Section(
        "Installing and importing",
        "See [Installing](installing.md) and [Compatibility](compatibility.md).",
        (
            "rec_estimator/_ops.py",
            "rec_estimator/_tensorflow/",
            "rec_estimator/__init__.py",
            "rec_estimator/experimental.py",
            "rec_estimator/compat",
        ),
    ),
    Section(
        "Declared features and feature columns",
        "See [Features and feature columns](features.md).",
        ("rec_estimator/features.py", "rec_estimator/feature_column/"),
    ),
    Section(
        "Options, tables and lookups",
        "See [Filters and eviction](filters.md) and [Rows on disk](storage.md).",
        (
            "rec_estimator/options.py",
            "rec_estimator/embedding_variable.py",
            "rec_estimator/deeprec.py",
            "rec_estimator/_",
            "rec_estimator/table/",
        ),
    ),
    Section("Input", "See [Input](input.md).", ("rec_estimator/inputs/",)),
    Section(
        "Clusters",
        "See [Clusters](distributed.md).",
        (
            "rec_estimator/ps.py",
            "rec_estimator/training/ps",
            "rec_estimator/training/cluster",
            "rec_estimator/training/tf_config",
            "ops/cluster/",
        ),
    ),
    Section(
        "Estimators, training and hooks",
        "See the [Tutorial](tutorial.md).",
        ("rec_estimator/estimator.py", "rec_estimator/training/", "rec_estimator/hooks.py"),
    ),
    Section("Optimizers", "See [Optimizers](optimizers.md).", ("rec_estimator/optimizers/",)),
    Section("Metrics", "See [Metrics by user](metrics.md).", ("rec_estimator/metrics/",)),
    Section(
        "Checkpoints and tools",
        "See [Checkpoints](checkpoints.md). A DataLossError means that a file is damaged or "
        "incomplete: restore an earlier checkpoint.",
        ("rec_estimator/checkpoint/", "rec_estimator/tools/", "ops/checkpoint/"),
    ),
    Section(
        "Graph modification",
        "See [Graph modification](graph_modification.md).",
        ("rec_estimator/graph_modifier/", "rec_estimator/graph_passes/"),
    ),
    Section(
        "Sample-aware compression",
        "See [Sample compression](sample_compression.md).",
        ("rec_estimator/sample_compression/", "rec_estimator/graph_optimizer.py"),
    ),
    Section(
        "Export and serving",
        "See [Serving](serving.md).",
        ("rec_estimator/serving/", "rec_estimator/export.py", "ops/serving/"),
    ),
    Section("Rec SDK's names", "See [Porting](porting.md).", ("rec_estimator/rec_sdk/",)),
    Section("Other modules", "", ("rec_estimator/",)),
    Section(
        "A running step: rows on disk",
        "See [Rows on disk](storage.md).",
        ("ops/core/storage/", "ops/core/tier/", "ops/table/table_storage", "ops/train/bring"),
    ),
    Section("A running step: lookups, updates and evictions", _INNER_WORDS, ("ops/",)),
)


def generate() -> str:
    """The sections of the page, from the sources."""
    found: Dict[Section, Dict[str, Dict[str, None]]] = {section: {} for section in SECTIONS}
    for error in errors.find(ROOT):
        remedies = found[_section_of(error)].setdefault(_fact(error), {})
        if re.search(r"[a-z]{2}", re.sub("<.*?>", "", error.remedy)):
            remedies[_prose(error.remedy)] = None
    return "\n".join(
        "\n".join([f"### {section.title}\n", section.introduction, "", *_items(facts)]) + "\n"
        for section, facts in found.items()
        if facts
    )


def _section_of(error: errors.Error) -> Section:
    return next(section for section in SECTIONS if error.path.startswith(section.prefixes))


def _fact(error: errors.Error) -> str:
    """What must hold, as code, and the class."""
    fact = " ".join(error.fact.split())
    ticks = "``" if "`" in fact else "`"
    return f"{ticks}{fact}{ticks}" + (f" ({error.kind})" if error.kind else "")


def _prose(text: str) -> str:
    """Text in which Markdown sees no markup."""
    return re.sub(r"([\\`*<>])", r"\\\1", " ".join(text.split())).replace("](", "]\\(")


def _items(facts: Mapping[str, Iterable[str]]) -> List[str]:
    """List items in the order of their words."""
    items = []
    for fact, remedies in facts.items():
        helps = "; or: ".join(remedies)
        items.append(f"- {fact}: {helps}" if helps else f"- {fact}")
    return sorted(items, key=lambda item: re.sub(r"\W+", " ", item).strip().lower())


def with_errors(text: str) -> str:
    """The text of the page, with the list of errors as the sources have it."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{generate()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_errors(PAGE.read_text()))
