# SPDX-License-Identifier: Apache-2.0
"""A part of the workload: threads that do everything to the same tables at the same time."""

import numpy as np
import tensorflow.compat.v1 as tf

import rec_estimator as rec

DIM = 8
KEYS = 5000  # So that steps meet in the same rows and shards.
BATCH = 4000  # So that a step is shared by several threads of the pool.
OPTIMIZERS = {
    "counter": rec.optimizers.AdagradOptimizer(0.1),
    "bloom": rec.optimizers.AdamOptimizer(0.1),
    "limited": rec.optimizers.FtrlOptimizer(0.1),
    "plain": rec.optimizers.GradientDescentOptimizer(0.1),
    "narrow": rec.optimizers.MomentumOptimizer(0.1, 0.9),
}


def option(filter_option=None, evict_option=None):
    return rec.EmbeddingVariableOption(filter_option=filter_option, evict_option=evict_option)


def make_tables():
    """One table of each kind of filter, eviction and limit."""
    return {
        "counter": rec.get_embedding_variable(
            "counter", DIM, ev_option=option(rec.CounterFilter(2), rec.GlobalStepEvict(20))
        ),
        "bloom": rec.get_embedding_variable(
            "bloom",
            DIM,
            partitioner=tf.fixed_size_partitioner(2),
            ev_option=option(rec.CBFFilter(2, KEYS, 0.01), rec.L2WeightEvict(0.5)),
        ),
        # Some steps meet the limit and are refused.
        "limited": rec.create_table(
            tf.int64, DIM, "limited", tf.ones_initializer(), device_vocabulary_size=KEYS // 2
        ),
        "plain": rec.get_embedding_variable("plain", DIM),
        "narrow": rec.get_embedding_variable(
            "narrow", DIM, value_dtype=tf.bfloat16, slot_dtype=tf.bfloat16
        ),
    }


# What a table answers while its rows are replaced.
RESTORING = (tf.errors.FailedPreconditionError, tf.errors.AbortedError)


class Tables:
    """The tables in a graph and a session, and what threads do to them."""

    def __init__(self, work, session):
        self.work, self.session = work, session
        self.step = tf.train.get_or_create_global_step()
        self.tables = make_tables()
        self.keys = {name: tf.placeholder(tf.int64, [None]) for name in self.tables}
        read = {
            name: rec.sparse_lookup(table, self.keys[name], DIM, is_train=True, modify_graph=True)
            if name == "limited"
            else rec.embedding_lookup(table, self.keys[name])
            for name, table in self.tables.items()
        }
        self.updates = {
            name: OPTIMIZERS[name].minimize(
                tf.reduce_sum(tf.square(read[name])), self.step, var_list=[table]
            )
            for name, table in self.tables.items()
        }
        self.reads = list(read.values())
        self.ids = tf.sparse_placeholder(tf.int64, [None, None])
        self.grouped = [
            rec.embedding_lookup_sparse(self.tables[name], self.ids, combiner="mean")
            for name in ("counter", "bloom", "plain", "narrow")
        ]
        weights = self.ids.with_values(tf.random.uniform(tf.shape(self.ids.values)))
        self.grouped += [
            rec.embedding_lookup_sparse(self.tables[name], self.ids, weights, combiner="sqrtn")
            for name in ("counter", "plain")
        ]
        some = tf.range(100, dtype=tf.int64)
        self.inspections = [
            each
            for table in self.tables.values()
            for each in (table.size(), table.total_count(), table.get_frequency(some))
        ]
        self.inspections.append(self.tables["plain"].export().keys)
        self.evictions = [self.tables[name].evict() for name in ("counter", "bloom")]
        self.saver = rec.Saver(incremental=True, max_to_keep=2, max_deltas=3)
        self.stock_saver = tf.train.Saver(max_to_keep=2)
        session.run(tf.global_variables_initializer())

    def train(self, name):
        """Trains one table with random keys."""

        def run():
            rng = np.random.default_rng(len(name))
            for i in range(self.work.rounds * 2):
                # The last rounds use fewer keys, so that steps fit into the limit again.
                most = KEYS if i % 3 else KEYS // 4
                fed = {self.keys[name]: rng.integers(0, most, BATCH)}
                try:
                    self.session.run(self.updates[name], fed)
                except tf.errors.ResourceExhaustedError:
                    if name != "limited":
                        raise
                except RESTORING:
                    pass

        return run

    def read(self):
        rng = np.random.default_rng(0)
        rows = np.sort(rng.integers(0, 500, BATCH))
        for _ in range(self.work.rounds * 2):
            keys = rng.integers(0, KEYS, BATCH)
            fed = dict.fromkeys(self.keys.values(), keys)
            fed[self.ids] = (np.stack([rows, np.arange(BATCH)], axis=1), keys, [500, BATCH])
            self._unless_restoring(self.reads + self.grouped + self.inspections, fed)

    def save_and_restore(self):
        for i in range(max(2, self.work.rounds // 4)):
            prefix = str(self.work.folder / "ours")
            path = self._unless_restoring(self.saver.save, prefix, self.step)
            if path and i % 4 == 1:
                self.saver.restore(self.session, path)

    def save_by_stock_saver(self):
        for _ in range(max(1, self.work.rounds // 6)):
            prefix = str(self.work.folder / "stock")
            self._unless_restoring(self.stock_saver.save, prefix, self.step)

    def evict(self):
        for _ in range(self.work.rounds):
            self._unless_restoring(self.evictions)

    def _unless_restoring(self, action, *arguments):
        try:
            if callable(action):
                return action(self.session, *arguments)
            return self.session.run(action, *arguments)
        except RESTORING:
            return None


def run(work):
    """Lets the threads of all kinds work at the same time."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tables = Tables(work, session)
        work.run_together(
            [
                *(tables.train(name) for name in tables.tables),
                tables.train("counter"),
                tables.read,
                tables.read,
                tables.evict,
                tables.save_and_restore,
                tables.save_by_stock_saver,
            ],
            graph,
        )
        work.ran(graph)
