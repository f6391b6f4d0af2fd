# SPDX-License-Identifier: Apache-2.0
"""TableUpdates: the base class of all optimizers that train tables.

A rule is a class that derives from TableUpdates and from TensorFlow's optimizer of that name. It
adds three things: the name of the rule in ops/core/math/row_update.h, its slots and its
hyperparameters.

TensorFlow's optimizer does the work. Each shard is passed to it as a resource variable whose sparse
update is ours. Gating, the order of a step and the increment of the global step are therefore those
of TensorFlow, with and without tables. TensorFlow asks for the update of one variable after the
other; the last request for a shard builds the update of all (table_step.py).
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

from rec_estimator._argument_checks import refuse_keras
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.observers import building_optimizer_ops, observers
from rec_estimator.graph_passes.overwrites import order_overwrites
from rec_estimator.graph_passes.walk import ancestors, collect_new_ops, find_global_step
from rec_estimator.optimizers import synchronous
from rec_estimator.optimizers.table_step import TableStep, TrainedShard
from rec_estimator.options import EvictionRule
from rec_estimator.table.interfaces import NO_GLOBAL_STEP, SECONDS, LogicalTable
from rec_estimator.table.lookup import check_no_lookup_in_control_flow
from rec_estimator.table.lookup_gradient import further_occurrences, occurrences
from rec_estimator.table.optional_variable import create_global_step
from rec_estimator.table.registration import refuse_eager_mode
from rec_estimator.table.shard import LookupRecord, SlotSpec, TableShard
from rec_estimator.table.slot_rows import SlotRows
from rec_estimator.table.table import (
    EmbeddingTable,
    decays,
    dense_variables,
    graph_tables,
    needs_global_step,
)
from rec_estimator.table.untrained_tables import is_synchronous

# The value of a hyperparameter in a step.
Scalar = Union[float, tf.Tensor]

# A number, or what TensorFlow's optimizers accept instead.
Hyperparameter = Union[Scalar, Callable[[], Scalar]]

# What var_list may contain, and what a gradient may be paired with.
Variable = Union[tf.Variable, EmbeddingTable, TableShard]
Gradient = Optional[Union[tf.Tensor, tf.IndexedSlices]]
GradientAndVariable = Tuple[Gradient, Variable]

# What TensorFlow's optimizer passes to a rule: a dense variable, or a shard in place of one.
RuleVariable = Union[tf.Variable, "ShardVariable"]


def check_hyperparameter(
    name: str,
    value: Any,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Refuses a number out of range. Tensors and callables pass: their value is not known yet.

    Raises:
      ValueError: value is a number that is not finite or not within the bounds; or it is a string,
        a list, a dict or a Keras object.
    """
    refuse_keras(name, value, "use tf.compat.v1.train.exponential_decay or the like")
    if isinstance(value, (str, bytes, list, tuple, dict)):
        raise ValueError(f"{name} must be a number, a tensor or a function, got {value!r}")
    if not isinstance(value, numbers.Real):
        return
    number = float(value)
    if math.isfinite(number) and at_least <= number <= at_most and above < number < below:
        return
    bounds = {">=": at_least, ">": above, "<=": at_most, "<": below}
    rule = " and ".join(
        f"{sign} {bound:g}" for sign, bound in bounds.items() if math.isfinite(bound)
    )
    raise ValueError(f"{name} must be finite and {rule}, got {value}")


class TableSlot(NamedTuple):
    """A slot of a rule. ``SlotSpec`` is the same slot in a particular table.

    Attributes:
      name: The name that ``get_slot()`` takes, as of TensorFlow's optimizer.
      scope: The name scope of the slot, as in TensorFlow. A second slot with the same scope is
        called ``<scope>_1``.
      initial: Value of the slot in a new row.
      width: Floats per row; None: the dim of the table.
    """

    name: str
    scope: str
    initial: float
    width: Optional[int] = None


class TableUpdates(tf.train.Optimizer, abc.ABC):
    """Mixin that makes a ``tf.compat.v1.train.Optimizer`` train tables as well."""

    # Name of the rule in ops/core/math/row_update.h.
    table_rule: str

    # Whether tables with padding_keys are refused: a factory was called with use_fusion_optim=True.
    refuses_padding_keys = False
    # Whether the rule computes values from slots, so that it would undo a decay of the values.
    computes_values_from_slots = False
    # What slots of 16 bits would harm, to follow the name of the optimizer; None: nothing.
    harm_of_narrow_slots: Optional[str] = None

    # What full saves evict of the tables that the rule trains, besides their own evict_option.
    evict_option: Optional[EvictionRule] = None

    # The global step for the versions of rows, or NO_GLOBAL_STEP; set while gradients are applied.
    _stamp: Optional[Union[int, tf.Variable]] = None
    _version: Optional[tf.Tensor] = None

    # The ops that the loss of the last compute_gradients() depends on; None: not known. Before and
    # after the observers have rewritten it.
    _step_ops: Optional[Set[tf.Operation]] = None
    _rewritten_step_ops: Optional[Set[tf.Operation]] = None

    # The update of all tables; set while gradients are applied.
    _table_step: Optional[TableStep] = None

    _has_table_slots = False

    def table_slots(self) -> Sequence[TableSlot]:
        """The slots, in the order of the rule."""
        return ()

    @abc.abstractmethod
    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """The hyperparameters as scalars, in the order of the rule. Called after ``_prepare()``.

        Args:
          variable: The variable to update, as ``get_slot()`` takes it.
        """

    def compute_gradients(
        self,
        loss: tf.Tensor,
        var_list: Optional[Union[Variable, Sequence[Variable]]] = None,
        gate_gradients: int = tf.train.Optimizer.GATE_OP,
        aggregation_method: Optional[int] = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Optional[tf.Tensor] = None,
    ) -> List[GradientAndVariable]:
        """Computes the gradients of loss with respect to variables and tables.

        Arguments that are not described here are those of ``tf.compat.v1.train.Optimizer``.

        Args:
          loss: float32. The tensor to minimize.
          var_list: Variables, tables and shards. None: the trainable variables and the trainable
            tables of the graph.

        Returns:
          Pairs of gradient and variable. A table with one shard is in one pair, a partitioned table
          in one pair per shard. Its gradient is tf.IndexedSlices (values [n, dim], indices
          int64 [n], the keys) or None.

        Raises:
          ValueError: Eager mode; or a table is looked up inside tf.cond or tf.while_loop.
        """
        refuse_eager_mode(f"{type(self).__name__}.minimize")
        if var_list is None:
            var_list = [
                *dense_variables(),
                *tf.get_collection(tf.GraphKeys.TRAINABLE_RESOURCE_VARIABLES),
                *(table for table in graph_tables() if table.trainable),
            ]
        variables: List[RuleVariable] = []
        for variable in tf.nest.flatten(var_list):
            if isinstance(variable, EmbeddingTable) and len(variable.shards) > 1:
                variables.extend(ShardVariable(shard, shard) for shard in variable.shards)
            elif isinstance(variable, (EmbeddingTable, TableShard)):
                variables.append(ShardVariable(_shards(variable)[0], variable))
            else:
                variables.append(variable)
        check_no_lookup_in_control_flow(
            loss, [v.shard for v in variables if isinstance(v, ShardVariable)]
        )
        # Only lookups among these ops train.
        self._step_ops = ancestors([loss.op]) if isinstance(loss, tf.Tensor) else None
        for observer in observers():
            loss, grad_loss = observer.before_gradients(loss, grad_loss)
        self._rewritten_step_ops = ancestors([loss.op]) if isinstance(loss, tf.Tensor) else None
        if isinstance(loss, tf.Tensor):
            state_of().losses.append(loss)
        with building_optimizer_ops():
            pairs = super().compute_gradients(
                loss,
                var_list=variables,
                gate_gradients=gate_gradients,
                aggregation_method=aggregation_method,
                colocate_gradients_with_ops=colocate_gradients_with_ops,
                grad_loss=grad_loss,
            )
        for observer in observers():
            observer.gradients_built([gradient for gradient, _ in pairs])
        return [
            (gradient, variable.given if isinstance(variable, ShardVariable) else variable)
            for gradient, variable in pairs
        ]

    @building_optimizer_ops()
    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
        skip_gradients_aggregation: bool = False,
    ) -> tf.Operation:
        """Applies gradients to variables and tables.

        The version of a trained row is the global step before its increment: the value of
        global_step, else of the global step of the graph, else -1. For a table with GlobalStepEvict
        in a graph without a global step, this makes one and increments it. If a table is looked up
        and has no gradient, its keys are counted and new keys are inserted.

        Args:
          grads_and_vars: Pairs as compute_gradients() returns them. Ported scripts may also
            pass gradients of ASCEND_SPARSE_LOOKUP_LOCAL_EMB paired with the members of
            ASCEND_SPARSE_LOOKUP_ID_OFFSET; this trains the tables in the same way.
          global_step: The variable to increment after all updates.
          name: The name of the returned op.

        Returns:
          The op that runs the step.

        Raises:
          TypeError: The gradient of a table is not tf.IndexedSlices.
          RuntimeError: A table with padding_keys gets no gradient, or use_fusion_optim is True.
          ValueError: The graph already updates a table; one gradient is given for several shards;
            a table has LazyDecay or a slot_dtype, with which the rule or the table cannot be;
            under tf.train.SyncReplicasOptimizer, keys are counted that no gradient reaches; or an
            observer of the graph, such as sample-aware compression, refuses the gradients.
        """
        for observer in observers():
            observer.before_updates()
        grads_and_vars = list(_with_tables(grads_and_vars))
        _check_same_step(grads_and_vars)
        pairs = list(self._shown_to_tensorflow(grads_and_vars))
        tables = [v.shard.table for _, v in pairs if isinstance(v, ShardVariable)]
        for table in tables:
            _check_table(table, self)
        if tables:
            stamp = find_global_step() if global_step is None else global_step
            if stamp is None and any(needs_global_step(table) for table in tables):
                # Nothing else increments it, and without that no row would ever grow older.
                stamp = global_step = create_global_step()
            self._stamp = NO_GLOBAL_STEP if stamp is None else stamp
        try:
            with collect_new_ops() as new_ops:
                # If any table lacks room for the step, nothing of the step is applied.
                with tf.control_dependencies(self._reserve(pairs)):
                    train_op = super().apply_gradients(
                        pairs,
                        global_step=global_step,
                        name=name,
                        skip_gradients_aggregation=skip_gradients_aggregation,
                    )
        finally:
            self._stamp = self._version = self._table_step = None
        for _, variable in pairs:
            if isinstance(variable, ShardVariable):
                variable.shard.mark_updated(self.get_name(), variable.counting)
                variable.shard.table.rule_of_optimizer = self.evict_option
        order_overwrites(tf.get_default_graph(), new_ops)
        return train_op

    def _shown_to_tensorflow(
        self, grads_and_vars: Iterable[GradientAndVariable]
    ) -> Iterable[Tuple[Gradient, RuleVariable]]:
        """Replaces tables by shards. A shard that only counts keys gets an empty gradient.

        A shard that another optimizer has updated counts its keys there, unless it has a gradient
        here: then that must have been an update that only counts.
        """
        warned = set()
        for gradient, variable in grads_and_vars:
            if not isinstance(variable, (EmbeddingTable, TableShard)):
                yield gradient, variable
                continue
            shards = _shards(variable)
            if gradient is not None:
                _check_gradient(gradient, variable)
                shards[0].take_over_counting()
                shards[0].check_not_updated(self.get_name())
                yield _shown_gradient(gradient, shards[0], variable)
                continue
            for shard in shards:
                if shard.table.padding_keys:
                    raise RuntimeError(
                        f"table {shard.table.name!r} has padding_keys, but gets no gradient in "
                        "training; leave them out, or look up with is_grad=True"
                    )
                counted = shard.counted_keys(None, self._step_ops)
                if shard.updated_by is not None or not counted:
                    continue
                if shard.table.name not in warned:
                    warned.add(shard.table.name)
                    tf.logging.warning(
                        "Table %r gets no gradient in this step: the keys looked up so far are "
                        "counted and inserted, their rows do not change, unless another optimizer "
                        "gets a gradient.",
                        shard.table.name,
                    )
                nothing = tf.IndexedSlices(tf.zeros([0, shard.dim]), tf.zeros([0], tf.int64))
                shown = ShardVariable(shard, variable, _counted_keys(counted))
                shown.counted_keys = tf.identity(shown.counted_keys, name="counted_keys")
                shown.counting = shown.counted_keys.op
                yield nothing, shown

    def get_slot(self, var: Variable, name: str) -> Optional[Union[tf.Variable, SlotRows]]:
        """Returns a slot that this optimizer has made.

        Args:
          var: A variable, table or shard.
          name: One of ``get_slot_names()``, such as "m".

        Returns:
          A variable; for a table or a shard, a SlotRows, whose methods read the slot of some keys
          or of all rows. None: there is no such slot.
        """
        if not isinstance(var, (EmbeddingTable, TableShard)):
            return super().get_slot(var, name)
        shards = _shards(var)
        names = [slot.name for slot in self.table_slots()]
        spec = dict(zip(names, self._slot_specs(shards[0].dim))).get(name)
        is_made = spec is not None and all(spec in shard.slots for shard in shards)
        return SlotRows(var.name, shards, spec) if spec is not None and is_made else None

    def get_slot_names(self) -> List[str]:
        """The names that ``get_slot()`` takes, sorted: those of variables and of tables."""
        of_tables = self.table_slots() if self._has_table_slots else ()
        return sorted({*super().get_slot_names(), *(slot.name for slot in of_tables)})

    # ---- Methods that tf.compat.v1.train.Optimizer calls, in this order.

    def _create_slots(self, var_list: Sequence[RuleVariable]) -> None:
        for variable in var_list:
            if isinstance(variable, ShardVariable):
                variable.shard.add_slots(self._slot_specs(variable.shard.dim))
                self._has_table_slots = True
        dense = [variable for variable in var_list if not isinstance(variable, ShardVariable)]
        if dense:
            self._create_dense_slots(dense)

    def _create_dense_slots(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes the slots of dense variables. By default, as TensorFlow's optimizer does."""
        super()._create_slots(var_list)

    def _prepare(self) -> None:
        super()._prepare()
        if self._stamp is not None:
            # The increment of the global step waits for the updates, which wait for this read.
            self._version = tf.cast(tf.convert_to_tensor(self._stamp), tf.int64, name="version")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: RuleVariable, indices: tf.Tensor
    ) -> tf.Operation:
        if not isinstance(handle, ShardVariable):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        assert self._table_step is not None and self._version is not None
        is_last = self._table_step.add(
            handle,
            grad,
            handle.shard.table.version_of_step(self._version),
            self.table_hyperparameters(handle),
        )
        # The op of the last shard updates all of them.
        return self._table_step.build(self._rewritten_step_ops) if is_last else handle.op

    def _reserve(self, pairs: Sequence[Tuple[Gradient, RuleVariable]]) -> List[tf.Operation]:
        """Builds the ops that fail if a table has no room for the step."""
        shards = [
            TrainedShard(variable, gradient.indices, self._slot_specs(variable.shard.dim))
            for gradient, variable in pairs
            if isinstance(variable, ShardVariable) and isinstance(gradient, tf.IndexedSlices)
        ]
        if not shards:
            return []
        self._table_step = TableStep(self.table_rule, shards)
        return self._table_step.reservations

    def _slot_specs(self, dim: int) -> List[SlotSpec]:
        """The slots of the rule with the names that TensorFlow gives them: Adam, Adam_1."""
        specs: List[SlotSpec] = []
        uses: Dict[str, int] = {}
        for _, scope, initial, width in self.table_slots():
            use = uses[scope] = uses.get(scope, -1) + 1
            name = f"{scope}_{use}" if use else scope
            width = dim if width is None else width
            specs.append(SlotSpec(name=name, width=width, initial=float(initial)))
        return specs


class ShardVariable:
    """A shard with the attributes that TensorFlow's optimizer reads of a resource variable."""

    _should_act_as_resource_variable = True
    # False, because TensorFlow checks for a VarHandleOp if it is True.
    _in_graph_mode = False
    constraint = None
    dtype = tf.float32

    def __init__(
        self,
        shard: TableShard,
        given: Variable,
        counted_keys: Sequence[tf.Tensor] = (),
    ) -> None:
        self.shard = shard
        self.given = given  # The shard or its table, as the user passed it.
        # The keys that the step counts besides those of the gradient.
        nothing = tf.zeros([0], tf.int64)
        self.counted_keys = tf.concat(counted_keys, axis=0) if counted_keys else nothing
        self.counting: Optional[tf.Operation] = None  # The op of counted_keys without a gradient.
        self.name = shard.name
        self.handle = shard.handle
        self.op = shard.handle.op
        self.graph = shard.handle.graph
        self.device = shard.device


def table_of(variable: Union[RuleVariable, Variable]) -> Optional[LogicalTable]:
    """The table that a variable stands for or is part of; None for a dense one."""
    if isinstance(variable, EmbeddingTable):
        return variable
    shard = variable.shard if isinstance(variable, ShardVariable) else variable
    return shard.table if isinstance(shard, TableShard) else None


def _shards(variable: Variable) -> List[TableShard]:
    return variable.shards if isinstance(variable, EmbeddingTable) else [variable]


def _with_tables(pairs: Iterable[GradientAndVariable]) -> Iterable[GradientAndVariable]:
    """Replaces pairs with the address of a lookup by pairs with its shard.

    Scripts for dynamic expansion pair the gradients of looked-up values with addresses, which stand
    for the keys. The gradients of a shard are concatenated in the order in which tf.gradients built
    them. This is their order in the gradient of the shard itself.
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
            # The current input of the op: a graph pass may have replaced the keys.
            _, read = lookup.op.inputs
            values.append(tf.reshape(gradient, [-1, shard.dim]))
            keys.append(tf.reshape(read, [-1]))
            shard.record_gradient(lookup.op, keys[-1])
            for observer in observers():
                observer.lookup_gradient_built(read, tf.IndexedSlices(values[-1], keys[-1]))
        slices = tf.IndexedSlices(tf.concat(values, 0), tf.concat(keys, 0)) if keys else None
        yield slices, shard


def _check_table(table: LogicalTable, optimizer: TableUpdates) -> None:
    """Refuses tables that an optimizer cannot train."""
    if table.padding_keys and optimizer.refuses_padding_keys:
        raise RuntimeError(
            f"use_fusion_optim must be False for table {table.name!r}, which has padding_keys, got "
            "True; leave one out"
        )
    if optimizer.harm_of_narrow_slots is not None and table.slot_dtype != tf.float32:
        raise ValueError(
            f"slot_dtype of table {table.name!r} must be float32 with {type(optimizer).__name__}, "
            f"{optimizer.harm_of_narrow_slots}, got {table.slot_dtype.name}; leave slot_dtype out"
        )
    if not decays(table):
        return
    regularizer = table.ev_option.regularizer
    if optimizer.computes_values_from_slots:
        raise ValueError(
            f"regularizer of table {table.name!r} must not be {regularizer!r} with "
            f"{type(optimizer).__name__}, which computes the values from its slots; use "
            "L2Regularizer, or l2_regularization_strength of the optimizer"
        )
    if table.version_unit == SECONDS:
        raise ValueError(
            f"regularizer of table {table.name!r} must not be {regularizer!r} with an "
            "eviction_threshold or TimeEvict, with which versions count seconds instead of steps; "
            "use L2Regularizer, or leave one out"
        )


def _check_same_step(pairs: Sequence[GradientAndVariable]) -> None:
    """Refuses tables outside of the SyncReplicasOptimizer that trains the rest of the graph.

    Under it, the chief updates when all workers have sent their gradients. The keys of a table
    without a gradient are known to their worker only.
    """
    if not is_synchronous():
        return
    for gradient, variable in pairs:
        if not isinstance(variable, (EmbeddingTable, TableShard)):
            continue
        if isinstance(gradient, tf.IndexedSlices):
            is_outside = not synchronous.is_accumulated(gradient.indices)
        else:
            is_outside = any(shard.is_looked_up for shard in _shards(variable))
        if is_outside:
            raise ValueError(
                f"table {variable.name!r} must get its gradient from the SyncReplicasOptimizer of "
                f"this graph, got {gradient}; pass one of rec_estimator.optimizers to it, and only "
                "tables that the loss depends on"
            )


def _shown_gradient(
    gradient: tf.IndexedSlices, shard: TableShard, given: Variable
) -> Tuple[Gradient, RuleVariable]:
    """A gradient and its shard, with the keys that the step counts in addition."""
    if not synchronous.is_accumulated(gradient.indices):
        gradient = occurrences(gradient)
        counted = _counted_keys(shard.counted_keys(gradient), gradient.indices)
        counted += further_occurrences(gradient.indices)
        return gradient, ShardVariable(shard, given, counted)
    sent = synchronous.sent_by_worker(gradient)
    asks = any(lookup.admits is not None for lookup in shard.lookups)
    if asks or _counted_keys(shard.counted_keys(sent), sent.indices):
        raise ValueError(
            f"table {given.name!r} must have lookups that all get gradients, without counts=, "
            "access_threshold and compressed batches, under SyncReplicasOptimizer, got others; a "
            "worker's keys without gradient do not reach the chief"
        )
    gradient, further = synchronous.count_occurrences(gradient, shard.dim)
    return gradient, ShardVariable(shard, given, [further])


def _counted_keys(
    others: List[tf.Tensor], gradient_keys: Optional[tf.Tensor] = None
) -> List[tf.Tensor]:
    """The keys that a step counts besides those of the gradient, corrected by the observers."""
    for observer in observers():
        others = observer.counted_keys(gradient_keys, others)
    return others


def _check_gradient(gradient: Gradient, variable: Variable) -> None:
    if not isinstance(gradient, tf.IndexedSlices):
        raise TypeError(
            f"gradient of table {variable.name!r} must be tf.IndexedSlices, got {gradient!r}; "
            "tf.gradients and compute_gradients() give them"
        )
    values, keys = gradient.values.shape, gradient.indices.shape
    if not values.is_compatible_with(keys.concatenate([_shards(variable)[0].dim])):
        raise ValueError(
            f"gradient of table {variable.name!r} must have a row of {_shards(variable)[0].dim} "
            f"floats for each key, got values of shape {values} for keys of shape {keys}"
        )
    if len(_shards(variable)) > 1:
        raise ValueError(
            f"gradients of partitioned table {variable.name!r} must be one for each of its "
            f"{len(_shards(variable))} shards, got one; pair them with list(table)"
        )
