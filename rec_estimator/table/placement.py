# SPDX-License-Identifier: Apache-2.0
"""Where the shards of a table go: with parameter servers, one shard to each of them.

Step 2 of the data flow, beyond one machine. The parameter servers are those of the
tf.train.replica_device_setter in effect, or those that RecEstimator takes from TF_CONFIG. Without
them, a table is where the device scopes say.
"""

from typing import List

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import placement
from rec_estimator.graph_passes.graph_state import state_of

# The device of a table without parameter servers. Scopes of the user add a job and a task.
_LOCAL = "/device:CPU:0"


def use_ps_tasks(num_tasks: int) -> None:
    """Places the tables of the default graph that are made from now on.

    Args:
      num_tasks: The number of parameter servers.
    """
    state_of().ps_devices = [f"/job:ps/task:{task}" for task in range(num_tasks)]


def ps_devices() -> List[str]:
    """The devices of the parameter servers for new tables of the default graph; [] if none."""
    graph = tf.get_default_graph()
    return placement.devices_of_device_setter(graph) or state_of(graph).ps_devices


def shard_devices(num_shards: int, shards_before: int) -> List[str]:
    """The devices of the shards of a new table.

    As many shards as parameter servers: shard i is on server i. Fewer shards, because the user has
    given a partitioner: they take turns over the tables, so that not all are on server 0.

    Args:
      num_shards: The number of shards.
      shards_before: The number of shards that the graph already has.

    Returns:
      One device per shard, as tf.device takes it.
    """
    servers = ps_devices()
    if not servers:
        return [_LOCAL] * num_shards
    first = shards_before if num_shards < len(servers) else 0
    return [f"{servers[(first + i) % len(servers)]}{_LOCAL}" for i in range(num_shards)]


def check_device(name: str, device: str, wanted: str) -> None:
    """Refuses a device function that takes a shard from the parameter servers.

    Args:
      name: The name of the shard.
      device: Where TensorFlow has placed it.
      wanted: What shard_devices() returned.

    Raises:
      ValueError: The device is not one of the job that all tasks share.
    """
    given, job = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(wanted).job
    if job is not None and given.job != job:
        raise ValueError(
            f"device_fn must place table shard {name!r} on job {job!r}, got {device!r}, which "
            "every task would train for itself; return op.device where it has a job"
        )
