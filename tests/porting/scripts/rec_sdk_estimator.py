# SPDX-License-Identifier: Apache-2.0
"""An Estimator of Rec SDK in the form of its little_demo_estimator, ported by changing its imports.

    python rec_sdk_estimator.py --run_mode train --model_dir FOLDER --max_steps 20

Two tables: users by integers, items by strings that become numbers in the graph. A dense and a
sparse optimizer, a global step that the model increments, eviction by the data's timestamps, and
an export at the end.
"""

import argparse
import os

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import (
    ASCEND_TIMESTAMP,
    EstimatorSpec,
    EvalSpec,
    EvictHook,
    FeatureSpec,
    GraphModifierHook,
    ModeKeys,
    RecEstimator,
    RunConfig,
    TrainSpec,
    create_table,
    export,
    get_asc_insert_func,
    get_dense_and_sparse_variable,
    init,
    sparse_lookup,
    terminate_config_initializer,
    train_and_evaluate,
)
from rec_estimator.optimizers.gradient_descent import create_hash_optimizer


class Config:
    batch_size, data_steps = 32, 20
    user_range, item_range = 200, 100
    user_feat_cnt, item_feat_cnt = 2, 4
    user_hashtable_dim, item_hashtable_dim = 8, 16
    user_vocab_size, item_vocab_size = 1000, 1000
    access_threshold, eviction_threshold = 2, 5


def get_data_generator(config, seed):
    def data_generator():
        rng = np.random.default_rng(seed)
        tastes = np.random.default_rng(1).normal(size=config.item_range)
        for step in range(config.data_steps):
            users = rng.integers(0, config.user_range, [config.batch_size, config.user_feat_cnt])
            items = rng.integers(0, config.item_range, [config.batch_size, config.item_feat_cnt])
            sums = tastes[items].sum(axis=1)
            yield {
                "user_ids": users,
                "item_ids": items.astype(str),
                "label_0": (sums > 0).astype(np.float32),
                "label_1": (users.sum(axis=1) % 2).astype(np.float32),
                "timestamp": 1_700_000_000 + step,
            }

    return data_generator


def input_fn(params, config, is_eval=False, use_one_shot=False):
    shape = {"user_ids": [config.batch_size, 2], "item_ids": [config.batch_size, 4]}
    shape.update(label_0=[config.batch_size], label_1=[config.batch_size], timestamp=[])
    kind = {"user_ids": tf.int64, "item_ids": tf.string, "timestamp": tf.int64}
    kind.update(label_0=tf.float32, label_1=tf.float32)
    dataset = tf.data.Dataset.from_generator(
        get_data_generator(config, seed=2 if is_eval else 1), output_types=kind, output_shapes=shape
    )
    if not is_eval:
        dataset = dataset.repeat()
    if not params.modify_graph:

        def numbers(batch):
            return {**batch, "item_ids": tf.strings.to_number(batch["item_ids"], tf.int64)}

        insert = get_asc_insert_func(tgt_key_specs=SPECS, is_training=not is_eval)
        dataset = dataset.map(numbers).map(insert)
    dataset = dataset.prefetch(100)
    if use_one_shot:
        return tf.data.make_one_shot_iterator(dataset).get_next()
    return dataset


def dense_layer(inputs, units, name):
    kernel = tf.get_variable(
        f"{name}/kernel",
        [inputs.shape[-1], units],
        initializer=tf.glorot_uniform_initializer(seed=units),
    )
    bias = tf.get_variable(f"{name}/bias", [units], initializer=tf.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def my_model(embeddings, features):
    with tf.variable_scope("mlp", reuse=tf.AUTO_REUSE):
        hidden = tf.nn.relu(dense_layer(tf.concat(embeddings, axis=1), 16, "hidden"))
        logits = [tf.squeeze(dense_layer(hidden, 1, f"task_{i}"), axis=1) for i in range(2)]
    losses = [
        tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=features[f"label_{i}"], logits=logit)
        )
        for i, logit in enumerate(logits)
    ]
    return losses, {f"task_{i + 1}": tf.sigmoid(logit) for i, logit in enumerate(logits)}


def get_train_op(loss, learning_rate):
    dense_optimizer = tf.train.AdamOptimizer(learning_rate=learning_rate)
    sparse_optimizer = create_hash_optimizer(learning_rate=learning_rate * 10.0)
    dense_variables, sparse_variables = get_dense_and_sparse_variable()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        grads = dense_optimizer.compute_gradients(loss, var_list=dense_variables)
        sparse_grads = tf.gradients(loss, sparse_variables)
        train_ops = [
            dense_optimizer.apply_gradients([pair for pair in grads if pair[0] is not None]),
            sparse_optimizer.apply_gradients(zip(sparse_grads, sparse_variables)),
        ]
    with tf.control_dependencies(train_ops):
        return tf.assign_add(tf.train.get_or_create_global_step(), 1)


def get_model_fn(config, access_and_evict):
    def model_fn(features, labels, mode, params):
        is_train = mode == ModeKeys.TRAIN
        user_table = create_table(
            key_dtype=tf.int64,
            dim=config.user_hashtable_dim,
            name="user_table",
            emb_initializer=tf.truncated_normal_initializer(stddev=0.1, seed=1),
            device_vocabulary_size=config.user_vocab_size,
        )
        item_table = create_table(
            key_dtype=tf.int64,
            dim=config.item_hashtable_dim,
            name="item_table",
            emb_initializer=tf.random_uniform_initializer(-0.1, 0.1, seed=2),
            device_vocabulary_size=config.item_vocab_size,
        )
        ids = SPECS[:2]
        if params.modify_graph:
            item_ids = features["item_ids"]
            if item_ids.dtype == tf.string:
                item_ids = tf.strings.to_number(item_ids, tf.int64)
            ids = [features["user_ids"], item_ids]
            if params.use_timestamp and is_train:
                tf.add_to_collection(ASCEND_TIMESTAMP, features["timestamp"])
        embeddings = []
        for table, table_ids in zip((user_table, item_table), ids):
            thresholds = access_and_evict.get(table.table_name) if access_and_evict else None
            embedding = sparse_lookup(
                table,
                table_ids,
                config.batch_size * 4,
                dim=None,
                is_train=is_train,
                name=table.table_name + "_lookup",
                modify_graph=params.modify_graph,
                batch=features,
                access_and_evict_config=thresholds if params.modify_graph else None,
                serving_default_value=None,
            )
            embeddings.append(tf.reduce_mean(embedding, axis=1))
        losses, predictions = my_model(embeddings, features)
        if mode == ModeKeys.PREDICT:
            outputs = {"serving_default": export.PredictOutput(predictions)}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        loss = tf.add_n(losses)
        if not is_train:
            auc = tf.metrics.auc(features["label_0"], predictions["task_1"])
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"auc_1": auc})
        train_op = get_train_op(loss, params.learning_rate)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


class PrintLossHook(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs(run_context.session.graph.get_collection("losses")[-1])

    def after_run(self, run_context, run_values):
        print(f"loss {run_values.results:.9g}")


def export_model(est, config):
    def serving_input_fn():
        inputs = {
            "user_ids": tf.placeholder(tf.int64, (None, config.user_feat_cnt), "user_ids"),
            "item_ids": tf.placeholder(tf.int64, (None, config.item_feat_cnt), "item_ids"),
            "label_0": tf.placeholder(tf.float32, (None,), "label_0"),
            "label_1": tf.placeholder(tf.float32, (None,), "label_1"),
        }
        return export.ServingInputReceiver(features=inputs, receiver_tensors=inputs)

    folder = est.export_saved_model(os.path.join(args.model_dir, "export"), serving_input_fn)
    with tf.Session(graph=tf.Graph()) as sess:
        signature = tf.saved_model.load(sess, ["serve"], folder.decode()).signature_def
        signature = signature["serving_default"]
        feeds = {"user_ids": np.ones([3, 2]), "item_ids": np.arange(12).reshape(3, 4)}
        scores = sess.run(
            signature.outputs["task_1"].name,
            {signature.inputs[name].name: value for name, value in feeds.items()},
        )
    print("served", *[f"{score:.9g}" for score in scores])


def main(params, config):
    run_config = RunConfig(
        model_dir=params.model_dir,
        save_summary_steps=1000,
        save_checkpoints_steps=params.save_checkpoints_steps,
        keep_checkpoint_max=5,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=False),
        log_step_count_steps=1000,
        iterations_per_loop=1,
        tf_random_seed=3,
    )
    hooks_list = [GraphModifierHook(modify_graph=params.modify_graph)]
    eval_hooks = list(hooks_list)
    access_and_evict = None
    if params.use_timestamp:
        thresholds = dict(
            access_threshold=config.access_threshold, eviction_threshold=config.eviction_threshold
        )
        access_and_evict = dict(user_table=thresholds, item_table=thresholds)
        # A save comes before the eviction of the same step, so the two have different intervals.
        hooks_list.append(EvictHook(evict_enable=True, evict_step_interval=7))
    hooks_list.append(PrintLossHook())
    est = RecEstimator(
        model_fn=get_model_fn(config, access_and_evict),
        params=params,
        model_dir=params.model_dir,
        config=run_config,
    )
    if params.run_mode == "train":
        est.train(
            input_fn=lambda: input_fn(params, config, use_one_shot=params.use_one_shot),
            max_steps=params.max_steps,
            hooks=hooks_list,
        )
    elif params.run_mode == "train_and_evaluate":
        train_spec = TrainSpec(
            input_fn=lambda: input_fn(params, config, use_one_shot=params.use_one_shot),
            max_steps=params.max_steps,
            hooks=hooks_list,
        )
        eval_spec = EvalSpec(
            input_fn=lambda: input_fn(params, config, True, params.use_one_shot),
            steps=params.eval_steps,
            hooks=eval_hooks,
            throttle_secs=0,
        )
        metrics, _ = train_and_evaluate(est, train_spec=train_spec, eval_spec=eval_spec)
        print("eval loss {loss:.9g} auc_1 {auc_1:.9g}".format(**metrics))
        if params.modify_graph:
            export_model(est, config)
    results = est.predict(
        input_fn=lambda: input_fn(params, config, True),
        hooks=eval_hooks,
        yield_single_examples=False,
    )
    print(f"predicted {np.mean([result['task_1'] for result in results]):.9g}")
    terminate_config_initializer()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument(
        "--run_mode", choices=["train", "train_and_evaluate", "predict"], default="train"
    )
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--max_steps", type=int, default=40)
    parser.add_argument("--eval_steps", type=int, default=10)
    parser.add_argument("--save_checkpoints_steps", type=int, default=20)
    for flag in ("modify_graph", "use_timestamp", "use_one_shot"):
        parser.add_argument(f"--{flag}", type=lambda v: bool(int(v)), default=False)
    args = parser.parse_args()
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    thresholds = {}
    if args.use_timestamp:
        thresholds["access_threshold"] = Config.access_threshold
        thresholds["eviction_threshold"] = Config.eviction_threshold
    SPECS = [
        FeatureSpec(
            "user_ids", table_name="user_table", batch_size=Config.batch_size, **thresholds
        ),
        FeatureSpec(
            "item_ids", table_name="item_table", batch_size=Config.batch_size, **thresholds
        ),
    ]
    if args.use_timestamp:
        SPECS.append(FeatureSpec("timestamp", is_timestamp=True))
    init(
        train_steps=args.save_checkpoints_steps,
        eval_steps=args.eval_steps,
        save_steps=args.save_checkpoints_steps,
        max_steps=args.max_steps,
        use_dynamic=True,
        use_dynamic_expansion=False,
    )
    main(args, Config())
