# SPDX-License-Identifier: Apache-2.0
# Replaces the names of DeepRec and Rec SDK in a script: sed -i -E -f docs/porting.sed script.py
# Made from the tables of docs/porting.md: python tests/porting/porting_page.py > docs/porting.sed
s/^import tensorflow as tf$/import tensorflow.compat.v1 as tf/
s/^import tensorflow\.compat\.v1 as tf$/&\n\nimport rec_estimator as rec/
s/\bfrom mx_rec\.util\.initialize import\b/from rec_estimator import/
s/\bfrom mx_rec\.util\.communication\.hccl_ops import\b/from rec_estimator import/
s/\bfrom rec_sdk_common\.communication\.hccl\.hccl_info import\b/from rec_estimator import/
s/\bfrom mx_rec import\b/from rec_estimator import/
s/\bfrom mx_rec\.core\.embedding import\b/from rec_estimator import/
s/\bfrom mx_rec\.core\.asc\.feature_spec import\b/from rec_estimator import/
s/\bfrom mx_rec\.core\.asc\.helper import\b/from rec_estimator import/
s/\bfrom mx_rec\.core\.asc\.manager import\b/from rec_estimator import/
s/\bfrom mx_rec\.graph\.modifier import\b/from rec_estimator import/
s/\bfrom mx_rec\.core\.feature_process import\b/from rec_estimator import/
s/\bfrom mx_rec\.optimizers\.lazy_adam import\b/from rec_estimator.optimizers.lazy_adam import/
s/\bfrom mx_rec\.optimizers\.lazy_adam_by_addr import\b/from rec_estimator.optimizers.lazy_adam_by_addr import/
s/\bfrom mx_rec\.optimizers\.adagrad import\b/from rec_estimator.optimizers.adagrad import/
s/\bfrom mx_rec\.optimizers\.adagrad_by_addr import\b/from rec_estimator.optimizers.adagrad_by_addr import/
s/\bfrom mx_rec\.optimizers\.ftrl import\b/from rec_estimator.optimizers.ftrl import/
s/\bfrom mx_rec\.optimizers\.gradient_descent import\b/from rec_estimator.optimizers.gradient_descent import/
s/\bfrom mx_rec\.optimizers\.gradient_descent_by_addr import\b/from rec_estimator.optimizers.gradient_descent_by_addr import/
s/\bfrom mx_rec\.optimizers\.momentum import\b/from rec_estimator.optimizers.momentum import/
s/\bfrom mx_rec\.util\.variable import\b/from rec_estimator import/
s/\bfrom mx_rec\.saver\.sparse import export\b/from rec_estimator import export_tables as export/
s/\bfrom mx_rec\.constants\.constants import\b/from rec_estimator import/
/^from tensorflow\.[a-z_.]+ import (config_pb2|kv_variable_ops|sample_awared_graph_compression|weight_decay_optimizers)$/d
s/\btf\.(compat\.v1\.)?train\.Saver\b/rec.Saver/g
s/\btf\.(compat\.v1\.)?estimator\.WarmStartSettings\b/rec.WarmStartSettings/g
s/\btf\.(compat\.v1\.)?get_embedding_variable\b/rec.get_embedding_variable/g
s/\bkv_variable_ops\.EmbeddingVariable\b/rec.EmbeddingTable/g
s/\btf\.(compat\.v1\.)?GraphKeys\.EMBEDDING_VARIABLES\b/rec.EMBEDDING_VARIABLES/g
s/\btf\.(compat\.v1\.)?EmbeddingVariableOption\b/rec.EmbeddingVariableOption/g
s/\btf\.(compat\.v1\.)?InitializerOption\b/rec.InitializerOption/g
s/\btf\.(compat\.v1\.)?CounterFilter\b/rec.CounterFilter/g
s/\btf\.(compat\.v1\.)?CBFFilter\b/rec.CBFFilter/g
s/\btf\.(compat\.v1\.)?GlobalStepEvict\b/rec.GlobalStepEvict/g
s/\btf\.(compat\.v1\.)?L2WeightEvict\b/rec.L2WeightEvict/g
s/\btf\.(compat\.v1\.)?CheckpointOption\b/rec.CheckpointOption/g
s/\btf\.(compat\.v1\.)?StorageOption\b/rec.StorageOption/g
s/\bconfig_pb2\.StorageType\b/rec.StorageType/g
s/\bconfig_pb2\.CacheStrategy\b/rec.CacheStrategy/g
s/\btf\.(compat\.v1\.)?nn\.embedding_lookup\b/rec.embedding_lookup/g
s/\btf\.(compat\.v1\.)?nn\.embedding_lookup_sparse\b/rec.embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?nn\.fused_embedding_lookup_sparse\b/rec.embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?nn\.safe_embedding_lookup_sparse\b/rec.safe_embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?nn\.fused_safe_embedding_lookup_sparse\b/rec.safe_embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?nn\.group_embedding_lookup_sparse\b/rec.group_embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?nn\.group_embedding_lookup\b/rec.group_embedding_lookup/g
s/\btf\.(compat\.v1\.)?feature_column\.group_embedding_column_scope\b/rec.group_embedding_column_scope/g
s/\btf\.(compat\.v1\.)?feature_column\.categorical_column_with_embedding\b/rec.categorical_column_with_embedding/g
s/\bsequence_feature_column\.sequence_categorical_column_with_embedding\b/rec.sequence_categorical_column_with_embedding/g
s/\btf\.(compat\.v1\.)?contrib\.layers\.sparse_column_with_embedding\b/rec.sparse_column_with_embedding/g
s/\btf\.(compat\.v1\.)?contrib\.layers\.sparse_column_wth_embedding\b/rec.sparse_column_wth_embedding/g
s/\btf\.(compat\.v1\.)?feature_column\.embedding_column\b/rec.embedding_column/g
s/\btf\.(compat\.v1\.)?feature_column\.shared_embedding_columns\b/rec.shared_embedding_columns/g
s/\btf\.(compat\.v1\.)?feature_column\.weighted_categorical_column\b/rec.weighted_categorical_column/g
s/\btf\.(compat\.v1\.)?feature_column\.linear_model\b/rec.linear_model/g
s/\btf\.(compat\.v1\.)?train\.AdagradOptimizer\b/rec.optimizers.AdagradOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdamOptimizer\b/rec.optimizers.AdamOptimizer/g
s/\btf\.(compat\.v1\.)?train\.FtrlOptimizer\b/rec.optimizers.FtrlOptimizer/g
s/\btf\.(compat\.v1\.)?train\.GradientDescentOptimizer\b/rec.optimizers.GradientDescentOptimizer/g
s/\btf\.(compat\.v1\.)?train\.MomentumOptimizer\b/rec.optimizers.MomentumOptimizer/g
s/\btf\.(compat\.v1\.)?train\.RMSPropOptimizer\b/rec.optimizers.RMSPropOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdadeltaOptimizer\b/rec.optimizers.AdadeltaOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdagradDAOptimizer\b/rec.optimizers.AdagradDAOptimizer/g
s/\btf\.(compat\.v1\.)?train\.ProximalAdagradOptimizer\b/rec.optimizers.ProximalAdagradOptimizer/g
s/\btf\.(compat\.v1\.)?train\.ProximalGradientDescentOptimizer\b/rec.optimizers.ProximalGradientDescentOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdagradDecayOptimizer\b/rec.optimizers.AdagradDecayOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdagradDecayOptimizerV2\b/rec.optimizers.AdagradDecayOptimizerV2/g
s/\btf\.(compat\.v1\.)?train\.AdamAsyncOptimizer\b/rec.optimizers.AdamAsyncOptimizer/g
s/\btf\.(compat\.v1\.)?train\.AdamWOptimizer\b/rec.optimizers.AdamWOptimizer/g
s/\bweight_decay_optimizers\.extend_with_decoupled_weight_decay\b/rec.optimizers.extend_with_decoupled_weight_decay/g
s/\btf\.(compat\.v1\.)?train\.MonitoredTrainingSession\b/rec.MonitoredTrainingSession/g
s/\btf\.(compat\.v1\.)?train\.init_from_checkpoint\b/rec.init_from_checkpoint/g
s/\bsample_awared_graph_compression\.enable_sample_awared_graph_compression\b/rec.enable_sample_awared_graph_compression/g
s/\btf\.(compat\.v1\.)?estimator\.Estimator\b/rec.RecEstimator/g
s/\btf\.(compat\.v1\.)?staged\b/rec.staged/g
s/\btf\.(compat\.v1\.)?make_prefetch_hook\b/rec.make_prefetch_hook/g
s/\btf\.(compat\.v1\.)?get_multihash_variable\b/rec.get_multihash_variable/g
s/\btf\.(compat\.v1\.)?feature_column\.categorical_column_with_multihash\b/rec.categorical_column_with_multihash/g
s/\btf\.(compat\.v1\.)?get_dynamic_dimension_embedding_variable\b/rec.get_dynamic_dimension_embedding_variable/g
s/\btf\.(compat\.v1\.)?feature_column\.categorical_column_with_adaptive_embedding\b/rec.categorical_column_with_adaptive_embedding/g
s/\btf\.(compat\.v1\.)?nn\.adaptive_embedding_lookup_sparse\b/rec.adaptive_embedding_lookup_sparse/g
s/\btf\.(compat\.v1\.)?estimator\./rec./g
