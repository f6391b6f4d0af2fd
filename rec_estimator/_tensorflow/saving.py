"""Private names about checkpoints and Savers.

Checked on TensorFlow 2.15.
"""

import contextlib

from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.client import session as _session
from tensorflow.python.trackable import base as _trackable
from tensorflow.python.training import saver as _saver
from tensorflow.python.training.saving import saveable_object as _saveable_object
from tensorflow.python.util import object_identity as _object_identity

# What tf.compat.v1.train.Saver asks of an object in SAVEABLE_OBJECTS; TF exports only the Saver.
SaveableObject = _saveable_object.SaveableObject
SaveSpec = _saveable_object.SaveSpec

# What tf.compat.v1.train.Saver.save() takes: a session, a debugger's wrapper of one, but no
# MonitoredSession, whose hooks would run within a hook.
SessionInterface = _session.SessionInterface

# The public update_checkpoint_state() warns that it is deprecated on each save.
write_checkpoint_state = _checkpoint_management.update_checkpoint_state_internal


class SaverBuilder(_saver.BulkSaverBuilder):
    """The builder behind tf.compat.v1.train.Saver, which calls a method without public name.

    Ours reads tables itself instead of through RestoreV2, whose tensor names are fixed when the
    graph is built.
    """

    def building(self):
        """A context that a build happens in; for subclasses to override."""
        return contextlib.nullcontext()

    def _build_internal(self, *args, **kwargs):
        with self.building():
            return super()._build_internal(*args, **kwargs)


# In GLOBAL_VARIABLES a Saver asks a Trackable what to save instead of taking it for a tensor: so a
# table's initializer can be run by global_variables_initializer() and reported by
# report_uninitialized_variables() without a tensor of its own in the checkpoint.
Trackable = _trackable.Trackable

# What tf.Variable.ref() returns; tf.custom_gradient (and with it tf.nn.swish) asks every member of
# GLOBAL_VARIABLES for one.
Reference = _object_identity.Reference
