# SPDX-License-Identifier: Apache-2.0
"""Finds the ops that graph modification moves: those between a batch and the keys of its lookups.

A key path is every op from which the keys of a lookup are computed, up to the IteratorGetNext of
their batch. It may run ahead of the step if it depends on the batch alone. All other key paths are
refused here, before the graph is changed. The next step is iterator_swap.py.
"""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.graph_modifier.bring_in import TableRead, reads_of
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import GET_NEXT, ancestors, called_functions, has_batch_default
from rec_estimator.table.table import graph_tables

_ENTERS = ("Enter", "RefEnter")
_EXITS = ("Exit", "RefExit")
_MERGES = ("Merge", "RefMerge")
_NEXT_ITERATIONS = ("NextIteration", "RefNextIteration")
PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_SWITCHES = ("RefSwitch", "Switch")
# Ops that make a tf.TensorArray, and ops that return the one that they take.
_MAKE_ARRAYS = ("TensorArrayScatterV3", "TensorArraySplitV3", "TensorArrayV3", "TensorArrayWriteV3")
_PASS_ON = ("Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch")
_VARIABLES = ("ReadVariableOp", "ResourceGather", "VarHandleOp", "Variable", "VariableV2")

_WAY_OUT = (
    "compute the ids in the dataset (dataset.map), or leave the graph as it is: no "
    "modify_graph_and_start_emb_cache(), GraphModifierHook(modify_graph=False)"
)


# The functions of a graph by name: FunctionDef messages, which TensorFlow does not export.
_Functions = Dict[str, Any]


class KeyPath(NamedTuple):
    """The keys of one lookup: the only input of graph modification."""

    lookup: str  # The name of the lookup, for messages.
    keys: Tuple[tf.Tensor, ...]  # All inputs of the lookup op but the table.
    is_training: bool  # Whether get_initializer(True), and not (False), starts its data.
    reads: Tuple[TableRead, ...] = ()  # The rows on disk that training reads.


class Cut(NamedTuple):
    """The ops behind one IteratorGetNext that move into its dataset."""

    get_next: tf.Operation
    ops: List[tf.Operation]  # In the order of creation, including constants and assertions.
    outputs: List[tf.Tensor]  # The outputs of `ops` that other ops take.
    is_training: bool
    reads: List[TableRead]

    @property
    def has_loop(self) -> bool:
        """Whether `ops` contain a tf.while_loop of control flow v1."""
        return any(op.type in _ENTERS for op in self.ops)


def find_key_paths(graph: tf.Graph) -> List[KeyPath]:
    """Finds the key paths of all lookups of a graph.

    A lookup trains if it was built for training, or if its batch updates a table.

    Args:
      graph: Any graph.

    Returns:
      One key path for each lookup op.

    Raises:
      ValueError: A lookup is inside tf.cond, tf.while_loop or tf.function.
    """
    lookups, applies = [], []
    for op in graph.get_operations():
        if op.type in op_registry.LOOKUPS:
            lookups.append(op)
        elif op.type in op_registry.UPDATES:
            applies.append(op)
    trained = ancestors(applies)
    built_for_training = {
        lookup.op
        for table in graph_tables(graph)
        for shard in table
        for lookup in shard.lookups
        if lookup.is_training
    }
    for op in [op for op in lookups if graphs.in_control_flow(op)] + _calls_with_lookup(graph):
        raise ValueError(
            "a lookup must be outside tf.cond, tf.while_loop and tf.function to have its keys "
            f"moved, got {op.name!r}; look the keys up outside, or leave the graph as it is: "
            "GraphModifierHook(modify_graph=False)"
        )
    paths = []
    for op in lookups:
        keys = tuple(tensor for tensor in op.inputs if tensor.dtype != tf.resource)
        sources = {step.op for step in _upstream(keys) if step.op.type == GET_NEXT}
        is_training = op in built_for_training or bool(sources & trained)
        reads = tuple(reads_of(op)) if is_training else ()
        paths.append(KeyPath(op.name, keys, is_training, reads))
    return paths


def find_cuts(key_paths: Sequence[KeyPath]) -> List[Cut]:
    """Finds the ops to move so that the keys are computed ahead of their step.

    Args:
      key_paths: Key paths of one graph.

    Returns:
      One cut for each IteratorGetNext. Keys that depend on neither a batch nor state stay in place.

    Raises:
      ValueError: Keys depend on a variable, a placeholder, other state, or two iterators.
    """
    if not key_paths:
        return []
    functions = _functions(key_paths[0].keys[0].graph)
    members: Dict[tf.Operation, Set[tf.Operation]] = {}
    is_training: Dict[tf.Operation, bool] = {}
    reads: Dict[tf.Operation, List[TableRead]] = {}
    for path in key_paths:
        get_next, ops = _check(path, functions)
        if get_next is not None:
            members.setdefault(get_next, set()).update(ops)
            is_training[get_next] = is_training.get(get_next, False) or path.is_training
            reads.setdefault(get_next, []).extend(path.reads)
    cuts = []
    for get_next, path_ops in members.items():
        ordered = [op for op in get_next.graph.get_operations() if op in path_ops]
        outputs = _outputs(get_next, path_ops, ordered)
        # Without outputs the keys are entries of the batch: there is nothing to move.
        ops = ordered if outputs else []
        cuts.append(Cut(get_next, ops, outputs, is_training[get_next], reads[get_next]))
    return cuts


class _Step(NamedTuple):
    """An op of a key path."""

    op: tf.Operation
    waiting: Optional[tf.Operation] = None  # The op that waits for it by a control dependency.


def _upstream(keys: Iterable[tf.Tensor]) -> Iterator[_Step]:
    """All ops that keys depend on, up to and including IteratorGetNext."""
    seen: Set[tf.Operation] = set()
    stack = [_Step(tensor.op) for tensor in keys]
    while stack:
        step = stack.pop()
        if step.op in seen:
            continue
        seen.add(step.op)
        yield step
        if step.op.type != GET_NEXT:
            stack.extend(_Step(tensor.op) for tensor in step.op.inputs)
            stack.extend(_Step(op, waiting=step.op) for op in step.op.control_inputs)


def _check(
    path: KeyPath, functions: _Functions
) -> Tuple[Optional[tf.Operation], List[tf.Operation]]:
    """Checks a key path; returns its IteratorGetNext, None for constants, and its other ops."""
    get_next: Optional[tf.Operation] = None
    ops = []
    for step in _upstream(path.keys):
        if step.op.type != GET_NEXT:
            _refuse_state(path, step, functions)
            ops.append(step.op)
        elif get_next is None:
            get_next = step.op
        else:
            raise ValueError(
                f"keys of lookup {path.lookup!r} must come from one iterator, got those of "
                f"{get_next.name!r} and {step.op.name!r}; zip the datasets with tf.data.Dataset.zip"
            )
    return get_next, ops


def _refuse_state(path: KeyPath, step: _Step, functions: _Functions) -> None:
    reason = _state_of(step.op, functions)
    if reason is None:
        return
    where = "on their path"
    if step.waiting is not None:
        where = f"which {step.waiting.name!r} waits for by a control dependency"
    raise ValueError(
        f"keys of lookup {path.lookup!r} must be computed from the batch alone to be moved ahead "
        f"of the step, got {step.op.name!r} ({step.op.type}), {where}, which {reason}; {_WAY_OUT}"
    )


def _state_of(op: tf.Operation, functions: _Functions) -> Optional[str]:
    """Why an op is not a function of the batch alone, for the message. None: it is."""
    if op.type in PLACEHOLDERS and not has_batch_default(op):
        return "is fed while a step runs"
    if op.type in _VARIABLES:
        return "reads a variable"
    if op.op_def.is_stateful and not (_is_of_array(op) or _only_asserts(op, functions)):
        return "has state or side effects"
    return None


def _is_of_array(op: tf.Operation) -> bool:
    """Whether an op uses a tf.TensorArray of control flow v1, whose contents last one step."""
    return op.type.startswith("TensorArray") and not op.type.startswith("TensorArrayGrad")


def _only_asserts(op: tf.Operation, functions: _Functions) -> bool:
    """Whether a failing assertion is the only side effect of an op."""
    if op.type == "Assert":
        return True
    called = called_functions(op.node_def)
    return bool(called) and all(
        node.op == "Assert"
        or (node.op not in PLACEHOLDERS and not graphs.is_stateful_op_type(node.op))
        for name in called
        for node in functions[name].node_def
    )


def _functions(graph: tf.Graph) -> _Functions:
    return {body.signature.name: body for body in graph.as_graph_def().library.function}


def _calls_with_lookup(graph: tf.Graph) -> List[tf.Operation]:
    """The ops that call a function with a lookup in it."""
    handles = [shard.handle for table in graph_tables(graph) for shard in table]
    callers = [
        op for handle in handles for op in handle.consumers() if called_functions(op.node_def)
    ]
    functions = _functions(graph) if callers else {}

    def looks_up(node: tf.NodeDef) -> bool:
        bodies = [functions[name] for name in called_functions(node) if name in functions]
        return node.op in op_registry.LOOKUPS or any(
            looks_up(inner) for body in bodies for inner in body.node_def
        )

    return [op for op in callers if looks_up(op.node_def)]


def _outputs(
    get_next: tf.Operation, ops: Set[tf.Operation], ordered: Sequence[tf.Operation]
) -> List[tf.Tensor]:
    """The tensors that other ops take from those of `ops` that depend on the batch."""
    # A step runs only one branch of a tf.cond, and the body of a tf.while_loop any number of times,
    # so the dataset cannot return their tensors, nor can it return a tf.TensorArray. Ops outside
    # that take one still get it from the old op, which stays in the graph.
    depths = _nesting(ordered)
    returnable = {op for op in _descendants(get_next, ops) if depths[op] == 0}
    arrays = _arrays(ordered)
    return [
        tensor
        for op in ordered
        if op in returnable
        for tensor in op.outputs
        if tensor.name not in arrays and any(consumer not in ops for consumer in tensor.consumers())
    ]


def _descendants(get_next: tf.Operation, ops: Set[tf.Operation]) -> Set[tf.Operation]:
    """Those of `ops` that depend on an output of `get_next`."""
    found: Set[tf.Operation] = set()
    stack = [get_next]
    while stack:
        for tensor in stack.pop().outputs:
            for consumer in tensor.consumers():
                if consumer in ops and consumer not in found:
                    found.add(consumer)
                    stack.append(consumer)
    return found


def _nesting(ops: Sequence[tf.Operation]) -> Dict[tf.Operation, int]:
    """In how many branches and loops of control flow v1 each op is. Merge and Exit are outside."""
    depths = dict.fromkeys(ops, 0)
    is_settled = False
    while not is_settled:
        is_settled = True
        for op in ops:
            before = [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
            depth = max((depths.get(source, 0) for source in before), default=0) + _step_into(op)
            # The bound ends the search in graphs that no tf.cond or tf.while_loop builds.
            depth = min(max(depth, 0), len(ops))
            if depth != depths[op]:
                depths[op], is_settled = depth, False
    return depths


def _step_into(op: tf.Operation) -> int:
    """How many more branches and loops the outputs of an op are in than its inputs."""
    sources = [tensor.op.type for tensor in op.inputs]
    if op.type in _ENTERS or (op.type in _SWITCHES and "LoopCond" not in sources):
        return 1
    is_of_loop = any(source in _NEXT_ITERATIONS for source in sources)
    return -1 if op.type in _EXITS or (op.type in _MERGES and not is_of_loop) else 0


def _arrays(ops: Sequence[tf.Operation]) -> Set[str]:
    """The names of tensors that stand for a tf.TensorArray of control flow v1."""
    found: Set[str] = set()
    size = -1
    while len(found) > size:
        size = len(found)
        for op in ops:
            is_array = op.type in _MAKE_ARRAYS or (
                op.type in _PASS_ON and any(tensor.name in found for tensor in op.inputs)
            )
            if is_array:
                found.update(tensor.name for tensor in op.outputs)
    return found
