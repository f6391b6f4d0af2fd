# SPDX-License-Identifier: Apache-2.0
"""A DeepFM as TensorFlow 1's public Estimators are written: its model_fn and optimizer are stock.

    python tf1_deepfm.py --data_dir DATA --model_dir FOLDER --task_type train

The Estimator and the two weight matrices are ours. FM_W, a vector with a weight per id, is a table
of dimension 1. The L2 loss of the matrices became that of the looked-up rows.
"""

import argparse
import os
from glob import glob

import tensorflow.compat.v1 as tf

import rec_estimator as rec


def input_fn(filenames, batch_size=32, num_epochs=1, perform_shuffle=False):
    def decode_libsvm(line):
        columns = tf.string_split([line], " ")
        labels = tf.string_to_number(columns.values[0], out_type=tf.float32)
        splits = tf.string_split(columns.values[1:], ":")
        id_vals = tf.reshape(splits.values, splits.dense_shape)
        feat_ids, feat_vals = tf.split(id_vals, num_or_size_splits=2, axis=1)
        feat_ids = tf.string_to_number(feat_ids, out_type=tf.int32)
        feat_vals = tf.string_to_number(feat_vals, out_type=tf.float32)
        return {"feat_ids": feat_ids, "feat_vals": feat_vals}, labels

    dataset = tf.data.TextLineDataset(filenames).map(decode_libsvm, num_parallel_calls=2)
    dataset = dataset.prefetch(1000)
    if perform_shuffle:
        dataset = dataset.shuffle(buffer_size=256)
    dataset = dataset.repeat(num_epochs).batch(batch_size)
    iterator = tf.data.make_one_shot_iterator(dataset)
    batch_features, batch_labels = iterator.get_next()
    return batch_features, batch_labels


def fully_connected(inputs, num_outputs, scope, l2_reg, activation_fn=tf.nn.relu):
    """The layer of tf.contrib.layers.fully_connected."""
    with tf.variable_scope(scope):
        weights = tf.get_variable(
            "weights",
            [inputs.shape[-1], num_outputs],
            initializer=tf.glorot_uniform_initializer(),
            regularizer=lambda weights: l2_reg * tf.nn.l2_loss(weights),
        )
        biases = tf.get_variable("biases", [num_outputs], initializer=tf.zeros_initializer())
    return activation_fn(tf.matmul(inputs, weights) + biases)


def model_fn(features, labels, mode, params):
    field_size = params["field_size"]
    embedding_size = params["embedding_size"]
    l2_reg = params["l2_reg"]
    learning_rate = params["learning_rate"]
    layers = list(map(int, params["deep_layers"].split(",")))

    FM_B = tf.get_variable(name="fm_bias", shape=[1], initializer=tf.constant_initializer(0.0))
    FM_W = rec.get_embedding_variable("fm_w", 1, initializer=tf.glorot_normal_initializer())
    FM_V = rec.get_embedding_variable(
        "fm_v", embedding_size, initializer=tf.glorot_normal_initializer()
    )

    feat_ids = tf.reshape(features["feat_ids"], shape=[-1, field_size])
    feat_vals = tf.reshape(features["feat_vals"], shape=[-1, field_size])

    with tf.variable_scope("First-order"):
        weights = rec.embedding_lookup(FM_W, feat_ids)
        feat_wgts = tf.squeeze(weights, axis=-1)
        y_w = tf.reduce_sum(tf.multiply(feat_wgts, feat_vals), 1)

    with tf.variable_scope("Second-order"):
        vectors = rec.embedding_lookup(FM_V, feat_ids)
        embeddings = tf.multiply(vectors, tf.reshape(feat_vals, shape=[-1, field_size, 1]))
        sum_square = tf.square(tf.reduce_sum(embeddings, 1))
        square_sum = tf.reduce_sum(tf.square(embeddings), 1)
        y_v = 0.5 * tf.reduce_sum(tf.subtract(sum_square, square_sum), 1)

    with tf.variable_scope("Deep-part"):
        deep_inputs = tf.reshape(embeddings, shape=[-1, field_size * embedding_size])
        for i, units in enumerate(layers):
            deep_inputs = fully_connected(deep_inputs, units, f"mlp{i}", l2_reg)
        y_deep = fully_connected(deep_inputs, 1, "deep_out", l2_reg, activation_fn=tf.identity)
        y_d = tf.reshape(y_deep, shape=[-1])

    with tf.variable_scope("DeepFM-out"):
        y = FM_B * tf.ones_like(y_d, dtype=tf.float32) + y_w + y_v + y_d
        pred = tf.sigmoid(y)

    predictions = {"prob": pred}
    key = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    export_outputs = {key: rec.export.PredictOutput(predictions)}
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions=predictions, export_outputs=export_outputs)

    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=y, labels=labels))
    loss += l2_reg * (tf.nn.l2_loss(weights) + tf.nn.l2_loss(vectors)) / params["batch_size"]
    eval_metric_ops = {"auc": tf.metrics.auc(labels, pred)}
    if mode == rec.ModeKeys.EVAL:
        return rec.EstimatorSpec(
            mode, predictions=predictions, loss=loss, eval_metric_ops=eval_metric_ops
        )

    if params["optimizer"] == "Adam":
        optimizer = tf.train.AdamOptimizer(
            learning_rate=learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        )
    elif params["optimizer"] == "Adagrad":
        optimizer = tf.train.AdagradOptimizer(
            learning_rate=learning_rate, initial_accumulator_value=1e-8
        )
    else:
        optimizer = tf.train.MomentumOptimizer(learning_rate=learning_rate, momentum=0.95)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train_op)


def train(estimator, tr_files, va_files):
    train_spec = rec.TrainSpec(
        input_fn=lambda: input_fn(tr_files, args.batch_size, args.num_epochs),
        hooks=[PrintLossHook()],
    )
    eval_spec = rec.EvalSpec(
        input_fn=lambda: input_fn(va_files, args.batch_size),
        steps=None,
        start_delay_secs=0,
        throttle_secs=0,
    )
    metrics, _ = rec.train_and_evaluate(estimator, train_spec, eval_spec)
    print("eval loss {loss:.9g} auc {auc:.9g}".format(**metrics))


class PrintLossHook(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs(run_context.session.graph.get_collection("losses")[-1])

    def after_run(self, run_context, run_values):
        print(f"loss {run_values.results:.9g}")


def export(estimator):
    feature_spec = {
        "feat_ids": tf.placeholder(tf.int64, [None, args.field_size], "feat_ids"),
        "feat_vals": tf.placeholder(tf.float32, [None, args.field_size], "feat_vals"),
    }
    receiver = rec.build_raw_serving_input_receiver_fn(feature_spec)
    estimator.export_savedmodel(os.path.join(args.model_dir, "servable"), receiver)


def main():
    tr_files, va_files, te_files = [
        sorted(glob(f"{args.data_dir}/{kind}*libsvm")) for kind in ("tr", "va", "te")
    ]
    model_params = {
        "field_size": args.field_size,
        "embedding_size": args.embedding_size,
        "learning_rate": args.learning_rate,
        "l2_reg": args.l2_reg,
        "deep_layers": args.deep_layers,
        "optimizer": args.optimizer,
        "batch_size": args.batch_size,
    }
    config = rec.RunConfig(tf_random_seed=5).replace(
        session_config=tf.ConfigProto(device_count={"GPU": 0, "CPU": 2}),
        log_step_count_steps=1000,
        save_summary_steps=1000,
    )
    # Updates what the stock optimizer of model_fn leaves: the tables.
    table_optimizer = {
        "Adam": rec.optimizers.AdamOptimizer(args.learning_rate),
        "Adagrad": rec.optimizers.AdagradOptimizer(args.learning_rate, 1e-8),
        "Momentum": rec.optimizers.MomentumOptimizer(args.learning_rate, 0.95),
    }[args.optimizer]
    DeepFM = rec.RecEstimator(
        model_fn=model_fn,
        model_dir=args.model_dir,
        params=model_params,
        config=config,
        table_optimizer=table_optimizer,
    )
    if args.task_type == "train":
        train(DeepFM, tr_files, va_files)
    elif args.task_type == "eval":
        print(DeepFM.evaluate(input_fn=lambda: input_fn(va_files, args.batch_size)))
    elif args.task_type == "infer":
        preds = DeepFM.predict(
            input_fn=lambda: input_fn(te_files, args.batch_size), predict_keys="prob"
        )
        for prob in preds:
            print("prob {prob:.9g}".format(**prob))
    else:
        export(DeepFM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument(
        "--task_type", choices=["train", "eval", "infer", "export"], default="train"
    )
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--field_size", type=int, default=6)
    parser.add_argument("--embedding_size", type=int, default=8)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--l2_reg", type=float, default=0.0001)
    parser.add_argument("--optimizer", choices=["Adam", "Adagrad", "Momentum"], default="Adam")
    parser.add_argument("--deep_layers", default="32,16")
    args = parser.parse_args()
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    main()
