# SPDX-License-Identifier: Apache-2.0
"""DeepRec's demos of EmbeddingVariable as one model, ported by changing their imports.

    python deeprec_embedding_variable.py --checkpoint FOLDER --epochs 2 --ev_storage dram

A linear model and a deep model read the same columns. The deep model also reads a variable of
get_embedding_variable, in several parts. A plain session trains with two optimizers of one scope
each, and without a global step. TensorFlow's own Saver stores everything.
"""

import argparse
import os

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec

EXAMPLES, HISTORY = 320, 5
BATCH_SIZE = 32


def generate_input_data():
    """Ids in several columns; the item's id decides about the label, the user's nearly as much."""
    rng = np.random.default_rng(5)
    user = np.minimum(rng.zipf(1.3, EXAMPLES), 10**12)
    item = np.minimum(rng.zipf(1.3, EXAMPLES), 500) * 1001 - 250_000
    history = np.minimum(rng.zipf(1.3, [EXAMPLES, HISTORY]), 500) * 1001 - 250_000
    history[rng.random([EXAMPLES, HISTORY]) < 0.3] = -1
    label = (user % 3 + item % 5 < 4).astype(np.float32)
    data = {"user": user, "item": item, "history": history, "label": label}
    score = np.where(history == -1, 0.0, rng.random([EXAMPLES, HISTORY]) + 0.5)
    data["score"] = score.astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(data)
    return dataset.batch(BATCH_SIZE).prefetch(1)


def build_feature_cols():
    storage = rec.StorageOption(storage_type=rec.StorageType.DRAM)
    init = rec.InitializerOption(initializer=tf.glorot_uniform_initializer(), default_value_dim=512)
    ev_option = rec.EmbeddingVariableOption(storage_option=storage, init_option=init)
    user, item, history = [
        rec.categorical_column_with_embedding(key, dtype=tf.int64, ev_option=ev_option)
        for key in ("user", "item", "history")
    ]
    scored = rec.weighted_categorical_column(history, "score")
    wide_columns = [user, item, scored]
    deep_columns = [
        rec.embedding_column(user, dimension=8, combiner="mean"),
        *rec.shared_embedding_columns([item, history], dimension=8, combiner="mean"),
    ]
    return wide_columns, deep_columns


def dense(inputs, units, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


def prediction(batch):
    wide_columns, deep_columns = build_feature_cols()
    with tf.variable_scope("dnn"):
        net = tf.feature_column.input_layer(features=batch, feature_columns=deep_columns)
        var = rec.get_embedding_variable(
            "var_0",
            embedding_dim=4,
            initializer=tf.truncated_normal_initializer(stddev=0.1),
            partitioner=tf.fixed_size_partitioner(num_shards=args.num_shards),
        )
        net = tf.concat([net, rec.embedding_lookup(var, batch["item"])], axis=1)
        net = tf.nn.relu(dense(net, 16, "hiddenlayer_0"))
        dnn_logits = dense(net, 1, "logits")
    with tf.variable_scope("linear"):
        linear_logits = rec.linear_model(
            units=1, features=batch, feature_columns=wide_columns, sparse_combiner="sum"
        )
    return tf.squeeze(dnn_logits + linear_logits, axis=1), var


def optimize(loss):
    dnn_optimizer = rec.optimizers.AdagradOptimizer(0.1, initial_accumulator_value=0.1)
    linear_optimizer = rec.optimizers.FtrlOptimizer(
        0.2, l1_regularization_strength=0.0, l2_regularization_strength=0.0
    )
    gradients = dnn_optimizer.compute_gradients(
        loss, tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="dnn")
    )
    return tf.group(
        dnn_optimizer.apply_gradients(gradients),
        linear_optimizer.minimize(
            loss, var_list=tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="linear")
        ),
    )


def main():
    tf.set_random_seed(2021)
    iterator = tf.data.make_initializable_iterator(generate_input_data())
    batch = iterator.get_next()
    logits, var = prediction(batch)
    loss = tf.losses.sigmoid_cross_entropy(batch["label"], logits)
    train_op = optimize(loss)
    frequency = var.get_frequency(tf.constant([1001 - 250_000], tf.int64))
    sizes = [part.total_count() for part in var]
    saver = rec.Saver(max_to_keep=2)

    sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    with tf.Session(config=sess_config) as sess:
        sess.run(tf.global_variables_initializer())
        latest = tf.train.latest_checkpoint(args.checkpoint)
        first = 0
        if latest:
            saver.restore(sess, latest)
            first = int(latest.rsplit("-", 1)[1])
        for epoch in range(first, args.epochs):
            sess.run(iterator.initializer)
            while True:
                try:
                    print(f"loss {sess.run([loss, train_op])[0]:.9g}")
                except tf.errors.OutOfRangeError:
                    break
            saver.save(sess, os.path.join(args.checkpoint, "model"), global_step=epoch + 1)
        print("frequency", *sess.run(frequency))
        print("rows and dimension of each part", *map(tuple, sess.run(sizes)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num_shards", type=int, default=4)
    args = parser.parse_args()
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    main()
