# SPDX-License-Identifier: Apache-2.0
"""Imports and includes run downwards: from layers below, or from the same package or folder."""

import ast
import collections
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# From the bottom to the top. A name is a module or a package of rec_estimator.
LAYERS = (
    ("_tensorflow",),
    ("_ops",),
    ("_argument_checks", "_init_settings", "regularizers"),
    ("options",),
    ("graph_passes",),
    ("table",),
    ("checkpoint", "optimizers", "inputs", "metrics"),
    ("embedding_variable",),
    ("features",),
    ("sample_compression", "graph_modifier"),
    ("serving", "training", "rec_sdk"),
    (
        "compat",
        "feature_column",
        "experimental",
        "export",
        "graph_optimizer",
        "hooks",
        "deeprec",
        "ps",
    ),
    ("_model_pipeline",),
    ("estimator",),
    ("__init__",),
    ("tools",),
    ("__main__",),
)
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules(tree):
    """{dotted name: path} of every module of a tree."""
    found = {}
    for path in sorted((ROOT / tree).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules("rec_estimator")


def imports_of(path, known):
    """Modules that a file imports, at the top or inside a function. known: all modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name


def part_of(module):
    """The top-level module or package of a module: `a` for `rec_estimator.a.b`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


@functools.cache
def edges(tree="rec_estimator"):
    """Sorted pairs (module, module of the same tree that it imports)."""
    known = modules(tree)
    return sorted(
        {
            (module, imported)
            for module, path in known.items()
            for imported in imports_of(path, known)
            if imported.split(".")[0] == tree and imported != module
        }
    )


def test_every_module_has_a_layer():
    assert {part_of(module) for module in MODULES} <= set(LAYER)
    assert len(edges()) > 200, "the imports of a package of this size were not found"


@pytest.mark.parametrize("name", sorted(LAYER))
def test_imports_run_downwards(name):
    upwards = [
        f"{module} imports {imported}"
        for module, imported in edges()
        if part_of(module) == name
        and part_of(imported) != name
        and LAYER[part_of(imported)] >= LAYER[name]
    ]
    assert not upwards, (
        "move the shared code to a lower layer, or define a protocol in the lower layer and let "
        "the upper layer register an implementation:\n  " + "\n  ".join(upwards)
    )


@pytest.mark.parametrize("tree", ["rec_estimator", "model_zoo"])
def test_no_import_is_in_a_cycle(tree):
    """Neither between packages nor inside a package."""
    known = modules(tree)
    below = {module: {b for a, b in edges(tree) if a == module} for module in known}
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for imported in sorted(below[module] & set(known)):
                visit(imported, [*path, module])
            done.add(module)

    for module in known:
        visit(module, [])


# Inside of sample_compression, from the bottom to the top.
COMPRESSION_LAYERS = ("analysis", "rules", "report", "regions", "rewrite", "occurrences")


def test_the_parts_of_sample_compression_import_downwards():
    """A part imports neither an upper part nor the package itself."""
    level = {name: i for i, name in enumerate(COMPRESSION_LAYERS)}
    package = "rec_estimator.sample_compression"
    upwards, count = [], 0
    for module, imported in edges():
        parts = [name[len(package) + 1 :].split(".")[0] for name in (module, imported)]
        if parts[0] in level and imported.startswith(package):
            count += 1
            if level.get(parts[1], len(level)) > level[parts[0]]:
                upwards.append(f"{module} imports {imported}")
    assert count > 30, "the imports of the pass were not found"
    assert not upwards, "a lower part must not know an upper one:\n  " + "\n  ".join(upwards)


# The folders of ops/ and of ops/core/, from the bottom to the top.
FOLDERS = (
    *("core/base", "core/math", "core/storage", "core/index", "core/rows", "core/filter"),
    *("core/keys", "core/stripes", "core/tier", "core/evict", "core/step", "core/table"),
    *("kernel", "table", "lookup", "train", "cluster", "passes"),
    *("checkpoint", "serving", "pipeline"),
)
CPP_SOURCES = sorted(path for path in (ROOT / "ops").rglob("*") if path.suffix in (".h", ".cc"))
OUR_INCLUDE = re.compile(r'^#include "(ops/[^"]+)"', re.MULTILINE)
ANY_INCLUDE = re.compile(r'^#include ["<](.+)[">]', re.MULTILINE)


def folder_of(path):
    """The folder of a path relative to the root: `core/base` for `ops/core/base/crc32c.h`."""
    return str(pathlib.PurePosixPath(path).parent.relative_to("ops"))


def relative(path):
    return path.relative_to(ROOT).as_posix()


INCLUDES = {relative(path): OUR_INCLUDE.findall(path.read_text()) for path in CPP_SOURCES}


def test_every_folder_of_ops_has_a_place_in_the_order():
    assert {folder_of(name) for name in INCLUDES} == set(FOLDERS)
    assert sum(map(len, INCLUDES.values())) > 400, "the includes were not found"


@pytest.mark.parametrize("folder", FOLDERS)
def test_includes_run_downwards(folder):
    upwards = [
        f"{name} includes {included}"
        for name, names in INCLUDES.items()
        for included in names
        if folder_of(name) == folder and FOLDERS.index(folder_of(included)) > FOLDERS.index(folder)
    ]
    assert not upwards, (
        "move what both need to a lower folder, or declare an interface in the lower one:\n  "
        + "\n  ".join(upwards)
    )


def test_no_include_is_in_a_cycle():
    done = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for included in INCLUDES[name]:
                visit(included, [*path, name])
            done.add(name)

    for name in INCLUDES:
        visit(name, [])


def test_the_core_includes_neither_tensorflow_nor_what_it_contains():
    found = [
        f"{relative(path)} includes {included}"
        for path in CPP_SOURCES
        for included in ANY_INCLUDE.findall(path.read_text())
        if relative(path).startswith("ops/core/")
        # Headers of the compiler, the standard library and the kernel, or our own.
        and not included.startswith(("ops/core/", "linux/", "sys/"))
        and "/" in included
    ]
    assert not found


NAMESPACE = re.compile(r"^namespace (?:(\w+(?:::\w+)*) )?\{")
NAMESPACE_END = re.compile(r"^\}  // namespace")
CLASS = re.compile(r"^(?:class|struct) (?:alignas\([^)]*\) )?(\w+)(?: final)?(?: [:{].*)?$")


def classes_of(path):
    """The classes that a source defines, by their full names."""
    namespaces = []
    for line in path.read_text().splitlines():
        if opened := NAMESPACE.match(line):
            namespaces.append(opened[1] or relative(path))  # an anonymous one is the file's own
        elif NAMESPACE_END.match(line):
            namespaces.pop()
        elif defined := CLASS.match(line):
            yield "::".join([*namespaces, defined[1]])
    assert not namespaces, path


def test_a_class_of_the_package_is_defined_once():
    # The linker silently takes one destructor for two classes of the same name.
    counts = collections.Counter(name for path in CPP_SOURCES for name in classes_of(path))
    assert len(counts) > 150, "the classes were not found"
    assert not [name for name, count in counts.items() if count > 1]


# Files outside of rec_estimator/rec_sdk that name Rec SDK, and the reason. All others must not.
NAME_REC_SDK = {
    "model_zoo/little_demo.py": "is its demo",
    "rec_estimator/__init__.py": "exports its names",
    "rec_estimator/checkpoint/sparse_folders.py": "the layout of these folders is Rec SDK's",
    "rec_estimator/graph_modifier/__init__.py": "cites the source",
    "rec_estimator/optimizers/hash_optimizer.py": "has its factories, which modules of rules bind",
}


def test_one_package_knows_rec_sdk():
    named = re.compile(r"\brec ?sdk\b|\bmx_?rec\b", re.IGNORECASE)
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("rec_estimator", "model_zoo", "ops")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cc") and named.search(path.read_text())
    }
    found = {name for name in found if not name.startswith("rec_estimator/rec_sdk/")}
    assert sorted(found - set(NAME_REC_SDK)) == [], (
        "only rec_estimator/rec_sdk knows Rec SDK: say what the code does for any script, or move "
        "it there"
    )
    assert sorted(set(NAME_REC_SDK) - found) == [], "take the name off NAME_REC_SDK"


def test_every_source_of_the_core_is_named_after_a_header_of_its_folder():
    orphans = [
        relative(path)
        for path in CPP_SOURCES
        if relative(path).startswith("ops/core/")
        and path.suffix == ".cc"
        and not any(
            path.stem == header.stem or path.stem.startswith(f"{header.stem}_")
            for header in path.parent.glob("*.h")
        )
    ]
    assert not orphans
