# SPDX-License-Identifier: Apache-2.0
"""The documentation site has every page, every public name and every error of the sources.

The generator itself is not run: `make docs-site` does it.
"""

import ast
import importlib
import inspect
import pathlib
import re

import pytest

import rec_estimator
from docs.site import errors, reference, sources, troubleshooting

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages that the generator reads."""
    folder = tmp_path_factory.mktemp("site") / "source"
    sources.write(folder)
    return folder


@pytest.fixture(scope="module")
def entries(site):
    """Names with an entry in the API reference, methods and properties included."""
    found = set()
    for page in site.glob("reference/*.rst"):
        for path, members in re.findall(
            r"^\.\. (?:auto|py:)\w+:: (\S+)\n(?:   :members: (.*))?", page.read_text(), re.MULTILINE
        ):
            found |= {path, *(f"{path}.{member}" for member in members.split(", "))}
    return found


def public_modules():
    """rec_estimator, the modules that it exports, and the others that are public."""
    exported = [name for name in rec_estimator.__all__ if name not in ("version",)]
    modules = [getattr(rec_estimator, name) for name in exported]
    names = {module.__name__ for module in modules if inspect.ismodule(module)}
    return sorted({"rec_estimator", *names, *reference.MODULES})


@pytest.mark.parametrize("name", public_modules())
def test_every_public_name_has_an_entry_in_the_reference(name, entries):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    missing = [
        each
        for each in names
        if not inspect.ismodule(getattr(module, each)) and f"{name}.{each}" not in entries
    ]
    assert missing == []


def test_methods_and_properties_have_entries(entries):
    assert {
        "rec_estimator.RecEstimator.train",
        "rec_estimator.EmbeddingTable.get_frequency",
        "rec_estimator.RunConfig.iterations_per_loop",
        "rec_estimator.optimizers.lazy_adam_by_addr.create_hash_optimizer_by_address",
    } <= entries


def test_modules_that_pages_import_from_have_entries():
    text = "\n".join((ROOT / path).read_text() for path in sources.pages())
    imported = set(re.findall(r"^(?:from|import) (rec_estimator[\w.]*)", text, re.MULTILINE))
    assert sorted(imported - {"rec_estimator"} - set(reference.MODULES)) == [], (
        "a user imports it, so it is public: name it in MODULES of docs/site/reference.py"
    )


def test_every_page_is_in_the_navigation():
    index = sources.with_links_of_the_site((ROOT / "docs/index.md").read_text(), "docs/index.md")
    named = [page for _, names in sources.navigation(index) for page in names]
    there = {name[: -len(".md")] for name in sources.pages().values()} - {"index"}
    assert sorted(there - set(named)) == [], "add the page to a section of docs/index.md"
    assert len(named) == len(set(named)), "docs/index.md names a page twice"


def test_links_inside_the_site_stay_and_others_lead_to_the_code_host():
    text = (
        "[a](filters.md#eviction) [b](../CONTRIBUTING.md) [c](../README.md) ![d](growth.png) "
        "[e](../benchmarks/soak.py) [f](../tests/) [g](https://x.org/a.md) [h](#eviction)"
    )
    host = sources.CODE_HOST
    assert sources.with_links_of_the_site(text, "docs/storage.md") == (
        "[a](filters.md#eviction) [b](contributing.md) [c](index.md) ![d](growth.png) "
        f"[e]({host}/benchmarks/soak.py) [f]({host}/tests) [g](https://x.org/a.md) [h](#eviction)"
    )
    text = "[a](docs/filters.md) [b](model_zoo/README.md) [c](README.md#speed)"
    assert sources.with_links_of_the_site(text, "CONTRIBUTING.md") == (
        f"[a](filters.md) [b](model_zoo.md) [c]({host}/README.md#speed)"
    )


def test_the_page_of_errors_is_that_of_the_sources():
    text = troubleshooting.PAGE.read_text()
    assert text == troubleshooting.with_errors(text), "run `python -m docs.site.troubleshooting`"


# Statements that pass on an error of TensorFlow or Python, or that a caller catches.
WITHOUT_WORDS = {
    "rec_estimator/checkpoint/paths.py": "explains errors of TensorFlow",
    "rec_estimator/rec_sdk/feature_spec.py": "is caught",
}


@pytest.mark.parametrize(
    "path",
    sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("rec_estimator/**/*.py")),
)
def test_the_words_of_every_exception_are_found(path):
    source = (ROOT / path).read_text()
    words = [error.words for error in errors.PythonModule(path, source).errors()]
    classes = ("ValueError", "TypeError", "RuntimeError", "KeyError", "OSError", "LookupError")
    made = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in classes
        and path not in WITHOUT_WORDS
    ]
    # One that is made in several ways has several texts; equal texts are listed once.
    assert len(words) >= len(made)


def test_words_of_python_are_followed_through_names_branches_and_functions():
    source = """
def _lost(path, why):
    return tf.errors.DataLossError(None, None, f"{path} is damaged: {why}; use another")

def check(value, flag):
    message = "value must be 1, " + f"got {value!r}"
    if flag:
        raise ValueError(message)
    raise TypeError(_why(flag))

def _why(flag):
    return "a; b" if flag else "c"

def read(path):
    raise _lost(path, f"no {len(path)}")
"""
    found = {(error.kind, error.words) for error in errors.PythonModule("m.py", source).errors()}
    assert found == {
        ("DataLossError", "<path> is damaged: no <…>; use another"),
        ("ValueError", "value must be 1, got <value>"),
        ("TypeError", "a; b"),
        ("TypeError", "c"),
    }
    error = errors.Error("TypeError", "a; b; c", "m.py")
    assert (error.fact, error.remedy) == ("a", "b; c")


def test_words_of_cpp_are_the_strings_of_statuses_and_rules():
    source = """
// InvalidArgument("not an error")
Status A() { return InvalidArgument("n of ", name_, " must be >= 1, got ", f(n, "x"),
                                    "; give" " more"); }
"""
    (found,) = errors.cpp_errors("ops/table/a.cc", source)
    assert found.words == "n of <name> must be >= 1, got <…>; give more"
    source = 'text = "path " + name + " must exist, got " + F(1, 2) + "; make it";'
    (found,) = errors.cpp_errors("ops/core/a.cc", source)
    assert found.words == "path <name> must exist, got <…>; make it"
