# SPDX-License-Identifier: Apache-2.0
"""Training on compressed batches: the gradients and counts of the uncompressed batch.

The pass runs just before an optimizer of ours builds gradients. Gradients are then built on the
users' rows and sum over the candidates by themselves. Counts do not: a key that is looked up once
for a user with 50 candidates occurs 50 times in the uncompressed batch. The apply op receives the
other 49 occurrences as keys that are counted and have no gradient.
"""

from typing import Any, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.graph_observer import GraphObserver
from rec_estimator.graph_passes.observers import observers
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression.analysis.components import components
from rec_estimator.sample_compression.regions import Region
from rec_estimator.sample_compression.state import State, compress, current_state

# Ops that are linear in a gradient: applied to the sum over a user's candidates, they give the sum
# of what they give for each candidate.
_KEEP = frozenset({"Cast", "CheckNumerics", "ConcatV2", "Identity", "IdentityN", "Neg", "Reshape"})
_SCALE = frozenset({"Div", "DivNoNan", "Mul", "RealDiv"})


class CompressionObserver(GraphObserver):
    """Compresses a graph before its gradients, and corrects what its optimizers count.

    Args:
      state: The state of the graph.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        # The keys and the gradient of each lookup.
        self._lookups: List[Tuple[tf.Tensor, tf.IndexedSlices]] = []
        # The gradients that have one slice per user, not one per sample.
        self._user_gradients: List[tf.IndexedSlices] = []
        # The number of ops in the graph when an optimizer had made the pass run.
        self._pass_end: Optional[int] = None
        # The ops that optimizers of ours have built.
        self._optimizer_ops: Set[tf.Operation] = set()

    def features_looked_up(self, inputs: Any, outputs: Any, keys: Any) -> None:
        """Declares the ops between inputs and outputs to be row-wise."""
        flat = tf.nest.flatten(inputs)
        if all(isinstance(x, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)) for x in flat):
            self._state.regions.append(Region(flat, tf.nest.flatten(outputs), keys))

    def before_gradients(self, loss: Any, grad_loss: Any) -> Tuple[Any, Any]:
        """Compresses the model."""
        if not isinstance(loss, tf.Tensor):
            return loss, grad_loss
        is_first = self._state.rewrite is None
        compressed = compress((loss, grad_loss))
        if is_first:
            self._pass_end = len(tf.get_default_graph().get_operations())
        return compressed

    def lookup_gradient_built(self, keys: tf.Tensor, slices: tf.IndexedSlices) -> None:
        """Remembers the gradient of a lookup."""
        if self._state.rewrite is not None:
            self._lookups.append((keys, slices))

    def gradients_built(self, gradients: Sequence[Any]) -> None:
        """Remembers the gradients that have one slice per user."""
        occurrences = self._state.occurrences
        if occurrences is not None:
            found = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
            self._user_gradients += [g for g in found if occurrences.is_repeated(g.indices)]

    def before_updates(self) -> None:
        """Refuses ops on gradients with one slice per user that are not linear in them.

        The norm of such a gradient, for example, differs from that of one slice per sample.
        """
        parts = [part for each in self._user_gradients for part in (each.values, each.indices)]
        derived = {part.name for part in parts}
        while parts:
            for op in parts.pop().consumers():
                is_scaled = op.type in _SCALE and _may_scale(op, derived)
                if is_scaled or op.type in _KEEP:
                    new = [tensor for tensor in op.outputs if tensor.name not in derived]
                    derived.update(tensor.name for tensor in new)
                    parts += new
                elif op not in self._optimizer_ops:
                    raise ValueError(
                        "gradients of rows that are looked up for users must be used unchanged or "
                        f"times a number in compressed training, got {op.name!r} ({op.type}): they "
                        "have a slice per user and not per sample, so that their norm differs; "
                        "clip dense gradients only, or train on uncompressed batches"
                    )

    def counted_keys(
        self, gradient_keys: Optional[tf.Tensor], others: List[tf.Tensor]
    ) -> List[tf.Tensor]:
        """Adds the occurrences that only the uncompressed batch has."""
        occurrences = self._state.occurrences
        if occurrences is None:
            return others
        counted = [occurrences.all_of(keys) for keys in others]
        if gradient_keys is not None:
            upstream = ancestors([gradient_keys.op])
            for keys, slices in self._lookups:
                if slices.indices.op in upstream:
                    further = occurrences.further(keys)
                    if further is not None:
                        counted.append(further)
        return counted

    def optimizer_ops_built(self, ops: Sequence[tf.Operation]) -> None:
        """Remembers the ops, which keep the users' rows."""
        self._optimizer_ops.update(ops)

    def repeat_for_ops_built_later(self) -> None:
        """Gives one row per candidate to the ops that a model_fn built after its gradients.

        Those ops were built on tensors of the model that the pass has reduced to one row per user.
        The ops of the pass and of our optimizers allow for that and keep the users' rows.
        """
        rewrite = self._state.rewrite
        if rewrite is None or self._pass_end is None:
            return
        self.before_updates()
        for op in tf.get_default_graph().get_operations()[self._pass_end :]:
            if op in self._optimizer_ops or op in self._state.own_ops:
                continue
            for index, tensor in enumerate(op.inputs):
                if not rewrite.is_of_users(tensor):
                    continue
                if graphs.is_of_gradients(op):
                    raise ValueError(
                        "gradients of a compressed model must be built by optimizers of ours, got "
                        f"{op.name!r}, built after the first on {tensor.name!r}; build them "
                        "before, or all of them on rec_estimator.graph_optimizer.compress(loss)"
                    )
                graphs.update_input(op, index, compress(tensor))


def _may_scale(op: tf.Operation, derived: Set[str]) -> bool:
    """Whether a product or quotient has a gradient as one operand only, and as the dividend."""
    a, b = (tensor.name in derived for tensor in op.inputs)
    return (a != b) if op.type == "Mul" else not b


def check_gradients_are_compressed(train_op: Any) -> None:
    """Refuses a step whose gradients were built before the model was compressed.

    Args:
      train_op: The train_op of the model_fn.

    Raises:
      ValueError: An optimizer of TensorFlow built the gradients.
    """
    state = current_state()
    if state is None or state.rewrite is not None or train_op is None:
        return
    given = {part.op for tensor in (*state.users, *state.items) for part in components(tensor)}
    if given & ancestors([train_op.op if isinstance(train_op, tf.Tensor) else train_op]):
        raise ValueError(
            "the model must be compressed before its gradients are built, got a train_op of an "
            "optimizer that is not ours; minimize rec_estimator.graph_optimizer.compress(loss), or "
            "with one of rec_estimator.optimizers"
        )


def repeat_for_ops_built_later() -> None:
    """Gives one row per candidate to the ops that a model_fn built after its gradients.

    Raises:
      ValueError: The model_fn built further gradients on users' rows, or an op on gradients that is
        not linear in them.
    """
    for observer in observers():
        if isinstance(observer, CompressionObserver):
            observer.repeat_for_ops_built_later()
