# SPDX-License-Identifier: Apache-2.0
"""What tables and shards share with variables, so that they can be in TRAINABLE_VARIABLES.

Scripts choose what they train from that collection. tf.gradients and our optimizers accept a table
from it. Code that needs the value of a whole variable refuses a table and names it.
"""

from typing import TYPE_CHECKING, Any, NoReturn, Optional, SupportsIndex, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving

_READ = "read rows with rec_estimator.embedding_lookup(table, ids), all of them with table.export()"
_WRITE = (
    "train rows with an optimizer of rec_estimator.optimizers, write them with "
    "table.assign(keys, rows), or take them from a checkpoint with rec_estimator.Saver or "
    "rec_estimator.init_from_checkpoint"
)

# What a variable has and a table does not, and what to use instead.
_REMEDIES = {
    **dict.fromkeys(
        ("eval", "gather_nd", "initialized_value", "numpy", "read_value", "sparse_read", "value"),
        _READ,
    ),
    **dict.fromkeys(
        (
            *("assign", "assign_add", "assign_sub", "batch_scatter_update", "count_up_to", "load"),
            *("scatter_add", "scatter_div", "scatter_max", "scatter_min", "scatter_mul"),
            *("scatter_nd_add", "scatter_nd_max", "scatter_nd_min", "scatter_nd_sub"),
            *("scatter_nd_update", "scatter_sub", "scatter_update"),
            # Read by tf.scatter_update and the like.
            "_lazy_read",
        ),
        _WRITE,
    ),
    "experimental_ref": "use ref()",
    "is_initialized": "run tf.compat.v1.report_uninitialized_variables()",
}

# Python's operators that variables have. Tables compare by identity.
_UNARY = ("abs", "neg", "invert")
_COMPARISONS = ("lt", "le", "gt", "ge")
_BINARY = ("add", "and", "floordiv", "matmul", "mod", "mul", "or", "pow", "sub", "truediv", "xor")


class VariableName(str):
    """A name that scripts can take for that of a variable: ``name[:-2]`` is the whole name.

    The name of a tf.Variable ends in ":0". Scripts, and the moving averages of tf.train, cut that
    off to get the name of a checkpoint's tensor. The name of a table has no such end.
    """

    def __getitem__(self, index: Union[SupportsIndex, slice]) -> str:
        """The whole name for ``[: -len(":0")]``, else what a str gives."""
        return str(self) if index == slice(-len(":0")) else super().__getitem__(index)


class ExplainsMissing:
    """Base class of what scripts find among variables: says what to use instead of an attribute."""

    if not TYPE_CHECKING:  # Type checkers know what a table has.

        def __getattr__(self, attribute: str) -> NoReturn:
            """Always raises an AttributeError, with a remedy for what a variable has."""
            raise AttributeError(_why_missing(self, attribute))


def _why_missing(item: ExplainsMissing, attribute: str) -> str:
    name = item.__dict__.get("name")
    if attribute == "_in_graph_mode":
        # The first attribute that TensorFlow's optimizers read of a resource variable.
        return (
            f"TensorFlow's optimizers and Savers cannot take table {name!r}; use the class of the "
            "same name of rec_estimator.optimizers, or rec_estimator.Saver, or pass "
            "var_list=rec_estimator.get_dense_and_sparse_variable()[0]"
        )
    remedy = _REMEDIES.get(attribute)
    if remedy is None and not attribute.startswith("_") and hasattr(tf.Variable, attribute):
        remedy = "its settings are in table.ev_option"
    if remedy is None:
        return f"{type(item).__name__!r} object has no attribute {attribute!r}"
    return f"table {name!r} has no {attribute}, because it is no tf.Variable; {remedy}"


class VariableLike(ExplainsMissing, saving.Trackable):
    """Base class of tables and shards. A Saver of one finds its SaveableObjects."""

    # For an object with this attribute, tf.gradients differentiates by its `handle` and returns
    # tf.IndexedSlices.
    _should_act_as_resource_variable = True

    name: str

    def __getitem__(self, slices: Any) -> NoReturn:
        """Always raises a TypeError: a table has no rows 0, 1, 2 to slice."""
        raise no_value_error(self, "sliced")

    @property
    def dtype(self) -> tf.DType:
        """The type of the values: float32."""
        return tf.float32

    def ref(self) -> Any:
        """A hashable reference, as tf.Variable.ref() returns."""
        return saving.Reference(self)

    def to_proto(self, export_scope: Optional[str] = None) -> None:
        """None, so that a MetaGraph leaves the table out."""
        del export_scope


def no_value_error(table: VariableLike, use: str) -> TypeError:
    """The error where the value of a whole table would be needed.

    Args:
      table: A table or shard.
      use: What was to be done with it, such as "sliced".
    """
    return TypeError(
        f"table {table.name!r} cannot be {use}, because it has no value as a whole; {_READ}"
    )


def _refuse_operator(self: VariableLike, *others: Any) -> NoReturn:
    del others
    raise no_value_error(self, "computed with")


for _operator in (*_UNARY, *_COMPARISONS, *_BINARY, *(f"r{operator}" for operator in _BINARY)):
    setattr(VariableLike, f"__{_operator}__", _refuse_operator)
