# SPDX-License-Identifier: Apache-2.0
"""Admitted and filtered keys after a restore into a table with another filter or key type.

Oracle: counts per key. Admitted keys stay admitted; the new filter decides about filtered keys.
"""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from filter_rules import FILTERS as RULES
from filter_rules import WITH_ENTRIES
from stored_checkpoints import copy_without, write

import rec_estimator as rec
from rec_estimator.table import saveable

INITIAL = rec.InitializerOption(tf.constant_initializer(7.0), default_value_dim=3)
FILTERS = {
    "none": None,
    "counter 3": rec.CounterFilter(3),
    "counter 5": rec.CounterFilter(5),
    "bloom 3": rec.CBFFilter(3, max_element_size=4000, false_positive_probability=1e-4),
    "bloom 5": rec.CBFFilter(5, max_element_size=4000, false_positive_probability=1e-4),
    "other bloom 3": rec.CBFFilter(3, max_element_size=900, false_positive_probability=1e-5),
}
SHARDS = [(a, b) for a in (1, 3, 7) for b in (1, 3, 7)]
EDGES = [0, -1, 2**63 - 1, -(2**63)]


class Model:
    """Filtered tables under training by Adagrad, each with the same keys."""

    def __init__(self, filters, shards, key_dtype=tf.int64, ev_option=None):
        """Args: table name to filter name, numbers of shards, an option instead of the filter's."""
        self.tables = {}
        self.keys = tf.placeholder(key_dtype, [None])
        for (name, filter_name), number in zip(filters.items(), shards):
            option = ev_option or rec.EmbeddingVariableOption(
                init_option=INITIAL, filter_option=FILTERS[filter_name]
            )
            partitioner = tf.fixed_size_partitioner(number) if number > 1 else None
            self.tables[name] = rec.get_embedding_variable(
                name, 2, key_dtype=key_dtype, partitioner=partitioner, ev_option=option
            )
        loss = tf.add_n(
            [tf.reduce_sum(rec.embedding_lookup(t, self.keys)) for t in self.tables.values()]
        )
        step = tf.train.get_or_create_global_step()
        optimizer = rec.optimizers.AdagradOptimizer(0.1, initial_accumulator_value=0.5)
        self.train_op = optimizer.minimize(loss, global_step=step)
        self._exports = {name: table.export() for name, table in self.tables.items()}

    def train(self, session, batches):
        for batch in batches:
            session.run(self.train_op, {self.keys: batch})

    def all_rows(self, session):
        """{table: {key: (value, frequency, version)}} of keys that own a row."""
        found = {}
        for name, export in session.run(self._exports).items():
            columns = zip(export.keys, export.values, export.freqs, export.versions)
            found[name] = {key: (value.tobytes(), n, step) for key, value, n, step in columns}
        return found

    def rows(self, session):
        """The rows of the only table."""
        return self.all_rows(session)["emb"]

    def total_count(self, session):
        return session.run({name: t.total_count()[0] for name, t in self.tables.items()})


def model_of(filter_name, shards, key_dtype=tf.int64):
    return Model({"emb": filter_name}, [shards], key_dtype)


def batches(seed, edges=EDGES, low=-400):
    """Batches in which keys occur 1 to 8 times in all, each key in other steps."""
    rng = np.random.default_rng(seed)
    keys = np.concatenate([rng.choice(np.arange(low, 400), 150, replace=False), edges])
    occurrences = np.repeat(keys, rng.integers(1, 9, len(keys)))
    return np.array_split(rng.permutation(occurrences), 4)


def counts_of(parts):
    return collections.Counter(np.concatenate(parts).tolist())


def threshold_of(filter_name):
    return getattr(FILTERS[filter_name], "filter_freq", 0)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Checkpoints of a table with CounterFilter(3) by number of shards: (prefix, rows)."""
    made = {}
    for shards in (1, 3, 7):
        folder = tmp_path_factory.mktemp("source")
        with tf.Graph().as_default(), tf.Session() as session:
            model = model_of("counter 3", shards)
            session.run(tf.global_variables_initializer())
            model.train(session, batches(0))
            prefix = rec.Saver().save(session, str(folder / "model"))
            made[shards] = prefix, model.rows(session)
    return made


def known_counts(before, after, counts, admitted):
    """The expected counts after the restore."""
    # Counts move between Bloom filters, except to one of a lower rate.
    forgets = "bloom" in before and ("bloom" not in after or after.rstrip(" 35") > before)
    return {key: n for key, n in counts.items() if key in admitted or not forgets}


@pytest.mark.long
@pytest.mark.parametrize("before", FILTERS)
def test_checkpoint_of_each_filter_restores_under_every_other_filter(tmp_path, before):
    # One table per filter to restore into. The six tests together cover all pairs of shard counts.
    names = {after.replace(" ", "_"): after for after in FILTERS}
    first = list(FILTERS).index(before)
    cuts = [SHARDS[(first + 4 * i) % len(SHARDS)] for i in range(len(FILTERS))]
    with tf.Graph().as_default(), tf.Session() as session:
        model = Model(dict.fromkeys(names, before), [cut[0] for cut in cuts])
        session.run(tf.global_variables_initializer())
        model.train(session, batches(0))
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
        saved = model.all_rows(session)
    with tf.Session() as session:
        model = Model(names, [cut[1] for cut in cuts])
        rec.Saver().restore(session, prefix)
        restored, totals = model.all_rows(session), model.total_count(session)
        expected = {
            name: check_restored(before, after, saved[name], restored[name], totals[name])
            for name, after in names.items()
        }
        # Counting continues from the restored counts.
        model.train(session, batches(1))
        trained = model.all_rows(session)
    for name, after in names.items():
        counts = known_counts(before, after, counts_of(batches(0)), saved[name])
        for key, n in counts_of(batches(1)).items():
            if counts.get(key, 0) + n >= threshold_of(after):
                expected[name].add(key)
        assert set(trained[name]) == expected[name], (before, after)


def check_restored(before, after, saved, restored, total):
    """Compares a table with the oracle; returns the keys that own rows."""
    counts = counts_of(batches(0))
    assert set(saved) == {key for key, n in counts.items() if n >= threshold_of(before)}
    # A key in a Bloom filter is admitted at its next occurrence, not by the restore.
    judged = {key for key, n in counts.items() if n >= threshold_of(after)}
    expected = set(saved) | (set() if "bloom" in before else judged)
    assert set(restored) == expected, (before, after)
    assert {key: restored[key] for key in saved} == saved
    initial = np.full(2, 7.0, np.float32).tobytes()
    for key in expected - set(saved):
        assert restored[key][:2] == (initial, counts[key])
    is_counted = "bloom" not in before and "bloom" not in after
    assert total == (len(counts) if is_counted else len(expected))
    return expected


BLOOM = rec.CBFFilter(9, max_element_size=1000, false_positive_probability=0.001)
CHANGES = {
    "freq": rec.CBFFilter(12, 1000, 0.001),
    "wider cells": rec.CBFFilter(20, 1000, 0.001),
    "size": rec.CBFFilter(9, 2000, 0.001),
    "probability": rec.CBFFilter(9, 1000, 0.002),
    "all": rec.CBFFilter(300, 500, 0.01),
    "lower probability": rec.CBFFilter(9, 1000, 0.0001),
    "much larger": rec.CBFFilter(9, 2**30, 0.001),
    "counter": rec.CounterFilter(9),
    "none": None,
}
LOSING = ("lower probability", "much larger", "counter")


def restore_counts(folder, option, restores, shards=1):
    """Restores a table of a filter or trains and saves it; returns the counts of keys 1 and 2."""
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    ev_option = rec.EmbeddingVariableOption(filter_option=option)
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.get_embedding_variable("t", 2, ev_option=ev_option, partitioner=partitioner)
        loss = tf.reduce_sum(rec.embedding_lookup(table, [1] * 5 + [2] * 8))
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
        counts = table.get_frequency([1, 2])
        session.run(tf.global_variables_initializer())
        if restores:
            rec.Saver().restore(session, f"{folder}/model")
        else:
            session.run(train)
            rec.Saver().save(session, f"{folder}/model")
        return session.run(counts).tolist()


@pytest.mark.each_value
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_changed_bloom_filter_keeps_its_counts_or_a_warning_names_the_table(
    tmp_path, monkeypatch, change, shards
):
    lines = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: lines.append(text % values))
    assert restore_counts(tmp_path, BLOOM, restores=False) == [5, 8]
    restored = restore_counts(tmp_path, CHANGES[change], True, shards)
    assert restored == ([0, 0] if change in (*LOSING, "none") else [5, 8])
    lost = [line for line in lines if "counts of keys without a row of table t" in line]
    assert len(lost) == (shards if change in LOSING else 0)


@pytest.mark.each_value
@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
@pytest.mark.parametrize("value", ["False", "false", "0", "1"])
@pytest.mark.parametrize("filter_name", ["counter 3", "bloom 3"])
def test_filtered_features_can_be_left_out(tmp_path, monkeypatch, saver, value, filter_name):
    monkeypatch.setenv("TF_EV_SAVE_FILTERED_FEATURES", value)
    with tf.Session() as session:
        model = model_of(filter_name, 1)
        session.run(tf.global_variables_initializer())
        model.train(session, batches(0))
        prefix = saver().save(session, str(tmp_path / "model"))
    reader = tf.train.NewCheckpointReader(prefix)
    counts = counts_of(batches(0))
    filtered = sum(n < 3 for n in counts.values())
    kept = filtered if value == "1" and filter_name == "counter 3" else 0
    for suffix in ("keys", "freqs", "versions"):
        assert reader.get_tensor(f"emb-{suffix}_filtered").shape == (kept,)
    assert reader.get_tensor("emb-partition_filter_offset")[-1] == kept
    assert reader.get_tensor("emb-keys").shape == (len(counts) - filtered,)
    assert reader.has_tensor("emb-cbf_blocks") == (filter_name == "bloom 3")


@pytest.mark.parametrize("shards", [(1, 3), (7, 1)])
@pytest.mark.parametrize("after", ["none", "counter 5", "bloom 5"])
def test_without_freqs_every_key_is_admitted_with_a_count_that_suffices(
    counted, tmp_path, after, shards
):
    prefix, rows = counted[shards[0]]
    bare = copy_without(prefix, tmp_path / "bare", lambda name: name.endswith("-freqs"))
    with tf.Session() as session:
        model = model_of(after, shards[1])
        rec.Saver().restore(session, bare)
        restored = model.rows(session)
        assert {restored[key][1] for key in rows} == {max(1, threshold_of(after))}
        assert {key: restored[key][0] for key in rows} == {k: row[0] for k, row in rows.items()}


@pytest.mark.parametrize("suffixes", [("_filtered",), ("_offset",), ("_filtered", "_offset")])
def test_without_filtered_keys_or_offsets_the_rest_restores(counted, tmp_path, suffixes):
    prefix, rows = counted[3]
    bare = copy_without(prefix, tmp_path / "bare", lambda name: name.endswith(suffixes))
    with tf.Session() as session:
        model = model_of("counter 3", 7)
        rec.Saver().restore(session, bare)
        assert model.rows(session) == rows
        known = len(rows) if "_filtered" in suffixes else len(counts_of(batches(0)))
        assert model.total_count(session) == {"emb": known}


# Beside those of the contract, a Bloom filter so small that generations, false positives and
# entries all matter.
SMALL = rec.CBFFilter(3, max_element_size=150, false_positive_probability=0.1)
AGEING = {**{name: make_filter(3) for name, make_filter in RULES.items()}, "small bloom": SMALL}


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("filter_option", AGEING.values(), ids=AGEING)
@pytest.mark.parametrize("rule", [rec.GlobalStepEvict(6), rec.L2WeightEvict(1e9)], ids=str)
@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
def test_interrupted_training_with_eviction_ends_like_the_uninterrupted_one(
    tmp_path, saver, rule, filter_option
):
    rng = np.random.default_rng(5)
    parts = [rng.integers(40 * i, 40 * i + 120, 60) for i in range(40)]

    def run(restarts):
        state, prefix = None, None
        for first in range(0, len(parts), 8 if restarts else len(parts)):
            with tf.Graph().as_default(), tf.Session() as session:
                option = rec.EmbeddingVariableOption(
                    init_option=INITIAL, filter_option=filter_option, evict_option=rule
                )
                model = Model({"emb": "none"}, [1], ev_option=option)
                save = saver()
                if prefix is None:
                    session.run(tf.global_variables_initializer())
                else:
                    save.restore(session, prefix)
                for i in range(first, first + 8 if restarts else len(parts)):
                    model.train(session, [parts[i]])
                    if i % 4 == 3:  # Evicts.
                        name = f"{'restarts' if restarts else 'once'}-{i}"
                        prefix = save.save(session, str(tmp_path / name))
                export = saveable.export_shard(model.tables["emb"].shards[0], ())
                state = session.run(export._asdict())
        return state

    once, restarted = run(restarts=False), run(restarts=True)
    if filter_option is SMALL:
        generations = once["sketch"][list(SMALL.sketch_tensors()).index("cbf_generations")]
        assert generations.shape == (3, 3)
    assert once["keys_filtered"].size > 0
    for name, expected in once.items():
        tf.nest.map_structure(np.testing.assert_array_equal, restarted[name], expected)


# ------------------------------------------------------------------ every filter


EVERY_FILTER = pytest.mark.parametrize("make_filter", RULES.values(), ids=RULES)


class Filtered(Model):
    """One table. In a batch, 40 keys occur 1 to 4 times each."""

    KEYS = np.arange(40)
    COUNTS = KEYS % 4 + 1
    BATCH = np.repeat(KEYS, COUNTS)

    def __init__(self, filter_option, shards):
        option = rec.EmbeddingVariableOption(init_option=INITIAL, filter_option=filter_option)
        super().__init__({"emb": "none"}, [shards], ev_option=option)
        table = self.tables["emb"]
        self._frequencies = table.get_frequency(self.KEYS)
        self.is_saved = bool(table.filter.sketch_tensors()) or isinstance(
            table.filter, WITH_ENTRIES
        )

    def counts(self, session):
        return session.run(self._frequencies)

    def saved_counts(self):
        return self.COUNTS if self.is_saved else 0 * self.COUNTS


@pytest.mark.each_value
@EVERY_FILTER
@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
@pytest.mark.parametrize("cuts", [(1, 1), (1, 3), (3, 2)], ids=str)
def test_every_filter_goes_on_counting_after_a_restore(tmp_path, make_filter, saver, cuts):
    with tf.Graph().as_default(), tf.Session() as session:
        model = Filtered(make_filter(6), cuts[0])
        session.run(tf.global_variables_initializer())
        model.train(session, [model.BATCH])
        np.testing.assert_array_equal(model.counts(session), model.COUNTS)
        prefix = saver().save(session, str(tmp_path / "model"))
        suffixes = model.tables["emb"].filter.sketch_tensors()
    reader = tf.train.NewCheckpointReader(prefix)
    for shard in ["emb"] if cuts[0] == 1 else [f"emb/part_{i}" for i in range(cuts[0])]:
        for name, dtype in suffixes.items():
            assert reader.get_tensor(f"{shard}-{name}").dtype == dtype.as_numpy_dtype
    with tf.Session() as session:
        model = Filtered(make_filter(6), cuts[1])
        saver().restore(session, prefix)
        counts = model.saved_counts()
        np.testing.assert_array_equal(model.counts(session), counts)
        assert not model.rows(session)
        model.train(session, [model.BATCH])
        assert set(model.rows(session)) == set(model.KEYS[counts + model.COUNTS >= 6])
        # A restore replaces what was counted.
        saver().restore(session, prefix)
        np.testing.assert_array_equal(model.counts(session), counts)


@EVERY_FILTER
def test_every_filter_is_restored_from_deltas(tmp_path, make_filter):
    with tf.Graph().as_default(), tf.Session() as session:
        model, saver = Filtered(make_filter(9), 1), rec.Saver(incremental=True)
        session.run(tf.global_variables_initializer())
        for step in range(3):
            # The first half changes before the last save, the second half after it.
            model.train(session, [model.BATCH[: len(model.BATCH) // 2 * (step % 2 + 1)]])
            prefix = saver.save(session, str(tmp_path / "model"), global_step=step)
        live = model.counts(session)
    assert tf.train.NewCheckpointReader(prefix).has_tensor("emb-delta_of")
    with tf.Graph().as_default(), tf.Session() as session:
        model = Filtered(make_filter(9), 1)
        rec.Saver().restore(session, prefix)
        np.testing.assert_array_equal(model.counts(session), live if model.is_saved else 0 * live)


@EVERY_FILTER
def test_a_cut_tensor_of_any_filter_is_an_error_that_names_it(tmp_path, make_filter):
    with tf.Graph().as_default(), tf.Session() as session:
        model = Filtered(make_filter(6), 1)
        session.run(tf.global_variables_initializer())
        model.train(session, [model.BATCH])
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
    reader = tf.train.NewCheckpointReader(prefix)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    suffixes = make_filter(6).sketch_tensors()
    for suffix in suffixes:
        name = f"emb-{suffix}"
        bad = write(tmp_path / "bad", {**tensors, name: tensors[name][:-1]})
        with tf.Graph().as_default(), tf.Session() as session:
            Filtered(make_filter(6), 1)
            with pytest.raises(tf.errors.DataLossError) as raised:
                rec.Saver().restore(session, bad)
            assert any(f"emb-{each} of " in raised.value.message for each in suffixes)


def train_and_save_as(folder, key_dtype, parts):
    with tf.Graph().as_default(), tf.Session() as session:
        model = model_of("counter 3", 1, key_dtype)
        session.run(tf.global_variables_initializer())
        model.train(session, parts)
        return rec.Saver().save(session, str(folder / "model")), model.rows(session)


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
@pytest.mark.parametrize("before, after", [(tf.int32, tf.int64), (tf.int64, tf.int32)])
def test_key_types_widen_and_narrow(tmp_path, before, after, saver):
    parts = batches(0, edges=[0, -1, 2**31 - 1, -(2**31)])
    prefix, rows = train_and_save_as(tmp_path, before, parts)
    assert tf.train.load_variable(prefix, "emb-keys").dtype == before.as_numpy_dtype
    with tf.Session() as session:
        model = model_of("counter 3", 3, after)
        saver().restore(session, prefix)
        assert model.rows(session) == rows
        again = saver().save(session, str(tmp_path / "again"))
    reader = tf.train.NewCheckpointReader(again)
    assert reader.get_tensor("emb/part_0-keys").dtype == after.as_numpy_dtype


@pytest.mark.parametrize("occurrences", [1, 3], ids=["filtered", "admitted"])
def test_a_key_that_does_not_fit_is_an_error_that_names_it(tmp_path, occurrences):
    prefix, _ = train_and_save_as(tmp_path, tf.int64, [[5] * 3 + [2**31] * occurrences])
    with tf.Session() as session:
        model = model_of("counter 3", 1, tf.int32)
        session.run(tf.global_variables_initializer())
        model.train(session, [[1, 1, 1]])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"emb-keys.*2147483648|2147483648.*emb-keys"
        ):
            rec.Saver().restore(session, prefix)
        assert set(model.rows(session)) == {1}
