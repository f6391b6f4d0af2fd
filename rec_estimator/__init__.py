"""Embedding tables without a fixed vocabulary for TensorFlow Estimators.

    import rec_estimator as rec

The modules follow the data: features and inputs name keys, tables hold rows, lookups read them,
optimizers update them, RecEstimator puts it together. See README.md and docs/architecture.md.
"""

from rec_estimator import _ops as _ops
from rec_estimator import export, inputs, optimizers
from rec_estimator.checkpoint import Saver
from rec_estimator.estimator import (
    BestExporter,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    ModeKeys,
    RecEstimator,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from rec_estimator.export import (
    PredictOutput,
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from rec_estimator.features import EmbeddingFeature
from rec_estimator.hooks import ProgressHook
from rec_estimator.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    group_embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from rec_estimator.options import EmbeddingVariableOption, InitializerOption
from rec_estimator.table import (
    EMBEDDING_VARIABLES,
    EmbeddingTable,
    TableExport,
    get_embedding_variable,
)
from rec_estimator.table_shard import SlotSpec, TableShard

__version__ = "0.1.0"

__all__ = [
    "BestExporter",
    "EMBEDDING_VARIABLES",
    "EmbeddingFeature",
    "EmbeddingTable",
    "EmbeddingVariableOption",
    "EstimatorSpec",
    "EvalSpec",
    "FinalExporter",
    "InitializerOption",
    "LatestExporter",
    "ModeKeys",
    "PredictOutput",
    "ProgressHook",
    "RecEstimator",
    "RunConfig",
    "Saver",
    "ServingInputReceiver",
    "SlotSpec",
    "TableExport",
    "TableShard",
    "TrainSpec",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "export",
    "get_embedding_variable",
    "group_embedding_lookup_sparse",
    "inputs",
    "optimizers",
    "safe_embedding_lookup_sparse",
    "train_and_evaluate",
]
