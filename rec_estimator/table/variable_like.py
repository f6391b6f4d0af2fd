# SPDX-License-Identifier: Apache-2.0
"""What tables and shards share with variables, so that they can be in TRAINABLE_VARIABLES.

Scripts choose what they train from that collection. tf.gradients and our optimizers accept a table
from it. Code that needs the value of a whole variable refuses a table and names it.
"""

from typing import Any, NoReturn, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import saving


class VariableLike(saving.Trackable):
    """Base class of tables and shards. A Saver of one finds its SaveableObjects."""

    # For an object with this attribute, tf.gradients differentiates by its `handle` and returns
    # tf.IndexedSlices.
    _should_act_as_resource_variable = True

    name: str

    @property
    def _in_graph_mode(self) -> NoReturn:
        # The first attribute that TensorFlow's optimizers read of a resource variable.
        raise AttributeError(
            f"TensorFlow's optimizers and Savers cannot take table {self.name!r}; use the class of "
            "the same name of rec_estimator.optimizers, or rec_estimator.Saver, or pass "
            "var_list=rec_estimator.get_dense_and_sparse_variable()[0]"
        )

    def __getitem__(self, slices: Any) -> NoReturn:
        """Always raises a TypeError: a table has no rows 0, 1, 2 to slice."""
        raise TypeError(
            f"table {self.name!r} cannot be sliced, because it has no value as a whole; read rows "
            "with rec_estimator.embedding_lookup(table, ids)"
        )

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
