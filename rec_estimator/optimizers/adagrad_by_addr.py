# SPDX-License-Identifier: Apache-2.0
"""Adagrad: the factory for tables with dynamic expansion."""

from rec_estimator.optimizers.adagrad import AdagradOptimizer
from rec_estimator.optimizers.hash_optimizer import factory_of

create_hash_optimizer_by_address = factory_of(
    "adagrad_by_addr.create_hash_optimizer_by_address", AdagradOptimizer
)
