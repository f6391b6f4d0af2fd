"""Optimizers that train tables beside dense variables, named as in ``tf.compat.v1.train``.

Step 4 of the data flow. ``AdagradOptimizer(0.05).minimize(loss)`` updates dense variables with
TensorFlow's own kernels and each trainable table of the graph with one fused op. One module a
rule; what they share is in table_updates.py, the arithmetic on rows in ops/core/row_update.cc.
"""

from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.ftrl import FtrlOptimizer
from rec_estimator.optimizers.gradient_descent import GradientDescentOptimizer
from rec_estimator.optimizers.lazy_adam import LazyAdamOptimizer
from rec_estimator.optimizers.momentum import MomentumOptimizer

__all__ = [
    "AdagradOptimizer",
    "AdamOptimizer",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "LazyAdamOptimizer",
    "MomentumOptimizer",
]
