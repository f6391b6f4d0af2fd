# SPDX-License-Identifier: Apache-2.0
"""Training steps of various models are the same on compressed and on flat batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import LossHook, compare_slots

import rec_estimator as rec
from model_zoo import data
from model_zoo.minimize import Training
from model_zoo.models import MODELS
from rec_estimator import graph_optimizer

# The number of candidates of each user, by batch. A batch with one user may broadcast.
SIZES = [[3, 1, 4, 2], [6], [1, 2]]


def batch(seed):
    """(features of users, features of candidates, sizes)."""
    sizes, random = SIZES[seed], np.random.RandomState(seed)
    users, items = len(sizes), sum(sizes)
    of_users = {
        "user": random.randint(0, 5, users),
        "history": random.randint(-1, 6, (users, 4)),
        "weights": random.uniform(0.5, 1.5, (users, 4)).astype(np.float32),
        "age": random.uniform(-1, 1, (users, 3)).astype(np.float32),
        "importance": random.choice([0.0, 1.0, 2.0], users).astype(np.float32),
    }
    of_items = {
        "item": random.randint(0, 6, items),
        "price": random.uniform(-1, 1, (items, 3)).astype(np.float32),
        "label": random.randint(0, 2, items).astype(np.float32),
        "weight": random.choice([0.0, 1.0, 3.0], items).astype(np.float32),
    }
    return of_users, of_items, np.array(sizes, np.int32)


def run(train, is_grouped, folder):
    """Three steps of `train`, a function of features; (what it fetches, the checkpoint's prefix).

    `train` returns (train_op, fetches).
    """
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        tf.train.get_or_create_global_step()
        users, items, _ = batch(0)
        features = {
            name: tf.placeholder(value.dtype, [None, *value.shape[1:]], name=name)
            for name, value in {**users, **items}.items()
        }
        item_size = tf.placeholder(tf.int32, [None], name="item_size")
        if is_grouped:
            sides = [[features[name] for name in side] for side in (users, items)]
            graph_optimizer.enable_sample_awared_graph_compression(*sides, item_size)
        train_op, fetches = train(dict(features))
        fetches = graph_optimizer.compress(fetches)
        saver, found = rec.Saver(), []
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            for step in range(3):
                users, items, sizes = batch(step)
                if not is_grouped:
                    users = {k: np.repeat(v, sizes, axis=0) for k, v in users.items()}
                feed = {features[k]: v for k, v in {**users, **items}.items()}
                feed[item_size] = sizes
                found.append(session.run((train_op, fetches), feed)[1])
            return found, saver.save(session, str(folder / f"{is_grouped}"))


def check_same(train, folder):
    """Compares the fetched values and the checkpoints; returns the prefix of the checkpoint."""
    (expected, flat), (got, grouped) = (run(train, is_grouped, folder) for is_grouped in (0, 1))
    for wanted, value in zip(tf.nest.flatten(expected), tf.nest.flatten(got)):
        assert np.shape(wanted) == np.shape(value)
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    names = dict(tf.train.list_variables(flat))
    assert names == dict(tf.train.list_variables(grouped))
    for name in names:
        wanted, value = (tf.train.load_variable(prefix, name) for prefix in (flat, grouped))
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(value, wanted, err_msg=name)
        else:
            largest = np.abs(wanted).max(initial=1e-3)
            np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5 * largest, err_msg=name)
    return grouped


def normal(seed=3):
    return tf.random_normal_initializer(0.0, 0.5, seed=seed)


def table(name, **settings):
    return rec.get_embedding_variable(name, 3, initializer=normal(), **settings)


def vectors(features, name):
    """(vector of the user, vector of the item, score), each from a table of its own."""
    user = rec.embedding_lookup(table(f"{name}_user"), features["user"])
    item = rec.embedding_lookup(table(f"{name}_item"), features["item"])
    return user, item, tf.reduce_sum(user * item, axis=1)


def minimize(loss, **arguments):
    step = tf.train.get_global_step()
    return rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step, **arguments)


OPTIMIZERS = {
    "GradientDescent": lambda o: o.GradientDescentOptimizer(0.1),
    "GradientDescentDecay": lambda o: o.GradientDescentOptimizer(0.1, weight_decay=0.01),
    "Momentum": lambda o: o.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adagrad": lambda o: o.AdagradOptimizer(0.1),
    "AdagradDecay": lambda o: o.AdagradDecayOptimizer(
        0.1, tf.train.get_global_step(), accumulator_decay_step=2
    ),
    "RowwiseAdagrad": lambda o: o.RowwiseAdagradOptimizer(0.1),
    "Adam": lambda o: o.AdamOptimizer(0.01),
    "LazyAdam": lambda o: o.LazyAdamOptimizer(0.01),
    "AdamAsync": lambda o: o.AdamAsyncOptimizer(0.01),
    "AdamW": lambda o: o.AdamWOptimizer(weight_decay=0.01, learning_rate=0.01),
    "Ftrl": lambda o: o.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01
    ),
}


@pytest.mark.long
def test_every_optimizer_of_ours(tmp_path):
    """Every optimizer trains a variable and a table that users and candidates share."""

    def train(features):
        losses, pairs = [], {}
        for name in OPTIMIZERS:
            rows = table(name)
            user = rec.embedding_lookup(rows, features["user"])
            item = rec.embedding_lookup(rows, features["item"])
            weight = tf.get_variable(f"weight_{name}", [3], initializer=tf.ones_initializer())
            losses.append(tf.reduce_sum(tf.tanh(user * weight) * item, axis=1) - features["label"])
            pairs[name] = [rows, weight]
        loss = tf.reduce_mean(tf.square(losses))
        ops = []
        for name, make in OPTIMIZERS.items():
            optimizer = make(rec.optimizers)
            gradients = optimizer.compute_gradients(loss, var_list=pairs[name])
            ops.append(optimizer.apply_gradients(gradients))
        with tf.control_dependencies(ops):
            return tf.train.get_global_step().assign_add(1).op, loss

    prefix = check_same(train, tmp_path)
    counts = tf.train.load_variable(prefix, "AdamW-freqs")
    assert counts.sum() == 2 * sum(map(sum, SIZES))


@pytest.mark.long
def test_losses_regularizers_statistics_and_noise(tmp_path):
    def train(features):
        losses, label = [], features["label"]
        _, _, score = vectors(features, "weighted")
        for name in ("SUM", "MEAN", "SUM_OVER_BATCH_SIZE", "SUM_BY_NONZERO_WEIGHTS", "NONE"):
            reduction = getattr(tf.losses.Reduction, name)
            for weights in (features["importance"], features["importance"] * features["weight"]):
                losses.append(
                    tf.losses.sigmoid_cross_entropy(label, score, weights, reduction=reduction)
                )
        user, item, _ = vectors(features, "regularized")
        losses += [0.1 * tf.nn.l2_loss(user), 0.1 * tf.reduce_sum(tf.square(user))]
        losses += [tf.reduce_mean(tf.reduce_sum(tf.square(user), axis=1)), tf.reduce_max(user)]
        user, item, _ = vectors(features, "normalized")
        mean, variance = tf.nn.moments(user, [0])
        fused, mean_of_all, variance_of_all = tf.nn.fused_batch_norm(
            user[:, None, None], tf.ones([3]), tf.zeros([3])
        )[:3]
        normed = (user - mean) * tf.rsqrt(variance + 1e-3) * fused[:, 0, 0]
        losses.append(tf.reduce_mean(normed * tf.tanh(normed) * item))
        user, item, _ = vectors(features, "noisy")
        kept = tf.nn.dropout(user, rate=0.5, seed=1)
        kept *= tf.nn.dropout(features["age"], rate=0.5, noise_shape=[1, 3], seed=2)
        noise = tf.random.normal(tf.shape(user), seed=3)
        losses.append(tf.reduce_sum(tf.square(kept + noise * user) * item))
        loss = tf.add_n([tf.reduce_sum(each) for each in losses])
        with tf.control_dependencies([mean_of_all, variance_of_all]):
            return minimize(loss), (loss, mean_of_all, variance, kept)

    check_same(train, tmp_path)


@pytest.mark.long
def test_lookups_of_every_kind(tmp_path):
    def train(features):
        where = tf.where(features["history"] >= 0)
        ids = tf.gather_nd(features["history"], where)
        shape = tf.shape(features["history"], out_type=tf.int64)
        ids = tf.SparseTensor(where, ids, shape)
        weights = ids.with_values(tf.gather_nd(features["weights"], where))
        total = vectors(features, "plain")[0]
        for combiner in ("sum", "mean", "sqrtn"):
            rows = table(combiner)
            total += rec.embedding_lookup_sparse(rows, ids, weights, combiner=combiner)
            total += rec.embedding_lookup_sparse(rows, ids, None, combiner=combiner, max_norm=0.5)
            total += rec.safe_embedding_lookup_sparse(
                rows, ids, weights, combiner=combiner, default_id=3
            )
        parts = table("parts", partitioner=tf.fixed_size_partitioner(3))
        total += rec.embedding_lookup_sparse(parts, ids, weights, combiner="mean")
        made = rec.create_table(tf.int64, 3, "made", normal(), device_vocabulary_size=20)
        total += rec.sparse_lookup(made, features["user"], modify_graph=True)
        ignored = rec.sparse_lookup(made, features["history"], modify_graph=True, is_grad=False)
        total += tf.reduce_mean(ignored, axis=1)
        item = rec.embedding_lookup(table("mean"), features["item"])
        score = tf.reduce_sum(tf.tanh(total) * item, axis=1)
        return minimize(score - features["label"], grad_loss=features["importance"]), score

    prefix = check_same(train, tmp_path)
    assert {"made-freqs", "parts/part_2-freqs"} < set(dict(tf.train.list_variables(prefix)))


@pytest.mark.long
@pytest.mark.keras_2
def test_gradients_within_a_model_and_loops_over_the_history(tmp_path):
    def train(features):
        user, item, score = vectors(features, "penalized")
        gradient = tf.gradients(tf.tanh(score), user)[0]
        attacked = user + 0.1 * tf.stop_gradient(tf.nn.l2_normalize(gradient, axis=1))
        loss = tf.reduce_mean(tf.square(gradient)) + tf.reduce_mean(tf.square(attacked * item))
        with tf.variable_scope("sequence", initializer=normal(4)):
            cell = tf.nn.rnn_cell.BasicRNNCell(3)
            cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.5, seed=5)
            rows = rec.embedding_lookup(table("penalized_item"), features["history"])
            outputs, state = tf.nn.dynamic_rnn(cell, rows, dtype=tf.float32, parallel_iterations=1)
        loss += tf.reduce_mean(tf.square(outputs)) + tf.reduce_mean(state * item)
        return minimize(loss), (loss, gradient, outputs)

    check_same(train, tmp_path)


@pytest.mark.long
def test_scripts_for_dynamic_expansion(tmp_path):
    """Pairs the gradients of looked-up values with the addresses of their keys."""

    def train(features):
        made = rec.create_table(tf.int64, 3, "made", normal(), device_vocabulary_size=20)
        config = {"access_threshold": 8}
        user, item, history = (
            rec.sparse_lookup(
                made, features[name], modify_graph=True, access_and_evict_config=config
            )
            for name in ("user", "item", "history")
        )
        score = tf.reduce_sum(user * item, axis=1) + tf.reduce_sum(tf.square(history), axis=[1, 2])
        loss = graph_optimizer.compress(tf.reduce_mean(tf.square(score - features["label"])))
        values = tf.get_collection(rec.ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        addresses = tf.get_collection(rec.ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        pairs = zip(tf.gradients(loss, values), addresses)
        step = tf.train.get_global_step()
        return rec.optimizers.AdagradOptimizer(0.1).apply_gradients(pairs, step), loss

    prefix = check_same(train, tmp_path)
    assert len(tf.train.load_variable(prefix, "made-keys_filtered"))
    assert len(tf.train.load_variable(prefix, "made-keys")) > 2


def scaled(gradients):
    return [tf.IndexedSlices(g.values * 0.5, g.indices) for g in gradients]


def clipped(gradients):
    return tf.clip_by_global_norm(gradients, 1.0)[0]


def by_key(gradients):
    (gradient,) = gradients
    keys, places = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(keys))
    return [tf.IndexedSlices(sums, keys)]


@pytest.mark.parametrize("kind", ["table", "variable"])
@pytest.mark.parametrize(
    ("change", "refused"), [(scaled, None), (clipped, "L2Loss"), (by_key, "Unique")]
)
def test_gradients_of_users_are_only_scaled(kind, change, refused, tmp_path):
    def train(features):
        if kind == "table":
            rows = table("rows")
            user = rec.embedding_lookup(rows, features["user"])
        else:
            rows = tf.get_variable("rows", [5, 3], initializer=normal())
            user = tf.nn.embedding_lookup(rows, features["user"])
        loss = tf.reduce_mean(tf.square(user * features["price"]))
        optimizer = rec.optimizers.AdagradOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss, var_list=[rows])
        (gradient,) = change([gradient])
        return optimizer.apply_gradients([(gradient, rows)], tf.train.get_global_step()), loss

    if refused is None:
        check_same(train, tmp_path)
        return
    with pytest.raises(ValueError, match=rf"got .* \({refused}\): they have a slice per user"):
        run(train, True, tmp_path)


def test_norms_of_candidates_gradients_are_taken(tmp_path):
    def train(features):
        _, _, score = vectors(features, "clipped")
        loss = tf.reduce_mean(tf.square(score - features["label"]))
        rows = table("clipped_item")
        optimizer = rec.optimizers.AdagradOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss, var_list=[rows])
        (gradient,) = clipped([gradient])
        return optimizer.apply_gradients([(gradient, rows)], tf.train.get_global_step()), loss

    check_same(train, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("model", ["din", pytest.param("wide_and_deep", marks=pytest.mark.slow)])
def test_models_of_the_zoo_train_the_same(model, tmp_path):
    clicks = data.load("generated")
    users = [column.name for column in clicks.columns if column.role != "item"]
    rows = clicks.in_memory("train")[-512:]
    kept, labels = dict(rows.features), rows.labels["like"]
    for name in users:  # Few users, as where candidates are logged.
        kept[name] = kept[name][np.arange(512) % 37]
    params = {
        **MODELS[model].DEFAULTS,
        "dim": 4,
        "hidden_units": (8, 4),
        "columns": clicks.columns,
        "labels": ("like",),
        "training": Training(),
    }
    prefixes, losses = {}, {}
    for is_grouped in (False, True):

        def input_fn(is_grouped=is_grouped):
            flat = rec.inputs.numpy_input_fn(kept, labels, batch_size=128)()
            return rec.inputs.group_samples(flat, users) if is_grouped else flat

        estimator = rec.RecEstimator(
            MODELS[model].model_fn,
            model_dir=str(tmp_path / str(is_grouped)),
            config=rec.RunConfig(tf_random_seed=1),
            params=params,
            embedding_features=MODELS[model].features(clicks, params),
            sample_compression=rec.SampleCompression(user=users),
        )
        hook = LossHook()
        estimator.train(input_fn, hooks=[hook], steps=1)
        prefixes[is_grouped] = str(estimator.latest_checkpoint())
        estimator.train(input_fn, hooks=[hook])
        losses[is_grouped] = hook.losses
    # After one step, Adam's slots are the gradients and their squares. The weights are no measure:
    # Adam also makes full steps for gradients that are rounding errors, as those of a bias below a
    # softmax.
    slots = compare_slots(*prefixes.values())
    assert "deep/hidden_0/kernel/Adam" in slots and "item/Adam-values" in slots
    assert tf.train.load_variable(prefixes[True], "item-freqs").sum() > 128
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
    assert len(losses[True]) == 5
