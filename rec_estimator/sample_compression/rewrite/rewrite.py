# SPDX-License-Identifier: Apache-2.0
"""The pass: walks from the users' and the items' tensors to what the model makes of them.

Each op gets a side. On that of users it runs on one row per user, as it is. On that of candidates
its inputs that come from users are replaced by their rows repeated. So every tensor either has a
row per user, or is what the model as written computes for each candidate.
"""

import collections
import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors
from rec_estimator.sample_compression.analysis import sizes as sizes_lib
from rec_estimator.sample_compression.analysis import values as values_lib
from rec_estimator.sample_compression.analysis.entries import Entries
from rec_estimator.sample_compression.analysis.shape_values import elements_of
from rec_estimator.sample_compression.analysis.sizes import ONE, ListSizes, Sizes
from rec_estimator.sample_compression.analysis.values import Side, Stop, Value
from rec_estimator.sample_compression.regions import Region, Regions
from rec_estimator.sample_compression.report.report import OpRecord
from rec_estimator.sample_compression.rewrite.expansion import Expansion, components, repeat_rows
from rec_estimator.sample_compression.rewrite.linear_split import Algebra
from rec_estimator.sample_compression.rewrite.stock_expansion import StockExpansion
from rec_estimator.sample_compression.rules import control_flow_v2 as bodies
from rec_estimator.sample_compression.rules.control_flow_v1 import Piece, find_pieces
from rec_estimator.sample_compression.rules.entry import entries_made, looked_up
from rec_estimator.sample_compression.rules.lists import LIST_RULES
from rec_estimator.sample_compression.rules.table import BROADCASTING, RULES, SHAPE_OPERANDS

# Ops that make rows of something without rows, again for the users: shape and data to tensor.
_MAKERS: Dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "BroadcastTo": lambda shape, data: tf.broadcast_to(data, shape),
    "Fill": lambda shape, data: tf.fill(shape, data),
    "Tile": lambda shape, data: tf.tile(data, shape),
}

# What algebra may do in another way without a part of the work moving to the users' rows.
_MOVES_ONLY = ("ConcatV2", "Reshape", "Transpose")


class Rewrite:
    """One run of the pass over a graph.

    Args:
      users: Dense, sparse and ragged tensors of B rows.
      items: Such of N rows.
      item_size: int32 [B] or [1].
      regions: Pieces that are declared row-wise.
      exact: Leaves the algebra out.
      stock_ops: Adds no op of ours.
    """

    def __init__(
        self,
        users: Sequence[Any],
        items: Sequence[Any],
        item_size: tf.Tensor,
        regions: Sequence[Region] = (),
        exact: bool = False,
        stock_ops: bool = False,
    ) -> None:
        # Before the pass adds ops of its own.
        self._request = [part for t in (*users, *items) for part in components(t)]
        self._order = _downstream(self._request)
        self._regions = Regions(regions)
        self._is_row_wise: Dict[Region, bool] = {}
        kind = StockExpansion if stock_ops else Expansion
        self.expansion = kind(users, items, item_size)
        self._algebra = Algebra(self.expansion, self._repeated, exact)
        self.records: List[OpRecord] = []
        self._values: Dict[str, Value] = {}
        self._full: Dict[Tuple[str, bool], tf.Tensor] = {}
        self._makers: Dict[str, tf.Operation] = {}
        self._stopped: Dict[tf.Operation, str] = {}  # Why a piece stays, by op.
        self._made: Dict[str, tf.Tensor] = {}
        self._waits: Dict[str, Set[tf.Operation]] = {}  # Of tensors that have a form, by name.
        self._inputs: List[Tuple[tf.Operation, int, tf.Tensor]] = []
        for user in users:
            self._seed(user)
        for item in items:
            parts = components(item)
            for part in parts:
                value = values_lib.opaque(part)
                if len(parts) == 1 and part.shape.rank:
                    value.dims = values_lib.rows_dims(part)
                self._values[part.name] = value

        # What the user says of a tensor holds, also where it is made of another one.
        self._given = set(self._values)

    def run(self) -> None:
        """Decides on every op, then rewires the graph."""
        for node in self._order:
            if not isinstance(node, Piece):
                self._visit(node)
            elif not self._visit_piece(node):
                for op in node.ops:
                    self._visit(op)
        for op, index, tensor in self._inputs:
            # An op's inputs have no public setter, and what a model_fn has built is there already.
            graphs.update_input(op, index, tensor)
        self._let_model_wait()

    def _let_model_wait(self) -> None:
        """Lets what takes a request wait until it is known that its tensors fit together.

        Otherwise another op may be first to fail on them, which says nothing of users and
        candidates.
        """
        checked = self.expansion.users.op
        before = ancestors([checked])
        if any(op.type == GET_NEXT for op in before):
            return  # Batches of a dataset: keys may move into it, and must wait for nothing then.
        for op in {op for tensor in self._request for op in tensor.consumers()} - before:
            if all(tensor.op is not checked for tensor in op.inputs):
                graphs.add_control_inputs(op, [checked])

    def _seed(self, user: Any) -> None:
        """What is known of a user tensor's components."""
        parts = components(user)
        found = [Value(part, Side.USER, values_lib.rows_dims(part)) for part in parts]
        if isinstance(user, tf.SparseTensor):
            entries = Entries.of_sparse(self.expansion, user.indices, is_sorted=False)
            indices, values, shape = found
            indices.repeat, values.entries = entries.repeat_indices, entries
            indices.entries = shape.entries = entries
            shape.repeat = entries.repeat_shape
            rank = shape.tensor.shape.num_elements()
            shape.elements = (sizes_lib.BATCH, *[None] * ((rank or 1) - 1))
        elif isinstance(user, tf.RaggedTensor) and user.ragged_rank == 1:
            entries = Entries.of_ragged(self.expansion, user.row_splits)
            values, splits = found
            values.entries = splits.entries = entries
            splits.repeat = entries.repeat_splits
        elif isinstance(user, tf.RaggedTensor):
            repeated = components(tf.gather(user, self.expansion.index))
            for value, full in zip(found, repeated):
                value.repeat = lambda _, full=full: full
        for value in found:
            self._values[value.tensor.name] = value

    def value(self, tensor: tf.Tensor) -> Value:
        """What is known of a tensor."""
        if tensor.name not in self._values:
            self._values[tensor.name] = values_lib.fixed(tensor)
        return self._values[tensor.name]

    def full(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor as the model as written computes it, a row per candidate.

        Raises:
          ValueError: It is inside of a piece that is declared row-wise.
        """
        if self.regions_of(tensor):
            raise ValueError(
                f"a compressed model must not give {tensor.name!r}, which is inside of the lookup "
                "of a feature; give what model_fn finds under the feature's name"
            )
        return self._repeated(self.value(tensor), is_broadcast=False)

    def regions_of(self, tensor: tf.Tensor) -> List[Region]:
        """The declared pieces that a tensor is inside of, if they run as a whole."""
        regions = [] if tensor.name in self._given else self._regions.of(tensor.op)
        return regions if all(self._is_row_wise.get(region) for region in regions) else []

    def knows(self, tensor: tf.Tensor) -> bool:
        """Whether the pass met a tensor."""
        return tensor.name in self._values

    def is_of_users(self, tensor: tf.Tensor) -> bool:
        """Whether the pass met a tensor, outside of pieces, and left it with a row per user."""
        return self.knows(tensor) and self.value(tensor).side == Side.USER

    def occurrences(self, tensor: tf.Tensor) -> tf.Tensor:
        """int32 [n], how often the model as written has each of the elements of a user's tensor."""
        count = tf.size(tensor)
        places = tf.reshape(tf.range(count), tf.shape(tensor))
        value = dataclasses.replace(self.value(tensor), tensor=places, make=None)
        repeated = tf.reshape(self._repeat(value, is_broadcast=False), [-1])
        return tf.math.unsorted_segment_sum(tf.ones_like(repeated), repeated, count)

    def _repeated(self, value: Value, is_broadcast: bool) -> tf.Tensor:
        if value.side != Side.USER:
            return value.computed()
        key = (value.computed().name, is_broadcast)
        if key not in self._full:
            self._full[key] = self._repeat(value, is_broadcast)
        return self._full[key]

    def _repeat(self, value: Value, is_broadcast: bool) -> tf.Tensor:
        if value.repeat is not None:
            return value.repeat(value.tensor)
        if isinstance(value.dims, ListSizes):
            return self._repeat_list(value)
        rows = self.expansion.users if value.entries is None else value.entries.count
        per_row = 1
        if value.per_row != ONE:
            per_row = sizes_lib.evaluate(value.per_row, rows)
        if value.entries is not None:
            return repeat_rows(value.tensor, value.axis, rows, per_row, value.entries.places)
        return self.expansion.repeat(value.tensor, value.axis, per_row, is_broadcast)

    def _repeat_list(self, value: Value) -> tf.Tensor:
        """A list of tensors with a row per candidate each."""
        known = [size.factor if sizes_lib.is_number(size) else -1 for size in value.dims]
        shape = tf.constant(known, tf.int32, shape=[len(known)])
        stacked = tf.raw_ops.TensorListStack(
            input_handle=value.tensor, element_shape=shape, element_dtype=value.dims.dtype
        )
        per_row = sizes_lib.evaluate(value.per_row, self.expansion.users)
        repeated = self.expansion.repeat(stacked, value.axis + 1, per_row)
        return tf.raw_ops.TensorListFromTensor(tensor=repeated, element_shape=shape)

    def _is_inside(self, op: tf.Operation) -> bool:
        """Whether an op belongs to regions only that are of users or of candidates as a whole."""
        regions = self._regions.of(op)
        for region in regions:
            if region not in self._is_row_wise:
                self._is_row_wise[region] = self._enter(region)
        return bool(regions) and all(self._is_row_wise[region] for region in regions)

    def _enter(self, region: Region) -> bool:
        """Learns a region's outputs from its inputs, if all are of one side."""
        values = [[self.value(part) for part in components(t)] for t in region.inputs]
        sides = {value.side for parts in values for value in parts} - {Side.FIXED}
        if len(sides) != 1:
            return False
        for parts in values:
            is_given = all(value.tensor.name in self._given for value in parts)
            first = parts[0]
            is_rows = len(parts) == 1 and first.entries is None and first.repeat is None
            is_rows = is_rows and first.dims is not None and first.dims[:1] == (sizes_lib.BATCH,)
            if not (is_rows or (is_given and len(parts) > 1)):
                return False
        (side,) = sides
        for tensor in region.outputs:
            self._values[tensor.name] = Value(tensor, side, values_lib.rows_dims(tensor))
            self._given.add(tensor.name)
        return True

    def _visit(self, op: tf.Operation) -> None:
        if self._is_inside(op):
            if Side.USER in {self.value(tensor).side for tensor in op.inputs}:
                self.records.append(OpRecord(op, True, None))
            return
        inputs = [self.value(tensor) for tensor in op.inputs]
        if all(value.side == Side.FIXED for value in inputs) or self._follows_shape(op, inputs):
            return
        if op.type == op_registry.TABLE_GROUP_LOOKUP and not graphs.in_control_flow(op):
            self._visit_lookup(op, inputs)
            return
        made = None if graphs.in_control_flow(op) else entries_made(self.expansion, op, inputs)
        if made is not None:
            self.records.append(OpRecord(op, True, None))
            for index, value in enumerate(inputs):
                tensor = value.computed()
                if value.side != Side.USER and _has_rows(value.elements):
                    tensor = self._shape_for_users(value)
                self._connect(op, index, tensor)
            for tensor, value in zip(op.outputs, made):
                self._learn(tensor, value)
            return
        reason, outs = "takes tensors of candidates too", None
        try:
            outs = self._apply_rule(op, inputs)
        except Stop as stop:
            reason = str(stop)
        rows = [value for value in inputs if value.axis is not None]
        decided = [value for value in rows if value.tensor.name not in self._makers]
        kinds = {value.entries for value in rows}
        is_of_users = len(kinds) == 1 and all(value.side == Side.USER for value in decided)
        if outs is not None and is_of_users:
            self._put_on_users_side(op, inputs, outs, kinds.pop())
            return
        if kinds - {None}:
            outs = None  # How many entries the candidates have is not followed.
        is_split = self._leave_with_candidates(op, inputs, outs)
        is_followed = len(op.outputs) == 1 and self.value(op.outputs[0]).elements is not None
        if is_split or is_followed or not any(v.side == Side.USER for v in inputs):
            reason = ""
        share = self._algebra.shares.get(op.name, 1.0)
        dims = outs[0] if outs else None
        self.records.append(OpRecord(op, False, dims, reason, share, is_split))
        if outs and not rows and _has_rows(outs[0]):
            self._makers[op.outputs[0].name] = op

    def _visit_piece(self, piece: Piece) -> bool:
        """Puts control flow of the older kind on the users' side, if all of it may be there."""
        found: Dict[str, Value] = {}
        coming = list(piece.inputs())
        try:
            for _, _, tensor in coming:
                found[tensor.name] = bodies.seeded(self.value(tensor))
            rows = [self.value(t) for _, _, t in coming if found[t.name].axis is not None]
            decided = [value for value in rows if value.tensor.name not in self._makers]
            if not decided or any(value.side != Side.USER for value in decided):
                raise Stop("takes tensors of candidates too")
            bodies.follow_loop(piece.ops, found)
            outs = [(t, bodies.leaving(found[t.name], piece)) for t in piece.outputs()]
        except Stop as stop:
            self._stopped.update(dict.fromkeys(piece.ops, str(stop)))
            return False
        for op, index, tensor in coming:
            self._connect_user(op, index, self.value(tensor))
        for op in piece.ops:
            dims = found[op.outputs[0].name].dims if op.outputs else None
            if any(found[tensor.name].axis is not None for tensor in op.inputs):
                self.records.append(OpRecord(op, True, dims))
        for tensor, dims in outs:
            self._learn(tensor, Value(tensor, Side.USER if _has_rows(dims) else Side.ITEM, dims))
        return True

    def _apply_rule(self, op: tf.Operation, inputs: Sequence[Value]) -> List[Sizes]:
        if op in self._stopped:
            raise Stop(f"is in control flow that {self._stopped[op]}")
        if graphs.in_control_flow(op):
            raise Stop("is inside of control flow")
        if op.type in bodies.CALLS:
            return bodies.call(op, inputs)
        is_of_lists = any(isinstance(value.dims, ListSizes) for value in inputs)
        if op.type in LIST_RULES and not any(_has_rows(value.elements) for value in inputs):
            return LIST_RULES[op.type](op, inputs)
        if op.type not in RULES or (is_of_lists and op.type != "Identity"):
            raise Stop("has no rule")
        if any(value.repeat is not None for value in inputs):
            raise Stop("takes apart a sparse or ragged tensor")
        has_entries = any(value.entries is not None for value in inputs)
        if has_entries and any(_has_rows(value.elements) for value in inputs):
            raise Stop("brings entries into a number of rows")
        return RULES[op.type](op, inputs)

    def _leave_with_candidates(
        self, op: tf.Operation, inputs: Sequence[Value], outs: Optional[Sequence[Sizes]]
    ) -> bool:
        """Connects an op to a row per candidate; returns whether algebra knows a better way."""
        is_split = False
        meets_candidates = outs is not None and op.type in BROADCASTING
        for index, value in enumerate(inputs):
            is_broadcast = meets_candidates and value.per_row == ONE
            self._connect(op, index, self._repeated(value, is_broadcast))
        for output, tensor in enumerate(op.outputs):
            value = values_lib.opaque(tensor)
            if outs is not None:
                value.dims = outs[output]
            elif all(v.axis is None and values_lib.is_known(v) for v in inputs):
                # Made of no rows: whatever its size is, it is the same for users and candidates.
                value.dims = values_lib.static_dims(tensor, symbols=True)
            if len(op.outputs) == 1:
                value.elements = elements_of(op, inputs)
                if outs is not None:
                    self._improve(op, inputs, value)
                    is_split = value.make is not None and op.type not in _MOVES_ONLY
            self._learn(tensor, value)
        return is_split

    def _improve(self, op: tf.Operation, inputs: Sequence[Value], value: Value) -> None:
        """Lets algebra know of an op; what it computes instead waits as the op does."""
        self._algebra.improve(op, inputs, value)
        # Taken apart past an op, a tensor waits for what that op waits for, as an assertion on it.
        waits = set(op.control_inputs)
        for known, tensor in zip(inputs, op.inputs):
            waits |= self._waits.get(tensor.name, set())
            if known.side == Side.FIXED:
                # TensorFlow lets an op's constant wait, such as an axis, and not the op itself.
                waits |= _awaited(tensor)
        if not waits:
            return
        if value.form is not None:
            self._waits[op.outputs[0].name] = waits
        if value.make is not None:
            make = value.make

            def make_and_wait() -> tf.Tensor:
                made = make()
                with tf.control_dependencies(sorted(waits, key=lambda awaited: awaited.name)):
                    return tf.identity(made)

            value.make = make_and_wait

    def _visit_lookup(self, op: tf.Operation, inputs: Sequence[Value]) -> None:
        outputs, of_users = looked_up(op, inputs)
        if of_users:
            self.records.append(OpRecord(op, True, None))
        elif any(value.side == Side.USER for value in inputs):
            self.records.append(OpRecord(op, False, None, "takes ids that are not followed"))
        for index, value in enumerate(inputs):
            tensor = self._repeated(value, is_broadcast=False)
            if index in of_users:
                tensor = value.computed()
                if value.side != Side.USER and _has_rows(value.elements):
                    tensor = self._shape_for_users(value)
            self._connect(op, index, tensor)
        for output, tensor in zip(outputs, op.outputs):
            if output is None:
                output = values_lib.opaque(tensor)
            self._learn(tensor, output)

    def _put_on_users_side(
        self,
        op: tf.Operation,
        inputs: Sequence[Value],
        outs: Sequence[Sizes],
        entries: Optional[Entries],
    ) -> None:
        self.records.append(OpRecord(op, True, outs[0] if outs else None))
        for index, value in enumerate(inputs):
            self._connect_user(op, index, value)
        for dims, tensor in zip(outs, op.outputs):
            if dims is None or _has_rows(dims):
                self._learn(tensor, Value(tensor, Side.USER, dims, entries=entries))
            else:
                self._learn(tensor, Value(tensor, Side.ITEM, dims))

    def _connect_user(self, op: tf.Operation, index: int, value: Value) -> None:
        """Connects an op on the users' side."""
        tensor = value.computed()
        if SHAPE_OPERANDS.get(op.type) == index and _has_rows(value.elements):
            tensor = self._shape_for_users(value)
        elif tensor.name in self._makers:
            tensor = self._made_for_users(self._makers[tensor.name])
        self._connect(op, index, tensor)

    def _connect(self, op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
        if tensor.name != op.inputs[index].name:
            self._inputs.append((op, index, tensor))

    def _learn(self, tensor: tf.Tensor, value: Value) -> None:
        if tensor.name not in self._given:
            self._values[tensor.name] = value

    def _shape_for_users(self, value: Value) -> tf.Tensor:
        rows = self.expansion.users
        if None not in value.elements:
            return sizes_lib.evaluate_all(value.elements, rows, value.tensor.dtype)
        # What is not followed is not read where this is asked for.
        rest = value.computed()[1:]
        return tf.concat([tf.cast(rows, rest.dtype)[tf.newaxis], rest], axis=0)

    def _made_for_users(self, op: tf.Operation) -> tf.Tensor:
        if op.name in self._made:
            return self._made[op.name]
        place = SHAPE_OPERANDS[op.type]
        shape, data = self.value(op.inputs[place]), self.value(op.inputs[1 - place])
        made = _MAKERS[op.type](self._shape_for_users(shape), data.computed())
        self._made[op.name] = made
        return made

    def _follows_shape(self, op: tf.Operation, inputs: Sequence[Value]) -> bool:
        """Answers a Shape op about the candidates without looking at the tensor."""
        if op.type not in ("Shape", "ShapeN", "Size") or graphs.in_control_flow(op):
            return False
        asked = [self.value(tensor) for tensor in op.inputs]
        if any(value.entries is not None or value.repeat is not None for value in asked):
            return False
        if any(value.dims is None or None in value.dims for value in asked):
            return False
        for value, tensor in zip(asked, op.outputs):
            static = values_lib.static_dims(tensor, symbols=True)
            answer = Value(tensor, Side.ITEM, static, value.dims)
            if op.type == "Size":
                answer.elements = (sizes_lib.product(value.dims),)
                if answer.elements == (None,):
                    return False
            answer.make = lambda a=answer, dtype=tensor.dtype: self._sizes(a, dtype)
            self._learn(tensor, answer)
        return True

    def _sizes(self, answer: Value, dtype: tf.DType) -> tf.Tensor:
        rows = self.expansion.items
        if not answer.dims:
            return sizes_lib.evaluate(answer.elements[0], rows, dtype)
        return sizes_lib.evaluate_all(answer.elements, rows, dtype)


def _awaited(tensor: tf.Tensor) -> Set[tf.Operation]:
    """What a tensor waits for, or the whole numbers that it is made of."""
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


def _has_rows(sizes: Sizes) -> bool:
    return sizes is not None and any(size is not None and size.is_batch for size in sizes)


def _downstream(tensors: Sequence[tf.Tensor]) -> List[Union[tf.Operation, Piece]]:
    """What depends on the tensors, ops and pieces, each after those it takes its inputs from."""
    found: Set[tf.Operation] = set()
    stack = [op for tensor in tensors for op in tensor.consumers()]
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack.extend(consumer for tensor in op.outputs for consumer in tensor.consumers())
    pieces = find_pieces(tensors[0].graph)
    given = {tensor.name for tensor in tensors}
    order, rest = _ordered(found, given, pieces)
    if rest:
        # Something between two halves of a piece: such are taken op by op.
        cut = {node for node in rest if isinstance(node, Piece)}
        pieces = {op: piece for op, piece in pieces.items() if piece not in cut}
        order, _ = _ordered(found, given, pieces)
    return order


def _ordered(
    ops: Set[tf.Operation], given: Set[str], pieces: Dict[tf.Operation, Piece]
) -> Tuple[List[Union[tf.Operation, Piece]], List[Union[tf.Operation, Piece]]]:
    """Ops and pieces in order, and those that wait for each other.

    The back edge of a tf.while_loop (v1) is left out: what is in the loop is of one side.
    """
    waits: Dict[Any, int] = {}
    consumers: Dict[Any, List[Any]] = collections.defaultdict(list)
    # The order of creation among those that are ready, so that two exports are alike.
    age: Dict[Any, int] = {}
    all_ops = next(iter(ops)).graph.get_operations() if ops else []
    for number, op in enumerate(all_ops):
        if op not in ops:
            continue
        node = pieces.get(op, op)
        age.setdefault(node, number)
        waits.setdefault(node, 0)
        for tensor in op.inputs:
            source = pieces.get(tensor.op, tensor.op)
            is_awaited = tensor.op in ops and tensor.name not in given and source is not node
            if is_awaited and tensor.op.type != "NextIteration":
                waits[node] += 1
                consumers[source].append(node)
    ready = collections.deque(sorted((n for n, count in waits.items() if not count), key=age.get))
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for consumer in consumers[node]:
            waits[consumer] -= 1
            if not waits[consumer]:
                ready.append(consumer)
    return order, [node for node, count in waits.items() if count]
