# SPDX-License-Identifier: Apache-2.0
"""Parts of a model that are declared to be row-wise. The pass does not analyse their ops."""

from typing import Any, Dict, List, Sequence, Set

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression.analysis.components import components


class Region:
    """A part of the graph in which row i of each output depends on row i of the inputs only.

    Args:
      inputs: Dense, sparse and ragged tensors with rows on axis 0.
      outputs: Tensors with the same rows on axis 0.
      keys: The SparseTensor or RaggedTensor with those rows that the lookups of the region read;
        None: there are no lookups.
    """

    def __init__(
        self, inputs: Sequence[Any], outputs: Sequence[tf.Tensor], keys: Any = None
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.keys = keys

    def ops(self) -> Set[tf.Operation]:
        """The ops between inputs and outputs."""
        found: Set[tf.Operation] = set()
        stack = [op for t in self.inputs for part in components(t) for op in part.consumers()]
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack.extend(consumer for t in op.outputs for consumer in t.consumers())
        return found & ancestors(tensor.op for tensor in self.outputs)


class Regions:
    """The regions of a graph.

    Args:
      regions: All of them.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self._owners: Dict[tf.Operation, List[Region]] = {}
        inner = [(region, region.ops()) for region in regions]
        everywhere = set().union(*(ops for _, ops in inner))
        # One op may have outputs of several regions.
        outputs = {tensor.name for region in regions for tensor in region.outputs}
        for region, ops in inner:
            outside = {
                consumer
                for op in ops
                for tensor in op.outputs
                if tensor.name not in outputs
                for consumer in tensor.consumers()
            }
            outside -= everywhere
            # Ops outside whose results are unused, such as the size for an assertion that was
            # static, belong to the region. If other ops use inner results, the pass analyses the
            # region op by op.
            if not any(tensor.consumers() for op in outside for tensor in op.outputs):
                for op in ops | outside:
                    self._owners.setdefault(op, []).append(region)

    def of(self, op: tf.Operation) -> List[Region]:
        """The regions that an op is in: several if features share it."""
        return self._owners.get(op, [])
