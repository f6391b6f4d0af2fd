# SPDX-License-Identifier: Apache-2.0
"""A whole script in a session: two tables, two labels, training, evaluation, checkpoints.

    python -m model_zoo.little_demo --model_dir /tmp/little_demo

The steps are those of Rec SDK's page "API call overview", on generated data. If there is a
checkpoint, the script restores the last one and goes on up to --steps.
"""

import argparse
import os
import sys
from typing import Dict, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import layers
from rec_estimator.optimizers.lazy_adam import create_hash_optimizer

Batch = Dict[str, tf.Tensor]
LABELS = ("label_0", "label_1")
STEPS, EVAL_STEPS, STEPS_BETWEEN_SAVES = 200, 10, 50
_BATCH_SIZE, _LEARNING_RATE = 256, 0.02
_USERS, _ITEMS = 800, 300
_TABLES = ("user_table", "item_table")
_SPECS = [rec.FeatureSpec(ids, table) for ids, table in zip(("user_ids", "item_ids"), _TABLES)]


def make_dataset(steps: int, is_train: bool, modify_graph: bool, skip: int = 0) -> tf.data.Dataset:
    """Batches of user_ids int64 [B, 4], item_ids int64 [B, 2] and the labels, float32 [B].

    Each id has a worth. That of the items decides label_0, that of users and items label_1.
    """
    rows = _BATCH_SIZE * steps
    users = np.random.default_rng([1, is_train]).integers(_USERS, size=[rows, 4])
    items = np.random.default_rng([2, is_train]).integers(_ITEMS, size=[rows, 2])
    worths = np.random.default_rng(3).standard_normal(_USERS)
    of_items, of_users = worths[items].sum(axis=1), worths[users].sum(axis=1)
    labels = {"label_0": np.float32(of_items > 0), "label_1": np.float32(of_items + of_users > 0)}
    dataset = tf.data.Dataset.from_tensor_slices({"user_ids": users, "item_ids": items, **labels})
    dataset = dataset.batch(_BATCH_SIZE).skip(skip)
    if not modify_graph:
        dataset = dataset.map(rec.get_asc_insert_func(_SPECS, is_training=is_train))
    return dataset.prefetch(2)


def forward(batch: Batch, is_train: bool, modify_graph: bool) -> Batch:
    """The logits of each label, float32 [B]: sums of rows, a shared layer, one unit per label."""
    initializer = tf.truncated_normal_initializer(stddev=0.05)
    sums = []
    for spec, name, dim, most_rows in zip(_SPECS, _TABLES, (8, 16), (_USERS, _ITEMS)):
        table = rec.create_table(
            key_dtype=tf.int64,
            dim=tf.TensorShape([dim]),
            name=name,
            emb_initializer=initializer,
            device_vocabulary_size=most_rows,
        )
        ids = batch[spec.name] if modify_graph else spec
        rows = rec.sparse_lookup(
            table, ids, is_train=is_train, modify_graph=modify_graph, batch=batch
        )
        sums.append(tf.reduce_sum(rows, axis=1))
    with tf.variable_scope("network", reuse=tf.AUTO_REUSE):
        hidden = layers.hidden(tf.concat(sums, axis=1), [32], "shared")
        return {label: layers.tower(hidden, [], label) for label in LABELS}


def total_loss(batch: Batch, logits: Batch) -> tf.Tensor:
    """float32 [], the sum of the mean log losses of the labels."""
    losses = [
        tf.nn.sigmoid_cross_entropy_with_logits(labels=batch[label], logits=logits[label])
        for label in LABELS
    ]
    return tf.reduce_mean(tf.add_n(losses))


def train_step(loss: tf.Tensor) -> tf.Operation:
    """Adam for the dense variables, lazy Adam for the tables; adds 1 to the global step."""
    dense_variables, tables = rec.get_dense_and_sparse_variable()
    dense_optimizer = tf.train.AdamOptimizer(_LEARNING_RATE)
    table_optimizer = create_hash_optimizer(_LEARNING_RATE)
    gradients = tf.gradients(loss, tables)
    updates = [
        dense_optimizer.minimize(loss, var_list=dense_variables),
        table_optimizer.apply_gradients(zip(gradients, tables)),
    ]
    with tf.control_dependencies(updates):
        return tf.assign_add(tf.train.get_or_create_global_step(), 1).op


def build(steps: int, is_train: bool, modify_graph: bool, skip: int = 0) -> Tuple:
    """Returns the op that starts the data, a batch of them, and its logits."""
    iterator = tf.data.make_initializable_iterator(
        make_dataset(steps, is_train, modify_graph, skip)
    )
    batch = iterator.get_next()
    return iterator.initializer, batch, forward(batch, is_train, modify_graph)


def run(model_dir: str, steps: int = STEPS, modify_graph: bool = True) -> Dict[str, float]:
    """Trains from the last checkpoint of model_dir up to step `steps`, with a line per save.

    Returns:
      The AUC of each label over the batches of evaluation, after the last step.
    """
    last = tf.train.latest_checkpoint(model_dir)
    start = int(last.rpartition("-")[2]) if last else 0
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        train_data, batch, logits = build(steps, True, modify_graph, skip=start)
        eval_data, eval_batch, eval_logits = build(EVAL_STEPS, False, modify_graph)
        loss = total_loss(batch, logits)
        step = train_step(loss)
        metrics = [rec.metrics.auc(eval_batch[label], eval_logits[label]) for label in LABELS]
        values, updates = zip(*metrics)
        reset_metrics = tf.local_variables_initializer()
        saver = rec.Saver()
        if modify_graph:
            rec.modify_graph_and_start_emb_cache()
            train_data, eval_data = rec.get_initializer(True), rec.get_initializer(False)
        else:
            rec.start_asc_pipeline()

        with tf.Session() as session:

            def evaluate() -> Dict[str, float]:
                session.run([eval_data, reset_metrics])
                for _ in range(EVAL_STEPS):
                    session.run(updates)
                return dict(zip(LABELS, map(float, session.run(values))))

            session.run([train_data, tf.global_variables_initializer()])
            if last:
                saver.restore(session, last)
            for number in range(start + 1, steps + 1):
                current_loss, _ = session.run([loss, step])
                if number % STEPS_BETWEEN_SAVES == 0 or number == steps:
                    print(f"step {number} | loss {current_loss:.4f} |", evaluate())
                    saver.save(session, os.path.join(model_dir, "model"), global_step=number)
            return evaluate()


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model_dir", required=True, help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--modify_graph", type=int, choices=(0, 1), default=1)
    args = parser.parse_args(arguments)
    rec.init(max_steps=args.steps, eval_steps=EVAL_STEPS, save_steps=STEPS_BETWEEN_SAVES)
    try:
        print("at the end |", run(args.model_dir, args.steps, bool(args.modify_graph)))
    finally:
        rec.terminate_config_initializer()
    return 0


if __name__ == "__main__":
    sys.exit(main())
