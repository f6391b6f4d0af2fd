# SPDX-License-Identifier: Apache-2.0
"""Resumes the training of an Estimator from damaged checkpoints.

train() must raise an error, or do all steps that are left. If checksums cover the damage, it must
end with the bits of a training that was not interrupted.
"""

import pathlib
import shutil

import numpy as np
import tensorflow.compat.v1 as tf
from fuzz.fuzz_checkpoints import REFUSALS
from fuzz.mutant_checkpoints import mutate, read_array
from fuzz.mutations import change_bytes

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle

BEFORE, AFTER = 2, 4  # Global steps.


def model_fn(features, labels, mode):
    del labels
    table = rec.get_embedding_variable("a", 3, initializer=tf.ones_initializer())
    weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, features["ids"]) * weight))
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors(({"ids": np.arange(9)}, [1.0])).repeat(AFTER)


def train(folder, steps):
    config = rec.RunConfig(
        model_dir=str(folder), save_summary_steps=None, log_step_count_steps=None
    )
    rec.RecEstimator(model_fn, config=config).train(input_fn, max_steps=steps)
    return Bundle(tf.train.latest_checkpoint(str(folder)))


def contents(bundle):
    """The numbers of all tensors."""
    return {name: read_array(bundle, name).tobytes() for name in bundle.tensors}


class Target:
    """Mutants of the folder of a training, from its checkpoint to the state that names it."""

    def __init__(self, folder):
        tf.disable_eager_execution()
        tf.get_logger().setLevel("ERROR")
        self._good, self._bad = folder / "good", folder / "bad"
        train(self._good, BEFORE)
        shutil.copytree(self._good, self._bad)
        self._expected = contents(train(self._bad, AFTER))

    def run(self, seed):
        rng = np.random.default_rng(seed)
        shutil.rmtree(self._bad)
        shutil.copytree(self._good, self._bad)
        prefix = str(self._bad / f"model.ckpt-{BEFORE}")
        if rng.random() < 0.1:
            state = pathlib.Path(self._bad, "checkpoint")
            state.write_bytes(change_bytes(rng, state.read_bytes()))
            done, is_covered = "state", True
        else:
            done, is_covered = mutate(rng, [prefix])
        try:
            bundle = train(self._bad, AFTER)
        except REFUSALS:
            return "refused"
        except tf.train.NanLossDuringTrainingError:
            # Values with good checksums may be NaN.
            assert not is_covered, f"{done} was accepted"
            return "refused late"
        # A checkpoint with good checksums may say that the training was done.
        step = read_array(bundle, "global_step")
        assert step.size == 1 and step.max() >= AFTER, f"{done}: training ended at step {step}"
        if is_covered:
            # Training begins anew where no state names a checkpoint, and ends with the same bits.
            assert contents(bundle) == self._expected, f"{done} was accepted"
        return "unharmed" if is_covered else "accepted"
