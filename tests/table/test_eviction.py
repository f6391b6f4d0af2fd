# SPDX-License-Identifier: Apache-2.0
"""Eviction on demand: which keys are evicted, the returned count, and how they start again."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from filter_rules import FILTERS, WITH_ENTRIES

import rec_estimator as rec
from rec_estimator.options import EvictionRule
from rec_estimator.table import table_time

BANK = np.ones([4, 2], np.float32)
EVERY_FILTER = pytest.mark.parametrize("make_filter", FILTERS.values(), ids=FILTERS)
# One of each rule, which evicts a key that was trained once, by 0.5, and not in the last step.
RULES = [rec.GlobalStepEvict(1), rec.TimeEvict(1), rec.L2WeightEvict(0.5)]
ALSO_PARTITIONED = pytest.mark.parametrize("shards", [1, 3])


def make_table(evict_option, shards=1, filter_option=None, bank=BANK, name="t", **arguments):
    option = rec.EmbeddingVariableOption(
        evict_option=evict_option,
        filter_option=filter_option,
        init_option=rec.InitializerOption(tf.constant_initializer(bank), len(bank)),
    )
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    return rec.get_embedding_variable(
        name, 2, ev_option=option, partitioner=partitioner, **arguments
    )


def trainer(table, optimizer=None):
    """Returns a function of a session and keys that trains the keys by one step of gradient 1."""
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    optimizer = optimizer or rec.optimizers.GradientDescentOptimizer(0.5)
    train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return lambda session, batch: session.run(train, {keys: batch})


def initialized_session():
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


@pytest.fixture(autouse=True)
def _one_step_a_second(monkeypatch):
    def clock():
        return 1000 + tf.cast(tf.train.get_or_create_global_step(), tf.int64)

    monkeypatch.setattr(table_time, "wall_clock", clock)


# ------------------------------------------------------------------ every rule


def test_every_rule_runs_the_contract_tests():
    assert {type(rule) for rule in RULES} == set(EvictionRule.__subclasses__())


@ALSO_PARTITIONED
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_evicts_the_keys_that_it_names_and_no_others(rule, shards):
    table = make_table(rule, shards, bank=0 * BANK)
    train, evict = trainer(table), table.evict()
    with initialized_session() as session:
        train(session, [1, 3])
        for _ in range(4):
            train(session, [2])
        assert session.run(evict) == 2
        assert session.run(table.export()).keys.tolist() == [2]
        assert session.run(evict) == 0
        train(session, [1])
        assert session.run(table.get_frequency([1, 2, 3])).tolist() == [1, 4, 0]


# ------------------------------------------------------------------ by steps


@ALSO_PARTITIONED
def test_version_is_the_global_step_before_its_increment(shards):
    table = make_table(rec.GlobalStepEvict(5), shards)
    train = trainer(table)
    with initialized_session() as session:
        for _ in range(4):
            train(session, [1, -2])
        train(session, [7])
        assert session.run(table.get_version([1, -2, 7, 8])).tolist() == [3, 3, 4, -1]
        assert session.run(tf.train.get_global_step()) == 5


@ALSO_PARTITIONED
def test_keys_are_evicted_when_more_than_steps_to_live_have_passed(shards):
    table = make_table(rec.GlobalStepEvict(2), shards)
    train, evict = trainer(table), table.evict()
    with initialized_session() as session:
        train(session, [1, 2, 3, 4])  # Version 0.
        train(session, [2])  # Version 1.
        assert session.run(evict) == 0, "global_step 2 is 2 steps from version 0, not more"
        train(session, [3])
        assert session.run(evict) == 2
        assert sorted(session.run(table.export()).keys) == [2, 3]
        assert session.run([table.size(), table.total_count()[0]]) == [2, 2]
        assert session.run(evict) == 0


@ALSO_PARTITIONED
def test_counted_keys_are_evicted_by_steps_as_well(shards):
    table = make_table(rec.GlobalStepEvict(1), shards, filter_option=rec.CounterFilter(2))
    train, evict = trainer(table), table.evict()
    with initialized_session() as session:
        train(session, [1, 1, 2, 3])
        train(session, [3])
        assert session.run([table.size(), table.total_count()[0]]) == [2, 3]
        assert session.run(evict) == 2
        assert session.run(table.get_frequency([1, 2, 3])).tolist() == [0, 0, 2]
        # The count starts from 0 again, so two more steps are needed.
        train(session, [2])
        assert session.run(table.size()) == 1
        train(session, [2])
        assert session.run(table.size()) == 2


def test_evicted_key_starts_from_its_initial_vector_and_fresh_slots():
    table = make_table(rec.GlobalStepEvict(1))
    train = trainer(table, rec.optimizers.AdagradOptimizer(0.5))
    evict, values = table.evict(), rec.embedding_lookup(table, tf.constant([1], tf.int64))
    with initialized_session() as session:
        train(session, [1])
        first = session.run(values)
        for _ in range(3):
            train(session, [1])
        assert not np.array_equal(session.run(values), first)
        for _ in range(2):
            train(session, [2])
        assert session.run(evict) == 1
        np.testing.assert_array_equal(session.run(values), BANK[1:2])
        assert session.run([table.get_frequency([1]), table.get_version([1])]) == [[0], [-1]]
        train(session, [1])
        np.testing.assert_array_equal(session.run(values), first)


@pytest.mark.parametrize("initial_step", [0, 100])
def test_key_without_a_version_is_stamped_instead_of_evicted(initial_step):
    """The rows of a table that was trained without a global step get a version at the next step."""
    table = make_table(rec.L2WeightEvict(0.1))  # Takes no global step.
    keys = tf.constant([1, 2], tf.int64)
    train = rec.optimizers.GradientDescentOptimizer(0.0).minimize(
        tf.reduce_sum(rec.embedding_lookup(table, keys))
    )
    evict = [
        rec._ops.gen.rec_estimator_table_evict(
            table.handle, np.int64(initial_step + passed), steps_to_live=5
        ).evicted
        for passed in (0, 5, 6)
    ]
    with initialized_session() as session:
        session.run(train)
        assert session.run(table.get_version([1, 2])).tolist() == [-1, -1]
        assert session.run(evict[0]) == 0
        assert session.run(table.get_version([1, 2])).tolist() == [initial_step] * 2
        assert [session.run(each) for each in evict[1:]] == [0, 2]


# ------------------------------------------------------------------ by values


@ALSO_PARTITIONED
def test_rows_with_small_values_are_evicted(shards):
    table = make_table(rec.L2WeightEvict(0.9), shards)
    train, evict = trainer(table), table.evict()
    with initialized_session() as session:
        train(session, [0, 1, 2])  # 0.5 in both places: half the squared norm is 0.25.
        train(session, [3])
        assert session.run(evict) == 4
        assert session.run(table.size()) == 0
        train(session, [1, 5])
        assert session.run(table.get_frequency([1, 2])).tolist() == [1, 0]


def test_rows_that_ftrl_made_zero_are_evicted_and_read_their_initial_vector_again():
    """As in DeepRec's test: threshold 0.9, keys 0 and 1 stay, key 2 reads ones again."""
    table = make_table(rec.L2WeightEvict(0.9))
    optimizer = rec.optimizers.FtrlOptimizer(0.5, l1_regularization_strength=2.0)
    values = rec.embedding_lookup(table, tf.range(3))
    gradient = tf.IndexedSlices(tf.constant([[-9.0, -9], [-20, -9], [1, 1]]), tf.range(3))
    train = optimizer.apply_gradients([(gradient, table)])
    with initialized_session() as session:
        session.run(train)
        assert session.run(values)[2].tolist() == [0, 0]
        assert session.run(table.evict()) == 1
        assert sorted(session.run(table.export()).keys) == [0, 1]
        assert session.run(values)[2].tolist() == [1, 1]


def test_threshold_is_compared_with_half_the_squared_norm():
    bank = np.array([[1.0, 2.0], [1.0, 1.0], [3.0, 0.0], [0.0, 0.0]], np.float32)
    table = make_table(rec.L2WeightEvict(1.5), bank=bank)
    train = trainer(table, rec.optimizers.GradientDescentOptimizer(1e-30))  # Moves nothing.
    with initialized_session() as session:
        train(session, [0, 1, 2, 3])
        assert session.run(table.evict()) == 2
        assert sorted(session.run(table.export()).keys) == [0, 2]  # 2.5 and 4.5.


@ALSO_PARTITIONED
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_a_number_that_is_not_finite_are_evicted(bad, shards):
    largest = np.finfo(np.float32).max  # Its square is infinite in float32.
    bank = np.array([[bad, 9.0], [9.0, 9.0], [largest, -largest], [9.0, bad]], np.float32)
    table = make_table(rec.L2WeightEvict(1.5), shards, bank=bank)
    train = trainer(table, rec.optimizers.GradientDescentOptimizer(1e-30))  # Moves nothing.
    with initialized_session() as session:
        train(session, [0, 1, 2, 3])
        assert session.run(table.evict()) == 2
        assert sorted(session.run(table.export()).keys) == [1, 2]


def test_keys_without_a_row_are_not_evicted_by_value():
    table = make_table(rec.L2WeightEvict(100.0), filter_option=rec.CounterFilter(2))
    train = trainer(table)
    with initialized_session() as session:
        train(session, [1, 1, 2])
        assert session.run(table.evict()) == 1
        assert session.run(table.get_frequency([1, 2])).tolist() == [0, 1]


# ------------------------------------------------------------------ behind a filter

BLOOM = FILTERS["bloom"](3)


@EVERY_FILTER
@ALSO_PARTITIONED
def test_evicted_key_behind_a_filter_needs_all_occurrences_again(make_filter, shards):
    table = make_table(rec.GlobalStepEvict(4), shards, filter_option=make_filter(3))
    train, evict = trainer(table), table.evict()
    frequency, stats = table.get_frequency([1]), [table.size(), table.total_count()[0]]
    with initialized_session() as session:
        for _ in range(3):
            train(session, [1])  # Versions 0, 1 and 2.
        for _ in range(4):
            train(session, [9])
        assert session.run(evict) == 1
        # A filter that cannot remove the key counts it in an entry.
        entry = 0 if isinstance(table.filter, WITH_ENTRIES) else 1
        assert session.run([frequency, stats]) == [[0], [1, 1 + entry]]
        for count in (1, 2):
            train(session, [1])
            assert session.run([frequency, stats]) == [[count], [1, 2]]
        train(session, [1])
        assert session.run([frequency, stats]) == [[3], [2, 2]]


@EVERY_FILTER
@ALSO_PARTITIONED
def test_filter_forgets_keys_without_a_row(make_filter, shards):
    table = make_table(rec.GlobalStepEvict(4), shards, filter_option=make_filter(3))
    train, evict, frequency = trainer(table), table.evict(), table.get_frequency([1, 2])
    with initialized_session() as session:
        train(session, [1, 2])
        counts = []
        for _ in range(8):
            train(session, [2])
            session.run(evict)
            counts.append(session.run(frequency).tolist())
    assert [two for _, two in counts] == list(range(2, 10))
    # Known four steps after its last occurrence, forgotten after six and an eviction.
    ones = [one for one, _ in counts]
    assert ones[:3] == [1] * 3 and ones[6:] == [0, 0]


@pytest.mark.parametrize("rule", [rec.GlobalStepEvict(10), rec.L2WeightEvict(1e9)], ids=str)
def test_bloom_filter_under_eviction_keeps_bounded_entries(rule):
    """50 new keys a step, each seen twice: all are admitted, and soon evicted."""
    bloom = rec.CBFFilter(2, max_element_size=500, false_positive_probability=0.01)
    table = make_table(rule, filter_option=bloom)
    train, evict = trainer(table), table.evict()
    stats = [table.size(), table.total_count()[0]]
    found = []
    with initialized_session() as session:
        for step in range(200):
            train(session, np.arange(50 * step, 50 * step + 100) * 7919)
            if step % 2:
                session.run(evict)
                found.append(session.run(stats))
    rows, entries = np.transpose(found)
    # What ten steps bring. By values: three generations of 250 keys, begun up to two steps late.
    brings = 50 * 10 if isinstance(rule, rec.GlobalStepEvict) else 3 * (250 + 2 * 50)
    assert (entries <= rows + brings).all()
    assert entries[50:].max() <= entries[:50].max() + 5  # False positives.


@pytest.mark.parametrize("rule", [rec.GlobalStepEvict(10), rec.L2WeightEvict(1e-9)], ids=str)
def test_counter_filter_under_eviction_keeps_bounded_entries(rule):
    """10,000 keys a step occur once, and three keys in each step."""
    table = make_table(rule, filter_option=rec.CounterFilter(3), bank=100 * BANK)
    train, evict = trainer(table), table.evict()
    stats = [table.size(), table.total_count()[0]]
    with initialized_session() as session:
        for step in range(30):
            train(session, np.append(np.arange(10000 * step, 10000 * (step + 1)), [-1, -2, -3]))
            evicted = session.run(evict)
            rows, entries = session.run(stats)
            assert rows == (3 if step >= 2 else 0)
            # By steps: what eleven of them bring. By values: the last 65,536 keys, and of each of
            # the 64 stripes the rest of a step.
            assert entries - rows <= (110_000 if isinstance(rule, rec.GlobalStepEvict) else 75_536)
        assert evicted > 0
        assert session.run(table.get_frequency([-1, 10000 * 29])).tolist() == [30, 1]


@pytest.mark.parametrize("filter_option", [BLOOM, rec.CounterFilter(3)], ids=["bloom", "counter"])
@pytest.mark.parametrize("has_step", [True, False])
def test_eviction_by_values_dates_the_counts_where_it_can(has_step, filter_option):
    if has_step:
        tf.train.get_or_create_global_step()
    table = make_table(rec.L2WeightEvict(0.5), filter_option=filter_option)
    table.evict()
    ops = tf.get_default_graph().get_operations()
    (step,) = [op.inputs[1] for op in ops if op.type == "RecEstimator>TableEvict"]
    assert (tf.get_static_value(step) == -1) != has_step


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize("rule", [None, *(type(rule)() for rule in RULES)], ids=str)
def test_table_without_a_rule_cannot_evict(rule):
    with pytest.raises(ValueError, match="evict_option of table 't' must be a rule that evicts"):
        make_table(rule).evict()


def test_eviction_by_steps_in_a_graph_that_does_not_train_needs_a_global_step():
    table = make_table(rec.GlobalStepEvict(5))
    message = "the graph has no global step, by which table 't' evicts"
    with pytest.raises(ValueError, match=message):
        table.evict()
    tf.train.get_or_create_global_step()
    assert table.evict().dtype == tf.int64


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_an_optimizer_makes_the_global_step_by_which_a_table_evicts(num_optimizers):
    keys = tf.placeholder(tf.int64, [None])
    train_ops = []
    for i in range(num_optimizers):
        table = make_table(rec.GlobalStepEvict(5), name=f"t{i}")
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        optimizer = rec.optimizers.GradientDescentOptimizer(0.1)
        train_ops.append(optimizer.minimize(loss, var_list=[table]))
    evict = table.evict()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(8):
            assert session.run(tf.train.get_global_step()) == step
            for train_op in reversed(train_ops):  # The first one increments the step.
                session.run(train_op, {keys: [step]})
        assert session.run(table.get_version(list(range(8)))).tolist() == list(range(8))
        # Steps 3 to 7 are at most 5 before the current one, 8.
        assert session.run(evict) == 3


def test_an_optimizer_leaves_a_global_step_that_the_script_made_to_the_script():
    step = tf.train.get_or_create_global_step()
    table = make_table(rec.GlobalStepEvict(5))
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([1], tf.int64)))
    train_op = rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(step) == 0


def test_other_tables_of_a_graph_need_no_global_step():
    make_table(rec.GlobalStepEvict(5))
    other = rec.get_embedding_variable("other", 2)
    loss = tf.reduce_sum(rec.embedding_lookup(other, tf.constant([1], tf.int64)))
    rec.optimizers.GradientDescentOptimizer(0.1).minimize(loss)


def test_steps_to_live_is_an_older_name_of_the_option(monkeypatch):
    table = rec.get_embedding_variable("t", 2, steps_to_live=7)
    assert table.ev_option.evict == rec.GlobalStepEvict(7)
    same = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(7))
    assert rec.get_embedding_variable("t", 2, ev_option=same) is table
    told = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: told.append(text % values))
    assert rec.get_embedding_variable("t", 2, steps_to_live=9, ev_option=same) is table
    assert told == [
        "evict_option=GlobalStepEvict(steps_to_live=7) takes precedence over steps_to_live=9."
    ]


def test_step_and_value_eviction_together_are_an_error():
    option = rec.EmbeddingVariableOption(evict_option=rec.L2WeightEvict(0.5))
    with pytest.raises(ValueError, match="cannot be enabled at the same time"):
        rec.get_embedding_variable("t", 2, steps_to_live=5, ev_option=option)
    off = rec.EmbeddingVariableOption(evict_option=rec.L2WeightEvict())
    table = rec.get_embedding_variable("t", 2, steps_to_live=5, ev_option=off)
    assert table.ev_option.evict == rec.GlobalStepEvict(5)
    other = rec.get_embedding_variable("u", 2, steps_to_live=0, ev_option=option)
    assert other.ev_option.evict == rec.L2WeightEvict(0.5)


def test_same_name_with_another_rule_is_an_error():
    make_table(rec.GlobalStepEvict(5))
    with pytest.raises(ValueError, match="table 't' must have the settings it was made with"):
        make_table(rec.GlobalStepEvict(6))


# ------------------------------------------------------------------ what the log says


def logged(monkeypatch):
    """The lines that are logged from now on, as "LEVEL text"."""
    lines = []
    for level in ("info", "warning"):

        def log(text, *values, level=level):
            lines.append(f"{level.upper()} {text % values}")

        monkeypatch.setattr(tf.logging, level, log)
    return lines


@ALSO_PARTITIONED
def test_a_save_says_in_one_line_what_it_evicted(shards, tmp_path, monkeypatch):
    table = make_table(rec.GlobalStepEvict(1), shards, filter_option=rec.CounterFilter(2))
    option = rec.EmbeddingVariableOption(evict_option=rec.L2WeightEvict(0.5))
    other = rec.get_embedding_variable(
        "other", 2, initializer=tf.ones_initializer(), ev_option=option
    )
    rows = tf.reduce_sum(rec.embedding_lookup(other, tf.constant([1, 2, 3], tf.int64)))
    fill = rec.optimizers.GradientDescentOptimizer(0.1).minimize(rows)
    train, saver = trainer(table), rec.Saver()
    with initialized_session() as session:
        train(session, [1, 1, 2, 2, 3])
        train(session, [4, 4, 5, 5, 6])
        session.run(fill)
        lines = logged(monkeypatch)
        prefix = saver.save(session, str(tmp_path / "m"), global_step=2)
        assert [line for line in lines if "evicted" in line] == [
            f"INFO The save of {prefix} evicted 0 of 3 rows of table 'other', "
            "2 of 4 rows and 1 counted keys of table 't'."
        ]


@ALSO_PARTITIONED
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_save_that_evicts_most_of_a_table_warns(rule, shards, tmp_path, monkeypatch):
    table = make_table(rule, shards, bank=0 * BANK)
    train, saver = trainer(table), rec.Saver()
    with initialized_session() as session:
        train(session, [1, 3])
        for _ in range(4):
            train(session, [2])
        lines = logged(monkeypatch)
        saver.save(session, str(tmp_path / "m"), global_step=1)
        assert [line for line in lines if line.startswith("WARNING")] == [
            f"WARNING {rule!r} evicted most of table 't': 2 of 3 rows; if the model needs these "
            "rows, change the rule."
        ]


def save_and_read_line(session, saver, prefix):
    """Saves with a stock Saver and returns what its graph prints to the log."""
    (line,) = [op.inputs[0] for op in session.graph.get_operations() if op.type == "PrintV2"]
    names = saver.saver_def
    feed = {names.filename_tensor_name: str(prefix)}
    return session.run([line, names.save_tensor_name], feed)[0].decode()


@ALSO_PARTITIONED
def test_a_stock_saver_says_what_it_evicted(shards, tmp_path):
    table = make_table(rec.GlobalStepEvict(1), shards, filter_option=rec.CounterFilter(2))
    train, saver = trainer(table), tf.train.Saver()
    with initialized_session() as session:
        for keys in ([1, 1, 3, 3, 7], [2, 2], [2, 4, 4]):
            train(session, keys)
        half = "A save evicted 2 of 4 rows of table 't', counted keys: 1."
        assert save_and_read_line(session, saver, tmp_path / "half") == half
        for keys in ([4], [5, 5], [5]):
            train(session, keys)
        assert save_and_read_line(session, saver, tmp_path / "most") == (
            "A save evicted 2 of 3 rows of table 't', counted keys: 0. GlobalStepEvict("
            "steps_to_live=1) evicted most of the table; if the model needs these rows, change the "
            "rule."
        )
