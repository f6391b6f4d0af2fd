# SPDX-License-Identifier: Apache-2.0
"""Names of the graph collections that scripts for Rec SDK use.

Source: Rec SDK TensorFlow, ``mx_rec.constants.constants``, which has the same names and values.
"""

# Graph modification fills and reads two of these collections, so it defines their names:
# the ops that start the data of a modified graph, and the timestamp of the batch.
from rec_estimator.graph_modifier.declared_inputs import ASCEND_TIMESTAMP as ASCEND_TIMESTAMP
from rec_estimator.graph_modifier.prepared_input import (
    ASCEND_CUTTING_POINT_INITIALIZER as ASCEND_CUTTING_POINT_INITIALIZER,
)

# The create_table tables of a graph. ConfigInitializer can choose another collection.
ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"

# With dynamic expansion scripts pass the first to tf.gradients, the second to apply_gradients():
# the vectors that training lookups read, and their keys.
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"
