# SPDX-License-Identifier: Apache-2.0
"""Flat samples as compressed batches: a user's row once, beside all of her candidates.

Training data names the user in every sample, with the same history and profile each time. Grouped,
a batch holds the user's features once and says how many of its samples are hers, which is what
sample-aware graph compression computes with:

    flat      user  item  label          grouped   user  item_size    item  label
              7     1     0                        7     2            1     0
              9     5     1              ──▶       9     1            4     1
              7     4     1                                           5     1

What is grouped is equal to the bit: samples of a user whose history has grown in between stay
apart. So the order of the samples changes, and nothing else.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from rec_estimator.inputs.row_parsers import as_names, check_count

# Under which a batch says how many samples each user has.
ITEM_SIZE = "item_size"

_Names = Union[str, Sequence[str], None]


def group_samples(
    dataset: tf.data.Dataset,
    user: Sequence[str],
    item: Optional[Sequence[str]] = None,
    key: _Names = None,
    *,
    batch_size: Optional[int] = None,
    window: Optional[int] = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Turns flat samples into compressed batches.

    Samples whose user features and key are all equal, bit by bit, share one row of user features;
    a key alone never makes two different rows one. Groups come in the order of their first sample,
    samples of a group in theirs. No sample is lost or doubled; a group that ends a batch goes on in
    the next one.

    Args:
      dataset: Batches of rows on axis 0, of any number each: (features, labels), or features, a
        dict of name to dense, sparse or ragged tensor. They need not be sorted; where they are not,
        a window finds more that belong together.
      user: Names of the features that are of the user.
      item: Names of those of the candidate; None: all others but the key. Features in neither are
        left out. Labels are of the candidate.
      key: Names of features that samples of a group have in common too, such as the number of a
        request; they may be in user, in item or in neither.
      batch_size: Samples, that is items, in a batch; the last batch of a window may have fewer.
        None: all of a window.
      window: Samples within which groups are looked for, a multiple of batch_size. None: within
        each batch of the dataset.
      drop_remainder: Whether to leave out batches with fewer than batch_size samples.

    Returns:
      A dataset of (features, labels), or of features: those of the user with a row per group,
      those of the item and labels with a row per sample, and "item_size", int32, how many samples
      each group has. RecEstimator(sample_compression=) trains on it.

    Raises:
      ValueError: No user or no item feature, a name that there is not, or twice, or a number out of
        range.
      TypeError: Elements that are no batches of a dict of tensors.
      tf.errors.InvalidArgumentError: Features or labels with different numbers of rows (while
        running).

    Example:
      >>> flat = tf.data.Dataset.from_tensor_slices(
      ...     {"user": [7, 9, 7], "item": [1, 5, 4]}).batch(3)
      >>> batches = rec.inputs.group_samples(flat, user=["user"])
      >>> batch = tf.data.make_one_shot_iterator(batches).get_next()
      >>> with tf.Session() as session:
      ...     for name, value in sorted(session.run(batch).items()):
      ...         print(name, value)
      item [1 4 5]
      item_size [2 1]
      user [7 9]
    """
    features, has_labels = _features_of(dataset.element_spec)
    for label in tf.nest.flatten(dataset.element_spec[1:] if has_labels else ()):
        if hasattr(label, "shape"):  # None has none.
            _check_rows("labels", label)
    sides = _Sides.of(features, user, item, as_names("key", key))
    for name, value in (("batch_size", batch_size), ("window", window)):
        if value is not None:
            check_count(name, value)
    if window is not None and batch_size is not None and window % batch_size:
        raise ValueError(
            f"window must be a multiple of batch_size, got {window} and {batch_size}; else each "
            "window ends with a batch that is not full"
        )
    if drop_remainder and batch_size is None:
        raise ValueError("batch_size must be given where drop_remainder is True, got None")
    if window is not None:
        dataset = _in_windows(dataset, window)

    def sorted_by_group(*element: Any) -> Any:
        rows, labels = element if has_labels else (element[0], ())
        used = {name: rows[name] for name in (*sides.user, *sides.item, *sides.key)}
        rows, labels = _in_order(used, labels)
        order, first = _groups([rows[name] for name in (*sides.user, *sides.key)])
        users = {name: rows[name] for name in sides.user}
        items = {name: rows[name] for name in sides.item}
        return users, (items, labels), first, order

    def batches(*window: Any) -> tf.data.Dataset:
        return cut(*window, batch_size=batch_size, drop_remainder=drop_remainder)

    windows = dataset.map(sorted_by_group, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return windows.flat_map(batches)


def cut(
    users: Dict[str, Any],
    items: Any,
    user_rows: tf.Tensor,
    item_rows: tf.Tensor,
    *,
    batch_size: Optional[int],
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Cuts samples into compressed batches.

    Args:
      users: Tensors by name, of user features.
      items: (tensors by name, labels), () for no labels.
      user_rows: int64 [n], of each sample the row in `users`; those of a group are equal, one after
        the other, and different from those of the next.
      item_rows: int64 [n], of each sample the row in `items`.
      batch_size: Samples in a batch; None: all.
      drop_remainder: Whether to leave out a last batch that is not full.

    Returns:
      A dataset as of ``group_samples``.
    """
    count = tf.size(user_rows, tf.int64)
    size = tf.maximum(count, 1) if batch_size is None else tf.constant(batch_size, tf.int64)
    batches = count // size if drop_remainder else -(-count // size)

    def batch(i: tf.Tensor) -> Any:
        begin, end = i * size, tf.minimum((i + 1) * size, count)
        of_users = user_rows[begin:end]
        is_first = tf.concat([[True], tf.not_equal(of_users[1:], of_users[:-1])], axis=0)
        firsts = tf.where(is_first)[:, 0]
        ends = tf.concat([firsts[1:], [end - begin]], axis=0)
        features = {name: take(value, tf.gather(of_users, firsts)) for name, value in users.items()}
        rows = item_rows[begin:end]
        of_items, labels = tf.nest.map_structure(lambda value: take(value, rows), items)
        features = {**features, **of_items, ITEM_SIZE: tf.cast(ends - firsts, tf.int32)}
        return features if isinstance(labels, tuple) and not labels else (features, labels)

    return tf.data.Dataset.range(batches).map(batch)


def take(value: Any, rows: tf.Tensor) -> Any:
    """Some rows, int64 [n], of a dense, ragged or sorted sparse tensor; of None, None."""
    if value is None:
        return None
    if not isinstance(value, tf.SparseTensor):
        return tf.gather(value, rows)
    begins = tf.searchsorted(value.indices[:, 0], rows, side="left")
    ends = tf.searchsorted(value.indices[:, 0], rows, side="right")
    places = tf.ragged.range(begins, ends)
    indices = tf.gather(value.indices, places.flat_values)
    of_rows = tf.cast(places.value_rowids(), tf.int64)[:, tf.newaxis]
    return tf.SparseTensor(
        tf.concat([of_rows, indices[:, 1:]], axis=1),
        tf.gather(value.values, places.flat_values),
        tf.concat([tf.size(rows, tf.int64)[tf.newaxis], value.dense_shape[1:]], axis=0),
    )


def _in_windows(dataset: tf.data.Dataset, window: int) -> tf.data.Dataset:
    """Batches of `window` rows each, but for the last one."""
    specs = tf.nest.flatten(dataset.element_spec)
    if all(
        isinstance(spec, tf.TensorSpec)
        and spec.shape.rank is not None
        and spec.shape[1:].is_fully_defined()
        for spec in specs
    ):
        return dataset.rebatch(window)  # No sample is taken apart, which is much faster.
    return dataset.unbatch().ragged_batch(window)


def _in_order(features: Dict[str, Any], labels: Any) -> Any:
    """(features, labels), as many rows of each, entries of sparse ones in the order of rows."""
    flat = [value for value in tf.nest.flatten((features, labels)) if value is not None]
    counts = tf.stack([_count_rows(value) for value in flat])
    message = (
        "features and labels must have a row each for every sample, got other numbers of rows for "
        f"some of {', '.join(features)} and {len(flat) - len(features)} labels"
    )
    same = tf.debugging.assert_equal(counts, counts[:1], message=message)
    with tf.control_dependencies([same]):
        return tf.nest.map_structure(_with_sorted_entries, (features, labels))


def _with_sorted_entries(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.reorder(value)
    return None if value is None else tf.identity(value)


def _count_rows(value: Any) -> tf.Tensor:
    """int64 [] of a dense, sparse or ragged tensor."""
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int64)
    return tf.shape(value, tf.int64)[0]


def _groups(features: Sequence[Any]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Sorts samples so that those with equal rows of all features follow each other.

    Returns:
      int64 [n], the samples, groups in the order of their first one; and int64 [n], the first
      sample of the group of each of them.
    """
    group = _row_ids(tf.stack([_row_ids(feature) for feature in features], axis=1))
    count = tf.size(group, tf.int64)
    samples = tf.range(count)
    # No two are equal, so that there is one order.
    order = tf.sort(group * count + samples) % tf.maximum(count, 1)
    first = tf.math.unsorted_segment_min(samples, group, count)
    return order, tf.gather(first, tf.gather(group, order))


def _row_ids(value: Any) -> tf.Tensor:
    """int64 [n]: equal for equal rows and for no others, counting up in the order they come."""
    if isinstance(value, tf.SparseTensor):
        entries = tf.concat([value.indices[:, 1:], _row_ids(value.values)[:, tf.newaxis]], axis=1)
        value = tf.RaggedTensor.from_value_rowids(
            _row_ids(entries), value.indices[:, 0], nrows=value.dense_shape[0]
        )
    if isinstance(value, tf.RaggedTensor):
        # Ids are not negative.
        value = value.with_values(_row_ids(value.values)).to_tensor(-1)
    if value.dtype.is_floating or value.dtype.is_complex:
        # Bit by bit: NaN is equal to itself, 0.0 not to -0.0.
        kinds = {2: tf.int16, 4: tf.int32, 8: tf.int64, 16: tf.int64}
        value = tf.bitcast(value, kinds[value.dtype.size])
    elements = tf.unique(tf.reshape(value, [-1]), tf.int64).idx
    if value.shape.rank == 1:
        return elements
    rows = tf.reshape(elements, [tf.shape(value)[0], tf.reduce_prod(tf.shape(value)[1:])])
    return tf.raw_ops.UniqueV2(x=rows, axis=[0], out_idx=tf.int64).idx


class _Sides(NamedTuple):
    """Names of features by what they are of."""

    user: List[str]
    item: List[str]
    key: List[str]

    @classmethod
    def of(
        cls,
        features: Mapping[str, Any],
        user: Sequence[str],
        item: Optional[Sequence[str]],
        key: Sequence[str],
    ) -> "_Sides":
        user = as_names("user", user)
        if item is None:
            item = [name for name in features if name not in (*user, *key)]
        item = as_names("item", item)
        for side, names in (("user", user), ("item", item), ("key", key)):
            for name in names:
                if name not in features:
                    raise ValueError(
                        f"{side} must name features of the dataset, got {name!r}, which is none of "
                        f"{', '.join(map(repr, features))}"
                    )
            if side != "key" and not names:
                raise ValueError(f"{side} must name at least one feature, got none")
        both = sorted(set(user) & set(item))
        if both:
            raise ValueError(f"a feature must be of user or of item, got {both[0]!r} in both")
        if ITEM_SIZE in (*user, *item):
            raise ValueError(
                f"features must leave the name {ITEM_SIZE!r} to the number of samples; rename it"
            )
        return cls(list(user), list(item), list(key))


def _features_of(spec: Any) -> Any:
    """(features' specs, whether there are labels) of a dataset's element."""
    has_labels = isinstance(spec, tuple)
    if has_labels and len(spec) != 2:
        raise TypeError(
            f"dataset must be of features or of (features, labels), got a tuple of {len(spec)}"
        )
    features = spec[0] if has_labels else spec
    if not isinstance(features, Mapping):
        raise TypeError(
            f"dataset must be of features as a dict of name to tensor, got {features!r}"
        )
    for name, feature in features.items():
        _check_rows(f"feature {name!r}", feature)
    return features, has_labels


def _check_rows(what: str, spec: Any) -> None:
    if getattr(spec, "shape", tf.TensorShape([])).rank == 0:
        raise TypeError(
            f"{what} must be a tensor with rows on axis 0, got {spec!r}; batch the dataset before, "
            "for example with dataset.batch(512)"
        )
