# SPDX-License-Identifier: Apache-2.0
"""The input of a modified graph: the op that starts the data, and the batch of a step.

The last part of graph modification. __init__.py leaves both in collections of the graph; scripts
ask for them here.
"""

import gc
from typing import Any, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool
from rec_estimator._tensorflow import datasets
from rec_estimator.graph_modifier.iterator_swap import replaced_by
from rec_estimator.graph_passes.graph_state import PREPARED_BATCHES, PREPARED_INITIALIZERS

# Collection of the initializers of all these iterators; ported scripts read it.
ASCEND_CUTTING_POINT_INITIALIZER = "ASCEND_CUTTING_POINT_INITIALIZER"


def is_modified() -> bool:
    """Returns whether a lookup of the default graph takes its keys from a prepared batch."""
    return any(tf.get_collection(name) for name in PREPARED_BATCHES.values())


def get_initializer(is_training: bool) -> tf.Operation:
    """Returns the op that starts, or restarts, the data of the modified default graph.

    Args:
      is_training: True: the data of training lookups. False: the data of all other lookups.

    Returns:
      An op that runs the initializers of these iterators. If their datasets have placeholders, feed
      them when you run it. It does nothing for one-shot iterators, which start by themselves.

    Raises:
      ValueError: The graph was not modified, or has no such lookups.
    """
    check_bool("is_training", is_training)
    return _collected(PREPARED_INITIALIZERS, is_training)[0]


def get_target_batch(is_training: bool) -> Any:
    """Returns the batch that a step of the modified default graph takes.

    A script does not need it: the tensors on which the model was built stay valid, and have the
    same values. Ported scripts call it.

    Args:
      is_training: True: the batch of training lookups. False: the batch of all other lookups.

    Returns:
      The batch, in the structure of the dataset.

    Raises:
      ValueError: The graph was not modified, has no such lookups, or has several iterators for
        them; or the script has not kept the iterator.
    """
    check_bool("is_training", is_training)
    batches = _collected(PREPARED_BATCHES, is_training)
    if len(batches) > 1:
        raise ValueError(
            f"the lookups must take their keys from one iterator to have one batch, got "
            f"{len(batches)} iterators; fetch the tensors of your own batches, they stay valid"
        )
    structure = _element_spec([op.inputs[0] for op in replaced_by(batches[0])])
    return datasets.batch_of_tensors(structure, batches[0].outputs)


def _element_spec(handles: Sequence[tf.Tensor]) -> Any:
    """The structure of the elements of an iterator.

    The graph does not have it: IteratorGetNext has a flat list of types and shapes, without the
    keys of dicts, the nesting, and which variants are SparseTensors or RaggedTensors. Only the
    Python object that make_initializable_iterator or make_one_shot_iterator returned has it. No
    object of TensorFlow refers to that one: its handle is in the collection "iterators", but a
    handle does not refer to its iterator. Scripts make it with TensorFlow's functions, so no code
    of this package sees it either. The garbage collector's list is therefore the only way to it, as
    long as the script keeps the object.

    Args:
      handles: Resource handles under which the iterator may be known.

    Raises:
      ValueError: The script has not kept the iterator.
    """
    for found in gc.get_objects():
        # isinstance() would call __class__ of every object, which may be code of the script.
        if type(found) is tf.data.Iterator:
            handle_of_found = datasets.iterator_resource(found)
            if any(handle_of_found is handle for handle in handles):
                return found.element_spec
    raise ValueError(
        "the script has not kept the iterator of the batch; keep it in a variable, or fetch the "
        "tensors that its get_next() returned, they stay valid"
    )


def _collected(collections: Dict[bool, str], is_training: bool) -> List[tf.Operation]:
    found = tf.get_collection(collections[is_training])
    if not found:
        kind = "training" if is_training else "evaluation"
        raise ValueError(
            f"the graph has no modified lookups of {kind}; call "
            "modify_graph_and_start_emb_cache() when the graph is complete, after minimize()"
        )
    return found
