# SPDX-License-Identifier: Apache-2.0
"""The nine steps of Rec SDK's API call overview as one script, ported by changing its imports.

    python nine_steps.py --use_mode session|estimator --modify_graph 0|1 --output FILE.json
        --v2_behavior on|off

The script trains, evaluates, saves, stops (--stop_at) and resumes (--start_at). It differs from the
overview in the imports, in `tf.TensorShape` (misspelt there), in rec_estimator.Saver instead of the
patched tf.compat.v1.train.Saver, and in a session configuration without NPU options. It sets seeds,
so that all modes begin with the same weights.
"""

import argparse
import json
import logging
import os

import numpy as np
import tensorflow as tf

import rec_estimator
from rec_estimator import (
    EstimatorSpec,
    EvalSpec,
    FeatureSpec,
    GraphModifierHook,
    ModeKeys,
    RecEstimator,
    RunConfig,
    TrainSpec,
    create_table,
    get_asc_insert_func,
    get_dense_and_sparse_variable,
    get_initializer,
    get_rank_id,
    get_use_dynamic_expansion,
    init,
    modify_graph_and_start_emb_cache,
    sparse_lookup,
    start_asc_pipeline,
    terminate_config_initializer,
    train_and_evaluate,
)
from rec_estimator.optimizers.lazy_adam import create_hash_optimizer
from rec_estimator.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address

parser = argparse.ArgumentParser()
parser.add_argument("--use_mode", choices=["session", "estimator"], default="session")
parser.add_argument("--modify_graph", type=int, default=0)
parser.add_argument("--v2_behavior", choices=["on", "off"], default="on")
parser.add_argument("--start_at", type=int, default=0)
parser.add_argument("--stop_at", type=int)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--interval", type=int, default=50, help="steps between two saves")
parser.add_argument("--raise_at", type=int, help="batch at which the data break")
parser.add_argument("--forget_to_terminate", action="store_true")
parser.add_argument("--output")
args = parser.parse_args()

MODIFY_GRAPH_FLAG = bool(args.modify_graph)
MAX_STEPS, EVAL_STEPS = args.max_steps, 10
TRAIN_INTERVAL = SAVING_INTERVAL = args.interval
ACCESS_AND_EVICT = {"user_table": {"access_threshold": 2}, "item_table": {"access_threshold": 1}}


class cfg:
    batch_size = 64
    user_vocab_size, item_vocab_size = 800, 300
    user_hashtable_dim, item_hashtable_dim = 8, 16
    user_send_cnt, item_send_cnt, category_send_cnt = 64 * 8, 64 * 16, 64 * 3
    learning_rate = 0.01


losses, eval_losses = [], []


# 2. The dataset.
def generate_examples(is_training):
    rng = np.random.default_rng(0 if is_training else 1)
    rows = (MAX_STEPS if is_training else EVAL_STEPS) * cfg.batch_size
    user_ids = rng.integers(0, cfg.user_vocab_size, [rows, 8])
    item_ids = rng.integers(0, cfg.item_vocab_size, [rows, 16])
    return {
        "user_ids": user_ids,
        "item_ids": item_ids,
        "category_ids": rng.integers(0, cfg.user_vocab_size, [rows, 3]),
        "label_0": (user_ids.sum(1) % 2).astype(np.float32),
        "label_1": (item_ids.sum(1) % 2).astype(np.float32),
    }


def make_dataset(feature_spec_list, is_training, dump_graph=False):
    dataset = tf.data.Dataset.from_tensor_slices(generate_examples(is_training))
    dataset = dataset.shuffle(1000, seed=3).batch(cfg.batch_size, drop_remainder=True)
    if is_training:
        dataset = dataset.skip(args.start_at)
        if args.raise_at is not None:
            dataset = dataset.enumerate().map(break_data)
    if not MODIFY_GRAPH_FLAG:
        insert_fn = get_asc_insert_func(
            tgt_key_specs=feature_spec_list, is_training=is_training, dump_graph=dump_graph
        )
        dataset = dataset.map(insert_fn)
    return dataset.prefetch(100)


def break_data(number, batch):
    def check(number, labels):
        if number == args.raise_at:
            raise ValueError(f"the data broke at batch {number}")
        return labels

    labels = tf.numpy_function(check, [number, batch["label_1"]], tf.float32)
    return {**batch, "label_1": tf.ensure_shape(labels, batch["label_1"].shape)}


def make_batch_and_iterator(feature_spec_list, is_training, dump_graph):
    dataset = make_dataset(feature_spec_list, is_training, dump_graph)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    return batch, iterator


def create_feature_spec_list():
    user, item = ACCESS_AND_EVICT["user_table"], ACCESS_AND_EVICT["item_table"]
    return [
        FeatureSpec("user_ids", table_name="user_table", batch_size=cfg.batch_size, **user),
        FeatureSpec("item_ids", table_name="item_table", batch_size=cfg.batch_size, **item),
        FeatureSpec("category_ids", table_name="user_table", batch_size=cfg.batch_size, **user),
    ]


# 3. The optimizers.
def get_dense_and_sparse_optimizer(cfg):
    dense_optimizer = tf.compat.v1.train.AdamOptimizer(learning_rate=cfg.learning_rate)
    use_dynamic_expansion = get_use_dynamic_expansion()
    if use_dynamic_expansion:
        sparse_optimizer = create_hash_optimizer_by_address(learning_rate=cfg.learning_rate)
        logging.info("optimizer lazy_adam_by_addr")
    else:
        sparse_optimizer = create_hash_optimizer(learning_rate=cfg.learning_rate)
        logging.info("optimizer lazy_adam")
    return dense_optimizer, sparse_optimizer


# 4. The tables.
def create_tables():
    user_hashtable = create_table(
        key_dtype=tf.int64,
        dim=tf.TensorShape([cfg.user_hashtable_dim]),
        name="user_table",
        emb_initializer=tf.compat.v1.truncated_normal_initializer(seed=1),
        device_vocabulary_size=cfg.user_vocab_size * 10,
        host_vocabulary_size=0,
    )
    item_hashtable = create_table(
        key_dtype=tf.int64,
        dim=tf.TensorShape([cfg.item_hashtable_dim]),
        name="item_table",
        emb_initializer=tf.compat.v1.truncated_normal_initializer(seed=2),
        device_vocabulary_size=cfg.item_vocab_size * 10,
        host_vocabulary_size=0,
    )
    return [user_hashtable, item_hashtable, user_hashtable]


# 5. The graph.
class MyModel:
    def __call__(self, embedding_list, label_0, label_1):
        inputs = tf.concat(embedding_list, axis=1)
        with tf.compat.v1.variable_scope("mlp", reuse=tf.compat.v1.AUTO_REUSE):
            hidden = tf.nn.relu(self.dense_layer(inputs, 16, "hidden"))
            logits = [self.dense_layer(hidden, 1, f"head_{i}") for i in range(2)]
        self.loss_list = [
            tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=label[:, None], logits=logit)
            )
            for label, logit in zip((label_0, label_1), logits)
        ]

    @staticmethod
    def dense_layer(inputs, units, name):
        kernel = tf.compat.v1.get_variable(
            f"{name}/kernel",
            [inputs.shape[-1], units],
            initializer=tf.compat.v1.glorot_uniform_initializer(seed=units),
        )
        bias = tf.compat.v1.get_variable(
            f"{name}/bias", [units], initializer=tf.compat.v1.zeros_initializer()
        )
        return tf.matmul(inputs, kernel) + bias


def model_forward(input_list, batch, is_train, modify_graph, config_dict=None):
    embedding_list = []
    feature_list, hash_table_list, send_count_list = input_list
    for feature, hash_table, send_count in zip(feature_list, hash_table_list, send_count_list):
        access_and_evict_config = None
        if isinstance(config_dict, dict):
            access_and_evict_config = config_dict.get(hash_table.table_name)
        embedding = sparse_lookup(
            hash_table,
            feature,
            send_count,
            dim=None,
            is_train=is_train,
            access_and_evict_config=access_and_evict_config,
            name=hash_table.table_name + "_lookup",
            modify_graph=modify_graph,
            batch=batch,
        )
        reduced_embedding = tf.reduce_sum(embedding, axis=1, keepdims=False)
        embedding_list.append(reduced_embedding)
    my_model = MyModel()
    my_model(embedding_list, batch["label_0"], batch["label_1"])
    return my_model


def build_model(hash_table_list, batch, is_train, feature_spec_list, config_dict):
    feature_list = feature_spec_list
    if MODIFY_GRAPH_FLAG:
        feature_list = [batch["user_ids"], batch["item_ids"], batch["category_ids"]]
    send_count_list = [cfg.user_send_cnt, cfg.item_send_cnt, cfg.category_send_cnt]
    input_list = [feature_list, hash_table_list, send_count_list]
    return model_forward(input_list, batch, is_train, MODIFY_GRAPH_FLAG, config_dict)


def build_graph(hash_table_list, is_train, feature_spec_list=None, config_dict=None):
    batch, iterator = make_batch_and_iterator(feature_spec_list, is_train, dump_graph=True)
    model = build_model(hash_table_list, batch, is_train, feature_spec_list, config_dict)
    return iterator, model


# 6. Gradients and optimization.
def build_train_ops(train_model):
    global_step = tf.compat.v1.train.get_or_create_global_step()
    dense_variables, sparse_variables = get_dense_and_sparse_variable()
    train_ops = []
    for loss, (dense_optimizer, sparse_optimizer) in zip(
        train_model.loss_list, [get_dense_and_sparse_optimizer(cfg)]
    ):
        grads = dense_optimizer.compute_gradients(loss, var_list=dense_variables)
        train_ops.append(dense_optimizer.apply_gradients([g for g in grads if g[0] is not None]))
        sparse_grads = tf.compat.v1.gradients(loss, sparse_variables)
        train_ops.append(sparse_optimizer.apply_gradients(zip(sparse_grads, sparse_variables)))
    with tf.control_dependencies(train_ops):
        return tf.compat.v1.assign_add(global_step, 1)


# 7 and 8. The pipeline, the session and the checkpoints.
def sess_config():
    return tf.compat.v1.ConfigProto(allow_soft_placement=False)


def train_with_session():
    rank_id = get_rank_id()
    train_feature_spec_list = create_feature_spec_list()
    eval_feature_spec_list = create_feature_spec_list()
    hash_table_list = create_tables()
    train_iterator, train_model = build_graph(
        hash_table_list, True, train_feature_spec_list, ACCESS_AND_EVICT
    )
    eval_iterator, eval_model = build_graph(
        hash_table_list, False, eval_feature_spec_list, ACCESS_AND_EVICT
    )
    train_ops = build_train_ops(train_model)

    saver = rec_estimator.Saver()
    if MODIFY_GRAPH_FLAG:
        logging.info("start to modifying graph")
        modify_graph_and_start_emb_cache(dump_graph=True)
    else:
        start_asc_pipeline()

    def evaluate():
        if MODIFY_GRAPH_FLAG:
            sess.run(get_initializer(False))
        else:
            sess.run(eval_iterator.initializer)
        for _ in range(1, EVAL_STEPS + 1):
            try:
                eval_losses.append(sess.run(eval_model.loss_list))
            except tf.errors.OutOfRangeError:
                logging.info("Encounter the end of Sequence for eval.")
                break

    with tf.compat.v1.Session(config=sess_config()) as sess:
        if MODIFY_GRAPH_FLAG:
            sess.run(get_initializer(True))
        else:
            sess.run(train_iterator.initializer)
        sess.run(tf.compat.v1.global_variables_initializer())
        EPOCH = 0
        if os.path.exists(f"./saved-model/sparse-model-{rank_id}-%d" % args.start_at):
            saver.restore(sess, f"./saved-model/model-{rank_id}-%d" % args.start_at)
        else:
            saver.save(sess, f"./saved-model/model-{rank_id}", global_step=0)
        for i in range(args.start_at + 1, MAX_STEPS + 1):
            logging.info(f"################    training at step {i}    ################")
            try:
                losses.append(sess.run([train_ops, train_model.loss_list])[1])
            except tf.errors.OutOfRangeError:
                logging.info("Encounter the end of Sequence for training.")
                break
            else:
                if i % TRAIN_INTERVAL == 0:
                    EPOCH += 1
                    evaluate()
                if i % SAVING_INTERVAL == 0:
                    saver.save(sess, f"./saved-model/model-{rank_id}", global_step=i)
                if i == args.stop_at:
                    return
        saver.save(sess, f"./saved-model/model-{rank_id}", global_step=i)


# Steps 5 to 8 with an Estimator.
class LossHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, log):
        self._log = log

    def before_run(self, run_context):
        fetches = run_context.session.graph.get_collection("loss_list")
        return tf.compat.v1.train.SessionRunArgs(fetches)

    def after_run(self, run_context, run_values):
        self._log.append(run_values.results)


def model_fn(features, mode, params):
    is_train = mode == ModeKeys.TRAIN
    feature_spec_list = params["feature_spec_list"]
    model = build_model(create_tables(), features, is_train, feature_spec_list, ACCESS_AND_EVICT)
    for loss in model.loss_list:
        tf.compat.v1.add_to_collection("loss_list", loss)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"loss_0": model.loss_list[0][None]})
    train_op = build_train_ops(model) if is_train else None
    return EstimatorSpec(mode, loss=model.loss_list[0], train_op=train_op)


def train_with_estimator():
    feature_spec_list = create_feature_spec_list()
    config = RunConfig(
        save_checkpoints_steps=SAVING_INTERVAL,
        session_config=sess_config(),
        log_step_count_steps=None,
    )
    params = {"feature_spec_list": feature_spec_list}
    est = RecEstimator(model_fn, "./saved-model", config, params)
    hooks = [GraphModifierHook(dump_graph=True, modify_graph=MODIFY_GRAPH_FLAG)]
    train_and_evaluate(
        est,
        TrainSpec(
            lambda: make_dataset(feature_spec_list, True),
            max_steps=args.stop_at or MAX_STEPS,
            hooks=[*hooks, LossHook(losses)],
        ),
        EvalSpec(
            lambda: make_dataset(feature_spec_list, False),
            steps=EVAL_STEPS,
            hooks=[*hooks, LossHook(eval_losses)],
            throttle_secs=0,
            start_delay_secs=0,
        ),
    )
    predictions = est.predict(lambda: make_dataset(feature_spec_list, False), hooks=hooks)
    first = [prediction["loss_0"] for prediction in predictions]
    assert [loss for loss, _ in eval_losses[-EVAL_STEPS:]] == first


if __name__ == "__main__":
    if args.v2_behavior == "off":
        tf.compat.v1.disable_v2_behavior()
    # 1. The framework.
    init(
        max_steps=MAX_STEPS,
        train_steps=TRAIN_INTERVAL,
        eval_steps=EVAL_STEPS,
        save_steps=SAVING_INTERVAL,
        use_dynamic=True,
        use_dynamic_expansion=False,
    )
    if args.use_mode == "session":
        with tf.Graph().as_default():
            train_with_session()
    else:
        train_with_estimator()
    if args.output:
        with open(args.output, "w") as file:
            numbers = {"losses": np.array(losses), "eval_losses": np.array(eval_losses)}
            json.dump({name: values.tolist() for name, values in numbers.items()}, file)
    # 9. The end.
    if not args.forget_to_terminate:
        terminate_config_initializer()
    logging.info("Demo done!")
