# SPDX-License-Identifier: Apache-2.0
"""Several training steps in one run of the session, including their input: iterations_per_loop.

One session.run costs some hundred microseconds in Python and TensorFlow, more than a step of a
small model. This module changes a complete training graph so that one run does N steps. The op
StepLoop does the first N - 1: it calls the step as a function. The ops of the graph do the last:

    hook feeds N - 1 ──▶ StepLoop ┄┄▶ IteratorGetNext ──▶ model ──▶ train_op
                            └ N - 1 times the same step, on the same tables, variables, iterator

All ops that read state wait for the loop, so a hook that fetches other tensors gets those of the
last step. A run without this feed, such as a hook's own session.run, does no additional step.

The results are those of N runs, bit for bit. The function has the same ops as the step. A random op
keeps its generator in its kernel; the op SharedKernel lets it share this kernel with its copy in
the function.
"""

from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

import tensorflow.compat.v1 as tf
from tensorflow.core.framework.function_pb2 import FunctionDef

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import (
    ancestors,
    called_functions,
    graph_def_of,
    has_batch_default,
)

# The most steps of a loop that the op StepLoop accepts.
MOST_ITERATIONS = 1_000_000

# Stateful ops without a resource that keep no state between steps.
_WITHOUT_STATE = ("Assert", "EagerPyFunc", "PrintV2", "Print", "PyFunc", "Timestamp")

# Ops that use a resource outside a step but read neither its value nor a batch. All other users of
# a resource wait for the loop.
_NO_READS = (
    "AssignVariableOp",
    "DestroyResourceOp",
    "IteratorGetNext",
    "IteratorToStringHandle",
    "IteratorToStringHandleV2",
    "MakeIterator",
    *op_registry.OUTSIDE_STEPS,
    "VarIsInitializedOp",
)


def check_iterations(iterations: int) -> int:
    """Checks and returns a number of steps per run.

    Args:
      iterations: The argument of the user.

    Raises:
      ValueError: iterations is not an integer in [1, 1000000].
    """
    is_int = isinstance(iterations, int) and not isinstance(iterations, bool)
    if not is_int or not 1 <= iterations <= MOST_ITERATIONS:
        raise ValueError(
            f"iterations_per_loop must be an integer in [1, {MOST_ITERATIONS}], got "
            f"{iterations!r}; 1 does one step per run"
        )
    return iterations


def check_steps(
    iterations: int, steps: Optional[int], max_steps: Optional[int], start_step: int
) -> None:
    """Checks that the number of steps to train is a multiple of ``iterations``.

    Args:
      iterations: Steps per loop.
      steps: Number of steps to train, or None.
      max_steps: Global step at which training ends, or None.
      start_step: Global step at which training starts.

    Raises:
      ValueError: The number of steps is not a multiple of iterations.
    """
    if steps is not None and steps > 0 and steps % iterations:
        raise ValueError(
            f"steps must be a multiple of iterations_per_loop={iterations}, got {steps}; train "
            f"{steps + iterations - steps % iterations}"
        )
    if max_steps is None:
        return
    left = max_steps - start_step
    if left > 0 and left % iterations:
        raise ValueError(
            f"max_steps - current step must be a multiple of iterations_per_loop={iterations}, got "
            f"{max_steps} - {start_step}; train to {max_steps - left % iterations + iterations}"
        )


class StepLoopHook(tf.train.SessionRunHook):
    """Makes each run of a training loop do several steps. It must be the last hook.

    RecEstimator adds it for ``RunConfig(iterations_per_loop=)``.

    Args:
      train_op: The op that does a step, or its output.
      iterations: Steps per run, above 1.

    Raises:
      ValueError: When training begins, if the step needs a fed placeholder, uses a variable that is
        not a resource, or draws random numbers inside control flow or a function.
    """

    def __init__(self, train_op: Union[tf.Operation, tf.Tensor], iterations: int) -> None:
        self._train_op = train_op.op if isinstance(train_op, tf.Tensor) else train_op
        self._iterations = iterations
        state_of(self._train_op.graph).steps_per_run = iterations

    def begin(self) -> None:
        """Adds the loop to the graph; called by TensorFlow when the graph is complete."""
        self._count = add_step_loop(self._train_op)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Feeds the number of additional steps; the run itself does one more."""
        del run_context
        return tf.train.SessionRunArgs(None, {self._count: self._iterations - 1})


def add_step_loop(train_op: tf.Operation) -> tf.Tensor:
    """Adds an op to the graph that does additional steps before the step of a run.

    Args:
      train_op: The op that does the step.

    Returns:
      int64 []. The number of additional steps per run; 0 unless it is fed.

    Raises:
      ValueError: As in StepLoopHook.
    """
    graph = train_op.graph
    step = _Step(train_op)
    step.check()
    with graph.as_default(), tf.name_scope(None), tf.control_dependencies(None):
        for op in step.generators():
            _share_kernel(op)
        step = _Step(train_op)
        with tf.device("/device:CPU:0"):
            count = tf.placeholder_with_default(tf.constant(0, tf.int64), [], "step_loop/count")
            loop = _ops.gen.rec_estimator_step_loop(
                count, step.captured, step=_as_function(step), name="step_loop/StepLoop"
            )
        for op in _waiting(step):
            graphs.add_control_inputs(op, [loop])
    return count


class _Step:
    """A training step: its ops, and the tensors from outside the step that it captures."""

    def __init__(self, train_op: tf.Operation) -> None:
        self.train_op = train_op
        self.captured: List[tf.Tensor] = []
        self.ops: Set[tf.Operation] = set()
        captured: Set[str] = set()
        stack = [train_op]
        while stack:
            op = stack.pop()
            if op in self.ops:
                continue
            self.ops.add(op)
            for tensor in op.inputs:
                if not _is_from_outside(tensor):
                    stack.append(tensor.op)
                elif tensor.name not in captured:
                    captured.add(tensor.name)
                    self.captured.append(tensor)
            stack += [before for before in op.control_inputs if not _gives_from_outside(before)]

    def check(self) -> None:
        """Refuses steps that a function cannot do exactly as the graph does them.

        Raises:
          ValueError: As in StepLoopHook.
        """
        # The ops that make the captured handles are checked too: each run executes them.
        for op in self.ops | ancestors(tensor.op for tensor in self.captured):
            if op.type == "Placeholder":
                raise ValueError(
                    "a step must need no feeding with iterations_per_loop, got placeholder "
                    f"{op.name!r}; take the value from the dataset or from "
                    "tf.placeholder_with_default"
                )
            if any(tensor.dtype != tensor.dtype.base_dtype for tensor in op.inputs):
                raise ValueError(
                    f"variables must be resources with iterations_per_loop, got a reference in "
                    f"{op.name!r} ({op.type}); call tf.enable_resource_variables() first, or give "
                    "use_resource=True"
                )
        for op, kind in self._with_hidden_generators():
            raise ValueError(
                f"random numbers must be drawn outside of control flow and functions with "
                f"iterations_per_loop, got {kind} in {op.name!r}; use tf.random.stateless_uniform "
                "or another stateless op, seeded by the global step"
            )

    def generators(self) -> List[tf.Operation]:
        """The ops that keep state in their kernels, such as random ops."""
        found = [
            op for op in self.ops if _keeps_state(op.type) and not called_functions(op.node_def)
        ]
        return sorted(found, key=lambda op: op.name)

    def _with_hidden_generators(self) -> Iterator[Tuple[tf.Operation, str]]:
        """(op, type of the random op) of each random op that SharedKernel cannot replace."""
        library: Dict[str, FunctionDef] = {}
        for op in self.ops:
            if called_functions(op.node_def) and not library:
                functions = self.train_op.graph.as_graph_def().library.function
                library = {function.signature.name: function for function in functions}
            if (
                _keeps_state(op.type)
                and not called_functions(op.node_def)
                and graphs.in_control_flow(op)
            ):
                yield op, op.type
            for node_type in _node_types(called_functions(op.node_def), library):
                if _keeps_state(node_type):
                    yield op, node_type


def _is_from_outside(tensor: tf.Tensor) -> bool:
    """Whether a step captures a tensor instead of computing it: resources and fed defaults."""
    op = tensor.op
    if op.type == "PlaceholderWithDefault":
        return not has_batch_default(op)
    # Functions and loops also return resources; such an op is part of the step.
    is_source = not op.inputs or op.type.startswith("IteratorFromStringHandle")
    return tensor.dtype == tf.resource and is_source and not graphs.in_control_flow(op)


def _gives_from_outside(op: tf.Operation) -> bool:
    return bool(op.outputs) and all(_is_from_outside(tensor) for tensor in op.outputs)


def _keeps_state(op_type: str) -> bool:
    return op_type not in _WITHOUT_STATE and graphs.has_kernel_state(op_type)


def _node_types(names: List[str], library: Dict[str, FunctionDef]) -> Set[str]:
    """The types of the ops in some functions, and in the functions that these call."""
    types, seen, stack = set(), set(), list(names)
    while stack:
        name = stack.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            called = [*called_functions(node), *([node.op] if node.op in library else [])]
            stack += called
            if not called:
                types.add(node.op)
    return types


def _share_kernel(op: tf.Operation) -> None:
    """Replaces an op by a SharedKernel op, whose copies share one kernel and its state."""
    node = tf.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    node.attr.pop("_class", None)
    with tf.control_dependencies(op.control_inputs), tf.device(op.device):
        outputs = _ops.gen.rec_estimator_shared_kernel(
            list(op.inputs),
            Toutputs=[tensor.dtype for tensor in op.outputs],
            node=node.SerializeToString(),
            shared_name=op.name,
            name=f"{op.name}/shared",
        )
    for tensor, shared in zip(op.outputs, outputs):
        shared.set_shape(tensor.shape)
        for consumer in tensor.consumers():
            for position, taken in enumerate(consumer.inputs):
                if taken is tensor:
                    graphs.update_input(consumer, position, shared)


def _as_function(step: _Step) -> Callable[..., tf.Tensor]:
    """Returns the step as a TensorFlow function of its captured tensors."""
    graph_def = graph_def_of(step.train_op.graph, step.ops)

    def run_step(*captured: tf.Tensor) -> tf.Tensor:
        inputs = {tensor.name: value for tensor, value in zip(step.captured, captured)}
        done = tf.import_graph_def(graph_def, inputs, [step.train_op.name], name="")
        with tf.control_dependencies(done):
            return tf.constant(True)

    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in step.captured]
    return tf.wrap_function(run_step, signature)


def _waiting(step: _Step) -> Set[tf.Operation]:
    """The ops that must wait for the loop."""
    # Ops inside control flow start after ops that wait; check() refused generators among them.
    waiting = {
        op
        for op in step.ops
        if graphs.is_stateful_op_type(op.type) and not graphs.in_control_flow(op)
    }
    for tensor in step.captured:
        takers = {op for op in tensor.consumers() if op in step.ops or op.type not in _NO_READS}
        waiting |= {op for op in takers if op.type != op_registry.STEP_LOOP}
    return waiting
