# SPDX-License-Identifier: Apache-2.0
"""Names of graph collections that scripts for Rec SDK use, with their values there.

Source: Rec SDK TensorFlow, ``mx_rec.constants.constants``. The variable's name is ours.
"""

# The batch's timestamp: scripts put it here where no FeatureSpec names it.
ASCEND_TIMESTAMP = "ASCEND_TIMESTAMP"

# The graph's create_table tables; init()'s ConfigInitializer can choose another collection.
ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"

# With dynamic expansion: what tf.gradients is asked for, and what apply_gradients() is given.
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"

# What starts the data of a modified graph.
ASCEND_CUTTING_POINT_INITIALIZER = "ASCEND_CUTTING_POINT_INITIALIZER"

# The variable with the greatest timestamp of a batch that trained a table.
TIMESTAMP_VARIABLE = "rec_estimator_timestamp"
