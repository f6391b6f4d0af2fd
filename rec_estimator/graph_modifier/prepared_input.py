# SPDX-License-Identifier: Apache-2.0
"""The input of a modified graph: what starts it, and the batch that a step takes.

Beside the data flow. graph_modifier.py leaves both in collections; scripts ask for them here.
"""

import gc
from typing import Any, List

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool
from rec_estimator._tensorflow import datasets
from rec_estimator.graph_modifier.iterator_swap import replaced_by

# Collections of the IteratorGetNext ops that graph modification has made, and of the one op that
# starts their iterators.
BATCHES = {True: "rec_estimator/training_batches", False: "rec_estimator/evaluation_batches"}
INITIALIZERS = {
    True: "rec_estimator/training_initializer",
    False: "rec_estimator/evaluation_initializer",
}


def is_modified() -> bool:
    """Whether lookups of the default graph take their keys from prepared batches."""
    return any(tf.get_collection(name) for name in BATCHES.values())


def get_initializer(is_training: bool) -> tf.Operation:
    """The op that starts the modified default graph's data, or starts them again.

    Args:
      is_training: True: data of the lookups whose table is trained; False: of all others.

    Returns:
      Runs all their iterators' initializers; placeholders of the datasets are fed to this run. It
      does nothing for one-shot iterators, which start by themselves.

    Raises:
      ValueError: The graph was not modified, or has no such lookups.
    """
    check_bool("is_training", is_training)
    return _collected(INITIALIZERS, is_training)[0]


def get_target_batch(is_training: bool) -> Any:
    """The batch that a step of the modified default graph takes.

    The tensors of the batch that the model was built on are the same batch; this is for scripts
    written for Rec SDK, where they are not.

    Args:
      is_training: True: of the lookups whose table is trained; False: of all others.

    Returns:
      The batch, in the structure of the dataset.

    Raises:
      ValueError: The graph was not modified, or has no such lookups, or several iterators for
        them; or the iterator's Python object is gone, which alone knows the structure.
    """
    check_bool("is_training", is_training)
    batches = _collected(BATCHES, is_training)
    if len(batches) > 1:
        raise ValueError(
            f"the lookups must take their keys from one iterator to have one batch, got "
            f"{len(batches)} iterators; fetch the tensors of your own batches, they stay valid"
        )
    old_handles = [get_next.inputs[0] for get_next in replaced_by(batches[0])]
    # Neither graph nor ops know the structure of a batch, and an iterator is in no collection.
    # type(): isinstance() would run code of whatever there is.
    for found in gc.get_objects():
        if type(found) is tf.data.Iterator and any(
            datasets.iterator_resource(found) is handle for handle in old_handles
        ):
            return datasets.batch_of_tensors(found.element_spec, batches[0].outputs)
    raise ValueError(
        "the iterator of the batch must be kept by the script, got none; fetch the tensors that "
        "its get_next() gave, they stay valid"
    )


def _collected(collections: Any, is_training: bool) -> List[Any]:
    found = tf.get_collection(collections[is_training])
    if not found:
        kind = "training" if is_training else "evaluation"
        raise ValueError(
            f"the graph must be modified and have lookups of {kind}, got none; call "
            "modify_graph_and_start_emb_cache() when the graph is complete, after minimize()"
        )
    return found
