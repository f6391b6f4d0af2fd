# SPDX-License-Identifier: Apache-2.0
"""A training step by the ops themselves, without an optimizer."""

from rec_estimator import _ops


def apply_op(table, keys, grads, counted_keys, version, hyper, **rule):
    """A step of one table; all but `rule` as apply_ops does for several."""
    return apply_ops([table], [keys], [grads], [counted_keys], version, hyper, **rule)


def apply_ops(tables, keys, grads, counted_keys, version, hyper, **rule):
    """TablesReserve and TablesApply. rule: the attributes of TablesReserve."""
    reservation, _ = reserve_op(tables, keys, counted_keys, **rule)
    return _ops.gen.rec_estimator_tables_apply(reservation, grads, version, hyper)


def reserve_op(
    tables,
    keys,
    counted_keys,
    rule="GradientDescent",
    slot_names=(),
    slot_widths=(),
    slot_initials=(),
    **regularization,
):
    """TablesReserve, by default for a rule without slots."""
    return _ops.gen.rec_estimator_tables_reserve(
        tables,
        keys,
        counted_keys,
        rule=rule,
        slot_names=list(slot_names),
        slot_widths=list(slot_widths),
        slot_initials=list(slot_initials),
        **regularization,
    )
