# SPDX-License-Identifier: Apache-2.0
"""Private names for checkpoints and Savers. Checked on TensorFlow 2.15 and 2.21."""

import contextlib
from typing import Any, ContextManager

import tensorflow.compat.v1 as tf
from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.client import session as _session
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.trackable import base as _trackable
from tensorflow.python.training import saver as _saver
from tensorflow.python.training.saving import saveable_object as _saveable_object
from tensorflow.python.util import object_identity as _object_identity

# The interface that tf.compat.v1.train.Saver needs from objects in SAVEABLE_OBJECTS.
SaveableObject = _saveable_object.SaveableObject
SaveSpec = _saveable_object.SaveSpec

# The class of tf.Variable(use_resource=True) in a graph. A Saver restores such a variable itself,
# unless its class is a SaveableObject, too.
ResourceVariable = _resource_variable_ops.ResourceVariable

# The class that tf.compat.v1.train.Saver.save() checks its session for. A debugger's wrapper of a
# session passes; a MonitoredSession does not, because its hooks would run within a hook.
SessionInterface = _session.SessionInterface

# Same as the public update_checkpoint_state(), which logs a deprecation warning on each save.
write_checkpoint_state = _checkpoint_management.update_checkpoint_state_internal


class SaverBuilder(_saver.BulkSaverBuilder):
    """The builder behind tf.compat.v1.train.Saver.

    A Saver calls its private method ``_build_internal``. Our builder restores tables itself:
    RestoreV2 fixes the names of its tensors when the graph is built.
    """

    def building(self) -> ContextManager[None]:
        """Returns the context in which the ops are built; subclasses may override it."""
        return contextlib.nullcontext()

    def _build_internal(self, *args: Any, **kwargs: Any) -> tf.train.SaverDef:
        with self.building():
            return super()._build_internal(*args, **kwargs)


# The base class of a table's entry in GLOBAL_VARIABLES. A Saver asks a Trackable for its saveables;
# it would treat any other object as a tensor. So global_variables_initializer() initializes a table
# and report_uninitialized_variables() reports it, without one more tensor in the checkpoint.
Trackable = _trackable.Trackable

# The class that tf.Variable.ref() returns. tf.custom_gradient, which tf.nn.swish uses, calls ref()
# on every member of GLOBAL_VARIABLES.
Reference = _object_identity.Reference
