# SPDX-License-Identifier: Apache-2.0
"""The pass: visits every op that depends on the request, in order, and rewires the graph.

The pass puts each op on a side. An op on the users' side runs on one row per user. An op on the
candidates' side runs on one row per candidate; its inputs that come from users are repeated first.
So each tensor has either one row per user, or the rows that the original model computes.
"""

import dataclasses
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.components import AnyTensor, components
from rec_estimator.sample_compression.analysis.entries import Distinct, Entries
from rec_estimator.sample_compression.analysis.shape_values import elements_of
from rec_estimator.sample_compression.analysis.sizes import ONE, ListSizes, Shape, Size, has_rows
from rec_estimator.sample_compression.analysis.values import (
    CannotMove,
    DenseValue,
    EntryRows,
    Side,
    Value,
    elements_in,
    value_of,
)
from rec_estimator.sample_compression.regions import Region, Regions
from rec_estimator.sample_compression.report.report import OpRecord
from rec_estimator.sample_compression.rewrite.expansion import (
    Expansion,
    RowExpansion,
)
from rec_estimator.sample_compression.rewrite.linear_split import LinearSplit
from rec_estimator.sample_compression.rewrite.new_inputs import NewInputs
from rec_estimator.sample_compression.rewrite.order import downstream
from rec_estimator.sample_compression.rewrite.repeated_rows import RepeatedRows
from rec_estimator.sample_compression.rewrite.request_values import request_values
from rec_estimator.sample_compression.rewrite.stock_expansion import StockExpansion
from rec_estimator.sample_compression.rules import control_flow
from rec_estimator.sample_compression.rules.control_flow_v1 import Subgraph
from rec_estimator.sample_compression.rules.entry import entry_outputs
from rec_estimator.sample_compression.rules.op_rules import BROADCASTING
from rec_estimator.sample_compression.rules.output_shapes import output_shapes

# Ops that the linear split may replace without moving work to the users' rows.
_MOVES_ONLY = ("ConcatV2", "Reshape", "Transpose")


class Rewrite:
    """One run of the pass over a graph.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Dense, sparse and ragged tensors of N rows.
      item_size: int32 [B] or [1].
      regions: Parts of the model that are declared row-wise.
      exact: Whether to leave out everything that adds in another order.
      stock_ops: Whether to add ops of TensorFlow only.

    Attributes:
      expansion: Repeats rows of users for candidates.
      records: What the pass did to each op; for the report.
    """

    def __init__(
        self,
        users: Sequence[AnyTensor],
        items: Sequence[AnyTensor],
        item_size: tf.Tensor,
        regions: Sequence[Region] = (),
        exact: bool = False,
        stock_ops: bool = False,
    ) -> None:
        # The ops before the pass adds its own.
        self._request = [part for t in (*users, *items) for part in components(t)]
        self._order = downstream(self._request)
        self._regions = Regions(regions)
        self._is_row_wise: Dict[Region, bool] = {}
        self.expansion: RowExpansion = (StockExpansion if stock_ops else Expansion)(
            users, items, item_size
        )
        self._rows = RepeatedRows(self.expansion)
        self._linear_split = LinearSplit(self.expansion, self._rows.of, exact)
        self.records: List[OpRecord] = []
        self._stopped: Dict[tf.Operation, str] = {}  # Why control flow stays, by op.
        self._waits: Dict[str, Set[tf.Operation]] = {}  # What tensors with a form wait for.
        self._new_inputs = NewInputs(self.expansion, self.value)
        self._values = request_values(self.expansion, users, items)
        # The given side of a tensor holds, even if the tensor is computed from another one.
        self._given = set(self._values)

    def run(self) -> None:
        """Decides on every op, then rewires the graph."""
        for node in self._order:
            if not isinstance(node, Subgraph):
                self._visit(node)
            elif not self._visit_subgraph(node):
                for op in node.ops:
                    self._visit(op)
        self._new_inputs.rewire()
        self._let_model_wait()

    def _let_model_wait(self) -> None:
        """Makes the ops that take the request wait for the check of its numbers of rows.

        Otherwise another op may fail first, with a message that names no user tensor.
        """
        checked = self.expansion.users.op
        before = ancestors([checked])
        if any(op.type == GET_NEXT for op in before):
            return  # Graph modification may move keys into a dataset; they must not wait then.
        for op in {op for tensor in self._request for op in tensor.consumers()} - before:
            if all(tensor.op is not checked for tensor in op.inputs):
                graphs.add_control_inputs(op, [checked])

    def value(self, tensor: tf.Tensor) -> Value:
        """What the pass knows about a tensor."""
        if tensor.name not in self._values:
            self._values[tensor.name] = values_lib.fixed(tensor)
        return self._values[tensor.name]

    def full(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor with a row per candidate, as the original model computes it.

        Raises:
          ValueError: The tensor is inside a region, which is declared row-wise.
        """
        if self.regions_of(tensor):
            raise ValueError(
                f"a compressed model must not return {tensor.name!r}, which is inside of the "
                "lookup of a feature; return the tensor under the feature's name"
            )
        return self._rows.of(self.value(tensor))

    def regions_of(self, tensor: tf.Tensor) -> List[Region]:
        """The declared regions around a tensor, if they run on one side as a whole."""
        regions = [] if tensor.name in self._given else self._regions.of(tensor.op)
        return regions if all(self._is_row_wise.get(region) for region in regions) else []

    def knows(self, tensor: tf.Tensor) -> bool:
        """Whether the pass has a value for a tensor."""
        return tensor.name in self._values

    def is_of_users(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor, which is outside of regions, has a row per user after the pass."""
        return self.knows(tensor) and self.value(tensor).side == Side.USER

    def occurrences(self, tensor: tf.Tensor) -> tf.Tensor:
        """int32 [n], how often the original model repeats each element of a user's tensor.

        Raises:
          ValueError: The elements are neither rows of users nor entries.
        """
        return self._rows.occurrences(tensor, self.value(tensor))

    def _is_inside(self, op: tf.Operation) -> bool:
        """Whether an op is in regions that run on one side as a whole."""
        regions = self._regions.of(op)
        for region in regions:
            if region not in self._is_row_wise:
                self._is_row_wise[region] = self._enter(region)
        return bool(regions) and all(self._is_row_wise[region] for region in regions)

    def _enter(self, region: Region) -> bool:
        """Adds the values of a region's outputs, if its inputs are all on one side."""
        values = [[self.value(part) for part in components(t)] for t in region.inputs]
        sides = {value.side for parts in values for value in parts} - {Side.FIXED}
        if len(sides) != 1:
            return False
        for parts in values:
            is_given = all(value.tensor.name in self._given for value in parts)
            first = parts[0]
            is_rows = len(parts) == 1 and isinstance(first, DenseValue) and first.dims is not None
            is_rows = is_rows and first.axis == 0 and first.per_row == ONE
            if not (is_rows or (is_given and len(parts) > 1)):
                return False
        (side,) = sides
        for tensor in region.outputs:
            dims = values_lib.rows_dims(tensor)
            self._values[tensor.name] = DenseValue(tensor, side, dims)
            self._given.add(tensor.name)
        return True

    def _visit(self, op: tf.Operation) -> None:
        """Puts an op on a side, and records why."""
        if self._is_inside(op):
            if Side.USER in {self.value(tensor).side for tensor in op.inputs}:
                self.records.append(OpRecord(op, True, None))
            return
        inputs = [self.value(tensor) for tensor in op.inputs]
        if all(value.side == Side.FIXED for value in inputs) or self._follows_shape(op, inputs):
            return
        made = None if graphs.in_control_flow(op) else entry_outputs(self.expansion, op, inputs)
        if made is not None:
            self.records.append(OpRecord(op, True, None))
            for index, value in enumerate(inputs):
                self._new_inputs.set_for_entries(op, index, value)
            for tensor, value in zip(op.outputs, made):
                self._learn(tensor, value)
            return
        reason = "takes tensors of candidates too"
        outs: Optional[List[Shape]] = None
        try:
            if op in self._stopped:
                raise CannotMove(f"is in control flow that {self._stopped[op]}")
            outs = output_shapes(op, inputs)
        except CannotMove as error:
            reason = str(error)
        rows = [value for value in inputs if value.axis is not None]
        decided = [value for value in rows if not self._new_inputs.is_made(value)]
        kinds = {value.entries for value in rows}
        is_of_users = len(kinds) == 1 and all(value.side == Side.USER for value in decided)
        if outs is not None and is_of_users:
            self._put_on_users_side(op, inputs, outs, kinds.pop())
            return
        if kinds - {None}:
            outs = None  # The number of the candidates' entries is not a known size.
        is_split = self._leave_with_candidates(op, inputs, outs)
        is_followed = len(op.outputs) == 1 and elements_in(self.value(op.outputs[0])) is not None
        if is_split or is_followed or not any(v.side == Side.USER for v in inputs):
            reason = ""
        share = self._linear_split.shares.get(op.name, 1.0)
        dims = outs[0] if outs else None
        self.records.append(OpRecord(op, False, dims, reason, share, is_split))
        if outs and not rows and has_rows(outs[0]):
            self._new_inputs.add_maker(op)

    def _visit_subgraph(self, subgraph: Subgraph) -> bool:
        """Moves a loop or branch of control flow v1 to the users' side, if all of it can move."""
        found: Dict[str, Value] = {}
        coming = list(subgraph.inputs())
        try:
            for _, _, tensor in coming:
                found[tensor.name] = control_flow.value_inside(self.value(tensor))
            rows = [self.value(t) for _, _, t in coming if found[t.name].axis is not None]
            decided = [value for value in rows if not self._new_inputs.is_made(value)]
            if not decided or any(value.side != Side.USER for value in decided):
                raise CannotMove("takes tensors of candidates too")
            control_flow.follow_subgraph(subgraph.ops, found)
            outs = [
                (t, control_flow.shape_outside(found[t.name], subgraph)) for t in subgraph.outputs()
            ]
        except CannotMove as error:
            self._stopped.update(dict.fromkeys(subgraph.ops, str(error)))
            return False
        for op, index, tensor in coming:
            self._new_inputs.set_for_users(op, index, self.value(tensor))
        for op in subgraph.ops:
            dims = found[op.outputs[0].name].dims if op.outputs else None
            if any(found[tensor.name].axis is not None for tensor in op.inputs):
                self.records.append(OpRecord(op, True, dims))
        for tensor, dims in outs:
            self._learn(tensor, value_of(tensor, Side.USER if has_rows(dims) else Side.ITEM, dims))
        return True

    def _leave_with_candidates(
        self, op: tf.Operation, inputs: Sequence[Value], outs: Optional[Sequence[Shape]]
    ) -> bool:
        """Connects an op to a row per candidate; returns whether the linear split replaces it."""
        is_split = False
        meets_candidates = outs is not None and op.type in BROADCASTING
        for index, value in enumerate(inputs):
            is_broadcast = meets_candidates and value.per_row == ONE
            self._new_inputs.set(op, index, self._rows.of(value, is_broadcast))
        for output, tensor in enumerate(op.outputs):
            dims: Shape = values_lib.static_dims(tensor, symbols=False)
            if outs is not None:
                dims = outs[output]
            elif all(v.axis is None and values_lib.is_known(v) for v in inputs):
                # Without rows, its sizes are the same for users and candidates.
                dims = values_lib.static_dims(tensor, symbols=True)
            value = value_of(tensor, Side.ITEM, dims)
            if len(op.outputs) == 1 and isinstance(value, DenseValue):
                value = dataclasses.replace(value, elements=elements_of(op, inputs))
                if outs is not None:
                    value = self._improve(op, inputs, value)
                    is_split = value.make is not None and op.type not in _MOVES_ONLY
            self._learn(tensor, value)
        return is_split

    def _improve(self, op: tf.Operation, inputs: Sequence[Value], value: DenseValue) -> DenseValue:
        """The value after the linear split. A replacement waits for what the op waits for."""
        value = self._linear_split.improve(op, inputs, value)
        # The replacement may skip an op that waits for an assertion. Then it must wait itself.
        waits = set(op.control_inputs)
        for known, tensor in zip(inputs, op.inputs):
            waits |= self._waits.get(tensor.name, set())
            if known.side == Side.FIXED:
                # TensorFlow attaches some waits to an op's constants, such as an axis.
                waits |= _awaited(tensor)
        if not waits:
            return value
        if value.form is not None:
            self._waits[op.outputs[0].name] = waits
        make = value.make
        if make is None:
            return value

        def make_and_wait() -> tf.Tensor:
            made = make()
            with tf.control_dependencies(sorted(waits, key=lambda awaited: awaited.name)):
                return tf.identity(made)

        return value.made_by(make_and_wait)

    def _put_on_users_side(
        self,
        op: tf.Operation,
        inputs: Sequence[Value],
        outs: Sequence[Shape],
        entries: Optional[Union[Entries, Distinct]],
    ) -> None:
        self.records.append(OpRecord(op, True, outs[0] if outs else None))
        for index, value in enumerate(inputs):
            self._new_inputs.set_for_users(op, index, value)
        for dims, tensor in zip(outs, op.outputs):
            is_user = dims is None or has_rows(dims)
            if is_user and entries is not None and not isinstance(dims, ListSizes):
                self._learn(tensor, EntryRows(tensor, dims, entries))
            else:
                self._learn(tensor, value_of(tensor, Side.USER if is_user else Side.ITEM, dims))

    def _learn(self, tensor: tf.Tensor, value: Value) -> None:
        if tensor.name not in self._given:
            self._values[tensor.name] = value

    def _follows_shape(self, op: tf.Operation, inputs: Sequence[Value]) -> bool:
        """Answers a Shape op from the shape of its input, so that the input is not repeated."""
        if op.type not in ("Shape", "ShapeN", "Size") or graphs.in_control_flow(op):
            return False
        if not all(isinstance(v, DenseValue) and values_lib.is_known(v) for v in inputs):
            return False
        for value, tensor in zip(inputs, op.outputs):
            dims, static = value.known_dims(), values_lib.static_dims(tensor, symbols=True)
            if op.type == "Size":
                count = sizes_lib.product(dims)
                if count is None:
                    return False
                dims = (count,)
            answer = DenseValue(tensor, Side.ITEM, static, dims)
            build = _evaluation(dims, self.expansion.items, static == (), tensor.dtype)
            self._learn(tensor, answer.made_by(build))
        return True


def _evaluation(
    sizes: Tuple[Size, ...], rows: tf.Tensor, is_scalar: bool, dtype: tf.DType
) -> Callable[[], tf.Tensor]:
    """Builds a shape, or a single size, with that number of rows."""
    if is_scalar:
        return lambda: sizes_lib.evaluate(sizes[0], rows, dtype)
    return lambda: sizes_lib.evaluate_all(sizes, rows, dtype)


def _awaited(tensor: tf.Tensor) -> Set[tf.Operation]:
    """The ops that a tensor waits for, or that the integers it is made of wait for."""
    found: Set[tf.Operation] = set()
    seen: Set[str] = set()
    stack = [tensor]
    while stack:
        made = stack.pop()
        found.update(made.op.control_inputs)
        if made.dtype.is_integer and made.name not in seen:
            seen.add(made.name)
            stack += made.op.inputs
    return found
