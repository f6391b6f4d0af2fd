"""What a user can choose about a table: value objects, checked once, when they are built.

The names and defaults are those of DeepRec's ``tf.EmbeddingVariableOption``.
"""

import dataclasses
import math
import numbers
from typing import Any


@dataclasses.dataclass(frozen=True)
class InitializerOption:
    """How the vector of a new key starts.

    The initializer is called once per table with shape ``[default_value_dim, dim]``; key ``k``
    starts from row ``floormod(k, default_value_dim)`` of the result.

    Attributes:
      initializer: A TensorFlow initializer (instance, class or function of shape and dtype). None
        leaves it to ``get_embedding_variable(initializer=)``, then to the variable scope, then to
        ``tf.compat.v1.truncated_normal_initializer()``.
      default_value_dim: Number of distinct initial vectors, at least 1.
      default_value_no_permission: Every element of the vector that a key reads while a filter keeps
        it out.

    Example:
      >>> rec.InitializerOption(tf.zeros_initializer(), default_value_dim=1).default_value_dim
      1
    """

    initializer: Any = None
    default_value_dim: int = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self) -> None:
        if self.initializer is not None and not callable(self.initializer):
            raise TypeError(
                "initializer must be a TensorFlow initializer or a function of shape and dtype, "
                f"got {self.initializer!r}; for given values use tf.constant_initializer(values)"
            )
        if not _is_integer(self.default_value_dim) or self.default_value_dim < 1:
            raise ValueError(
                f"default_value_dim must be an integer >= 1, got {self.default_value_dim!r}; "
                "it is the number of distinct initial vectors"
            )
        value = self.default_value_no_permission
        if (
            isinstance(value, bool)
            or not isinstance(value, numbers.Real)
            or not math.isfinite(value)
        ):
            raise ValueError(f"default_value_no_permission must be a finite number, got {value!r}")


@dataclasses.dataclass(frozen=True)
class EmbeddingVariableOption:
    """Everything about a table but its name and dimension.

    Attributes:
      init_option: How the vector of a new key starts.

    Example:
      >>> init = rec.InitializerOption(default_value_dim=8)
      >>> option = rec.EmbeddingVariableOption(init_option=init)
      >>> option.init.default_value_dim
      8
    """

    init_option: InitializerOption = dataclasses.field(default_factory=InitializerOption)

    def __post_init__(self) -> None:
        if not isinstance(self.init_option, InitializerOption):
            raise TypeError(f"init_option must be an InitializerOption, got {self.init_option!r}")

    @property
    def init(self) -> InitializerOption:
        """DeepRec's name of ``init_option``."""
        return self.init_option


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
