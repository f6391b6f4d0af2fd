# SPDX-License-Identifier: Apache-2.0
"""What this package remembers of a graph.

``state_of(graph)`` is the one place for state that ends with the program. State that a MetaGraph
carries is in the collections below: their keys are strings, and their entries are ops, tensors and
strings. Collections with public names, such as EMBEDDING_VARIABLES, are not listed here.
"""

import dataclasses
from typing import Any, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_observer import GraphObserver

# Collections in MetaGraphs. Where there are two keys, that of True is for training and that of
# False for evaluation.

# The ids that lookups by FeatureSpec take, and the timestamps of their training batches.
# Written and read by graph_modifier/declared_inputs.py.
DECLARED_IDS = {True: "rec_estimator/training_ids", False: "rec_estimator/evaluation_ids"}
DECLARED_TIMESTAMPS = "rec_estimator/timestamps"

# The entries that insert functions found in datasets, as JSON texts. Written by
# rec_sdk/insert_function.py, read by rec_sdk/feature_spec.py.
DECLARED_ENTRIES = {
    True: "rec_estimator/training_pipeline",
    False: "rec_estimator/evaluation_pipeline",
}

# The IteratorGetNext ops that graph modification has made, and the one op that starts their
# iterators. Written by graph_modifier/__init__.py, read by graph_modifier/prepared_input.py.
PREPARED_BATCHES = {
    True: "rec_estimator/training_batches",
    False: "rec_estimator/evaluation_batches",
}
PREPARED_INITIALIZERS = {
    True: "rec_estimator/training_initializer",
    False: "rec_estimator/evaluation_initializer",
}

# The names of the ops that fill variables with rows of kernels after a restore. Written by
# sample_compression/rewrite/stock_expansion.py, read by serving/portable_graph.py.
KERNEL_ROWS = "rec_estimator_kernel_rows"

# The ops that make handles of tables; graphs of older releases have no such collection. Written
# and read by table/loaded_tables.py.
TABLE_HANDLES = "rec_estimator_table_handles"

# The names of the work queues that datasets read. Written by inputs/work_queue.py, read by
# graph_modifier/iterator_swap.py.
WORK_QUEUES = "rec_estimator/work_queues"

# A tuple: TensorFlow writes only collections with a string as key into a MetaGraph, and only those
# are copied into the graphs of functions.
_STATE = ("rec_estimator", "state")


@dataclasses.dataclass
class GraphState:
    """The state of one graph. No MetaGraph has it; the graph of a function has its own.

    Attributes:
      observers: The graph passes that learn what lookups and optimizers build. Written and read by
        graph_passes/observers.py.
      compression: The sample_compression.state.State of the graph; None: compression is not
        enabled. Written and read by sample_compression/state.py.
      shards: The shards of tables, by the names of the ops that make their handles. Written by
        table/registration.py, read by table/lookup.py.
      losses: The losses that the graph minimizes. Written by optimizers and RecEstimator, read by
        table/untrained_tables.py.
      trains: Whether steps of the graph train. RecEstimator sets it to False where it evaluates,
        predicts or exports; read by table/untrained_tables.py, table/left_out_tables.py and
        checkpoint/.
      tables_warned_of: The names of the untrained tables that were logged. Written and read by
        table/untrained_tables.py.
      chosen_checkpoints: The prefixes of checkpoints out of which init_from_checkpoint() or
        warm_start_from have chosen tables. Written by checkpoint/warm_start.py, read by
        table/left_out_tables.py.
      tables_left_out: The names of the tables that were logged because TensorFlow's functions left
        them out. Written and read by table/left_out_tables.py.
      tables_in_trainable_variables: Whether new tables go into TRAINABLE_VARIABLES. If not, a stock
        optimizer without a var_list trains the dense variables only. Set to False by
        RecEstimator(table_optimizer=), which updates the tables itself; read by
        table/registration.py.
      ps_devices: The devices of the parameter servers for new tables. Written by RecEstimator, read
        by table/placement.py.
      features: The entries of the batch, by name. Written by RecEstimator, read by
        table/table_time.py.
      times: The time of a training step, by the TimeEvict or the timestamp that tells it, and the
        place of the op. Written and read by table/table_time.py and rec_sdk/data_time.py.
      shares_table_memory: Whether table_memory_bytes bounds the memory of tables. Written by
        RecEstimator, read by get_embedding_variable.
      is_chief: Whether the graph may do what is done once in a cluster, such as evictions. Written
        by RecEstimator and MonitoredTrainingSession, read by EvictHook.
      steps_per_run: The number of training steps in one run. Written by StepLoopHook, read by
        ProgressHook.
      savers: What a restore of each Saver waits for, by the name scope of its ops. Written and read
        by table/saveable.py.
    """

    observers: List[GraphObserver] = dataclasses.field(default_factory=list)
    compression: Optional[Any] = None
    shards: Dict[str, Any] = dataclasses.field(default_factory=dict)
    losses: List[tf.Tensor] = dataclasses.field(default_factory=list)
    trains: bool = True
    tables_warned_of: Set[str] = dataclasses.field(default_factory=set)
    chosen_checkpoints: Set[str] = dataclasses.field(default_factory=set)
    tables_left_out: Set[str] = dataclasses.field(default_factory=set)
    tables_in_trainable_variables: bool = True
    ps_devices: List[str] = dataclasses.field(default_factory=list)
    features: Dict[str, Any] = dataclasses.field(default_factory=dict)
    times: Dict[Any, tf.Tensor] = dataclasses.field(default_factory=dict)
    shares_table_memory: bool = False
    is_chief: bool = True
    steps_per_run: int = 1
    savers: Dict[str, Any] = dataclasses.field(default_factory=dict)


def state_of(graph: Optional[tf.Graph] = None) -> GraphState:
    """Returns the state of a graph, which may be finalized.

    Args:
      graph: The graph; None: the default graph.
    """
    entries = (graph or tf.get_default_graph()).get_collection_ref(_STATE)
    if not entries:
        entries.append(GraphState())
    return entries[0]
