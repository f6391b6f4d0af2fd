# SPDX-License-Identifier: Apache-2.0
"""A valid call of every op: the arguments that fuzz_calls.py replaces by nonsense."""

import numpy as np
import tensorflow.compat.v1 as tf

DIM = 3


class Table:
    """Placeholder for a resource handle. ``kind`` is the kind of resource."""

    def __init__(self, kind="trained"):
        self.kind = kind


class Function:
    """Placeholder for a function of the graph. ``kind`` says what it does."""

    def __init__(self, kind="step"):
        self.kind = kind


class Reserved:
    """Placeholder for the output of a valid call of an op that reserves."""

    def __init__(self, op="tables_reserve"):
        self.op = op


def numbers(*shape):
    """Different numbers, so that an exchange shows."""
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 5) / 8


ADAGRAD = {"slot_names": ["Adagrad"], "slot_widths": [DIM], "slot_initials": [0.1]}
KEYS = np.array([5, 0, -1, 5], np.int64)
# Two sections: two keys that are only read; two with a gradient and one that is only counted. Then
# their counts, two in each word.
PACKED = np.array([0, 0, 2, 2, 1, 0, 5, -1, 5, 0, 7, 2 + (1 << 32), 1], np.int64)
BANK = numbers(2, DIM)
SPLITS = np.array([0, 1, 4], np.int32)
INDICES = np.array([[0, 0], [0, 1], [2, 0], [2, 1]], np.int64)

UNIFORM = tf.NodeDef(name="uniform", op="RandomUniform", input=["shape"])
UNIFORM.attr["dtype"].type = tf.float32.as_datatype_enum
UNIFORM.attr["T"].type = tf.int32.as_datatype_enum
UNIFORM.attr["seed"].i, UNIFORM.attr["seed2"].i = 1, 2

VALID_CALLS = {
    "step_loop": {"count": np.int64(2), "captured": [Table()], "step": Function()},
    "shared_kernel": {
        "inputs": [np.array([2, 3], np.int32)],
        "Toutputs": ["float32"],
        "node": UNIFORM.SerializeToString(),
        "shared_name": "uniform",
    },
    "sample_rows": {
        "item_size": np.array([1, 3], np.int32),
        "tensors": [numbers(2, 3), np.array([2, 5]), numbers(4)],
        "kinds": ["dense", "sparse", "dense"],
        "names": ["t", "u", "a b"],
        "num_users": 2,
        "size_name": "t",
    },
    "repeat_rows": {
        "values": numbers(2, 4),
        "row_splits": SPLITS,
        "axis": 1,
        "keep_one": False,
    },
    "repeat_rows_grad": {
        "grads": numbers(4, 3),
        "row_splits": SPLITS,
        "shape": np.array([2, 3], np.int32),
        "axis": 0,
    },
    "kernel_rows": {
        "kernel": numbers(4, 3),
        "counts": [2, 1],
        "terms": [2, 1],
        "starts": [0, 2, 3],
        "signs": [1, -1, 1],
        "keep": True,
    },
    "segment_layer": {
        "entries": numbers(2, 3, 4),
        "rows": numbers(4, 4),
        "kernel": numbers(4, 3),
        "row_splits": SPLITS,
        "user_bias": numbers(2, 3, 3),
        "row_bias": numbers(4, 3),
    },
    "segment_layer_grad": {
        "entries": numbers(2, 3, 4),
        "rows": numbers(4, 4),
        "kernel": numbers(4, 3),
        "row_splits": SPLITS,
        "grads": numbers(4, 3, 3),
    },
    "segment_mat_mul": {
        "rows": numbers(4, 3),
        "matrices": numbers(2, 3, 5),
        "row_splits": SPLITS,
        "transpose_matrices": False,
    },
    "segment_mat_mul_grad": {
        "rows": numbers(4, 3),
        "grads": numbers(4, 5),
        "row_splits": SPLITS,
    },
    "table_handle": {
        "shared_name": "new",
        "dim": DIM,
        "default_value": 0.0,
        "container": "",
        "filter_freq": 3,
        "filter_coefficient": 2,
        "max_element_size": 1000,
        "false_positive_probability": 0.5,
        "max_rows": 7,
        "capacity_rows": 9,
        "capacity_policy": "lfu_decay",
        "capacity_half_life": 5,
        "memory_budget": 10**6,
        "has_padding_key": True,
        "frozen_keys": [5, 0],
        "slot_dtype": "bfloat16",
        "refreshable": True,
    },
    "table_initialize": {"table": Table(), "bank": BANK, "only_new": False},
    "table_is_initialized": {"table": Table()},
    "table_stats": {"table": Table()},
    "table_tier_counts": {"table": Table()},
    "table_activity": {"table": Table()},
    "table_saved_rows": {"table": Table()},
    "table_frequencies": {"table": Table(), "keys": KEYS},
    "table_versions": {"table": Table(), "keys": KEYS},
    "table_admits": {"table": Table("filtered"), "keys": KEYS, "counted_keys": KEYS},
    "table_contains": {"table": Table("filtered"), "keys": KEYS},
    "check_row_limit": {"rows": [np.int64(1), np.int64(2)], "table_name": "t", "max_rows": 3},
    "advance_time": {
        "variable": Table("variable"),
        "reading": np.int64(7),
        "most_seconds": 2,
        "tolerance": 3,
        "keeps_late": True,
    },
    "ops_fingerprint": {},
    "table_evict": {
        "table": Table("filtered"),
        "global_step": np.int64(9),
        "steps_to_live": 5,
        "l2_weight_threshold": -1.0,
        "seconds_to_live": -1,
    },
    "check_table_rows": {
        "keys": KEYS[:3],
        "rows": numbers(3, DIM),
        "counts": np.array([1, 0, 2]),
        "table_name": "t",
        "dim": DIM,
        "has_padding_key": False,
    },
    "table_assign": {
        "table": Table("filtered"),
        "keys": KEYS[:3],
        "rows": numbers(3, DIM),
        "counts": np.array([1, 0, 2]),
        "version": np.int64(9),
    },
    "table_erase": {"table": Table("bloom"), "keys": KEYS, "version": np.int64(9)},
    "table_initialize_rows": {
        "table": Table(),
        "bank": BANK,
        "keys": KEYS[:3],
        "rows": numbers(3, DIM),
    },
    "table_lookup": {"table": Table(), "keys": KEYS, "dim": DIM, "unknown": "default"},
    "table_group_lookup": {
        "tables": [Table(), Table()],
        "keys": [KEYS, KEYS],
        "indices": [INDICES, np.arange(4)[:, np.newaxis]],  # The second has one key a row.
        "dense_shapes": [np.array([4, 2]), np.array([4])],
        "dims": [DIM, DIM],
        "combiners": ["mean", "sum"],
        "unknowns": ["default", "initial"],
    },
    "table_group_lookup_grad": {
        "indices": [INDICES, INDICES],
        "grads": [numbers(3, DIM), numbers(3, 7)],
        "combiners": ["mean", "sqrtn"],
    },
    "combine_weighted": {
        "values": [numbers(4, DIM), numbers(4, 7)],
        "weights": [1 + numbers(4), 1 + numbers(4)],
        "indices": [INDICES, np.arange(4)[:, np.newaxis]],
        "dense_shapes": [np.array([4, 2]), np.array([4])],
        "combiners": ["mean", "sqrtn"],
    },
    "combine_weighted_grad": {
        "weights": [1 + numbers(4), 1 + numbers(4)],
        "indices": [INDICES, np.arange(4)[:, np.newaxis]],
        "grads": [numbers(3, DIM), numbers(4, 7)],
        "combiners": ["sum", "sqrtn"],
    },
    "tables_bring_in": {
        "tables": [Table(), Table("filtered")],
        "keys": [KEYS, KEYS],
        "batches_ahead": 12,
    },
    "ids_without_padding": {"ids": np.array([[5, -1], [-1, 0]], np.int64)},
    "shard_keys_split": {"keys": KEYS, "N": 3},
    "shard_rows_spread": {
        "shards": np.array([1, 0, 1], np.int32),
        "rows": [numbers(2, DIM), numbers(1, DIM)],
        "index": [np.array([1], np.int32), np.array([0, 0], np.int32)],
    },
    "shard_rows_merge": {
        "shards": np.array([1, 0, 1], np.int32),
        "rows": [numbers(1, DIM), numbers(2, DIM)],
    },
    "shard_rows_split": {
        "shards": np.array([1, 0, 1], np.int32),
        "values": numbers(3, DIM),
        "N": 2,
    },
    "tables_reserve": {
        "tables": [Table(), Table("filtered")],
        "keys": [KEYS, KEYS],
        "counted_keys": [KEYS, KEYS],
        "rule": "Adagrad",
        **{**ADAGRAD, "slot_widths": [DIM, DIM]},
        "l2_scales": [0.01, 0.0],
        "decay_rates": [0.0, 0.01],
    },
    "tables_apply": {
        "reservation": Reserved(),
        "grads": [numbers(4, DIM)] * 2,
        "version": np.int64(3),
        "hyper": [np.float32(0.1)],
    },
    "keys_pack": {
        "keys": [KEYS, KEYS[:2]],
        "sections": [1, 0],
        "uses": ["gradient", "read"],
        "num_sections": 2,
    },
    "tables_read": {
        "tables": [Table("of 16 bits"), Table("of 16 bits")],
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
        "unknowns": ["initial", "default"],
        "value_dtype": tf.bfloat16,
    },
    "rows_spread": {
        "rows": np.ones([5 * DIM], np.float16),
        "packed": PACKED,
        "index": [np.array([0, 2, 1], np.int32), np.array([[1, 0]], np.int32)],
        "lookups": [0, 1],
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
    },
    "rows_unpack": {
        "N": 2,
        "rows": np.ones([5 * DIM], np.float32),
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "dims": [DIM, DIM],
    },
    "gradients_pack": {
        "packed": PACKED,
        "index": [np.array([0, 1, 0], np.int32), np.array([0], np.int32)],
        "grads": [np.ones([4, DIM], np.float32), np.ones([0, DIM], np.float32)],
        "positions": [],
        "version": np.int64(3),
        "hyper": [np.float32(0.1)],
        "lists": [2, 0],
        "sections": [1, 0],
        "num_sections": 2,
    },
    "tables_reserve_packed": {
        "tables": [Table(), Table("filtered")],
        "packed": PACKED,
        "sections": [1, 0],
        "num_sections": 2,
        "rule": "Adagrad",
        **{**ADAGRAD, "slot_widths": [DIM, DIM]},
        "l2_scales": [0.01, 0.0],
        "decay_rates": [0.0, 0.01],
    },
    "tables_apply_packed": {
        "reservation": Reserved("tables_reserve_packed"),
        # Two versions of two floats each, a hyperparameter for each table, and two gradients.
        "gradients": np.ones([2 * 2 + 2 + 2 * DIM], np.float32),
    },
    "table_export": {"table": Table(), "dim": DIM, "num_slots": 1, **ADAGRAD},
    "tables_save": {
        "refuses_non_finite": False,
        "tables": [Table(), Table("untrained")],
        "prefix": np.array("<written>"),
        "delta_of": np.array(["", ""]),
        "tensor_names": ["t", "u"],
        "key_dtypes": ["int64", "int32"],
        "bank_names": ["t/default_values", ""],
        "num_slots": [1, 0],
        "track_changes": True,
        **ADAGRAD,
    },
    "table_commit_save": {"table": Table()},
    "checkpoint_integer": {
        "prefix": np.array("<checkpoint>"),
        "otherwise": np.int64(7),
        "tensor_name": "global_step",
    },
    "checkpoint_ranges_match": {
        "path": np.array("<checkpoint file>"),
        "offsets": np.array([0, 8], np.int64),
        "sizes": np.array([8, 0], np.int64),
        "checksums": np.array([1, 0], np.int64),
    },
    "table_restore": {
        "table": Table(),
        "prefix": np.array("<checkpoint>"),
        "bank": BANK,
        "tensor_name": "t",
        "part": 0,
        "num_parts": 2,
        "version": 7,
        "stored_widths": [DIM, DIM],
        **ADAGRAD,
    },
    "model_refresh": {
        "delta": np.array(""),  # With a delta: tests/serving/test_refresh.py.
        "tables": [Table("trained"), Table("limited")],
        "variables": [],
        "table_names": ["t", "u"],
        "parts": [0, 1],
        "num_parts": [1, 2],
        "key_dtypes": ["int64", "int32"],
        "variable_names": [],
        "step_name": "global_step",
        "folder": "/nowhere",
        "base_checkpoint": "model.ckpt-1",
        "base_identity": "1-00000000",
        "base_step": 1,
    },
    "table_check_restore": {
        "table": Table(),
        "prefix": np.array("<checkpoint>"),
        "all_keys": np.array(True),
        "tensor_name": "t",
        "part": 0,
        "num_parts": 2,
        "version": 7,
        **ADAGRAD,
    },
}
