# SPDX-License-Identifier: Apache-2.0
"""Several training steps in one run of the session, input included: iterations_per_loop.

Step 5a of the data flow, around a finished training graph. A run of a session costs Python and
TensorFlow some hundred microseconds, more than the step of a small model. So of N steps, N - 1 are
done by one op, StepLoop, which calls the step as a function; the last one is the graph's own:

    hook feeds N - 1 ──▶ StepLoop ┄┄▶ IteratorGetNext ──▶ model ──▶ train_op
                            └ N - 1 times the same step, on the same tables, variables, iterator

What a hook fetches beside the train_op is of the last step, because all that reads state waits for
the loop. A run that nobody feeds, such as a hook's own, does no step more than it ever did. Numbers
are those of N runs, bit for bit: the function has the step's ops, and a random op, whose generator
is in its kernel, shares that kernel with its copy (SharedKernel).
"""

from typing import Any, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import (
    ancestors,
    called_functions,
    graph_def_of,
    has_batch_default,
)

# The most steps of a loop: what StepLoop takes.
MOST_ITERATIONS = 1_000_000

# Collection of the number of steps of a run, where it is not 1.
_STEPS_PER_RUN = "rec_estimator/steps_per_run"

# Stateful ops without a resource that keep nothing between steps.
_WITHOUT_STATE = ("Assert", "EagerPyFunc", "PrintV2", "Print", "PyFunc", "Timestamp")

# What takes a resource outside of a step and neither reads its value nor a batch; all else waits
# for the loop, too.
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


def check_iterations(iterations: Any) -> int:
    """Checks a number of steps for a run.

    Args:
      iterations: What the user gave.

    Returns:
      The number.

    Raises:
      ValueError: It is no integer in [1, 1000000].
    """
    is_int = isinstance(iterations, int) and not isinstance(iterations, bool)
    if not is_int or not 1 <= iterations <= MOST_ITERATIONS:
        raise ValueError(
            f"iterations_per_loop must be an integer in [1, {MOST_ITERATIONS}], got "
            f"{iterations!r}; 1 runs each step by itself"
        )
    return iterations


def check_steps(
    iterations: int, steps: Optional[int], max_steps: Optional[int], start_step: int
) -> None:
    """Refuses a number of steps to train that does not divide into whole loops.

    Args:
      iterations: Steps a loop.
      steps: Steps to train, if that is given.
      max_steps: Global step to train to, if that is given.
      start_step: The global step that training starts from.

    Raises:
      ValueError: As said.
    """
    if steps is not None and steps > 0 and steps % iterations:
        raise ValueError(
            f"steps must be a multiple of iterations_per_loop={iterations}, got {steps}; train "
            f"{steps + iterations - steps % iterations}"
        )
    left = 0 if max_steps is None else max_steps - start_step
    if left > 0 and left % iterations:
        raise ValueError(
            f"max_steps - current step must be a multiple of iterations_per_loop={iterations}, got "
            f"{max_steps} - {start_step}; train to {max_steps - left % iterations + iterations}"
        )


def steps_per_run(graph: tf.Graph) -> int:
    """How many training steps a run of a training graph does.

    Args:
      graph: Of a call of RecEstimator.train(), or any other.
    """
    return next(iter(graph.get_collection(_STEPS_PER_RUN)), 1)


class StepLoopHook(tf.train.SessionRunHook):
    """Makes each run of a training loop do several steps; the last hook of all.

    ``RunConfig(iterations_per_loop=)`` adds it.

    Args:
      train_op: What does a step: an op or its tensor.
      iterations: Steps a run, above 1.

    Raises:
      ValueError: When training begins: the step needs a fed placeholder, a variable that is no
        resource, or draws random numbers within control flow or a function.
    """

    def __init__(self, train_op: Any, iterations: int) -> None:
        self._train_op = train_op
        self._iterations = iterations
        self._train_op.graph.add_to_collection(_STEPS_PER_RUN, iterations)

    def begin(self) -> None:
        """Adds the loop to the graph; called by TensorFlow when it is complete."""
        train_op = self._train_op
        self._count = add_step_loop(train_op.op if isinstance(train_op, tf.Tensor) else train_op)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the steps before the one that the run does anyway."""
        del run_context
        return tf.train.SessionRunArgs(None, {self._count: self._iterations - 1})


def add_step_loop(train_op: tf.Operation) -> tf.Tensor:
    """Lets other steps run before the one of a graph.

    Args:
      train_op: What does the step.

    Returns:
      int64 [], 0 unless fed: how many steps a run of the session does before the step.

    Raises:
      ValueError: As of StepLoopHook.
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
    """A training step: its ops, and the tensors from outside that it is done with."""

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
        """Refuses what a function cannot do as the graph does it.

        Raises:
          ValueError: As of StepLoopHook.
        """
        # What makes a handle is run with every run of the session, fed or not.
        for op in self.ops | ancestors(tensor.op for tensor in self.captured):
            if op.type == "Placeholder":
                raise ValueError(
                    f"a step must need no feeding with iterations_per_loop, got placeholder "
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
        """Ops that remember something in their kernels."""
        found = [op for op in self.ops if _remembers(op.type) and not called_functions(op.node_def)]
        return sorted(found, key=lambda op: op.name)

    def _with_hidden_generators(self) -> Any:
        library: Dict[str, Any] = {}
        for op in self.ops:
            if called_functions(op.node_def) and not library:
                functions = self.train_op.graph.as_graph_def().library.function
                library = {function.signature.name: function for function in functions}
            if (
                _remembers(op.type)
                and not called_functions(op.node_def)
                and graphs.in_control_flow(op)
            ):
                yield op, op.type
            for node_type in _node_types(called_functions(op.node_def), library):
                if _remembers(node_type):
                    yield op, node_type


def _is_from_outside(tensor: tf.Tensor) -> bool:
    op = tensor.op
    if op.type == "PlaceholderWithDefault":
        return not has_batch_default(op)
    # Functions and loops hand resources on, too.
    is_source = not op.inputs or op.type.startswith("IteratorFromStringHandle")
    return tensor.dtype == tf.resource and is_source and not graphs.in_control_flow(op)


def _gives_from_outside(op: tf.Operation) -> bool:
    return bool(op.outputs) and all(_is_from_outside(tensor) for tensor in op.outputs)


def _remembers(op_type: str) -> bool:
    return op_type not in _WITHOUT_STATE and graphs.has_kernel_state(op_type)


def _node_types(names: List[str], library: Dict[str, Any]) -> Set[str]:
    """Types of the ops in functions and in those that they call."""
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
    """Puts an op in the place of another one whose copies go on where it left off."""
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


def _as_function(step: _Step) -> Any:
    graph_def = graph_def_of(step.train_op.graph, step.ops)

    def run_step(*captured: tf.Tensor) -> tf.Tensor:
        inputs = {tensor.name: value for tensor, value in zip(step.captured, captured)}
        done = tf.import_graph_def(graph_def, inputs, [step.train_op.name], name="")
        with tf.control_dependencies(done):
            return tf.constant(True)

    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in step.captured]
    return tf.wrap_function(run_step, signature)


def _waiting(step: _Step) -> Set[tf.Operation]:
    """The ops that must not start before the loop is done."""
    # Within control flow they start behind others; generators there were refused.
    waiting = {
        op
        for op in step.ops
        if graphs.is_stateful_op_type(op.type) and not graphs.in_control_flow(op)
    }
    for tensor in step.captured:
        takers = {op for op in tensor.consumers() if op in step.ops or op.type not in _NO_READS}
        waiting |= {op for op in takers if op.type != op_registry.STEP_LOOP}
    return waiting
