# SPDX-License-Identifier: Apache-2.0
"""A Deep Interest Network as TensorFlow 1's public implementations are written.

    python tf1_din.py --dataset DATA/dataset.pkl --save_path FOLDER

Placeholders, gradients of all trainable variables clipped by their global norm, a step variable of
the model's own, a Saver, a loop of feed_dicts. The embedding matrices are tables here; item_b, a
vector with a number per item, is a table of dimension 1. `logits_sub`, which scores the first items
of the shop, looks these items up instead of slicing the matrix.
"""

import argparse
import os
import pickle
import random

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec

PREDICT_ADS_NUM = 10


def dense(inputs, units, name, activation=None):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    outputs = tf.tensordot(inputs, kernel, axes=1) + bias
    return outputs if activation is None else activation(outputs)


def attention(queries, keys, keys_length):
    """[B, H], [B, T, H] and [B] to [B, 1, H]."""
    units = queries.get_shape().as_list()[-1]
    queries = tf.reshape(tf.tile(queries, [1, tf.shape(keys)[1]]), [-1, tf.shape(keys)[1], units])
    din_all = tf.concat([queries, keys, queries - keys, queries * keys], axis=-1)
    layer = dense(din_all, 16, "f1_att", tf.nn.sigmoid)
    outputs = tf.reshape(dense(layer, 1, "f2_att"), [-1, 1, tf.shape(keys)[1]])
    key_masks = tf.expand_dims(tf.sequence_mask(keys_length, tf.shape(keys)[1]), 1)
    outputs = tf.where(key_masks, outputs, tf.ones_like(outputs) * (-(2**32) + 1))
    return tf.matmul(tf.nn.softmax(outputs / units**0.5), keys)


class Model:
    def __init__(self, cate_list):
        self.u = tf.placeholder(tf.int32, [None])
        self.i = tf.placeholder(tf.int32, [None])
        self.j = tf.placeholder(tf.int32, [None])
        self.y = tf.placeholder(tf.float32, [None])
        self.hist_i = tf.placeholder(tf.int32, [None, None])
        self.sl = tf.placeholder(tf.int32, [None])
        self.lr = tf.placeholder(tf.float32, [])

        small = tf.truncated_normal_initializer(stddev=0.1)
        self.user_emb_w = rec.get_embedding_variable("user_emb_w", 16, initializer=small)
        self.item_emb_w = rec.get_embedding_variable("item_emb_w", 8, initializer=small)
        self.item_b = rec.get_embedding_variable("item_b", 1, initializer=tf.zeros_initializer())
        self.cate_emb_w = rec.get_embedding_variable("cate_emb_w", 8, initializer=small)
        self._cate_list = tf.convert_to_tensor(cate_list, dtype=tf.int64)

        i_emb, j_emb, h_emb = [self._item_emb(items) for items in (self.i, self.j, self.hist_i)]
        i_b, j_b = self._bias(self.i), self._bias(self.j)
        u_emb = tf.squeeze(attention(i_emb, h_emb, self.sl), axis=1)
        u_emb = dense(u_emb, 16, "hist_fcn") + rec.embedding_lookup(self.user_emb_w, self.u)
        layer_i, layer_j = self._fcn(u_emb, i_emb), self._fcn(u_emb, j_emb)
        x = i_b - j_b + layer_i - layer_j
        self.logits = i_b + layer_i
        self.mf_auc = tf.reduce_mean(tf.to_float(x > 0))

        # Every user with each of the first items.
        ads = tf.range(PREDICT_ADS_NUM)
        users = tf.shape(u_emb)[0]
        sub = tf.tile(self._item_emb(ads)[None], [users, 1, 1])
        u_emb_sub = tf.tile(u_emb[:, None], [1, PREDICT_ADS_NUM, 1])
        layer_sub = self._fcn(u_emb_sub, sub)
        self.logits_sub = tf.sigmoid(self._bias(ads) + layer_sub)

        self.global_step = tf.Variable(0, trainable=False, name="global_step")
        self.global_epoch_step = tf.Variable(0, trainable=False, name="global_epoch_step")
        self.global_epoch_step_op = tf.assign(self.global_epoch_step, self.global_epoch_step + 1)

        self.loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(logits=self.logits, labels=self.y)
        )
        trainable_params = tf.trainable_variables()
        self.opt = rec.optimizers.GradientDescentOptimizer(learning_rate=self.lr)
        gradients = tf.gradients(self.loss, trainable_params)
        clip_gradients, _ = tf.clip_by_global_norm(gradients, 5)
        self.train_op = self.opt.apply_gradients(
            zip(clip_gradients, trainable_params), global_step=self.global_step
        )
        self.saver = tf.train.Saver()

    def _item_emb(self, items):
        categories = tf.gather(self._cate_list, items)
        vectors = [
            rec.embedding_lookup(self.item_emb_w, items),
            rec.embedding_lookup(self.cate_emb_w, categories),
        ]
        return tf.concat(vectors, axis=-1)

    def _bias(self, items):
        return tf.squeeze(rec.embedding_lookup(self.item_b, items), axis=-1)

    def _fcn(self, u_emb, item_emb):
        layer = dense(tf.concat([u_emb, item_emb], axis=-1), 16, "f1", tf.nn.sigmoid)
        return tf.squeeze(dense(layer, 1, "f2"), axis=-1)

    def train(self, sess, uij, lr):
        feed_dict = {
            self.u: uij[0],
            self.i: uij[1],
            self.y: uij[2],
            self.hist_i: uij[3],
            self.sl: uij[4],
            self.lr: lr,
        }
        return sess.run([self.loss, self.train_op], feed_dict)[0]

    def eval(self, sess, uij):
        feed_dict = {self.u: uij[0], self.i: uij[1], self.j: uij[2]}
        feed_dict.update({self.hist_i: uij[3], self.sl: uij[4]})
        return sess.run([self.mf_auc, self.logits_sub], feed_dict)


def data_input(data, batch_size):
    """Batches of users, items, labels or other items, histories and their lengths."""
    for first in range(0, len(data), batch_size):
        batch = data[first : first + batch_size]
        users, histories, items, thirds = zip(*batch)
        lengths = [len(history) for history in histories]
        padded = np.zeros([len(batch), max(lengths)], np.int64)
        for row, history in zip(padded, histories):
            row[: len(history)] = history
        yield users, items, thirds, padded, lengths


def evaluate(sess, model, test_set):
    aucs = []
    for uij in data_input(test_set, 64):
        auc, scores = model.eval(sess, uij)
        assert scores.shape == (len(uij[0]), PREDICT_ADS_NUM)
        aucs.append(auc)
    print(f"test_gauc: {np.mean(aucs):.9g}")


def main():
    with open(args.dataset, "rb") as f:
        train_set, test_set, cate_list = [pickle.load(f) for _ in range(3)]
    model = Model(cate_list)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as sess:
        path = tf.train.latest_checkpoint(args.save_path)
        if path:
            model.saver.restore(sess, path)
        else:
            sess.run(tf.global_variables_initializer())
            sess.run(tf.local_variables_initializer())
        for epoch in range(sess.run(model.global_epoch_step), args.epochs):
            shuffled = random.Random(epoch).sample(train_set, len(train_set))
            for uij in data_input(shuffled, 32):
                print(f"loss {model.train(sess, uij, args.lr):.9g}")
            sess.run(model.global_epoch_step_op)
            model.saver.save(
                sess, os.path.join(args.save_path, "ckpt"), global_step=model.global_step
            )
        evaluate(sess, model, test_set)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--v2_behavior", choices=["off", "graph"], default="off")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--save_path", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    args = parser.parse_args()
    if args.v2_behavior == "off":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()
    tf.set_random_seed(1234)
    main()
