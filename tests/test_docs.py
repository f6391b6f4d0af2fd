# SPDX-License-Identifier: Apache-2.0
"""Everything a reader can copy runs: the pages' python blocks and the docstrings' examples."""

import doctest
import importlib
import pathlib
import re
import shlex

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from test_layers import FOLDERS as INCLUDE_ORDER

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "model_zoo/*.md") for page in ROOT.glob(pattern)
)
MODULES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in ROOT.glob("rec_estimator/**/*.py")
    if path.name != "__main__.py"
)
# The words after "python": `continued`; `commands`, if those of the zoo below the block run too; or
# marks of the test, such as long and keras_2.
BLOCK = re.compile(
    r"^```python([\w ]*)\n(.*?)^```$|^    python -m model_zoo ([^\n]*)$", re.MULTILINE | re.DOTALL
)


def python_blocks(page: pathlib.Path):
    """Each block with those that continue it, at its lines, so that a traceback shows the page's.

    A block of ```python continued goes on where the block before it ends.
    """
    text = page.read_text()
    sources, marks, runs_commands = {}, {}, False
    for match in BLOCK.finditer(text):
        words, code, command = (match.group(1) or "").split(), match.group(2), match.group(3)
        line = text.count("\n", 0, match.start(2 if command is None else 3))
        if command is not None:
            if not runs_commands:
                continue
            code = (
                f"from model_zoo import __main__; assert __main__.main({shlex.split(command)}) == 0"
            )
        elif "continued" not in words:
            first, runs_commands = line, "commands" in words
            marks[first] = [getattr(pytest.mark, word) for word in words if word != "commands"]
        source = sources.get(first, "")
        sources[first] = source + "\n" * (line - source.count("\n")) + code
    for line, source in sources.items():
        yield pytest.param(page, source, id=f"{page.name}:{line}", marks=marks[line])


@pytest.mark.parametrize(
    ("page", "source"), [block for page in PAGES for block in python_blocks(page)]
)
def test_block_of_a_page_runs_alone_in_an_empty_folder(page, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # This process is in graph mode already; disabled for good, other tests' threads would lose it.
    monkeypatch.setattr(tf, "disable_eager_execution", lambda: None)
    exec(compile(source, str(page), "exec"), {"__name__": "__main__"})


def test_readme_has_an_example_that_runs():
    assert list(python_blocks(ROOT / "README.md")), (
        "README.md must have a ```python block: it is the first thing a newcomer copies"
    )


ARCHITECTURE = ROOT / "docs" / "architecture.md"


def folders_with(pattern: str, *roots: str):
    """Folders that hold a file of this pattern themselves, with a slash at the end."""
    return sorted(
        {
            path.parent.relative_to(ROOT).as_posix() + "/"
            for root in roots
            for path in ROOT.glob(f"{root}/**/{pattern}")
            if path.name != "__init__.py"
        }
    )


@pytest.mark.parametrize(
    "folder",
    [*folders_with("*.py", "rec_estimator"), *folders_with("*.cc", "ops")],
)
def test_architecture_names_every_folder(folder):
    # A path to one of its files names a folder, too.
    named = re.findall(r"`([\w/.]+)", ARCHITECTURE.read_text())
    assert [name for name in named if name.startswith(folder)], (
        f"docs/architecture.md must say when to look into {folder}"
    )


def test_architecture_lists_the_folders_of_ops_in_the_order_of_their_includes():
    listed = re.findall(r"^\| `ops/([\w/]+)/` \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert listed == list(INCLUDE_ORDER)


def test_architecture_names_every_top_level_module():
    modules = {path.name for path in ROOT.glob("rec_estimator/*.py")}
    modules -= {"__init__.py"}
    named = re.findall(r"`(?:rec_estimator/)?(\w+\.py)`", ARCHITECTURE.read_text())
    assert sorted(modules - set(named)) == []


# Folders of the root that pages name. What a build or a run makes in them does not count.
FOLDERS = ("_build", "benchmarks", "docs", "model_zoo", "ops", "rec_estimator", "tests")
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in ROOT.glob(f"{folder}/**/*.*")
    if "__pycache__" not in path.parts
]


def is_there(name: str) -> bool:
    """Whether a path of a page exists: from the root, or as the end of a path of the tree."""
    # `<name>` stands for any: the folder before it must exist.
    name = re.sub(r"[^/]*<.*", "", name)
    return (ROOT / name).exists() or any(f"/{path}".endswith(f"/{name}") for path in FILES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_names_no_file_that_is_not_there(page):
    text = page.read_text()
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.<>-]*)`", text)  # Files and folders.
    named += re.findall(r"`([\w/<>-]+\.(?:py|cc|h))`", text)
    modules = re.findall(rf"python -m ((?:{'|'.join(FOLDERS)})[\w.]*)", text)
    for path in (module.rstrip(".").replace(".", "/") for module in modules):
        named.append(path if (ROOT / path).is_dir() else f"{path}.py")
    assert [name for name in named if not is_there(name)] == []


def test_architecture_and_contributing_name_files():
    """The test above finds what these pages name."""
    for page in (ARCHITECTURE, ROOT / "CONTRIBUTING.md"):
        assert len(re.findall(r"`[\w/.]+\.(?:py|cc|h)`", page.read_text())) > 20


def anchors(page: pathlib.Path):
    """The anchors that a code host gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files_and_headings(page):
    links = re.findall(r"\]\(([^):#\s]*)(?:#([\w-]+))?\)", page.read_text())
    lost = [link for link, _ in links if not (page.parent / link).exists()]
    lost += [
        f"{link}#{anchor}"
        for link, anchor in links
        if anchor
        and link not in lost
        and anchor not in anchors(page.parent / link if link else page)
    ]
    assert lost == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import rec_estimator as rec

    module = importlib.import_module(name.replace(".__init__", ""))
    output = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        example.globs.update(rec=rec, tf=tf, np=np)
        with tf.Graph().as_default():
            doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(
                example, out=output.append
            )
    assert not output, "".join(output)
