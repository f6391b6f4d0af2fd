# SPDX-License-Identifier: Apache-2.0
"""Optimizers that train tables besides dense variables, named as in ``tf.compat.v1.train``.

Step 4 of the data flow. ``AdagradOptimizer(0.05).minimize(loss)`` updates dense variables with
TensorFlow's own kernels and each trainable table of the graph with one fused op. Each rule has a
module. All rules share table_optimizer.py; rules that TensorFlow does not have also share
dense_optimizer.py. The arithmetic on rows is in ops/core/math/row_update.cc. The factories
create_hash_optimizer() are in hash_optimizer.py; scripts import them from the module of the rule.
"""

from rec_estimator.optimizers import (
    adagrad_by_addr,
    gradient_descent_by_addr,
    lazy_adam_by_addr,
)
from rec_estimator.optimizers.adadelta import AdadeltaOptimizer
from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.adagrad_da import AdagradDAOptimizer
from rec_estimator.optimizers.adagrad_decay import AdagradDecayOptimizer, AdagradDecayOptimizerV2
from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.adam_async import AdamAsyncOptimizer
from rec_estimator.optimizers.adam_w import (
    AdamWOptimizer,
    extend_with_decoupled_weight_decay,
)
from rec_estimator.optimizers.amsgrad import AMSGradOptimizer
from rec_estimator.optimizers.ftrl import FtrlOptimizer
from rec_estimator.optimizers.gradient_descent import GradientDescentOptimizer
from rec_estimator.optimizers.group_adam import GroupAdamOptimizer
from rec_estimator.optimizers.group_ftrl import GroupFtrlOptimizer
from rec_estimator.optimizers.lazy_adam import LazyAdamOptimizer
from rec_estimator.optimizers.momentum import MomentumOptimizer
from rec_estimator.optimizers.proximal_adagrad import ProximalAdagradOptimizer
from rec_estimator.optimizers.proximal_gradient_descent import ProximalGradientDescentOptimizer
from rec_estimator.optimizers.rmsprop import RMSPropOptimizer
from rec_estimator.optimizers.rowwise_adagrad import RowwiseAdagradOptimizer

__all__ = [
    "AMSGradOptimizer",
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradDecayOptimizer",
    "AdagradDecayOptimizerV2",
    "AdagradOptimizer",
    "AdamAsyncOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "GroupAdamOptimizer",
    "GroupFtrlOptimizer",
    "LazyAdamOptimizer",
    "MomentumOptimizer",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "RMSPropOptimizer",
    "RowwiseAdagradOptimizer",
    "adagrad_by_addr",
    "extend_with_decoupled_weight_decay",
    "gradient_descent_by_addr",
    "lazy_adam_by_addr",
]
