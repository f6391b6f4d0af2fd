# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what TensorFlow 2.16 removed and tensorflow_estimator imports.

tensorflow_estimator 2.15.0 is the last release of the package. Its modules keep references to the
stand-ins, which are in ``sys.modules`` only while the package is imported. Nothing in TensorFlow is
changed. Checked on TensorFlow 2.16 to 2.21.
"""

import contextlib
import sys
from types import ModuleType
from typing import Any, Dict, Iterator, NoReturn, TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Lets ``import tensorflow_estimator`` find the modules that TensorFlow no longer has."""
    # The package has no public way to choose the modules it imports.
    modules = {module.__name__: module for module in _modules()}
    missing = object()
    before = {name: sys.modules.get(name, missing) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is missing:
                del sys.modules[name]
            else:
                sys.modules[name] = module  # type: ignore[assignment]


def _modules() -> Iterator[ModuleType]:
    # TensorFlow's registry of public names has no place for those of the package any more. The
    # module's other effect was a deprecation warning on each use.
    yield _module(
        "tensorflow_estimator.python.estimator.estimator_export", estimator_export=_ExportNothing
    )
    # Runs Estimators under a tf.distribute.Strategy.
    yield _module(
        "tensorflow.python.distribute.estimator_training",
        init_run_config=_init_run_config,
        should_run_distribute_coordinator=lambda config: False,
    )
    # Used by TPUEstimator only.
    for name in ("session_support", "tpu_embedding", "tpu_embedding_gradient"):
        yield _module(f"tensorflow.python.tpu.{name}", __getattr__=_TpuName)


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name, "A stand-in of rec_estimator.")
    vars(module).update(attributes)
    return module


class _ExportNothing:
    """The decorator of the package's public names, without effect."""

    def __init__(self, *names: str, **names_of_api_versions: Any) -> None:
        pass

    def __call__(self, exported: _T) -> _T:
        return exported

    def export_constant(self, module_name: str, name: str) -> None:
        pass


class _TpuName:
    """A name of a TPU module; TPUEstimator fails with its message."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(
            f"TensorFlow must be 2.15 for TPUEstimator, got a release without {self._name}; "
            "train on CPUs or GPUs with rec_estimator.RecEstimator"
        )


def _init_run_config(config: Any, tf_config: Dict[str, Any]) -> None:
    """Reads the cluster of a RunConfig from ``tf_config``, the content of TF_CONFIG."""
    # RunConfig has no public method for it; the part of TensorFlow's function without strategies.
    experimental = config._experimental_distribute
    for name, strategy in {
        "train_distribute": config.train_distribute,
        "eval_distribute": config.eval_distribute,
        "experimental_distribute.train_distribute": getattr(experimental, "train_distribute", None),
        "experimental_distribute.eval_distribute": getattr(experimental, "eval_distribute", None),
    }.items():
        if strategy is not None:
            raise ValueError(
                f"{name} must be None, got {strategy!r}; TensorFlow 2.16 removed the code that "
                "runs Estimators under a strategy: describe the cluster in TF_CONFIG instead, or "
                "use TensorFlow 2.15"
            )
    config._init_distributed_setting_from_environment_var(tf_config)
    config._maybe_overwrite_session_config_for_distributed_training()
