# SPDX-License-Identifier: Apache-2.0
"""The packed ops: what each of them gives, against NumPy, and how they refuse nonsense."""

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf
from fuzz.valid_calls import PACKED

from rec_estimator import _ops

DIM = 3
LISTS = [
    (np.array([[7, 9], [7, -(2**63)]]), 1, "gradient"),
    (np.array([2**63 - 1, 9, 5, 5]), 1, "counted"),
    (np.array([5, 6, 9]), 1, "read"),
    (np.zeros([0], np.int64), 0, "gradient"),
    (np.array([9, 1]), 1, "gradient"),
    (np.array([4, 4]), 2, "read"),
]
ADAGRAD = dict(
    rule="Adagrad",
    slot_names=["Adagrad"],
    slot_widths=[DIM],
    slot_initials=[0.1],
)


def keys_pack(lists=LISTS, num_sections=3):
    keys, sections, uses = zip(*lists)
    return _ops.gen.rec_estimator_keys_pack(
        [tf.convert_to_tensor(each, tf.int64) for each in keys],
        sections=sections,
        uses=uses,
        num_sections=num_sections,
    )


def run(fetches):
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        return session.run(fetches)


def table_of(name="t", **attributes):
    handle = _ops.gen.rec_estimator_table_handle(shared_name=name, dim=DIM, **attributes)
    bank = np.random.default_rng(1).normal(size=[8, DIM]).astype(np.float32)
    return handle, _ops.gen.rec_estimator_table_initialize(handle, bank)


def test_keys_pack_equals_the_oracle():
    out = run(keys_pack())
    packed, index = oracle.pack_keys(LISTS, 3)
    np.testing.assert_array_equal(out.packed, packed)
    for found, expected, (keys, *_) in zip(out.index, index, LISTS):
        np.testing.assert_array_equal(found, expected.reshape(keys.shape))


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (tf.float32, tf.float32),
        (tf.bfloat16, tf.bfloat16),
        (tf.float16, tf.float16),
        (tf.float16, tf.float32),
    ],
)
def test_rows_come_back_to_each_lookup(stored, sent):
    handle, initialize = table_of(value_dtype=stored)
    pack = keys_pack()
    dims = dict(sections=[1], num_sections=3, dims=[DIM])
    rows = _ops.gen.rec_estimator_tables_read(
        [handle], pack.packed, unknowns=["initial"], value_dtype=sent, **dims
    )
    assert rows.dtype == sent
    values = _ops.gen.rec_estimator_rows_spread(
        rows, pack.packed, [pack.index[0], pack.index[2]], lookups=[0, 0], **dims
    )
    expected = [
        _ops.gen.rec_estimator_table_lookup(handle, tf.constant(LISTS[i][0], tf.int64), dim=DIM)
        for i in (0, 2)
    ]
    assert [value.shape.as_list() for value in values] == [[2, 2, DIM], [3, DIM]]
    with tf.Session() as session:
        session.run(initialize)
        found, wanted = session.run([values, expected])
    for one, other in zip(found, wanted):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stored", [tf.float32, tf.bfloat16, tf.uint8])
def test_rows_are_not_sent_in_a_type_that_would_round_them(stored):
    handle, initialize = table_of(value_dtype=stored)
    read = _ops.gen.rec_estimator_tables_read(
        [handle],
        PACKED,
        sections=[1],
        num_sections=2,
        dims=[DIM],
        unknowns=["initial"],
        value_dtype=tf.float16,
    )
    with tf.Session() as session:
        session.run(initialize)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="value_dtype must be float or that of table t"
        ):
            session.run(read)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_are_taken_apart_by_table(dtype):
    """The rows of the second and third table do not begin at a multiple of 64 bytes."""
    pack = keys_pack()
    dims = dict(sections=[1, 2, 0, 2], num_sections=3, dims=[3, 1, 4, 16], N=4)
    rows = np.arange(7 * 3 + 1 + 16, dtype=dtype)
    unpack = _ops.gen.rec_estimator_rows_unpack(rows, pack.packed, **dims)
    assert [table.dtype for table in unpack] == [dtype] * 4
    assert [table.shape.as_list() for table in unpack] == [[None, dim] for dim in dims["dims"]]
    found = run([tuple(unpack), [table + 0 for table in unpack]])
    expected = [rows[:21].reshape([7, 3]), rows[21:22, None], np.zeros([0, 4]), rows[None, 22:]]
    for tables in found:
        for one, other in zip(tables, expected):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": np.ones([8])}, r"rows must be those of the packed keys, \[9\], got shape \[8\]"),
        ({"dims": [0]}, "dims must be >= 1, got 0"),
        ({"dims": [1, 2]}, "dims must be of length N = 1, got 2|sections must be of length"),
        ({"num_sections": 3}, "packed must be the output of KeysPack"),
    ],
)
def test_rows_that_are_not_those_of_the_keys_are_not_taken_apart(changed, message):
    arguments = {
        "rows": np.ones([9]),
        "packed": PACKED,
        "sections": [1],
        "num_sections": 2,
        "dims": [DIM],
        **changed,
    }
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        run(_ops.gen.rec_estimator_rows_unpack(**arguments, N=1))


def test_a_packed_step_has_the_bits_of_one_of_occurrences():
    rng = np.random.default_rng(2)
    grads = rng.normal(size=[6, DIM]).astype(np.float32)
    keys = np.concatenate([LISTS[0][0].ravel(), LISTS[4][0]])
    tables = {name: table_of(name) for name in ("packed", "plain")}
    pack = keys_pack()
    sections = dict(sections=[1], num_sections=3)
    packed = _ops.gen.rec_estimator_tables_reserve_packed(
        [tables["packed"][0]], pack.packed, **sections, **ADAGRAD
    )
    gradients = _ops.gen.rec_estimator_gradients_pack(
        pack.packed,
        [pack.index[0], pack.index[4]],
        [grads],
        [],
        -(2**40),
        [0.5],
        lists=[2],
        **sections,
    )
    plain = _ops.gen.rec_estimator_tables_reserve(
        [tables["plain"][0]], [keys], [tf.constant(LISTS[1][0], tf.int64)], **ADAGRAD
    )
    steps = [
        _ops.gen.rec_estimator_tables_apply_packed(packed.reservation, gradients),
        _ops.gen.rec_estimator_tables_apply(plain.reservation, [grads], -(2**40), [0.5]),
    ]
    exports = [
        _ops.gen.rec_estimator_table_export(
            tables[name][0],
            dim=DIM,
            num_slots=1,
            slot_names=["Adagrad"],
            slot_widths=[DIM],
            slot_initials=[0.1],
        )
        for name in ("packed", "plain")
    ]
    with tf.Session() as session:
        session.run([table[1] for table in tables.values()])
        sent, *_ = session.run([gradients, steps])
        one, other = session.run(exports)
    np.testing.assert_array_equal(
        sent, oracle.pack_gradients([-(2**40)], [[0.5]], [oracle.sum_by_key(keys, grads)])
    )
    for name in one._fields:
        tf.nest.map_structure(
            np.testing.assert_array_equal, getattr(one, name), getattr(other, name)
        )
    assert len(one.keys) == 6


@pytest.mark.parametrize("n", [200, 3000, 9000])  # Fewer than 256 keys hand nothing over.
def test_rows_that_a_reservation_found_are_read_as_others_are(n):
    """Before the update, after it, and after an eviction. Each step has new keys."""
    handle, initialize = table_of()
    keys = [tf.placeholder(tf.int64, [None]) for _ in range(3)]
    pack = keys_pack(
        [(keys[0], 1, "gradient"), (keys[1], 1, "counted"), (keys[2], 1, "read")], num_sections=2
    )
    sections = dict(sections=[1], num_sections=2)

    def read(handle):
        rows = _ops.gen.rec_estimator_tables_read(
            [handle], pack.packed, unknowns=["initial"], dims=[DIM], **sections
        )
        spread = _ops.gen.rec_estimator_rows_spread(
            rows, pack.packed, pack.index, lookups=[0] * 3, dims=[DIM], **sections
        )
        return [
            (value, _ops.gen.rec_estimator_table_lookup(handle, each, dim=DIM))
            for value, each in zip(spread, keys)
        ]

    reserve = _ops.gen.rec_estimator_tables_reserve_packed(
        [handle], pack.packed, **sections, **ADAGRAD
    )
    with tf.control_dependencies([reserve.reservation]):
        before = read(handle)
    grads = tf.tile(tf.cast(keys[0][:, tf.newaxis] % 7, tf.float32), [1, DIM])
    with tf.control_dependencies(tf.nest.flatten(before)):
        gradients = _ops.gen.rec_estimator_gradients_pack(
            pack.packed, [pack.index[0]], [grads], [], 1, [0.5], lists=[1], **sections
        )
        apply = _ops.gen.rec_estimator_tables_apply_packed(reserve.reservation, gradients)
    with tf.control_dependencies([apply]):
        after = read(handle)
        with tf.control_dependencies(tf.nest.flatten(after)):
            evict = _ops.gen.rec_estimator_table_evict(handle, 1, l2_weight_threshold=0.5).evicted
    with tf.control_dependencies([evict]):
        evicted = read(handle)
    rng = np.random.default_rng(n)
    with tf.Session() as session:
        session.run(initialize)
        for step in range(1, 5):
            feed = {each: rng.integers(-1, n * step, [n]) for each in keys}
            *found, count = session.run([before, after, evicted, evict], feed)
            for each, expected in [pair for when in found for pair in when]:
                np.testing.assert_array_equal(each, expected)
            assert count > 0


def test_rows_that_a_reservation_found_are_not_those_of_more_keys_in_the_same_memory():
    """A slice of packed keys has a section that begins like one of the whole, but is longer."""
    handle, initialize = table_of()
    n = 302  # So that the slice is of whole lines, which TensorFlow does not copy.
    words = [0, 0, 2, n, 0, 0, 0, 0, 0, 0, n + n // 2, *range(n), *([1 + (1 << 32)] * (n // 2))]
    fed = tf.placeholder(tf.int64, [None])
    packed = tf.concat([fed[:1], fed[1:]], axis=0)  # Aligned, and no constant.
    reserve = _ops.gen.rec_estimator_tables_reserve_packed(
        [handle], packed, sections=[1], num_sections=3, **ADAGRAD
    )
    gradients = _ops.gen.rec_estimator_gradients_pack(
        packed, [np.arange(n)], [np.ones([n, DIM])], [], 1, [0.5], lists=[1], sections=[1],
        num_sections=3,
    )  # fmt: skip
    train = _ops.gen.rec_estimator_tables_apply_packed(reserve.reservation, gradients)
    with tf.control_dependencies([reserve.reservation]):
        part = tf.slice(packed, [8], [-1])  # Shares the memory of the whole.
    rows = _ops.gen.rec_estimator_tables_read(
        [handle], part, unknowns=["initial"], sections=[0], num_sections=1, dims=[DIM]
    )
    expected = _ops.gen.rec_estimator_table_lookup(handle, part[3:], dim=DIM)
    with tf.Session() as session:
        session.run(initialize)
        session.run(train, {fed: words})
        found, wanted = session.run([rows, expected], {fed: words})
    np.testing.assert_array_equal(found, wanted.ravel())


@pytest.mark.parametrize("keys_of_place", [1, 2])
def test_gradients_are_read_at_their_places(keys_of_place):
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 5, [6, keys_of_place])
    grads = rng.normal(size=[9, keys_of_place, DIM]).astype(np.float32)
    positions = np.array([8, 0, 3, 3, 5, 7], np.int32)
    pack = _ops.gen.rec_estimator_keys_pack([keys], sections=[0], uses=["gradient"], num_sections=1)
    gradients = _ops.gen.rec_estimator_gradients_pack(
        pack.packed,
        pack.index,
        [grads],
        [positions],
        7,
        [0.5],
        lists=[1],
        sections=[0],
        num_sections=1,
    )
    with tf.Session() as session:
        sent = session.run(gradients)
    sums = oracle.sum_by_key(keys.ravel(), grads[positions].reshape([-1, DIM]))
    np.testing.assert_array_equal(sent, oracle.pack_gradients([7], [[0.5]], [sums]))


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize("word", [-1, 1 << 62, 2**63 - 1, -(2**63)])
def test_a_wrong_header_is_refused_by_name(at, word):
    words = PACKED.copy()
    if at < 6:
        words[at] = word
    else:
        words = words[: at - 10]
    handle, initialize = table_of()
    read = _ops.gen.rec_estimator_tables_read(
        [handle], words, sections=[1], num_sections=2, dims=[DIM], unknowns=["initial"]
    )
    with tf.Session() as session:
        session.run(initialize)
        with pytest.raises(tf.errors.InvalidArgumentError, match="packed must be the output of"):
            session.run(read)


def test_a_reservation_of_the_other_kind_is_refused():
    handle, initialize = table_of()
    reserve = _ops.gen.rec_estimator_tables_reserve([handle], [[1]], [[]], **ADAGRAD)
    apply = _ops.gen.rec_estimator_tables_apply_packed(reserve.reservation, [0.0] * 6)
    with tf.Session() as session:
        session.run(initialize)
        with pytest.raises(tf.errors.InvalidArgumentError, match="output of TablesReservePacked"):
            session.run(apply)


def test_a_rule_with_an_update_for_each_occurrence_is_refused():
    handle, _ = table_of()
    reserve = _ops.gen.rec_estimator_tables_reserve_packed(
        [handle],
        PACKED,
        sections=[0],
        num_sections=2,
        rule="GradientDescent",
        slot_names=[],
        slot_widths=[],
        slot_initials=[],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="one update for each key"):
        run(reserve.rows)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"index": [[0, 2]]}, "index must be positions of 2 keys with a gradient"),
        ({"index": [[-1, 0]]}, "index must be positions of 2 keys with a gradient"),
        ({"index": [[0]], "grads": [np.ones([1, 3])]}, "index must have all 2 keys"),
        ({"grads": [np.ones([3, 3])]}, r"grads of table 0 must be \[n, dim\], n = 2"),
        ({"positions": [[0, 2]]}, r"positions of table 0 must be in \[0, 2\)"),
        ({"positions": [[0, -1]]}, r"positions of table 0 must be in \[0, 2\)"),
        (
            {"positions": [[0, 1, 1]]},
            "must have rows for 2 keys at 3 positions, got 3 floats at each",
        ),
        ({"positions": [[0]]}, "must have rows for 2 keys at 1 positions, got 3 floats at each"),
        ({"positions": [[0, 1]], "grads": [1.0]}, r"positions of table 0 must be in \[0, 0\)"),
        (
            {"positions": [[0, 1]], "index": [[0], [1]], "lists": [2]},
            "positions must be none, or N = 1 with one list for each table, got 1",
        ),
        ({"version": [1, 2]}, r"version must be \[\] or, for 1 tables, \[1\]"),
        ({"lists": [2]}, "lists must be >= 0 with a sum of K = 1, got 2"),
        ({"sections": [2]}, r"sections must be in \[0, num_sections\), num_sections = 2, got 2"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(changed, message):
    arguments = {
        "packed": PACKED,
        "index": [[0, 1]],
        "grads": [np.ones([2, 3])],
        "positions": [],
        "version": 1,
        "hyper": [0.1],
        "lists": [1],
        "sections": [1],
        "num_sections": 2,
        **changed,
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(_ops.gen.rec_estimator_gradients_pack(**arguments))


def test_rows_that_do_not_fit_are_refused():
    def spread(rows, index):
        return _ops.gen.rec_estimator_rows_spread(
            np.zeros([rows], np.float32),
            PACKED,
            [np.array(index, np.int32)],
            lookups=[0],
            sections=[1],
            num_sections=2,
            dims=[DIM],
        )

    for rows, index, message in (
        (10, [0], r"rows must be those of the packed keys, \[9\]"),
        (9, [3], "index must be positions in a section of 3 keys"),
        (9, [-1], "index must be positions in a section of 3 keys"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(spread(rows, index))
