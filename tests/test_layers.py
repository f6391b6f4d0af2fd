# SPDX-License-Identifier: Apache-2.0
"""A module imports only from layers below its own, or from its own package."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# From the bottom to the top. A name is a module or a package of rec_estimator.
LAYERS = (
    ("_tensorflow",),
    ("_ops",),
    ("_argument_checks", "_init_settings", "options"),
    ("graph_passes",),
    ("table",),
    ("checkpoint", "optimizers", "inputs"),
    ("embedding_variable",),
    ("features",),
    ("sample_compression", "graph_modifier"),
    ("serving", "training", "rec_sdk"),
    ("feature_column", "experimental", "export", "graph_optimizer", "hooks", "deeprec", "ps"),
    ("estimator",),
    ("__init__",),
    ("tools",),
)
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules():
    """{dotted name: path} of every module of rec_estimator."""
    found = {}
    for path in sorted((ROOT / "rec_estimator").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(path):
    """Modules of rec_estimator that a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name


def part_of(module):
    """The top-level module or package of a module: `a` for `rec_estimator.a.b`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


EDGES = sorted(
    {
        (module, imported)
        for module, path in MODULES.items()
        for imported in imports_of(path)
        if imported.split(".")[0] == "rec_estimator" and imported != module
    }
)


def test_every_module_has_a_layer():
    assert {part_of(module) for module in MODULES} <= set(LAYER)
    assert len(EDGES) > 200, "the imports of a package of this size were not found"


@pytest.mark.parametrize("name", sorted(LAYER))
def test_imports_run_downwards(name):
    upwards = [
        f"{module} imports {imported}"
        for module, imported in EDGES
        if part_of(module) == name
        and part_of(imported) != name
        and LAYER[part_of(imported)] >= LAYER[name]
    ]
    assert not upwards, (
        "move the shared code to a lower layer, or define a protocol in the lower layer and let "
        "the upper layer register an implementation:\n  " + "\n  ".join(upwards)
    )


def test_no_import_is_in_a_cycle():
    """Neither between packages nor inside a package."""
    below = {module: {b for a, b in EDGES if a == module} for module in MODULES}
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for imported in sorted(below[module] & set(MODULES)):
                visit(imported, [*path, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


# Inside of sample_compression, from the bottom to the top.
COMPRESSION_LAYERS = ("analysis", "rules", "report", "regions", "rewrite", "occurrences")


def test_the_parts_of_sample_compression_import_downwards():
    """A part imports neither an upper part nor the package itself."""
    level = {name: i for i, name in enumerate(COMPRESSION_LAYERS)}
    package = "rec_estimator.sample_compression"
    upwards, count = [], 0
    for module, imported in EDGES:
        parts = [name[len(package) + 1 :].split(".")[0] for name in (module, imported)]
        if parts[0] in level and imported.startswith(package):
            count += 1
            if level.get(parts[1], len(level)) > level[parts[0]]:
                upwards.append(f"{module} imports {imported}")
    assert count > 30, "the imports of the pass were not found"
    assert not upwards, "a lower part must not know an upper one:\n  " + "\n  ".join(upwards)
