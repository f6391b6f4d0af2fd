# SPDX-License-Identifier: Apache-2.0
"""What the eviction rule of a table needs of the graph, and the ops that it becomes."""

from typing import List, Optional, Union

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.graph_passes.walk import find_global_step
from rec_estimator.options import EvictionRule, TimeEvict
from rec_estimator.table.eviction import Eviction, build_eviction
from rec_estimator.table.interfaces import NO_GLOBAL_STEP, LogicalTable
from rec_estimator.table.table_time import find_table_time, present_time, table_time


def time_rule(table: LogicalTable) -> Optional[TimeEvict]:
    """Returns the TimeEvict of a table; None: it has none that evicts."""
    rule = table.ev_option.evict_option
    return None if rule is None else rule.timed


def make_time(table: LogicalTable) -> None:
    """Makes the time of a table with TimeEvict, in a graph that trains."""
    rule = time_rule(table)
    if rule is not None and state_of().trains:
        table_time(rule)


def rules_at_saves(table: LogicalTable) -> List[EvictionRule]:
    """Returns the rules of a table for which the graph has the step or the time that they need."""
    rules = (table.ev_option.evict_option, table.rule_of_optimizer)
    return [rule for rule in rules if rule is not None and rule.is_on and _is_dated(rule)]


def eviction_of(table: LogicalTable, rule: Optional[EvictionRule]) -> Eviction:
    """Builds an eviction of a table.

    Args:
      table: The table.
      rule: The rule. None: that of the table, else that of its optimizer.

    Raises:
      ValueError: As in EmbeddingTable.evict().
    """
    rule = rule or table.ev_option.evict_option or table.rule_of_optimizer
    if rule is None or not rule.is_on:
        raise ValueError(
            f"evict_option of table {table.name!r} must be a rule that evicts, got {rule!r}; "
            "for example GlobalStepEvict(steps_to_live=4000)"
        )
    handles = [shard.handle for shard in table.shards]
    return build_eviction(table.name, handles, rule, _present(table, rule), **rule.attrs)


def _is_dated(rule: EvictionRule) -> bool:
    if rule.timed is not None:
        return find_table_time(rule.timed) is not None
    return not rule.needs_global_step or find_global_step() is not None


def _present(table: LogicalTable, rule: EvictionRule) -> Union[int, tf.Tensor, tf.Variable]:
    """Returns the step or the time of an eviction, in the unit of the table's versions."""
    timed = time_rule(table)
    if timed is not None:
        return present_time(timed)
    # With any rule, a filter forgets the counts of the keys that occurred least recently.
    uses_step = rule.needs_global_step or table.filter is not None
    step = find_global_step() if uses_step else None
    if step is None and rule.needs_global_step:
        raise ValueError(
            f"the graph has no global step, by which table {table.name!r} evicts; call "
            "tf.train.get_or_create_global_step() before"
        )
    return NO_GLOBAL_STEP if step is None else step
