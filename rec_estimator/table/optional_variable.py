# SPDX-License-Identifier: Apache-2.0
"""A variable that an option of a table adds to a graph, and that older checkpoints lack."""

from typing import Any, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import saving
from rec_estimator.table import saveable


class OptionalVariable(saving.ResourceVariable, saving.SaveableObject):
    """An int64 variable that a restore leaves at its initial value if it is missing.

    TensorFlow's Savers find the name of each variable in the checkpoint, or fail. They take this
    one for the SaveableObject that it also is, which restores itself.

    Args:
      initial_value: Its value in a run that begins, or that resumes from a checkpoint without it.
        Only a subclass that overrides specs and _read may give another shape than [].
      name: Its name.
      collections: The collections of the graph that it goes into.
    """

    def __init__(
        self,
        initial_value: Any,
        name: str,
        collections: Optional[Sequence[str]] = None,
        validate_shape: bool = True,
    ) -> None:
        super().__init__(
            initial_value=initial_value,
            trainable=False,
            collections=collections,
            name=name,
            dtype=tf.int64,
            validate_shape=validate_shape,
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
            return self.assign(self._read(saveable.prefix_of_saver()), read_value=False)

    def _read(self, prefix: tf.Tensor) -> tf.Tensor:
        """Returns the value in a checkpoint, or the initial one."""
        return integer_of(prefix, self.op.name, self.initial_value)


def integer_of(prefix: tf.Tensor, name: str, missing: Union[int, tf.Tensor]) -> tf.Tensor:
    """Returns an integer, int64 [], of a checkpoint, or `missing` if the checkpoint lacks it."""
    return _ops.gen.rec_estimator_checkpoint_integer(prefix, missing, tensor_name=name)


def create_global_step() -> OptionalVariable:
    """``tf.compat.v1.train.create_global_step`` for a step that an eviction rule needs."""
    with tf.init_scope(), tf.name_scope(None):
        name = tf.GraphKeys.GLOBAL_STEP
        return OptionalVariable(0, name, [tf.GraphKeys.GLOBAL_VARIABLES, name])
