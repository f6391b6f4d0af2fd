# SPDX-License-Identifier: Apache-2.0
"""A session of Rec SDK in the form of its DCNv2 example, ported by changing its imports.

    python rec_sdk_session.py --data_path DATA --model_dir FOLDER --use_modify_graph 1

TFRecord files with several lines per record, one table for all fields, a learning rate that falls,
an evaluation in the same graph. --use_faae 1 filters and evicts keys by the data's timestamps in a
MonitoredTrainingSession. --use_dynamic_expansion 1 updates rows by their addresses.
"""

import argparse
import os
from glob import glob

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator
from rec_estimator import (
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    ASCEND_TIMESTAMP,
    ConfigInitializer,
    EvictHook,
    FeatureSpec,
    GraphModifierHook,
    create_table,
    get_asc_insert_func,
    get_dense_and_sparse_variable,
    get_rank_id,
    get_rank_size,
    init,
    modify_graph_and_start_emb_cache,
    sparse_lookup,
    start_asc_pipeline,
    terminate_config_initializer,
)
from rec_estimator.optimizers.lazy_adam import create_hash_optimizer
from rec_estimator.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address

LINE_PER_SAMPLE, SPARSE, DENSE = 4, 6, 3


class Config:
    def __init__(self):
        self.rank_id, self.rank_size = get_rank_id(), get_rank_size()
        self.batch_size = 32
        self.emb_dim = 8
        self.send_count = 32 * SPARSE
        self.dev_vocab_size, self.host_vocab_size = 2000, 0
        self.global_step = tf.train.get_or_create_global_step()
        dense = tf.train.exponential_decay(0.01, self.global_step, 20, 0.9)
        self.learning_rate = [dense, dense * 2.0]


def add_timestamp_func(batch):
    batch["timestamp"] = tf.reduce_max(batch.pop("time"))
    return batch


def make_batch_and_iterator(config, feature_spec_list, is_training, dump_graph, is_use_faae=False):
    def extract_fn(data_record):
        def ints(count):
            return tf.io.FixedLenFeature(shape=(count * LINE_PER_SAMPLE,), dtype=tf.int64)

        features = {"label": ints(1), "time": ints(1), "sparse_feature": ints(SPARSE)}
        features["dense_feature"] = tf.io.FixedLenFeature([DENSE * LINE_PER_SAMPLE], tf.float32)
        return tf.io.parse_single_example(data_record, features)

    def reshape_fn(batch):
        batch["label"] = tf.reshape(batch["label"], [-1, 1])
        batch["dense_feature"] = tf.math.log(tf.reshape(batch["dense_feature"], [-1, DENSE]) + 3.0)
        batch["sparse_feature"] = tf.reshape(batch["sparse_feature"], [-1, SPARSE])
        return batch

    pattern = "train*.tfrecord" if is_training else "test*.tfrecord"
    files = sorted(glob(os.path.join(args.data_path, pattern)))
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=1)
    dataset = dataset.shard(config.rank_size, config.rank_id)
    dataset = dataset.repeat(args.train_epoch if is_training else 1)
    dataset = dataset.map(extract_fn, num_parallel_calls=2)
    dataset = dataset.batch(config.batch_size // LINE_PER_SAMPLE, drop_remainder=True)
    dataset = dataset.map(reshape_fn, num_parallel_calls=2)
    if is_use_faae:
        dataset = dataset.map(add_timestamp_func)
    if not MODIFY_GRAPH_FLAG:
        insert_fn = get_asc_insert_func(
            tgt_key_specs=feature_spec_list, is_training=is_training, dump_graph=dump_graph
        )
        dataset = dataset.map(insert_fn)
    dataset = dataset.prefetch(100)
    iterator = tf.data.make_initializable_iterator(dataset)
    return iterator.get_next(), iterator


def create_feature_spec_list():
    thresholds = ACCESS_AND_EVICT or {}
    specs = [
        FeatureSpec("sparse_feature", table_name="sparse_embeddings", batch_size=32, **thresholds)
        for _ in range(1 + args.use_multi_lookup)
    ]
    if args.use_faae:
        specs.append(FeatureSpec("timestamp", is_timestamp=True))
    return specs


def dense_layer(inputs, units, name):
    kernel = tf.get_variable(
        f"{name}/kernel",
        [inputs.shape[-1], units],
        initializer=tf.glorot_uniform_initializer(seed=128),
    )
    bias = tf.get_variable(f"{name}/bias", [units], initializer=tf.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


class MyModel:
    """A cross layer beside a hidden layer."""

    def build_model(self, embedding, dense_feature, label):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            inputs = tf.concat(
                [tf.reshape(embedding, [-1, SPARSE * embedding.shape[-1]]), dense_feature], axis=1
            )
            cross = inputs * dense_layer(inputs, inputs.shape[-1], "cross") + inputs
            deep = tf.nn.relu(dense_layer(inputs, 16, "deep"))
            logits = dense_layer(tf.concat([cross, deep], axis=1), 1, "logits")
        label = tf.cast(label, tf.float32)
        loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits)
        return {"loss": tf.reduce_mean(loss), "pred": tf.sigmoid(logits), "label": label}


def model_forward(feature_list, hash_table_list, batch, is_train, modify_graph):
    embedding_list = []
    for feature, hash_table in zip(feature_list, hash_table_list):
        if modify_graph:
            feature = batch["sparse_feature"]
        embedding = sparse_lookup(
            hash_table,
            feature,
            cfg.send_count,
            dim=None,
            is_train=is_train,
            name="user_embedding_lookup",
            modify_graph=modify_graph,
            batch=batch,
            access_and_evict_config=ACCESS_AND_EVICT if modify_graph else None,
        )
        embedding_list.append(embedding)
    emb = tf.add_n(embedding_list)
    return MyModel().build_model(emb, batch["dense_feature"], batch["label"])


def get_dense_and_sparse_optimizer():
    # The dense optimizer computes the gradients of the tables, too.
    dense_optimizer = rec_estimator.optimizers.AdamOptimizer(learning_rate=cfg.learning_rate[0])
    use_dynamic_expansion = ConfigInitializer.get_instance().use_dynamic_expansion
    create = create_hash_optimizer_by_address if use_dynamic_expansion else create_hash_optimizer
    return dense_optimizer, create(learning_rate=cfg.learning_rate[1])


def build_train_ops(loss):
    dense_optimizer, sparse_optimizer = get_dense_and_sparse_optimizer()
    dense_variables, sparse_variables = get_dense_and_sparse_variable()
    trainable = list(dense_variables)
    if args.use_dynamic_expansion:
        trainable.append(tf.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)[0])
    else:
        trainable.extend(sparse_variables)
    grads = dense_optimizer.compute_gradients(loss, var_list=trainable)
    train_ops = [
        dense_optimizer.apply_gradients([pair for pair in grads[:-1] if pair[0] is not None])
    ]
    targets = sparse_variables
    if args.use_dynamic_expansion:
        targets = tf.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    train_ops.append(sparse_optimizer.apply_gradients(list(zip(list(grads[-1]), targets))))
    with tf.control_dependencies(train_ops):
        return cfg.global_step.assign(cfg.global_step + 1)


def evaluate(sess, eval_model, eval_batch, eval_iterator):
    eval_label = eval_batch["label"]
    if MODIFY_GRAPH_FLAG:
        train_params = ConfigInitializer.get_instance().train_params_config
        eval_label = train_params.get_target_batch(False).get("label")
        sess.run([train_params.get_initializer(False)])
    else:
        sess.run([eval_iterator.initializer])
    losses, hits = [], []
    for _ in range(args.eval_steps):
        loss, pred, label = sess.run([eval_model["loss"], eval_model["pred"], eval_label])
        losses.append(loss)
        hits.append(np.mean((pred > 0.5) == (label > 0)))
    print(f"eval loss {np.mean(losses):.9g} accuracy {np.mean(hits):.9g}")


def train_loop(sess, steps, train_ops, train_model, table_size):
    for _ in range(steps):
        _, loss, size = sess.run([train_ops, train_model["loss"], table_size])
        print(f"table size:{size}, loss {loss:.9g}")


def main():
    specs = [create_feature_spec_list() for _ in range(2)]
    train_batch, train_iterator = make_batch_and_iterator(
        cfg, specs[0], is_training=True, dump_graph=False, is_use_faae=args.use_faae
    )
    eval_batch, eval_iterator = make_batch_and_iterator(
        cfg, specs[1], is_training=False, dump_graph=False, is_use_faae=args.use_faae
    )
    sparse_hashtable = create_table(
        key_dtype=tf.int64,
        dim=tf.TensorShape([cfg.emb_dim]),
        name="sparse_embeddings",
        emb_initializer=tf.truncated_normal_initializer(stddev=0.05, seed=128),
        device_vocabulary_size=cfg.dev_vocab_size,
        host_vocabulary_size=cfg.host_vocab_size,
    )
    if args.use_faae and MODIFY_GRAPH_FLAG:
        tf.add_to_collection(ASCEND_TIMESTAMP, train_batch["timestamp"])
    tables = [sparse_hashtable] * (1 + args.use_multi_lookup)
    train_model = model_forward(specs[0], tables, train_batch, True, MODIFY_GRAPH_FLAG)
    eval_model = model_forward(specs[1], tables, eval_batch, False, MODIFY_GRAPH_FLAG)
    train_ops = build_train_ops(train_model["loss"])
    table_size = sparse_hashtable.size()

    saver = rec_estimator.Saver()
    if MODIFY_GRAPH_FLAG:
        modify_graph_and_start_emb_cache(dump_graph=False)
        initializer = ConfigInitializer.get_instance().train_params_config.get_initializer(True)
    else:
        start_asc_pipeline()
        initializer = train_iterator.initializer

    if args.use_faae:
        hook_list = [EvictHook(evict_enable=True, evict_step_interval=10)]
        if MODIFY_GRAPH_FLAG:
            hook_list.append(GraphModifierHook(modify_graph=False))
        sess = tf.train.MonitoredTrainingSession(
            hooks=hook_list,
            checkpoint_dir=args.model_dir,
            scaffold=tf.train.Scaffold(saver=saver),
            save_checkpoint_steps=1000,
            log_step_count_steps=None,
            config=tf.ConfigProto(allow_soft_placement=False),
        )
        sess.run(initializer)
    else:
        sess = tf.Session(config=tf.ConfigProto(allow_soft_placement=False))
        sess.run(initializer)
        latest = tf.train.latest_checkpoint(args.model_dir)
        if latest:
            saver.restore(sess, latest)
        else:
            sess.run(tf.global_variables_initializer())
    train_loop(sess, args.steps, train_ops, train_model, table_size)
    evaluate(sess, eval_model, eval_batch, eval_iterator)
    if not args.use_faae:
        saver.save(sess, os.path.join(args.model_dir, "model"), global_step=cfg.global_step)
    sess.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--train_epoch", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--eval_steps", type=int, default=5)
    for flag in ("dynamic_expansion", "multi_lookup", "faae", "modify_graph"):
        parser.add_argument(f"--use_{flag}", type=int, choices=[0, 1], default=0)
    args = parser.parse_args()
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    tf.set_random_seed(128)
    MODIFY_GRAPH_FLAG = bool(args.use_modify_graph)
    ACCESS_AND_EVICT = None
    if args.use_faae:
        ACCESS_AND_EVICT = {"access_threshold": 2, "eviction_threshold": 15}
    init(
        train_steps=args.steps,
        eval_steps=args.eval_steps,
        use_dynamic=True,
        use_dynamic_expansion=bool(args.use_dynamic_expansion),
    )
    ConfigInitializer.get_instance().if_load = bool(tf.train.latest_checkpoint(args.model_dir))
    cfg = Config()
    main()
    terminate_config_initializer()
