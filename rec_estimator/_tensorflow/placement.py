# SPDX-License-Identifier: Apache-2.0
"""Private names for placement on parameter servers. Checked on TensorFlow 2.15 and 2.21."""

from typing import List

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import device as _device
from tensorflow.python.training import device_setter as _device_setter


def devices_of_device_setter(graph: tf.Graph) -> List[str]:
    """Returns the ps devices among which a tf.train.replica_device_setter deals out variables.

    Args:
      graph: The graph. The device scopes in effect in it count.

    Returns:
      Names such as ``/job:ps/task:0``. [] if no device setter decides where a new variable goes,
      for example because a scope inside it names a job.
    """
    # Neither the device scopes of a graph nor the number of tasks of a device setter have a public
    # reader. Asking the setter for the device of a probe would advance its turn, and so move the
    # user's variables.
    for scope in graph._device_function_stack.peek_objs():
        function = scope.function
        if function is None:
            return []
        if isinstance(function, _device.MergeDevice):
            if function(tf.NodeDef()).job:
                return []
            continue
        setter = getattr(function, "__self__", None)
        if isinstance(setter, _device_setter._ReplicaDeviceChooser):
            if not setter._ps_tasks or not setter._ps_device:
                return []
            spec = tf.DeviceSpec.from_string(setter._ps_device)
            return [spec.replace(task=task).to_string() for task in range(setter._ps_tasks)]
    return []
