# SPDX-License-Identifier: Apache-2.0
"""The op types of our library, and how graph passes treat them.

Every op type has one entry in OPS. No other module spells the name of an op type: a new op that
reads tables is one entry here, and all passes know it.
"""

import dataclasses
import enum
from typing import FrozenSet, Tuple

# The prefix of our op types.
PREFIX = "RecEstimator>"

COMBINE_WEIGHTED = "RecEstimator>CombineWeighted"
COMBINE_WEIGHTED_GRAD = "RecEstimator>CombineWeightedGrad"
IDS_WITHOUT_PADDING = "RecEstimator>IdsWithoutPadding"
SHARD_KEYS_SPLIT = "RecEstimator>ShardKeysSplit"
SHARD_ROWS_MERGE = "RecEstimator>ShardRowsMerge"
SHARD_ROWS_SPLIT = "RecEstimator>ShardRowsSplit"
TABLE_ADMITS = "RecEstimator>TableAdmits"
TABLE_CONTAINS = "RecEstimator>TableContains"
TABLE_GROUP_LOOKUP = "RecEstimator>TableGroupLookup"
TABLE_GROUP_LOOKUP_GRAD = "RecEstimator>TableGroupLookupGrad"
TABLE_HANDLE = "RecEstimator>TableHandle"
TABLE_LOOKUP = "RecEstimator>TableLookup"
TABLES_APPLY = "RecEstimator>TablesApply"
TABLES_RESERVE = "RecEstimator>TablesReserve"
KERNEL_ROWS = "RecEstimator>KernelRows"
REPEAT_ROWS = "RecEstimator>RepeatRows"
SEGMENT_MAT_MUL = "RecEstimator>SegmentMatMul"
STEP_LOOP = "RecEstimator>StepLoop"
SEGMENT_LAYER = "RecEstimator>SegmentLayer"
TABLE_RESTORE = "RecEstimator>TableRestore"


class Reads(enum.Enum):
    """What an op reads from a table."""

    NOTHING = enum.auto()
    KEYS = enum.auto()  # Whether a table has or admits keys, and their counts and versions.
    ROWS = enum.auto()  # The values of keys: a lookup.
    TABLE = enum.auto()  # All keys, or numbers about the whole table.


@dataclasses.dataclass(frozen=True)
class OpEntry:
    """One op type.

    Attributes:
      name: The op type.
      reads: What it reads from a table. Graph modification moves the keys of an op that reads rows
        into the dataset, and refuses such an op inside control flow.
      is_update: Whether it updates a table in a training step. The increment of the global step
        waits for it. Graph modification treats a batch that it depends on as a training batch.
      is_row_wise: Whether its only result has one row for each of its keys, which are input 1.
        Sample-aware compression runs such an op on the users' keys.
      is_outside_steps: Whether it fills or checks a table, or reads the checkpoint of one, before
        the first step. A step loop need not wait for it.
      has_stock_form: Whether a portable export replaces it by ops of TensorFlow.
    """

    name: str
    reads: Reads = Reads.NOTHING
    is_update: bool = False
    is_row_wise: bool = False
    is_outside_steps: bool = False
    has_stock_form: bool = False


OPS: Tuple[OpEntry, ...] = (
    # Tables.
    OpEntry(TABLE_HANDLE),
    OpEntry("RecEstimator>TableInitialize", is_outside_steps=True),
    OpEntry("RecEstimator>TableIsInitialized", is_outside_steps=True),
    OpEntry("RecEstimator>TableStats", Reads.TABLE),
    OpEntry("RecEstimator>TableTierCounts", Reads.TABLE),
    OpEntry("RecEstimator>TableActivity", Reads.TABLE),
    OpEntry("RecEstimator>TableSavedRows", Reads.TABLE),
    OpEntry("RecEstimator>TableFrequencies", Reads.KEYS),
    OpEntry("RecEstimator>TableVersions", Reads.KEYS),
    OpEntry(TABLE_ADMITS, Reads.KEYS),
    OpEntry(TABLE_CONTAINS, Reads.KEYS, is_row_wise=True, has_stock_form=True),
    OpEntry("RecEstimator>TableEvict"),
    OpEntry("RecEstimator>CheckTableRows"),
    OpEntry("RecEstimator>TableAssign"),
    OpEntry("RecEstimator>TableErase"),
    OpEntry("RecEstimator>TableInitializeRows", is_outside_steps=True),
    # Lookups.
    OpEntry(TABLE_LOOKUP, Reads.ROWS, is_row_wise=True, has_stock_form=True),
    OpEntry(TABLE_GROUP_LOOKUP, Reads.ROWS, has_stock_form=True),
    OpEntry(TABLE_GROUP_LOOKUP_GRAD),
    OpEntry(COMBINE_WEIGHTED, has_stock_form=True),
    OpEntry(COMBINE_WEIGHTED_GRAD),
    OpEntry(IDS_WITHOUT_PADDING, has_stock_form=True),
    # Lookups of tables with several shards.
    OpEntry(SHARD_KEYS_SPLIT, has_stock_form=True),
    OpEntry(SHARD_ROWS_MERGE, has_stock_form=True),
    OpEntry(SHARD_ROWS_SPLIT, has_stock_form=True),
    # What graph modification adds to a dataset, before the step.
    OpEntry("RecEstimator>TablesBringIn", Reads.KEYS),
    # Updates.
    OpEntry(TABLES_RESERVE, Reads.KEYS),
    OpEntry(TABLES_APPLY, is_update=True),
    OpEntry("RecEstimator>CheckRowLimit"),
    OpEntry("RecEstimator>AdvanceTime"),
    OpEntry("RecEstimator>OpsFingerprint"),
    # What passes in C++ make of lookups and updates, in a step but not in Python's graph.
    OpEntry("RecEstimator>KeysPack"),
    OpEntry("RecEstimator>TablesRead", Reads.ROWS),
    OpEntry("RecEstimator>RowsSpread"),
    OpEntry("RecEstimator>RowsUnpack"),
    OpEntry("RecEstimator>ShardRowsSpread"),
    OpEntry("RecEstimator>GradientsPack"),
    OpEntry("RecEstimator>TablesReservePacked", Reads.KEYS),
    OpEntry("RecEstimator>TablesApplyPacked", is_update=True),
    # Checkpoints.
    OpEntry("RecEstimator>TableExport", Reads.TABLE),
    OpEntry("RecEstimator>TablesSave", Reads.TABLE),
    OpEntry("RecEstimator>TableCommitSave"),
    OpEntry("RecEstimator>CheckpointInteger", is_outside_steps=True),
    OpEntry("RecEstimator>CheckpointRangesMatch"),
    OpEntry(TABLE_RESTORE, is_outside_steps=True),
    OpEntry("RecEstimator>TableCheckRestore", is_outside_steps=True),
    OpEntry("RecEstimator>ModelRefresh"),
    # Sample-aware compression.
    OpEntry("RecEstimator>SampleRows"),
    OpEntry(REPEAT_ROWS),
    OpEntry("RecEstimator>RepeatRowsGrad"),
    OpEntry(SEGMENT_MAT_MUL),
    OpEntry("RecEstimator>SegmentMatMulGrad"),
    OpEntry(SEGMENT_LAYER),
    OpEntry("RecEstimator>SegmentLayerGrad"),
    OpEntry(KERNEL_ROWS),
    # The input pipeline and the step.
    OpEntry("RecEstimator>SharedKernel"),
    OpEntry(STEP_LOOP),
)

LOOKUPS: FrozenSet[str] = frozenset(op.name for op in OPS if op.reads is Reads.ROWS)
UPDATES: FrozenSet[str] = frozenset(op.name for op in OPS if op.is_update)
ROW_WISE: FrozenSet[str] = frozenset(op.name for op in OPS if op.is_row_wise)
OUTSIDE_STEPS: FrozenSet[str] = frozenset(op.name for op in OPS if op.is_outside_steps)
WITH_STOCK_FORM: FrozenSet[str] = frozenset(op.name for op in OPS if op.has_stock_form)
