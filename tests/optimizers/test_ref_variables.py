# SPDX-License-Identifier: Apache-2.0
"""Rules that TensorFlow lacks, on variables that are no resources, whose reads share their buffer.

A read of such a variable that is not ordered before the write of the same step sees either value.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

VARIABLES, REPEATS, STEPS = 8, 100, 4

RULES = {
    "AdagradDecay": lambda step: rec.optimizers.AdagradDecayOptimizer(
        0.1, step, accumulator_decay_step=2, accumulator_decay_rate=0.5
    ),
    "AdagradDecayV2": lambda step: rec.optimizers.AdagradDecayOptimizerV2(
        0.1, step, accumulator_decay_step=2, accumulator_decay_rate=0.5
    ),
    "AdamAsync": lambda step: rec.optimizers.AdamAsyncOptimizer(0.1),
    "AdamW": lambda step: rec.optimizers.AdamWOptimizer(0.01, 0.1),
    "LazyAdam": lambda step: rec.optimizers.LazyAdamOptimizer(0.1),
    "RowwiseAdagrad": lambda step: rec.optimizers.RowwiseAdagradOptimizer(0.1),
    "GradientDescent with decay": lambda step: rec.optimizers.GradientDescentOptimizer(
        0.1, weight_decay=0.1
    ),
}


def values_after_steps(make, use_resource, repeats):
    """The variables after some steps from the same start, once each repeat."""
    with tf.Graph().as_default(), tf.variable_scope("v", use_resource=use_resource):
        step = tf.train.get_or_create_global_step()
        start = np.linspace(-1, 1, 512 * 8, dtype=np.float32).reshape(512, 8)
        variables = [
            tf.get_variable(f"x{i}", initializer=start * (i + 1)) for i in range(VARIABLES)
        ]
        loss = tf.add_n([tf.reduce_sum(tf.square(variable - 0.3)) for variable in variables])
        train_op = make(step).minimize(loss, step)
        initialize = tf.global_variables_initializer()
        with tf.Session() as session:
            for _ in range(repeats):
                session.run(initialize)
                for _ in range(STEPS):
                    session.run(train_op)
                yield session.run(variables)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.long
def test_a_step_reads_every_variable_before_it_writes_one(rule):
    expected = next(values_after_steps(RULES[rule], use_resource=True, repeats=1))
    for found in values_after_steps(RULES[rule], use_resource=False, repeats=REPEATS):
        np.testing.assert_array_equal(found, expected)
