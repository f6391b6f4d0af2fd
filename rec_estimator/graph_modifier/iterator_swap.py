# SPDX-License-Identifier: Apache-2.0
"""Replaces the iterator of a step by one whose dataset computes the keys of lookups ahead.

The new dataset maps the ops of a cut (key_paths.py) over the old one, brings in rows that training
reads from disk (bring_in.py), and prefetches. The op that started the old iterator then starts
the new one. Every op that took a tensor of the old batch, or an output of the cut, takes it from
the new iterator. Only the script's own tensors of the old batch still come from the old
IteratorGetNext, and a Saver built later still has the old iterator. When a step runs,
ops/passes/same_batch_pass.cc turns that op into an identity of the new one, and gives the new
iterator to every op that has the old one.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_modifier.bring_in import bring_in_rows
from rec_estimator.graph_modifier.key_paths import Cut
from rec_estimator.graph_passes.graph_state import WORK_QUEUES
from rec_estimator.graph_passes.walk import GET_NEXT, graph_def_of

# How many batches with computed keys may wait for their step.
_PREFETCHED_BATCHES = 10
# The prefetched batches, two whose rows are being brought in, one whose step runs, and one more
# because the two may be counted in either order.
_BATCHES_AHEAD = _PREFETCHED_BATCHES + 4

# ops/passes/same_batch_pass.cc reads these attributes of iterators and IteratorGetNext ops: the
# control input with the second takes the place of an op with the first.
_REPLACED = "_rec_estimator_replaced"
_REPLACEMENT = "_rec_estimator_replacement"

# TensorFlow's collection of the iterators that a checkpoint of the input pipeline holds.
_GLOBAL_ITERATORS = "iterators"

_ONE_SHOT = "OneShotIterator"

# End of the names of ops that fail unless an iterator was started.
PROBE = "_is_started"

# Ops that may use an iterator besides IteratorGetNext; they use the new one afterwards. Every
# tf.data.Iterator has an IteratorToStringHandle.
_OTHER_USES = (
    "DeserializeIterator",
    "IteratorToStringHandle",
    "IteratorToStringHandleV2",
    "MakeIterator",
    "SerializeIterator",
)


def check_swappable(cut: Cut) -> None:
    """Checks that the iterator of a cut can be replaced.

    Args:
      cut: The ops to move into its dataset.

    Raises:
      ValueError: The iterator is neither one-shot nor initializable in this graph, another op takes
        batches from it, or the graph has a work queue.
    """
    for name in cut.get_next.graph.get_collection(WORK_QUEUES):
        raise ValueError(
            f"graph modification makes batches ahead, which work queue {name!r} would count as "
            "trained; leave out GraphModifierHook, or read the files without a queue"
        )
    handle = cut.get_next.inputs[0]
    for op in handle.consumers():
        if op is not cut.get_next and op.type not in _OTHER_USES:
            raise ValueError(
                f"iterator {handle.op.name!r} must give its batches to one get_next() to be "
                f"replaced, got {op.name!r} ({op.type}) and {cut.get_next.name!r}; call "
                "get_next() once and use its tensors everywhere"
            )
    if handle.op.type != _ONE_SHOT and not initializers_of(cut.get_next):
        raise ValueError(
            f"iterator {handle.op.name!r} must be made by tf.data.make_initializable_iterator or "
            f"tf.data.make_one_shot_iterator to be replaced, got {handle.op.type}, started "
            "outside of this graph or never"
        )


def forward_replaced(graph: tf.Graph) -> None:
    """Rewires ops that were built on a replaced batch, so that they take the new batch.

    Args:
      graph: A graph that may have been modified before.
    """
    for op in graph.get_operations():
        if op.type == GET_NEXT and _has(op, _REPLACED):
            source = op
            while _has(source, _REPLACED):
                source = next(op for op in source.control_inputs if _has(op, _REPLACEMENT))
            for tensor, replacement in zip(op.outputs, source.outputs):
                _replace_input(tensor.consumers(), tensor, replacement)


def replaced_by(get_next: tf.Operation) -> List[tf.Operation]:
    """Returns the IteratorGetNext ops that another one replaced, in one or several modifications.

    Args:
      get_next: From put_in_place().
    """
    found = [get_next]
    for op in found:
        found += [
            other
            for other in get_next.graph.get_operations()
            if other.type == GET_NEXT and _has(other, _REPLACED) and op in other.control_inputs
        ]
    return found[1:]


def _has(op: tf.Operation, attribute: str) -> bool:
    return attribute in op.node_def.attr


class NewIterator(NamedTuple):
    """The iterator that replaces that of a cut."""

    cut: Cut
    batch: List[tf.Tensor]  # The tensors of the old batch, then the outputs of the cut.
    datasets: Dict[
        tf.Operation, tf.Tensor
    ]  # The dataset, by the MakeIterator op that starts the iterator with it.


def build_iterator(cut: Cut) -> NewIterator:
    """Builds the iterator that replaces the one of a cut. Changes no op that is in the graph.

    Args:
      cut: The ops to move; check_swappable() has accepted it.
    """
    old = cut.get_next
    datasets = {}
    # The pipeline must not be in the scopes and control dependencies of the caller.
    with old.graph.as_default(), tf.name_scope(None), tf.control_dependencies(None):
        old_iterator = old.inputs[0].op
        with tf.device(old_iterator.device or "/device:CPU:0"), tf.name_scope("prepared_input"):
            # The new ops wait for the same ops as the old ones.
            with tf.control_dependencies(old_iterator.control_inputs):
                if old_iterator.type == _ONE_SHOT:
                    handle = _one_shot_iterator(cut)
                else:
                    handle = tf.raw_ops.IteratorV2(shared_name="", container="", **_types_of(cut))
            for maker in initializers_of(old):
                datasets[maker] = _prepared(cut, maker.inputs[0])
            with tf.control_dependencies(old.control_inputs):
                batch = tf.raw_ops.IteratorGetNext(iterator=handle, **_types_of(cut))
    return NewIterator(cut, batch, datasets)


def put_in_place(new: NewIterator) -> tf.Operation:
    """Rewires every op that took tensors of the old iterator to the new one.

    Args:
      new: From build_iterator().

    Returns:
      The IteratorGetNext of the new iterator.
    """
    cut, batch = new.cut, new.batch
    old, source = cut.get_next, batch[0].op
    old_handle, handle = old.inputs[0], source.inputs[0]
    for maker, dataset in new.datasets.items():
        # This is the script's `iterator.initializer`; hooks and collections may hold it.
        graphs.update_input(maker, 0, dataset)
    others = [consumer for consumer in old_handle.consumers() if consumer is not old]
    _replace_input(others, old_handle, handle)
    iterators = old.graph.get_collection_ref(_GLOBAL_ITERATORS)
    iterators[:] = [handle if iterator is old_handle else iterator for iterator in iterators]
    moved = set(cut.ops)
    for tensor, replacement in zip([*old.outputs, *cut.outputs], batch):
        # The old ops of the cut stay in the graph, on the new batch: a script may fetch them.
        is_of_cut = tensor.op is not old
        takers = [op for op in tensor.consumers() if not (is_of_cut and op in moved)]
        _replace_input(takers, tensor, replacement)
    # A fed value would not reach the moved ops. A session refuses to feed these tensors now.
    for op in [old, *cut.ops]:
        for tensor in op.outputs:
            old.graph.prevent_feeding(tensor)
    for replaced, replacement in ((old, source), (old_handle.op, handle.op)):
        graphs.set_attr(replaced, _REPLACED, tf.AttrValue(b=True))
        graphs.set_attr(replacement, _REPLACEMENT, tf.AttrValue(b=True))
        graphs.add_control_inputs(replaced, [replacement])
    return source


def initializers_of(get_next: tf.Operation) -> List[tf.Operation]:
    """Returns the ops that start the iterator of an IteratorGetNext; none for a one-shot one.

    Args:
      get_next: Any IteratorGetNext.
    """
    return [op for op in get_next.inputs[0].consumers() if op.type == "MakeIterator"]


def _prepared(cut: Cut, dataset: tf.Tensor) -> tf.Tensor:
    """A dataset, variant [], that appends the outputs of the cut to each batch of `dataset`."""
    graph_def = graph_def_of(cut.get_next.graph, cut.ops)
    members = set(cut.ops)
    used = [
        i
        for i, tensor in enumerate(cut.get_next.outputs)
        if any(consumer in members for consumer in tensor.consumers())
    ]

    def key_path(*taken: tf.Tensor) -> List[tf.Tensor]:
        inputs = {cut.get_next.outputs[i].name: tensor for i, tensor in zip(used, taken)}
        return tf.import_graph_def(
            graph_def, inputs, [tensor.name for tensor in cut.outputs], name="key_path"
        )

    def prepare(*batch: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        taken = [batch[i] for i in used]
        if cut.has_loop:
            # TensorFlow orders the stateful ops of a dataset's function by control dependencies,
            # also those inside of an imported loop, which must have none from outside. A wrapped
            # function keeps its ops as they are.
            signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in taken]
            results = tf.wrap_function(key_path, signature)(*taken)
        else:
            results = key_path(*taken)
        for result, tensor in zip(results, cut.outputs):
            result.set_shape(tensor.shape)
        return (*batch, *results)

    types, shapes = _batch_types(cut), cut.get_next.get_attr("output_shapes")
    structure = tuple(tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, types))
    batches = tf.data.experimental.from_variant(dataset, structure)
    if cut.outputs:
        # The order must be that of the unmodified graph, whatever the dataset's options say.
        batches = batches.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    iterator = cut.get_next.inputs[0].op
    if cut.reads and not _is_saved(iterator):
        batch = [*cut.get_next.outputs, *cut.outputs]
        batches = bring_in_rows(batches, batch, cut.reads, iterator.device, _BATCHES_AHEAD)
    return tf.data.experimental.to_variant(batches.prefetch(_PREFETCHED_BATCHES))


def _is_saved(iterator: tf.Operation) -> bool:
    """Whether a checkpoint holds the state of an iterator.

    TensorFlow refuses to save a dataset with an op that changes other state, even if the op only
    moves rows of a table between disk and memory.
    """
    savers = [
        op
        for op in iterator.outputs[0].consumers()
        if op.type == "SerializeIterator" and not op.name.endswith(PROBE)
    ]
    if savers:
        tf.logging.info(
            "Steps read rows from disk, not the dataset: %s saves the state of iterator %s.",
            savers[0].name,
            iterator.name,
        )
    return bool(savers)


def _batch_types(cut: Cut) -> Sequence[tf.DType]:
    return [tf.as_dtype(dtype) for dtype in cut.get_next.get_attr("output_types")]


def _types_of(cut: Cut) -> Dict[str, List[Any]]:
    """The type attributes of an iterator whose batches end with the outputs of the cut."""
    shapes = [tf.TensorShape(shape) for shape in cut.get_next.get_attr("output_shapes")]
    return {
        "output_types": [*_batch_types(cut), *(tensor.dtype for tensor in cut.outputs)],
        "output_shapes": [*shapes, *(tensor.shape for tensor in cut.outputs)],
    }


def _one_shot_iterator(cut: Cut) -> tf.Tensor:
    factory = cut.get_next.inputs[0].op.get_attr("dataset_factory")

    @tf.function(autograph=False)
    def prepared_dataset() -> tf.Tensor:
        (dataset,) = tf.raw_ops.StatefulPartitionedCall(args=[], Tout=[tf.variant], f=factory)
        return _prepared(cut, dataset)

    return tf.raw_ops.OneShotIterator(
        dataset_factory=prepared_dataset.get_concrete_function(),
        container="",
        shared_name="",
        **_types_of(cut),
    )


def _replace_input(ops: Sequence[tf.Operation], old: tf.Tensor, new: tf.Tensor) -> None:
    for op in ops:
        for position, tensor in enumerate(op.inputs):
            if tensor is old:
                graphs.update_input(op, position, new)
