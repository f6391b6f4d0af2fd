# SPDX-License-Identifier: Apache-2.0
"""TableLookup, TableGroupLookup and its gradient."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracle import TableOracle, combine, spread
from session_threads import OP_THREADS, session_with_threads

from rec_estimator import _ops

EDGE_KEYS = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
COMBINERS = ["sum", "mean", "sqrtn"]


def handle(dim=3, name="t"):
    return _ops.gen.rec_estimator_table_handle(shared_name=name, dim=dim)


def random_bank(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=[rows, dim]).astype(np.float32)


def row_ids_of(lengths):
    """Returns the row of each key, for rows of the given lengths: [2, 0, 1] gives [0, 0, 2]."""
    return np.repeat(np.arange(len(lengths)), lengths).astype(np.int64)


def indices_of(row_ids, rank=2):
    """Returns indices [n, rank] with the row ids in column 0 and arbitrary numbers elsewhere."""
    indices = np.full([len(row_ids), rank], -7, np.int64)
    indices[:, 0] = row_ids
    return indices


class Group:
    """Collects the inputs of a group lookup, one lookup at a time."""

    def __init__(self):
        self.handles, self.dims, self.combiners, self.unknowns = [], [], [], []
        self.keys, self.indices, self.dense_shapes = [], [], []
        self._built = None

    def add(self, table, keys, row_ids=None, rows=0, combiner="sum", rank=2, unknown="initial"):
        """Without row ids, each key is a row of its own."""
        if row_ids is None:
            row_ids, rows = np.arange(len(keys)), len(keys)
        self.handles.append(table.handle)
        self.dims.append(table.dim)
        self.combiners.append(combiner)
        self.unknowns.append(unknown)
        self.keys.append(np.asarray(keys, np.int64))
        self.indices.append(indices_of(row_ids, rank))
        self.dense_shapes.append(np.array([rows] + [0] * (rank - 1), np.int64))
        return self

    def build(self):
        feeds = {
            name: [tf.placeholder(tf.int64) for _ in self.handles]
            for name in ("keys", "indices", "dense_shapes")
        }
        values = _ops.gen.rec_estimator_table_group_lookup(
            tables=self.handles,
            dims=self.dims,
            combiners=self.combiners,
            unknowns=self.unknowns,
            **feeds,
        )
        self._built = feeds, values
        return self

    def run(self, session):
        if self._built is None:
            self.build()
        feeds, values = self._built
        return session.run(
            values,
            {
                feed: value
                for name, placeholders in feeds.items()
                for feed, value in zip(placeholders, getattr(self, name))
            },
        )


# ------------------------------------------------------------------ shape functions


def test_lookup_appends_dim_to_the_shape_of_keys():
    lookup = _ops.gen.rec_estimator_table_lookup
    assert lookup(handle(), tf.zeros([2, 5], tf.int64), dim=3).shape == [2, 5, 3]
    assert lookup(handle(), tf.placeholder(tf.int64, [None]), dim=3).shape.as_list() == [None, 3]
    assert lookup(handle(), tf.placeholder(tf.int64), dim=3).shape.rank is None


def group_lookup(**changed):
    inputs = {
        "tables": [handle()],
        "keys": [tf.placeholder(tf.int64, [None])],
        "indices": [tf.placeholder(tf.int64, [None, 2])],
        "dense_shapes": [tf.placeholder(tf.int64, [2])],
        "dims": [3],
        "combiners": ["mean"],
        "unknowns": ["initial"],
    }
    inputs.update(changed)
    return _ops.gen.rec_estimator_table_group_lookup(**inputs)


def test_group_lookup_infers_dim_and_constant_row_counts():
    assert group_lookup()[0].shape.as_list() == [None, 3]
    constant = [tf.constant([4, 9], tf.int64)]
    assert group_lookup(dense_shapes=constant)[0].shape.as_list() == [4, 3]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"dims": [3, 3]}, "unknowns must be of length N, got 2, 1 and 1 for N = 1"),
        ({"combiners": []}, "dims, combiners and unknowns must be of length N, got 1, 0 and 1"),
        ({"unknowns": ["default"] * 2}, "must be of length N, got 1, 1 and 2 for N = 1"),
        ({"unknowns": ["none"]}, "unknowns"),
        ({"indices": [np.zeros([4], np.int64)]}, "Shape must be rank 2 but is rank 1"),
        ({"keys": [np.zeros([4, 2], np.int64)]}, "Shape must be rank 1 but is rank 2"),
        ({"dense_shapes": [np.int64(4)]}, "Shape must be rank 1 but is rank 0"),
        ({"dims": [-5]}, "dims must be >= 1, got -5"),
    ],
)
def test_group_lookup_refuses_when_the_graph_is_built(changed, message):
    with pytest.raises(ValueError, match=message):
        group_lookup(**changed)


def test_group_lookup_grad_has_a_row_per_key():
    grads = _ops.gen.rec_estimator_table_group_lookup_grad(
        indices=[tf.zeros([7, 2], tf.int64)], grads=[tf.zeros([4, 3])], combiners=["sum"]
    )
    assert grads[0].shape == [7, 3]


# ------------------------------------------------------------------ run-time errors


def test_reading_before_initialization_names_table_and_remedy(make_table, session):
    table = make_table(3)
    message = "table t must be initialized before it is read.*global_variables_initializer"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        table.lookup([1])
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        Group().add(table, [1]).run(session)


def test_dim_must_be_that_of_the_table(make_table, session):
    table = make_table(3, np.zeros([1, 3]))
    table.dim = 4
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dim must be that of table t, 3, got 4"
    ):
        table.lookup([1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dim must be that of table t, 3, got 4"
    ):
        Group().add(table, [1]).run(session)


GROUP_ERRORS = {
    "keys of rank 2": ("keys", np.zeros([2, 1], np.int64), r"keys of lookup 1 must be \[n\]"),
    "keys of rank 0": ("keys", np.int64(1), r"keys of lookup 1 must be \[n\]"),
    "fewer keys": ("keys", np.zeros([1], np.int64), r"indices of lookup 1 must be \[n, r\], n = 1"),
    "indices of rank 1": ("indices", np.zeros([2], np.int64), r"must be \[n, r\], n = 2, r >= 1"),
    "no columns": ("indices", np.zeros([2, 0], np.int64), r"must be \[n, r\], n = 2, r >= 1"),
    "shape of rank 0": ("dense_shapes", np.int64(3), r"dense_shapes of lookup 1 must be \[r\]"),
    "shape of rank 2": ("dense_shapes", np.ones([1, 2], np.int64), r"must be \[r\], r = 2"),
    "shape too short": ("dense_shapes", np.ones([1], np.int64), r"must be \[r\], r = 2"),
    "negative rows": ("dense_shapes", np.array([-1, 1]), "rows >= 0, got -1"),
    "row beyond the rows": ("indices", indices_of([0, 3]), r"rows in \[0, 3\).*, got 3 at 1"),
    "negative row": ("indices", indices_of([-1, 0]), r"rows in \[0, 3\).*, got -1 at 0"),
    "decreasing": ("indices", indices_of([2, 1]), "got 1 at 1 after 2; tf.sparse.reorder"),
    "smallest row": (
        "indices",
        indices_of([np.iinfo(np.int64).min, 0]),
        "got -9223372036854775808",
    ),
}


@pytest.mark.parametrize("name, value, message", GROUP_ERRORS.values(), ids=GROUP_ERRORS)
def test_group_lookup_errors_name_the_lookup_and_the_problem(
    make_table, session, name, value, message
):
    table = make_table(3, np.zeros([1, 3]))
    group = Group().add(table, [1, 2], [0, 1], 3, "sum").add(table, [1, 2], [0, 1], 3, "sum")
    getattr(group, name)[1] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        group.run(session)


@pytest.mark.parametrize("rows", [2**62, 2**63 - 1], ids=["2^62", "2^63-1"])
def test_more_rows_than_a_tensor_can_have_are_an_error(make_table, session, rows):
    table = make_table(3, np.zeros([1, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        Group().add(table, [1], [0], rows, "sum").run(session)


def test_an_unknown_combiner_is_an_error_that_lists_them(make_table, session):
    table = make_table(3, np.zeros([1, 3]))
    message = "combiners must each be 'sum', 'mean' or 'sqrtn', got 'max'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        Group().add(table, [1], [0], 1, "max").run(session)


GRAD_ERRORS = {
    "indices of rank 1": (np.zeros([2], np.int64), np.zeros([3, 4]), r"must be \[n, r\], r >= 1"),
    "no columns": (np.zeros([2, 0], np.int64), np.zeros([3, 4]), r"must be \[n, r\], r >= 1"),
    "grads of rank 1": (np.zeros([2, 2], np.int64), np.zeros([3]), r"must be \[rows, dim\]"),
    "row beyond": (indices_of([0, 3]), np.zeros([3, 4]), r"rows in \[0, 3\).*, got 3 at 1"),
    "decreasing": (indices_of([1, 0]), np.zeros([3, 4]), "got 0 at 1 after 1"),
}


@pytest.mark.parametrize("indices, grads, message", GRAD_ERRORS.values(), ids=GRAD_ERRORS)
def test_group_lookup_grad_errors_name_the_problem(session, indices, grads, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run_grad(session, indices, grads, "sum")


def test_the_gradient_of_an_unknown_combiner_is_refused(session):
    message = "combiners must each be 'sum', 'mean' or 'sqrtn', got 'none'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run_grad(session, indices_of([0]), np.zeros([1, 4]), "none")


# ------------------------------------------------------------------ one lookup


@pytest.mark.parametrize("shape", [[0], [], [1], [2, 0, 3], [2, 3]], ids=str)
def test_lookup_reads_keys_of_any_shape(make_table, shape):
    bank = random_bank(4, 3)
    table = make_table(3, bank)
    keys = np.arange(int(np.prod(shape))).reshape(shape)
    np.testing.assert_array_equal(table.lookup(keys), TableOracle(bank).lookup(keys))


@pytest.mark.parametrize("bank_rows", [1, 4, 7])
def test_unknown_keys_read_their_bank_row_including_negative_keys(make_table, bank_rows):
    bank = random_bank(bank_rows, 3)
    keys = EDGE_KEYS + list(range(-10, 10))
    np.testing.assert_array_equal(make_table(3, bank).lookup(keys), TableOracle(bank).lookup(keys))


def test_unknown_keys_read_the_default_vector_if_requested(make_table, session):
    table = make_table(3, np.ones([1, 3]), default_value=0.25)
    table.apply("GradientDescent", [1.0], [5], np.ones([1, 3]))
    expected = [[0.25] * 3, [0.0] * 3, [0.25] * 3]
    np.testing.assert_array_equal(table.lookup([4, 5, -1], unknown="default"), expected)
    (values,) = Group().add(table, [4, 5, -1], unknown="default").run(session)
    np.testing.assert_array_equal(values, expected)


def test_lookups_never_change_a_table(make_table, session):
    table = make_table(3, random_bank(4, 3))
    table.lookup(EDGE_KEYS)
    Group().add(table, EDGE_KEYS).add(table, EDGE_KEYS, [0] * 4, 1, "sum").run(session)
    assert table.stats()[:2] == (0, 0)


@pytest.mark.parametrize("dim", [1, 5, 8, 33])
def test_random_lookups_and_applies_give_the_bits_of_the_oracle(make_table, session, dim):
    rng = np.random.default_rng(dim)
    bank = random_bank(7, dim)
    table, oracle = make_table(dim, bank), TableOracle(bank)
    for step in range(30):
        keys = rng.integers(-30, 30, rng.choice([0, 1, 50, 400]))
        grads = rng.normal(size=[len(keys), dim]).astype(np.float32)
        table.apply("GradientDescent", [0.5], keys, grads, version=step)
        oracle.apply("GradientDescent", [0.5], keys, grads, version=step)
        asked = rng.integers(-50, 50, 100)
        np.testing.assert_array_equal(table.lookup(asked), oracle.lookup(asked))
    (values,) = Group().add(table, asked).run(session)
    np.testing.assert_array_equal(values, oracle.lookup(asked))


def test_a_lookup_large_enough_for_threads_gives_every_key_its_row(make_table, session):
    bank = random_bank(997, 16)
    table = make_table(16, bank)
    keys = np.random.default_rng(3).integers(0, 10**9, 40000)
    np.testing.assert_array_equal(table.lookup(keys), bank[keys % 997])
    (values,) = Group().add(table, keys).run(session)
    np.testing.assert_array_equal(values, bank[keys % 997])


# ------------------------------------------------------------------ combined lookups

# Rows of 0 to 40 keys include every remainder by eight: TensorFlow's order of adding depends on it.
LENGTHS = {
    "nothing at all": [],
    "empty rows only": [0, 0, 0],
    "one key a row": [1, 1, 1],
    "one key": [1],
    "every length to 40": list(range(41)),
    "empty first, between and last": [0, 2, 0, 0, 9, 0],
    "one long row": [0, 3000, 1],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("rank", [1, 3])
def test_combined_rows_have_the_bits_of_the_oracle(make_table, session, lengths, combiner, rank):
    bank = random_bank(50, 5)
    table = make_table(5, bank)
    row_ids = row_ids_of(lengths)
    keys = np.random.default_rng(1).integers(0, 50, len(row_ids))
    (values,) = Group().add(table, keys, row_ids, len(lengths), combiner, rank).run(session)
    np.testing.assert_array_equal(values, combine(bank[keys], row_ids, len(lengths), combiner))


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dim", [1, 4, 16, 33])
def test_combined_rows_have_the_bits_of_tensorflow(make_table, session, combiner, dim):
    bank = random_bank(50, dim)
    lengths = [0, *range(1, 41), 0, 1]
    row_ids = row_ids_of(lengths)
    keys = np.random.default_rng(1).integers(0, 50, len(row_ids))
    (values,) = Group().add(make_table(dim, bank), keys, row_ids, 43, combiner).run(session)
    expected = tf.nn.embedding_lookup_sparse(
        tf.constant(bank),
        tf.SparseTensor(indices_of(row_ids), keys, [43, 99]),
        None,
        combiner=combiner,
    )
    np.testing.assert_array_equal(values, session.run(expected))


def test_edge_keys_combine_like_any_other(make_table, session):
    bank = random_bank(7, 3)
    (values,) = Group().add(make_table(3, bank), EDGE_KEYS, [0] * 4, 1, "sum").run(session)
    rows = TableOracle(bank).lookup(EDGE_KEYS)
    np.testing.assert_array_equal(values, combine(rows, np.zeros(4, int), 1, "sum"))


def test_many_lookups_of_all_kinds_at_once_do_not_mix(make_table, session):
    rng = np.random.default_rng(5)
    banks = {dim: random_bank(100, dim, seed=dim) for dim in (1, 8, 20)}
    tables = {dim: make_table(dim, bank, name=f"t{dim}") for dim, bank in banks.items()}
    group, expected = Group(), []
    for i in range(40):  # Several lookups per table, and enough keys to keep all threads busy.
        dim = int(rng.choice(list(banks)))
        combiner = COMBINERS[i % 3]
        most = 2 if i % 4 == 0 else 5  # One key a row, or up to four.
        lengths = rng.integers(1 if most == 2 else 0, most, rng.integers(0, 800))
        row_ids = row_ids_of(lengths)
        keys = rng.integers(0, 100, len(row_ids))
        group.add(tables[dim], keys, row_ids, len(lengths), combiner)
        rows = banks[dim][keys]
        expected.append(combine(rows, row_ids, len(lengths), combiner))
    for actual, wanted in zip(group.run(session), expected):
        np.testing.assert_array_equal(actual, wanted)


def test_a_hundred_lookups_without_keys_read_nothing(make_table, session):
    table, group = make_table(3, random_bank(2, 3)), Group()
    for _ in range(100):
        group.add(table, [])
    assert [values.shape for values in group.run(session)] == [(0, 3)] * 100


def test_the_number_of_threads_does_not_change_a_bit(graph):
    bank = random_bank(1000, 16)
    row_ids = row_ids_of(np.random.default_rng(2).integers(0, 30, 3000))
    keys = np.random.default_rng(3).integers(0, 1000, len(row_ids))
    results = []
    for threads in OP_THREADS:
        with session_with_threads(*threads, graph=graph) as session:
            table = handle(dim=16)
            session.run(_ops.gen.rec_estimator_table_initialize(table, bank))
            results.append(
                session.run(
                    _ops.gen.rec_estimator_table_group_lookup(
                        [table],
                        [keys],
                        [indices_of(row_ids)],
                        [[3000, 1]],
                        [16],
                        ["mean"],
                        ["initial"],
                    )[0]
                )
            )
    for others in results[1:]:
        np.testing.assert_array_equal(results[0], others)


# ------------------------------------------------------------------ gradient


def run_grad(session, indices, grads, combiner):
    inputs = [tf.placeholder(tf.int64), tf.placeholder(tf.float32)]
    (key_grads,) = _ops.gen.rec_estimator_table_group_lookup_grad(
        [inputs[0]], [inputs[1]], combiners=[combiner]
    )
    return session.run(key_grads, dict(zip(inputs, [indices, grads])))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_each_key_gets_its_share_of_the_gradient_of_its_row(session, lengths, combiner):
    row_ids = row_ids_of(lengths)
    grads = random_bank(len(lengths), 5)
    actual = run_grad(session, indices_of(row_ids), grads, combiner)
    np.testing.assert_array_equal(actual, spread(grads, row_ids, combiner).reshape(-1, 5))


@pytest.mark.parametrize("combiner", COMBINERS)
def test_key_gradients_have_the_bits_of_tensorflow(session, combiner):
    lengths = [0, *range(1, 41), 0, 1]
    row_ids = row_ids_of(lengths)
    grads = random_bank(43, 5)
    # Every key occurs once, so TensorFlow's gradient of the variable is that of the occurrences.
    dense = tf.constant(random_bank(len(row_ids), 5))
    combined = tf.nn.embedding_lookup_sparse(
        dense,
        tf.SparseTensor(indices_of(row_ids), np.arange(len(row_ids)), [43, 99]),
        None,
        combiner=combiner,
    )
    (expected,) = tf.gradients(combined, dense, grads)
    np.testing.assert_array_equal(
        run_grad(session, indices_of(row_ids), grads, combiner),
        session.run(tf.convert_to_tensor(expected)),
    )


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_gradient_large_enough_for_threads_is_the_same(session, combiner):
    row_ids = row_ids_of(np.random.default_rng(2).integers(0, 30, 5000))
    grads = random_bank(5000, 8)
    np.testing.assert_array_equal(
        run_grad(session, indices_of(row_ids), grads, combiner), spread(grads, row_ids, combiner)
    )


# ------------------------------------------------------------------ threads


def test_concurrent_readers_see_whole_rows(make_table, session):
    # Every apply changes all elements of a row by the same amount, so a torn row has two values.
    # Each table occurs several times in a group.
    tables = [make_table(16, np.zeros([1, 16]), name=name) for name in ("a", "b")]
    keys = np.arange(2000)
    group = Group()
    for _ in range(2):
        for table in tables:
            group.add(table, keys).add(table, keys, np.zeros(2000, int), 1, "sum")
    for table in tables:
        table.apply("GradientDescent", [1.0], keys, -np.ones([2000, 16]))
    group.build()
    done = threading.Event()
    torn = []

    def read():
        while not done.is_set():
            for values in group.run(session)[::2]:
                torn.extend(np.flatnonzero(values.min(axis=1) != values.max(axis=1)))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        for table in tables:
            table.apply("GradientDescent", [1.0], keys, -np.ones([2000, 16]))
    done.set()
    reader.join(timeout=600)
    assert not reader.is_alive(), "a reader and an apply wait for each other"
    assert torn == []
    for table in tables:
        np.testing.assert_array_equal(table.lookup(keys), np.full([2000, 16], 51))
