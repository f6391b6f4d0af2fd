# SPDX-License-Identifier: Apache-2.0
"""The names of ``tf.estimator`` inside of TensorFlow, which TensorFlow 2.16 removed from it.

``EstimatorNames.add`` sets attributes of TensorFlow's public modules and finds the modules of
``tensorflow.python.estimator`` in the tensorflow_estimator package; ``remove`` undoes both. Nothing
calls them but ``rec_estimator.compat``. Checked on TensorFlow 2.16 to 2.21.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from rec_estimator._tensorflow import estimator as _checked_names
from rec_estimator._tensorflow.estimator_stand_ins import stand_ins

# The modules that had an attribute `estimator`, and the API version that it was of.
_PARENTS = {
    "tensorflow": "_v2",
    "tensorflow.compat.v1": "_v1",
    "tensorflow.compat.v2": "_v2",
}

_API = "tensorflow_estimator.python.estimator.api.{}.estimator"

# TensorFlow's own names of the package's modules, and the package's.
_OLD, _NEW = "tensorflow.python.estimator", "tensorflow_estimator.python.estimator"

# Modules that had other names in tensorflow.python.estimator.
_RENAMED = {f"{_OLD}.keras": f"{_NEW}.keras_lib"}


class EstimatorNames:
    """The names that were added to TensorFlow."""

    def __init__(self) -> None:
        self._attributes: List[Tuple[ModuleType, str]] = []
        self._modules: List[str] = []
        self._finder: Optional[_OldNames] = None

    def add(self) -> None:
        """Adds the names.

        Raises:
          RuntimeError: A module of one of these names is there. Nothing has changed.
        """
        found = next(_names_there(), None)
        if found is not None:
            raise RuntimeError(
                f"TensorFlow must have no {found} to be given one, got a release or another "
                "package that has it; use what is there, and do not call install()"
            )
        modules = {name: _api_module(_API.format(version)) for name, version in _PARENTS.items()}
        for name, module in modules.items():
            for parent in _modules_named(name):
                parent.estimator = module
                self._attributes.append((parent, "estimator"))
            self._add_modules(f"{name}.estimator", module)
        self._finder = _OldNames()
        sys.meta_path.insert(0, self._finder)

    def _add_modules(self, name: str, module: ModuleType) -> None:
        """Adds a module, and those in it, to the modules that an import finds."""
        sys.modules[name] = module
        self._modules.append(name)
        for each in ("experimental", "export", "inputs"):
            inner = getattr(module, each, None)
            if inner is not None:
                self._add_modules(f"{name}.{each}", inner)

    def remove(self) -> None:
        """Removes what ``add`` has added."""
        if self._finder is not None:
            sys.meta_path.remove(self._finder)
            self._modules += self._finder.found
            self._finder = None
        for module, attribute in self._attributes:
            if hasattr(module, attribute):
                delattr(module, attribute)
        for name in self._modules:
            sys.modules.pop(name, None)
        parent = sys.modules.get("tensorflow.python")
        if parent is not None and hasattr(parent, "estimator"):
            del parent.estimator
        self._attributes, self._modules = [], []


def _names_there() -> Iterator[str]:
    """The names that ``add`` would hide."""
    for name in _PARENTS:
        if any(hasattr(module, "estimator") for module in _modules_named(name)):
            yield f"{name.replace('tensorflow', 'tf', 1)}.estimator"
    for name in (_OLD, "tensorflow.estimator"):
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            yield name


def _modules_named(name: str) -> List[Any]:
    """The module of a public name, which has several objects: the module and wrappers of it."""
    module = importlib.import_module(name)
    found: Dict[int, Any] = {id(module): module}
    for path in (name, name.replace("tensorflow", "tensorflow._api.v2", 1)):
        if path in sys.modules:
            found[id(sys.modules[path])] = sys.modules[path]
    public: Any = importlib.import_module("tensorflow")
    for part in name.split(".")[1:]:
        public = getattr(public, part)
    found[id(public)] = public
    return list(found.values())


def _api_module(name: str) -> ModuleType:
    """A module of the package's API, with our checks of Keras in place of obscure errors."""
    with stand_ins():
        real = importlib.import_module(name)
    module = ModuleType(name.rpartition(".")[2], real.__doc__)
    for attribute, value in _public(real).items():
        setattr(module, attribute, getattr(_checked_names, attribute, value))
    return module


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of ``tensorflow.python.estimator`` in the package: the same objects.

    A folder is a module of its own, with what the package's has, because Python looks for
    ``from folder import module`` under the name that the folder says it has.
    """

    def __init__(self) -> None:
        self.found: List[str] = []
        self._specs: Dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """The spec of a module of the package, None for all others."""
        del path, target
        if fullname != _OLD and not fullname.startswith(f"{_OLD}."):
            return None
        with stand_ins():
            try:
                module = importlib.import_module(_new_name(fullname))
            except ModuleNotFoundError:
                return None
        is_folder = hasattr(module, "__path__")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_folder)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module of the package, or a new one for a folder."""
        module = sys.modules[_new_name(spec.name)]
        if hasattr(module, "__path__"):
            folder = ModuleType(spec.name, module.__doc__)
            vars(folder).update(_public(module))
            return folder
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives a module of the package its own spec back, which the import has replaced."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        self.found.append(name)
        module.__spec__ = self._specs.pop(name, module.__spec__)


def _new_name(old: str) -> str:
    return _RENAMED.get(old, old.replace(_OLD, _NEW, 1))


def _public(module: ModuleType) -> Dict[str, Any]:
    """The attributes of a module, except those that Python gives to every module."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("__")}
