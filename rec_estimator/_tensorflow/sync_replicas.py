# SPDX-License-Identifier: Apache-2.0
"""Names of ops of tf.train.SyncReplicasOptimizer. Checked on TensorFlow 2.15."""

import re

import tensorflow.compat.v1 as tf

# apply_gradients() begins with a variable of this name, and makes a queue of this shared name when
# the gradients are applied.
_LOCAL_STEP = re.compile(r"(.*/)?sync_rep_local_step(_\d+)?")
_TOKENS = b"sync_token_q"


def is_applying_gradients(graph: tf.Graph) -> bool:
    """Whether a SyncReplicasOptimizer has begun to apply gradients, and has not applied them.

    Args:
      graph: The graph that is being built.
    """
    # apply_gradients() calls is_initialized() of each variable. No public name tells that it runs.
    variables = graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)
    begun = sum(bool(_LOCAL_STEP.fullmatch(variable.op.name)) for variable in variables)
    queues = (op for op in graph.get_operations() if op.type == "FIFOQueueV2")
    return begun > sum(queue.get_attr("shared_name") == _TOKENS for queue in queues)
