# SPDX-License-Identifier: Apache-2.0
"""The API reference: what is public, and a page of each subject for Sphinx.

The subjects of ``rec_estimator`` are the comments in its ``__all__``. Each public module below is
a subject of its own. So a name has an entry as soon as it is public.
"""

import ast
import importlib
import inspect
import pathlib
import re
import types
from typing import Any, Dict, Iterator, List, NamedTuple

PACKAGE = "rec_estimator"

# Modules that a user imports by their own name, and what they are for.
MODULES = {
    "rec_estimator.inputs": "Input",
    "rec_estimator.feature_column": "Feature columns",
    "rec_estimator.optimizers": "Optimizers",
    "rec_estimator.metrics": "Metrics",
    "rec_estimator.export": "Receivers and outputs of exports",
    "rec_estimator.graph_optimizer": "Sample-aware compression",
    "rec_estimator.experimental": "Names of tf.estimator.experimental",
    "rec_estimator.compat": "tf.estimator for libraries of others",
    "rec_estimator.serving": "Predictors",
    "rec_estimator.ps": "Parameter servers",
    "rec_estimator.tools.inspect_checkpoint": "rec-estimator inspect",
    "rec_estimator.tools.memory_share": "rec-estimator memory-share",
    "rec_estimator.tools.shrink_ckpt_with_filtered_features": "rec-estimator shrink",
    "rec_estimator.tools.tune_filter": "rec-estimator tune",
}

TENSORFLOW_PAGES = "https://www.tensorflow.org/versions/r2.15/api_docs/python/tf"


class Subject(NamedTuple):
    """A page of the reference: the names of a module that belong together."""

    title: str
    module: str
    names: List[str]

    @property
    def page(self) -> str:
        """The name of the page's file, without its suffix."""
        return re.sub(r"\W+", "_", self.title.lower()).strip("_")


def names_of(module: types.ModuleType) -> List[str]:
    """The public names of a module: ``__all__``, or what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def subjects() -> List[Subject]:
    """All pages of the reference, in their order."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    found = [
        Subject(title, PACKAGE, [name for name in names if f"{PACKAGE}.{name}" not in modules])
        for title, names in _commented_names(importlib.import_module(PACKAGE)).items()
    ]
    found += [Subject(MODULES[name], name, names_of(module)) for name, module in modules.items()]
    return [subject for subject in found if subject.names]


def _commented_names(package: types.ModuleType) -> Dict[str, List[str]]:
    """{comment: names below it} of the list ``__all__`` of a package."""
    source = inspect.getsource(package)
    (assigned,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    title = ""
    found: Dict[str, List[str]] = {}
    for line in source.splitlines()[assigned.lineno : assigned.end_lineno]:
        comment = re.fullmatch(r"\s*# (.*?)\.?", line)
        if comment:
            title = comment.group(1)
        for name in re.findall(r'"(\w+)"', line):
            found.setdefault(title, []).append(name)
    return found


class Entries:
    """Makes the directives of names. An object that already has an entry gets a link to it."""

    def __init__(self) -> None:
        self._names: Dict[int, str] = {}

    def of(self, module: types.ModuleType, names: List[str]) -> Iterator[str]:
        """Yields an entry for each name of a module, and for those of modules among them."""
        for name in names:
            value = getattr(module, name)
            path = f"{module.__name__}.{name}"
            if inspect.ismodule(value):
                yield _text(path, "data", (inspect.getdoc(value) or "").splitlines())
                yield from self.of(value, names_of(value))
            elif _is_constant(value):
                yield _text(path, "data", [f"``{value!r}``"])
            elif id(value) in self._names:
                kind, known = _kind(value), self._names[id(value)]
                yield _text(path, kind, [f"Another name of :py:obj:`{known}`."])
            else:
                self._names[id(value)] = path
                yield _entry(path, value)


def _is_constant(value: Any) -> bool:
    return not (inspect.isclass(value) or inspect.isroutine(value))


def _kind(value: Any) -> str:
    return "class" if inspect.isclass(value) else "function"


def _text(path: str, kind: str, lines: List[str]) -> str:
    return "\n".join([f".. py:{kind}:: {path}", "", *(f"   {line}".rstrip() for line in lines)])


def _entry(path: str, value: Any) -> str:
    if value.__module__.partition(".")[0] != PACKAGE:
        link = f"{TENSORFLOW_PAGES}/{_exported_name(value).replace('.', '/')}"
        first = (inspect.getdoc(value) or "").partition("\n")[0].replace(" (deprecated)", "")
        return _text(path, _kind(value), [first, "", f"`TensorFlow's documentation <{link}>`__"])
    members = ", ".join(members_of(value)) if inspect.isclass(value) else ""
    lines = [f".. auto{_kind(value)}:: {path}", f"   :members: {members}" if members else ""]
    return "\n".join(filter(None, lines))


def _exported_name(value: Any) -> str:
    """The name under which TensorFlow 2.15 exports a value, without ``tf.``."""
    names = getattr(value, "_estimator_api_names_v1", ())
    folder = "export." if value.__module__.endswith("export.export") else ""
    return names[0] if names else f"estimator.{folder}{value.__name__}"


def members_of(kind: type) -> List[str]:
    """The public methods and properties that a class has from this package, in their order."""
    found: Dict[str, None] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith(PACKAGE):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "fget", getattr(member, "__func__", member))
            if not name.startswith("_") and inspect.isfunction(function):
                found[name] = None
    return list(found)


def write(folder: pathlib.Path) -> List[Subject]:
    """Writes a page for each subject, and returns the subjects."""
    folder.mkdir(parents=True)
    found, entries = subjects(), Entries()
    for subject in found:
        parts = [f"{subject.title}\n{'=' * len(subject.title)}"]
        if subject.module != PACKAGE:
            parts.append(f".. automodule:: {subject.module}")
        parts += entries.of(importlib.import_module(subject.module), subject.names)
        (folder / f"{subject.page}.rst").write_text("\n\n".join(parts) + "\n")
    return found
