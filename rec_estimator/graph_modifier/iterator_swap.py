# SPDX-License-Identifier: Apache-2.0
"""Gives a step another iterator, whose dataset computes the keys of the lookups ahead of it.

The old dataset is mapped by the cut (graph_cut.py) and prefetched; the op that starts the old
iterator starts the new one from then on; all that took a tensor of the old batch, or one of the
cut, takes the new iterator's. Only the user's own tensors of the old batch still name the old
IteratorGetNext: ops/pipeline/same_batch_pass.cc makes that one an identity of the new one.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_modifier.cut import Cut
from rec_estimator.graph_passes.walk import GET_NEXT, graph_def_of

# Batches that wait, keys computed, for their step. Rec SDK has 10.
_PREFETCHED_BATCHES = 10

# ops/pipeline/same_batch_pass.cc looks for these attributes: an IteratorGetNext with the first
# one gives the batch of its control input, which has the second one.
_REPLACED = "_rec_estimator_replaced"
_REPLACEMENT = "_rec_estimator_replacement"

# Where TensorFlow keeps the iterators that an input pipeline's checkpoint holds.
_GLOBAL_ITERATORS = "iterators"

_ONE_SHOT = "OneShotIterator"

# What may be done with an iterator besides taking batches: it is done with the new one then. Every
# tf.data.Iterator has an IteratorToStringHandle.
_OTHER_USES = (
    "DeserializeIterator",
    "IteratorToStringHandle",
    "IteratorToStringHandleV2",
    "MakeIterator",
    "SerializeIterator",
)


def check_swappable(cut: Cut) -> None:
    """Refuses an iterator that cannot be given another dataset.

    Args:
      cut: What is to be moved into its dataset.

    Raises:
      ValueError: It is neither one-shot nor initializable in this graph, or something else takes
        batches from it.
    """
    handle = cut.get_next.inputs[0]
    for op in handle.consumers():
        if op is not cut.get_next and op.type not in _OTHER_USES:
            raise ValueError(
                f"iterator {handle.op.name!r} must give its batches to one get_next() to be "
                f"replaced, got {op.name!r} ({op.type}) beside {cut.get_next.name!r}; call "
                "get_next() once and use its tensors in all places"
            )
    if handle.op.type != _ONE_SHOT and not initializers_of(cut.get_next):
        raise ValueError(
            f"iterator {handle.op.name!r} must be made by tf.data.make_initializable_iterator or "
            f"tf.data.make_one_shot_iterator to be replaced, got {handle.op.type}, started "
            "outside of this graph or never"
        )


def forward_replaced(graph: tf.Graph) -> None:
    """Gives what was built on batches that are replaced by now the batches in their place.

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
    """The IteratorGetNext ops in whose place one is, directly or one after the other.

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
    """An iterator in the place of a cut's, built beside it."""

    cut: Cut
    batch: List[tf.Tensor]  # As the old batch, then the outputs of the cut.
    datasets: Dict[tf.Operation, tf.Tensor]  # By the MakeIterator that is to start with it.


def build_iterator(cut: Cut) -> NewIterator:
    """Builds what replaces the iterator of a cut, and changes nothing of what is there.

    Args:
      cut: What is moved; checked by check_swappable().
    """
    old = cut.get_next
    datasets = {}
    # Neither the caller's scopes nor its control dependencies are the pipeline's.
    with old.graph.as_default(), tf.name_scope(None), tf.control_dependencies(None):
        old_iterator = old.inputs[0].op
        with tf.device(old_iterator.device or "/device:CPU:0"), tf.name_scope("prepared_input"):
            # What the old ops waited for, the new ones wait for.
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
    """Gives the new iterator's batches to all that took the old one's.

    Args:
      new: From build_iterator().

    Returns:
      The IteratorGetNext of the new iterator.
    """
    cut, batch = new.cut, new.batch
    old, source = cut.get_next, batch[0].op
    old_handle, handle = old.inputs[0], source.inputs[0]
    for maker, dataset in new.datasets.items():
        # The user's own `iterator.initializer`, which hooks and collections may hold.
        graphs.update_input(maker, 0, dataset)
    others = [consumer for consumer in old_handle.consumers() if consumer is not old]
    _replace_input(others, old_handle, handle)
    iterators = old.graph.get_collection_ref(_GLOBAL_ITERATORS)
    iterators[:] = [handle if iterator is old_handle else iterator for iterator in iterators]
    moved = set(cut.ops)
    for tensor, replacement in zip([*old.outputs, *cut.outputs], batch):
        # The ops of the cut stay, fed with the new batch, for those who fetch from them.
        stays = tensor.op is not old
        takers = [op for op in tensor.consumers() if not (stays and op in moved)]
        _replace_input(takers, tensor, replacement)
    # Fed values would not reach what was moved: a session refuses them from now on.
    for op in [old, *cut.ops]:
        for tensor in op.outputs:
            old.graph.prevent_feeding(tensor)
    graphs.set_attr(old, _REPLACED, tf.AttrValue(b=True))
    graphs.set_attr(source, _REPLACEMENT, tf.AttrValue(b=True))
    graphs.add_control_inputs(old, [source])
    return source


def initializers_of(get_next: tf.Operation) -> List[tf.Operation]:
    """The ops that start the iterator of an IteratorGetNext; none for a one-shot iterator.

    Args:
      get_next: Any IteratorGetNext.
    """
    return [op for op in get_next.inputs[0].consumers() if op.type == "MakeIterator"]


def _prepared(cut: Cut, dataset: tf.Tensor) -> tf.Tensor:
    """A dataset [] (variant) of the batches of `dataset`, each with the outputs of the cut."""
    graph_def = graph_def_of(cut.get_next.graph, cut.ops)
    members = set(cut.ops)
    used = [
        i
        for i, tensor in enumerate(cut.get_next.outputs)
        if any(consumer in members for consumer in tensor.consumers())
    ]

    def prepare(*batch: tf.Tensor) -> Any:
        inputs = {cut.get_next.outputs[i].name: batch[i] for i in used}
        results = tf.import_graph_def(
            graph_def, inputs, [tensor.name for tensor in cut.outputs], name="key_path"
        )
        for result, tensor in zip(results, cut.outputs):
            result.set_shape(tensor.shape)
        return (*batch, *results)

    types, shapes = _batch_types(cut), cut.get_next.get_attr("output_shapes")
    structure = tuple(tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, types))
    batches = tf.data.experimental.from_variant(dataset, structure)
    if cut.outputs:
        # In order, whatever the dataset's options say: the batches are those of the unmodified
        # graph.
        batches = batches.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return tf.data.experimental.to_variant(batches.prefetch(_PREFETCHED_BATCHES))


def _batch_types(cut: Cut) -> Sequence[tf.DType]:
    return [tf.as_dtype(dtype) for dtype in cut.get_next.get_attr("output_types")]


def _types_of(cut: Cut) -> Any:
    """Attributes of an iterator of batches that have the outputs of the cut, too."""
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
