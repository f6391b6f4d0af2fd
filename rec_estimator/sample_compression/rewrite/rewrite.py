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
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.components import AnyTensor, components
from rec_estimator.sample_compression.analysis.entries import Distinct, Entries
from rec_estimator.sample_compression.analysis.shape_values import elements_of
from rec_estimator.sample_compression.analysis.sizes import ONE, ListSizes, Shape, Size, has_rows
from rec_estimator.sample_compression.analysis.values import (
    CannotMove,
    Component,
    DenseShape,
    DenseValue,
    EntryNumbers,
    EntryRows,
    Indices,
    ListValue,
    RowSplits,
    Side,
    SparseValue,
    Value,
    elements_in,
    value_of,
)
from rec_estimator.sample_compression.regions import Region, Regions
from rec_estimator.sample_compression.report.report import OpRecord
from rec_estimator.sample_compression.rewrite.expansion import (
    Expansion,
    RowExpansion,
    repeat_rows,
)
from rec_estimator.sample_compression.rewrite.linear_split import LinearSplit
from rec_estimator.sample_compression.rewrite.order import downstream
from rec_estimator.sample_compression.rewrite.stock_expansion import StockExpansion
from rec_estimator.sample_compression.rules import control_flow
from rec_estimator.sample_compression.rules.control_flow_v1 import Subgraph
from rec_estimator.sample_compression.rules.entry import entry_outputs
from rec_estimator.sample_compression.rules.lists import LIST_RULES
from rec_estimator.sample_compression.rules.op_rules import BROADCASTING, RULES, SHAPE_OPERANDS

# Ops that make rows from a shape and data, to make them for users.
_MAKERS: Dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "BroadcastTo": lambda shape, data: tf.broadcast_to(data, shape),
    "Fill": lambda shape, data: tf.fill(shape, data),
    "Tile": lambda shape, data: tf.tile(data, shape),
}

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
        self._linear_split = LinearSplit(self.expansion, self._repeated, exact)
        self.records: List[OpRecord] = []
        self._values: Dict[str, Value] = {}
        self._full: Dict[Tuple[str, bool], tf.Tensor] = {}  # Repeated rows, to repeat them once.
        self._makers: Dict[str, tf.Operation] = {}  # Ops that make rows from a shape, by output.
        self._made: Dict[str, tf.Tensor] = {}  # Their outputs with a row per user, by op.
        self._stopped: Dict[tf.Operation, str] = {}  # Why control flow stays, by op.
        self._waits: Dict[
            str, Set[tf.Operation]
        ] = {}  # The ops for which tensors with a form wait.
        self._inputs: List[Tuple[tf.Operation, int, tf.Tensor]] = []  # The new inputs of ops.
        for user in users:
            self._seed(user)
        for item in items:
            parts = components(item)
            for part in parts:
                value = values_lib.opaque(part)
                if len(parts) == 1 and part.shape.rank:
                    value = dataclasses.replace(value, dims=values_lib.rows_dims(part))
                self._values[part.name] = value

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
        for op, index, tensor in self._inputs:
            # The ops exist already, and TensorFlow has no public way to change their inputs.
            graphs.update_input(op, index, tensor)
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

    def _seed(self, user: AnyTensor) -> None:
        """Adds the values of a user tensor's components."""
        parts = components(user)
        dims = [values_lib.rows_dims(part) for part in parts]
        found: List[Value]
        if isinstance(user, tf.SparseTensor):
            indices, values, shape = parts
            entries = Entries.of_sparse(self.expansion, indices, is_sorted=False)
            rank = shape.shape.num_elements() or 1
            found = [
                Indices(indices, dims[0], entries),
                EntryRows(values, dims[1], entries),
                DenseShape(shape, dims[2], entries, (sizes_lib.BATCH, *[None] * (rank - 1))),
            ]
        elif isinstance(user, tf.RaggedTensor) and user.ragged_rank == 1:
            values, splits = parts
            entries = Entries.of_ragged(self.expansion, splits)
            found = [EntryRows(values, dims[0], entries), RowSplits(splits, dims[1], entries)]
        elif isinstance(user, tf.RaggedTensor):
            repeated = components(tf.gather(user, self.expansion.index))
            found = [
                Component(part, size, None, repeat=_always(full))
                for part, size, full in zip(parts, dims, repeated)
            ]
        else:
            found = [DenseValue(user, Side.USER, dims[0])]
        for value in found:
            self._values[value.tensor.name] = value

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
        return self._repeated(self.value(tensor), is_broadcast=False)

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
        count = tf.size(tensor)
        places = tf.reshape(tf.range(count), tf.shape(tensor))
        value = self.value(tensor)
        if not isinstance(value, (DenseValue, EntryRows)):
            raise ValueError(
                "keys of a lookup must be a dense tensor, or the values of a SparseTensor or of a "
                f"RaggedTensor with one ragged axis, got {tensor.name!r}; convert them"
            )
        numbers = dataclasses.replace(value, tensor=places, make=None)
        repeated = tf.reshape(self._repeat(numbers, is_broadcast=False), [-1])
        return tf.math.unsorted_segment_sum(tf.ones_like(repeated), repeated, count)

    def _repeated(self, value: Value, is_broadcast: bool) -> tf.Tensor:
        """The tensor with a row per candidate; is_broadcast: one row is enough for one user."""
        if value.side != Side.USER:
            return value.computed()
        key = (value.computed().name, is_broadcast)
        if key not in self._full:
            self._full[key] = self._repeat(value, is_broadcast)
        return self._full[key]

    def _repeat(self, value: Value, is_broadcast: bool) -> tf.Tensor:
        if isinstance(value, ListValue):
            return self._repeat_list(value)
        if isinstance(value, EntryNumbers):
            return value.repeated()
        axis, tensor = value.axis, value.computed()
        assert axis is not None
        rows = self.expansion.users if value.entries is None else value.entries.count
        per_row = 1 if value.per_row == ONE else sizes_lib.evaluate(value.per_row, rows)
        if value.entries is not None:
            return repeat_rows(tensor, axis, rows, per_row, value.entries.places)
        return self.expansion.repeat(tensor, axis, per_row, is_broadcast)

    def _repeat_list(self, value: ListValue) -> tf.Tensor:
        """A list of tensors that have a row per candidate each."""
        sizes, axis = value.dims.sizes, value.axis
        assert axis is not None
        known = [size.factor if sizes_lib.is_number(size) else -1 for size in sizes]
        shape = tf.constant(known, tf.int32, shape=[len(known)])
        stacked = tf.raw_ops.TensorListStack(
            input_handle=value.tensor, element_shape=shape, element_dtype=value.dims.dtype
        )
        per_row = sizes_lib.evaluate(value.per_row, self.expansion.users)
        repeated = self.expansion.repeat(stacked, axis + 1, per_row)
        return tf.raw_ops.TensorListFromTensor(tensor=repeated, element_shape=shape)

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
                self._connect(op, index, self._input_for_users(value))
            for tensor, value in zip(op.outputs, made):
                self._learn(tensor, value)
            return
        reason = "takes tensors of candidates too"
        outs: Optional[List[Shape]] = None
        try:
            outs = self._apply_rule(op, inputs)
        except CannotMove as error:
            reason = str(error)
        rows = [value for value in inputs if value.axis is not None]
        decided = [value for value in rows if value.tensor.name not in self._makers]
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
            self._makers[op.outputs[0].name] = op

    def _visit_subgraph(self, subgraph: Subgraph) -> bool:
        """Moves a loop or branch of control flow v1 to the users' side, if all of it can move."""
        found: Dict[str, Value] = {}
        coming = list(subgraph.inputs())
        try:
            for _, _, tensor in coming:
                found[tensor.name] = control_flow.value_inside(self.value(tensor))
            rows = [self.value(t) for _, _, t in coming if found[t.name].axis is not None]
            decided = [value for value in rows if value.tensor.name not in self._makers]
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
            self._connect_user(op, index, self.value(tensor))
        for op in subgraph.ops:
            dims = found[op.outputs[0].name].dims if op.outputs else None
            if any(found[tensor.name].axis is not None for tensor in op.inputs):
                self.records.append(OpRecord(op, True, dims))
        for tensor, dims in outs:
            self._learn(tensor, value_of(tensor, Side.USER if has_rows(dims) else Side.ITEM, dims))
        return True

    def _apply_rule(self, op: tf.Operation, inputs: Sequence[Value]) -> List[Shape]:
        """The shapes of the outputs, by the rule of the op type.

        Raises:
          CannotMove: The rule refuses the op, or there is no rule.
        """
        if op in self._stopped:
            raise CannotMove(f"is in control flow that {self._stopped[op]}")
        if graphs.in_control_flow(op):
            raise CannotMove("is inside of control flow")
        if op.type in control_flow.CALL_RULES:
            return control_flow.call_shapes(op, inputs)
        takes_lists = any(isinstance(value, ListValue) for value in inputs)
        counts_rows = any(has_rows(elements_in(value)) for value in inputs)
        if op.type in LIST_RULES and not counts_rows:
            return LIST_RULES[op.type](op, inputs)
        if op.type in (op_registry.TABLE_GROUP_LOOKUP, op_registry.COMBINE_WEIGHTED):
            raise CannotMove("takes ids, or weights of them, whose rows are not known")
        if op.type not in RULES or (takes_lists and op.type != "Identity"):
            raise CannotMove("has no rule")
        sparse = [value for value in inputs if isinstance(value, SparseValue)]
        if any(not isinstance(value, EntryRows) for value in sparse):
            raise CannotMove("takes a component of a sparse or ragged tensor")
        if sparse and counts_rows:
            raise CannotMove("reshapes entries by a number of rows")
        return RULES[op.type](op, inputs)

    def _leave_with_candidates(
        self, op: tf.Operation, inputs: Sequence[Value], outs: Optional[Sequence[Shape]]
    ) -> bool:
        """Connects an op to a row per candidate; returns whether the linear split replaces it."""
        is_split = False
        meets_candidates = outs is not None and op.type in BROADCASTING
        for index, value in enumerate(inputs):
            is_broadcast = meets_candidates and value.per_row == ONE
            self._connect(op, index, self._repeated(value, is_broadcast))
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
            self._connect_user(op, index, value)
        for dims, tensor in zip(outs, op.outputs):
            is_user = dims is None or has_rows(dims)
            if is_user and entries is not None and not isinstance(dims, ListSizes):
                self._learn(tensor, EntryRows(tensor, dims, entries))
            else:
                self._learn(tensor, value_of(tensor, Side.USER if is_user else Side.ITEM, dims))

    def _connect_user(self, op: tf.Operation, index: int, value: Value) -> None:
        """Connects an op on the users' side."""
        tensor = value.computed()
        elements = elements_in(value)
        if SHAPE_OPERANDS.get(op.type) == index and elements is not None and has_rows(elements):
            tensor = self._shape_for_users(value, elements)
        elif tensor.name in self._makers:
            tensor = self._made_for_users(self._makers[tensor.name])
        self._connect(op, index, tensor)

    def _connect(self, op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
        """Notes a new input of an op; run() sets it."""
        if tensor.name != op.inputs[index].name:
            self._inputs.append((op, index, tensor))

    def _learn(self, tensor: tf.Tensor, value: Value) -> None:
        if tensor.name not in self._given:
            self._values[tensor.name] = value

    def _input_for_users(self, value: Value) -> tf.Tensor:
        """The tensor of a value for an op on the users' side."""
        elements = elements_in(value)
        if value.side != Side.USER and elements is not None and has_rows(elements):
            return self._shape_for_users(value, elements)
        return value.computed()

    def _shape_for_users(self, value: Value, elements: Sequence[Optional[Size]]) -> tf.Tensor:
        """A vector of sizes as it is with B rows."""
        rows = self.expansion.users
        known = [size for size in elements if size is not None]
        if len(known) == len(elements):
            return sizes_lib.evaluate_all(known, rows, value.tensor.dtype)
        # Ops that take this shape do not read its unknown elements.
        rest = value.computed()[1:]
        return tf.concat([tf.cast(rows, rest.dtype)[tf.newaxis], rest], axis=0)

    def _made_for_users(self, op: tf.Operation) -> tf.Tensor:
        """The output of an op that makes rows from a shape, with a row per user."""
        if op.name in self._made:
            return self._made[op.name]
        place = SHAPE_OPERANDS[op.type]
        shape, data = self.value(op.inputs[place]), self.value(op.inputs[1 - place])
        target = self._shape_for_users(shape, elements_in(shape) or ())
        made = _MAKERS[op.type](target, data.computed())
        self._made[op.name] = made
        return made

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
            self._learn(tensor, answer.made_by(self._evaluation(dims, static == (), tensor.dtype)))
        return True

    def _evaluation(
        self, sizes: Tuple[Size, ...], is_scalar: bool, dtype: tf.DType
    ) -> Callable[[], tf.Tensor]:
        """Builds a shape, or a single size, with N rows."""
        rows = self.expansion.items
        if is_scalar:
            return lambda: sizes_lib.evaluate(sizes[0], rows, dtype)
        return lambda: sizes_lib.evaluate_all(sizes, rows, dtype)


def _always(tensor: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tensor


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
