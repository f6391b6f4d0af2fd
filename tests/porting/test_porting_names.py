# SPDX-License-Identifier: Apache-2.0
"""docs/porting.md names every public name, and no name that does not exist."""

import functools
import importlib
import re

import pytest
import tensorflow.compat.v1 as tf
from porting_page import SECTIONS, ours, rows

import rec_estimator as rec
from rec_estimator._tensorflow import estimator as tf_estimator

# Public names that neither Rec SDK nor DeepRec has, and names of TensorFlow.
OWN = {
    *("Capacity", "L2Regularizer", "LazyDecay", "PretrainedRows", "TableSummaryHook", "TimeEvict"),
    "compat",
    *("BestExporter", "EmbeddingFeature", "EstimatorSpec", "EvalSpec", "FinalExporter"),
    *("LatestExporter", "ModeKeys", "PredictOutput", "ProgressHook", "StopAtSigtermHook"),
    *(
        "SampleCompression",
        "ServingInputReceiver",
        "SlotSpec",
        "TableExport",
        "TableShard",
        "TrainSpec",
        "VocabInfo",
    ),
    *("build_parsing_serving_input_receiver_fn", "build_raw_serving_input_receiver_fn"),
    *("compressed_serving_input_receiver_fn", "export", "feature_column", "graph_optimizer"),
    *("TierCounts", "inputs", "metrics", "optimizers", "serving", "train_and_evaluate"),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_name_of_this_package_exists(section):
    found = rows(section)
    assert len(found) > 20
    for theirs, cell in found:
        assert ours(cell) or cell.startswith("none: "), theirs
        for name in ours(cell):
            module, rest = "rec_estimator", name.split(".")[1:]
            if rest[:1] == ["tools"] or (rest[:1] == ["optimizers"] and len(rest) > 2):
                module, rest = ".".join([module, *rest[:2]]), rest[2:]
            functools.reduce(getattr, rest, importlib.import_module(module))


def test_every_public_name_is_in_a_table_or_our_own():
    named = {name.split(".")[1] for s in SECTIONS for _, cell in rows(s) for name in ours(cell)}
    assert set(rec.__all__) >= OWN
    # docs/migrating.md has the names of tf.estimator; its session hooks are those of tf.train.
    of_tf_train = {n for n in rec.__all__ if getattr(tf.train, n, None) is getattr(rec, n)}
    known = named | OWN | set(vars(tf_estimator)) | of_tf_train | {"experimental"}
    assert sorted(set(rec.__all__) - known) == []


def named_by_vendors():
    """Every name in backticks in the first columns, with the arguments it is written with."""
    cells = [theirs for section in SECTIONS for theirs, _ in rows(section)]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


# Names and arguments that vendors' scripts use, besides those of the functions of this package.
USED_BY_SCRIPTS = [
    *("tf.train.Saver(incremental_save_restore=True)", "IncrementalSaver"),
    *("_get_incremental_saver", "tensorflow.python.training.incremental_saver"),
    "tf.train.MonitoredTrainingSession(save_incremental_checkpoint_secs=)",
    *("tf.train.Scaffold(incremental_save_restore=)", "export_saved_model(save_incr_model=)"),
    "tf.train.CheckpointSaverHook(incremental_save_secs=)",
    *("tf.nn.embedding_lookup(ev_init_value=, blocknums=)", "counts="),
    'optimizer.get_slot(embedding_variable, "m")',
    *("minimize(decay_var_list=)", "weight_decay_optimizers.extend_with_decoupled_weight_decay"),
    *("tf.nn.group_embedding_lookup_sparse", "tf.nn.group_embedding_lookup"),
    *("tf.get_multihash_variable", "tf.get_dynamic_dimension_embedding_variable"),
    *("tf.staged", "tf.make_prefetch_hook", "tf.SmartStageOptions", "do_smart_stage"),
    *("TF_EV_RESTORE_CUSTOM_DIM", "TF_EV_SAVE_FILTERED_FEATURES", "TF_RECORD_FREQ"),
    *("mx_rec.constants.constants.BaseEnum", "CacheModeEnum", "get_device_id"),
    *("rec_sdk_common.communication.hccl.hccl_info.get_rank_id", "rec_sdk_common.util.tf_adapter"),
    *("rec_sdk_common.log.logger", "rec_sdk_common.validator", "rec_sdk_common.constants"),
    *("mx_rec.util.tf_version_adapter", "mx_rec.util.log.logger", "ssd_vocabulary_size"),
    *("mx_rec.util.model_common", "mx_rec.optimizers.base.CustomizedOptimizer"),
    *("create_table(optimizer_list=)", "ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS"),
    *("util.set_iteration_per_loop(session, train_op, 10)", "kv_variable_ops.lookup_tier"),
    *("ops.GraphKeys.EV_INIT_VAR_OPS", "TF_EMBEDDING_FBJ_OPT"),
]


@pytest.mark.parametrize("name", USED_BY_SCRIPTS)
def test_a_name_that_scripts_use_has_a_row(name):
    assert name in named_by_vendors()


def test_a_row_that_says_refused_names_functions_that_refuse():
    refused = {
        name.split(".")[1]
        for section in SECTIONS
        for _, cell in rows(section)
        if "refused, " in cell
        for name in ours(cell)
    }
    assert len(refused) >= 5
    for name in refused:
        with pytest.raises(NotImplementedError, match=f"^{name} must not be called: .*; "):
            getattr(rec, name)()
