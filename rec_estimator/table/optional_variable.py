# SPDX-License-Identifier: Apache-2.0
"""A variable that an option of a table adds to a graph, and that older checkpoints lack."""

from typing import Any, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import saving
from rec_estimator.table import saveable


class OptionalVariable(saving.ResourceVariable, saving.SaveableObject):
    """An int64 variable of shape [] that a restore leaves at its initial value if it is missing.

    TensorFlow's Savers find the name of each variable in the checkpoint, or fail. They take this
    one for the SaveableObject that it also is, which restores itself.

    Args:
      initial_value: Its value in a run that begins, or that resumes from a checkpoint without it.
      name: Its name.
      collections: The collections of the graph that it goes into.
    """

    def __init__(
        self, initial_value: int, name: str, collections: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(
            initial_value=initial_value,
            trainable=False,
            collections=collections,
            name=name,
            dtype=tf.int64,
        )

    @property
    def specs(self) -> List[Any]:
        """The SaveSpec to write, or, once a Saver has its save ops, what it reads instead."""
        read = saveable.spec_in_place_of_variable()
        if read is not None:
            return [read]
        return [
            saving.SaveSpec(self.read_value, "", self.op.name, dtype=tf.int64, device=self.device)
        ]

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Optional[Sequence[Any]]
    ) -> tf.Operation:
        """Builds the op that reads the value, after the checks of all tables of the Saver."""
        del restored_tensors, restored_shapes
        with tf.control_dependencies([saveable.all_read_by_saver()]), tf.device(self.device):
            value = _ops.gen.rec_estimator_checkpoint_integer(
                saveable.prefix_of_saver(), self.initial_value, tensor_name=self.op.name
            )
            return self.assign(value, read_value=False)


def create_global_step() -> OptionalVariable:
    """``tf.compat.v1.train.create_global_step`` for a step that an eviction rule needs."""
    with tf.init_scope(), tf.name_scope(None):
        name = tf.GraphKeys.GLOBAL_STEP
        return OptionalVariable(0, name, [tf.GraphKeys.GLOBAL_VARIABLES, name])
