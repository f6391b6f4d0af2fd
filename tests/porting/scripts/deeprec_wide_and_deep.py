# SPDX-License-Identifier: Apache-2.0
"""Wide & deep in the form of DeepRec's modelzoo, ported by changing its imports.

    python deeprec_wide_and_deep.py --data_location DATA --checkpoint FOLDER --ev True

Two optimizers train the variables of one scope each. The deep part reads tables; the wide part
reads TensorFlow's hash buckets. The folder DATA holds train.csv and eval.csv.
"""

import argparse
import collections
import contextlib
import math
import os

import tensorflow.compat.v1 as tf

import rec_estimator as rec

CONTINUOUS_COLUMNS = [f"I{i}" for i in range(1, 4)]
CATEGORICAL_COLUMNS = [f"C{i}" for i in range(1, 5)]
LABEL_COLUMN = "clicked"
TRAIN_DATA_COLUMNS = [LABEL_COLUMN, *CONTINUOUS_COLUMNS, *CATEGORICAL_COLUMNS]
FEATURE_COLUMNS = CONTINUOUS_COLUMNS + CATEGORICAL_COLUMNS
MINIMUMS = [0.0, -3.0, 0.0]
RANGES = [10.0, 22.0, 65.0]
EMBEDDING_DIMENSIONS = {"C1": 8, "C2": 8, "C3": 16, "C4": 16}


def dense(inputs, units, activation=None):
    """The layer of tf.layers.dense, in the current variable scope."""
    kernel = tf.get_variable(
        "kernel", [inputs.shape[-1], units], initializer=tf.glorot_uniform_initializer()
    )
    bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    outputs = tf.matmul(inputs, kernel) + bias
    return outputs if activation is None else activation(outputs)


class WDL:
    def __init__(self, wide_column, deep_column, inputs):
        self._feature, self._label = inputs
        self._wide_column, self._deep_column = wide_column, deep_column
        self._create_model()
        with tf.name_scope("head"):
            self._create_loss()
            self._create_optimizer()
            self._create_metrics()

    def _create_model(self):
        with tf.variable_scope("dnn"):
            with tf.variable_scope("input_from_feature_columns", reuse=tf.AUTO_REUSE):
                net = tf.feature_column.input_layer(
                    features=self._feature, feature_columns=self._deep_column
                )
            with tf.variable_scope("dnn_layers", reuse=tf.AUTO_REUSE):
                for layer, units in enumerate([32, 16]):
                    with tf.variable_scope(f"hiddenlayer_{layer}"):
                        net = dense(net, units, tf.nn.relu)
                with tf.variable_scope("logits"):
                    dnn_logits = dense(net, 1)
        with tf.variable_scope("linear"):
            linear_logits = rec.linear_model(
                units=1,
                features=self._feature,
                feature_columns=self._wide_column,
                sparse_combiner="sum",
                weight_collections=None,
                trainable=True,
            )
        self._logits = tf.add_n([dnn_logits, linear_logits])
        self.probability = tf.math.sigmoid(self._logits)
        self.output = tf.round(self.probability)

    def _create_loss(self):
        self.loss = tf.losses.sigmoid_cross_entropy(
            self._label,
            tf.squeeze(self._logits, axis=1),
            scope="loss",
            reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE,
        )
        tf.summary.scalar("loss", self.loss)

    def _create_optimizer(self):
        self.global_step = tf.train.get_or_create_global_step()
        if args.optimizer == "adam":
            dnn_optimizer = rec.optimizers.AdamOptimizer(args.deep_learning_rate)
        elif args.optimizer == "adagrad":
            dnn_optimizer = rec.optimizers.AdagradOptimizer(
                args.deep_learning_rate, initial_accumulator_value=0.1, use_locking=False
            )
        elif args.optimizer == "adamasync":
            dnn_optimizer = rec.optimizers.AdamAsyncOptimizer(
                args.deep_learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
            )
        else:
            dnn_optimizer = rec.optimizers.AdagradDecayOptimizer(
                args.deep_learning_rate, global_step=self.global_step
            )
        linear_optimizer = rec.optimizers.FtrlOptimizer(
            args.linear_learning_rate,
            l1_regularization_strength=0.0,
            l2_regularization_strength=0.0,
        )
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            deep = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="dnn")
            linear = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="linear")
            self.train_op = tf.group(
                dnn_optimizer.minimize(self.loss, var_list=deep, global_step=self.global_step),
                linear_optimizer.minimize(self.loss, var_list=linear),
            )

    def _create_metrics(self):
        self.acc, self.acc_op = tf.metrics.accuracy(labels=self._label, predictions=self.output)
        self.auc, self.auc_op = tf.metrics.auc(
            labels=self._label, predictions=self.probability, num_thresholds=1000
        )


def build_model_input(filename, batch_size, num_epochs):
    def parse_csv(value):
        defaults = [[0]] + [[0.0]] * len(CONTINUOUS_COLUMNS) + [[" "]] * len(CATEGORICAL_COLUMNS)
        columns = tf.io.decode_csv(value, record_defaults=defaults)
        features = collections.OrderedDict(zip(TRAIN_DATA_COLUMNS, columns))
        labels = features.pop(LABEL_COLUMN)
        return features, labels

    dataset = tf.data.TextLineDataset(filename)
    dataset = dataset.repeat(num_epochs).batch(batch_size)
    return dataset.map(parse_csv, num_parallel_calls=2).prefetch(2)


def build_feature_columns():
    evict_option = {
        None: None,
        "gstep": rec.GlobalStepEvict(steps_to_live=args.steps_to_live),
        "l2": rec.L2WeightEvict(l2_weight_threshold=0.01),
    }[args.ev_elimination]
    filter_option = {
        None: None,
        "counter": rec.CounterFilter(filter_freq=3),
        "cbf": rec.CBFFilter(
            filter_freq=3,
            max_element_size=2**20,
            false_positive_probability=0.01,
            counter_type=tf.int64,
        ),
    }[args.ev_filter]
    ev_opt = rec.EmbeddingVariableOption(evict_option=evict_option, filter_option=filter_option)

    scope = contextlib.nullcontext()
    if args.group_embedding:
        scope = rec.group_embedding_column_scope(name="categorical")
    deep_columns, wide_columns = [], []
    with scope:
        add_columns(wide_columns, deep_columns, ev_opt)
    return wide_columns, deep_columns


def add_columns(wide_columns, deep_columns, ev_opt):
    def make_minmaxscaler(minimum, width):
        return lambda column: (column - minimum) / width

    for column_name in FEATURE_COLUMNS:
        if column_name in CATEGORICAL_COLUMNS:
            categorical_column = tf.feature_column.categorical_column_with_hash_bucket(
                column_name, hash_bucket_size=10000, dtype=tf.string
            )
            wide_columns.append(categorical_column)
            if args.ev:
                categorical_column = rec.categorical_column_with_embedding(
                    column_name, dtype=tf.string, ev_option=ev_opt
                )
            fusion = {"do_fusion": True} if args.emb_fusion else {}
            deep_columns.append(
                rec.embedding_column(
                    categorical_column,
                    dimension=EMBEDDING_DIMENSIONS[column_name],
                    combiner="mean",
                    **fusion,
                )
            )
        else:
            i = CONTINUOUS_COLUMNS.index(column_name)
            column = tf.feature_column.numeric_column(
                column_name, normalizer_fn=make_minmaxscaler(MINIMUMS[i], RANGES[i]), shape=(1,)
            )
            wide_columns.append(column)
            deep_columns.append(column)


def train(sess_config, input_hooks, model, data_init_op, steps, checkpoint_dir):
    saver = rec.Saver(
        max_to_keep=args.keep_checkpoint_max,
        incremental_save_restore=bool(args.incremental_ckpt),
    )
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), data_init_op), saver=saver
    )
    hooks = [
        *input_hooks,
        tf.train.StopAtStepHook(last_step=steps),
        tf.train.LoggingTensorHook(
            {"steps": model.global_step, "loss": model.loss},
            every_n_iter=1,
            formatter=lambda values: "step {steps} loss {loss:.9g}".format(**values),
        ),
    ]
    with rec.MonitoredTrainingSession(
        master="",
        is_chief=True,
        hooks=hooks,
        scaffold=scaffold,
        checkpoint_dir=checkpoint_dir,
        save_checkpoint_steps=args.save_steps or steps,
        save_incremental_checkpoint_secs=args.incremental_ckpt,
        summary_dir=checkpoint_dir,
        save_summaries_steps=args.save_steps or steps,
        config=sess_config,
    ) as sess:
        while not sess.should_stop():
            sess.run([model.loss, model.train_op])


def evaluate(sess_config, input_hooks, model, data_init_op, steps, checkpoint_dir):
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), data_init_op)
    )
    session_creator = tf.train.ChiefSessionCreator(
        scaffold=scaffold, checkpoint_dir=checkpoint_dir, config=sess_config
    )
    with tf.train.MonitoredSession(session_creator=session_creator, hooks=input_hooks) as sess:
        for _ in range(1, steps):
            sess.run([model.acc_op, model.auc_op])
        acc, auc = sess.run([model.acc_op, model.auc_op])
        print(f"eval ACC = {acc:.9g} AUC = {auc:.9g}")


def count_lines(filename):
    with open(filename) as lines:
        return sum(1 for _ in lines)


def main():
    train_file = os.path.join(args.data_location, "train.csv")
    test_file = os.path.join(args.data_location, "eval.csv")
    no_of_training_examples, no_of_test_examples = count_lines(train_file), count_lines(test_file)
    no_of_epochs = max(1, math.ceil(args.batch_size * args.steps / no_of_training_examples))
    train_steps = args.steps or math.ceil(no_of_training_examples / args.batch_size)
    test_steps = math.ceil(no_of_test_examples / args.batch_size)

    tf.set_random_seed(args.seed)
    train_dataset = build_model_input(train_file, args.batch_size, no_of_epochs)
    test_dataset = build_model_input(test_file, args.batch_size, 1)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(train_dataset), tf.data.get_output_shapes(test_dataset)
    )
    next_element = iterator.get_next()
    train_init_op = iterator.make_initializer(train_dataset)
    test_init_op = iterator.make_initializer(test_dataset)

    wide_column, deep_column = build_feature_columns()
    sess_config = tf.ConfigProto(
        inter_op_parallelism_threads=args.inter, intra_op_parallelism_threads=args.intra
    )
    hooks = []
    if args.smartstaged:
        next_element = rec.staged(next_element, num_threads=4, capacity=40)
        hooks.append(rec.make_prefetch_hook())
    model = WDL(wide_column, deep_column, next_element)
    train(sess_config, hooks, model, train_init_op, train_steps, args.checkpoint)
    if not args.no_eval:
        evaluate(sess_config, hooks, model, test_init_op, test_steps, args.checkpoint)


def boolean_string(string):
    if string.lower() not in {"false", "true"}:
        raise ValueError("Not a valid boolean string")
    return string.lower() == "true"


def get_arg_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument("--data_location", default="./data")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--save_steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=2021)
    parser.add_argument(
        "--optimizer", choices=["adam", "adamasync", "adagraddecay", "adagrad"], default="adamasync"
    )
    parser.add_argument("--linear_learning_rate", type=float, default=0.2)
    parser.add_argument("--deep_learning_rate", type=float, default=0.01)
    parser.add_argument("--keep_checkpoint_max", type=int, default=1)
    parser.add_argument("--inter", type=int, default=0)
    parser.add_argument("--intra", type=int, default=0)
    parser.add_argument("--no_eval", action="store_true")
    parser.add_argument("--smartstaged", type=boolean_string, default=True)
    parser.add_argument("--group_embedding", action="store_true")
    parser.add_argument("--emb_fusion", type=boolean_string, default=True)
    parser.add_argument("--ev", type=boolean_string, default=False)
    parser.add_argument("--ev_elimination", choices=["l2", "gstep"])
    parser.add_argument("--steps_to_live", type=int, default=4000)
    parser.add_argument("--ev_filter", choices=["counter", "cbf"])
    parser.add_argument("--incremental_ckpt", type=float, default=0, help="seconds")
    return parser


if __name__ == "__main__":
    args = get_arg_parser().parse_args()
    tf.logging.set_verbosity(tf.logging.INFO)
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    main()
