# SPDX-License-Identifier: Apache-2.0
"""What every optimizer needs to train tables: gradients, slots and the apply op.

A rule is a class of its own on top of TableUpdates and TensorFlow's optimizer of that name. It adds
three things: the rule's name in ops/core/math/row_update.h, its slots, its hyperparameters.

TensorFlow's optimizer does the work: each shard is shown to it as a resource variable whose sparse
update is ours. So gating, name scopes, the step's order and the global step's increment are
TensorFlow's, with tables as without.
"""

import abc
import math
import numbers
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._argument_checks import refuse_unsupported
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression import training
from rec_estimator.table.lookup import check_no_lookup_in_control_flow
from rec_estimator.table.registration import refuse_eager_mode
from rec_estimator.table.shard import LookupRecord, SlotSpec, TableShard
from rec_estimator.table.table import NO_GLOBAL_STEP, EmbeddingTable, graph_step, graph_tables

# A number, or what TensorFlow's optimizers take for one.
Hyperparameter = Union[float, tf.Tensor, Callable[[], Any]]

# What a user may give as a variable, and pair a gradient with.
Variable = Union[tf.Variable, EmbeddingTable, TableShard]
GradientAndVariable = Tuple[Optional[Union[tf.Tensor, tf.IndexedSlices]], Variable]


def check_hyperparameter(
    name: str,
    value: Any,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Refuses a number out of range; tensors and callables are known in a step only.

    Raises:
      ValueError: value is a number, but not a finite one within the bounds; a text or a list; or
        of Keras.
    """
    refuse_unsupported(name, value, "use tf.compat.v1.train.exponential_decay and its like")
    if isinstance(value, (str, bytes, list, tuple, dict)):
        raise ValueError(f"{name} must be a number, a tensor or a function, got {value!r}")
    if not isinstance(value, numbers.Real):
        return
    if math.isfinite(value) and at_least <= value <= at_most and above < value < below:
        return
    bounds = {">=": at_least, ">": above, "<=": at_most, "<": below}
    rule = " and ".join(
        f"{sign} {bound:g}" for sign, bound in bounds.items() if math.isfinite(bound)
    )
    raise ValueError(f"{name} must be finite and {rule}, got {value}")


class TableSlot(NamedTuple):
    """A slot of a rule, before it is known which table carries it.

    Attributes:
      scope: The name it is scoped by, as in TensorFlow; the second of a name becomes ``<name>_1``.
      initial: What the slot of a new row starts from.
      width: Floats per row; None: the table's dim.
    """

    scope: str
    initial: float
    width: Optional[int] = None


class TableUpdates(abc.ABC):
    """Teaches the ``tf.compat.v1.train.Optimizer`` that it is mixed into to train tables."""

    # RecEstimator(table_optimizer=) takes what has this.
    updates_tables = True

    # Name of the rule in ops/core/math/row_update.h.
    table_rule: str

    # Whether a factory of Rec SDK was asked for its fused rule, which has no padding_keys there.
    is_fused = False

    # What the next _prepare needs: the step that rows are stamped with; None: nothing to stamp.
    _stamp: Optional[Any] = None
    _version: Optional[tf.Tensor] = None

    # What the loss of the last compute_gradients() depends on; None: not known.
    _step_ops: Optional[Set[tf.Operation]] = None

    def table_slots(self) -> Sequence[TableSlot]:
        """The rule's slots, in its order."""
        return ()

    @abc.abstractmethod
    def table_hyperparameters(self, variable: Any) -> Sequence[Any]:
        """The rule's hyperparameters in its order, scalars; called after ``_prepare()``.

        Args:
          variable: What is updated, as ``get_slot()`` takes it.
        """

    def compute_gradients(
        self,
        loss: tf.Tensor,
        var_list: Optional[Any] = None,
        gate_gradients: int = tf.train.Optimizer.GATE_OP,
        aggregation_method: Optional[int] = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Optional[tf.Tensor] = None,
    ) -> List[GradientAndVariable]:
        """Computes the gradients of loss, as TensorFlow's method does, also for tables.

        Args:
          loss: float32, as TensorFlow's.
          var_list: Variables, tables and shards. None: the graph's trainable variables and its
            trainable tables.
          gate_gradients: As TensorFlow's.
          aggregation_method: As TensorFlow's.
          colocate_gradients_with_ops: As TensorFlow's.
          grad_loss: As TensorFlow's.

        Returns:
          Pairs of gradient and variable. A table of one shard is in one pair, a partitioned table
          in one per shard; its gradient is tf.IndexedSlices (values [n, dim], keys int64 [n]) or
          None.

        Raises:
          ValueError: Eager mode; or a lookup of a table inside tf.cond or tf.while_loop.
        """
        refuse_eager_mode(f"{type(self).__name__}.minimize")
        if var_list is None:
            var_list = [
                *tf.trainable_variables(),
                *tf.get_collection(tf.GraphKeys.TRAINABLE_RESOURCE_VARIABLES),
                *(table for table in graph_tables() if table.trainable),
            ]
        variables: List[Any] = []
        for variable in tf.nest.flatten(var_list):
            if isinstance(variable, EmbeddingTable) and len(variable.shards) > 1:
                variables.extend(_ShardVariable(shard, shard) for shard in variable.shards)
            elif isinstance(variable, (EmbeddingTable, TableShard)):
                variables.append(_ShardVariable(_shards(variable)[0], variable))
            else:
                variables.append(variable)
        check_no_lookup_in_control_flow(
            loss, [v.shard for v in variables if isinstance(v, _ShardVariable)]
        )
        # Lookups outside of these are no training lookups.
        self._step_ops = ancestors([loss.op]) if isinstance(loss, tf.Tensor) else None
        with training.gradients_of(loss, grad_loss) as (loss, grad_loss):
            pairs = super().compute_gradients(
                loss,
                var_list=variables,
                gate_gradients=gate_gradients,
                aggregation_method=aggregation_method,
                colocate_gradients_with_ops=colocate_gradients_with_ops,
                grad_loss=grad_loss,
            )
        training.note_gradients(gradient for gradient, _ in pairs)
        return [
            (gradient, variable.given if isinstance(variable, _ShardVariable) else variable)
            for gradient, variable in pairs
        ]

    @training.own_ops()
    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
        skip_gradients_aggregation: bool = False,
    ) -> tf.Operation:
        """Applies gradients, as TensorFlow's method does, also to tables.

        Rows are stamped with the global step as it is before its increment: of global_step, else
        the graph's, else -1. A table without gradient whose rows the graph looks up is counted and
        its new keys are inserted.

        Args:
          grads_and_vars: As compute_gradients() returns them. Or, as scripts for Rec SDK's dynamic
            expansion have it, gradients of the collection ASCEND_SPARSE_LOOKUP_LOCAL_EMB with the
            members of ASCEND_SPARSE_LOOKUP_ID_OFFSET, which trains the tables as their own
            gradients do.
          global_step: Incremented after all updates.
          name: Of the returned op.
          skip_gradients_aggregation: As TensorFlow's.

        Returns:
          The op that does the step.

        Raises:
          TypeError: The gradient of a table is not tf.IndexedSlices.
          RuntimeError: A table with padding_keys gets no gradient, or one of a fused rule.
          ValueError: A second update of a table in this graph, one gradient for several shards, or
            a table that evicts by the global step where there is none; in compressed training,
            a norm of gradients with a slice per user.
        """
        training.check_gradients()
        pairs = list(self._shown_to_tensorflow(_with_tables(grads_and_vars)))
        tables = [v.shard.table for _, v in pairs if isinstance(v, _ShardVariable)]
        for table in tables:
            if table.padding_keys and self.is_fused:
                raise RuntimeError(
                    f"use_fusion_optim must be False for table {table.name!r}, which has "
                    "padding_keys, got True; leave one out"
                )
        if tables:
            stamp = graph_step(tables) if global_step is None else global_step
            self._stamp = NO_GLOBAL_STEP if stamp is None else stamp
        try:
            # Either all tables have room for the step, or nothing of it is applied.
            with tf.control_dependencies(_check_room(pairs)):
                train_op = super().apply_gradients(
                    pairs,
                    global_step=global_step,
                    name=name,
                    skip_gradients_aggregation=skip_gradients_aggregation,
                )
        finally:
            self._stamp = self._version = None
        for _, variable in pairs:
            if isinstance(variable, _ShardVariable):
                variable.shard.mark_updated(self.get_name())
        return train_op

    def _shown_to_tensorflow(
        self, grads_and_vars: Iterable[GradientAndVariable]
    ) -> Iterable[Tuple[Any, Any]]:
        """The pairs, with shards as variables and nothing for TensorFlow to leave out."""
        warned = set()
        for gradient, variable in grads_and_vars:
            if not isinstance(variable, (EmbeddingTable, TableShard)):
                yield gradient, variable
                continue
            shards = _shards(variable)
            if gradient is not None:
                _check_gradient(gradient, variable)
                counted = shards[0].counted_keys(gradient)
                repeated = training.repeated_keys(gradient.indices)
                yield gradient, _ShardVariable(shards[0], variable, counted, repeated)
                continue
            for shard in shards:
                if shard.table.padding_keys:
                    raise RuntimeError(
                        f"table {shard.table.name!r}, which has padding_keys, must get a gradient "
                        "in training, got none; leave them out, or look up with is_grad=True"
                    )
                counted = shard.counted_keys(None, self._step_ops)
                if not counted:
                    continue
                if shard.table.name not in warned:
                    warned.add(shard.table.name)
                    tf.logging.warning(
                        "Table %r gets no gradient in this step: the keys looked up so far are "
                        "counted and inserted, their rows do not change.",
                        shard.table.name,
                    )
                nothing = tf.IndexedSlices(tf.zeros([0, shard.dim]), tf.zeros([0], tf.int64))
                yield nothing, _ShardVariable(shard, variable, counted)

    # ---- What tf.compat.v1.train.Optimizer calls, in this order.

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for variable in var_list:
            if isinstance(variable, _ShardVariable):
                variable.shard.check_not_updated(self.get_name())
                variable.shard.add_slots(self._slot_specs(variable.shard.dim))
        dense = [variable for variable in var_list if not isinstance(variable, _ShardVariable)]
        if dense:
            self._create_dense_slots(dense)

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        """Slots of dense variables: TensorFlow's, if it has the rule."""
        super()._create_slots(var_list)

    def _prepare(self) -> None:
        super()._prepare()
        if self._stamp is not None:
            # The step's increment waits for the updates, which wait for this read.
            self._version = tf.cast(tf.convert_to_tensor(self._stamp), tf.int64, name="version")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: Any, indices: tf.Tensor
    ) -> tf.Operation:
        if not isinstance(handle, _ShardVariable):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        slots = self._slot_specs(handle.shard.dim)
        keys = tf.cast(indices, tf.int64)
        with tf.control_dependencies(handle.shard.training_reads()):
            return _ops.gen.rec_estimator_table_apply(
                table=handle.handle,
                keys=keys,
                grads=grad,
                counted_keys=handle.counted_keys,
                version=handle.shard.table.version_of_step(self._version),
                hyper=[tf.cast(value, tf.float32) for value in self.table_hyperparameters(handle)],
                rule=self.table_rule,
                slot_names=[slot.name for slot in slots],
                slot_widths=[slot.width for slot in slots],
                slot_initials=[slot.initial for slot in slots],
            )

    def _slot_specs(self, dim: int) -> List[SlotSpec]:
        """The slots under the names TensorFlow gives them: Adam, Adam_1."""
        specs: List[SlotSpec] = []
        uses: Dict[str, int] = {}
        for scope, initial, width in self.table_slots():
            use = uses[scope] = uses.get(scope, -1) + 1
            name = f"{scope}_{use}" if use else scope
            width = dim if width is None else width
            specs.append(SlotSpec(name=name, width=width, initial=float(initial)))
        return specs


class _ShardVariable:
    """A shard with the attributes by which TensorFlow's optimizer knows a resource variable."""

    _should_act_as_resource_variable = True
    # Not a VarHandleOp, so the op's type is not asked.
    _in_graph_mode = False
    constraint = None
    dtype = tf.float32

    def __init__(
        self,
        shard: TableShard,
        given: Variable,
        counted_keys: Sequence[tf.Tensor] = (),
        repeated_keys: Sequence[tf.Tensor] = (),
    ) -> None:
        self.shard = shard
        self.given = given  # What the user named: the shard or its table.
        nothing = tf.zeros([0], tf.int64)
        # What the step counts besides the keys of the gradient.
        counted = [*map(training.flat_keys, counted_keys), *repeated_keys]
        self.counted_keys = tf.concat(counted, axis=0) if counted else nothing
        self.name = shard.name
        self.handle = shard.handle
        self.op = shard.handle.op
        self.graph = shard.handle.graph
        self.device = shard.device


def table_of(variable: Any) -> Optional[EmbeddingTable]:
    """The table whose shard TensorFlow's optimizer sees as this variable; None: it is dense."""
    return variable.shard.table if isinstance(variable, _ShardVariable) else None


def _shards(variable: Variable) -> List[TableShard]:
    return variable.shards if isinstance(variable, EmbeddingTable) else [variable]


def _with_tables(pairs: Iterable[Tuple[Any, Any]]) -> Iterable[GradientAndVariable]:
    """The pairs, with tables where a pair has the address of a lookup.

    Scripts for dynamic expansion pair the gradients of looked-up values with what stands for their
    keys. The gradients of a table are put together in the order in which tf.gradients made them,
    which is the order they have in the gradient of the table.
    """
    addresses = {
        id(lookup.address): (shard, lookup)
        for table in graph_tables()
        for shard in table
        for lookup in shard.lookups
        if lookup.address is not None
    }
    gradients: Dict[TableShard, List[Tuple[tf.Tensor, LookupRecord]]] = {}
    for gradient, variable in pairs:
        if id(variable) not in addresses:
            yield gradient, variable
            continue
        shard, lookup = addresses[id(variable)]
        of_shard = gradients.setdefault(shard, [])
        if gradient is not None:
            of_shard.append((tf.convert_to_tensor(gradient), lookup))
    ops = tf.get_default_graph().get_operations() if gradients else ()
    made = {op: i for i, op in enumerate(ops)}
    for shard, of_lookups in gradients.items():
        values, keys = [], []
        for gradient, lookup in sorted(of_lookups, key=lambda pair: made[pair[0].op]):
            # What the lookup reads by now: compression may have given it other keys.
            _, read = lookup.op.inputs
            values.append(tf.reshape(gradient, [-1, shard.dim]))
            keys.append(tf.reshape(read, [-1]))
            shard.record_gradient(lookup.op, keys[-1])
            training.note_gradient(read, tf.IndexedSlices(values[-1], keys[-1]))
        slices = tf.IndexedSlices(tf.concat(values, 0), tf.concat(keys, 0)) if keys else None
        yield slices, shard


def _check_room(pairs: Iterable[Tuple[Any, Any]]) -> List[tf.Operation]:
    """Ops that fail if a table's step would give it more rows than it may have."""
    return [
        _ops.gen.rec_estimator_table_check_room(
            variable.handle, tf.cast(gradient.indices, tf.int64), variable.counted_keys
        )
        for gradient, variable in pairs
        if isinstance(variable, _ShardVariable) and variable.shard.table.max_rows
    ]


def _check_gradient(gradient: Any, variable: Variable) -> None:
    if not isinstance(gradient, tf.IndexedSlices):
        raise TypeError(
            f"gradient of table {variable.name!r} must be tf.IndexedSlices, got {gradient!r}; "
            "tf.gradients and compute_gradients() give them"
        )
    if len(_shards(variable)) > 1:
        raise ValueError(
            f"gradients of partitioned table {variable.name!r} must be one for each of its "
            f"{len(_shards(variable))} shards, got one; pair them with list(table)"
        )
