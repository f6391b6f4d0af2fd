# SPDX-License-Identifier: Apache-2.0
"""What a call of an op must return, as NumPy computes it from the arguments of the call.

Each function of ``EXPECTED`` takes the tables of the session and the arguments of its op. It
raises MustRefuseError if the documentation of the op forbids the arguments. Otherwise it returns a
function that computes the results, and the arrays of numbers that this function takes; none if the
results have exact bits.
"""

import numpy as np
import oracle
import tensorflow.compat.v1 as tf

# Elements of the outputs, or candidates, up to which results are computed.
FEW = 1 << 20

# Other numbers overflow, or are taken for 0, in one order of operations and not in another.
SMALLEST, LARGEST = 1e-9, 1e9

# Part of the sum of the absolute terms of a result: far above the rounding of a few float32.
TOLERANCE = 1e-5

MOST_ROWS = 2**31 - 1  # Users and candidates are int32.


class MustRefuseError(Exception):
    """The op must not return anything for these arguments."""


class UnknownError(Exception):
    """What the op must return is too large or too hard to compute."""


def check(op, arguments, outputs, oracle_of):
    """Raises AssertionError if a call returned something else than it must.

    Args:
      op: Name of the op.
      arguments: {name: argument}.
      outputs: What the session returned; None if the op has no outputs.
      oracle_of: Returns the TableOracle of an argument that stands for a table.

    Returns:
      Whether the results were compared.
    """
    if op not in EXPECTED:
        return False
    outputs = [] if outputs is None else tf.nest.flatten(outputs)
    try:
        compute, numbers = EXPECTED[op](oracle_of, **arguments)
        if sum(map(np.size, outputs)) > FEW or not all(map(_is_moderate, numbers)):
            return False
        numbers = [number.astype(np.float64) for number in numbers]
        expected, scales = compute(*numbers), compute(*map(np.abs, numbers))
    except MustRefuseError:
        raise AssertionError(f"{op} must refuse {arguments}, but returned {outputs}") from None
    except UnknownError:
        return False
    assert len(outputs) == len(expected), f"{op} returned {len(outputs)} outputs"
    for output, right, scale in zip(outputs, expected, scales):
        same = output.shape == right.shape
        if same and numbers:
            same = (np.abs(output - right) <= TOLERANCE * scale).all()
        elif same:
            same = output.tobytes() == right.astype(output.dtype).tobytes()
        assert same, f"{op} returned {output}, not {right}, for {arguments}"
    return True


def _is_moderate(array):
    size = np.abs(array.astype(np.float64))
    return bool(((size == 0) | ((size > SMALLEST) & (size < LARGEST))).all())


def _require(condition):
    if not condition:
        raise MustRefuseError


def _require_shape(array, *shape):
    """None stands for any size."""
    _require(array.ndim == len(shape))
    _require(all(size in (None, mine) for size, mine in zip(shape, array.shape)))


# ------------------------------------------------------------------ users and candidates


def _sample_rows(_, item_size, tensors, kinds, names, num_users, size_name):
    del names, size_name
    _require_shape(item_size, None)
    sizes = item_size.astype(np.int64)
    rows = list(map(_rows_of, tensors, kinds))
    _require((sizes >= 0).all() and num_users <= len(rows))
    users, items = len(sizes), sum(sizes.tolist())
    if users == 1 and num_users:
        users, items = rows[0], rows[0] * items
    _require(rows == [users] * num_users + [items] * (len(rows) - num_users))
    _require(0 <= users < MOST_ROWS and items < MOST_ROWS)

    def compute():
        each = sizes if len(sizes) == users else np.repeat(sizes, users)
        splits, owners = np.cumsum([0, *each]), np.repeat(np.arange(users), each)
        return list(map(np.asarray, (users, items, splits, owners)))

    return compute, []


def _rows_of(tensor, kind):
    if kind == "dense":
        _require(tensor.ndim)
        return len(tensor)
    _require_shape(tensor, None)
    _require(len(tensor))
    return int(tensor[0]) if kind == "sparse" else len(tensor) - 1


def _sizes(row_splits):
    """The number of candidates of each user."""
    _require_shape(row_splits, None)
    _require(len(row_splits) and row_splits[0] == 0)
    sizes = np.diff(row_splits.astype(np.int64))
    _require((sizes >= 0).all())
    return sizes


def _require_axis(shape, axis, users):
    _require(axis < len(shape))
    _require(shape[axis] % users == 0 if users else shape[axis] == 0)


def _repeat_rows(_, values, row_splits, axis, keep_one):
    sizes = _sizes(row_splits)
    _require_axis(values.shape, axis, len(sizes))

    def compute():
        if values.dtype.kind in "OSU" or sizes.sum() > FEW:  # Strings may stand for paths.
            raise UnknownError
        is_kept = keep_one and len(sizes) == 1
        return [values if is_kept else oracle.repeat_rows(values, sizes, axis)]

    return compute, []


def _repeat_rows_grad(_, grads, row_splits, shape, axis):
    sizes = _sizes(row_splits)
    _require_shape(shape, None)
    _require((shape >= 0).all())
    _require_axis(shape, axis, len(sizes))
    repeated = shape.tolist()
    repeated[axis] = sum(sizes.tolist()) * (repeated[axis] // len(sizes) if len(sizes) else 0)
    is_kept = len(sizes) == 1 and grads.shape == tuple(shape)
    _require(is_kept or grads.shape == tuple(repeated))

    def compute(grads):
        if sizes.sum() > FEW:
            raise UnknownError
        return [grads if is_kept else oracle.sum_rows(grads, np.zeros(shape), sizes, axis)]

    return compute, [grads]


def _kernel_rows(_, kernel, counts, terms, starts, signs, keep):
    del keep
    _require_shape(kernel, None, None)
    _require(len(counts) == len(terms) and sum(terms) == len(starts) == len(signs))
    _require(min([*counts, 0]) == 0 and min([*terms, 1]) == 1 and {*signs} <= {1, -1})
    ends = np.cumsum([0, *terms])
    blocks = [(count, range(*ends[i : i + 2])) for i, count in enumerate(counts)]
    for count, mine in blocks:
        _require(all(0 <= starts[term] <= len(kernel) - count for term in mine))

    def compute(kernel, signs):
        if not blocks:
            return [kernel[:0]]
        terms_of = [(n, [(signs[i], starts[i]) for i in mine]) for n, mine in blocks]
        return [oracle.kernel_rows(kernel, terms_of)]

    return compute, [kernel, np.array(signs)]


def _segment_mat_mul(_, rows, matrices, row_splits, transpose_matrices):
    sizes = _sizes(row_splits)
    _require_shape(rows, sizes.sum(), None)
    inner, outer = (None, rows.shape[1]) if transpose_matrices else (rows.shape[1], None)
    _require_shape(matrices, len(sizes), inner, outer)

    def compute(rows, matrices):
        if transpose_matrices:
            matrices = matrices.transpose(0, 2, 1)
        return [oracle.multiply_by_user(rows, matrices, sizes)]

    return compute, [rows, matrices]


def _segment_mat_mul_grad(_, rows, grads, row_splits):
    sizes = _sizes(row_splits)
    _require_shape(rows, sizes.sum(), None)
    _require_shape(grads, sizes.sum(), None)

    def compute(rows, grads):
        parts = [slice(*pair) for pair in zip(row_splits, row_splits[1:])]
        sums = [rows[part].T @ grads[part] for part in parts]
        return [np.reshape(sums, [len(sizes), rows.shape[1], grads.shape[1]])]

    return compute, [rows, grads]


def _require_layer(entries, rows, kernel, sizes):
    """Returns T, D and H."""
    _require_shape(rows, sizes.sum(), None)
    _require_shape(entries, len(sizes), None, rows.shape[1])
    _require_shape(kernel, rows.shape[1], None)
    return (*entries.shape[1:], kernel.shape[1])


def _segment_layer(_, entries, rows, kernel, row_splits, user_bias, row_bias):
    sizes = _sizes(row_splits)
    places, _, outer = _require_layer(entries, rows, kernel, sizes)
    _require_shape(user_bias, len(sizes), places, outer)
    _require_shape(row_bias, sizes.sum(), outer)

    def compute(*numbers):
        return [oracle.layer_by_user(*numbers, sizes)]

    return compute, [entries, rows, kernel, user_bias, row_bias]


def _segment_layer_grad(_, entries, rows, kernel, row_splits, grads):
    sizes = _sizes(row_splits)
    places, _, outer = _require_layer(entries, rows, kernel, sizes)
    _require_shape(grads, sizes.sum(), places, outer)

    def compute(entries, rows, kernel, grads):
        owners = np.repeat(np.arange(len(sizes)), sizes)
        of_rows = entries[owners]
        product_grads = grads @ kernel.T
        entry_grads, kernel_grads = np.zeros_like(entries), np.zeros([len(sizes), *kernel.shape])
        np.add.at(entry_grads, owners, product_grads * rows[:, np.newaxis])
        of_kernel = np.einsum("ntd,nd,nth->ndh", of_rows, rows, grads)
        np.add.at(kernel_grads, owners, of_kernel)
        return [entry_grads, (product_grads * of_rows).sum(axis=1), kernel_grads]

    return compute, [entries, rows, kernel, grads]


# ------------------------------------------------------------------ lookups


def _exact(compute):
    return compute, []


def _table_lookup(oracle_of, table, keys, dim, unknown):
    of_table = oracle_of(table)
    _require(of_table.bank.shape[1] == dim)
    return _exact(lambda: [of_table.lookup(keys, unknown)])


def _table_contains(oracle_of, table, keys):
    return _exact(lambda: [oracle_of(table).contains(keys)])


def _table_frequencies(oracle_of, table, keys):
    def compute():
        if oracle_of(table).bloom:  # The cells have the counts.
            raise UnknownError
        return [oracle_of(table).frequencies(keys)]

    return _exact(compute)


def _table_versions(oracle_of, table, keys):
    return _exact(lambda: [oracle_of(table).versions(keys)])


def _require_indices(indices, rows):
    """Requires sorted indices, and returns the row of each key."""
    _require_shape(indices, None, None)
    _require(indices.shape[1])
    ids = indices[:, 0]
    _require((ids >= 0).all() and (ids < rows).all() and (np.diff(ids.astype(object)) >= 0).all())
    return ids


def _table_group_lookup(oracle_of, tables, keys, indices, dense_shapes, dims, combiners, unknowns):
    of_tables = list(map(oracle_of, tables))
    _require(len(of_tables) == len(dims) == len(combiners) == len(unknowns))
    _require([table.bank.shape[1] for table in of_tables] == list(dims))
    for i, combiner in enumerate(combiners):
        _require(combiner in ("sum", "mean", "sqrtn"))
        _require_shape(keys[i], None)
        _require_shape(indices[i], len(keys[i]), None)
        _require_shape(dense_shapes[i], indices[i].shape[1])
        _require(dense_shapes[i][0] >= 0 if len(dense_shapes[i]) else False)
        _require_indices(indices[i], dense_shapes[i][0])

    def compute():
        found = []
        for i, combiner in enumerate(combiners):
            rows = of_tables[i].lookup(keys[i], unknowns[i])
            if not _is_moderate(rows):
                raise UnknownError
            num_rows = int(dense_shapes[i][0])
            found.append(oracle.combine(rows, indices[i][:, 0], num_rows, combiner))
        return found

    return _exact(compute)


def _table_group_lookup_grad(_, indices, grads, combiners):
    _require(len(combiners) == len(grads) and {*combiners} <= {"sum", "mean", "sqrtn"})
    for mine, grad in zip(indices, grads):
        _require_shape(grad, None, None)
        _require_indices(mine, len(grad))

    def compute(*grads):
        ids = [mine[:, 0] for mine in indices]
        return list(map(oracle.spread, grads, ids, combiners))

    return compute, grads


def _require_weights(weights, indices, rows, combiners):
    """Requires weighted keys, and returns the row of each key of each lookup."""
    _require(len(combiners) == len(weights) and {*combiners} <= {"sum", "mean", "sqrtn"})
    # The oracle computes with float64, in which a divisor may be 0 where it is not in float32.
    if any(combiner != "sum" and (mine <= 0).any() for mine, combiner in zip(weights, combiners)):
        raise UnknownError
    for mine, at in zip(weights, indices):
        _require_shape(at, None, None)
        _require_shape(mine, len(at))
    return [_require_indices(at, count) for at, count in zip(indices, rows)]


def _combine_weighted(_, values, weights, indices, dense_shapes, combiners):
    for mine, at, shape in zip(values, indices, dense_shapes):
        _require_shape(mine, len(at), None)
        _require_shape(shape, at.shape[1])
        _require(shape[0] >= 0 if len(shape) else False)
    rows = [int(shape[0]) for shape in dense_shapes]
    ids = _require_weights(weights, indices, rows, combiners)

    def compute(*numbers):
        halves = numbers[: len(values)], numbers[len(values) :]
        return list(map(oracle.combine_weighted, *halves, ids, rows, combiners))

    return compute, [*values, *weights]


def _combine_weighted_grad(_, weights, indices, grads, combiners):
    for grad in grads:
        _require_shape(grad, None, None)
    ids = _require_weights(weights, indices, map(len, grads), combiners)

    def compute(*numbers):
        halves = numbers[: len(grads)], numbers[len(grads) :]
        return list(map(oracle.spread_weighted, *halves, ids, combiners))

    return compute, [*grads, *weights]


# ------------------------------------------------------------------ padding


def _ids_without_padding(_, ids):
    def compute():
        if ids.dtype.kind in "OSU":  # Strings may stand for paths.
            raise UnknownError
        return [np.argwhere(ids != -1), ids[ids != -1]]

    return _exact(compute)


# ------------------------------------------------------------------ shards


def _shard_keys_split(_, keys, N):
    _require_shape(keys, None)
    shards = keys % 1000 % N
    positions = [np.flatnonzero(shards == shard) for shard in range(N)]
    return _exact(lambda: [shards, *(keys[of_shard] for of_shard in positions), *positions])


def _require_shards(shards, count):
    _require_shape(shards, None)
    _require(((shards >= 0) & (shards < count)).all())


def _shard_rows_merge(_, shards, rows):
    _require_shards(shards, len(rows))
    _require(rows[0].ndim)
    for shard, of_shard in enumerate(rows):
        _require(of_shard.shape == (np.sum(shards == shard), *rows[0].shape[1:]))

    def compute():
        values = np.zeros([len(shards), *rows[0].shape[1:]], np.float32)
        for shard, of_shard in enumerate(rows):
            values[shards == shard] = of_shard
        return [values]

    return _exact(compute)


def _shard_rows_split(_, shards, values, N):
    _require_shards(shards, N)
    _require(values.ndim and len(values) == len(shards))
    return _exact(lambda: [values[shards == shard] for shard in range(N)])


def _shard_rows_spread(_, shards, rows, index):
    _require_shards(shards, len(rows))
    _require(index[0].ndim)
    for shard, (of_shard, at) in enumerate(zip(rows, index)):
        _require_shape(of_shard, None, np.shape(rows[0])[-1])
        _require(at.shape == (np.sum(shards == shard), *index[0].shape[1:]))
        _require(((at >= 0) & (at < len(of_shard))).all())

    def compute():
        values = np.zeros([len(shards), *index[0].shape[1:], rows[0].shape[1]], np.float32)
        for shard, (of_shard, at) in enumerate(zip(rows, index)):
            values[shards == shard] = of_shard[at]
        return [values]

    return _exact(compute)


# ------------------------------------------------------------------ the rest


def _check_row_limit(_, rows, table_name, max_rows):
    del table_name
    for row in rows:
        _require_shape(np.asarray(row))
        _require(int(row) >= 0)
    _require(sum(int(row) for row in rows) <= max_rows)
    return _exact(lambda: [])


EXPECTED = {
    "check_row_limit": _check_row_limit,
    "combine_weighted": _combine_weighted,
    "combine_weighted_grad": _combine_weighted_grad,
    "ids_without_padding": _ids_without_padding,
    "kernel_rows": _kernel_rows,
    "repeat_rows": _repeat_rows,
    "repeat_rows_grad": _repeat_rows_grad,
    "sample_rows": _sample_rows,
    "segment_layer": _segment_layer,
    "segment_layer_grad": _segment_layer_grad,
    "segment_mat_mul": _segment_mat_mul,
    "segment_mat_mul_grad": _segment_mat_mul_grad,
    "shard_keys_split": _shard_keys_split,
    "shard_rows_merge": _shard_rows_merge,
    "shard_rows_split": _shard_rows_split,
    "shard_rows_spread": _shard_rows_spread,
    "table_contains": _table_contains,
    "table_frequencies": _table_frequencies,
    "table_group_lookup": _table_group_lookup,
    "table_group_lookup_grad": _table_group_lookup_grad,
    "table_lookup": _table_lookup,
    "table_versions": _table_versions,
}
