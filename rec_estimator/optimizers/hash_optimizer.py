# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's factories of optimizers for tables, all of them: one row of a table each.

A row has the factory's arguments with their defaults and ranges. The module of a rule binds the
factory to its class, under the name that scripts import. Factories of the modules ``*_by_addr`` are
for tables with dynamic expansion in Rec SDK; here all tables are of one kind. As in Rec SDK every
bad argument is a ValueError, also one of a wrong type.

Source: Rec SDK TensorFlow, "Optimizers" (docs/zh/tensorflow/tf_rec_v1/api/optimizers_apis.md in its
repository). Differs: Rec SDK's Adagrad by address adds 1e-7 to the accumulator under the root.
Here all settings of FTRL use the formula of the paper.
"""

import dataclasses
import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Type, TypeVar

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_text
from rec_estimator._init_settings import init_settings
from rec_estimator.optimizers.table_optimizer import (
    Hyperparameter,
    TableUpdates,
    check_hyperparameter,
)

_Optimizer = TypeVar("_Optimizer", bound=TableUpdates)

_REQUIRED = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument of a factory.

    Attributes:
      default: Its default value, or _REQUIRED.
      kind: Its annotation.
      meaning: Its description in the docstring.
      check: Called with name and value; raises a ValueError unless the value is legal.
    """

    default: Any
    kind: Any
    meaning: str
    check: Callable[[str, Any], None]


@dataclasses.dataclass(frozen=True)
class _Factory:
    """A factory.

    Attributes:
      rule: Name of the rule, for the docstring.
      arguments: By name, in the order of the signature.
      renamed: The optimizer's name of an argument where it differs; None: the optimizer has none.
      refuses_padding: Whether ``use_fusion_optim=True`` makes an optimizer that refuses tables with
        padding_keys.
    """

    rule: str
    arguments: Mapping[str, _Argument]
    renamed: Mapping[str, Optional[str]] = dataclasses.field(default_factory=dict)
    refuses_padding: bool = False


def _number(default: float, interval: str, remark: str = "") -> _Argument:
    """A float in an interval, such as "(0, 1]"."""
    low, high = map(float, interval[1:-1].split(","))
    bounds = {
        "at_least" if interval[0] == "[" else "above": low,
        "at_most" if interval[-1] == "]" else "below": high,
    }

    def check(name: str, value: Any) -> None:
        if not isinstance(value, float):
            raise ValueError(f"{name} must be a float, got {value!r}; write 1.0 for 1")
        check_hyperparameter(name, value, **bounds)

    return _Argument(default, float, f"In {interval}. {remark}".rstrip(), check)


def _text(default: str, longest: int) -> _Argument:
    return _Argument(
        default,
        str,
        f"1 to {longest} characters.",
        lambda name, value: check_text(name, value, longest),
    )


def _flag(meaning: str) -> _Argument:
    return _Argument(False, bool, meaning, check_bool)


def _or(argument: _Argument, is_unchecked: Callable[[Any], bool], **changes: Any) -> _Argument:
    """An argument that may also have values which are not checked."""

    def check(name: str, value: Any) -> None:
        if not is_unchecked(value):
            argument.check(name, value)

    changes["meaning"] = f"{argument.meaning[:-1]}, or {changes['meaning']}"
    return dataclasses.replace(argument, check=check, **changes)


def _or_none(argument: _Argument, meaning: str = "None.") -> _Argument:
    return _or(
        argument,
        lambda value: value is None,
        default=None,
        kind=Optional[argument.kind],
        meaning=meaning,
    )


def _learning_rate(default: Any = _REQUIRED) -> _Argument:
    return _or(
        _number(default, "[0, 10]"),
        # Their value is not known yet.
        lambda value: isinstance(value, (tf.Tensor, tf.Variable)) or callable(value),
        kind=Hyperparameter,
        meaning="a tensor.",
    )


_LOCKS = _flag("Whether updates of dense variables take a lock.")
_STRENGTH = _number(0.0, "[0, 1e4]")


def _adam(name: str) -> _Factory:
    arguments = dict(
        learning_rate=_learning_rate(0.001),
        beta1=_number(0.9, "(0, 1)"),
        beta2=_number(0.999, "[0, 1)", "Rec SDK also accepts 1, with which nothing is learned."),
        epsilon=_number(1e-8, "(0, 1]"),
        name=_text(name, 200),
        use_fusion_optim=_flag(
            "Whether tables with padding_keys are refused. Nothing else changes:\n"
            "    every update of a table is one op."
        ),
    )
    return _Factory("lazy Adam", arguments, {"use_fusion_optim": None}, refuses_padding=True)


# By import path below rec_estimator.optimizers.
_FACTORIES = {
    "adagrad.create_hash_optimizer": _Factory(
        "Adagrad",
        dict(
            learning_rate=_learning_rate(0.001),
            initial_accumulator_value=_number(
                0.9, "(0, 1]", "Rec SDK itself starts some tables from 0."
            ),
            use_locking=_LOCKS,
            name=_text("Adagrad", 200),
        ),
    ),
    "adagrad_by_addr.create_hash_optimizer_by_address": _Factory(
        "Adagrad",
        dict(
            learning_rate=_learning_rate(0.001),
            initial_accumulator_value=_number(0.9, "(0, 1]"),
            name=_text("Adagrad", 200),
        ),
    ),
    "ftrl.create_hash_optimizer": _Factory(
        "FTRL",
        dict(
            learning_rate=_learning_rate(),
            use_locking=_LOCKS,
            name=_text("Ftrl", 200),
            learning_rate_power=_number(-0.5, "(-inf, 0]"),
            initial_accumulator_value=_number(0.1, "(0, 1]"),
            l1_regularization_strength=_STRENGTH,
            l2_regularization_strength=_STRENGTH,
            l2_shrinkage_regularization_strength=_STRENGTH,
            accum_name=_or_none(_text("", 255)),
            linear_name=_or_none(_text("", 255)),
        ),
    ),
    "gradient_descent.create_hash_optimizer": _Factory(
        "gradient descent",
        dict(
            learning_rate=_learning_rate(),
            use_locking=_LOCKS,
            name=_text("GradientDescent", 200),
            use_fusion_optim=_flag("Ignored. Every update of a table is one op."),
            weight_decay=_or_none(_number(0.0, "[1e-5, 1e-2]"), "None for no decay."),
        ),
        {"use_fusion_optim": None},
    ),
    "gradient_descent_by_addr.create_hash_optimizer_by_addr": _Factory(
        "gradient descent with weight decay",
        dict(
            learning_rate=_learning_rate(),
            weight_decay=_number(0.0001, "[0, 1]"),
            use_locking=_LOCKS,
            name=_text("GradientDescentByAddr", 200),
        ),
    ),
    "lazy_adam.create_hash_optimizer": _adam("LazyAdam"),
    "lazy_adam_by_addr.create_hash_optimizer_by_address": _adam("LazyAdamByAddress"),
    # Only the first versions of Rec SDK have it.
    "momentum.create_hash_optimizer": _Factory(
        "momentum",
        dict(
            learning_rate=_learning_rate(0.001),
            mom=_number(0.9, "[0, inf)", "The momentum."),
            use_locking=_LOCKS,
            name=_text("momentum", 200),
            enable_nesterov=_flag("Whether to use Nesterov momentum."),
        ),
        {"mom": "momentum", "enable_nesterov": "use_nesterov"},
    ),
}


def factory_of(path: str, optimizer_class: Type[_Optimizer]) -> Callable[..., _Optimizer]:
    """Makes the factory that a script imports.

    Args:
      path: A key of the table above.
      optimizer_class: The class of the rule.

    Returns:
      A function with the signature, defaults and docstring of the table. It raises a ValueError if
      an argument is out of range, or if the factory does not fit init(use_dynamic_expansion=).
    """
    factory = _FACTORIES[path]
    module, _, function = path.partition(".")
    is_by_address = module.endswith("_by_addr")
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default,
                annotation=argument.kind,
            )
            for name, argument in factory.arguments.items()
        ],
        return_annotation=optimizer_class,
    )

    def create(*args: Any, **kwargs: Any) -> _Optimizer:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        _check_expansion(path, is_by_address)
        passed: Dict[str, Any] = {}
        for name, argument in factory.arguments.items():
            argument.check(name, bound.arguments[name])
            parameter = factory.renamed.get(name, name)
            if parameter is not None:
                passed[parameter] = bound.arguments[name]
        optimizer = optimizer_class(**passed)
        if factory.refuses_padding:
            optimizer.refuses_padding_keys = bound.arguments["use_fusion_optim"]
        return optimizer

    create.__module__ = f"rec_estimator.optimizers.{module}"
    create.__name__ = create.__qualname__ = function
    create.__doc__ = _docstring(path, factory, is_by_address)
    create.__signature__ = signature  # type: ignore[attr-defined]
    return create


def _docstring(path: str, factory: _Factory, is_by_address: bool) -> str:
    arguments = "\n".join(
        f"  {name}: {argument.meaning}" for name, argument in factory.arguments.items()
    )
    return f"""Rec SDK's factory of {factory.rule} for tables.

Args:
{arguments}

Returns:
  The optimizer.

Raises:
  ValueError: An argument has the wrong type or is out of range; or
    ``init(use_dynamic_expansion={not is_by_address})`` was called.

Example:
  >>> rec.optimizers.{path}(learning_rate=0.01).get_name()
  {factory.arguments["name"].default!r}
"""


def _check_expansion(path: str, is_by_address: bool) -> None:
    """Refuses a factory that does not fit init(use_dynamic_expansion=), if init() was called."""
    settings = init_settings()
    if settings is None or settings.use_dynamic_expansion == is_by_address:
        return
    remedy = (
        "use the factory of the module without _by_addr"
        if is_by_address
        else "use one of lazy_adam_by_addr, adagrad_by_addr and gradient_descent_by_addr"
    )
    raise ValueError(
        "The dynamic expansion mode is not compatible with the optimizer: "
        f"init(use_dynamic_expansion=) must be {is_by_address} for {path}, got "
        f"{settings.use_dynamic_expansion}; {remedy}"
    )
