# SPDX-License-Identifier: Apache-2.0
"""Embedding tables without a fixed vocabulary for TensorFlow Estimators.

    import rec_estimator as rec

The modules follow the data: inputs and features produce keys, tables hold rows, lookups read rows,
optimizers update them, and RecEstimator combines all of this. See README.md and
docs/architecture.md.
"""

from typing import NoReturn

from rec_estimator import _ops as _ops
from rec_estimator import (
    compat,
    experimental,
    export,
    feature_column,
    graph_optimizer,
    inputs,
    metrics,
    optimizers,
    serving,
)
from rec_estimator._tensorflow.estimator import (
    BinaryClassHead,
    EstimatorSpec,
    EvalSpec,
    Exporter,
    Head,
    LogisticRegressionHead,
    ModeKeys,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
    TrainSpec,
    VocabInfo,
    add_metrics,
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from rec_estimator.checkpoint.estimators import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    Estimator,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from rec_estimator.checkpoint.folder_export import export as export_tables
from rec_estimator.checkpoint.saver import Saver
from rec_estimator.checkpoint.warm_start import WarmStartSettings, init_from_checkpoint
from rec_estimator.deeprec import (
    adaptive_embedding_lookup_sparse,
    categorical_column_with_adaptive_embedding,
    categorical_column_with_multihash,
    get_dynamic_dimension_embedding_variable,
    get_multihash_variable,
    group_embedding_column_scope,
    make_prefetch_hook,
    staged,
)
from rec_estimator.embedding_variable import get_embedding_variable
from rec_estimator.estimator import RecEstimator
from rec_estimator.export import (
    PredictOutput,
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
    compressed_serving_input_receiver_fn,
)
from rec_estimator.feature_column import (
    categorical_column_with_embedding,
    embedding_column,
    linear_model,
    sequence_categorical_column_with_embedding,
    shared_embedding_columns,
    sparse_column_with_embedding,
    sparse_column_wth_embedding,
    weighted_categorical_column,
)
from rec_estimator.features import EmbeddingFeature
from rec_estimator.graph_modifier import GraphModifierHook, modify_graph_and_start_emb_cache
from rec_estimator.graph_modifier.prepared_input import get_initializer, get_target_batch
from rec_estimator.graph_optimizer import enable_sample_awared_graph_compression
from rec_estimator.hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    IncrementalSaverHook,
    LoggingTensorHook,
    MonitoredTrainingSession,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    ProgressHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtSigtermHook,
    StopAtStepHook,
    SummarySaverHook,
    TableSummaryHook,
)
from rec_estimator.options import (
    CacheStrategy,
    Capacity,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    PretrainedRows,
    StorageOption,
    StorageType,
    TimeEvict,
)
from rec_estimator.rec_sdk.constants import (
    ASCEND_CUTTING_POINT_INITIALIZER,
    ASCEND_GLOBAL_HASHTABLE_COLLECTION,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    ASCEND_TIMESTAMP,
    BaseEnum,
    CacheModeEnum,
)
from rec_estimator.rec_sdk.create_table import create_table
from rec_estimator.rec_sdk.evict_hook import EvictHook
from rec_estimator.rec_sdk.feature_spec import FeatureSpec, start_asc_pipeline
from rec_estimator.rec_sdk.insert_function import get_asc_insert_func
from rec_estimator.rec_sdk.runtime import (
    ConfigInitializer,
    get_local_rank_size,
    get_rank_id,
    get_rank_size,
    get_use_dynamic_expansion,
    init,
    terminate_config_initializer,
)
from rec_estimator.rec_sdk.sparse_lookup import sparse_lookup
from rec_estimator.rec_sdk.sparse_table import SparseTable
from rec_estimator.rec_sdk.variables import get_dense_and_sparse_variable
from rec_estimator.regularizers import L2Regularizer, LazyDecay
from rec_estimator.sample_compression import SampleCompression
from rec_estimator.serving.exporters import BestExporter, FinalExporter, LatestExporter
from rec_estimator.table.combined_lookup import (
    embedding_lookup_sparse,
    group_embedding_lookup,
    group_embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from rec_estimator.table.disk_storage import TierCounts
from rec_estimator.table.lookup import embedding_lookup
from rec_estimator.table.shard import SlotSpec, TableShard
from rec_estimator.table.table import EMBEDDING_VARIABLES, EmbeddingTable
from rec_estimator.table.table_reads import TableExport
from rec_estimator.training.cluster import train_and_evaluate
from rec_estimator.training.run_config import RunConfig

__version__ = "0.1.0"


__all__ = [
    # Feature declarations and input_fn builders.
    "EmbeddingFeature",
    "inputs",
    # The Estimator and the objects that configure it.
    "RecEstimator",
    "RunConfig",
    "EstimatorSpec",
    "ModeKeys",
    "TrainSpec",
    "EvalSpec",
    "train_and_evaluate",
    "WarmStartSettings",
    "VocabInfo",
    "SampleCompression",
    # Session hooks.
    "ProgressHook",
    "IncrementalSaverHook",
    "MonitoredTrainingSession",
    "StopAtSigtermHook",
    "TableSummaryHook",
    "GraphModifierHook",
    "EvictHook",
    # Tables and lookups, under DeepRec's names.
    "get_embedding_variable",
    "EmbeddingTable",
    "TableShard",
    "SlotSpec",
    "TableExport",
    "TierCounts",
    "EMBEDDING_VARIABLES",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "safe_embedding_lookup_sparse",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    # Options of a table, under DeepRec's names.
    "EmbeddingVariableOption",
    "InitializerOption",
    "CounterFilter",
    "CBFFilter",
    "GlobalStepEvict",
    "L2WeightEvict",
    "TimeEvict",
    "CheckpointOption",
    "StorageOption",
    "StorageType",
    "CacheStrategy",
    "Capacity",
    # Regularizers of a table.
    "L2Regularizer",
    "LazyDecay",
    # Feature columns, under DeepRec's names.
    "feature_column",
    "categorical_column_with_embedding",
    "sequence_categorical_column_with_embedding",
    "sparse_column_with_embedding",
    "sparse_column_wth_embedding",
    "weighted_categorical_column",
    "embedding_column",
    "shared_embedding_columns",
    "linear_model",
    # Optimizers.
    "metrics",
    "optimizers",
    # Checkpoints.
    "Saver",
    "init_from_checkpoint",
    "export_tables",
    # Export and serving.
    "export",
    "ServingInputReceiver",
    "PredictOutput",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "compressed_serving_input_receiver_fn",
    "enable_sample_awared_graph_compression",
    "graph_optimizer",
    "BestExporter",
    "FinalExporter",
    "LatestExporter",
    "serving",
    # What else tf.estimator had, under its names.
    "Estimator",
    "Exporter",
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "Head",
    "BinaryClassHead",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "PretrainedRows",
    "RegressionHead",
    "add_metrics",
    "classifier_parse_example_spec",
    "regressor_parse_example_spec",
    "experimental",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    # For libraries that spell tf.estimator.
    "compat",
    # Only for scripts of DeepRec: names that do nothing here.
    "staged",
    "make_prefetch_hook",
    "group_embedding_column_scope",
    # Only for scripts of DeepRec: names that are refused, with what to use instead.
    "get_multihash_variable",
    "get_dynamic_dimension_embedding_variable",
    "categorical_column_with_multihash",
    "categorical_column_with_adaptive_embedding",
    "adaptive_embedding_lookup_sparse",
    # Tables, lookups, graph modification and the runtime, under Rec SDK's names.
    "create_table",
    "SparseTable",
    "sparse_lookup",
    "FeatureSpec",
    "get_asc_insert_func",
    "start_asc_pipeline",
    "modify_graph_and_start_emb_cache",
    "get_initializer",
    "get_target_batch",
    "get_dense_and_sparse_variable",
    "init",
    "terminate_config_initializer",
    "ConfigInitializer",
    "get_use_dynamic_expansion",
    "get_rank_id",
    "get_rank_size",
    "get_local_rank_size",
    "ASCEND_CUTTING_POINT_INITIALIZER",
    "ASCEND_GLOBAL_HASHTABLE_COLLECTION",
    "ASCEND_SPARSE_LOOKUP_ID_OFFSET",
    "ASCEND_SPARSE_LOOKUP_LOCAL_EMB",
    "ASCEND_TIMESTAMP",
    "BaseEnum",
    "CacheModeEnum",
]

_BOOSTED_TREES = "TensorFlow removed boosted trees; use a library for them, such as XGBoost"

# Names that tf.estimator had in some release, and what to use instead.
_REMEDIES = {
    "BoostedTreesClassifier": _BOOSTED_TREES,
    "BoostedTreesEstimator": _BOOSTED_TREES,
    "BoostedTreesRegressor": _BOOSTED_TREES,
    "tpu": "tables do not run on TPUs; TensorFlow 2.15 has tf.compat.v1.estimator.tpu",
}


def __getattr__(name: str) -> NoReturn:
    """Adds the remedy to the error for names of ``tf.estimator`` that are not here."""
    remedy = f"; {_REMEDIES[name]}" if name in _REMEDIES else ""
    raise AttributeError(f"module 'rec_estimator' has no attribute {name!r}{remedy}")
