# SPDX-License-Identifier: Apache-2.0
"""Automatic graph modification: computes the keys of lookups ahead of the step that needs them.

Step 1a of the data flow, between inputs and lookups. A model computes its keys from the batch, by
string hashing, padding or splitting. Graph modification finds these ops in the finished graph and
moves them into the input pipeline. There they run while the previous step is still training. All
results stay the same, bit for bit: the moved ops depend on the batch alone and change no state.

    modify_graph_and_start_emb_cache()                     # with a tf.Session, after minimize()
    session.run(get_initializer(True))

    estimator.train(input_fn, hooks=[GraphModifierHook()])  # with an Estimator

Read the package in this order:

    __init__.py          what scripts call, and the order of the work
    key_paths.py         finds the ops between a batch and the keys; refuses what cannot be moved
    bring_in.py          adds an op to the dataset that brings rows of coming batches from disk
    iterator_swap.py     builds a dataset that runs these ops; its iterator replaces the old one
    ops/passes/same_batch_pass.cc  keeps tensors of the old batch valid in each step
    prepared_input.py    what scripts use afterwards: the initializer of the data, the batch

declared_inputs.py is for graphs that are not modified: it checks ids that a dataset declares.

Source: Rec SDK TensorFlow, ``mx_rec.graph.modifier``.
"""

import os
from typing import List, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool
from rec_estimator.graph_modifier.declared_inputs import check_declared_inputs
from rec_estimator.graph_modifier.iterator_swap import (
    PROBE,
    build_iterator,
    check_swappable,
    forward_replaced,
    initializers_of,
    put_in_place,
)
from rec_estimator.graph_modifier.key_paths import (
    PLACEHOLDERS,
    Cut,
    KeyPath,
    find_cuts,
    find_key_paths,
)
from rec_estimator.graph_modifier.prepared_input import ASCEND_CUTTING_POINT_INITIALIZER
from rec_estimator.graph_passes.graph_state import PREPARED_BATCHES, PREPARED_INITIALIZERS
from rec_estimator.graph_passes.walk import ancestors, graph_def_of

# SerializeIterator's external_state_policy "ignore": state outside of the dataset is not an error.
_IGNORE_EXTERNAL_STATE = 1

# Folder of the dumped graphs, in which scripts look for them.
_DUMP_FOLDER = "export_graph"


def modify_graph_and_start_emb_cache(
    full_graph: Optional[tf.Graph] = None, dump_graph: bool = False
) -> None:
    """Moves the ops that compute the keys of lookups into the input pipelines of a graph.

    Call it when the graph is complete, after ``minimize()``, and before a session runs it.
    ``session.run(get_initializer(True))`` then starts the data of training, False that of
    evaluation; ``iterator.initializer`` does the same. Tensors of the old batch stay valid: a step
    that fetches them gets their values of its own batch.

    Args:
      full_graph: The graph. None: the default graph.
      dump_graph: Whether to write the graph before and after, and the moved ops, to
        ``./export_graph``: ``old_graph``, ``cut_graph_<train or eval>_<n>``, ``new_graph``, each
        as ``<name>.pbtxt`` and as a folder of that name for TensorBoard.

    Raises:
      ValueError: An argument has a wrong type. Keys depend on more than the batch: on a variable, a
        placeholder, other state or a second iterator. A lookup is inside tf.cond, tf.while_loop or
        tf.function. An iterator cannot be replaced.

    Example:
      >>> data = tf.data.Dataset.from_tensors({"user": ["ada", "bob"]}).repeat()
      >>> batch = tf.data.make_one_shot_iterator(data).get_next()
      >>> keys = tf.strings.to_hash_bucket_fast(batch["user"], 2**63 - 1)
      >>> table = rec.get_embedding_variable("user", embedding_dim=2)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
      >>> train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
      >>> rec.modify_graph_and_start_emb_cache()
      >>> rec.get_initializer(True).type
      'NoOp'
    """
    if not isinstance(full_graph, (tf.Graph, type(None))):
        raise ValueError(f"full_graph must be a tf.Graph or None, got {full_graph!r}")
    check_bool("dump_graph", dump_graph)
    graph = full_graph or tf.get_default_graph()
    forward_replaced(graph)
    move_key_paths(graph, find_key_paths(graph), dump_graph)


def move_key_paths(graph: tf.Graph, key_paths: List[KeyPath], dump_graph: bool = False) -> None:
    """Moves key paths of a graph into its input pipelines. After an error none was moved.

    Args:
      graph: The graph.
      key_paths: The keys to compute ahead of the step.
      dump_graph: See modify_graph_and_start_emb_cache.

    Raises:
      ValueError: See modify_graph_and_start_emb_cache.
    """
    cuts = find_cuts(key_paths)
    replacements = set(
        graph.get_collection(PREPARED_BATCHES[True]) + graph.get_collection(PREPARED_BATCHES[False])
    )
    # A graph may be modified again, after more lookups or an optimizer were added.
    swapped = [cut for cut in cuts if cut.outputs or cut.get_next not in replacements]
    for cut in swapped:
        check_swappable(cut)
    if not cuts:
        tf.logging.warning("No lookup takes its keys from a dataset: nothing to modify.")
    if dump_graph:
        _dump("old_graph", graph)
        for i, cut in enumerate(swapped):
            _dump_cut(f"cut_graph_{'train' if cut.is_training else 'eval'}_{i}", cut)
    iterators = {cut.get_next: build_iterator(cut) for cut in swapped}
    for cut in cuts:
        old = cut.get_next
        get_next = put_in_place(iterators[old]) if old in iterators else old
        for is_training, name in PREPARED_BATCHES.items():
            batches = [op for op in graph.get_collection(name) if op is not old]
            if is_training == cut.is_training:
                batches.append(get_next)
            graph.get_collection_ref(name)[:] = batches
    if cuts:
        _collect_initializers(graph)
    if dump_graph:
        _dump("new_graph", graph)


def _collect_initializers(graph: tf.Graph) -> None:
    all_starts = []
    for is_training, name in PREPARED_BATCHES.items():
        batches = graph.get_collection(name)
        starts = [op for get_next in batches for op in initializers_of(get_next)]
        with graph.as_default(), tf.name_scope(None), tf.control_dependencies(None):
            start = [tf.group(starts, name="prepared_input_initializer")] if batches else []
        graph.get_collection_ref(PREPARED_INITIALIZERS[is_training])[:] = start
        all_starts += [op for op in starts if op not in all_starts]
    graph.get_collection_ref(ASCEND_CUTTING_POINT_INITIALIZER)[:] = all_starts


class GraphModifierHook(tf.train.SessionRunHook):
    """Modifies the graph of an Estimator call, or of a MonitoredTrainingSession.

    Pass it to each train(), evaluate(), predict(), TrainSpec and EvalSpec whose keys are to be
    computed ahead of the step. It also starts an iterator that nothing else has started, which is
    the case in a MonitoredTrainingSession. It does not start a dataset that is fed through
    placeholders: the script must.

    Args:
      dump_graph: See modify_graph_and_start_emb_cache.
      modify_graph: False: only check the graph, as start_asc_pipeline does.

    Raises:
      ValueError: An argument is not a bool. When the call begins: see
        modify_graph_and_start_emb_cache and start_asc_pipeline.
      RuntimeError: When the call begins: see start_asc_pipeline.

    Example:
      >>> hook = rec.GraphModifierHook()
      >>> # estimator.train(input_fn, hooks=[hook])
    """

    def __init__(self, dump_graph: bool = False, modify_graph: bool = True) -> None:
        check_bool("dump_graph", dump_graph)
        check_bool("modify_graph", modify_graph)
        self._dump_graph = dump_graph
        self._modify_graph = modify_graph

    def begin(self) -> None:
        """Modifies or checks the graph. TensorFlow calls this when the graph is complete."""
        if not self._modify_graph:
            check_declared_inputs(tf.get_default_graph())
            return
        modify_graph_and_start_emb_cache(dump_graph=self._dump_graph)
        for start in tf.get_collection(ASCEND_CUTTING_POINT_INITIALIZER):
            _probe_of(start)  # A graph is final once a session runs it.

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts the iterators that nothing else has started. TensorFlow calls this."""
        del coord
        if not self._modify_graph:
            return
        for start in session.graph.get_collection(ASCEND_CUTTING_POINT_INITIALIZER):
            if not _is_started(session, start) and not _is_fed(start):
                session.run(start)


def _probe_of(start: tf.Operation) -> tf.Operation:
    """An op that fails unless the iterator of an initializer was started.

    TensorFlow has no op for this. But the state of an iterator without a dataset cannot be
    serialized, so SerializeIterator fails.
    """
    handle = start.inputs[1]
    for op in handle.consumers():
        if op.name.endswith(PROBE):
            return op
    with tf.name_scope(None), tf.device(handle.device):
        return tf.raw_ops.SerializeIterator(
            resource_handle=handle,
            external_state_policy=_IGNORE_EXTERNAL_STATE,
            name=handle.op.name + PROBE,
        ).op


def _is_started(session: tf.Session, start: tf.Operation) -> bool:
    try:
        session.run(_probe_of(start))
    except tf.errors.FailedPreconditionError:
        return False
    except tf.errors.OpError:
        # The iterator has a dataset, but one whose state cannot be serialized.
        return True
    return True


def _is_fed(start: tf.Operation) -> bool:
    """Whether the dataset of an initializer depends on a placeholder."""
    return any(op.type in PLACEHOLDERS for op in ancestors([start]))


def _dump(name: str, graph: tf.Graph) -> None:
    tf.io.write_graph(graph, _DUMP_FOLDER, f"{name}.pbtxt")
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(os.path.join(_DUMP_FOLDER, name))
    writer.add_graph(graph)
    writer.close()


def _dump_cut(name: str, cut: Cut) -> None:
    with tf.Graph().as_default() as graph:
        batch = {
            tensor.name: tf.placeholder(tensor.dtype, tensor.shape, name=f"batch_{i}")
            for i, tensor in enumerate(cut.get_next.outputs)
            if any(consumer in cut.ops for consumer in tensor.consumers())
        }
        tf.import_graph_def(graph_def_of(cut.get_next.graph, cut.ops), batch, name="key_path")
    _dump(name, graph)
