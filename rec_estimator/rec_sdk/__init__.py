# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's functions, built on the tables, lookups and graph passes of this package.

The modules in the order in which a script uses them:

    runtime.py           init() and its settings, ranks of an MPI launch
    feature_spec.py      FeatureSpec, start_asc_pipeline: ids that a dataset declares
    insert_function.py   get_asc_insert_func: the function with which such a dataset is mapped
    create_table.py      create_table and the checks of its arguments
    sparse_table.py      SparseTable: the table that create_table makes
    sparse_lookup.py     sparse_lookup: reads rows, sets thresholds
    variables.py         get_dense_and_sparse_variable: the lists for tf.gradients
    evict_hook.py        EvictHook: evicts keys during training
    constants.py         names of collections

Graph modification is in rec_estimator/graph_modifier, optimizer factories in
rec_estimator/optimizers. docs/porting.md lists every name of Rec SDK.
"""
