# SPDX-License-Identifier: Apache-2.0
"""The new inputs of the model's ops. The graph is rewired when all of them are known."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis.sizes import Size, has_rows
from rec_estimator.sample_compression.analysis.values import Side, Value, elements_in
from rec_estimator.sample_compression.rewrite.expansion import RowExpansion
from rec_estimator.sample_compression.rules.op_rules import SHAPE_OPERANDS

# Ops that make rows from a shape and data.
_MAKERS: Dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "BroadcastTo": lambda shape, data: tf.broadcast_to(data, shape),
    "Fill": lambda shape, data: tf.fill(shape, data),
    "Tile": lambda shape, data: tf.tile(data, shape),
}


class NewInputs:
    """Collects the new inputs of ops, and builds what ops on the users' side need.

    An op that makes rows from a shape makes N rows in the model. For ops on the users' side, it is
    built again with B rows.

    Args:
      expansion: The rows of the request.
      value: What the pass knows about a tensor.
    """

    def __init__(self, expansion: RowExpansion, value: Callable[[tf.Tensor], Value]) -> None:
        self._expansion = expansion
        self._value = value
        self._inputs: List[Tuple[tf.Operation, int, tf.Tensor]] = []
        self._makers: Dict[str, tf.Operation] = {}  # Ops that make rows from a shape, by output.
        self._made: Dict[str, tf.Tensor] = {}  # Their outputs with a row per user, by op.

    def add_maker(self, op: tf.Operation) -> None:
        """Records an op that makes rows from a shape."""
        self._makers[op.outputs[0].name] = op

    def is_made(self, value: Value) -> bool:
        """Whether the rows of a value are made from a shape."""
        return value.tensor.name in self._makers

    def set(self, op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
        """Records an input of an op."""
        if tensor.name != op.inputs[index].name:
            self._inputs.append((op, index, tensor))

    def set_for_users(self, op: tf.Operation, index: int, value: Value) -> None:
        """Records an input of an op on the users' side."""
        tensor = value.computed()
        elements = elements_in(value)
        if SHAPE_OPERANDS.get(op.type) == index and elements is not None and has_rows(elements):
            tensor = self._shape_for_users(value, elements)
        elif tensor.name in self._makers:
            tensor = self._made_for_users(self._makers[tensor.name])
        self.set(op, index, tensor)

    def set_for_entries(self, op: tf.Operation, index: int, value: Value) -> None:
        """Records an input of an op on the users' side that makes or takes entries."""
        elements = elements_in(value)
        if value.side != Side.USER and elements is not None and has_rows(elements):
            self.set(op, index, self._shape_for_users(value, elements))
        else:
            self.set(op, index, value.computed())

    def rewire(self) -> None:
        """Gives the ops their inputs."""
        for op, index, tensor in self._inputs:
            # The ops exist already, and TensorFlow has no public way to change their inputs.
            graphs.update_input(op, index, tensor)

    def _shape_for_users(self, value: Value, elements: Sequence[Optional[Size]]) -> tf.Tensor:
        """A vector of sizes as it is with B rows."""
        rows = self._expansion.users
        known = [size for size in elements if size is not None]
        if len(known) == len(elements):
            return sizes_lib.evaluate_all(known, rows, value.tensor.dtype)
        # Ops that take this shape do not read its unknown elements.
        rest = value.computed()[1:]
        return tf.concat([tf.cast(rows, rest.dtype)[tf.newaxis], rest], axis=0)

    def _made_for_users(self, op: tf.Operation) -> tf.Tensor:
        """The output of an op that makes rows from a shape, with a row per user."""
        if op.name in self._made:
            return self._made[op.name]
        place = SHAPE_OPERANDS[op.type]
        shape, data = self._value(op.inputs[place]), self._value(op.inputs[1 - place])
        target = self._shape_for_users(shape, elements_in(shape) or ())
        made = _MAKERS[op.type](target, data.computed())
        self._made[op.name] = made
        return made
