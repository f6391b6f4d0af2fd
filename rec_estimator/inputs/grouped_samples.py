# SPDX-License-Identifier: Apache-2.0
"""Groups flat samples by user: one row of user features for all candidates of the user.

Flat training data repeats the features of a user, such as the history, in every sample. A grouped
batch contains them once, with the number of the user's samples. Sample-aware graph compression
trains on such batches:

    flat      user  item  label          grouped   user  item_size    item  label
              7     1     0                        7     2            1     0
              9     5     1              ──▶       9     1            4     1
              7     4     1                                           5     1

Only samples whose user features are equal bit by bit are grouped: if the history of a user grows
between two samples, they stay in different groups. So grouping changes the order of the samples and
nothing else.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from rec_estimator.inputs.row_parsers import as_names, check_count

# Name of the feature with the number of samples of each group.
ITEM_SIZE = "item_size"

_Names = Union[str, Sequence[str], None]
_Tensor = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]


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
    """Converts flat samples to grouped batches.

    Samples with the same user features and key, bit by bit, share one row of user features. Equal
    keys alone do not join samples. Groups are ordered by their first sample; samples of a group
    keep their order. No sample is lost or repeated. A group that does not fit in a batch is
    continued in the next.

    Args:
      dataset: Batches of any number of rows, on axis 0: features, or (features, labels). Features
        are a dict of name to dense, sparse or ragged tensor. The samples need not be sorted; if
        they are not, a larger window finds more samples of a group.
      user: Names of the features of the user.
      item: Names of the features of the candidate. None: all other features except the key.
        Features in neither list are dropped. Labels belong to the candidate.
      key: Names of further features that must be equal in a group, such as a request id. They may
        also be in user or in item.
      batch_size: Samples per batch; the last batch of a window may have fewer. None: all samples of
        a window.
      window: Number of samples within which groups are formed, a multiple of batch_size. None: each
        batch of the dataset is a window.
      drop_remainder: Whether to drop batches with fewer than batch_size samples.

    Returns:
      A dataset of features or (features, labels). User features have a row per group; item features
      and labels have a row per sample. "item_size", int32, is the number of samples of each group.
      RecEstimator(sample_compression=) trains on it.

    Raises:
      ValueError: There is no user or no item feature, a name does not exist or is given twice, or a
        number is out of range.
      TypeError: The elements of the dataset are not batches of a dict of tensors.
      tf.errors.InvalidArgumentError: While running, if features or labels have different numbers of
        rows.

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
            f"window must be a multiple of batch_size, got {window} and {batch_size}; otherwise "
            "each window would end with a batch that is not full"
        )
    if drop_remainder and batch_size is None:
        raise ValueError(
            "batch_size must be given if drop_remainder is True, got None; pass both or neither"
        )
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
    users: Dict[str, _Tensor],
    items: Any,
    user_rows: tf.Tensor,
    item_rows: tf.Tensor,
    *,
    batch_size: Optional[int],
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Cuts grouped samples into batches.

    Args:
      users: {name: tensor} of the user features.
      items: ({name: tensor} of the item features, labels). Labels are () if there are none.
      user_rows: int64 [n]. The row of each sample in `users`. The samples of a group follow each
        other and have the same row, which differs from that of the next group.
      item_rows: int64 [n]. The row of each sample in `items`.
      batch_size: Samples per batch. None: all samples.
      drop_remainder: Whether to drop a last batch that is not full.

    Returns:
      A dataset as in ``group_samples``.
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


def take(value: Optional[_Tensor], rows: tf.Tensor) -> Optional[_Tensor]:
    """Takes rows of a dense, ragged or sorted sparse tensor. None gives None.

    Args:
      value: The tensor, or None.
      rows: int64 [n]. The rows to take.
    """
    if value is None:
        return None
    if not isinstance(value, tf.SparseTensor):
        return tf.gather(value, rows)
    begins = tf.searchsorted(value.indices[:, 0], rows, side="left")
    ends = tf.searchsorted(value.indices[:, 0], rows, side="right")
    entries = tf.ragged.range(begins, ends)
    indices = tf.gather(value.indices, entries.flat_values)
    of_rows = tf.cast(entries.value_rowids(), tf.int64)[:, tf.newaxis]
    return tf.SparseTensor(
        tf.concat([of_rows, indices[:, 1:]], axis=1),
        tf.gather(value.values, entries.flat_values),
        tf.concat([tf.size(rows, tf.int64)[tf.newaxis], value.dense_shape[1:]], axis=0),
    )


def _in_windows(dataset: tf.data.Dataset, window: int) -> tf.data.Dataset:
    """Batches of `window` rows each; the last one may have fewer."""
    specs = tf.nest.flatten(dataset.element_spec)
    if all(
        isinstance(spec, tf.TensorSpec)
        and spec.shape.rank is not None
        and spec.shape[1:].is_fully_defined()
        for spec in specs
    ):
        return dataset.rebatch(window)  # Much faster, because it does not unbatch samples.
    return dataset.unbatch().ragged_batch(window)


def _in_order(features: Dict[str, _Tensor], labels: Any) -> Tuple[Dict[str, _Tensor], Any]:
    """Returns (features, labels) with checked numbers of rows and sorted sparse tensors."""
    flat = [value for value in tf.nest.flatten((features, labels)) if value is not None]
    counts = tf.stack([_count_rows(value) for value in flat])
    message = (
        "features and labels must have one row per sample, got different numbers of rows among "
        f"{', '.join(features)} and {len(flat) - len(features)} labels"
    )
    same = tf.debugging.assert_equal(counts, counts[:1], message=message)
    with tf.control_dependencies([same]):
        return tf.nest.map_structure(_with_sorted_entries, (features, labels))


def _with_sorted_entries(value: Optional[_Tensor]) -> Optional[_Tensor]:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.reorder(value)
    return None if value is None else tf.identity(value)


def _count_rows(value: _Tensor) -> tf.Tensor:
    """The number of rows of a dense, sparse or ragged tensor, int64 []."""
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int64)
    return tf.shape(value, tf.int64)[0]


def _groups(features: Sequence[_Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Sorts samples so that the samples of a group, whose rows are equal, follow each other.

    Returns:
      int64 [n], the sorted samples, with groups in the order of their first sample; and int64 [n],
      for each of them the first sample of its group.
    """
    group = _row_ids(tf.stack([_row_ids(feature) for feature in features], axis=1))
    count = tf.size(group, tf.int64)
    samples = tf.range(count)
    # All numbers to sort are distinct, so the order is unique.
    order = tf.sort(group * count + samples) % tf.maximum(count, 1)
    first = tf.math.unsorted_segment_min(samples, group, count)
    return order, tf.gather(first, tf.gather(group, order))


def _row_ids(value: _Tensor) -> tf.Tensor:
    """Numbers distinct rows from 0 in the order of their first occurrence, int64 [n]."""
    if isinstance(value, tf.SparseTensor):
        entries = tf.concat([value.indices[:, 1:], _row_ids(value.values)[:, tf.newaxis]], axis=1)
        value = tf.RaggedTensor.from_value_rowids(
            _row_ids(entries), value.indices[:, 0], nrows=value.dense_shape[0]
        )
    if isinstance(value, tf.RaggedTensor):
        # Ids are not negative, so -1 marks the end of a row.
        value = value.with_values(_row_ids(value.values)).to_tensor(-1)
    if value.dtype.is_floating or value.dtype.is_complex:
        # Compares bits: NaN equals itself, and 0.0 differs from -0.0.
        kinds = {2: tf.int16, 4: tf.int32, 8: tf.int64, 16: tf.int64}
        value = tf.bitcast(value, kinds[value.dtype.size])
    elements = tf.unique(tf.reshape(value, [-1]), tf.int64).idx
    if value.shape.rank == 1:
        return elements
    rows = tf.reshape(elements, [tf.shape(value)[0], tf.reduce_prod(tf.shape(value)[1:])])
    return tf.raw_ops.UniqueV2(x=rows, axis=[0], out_idx=tf.int64).idx


class _Sides(NamedTuple):
    """Names of the features of the user and of the candidate, and of the key."""

    user: List[str]
    item: List[str]
    key: List[str]

    @classmethod
    def of(
        cls,
        features: Mapping[str, tf.TypeSpec],
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
                        f"{side} must name features of the dataset, got {name!r}; there are "
                        f"{', '.join(map(repr, features))}"
                    )
            if side != "key" and not names:
                raise ValueError(f"{side} must name at least one feature, got none; name one")
        both = sorted(set(user) & set(item))
        if both:
            raise ValueError(
                f"a feature must be in user or in item, got {both[0]!r} in both; remove one"
            )
        if ITEM_SIZE in (*user, *item):
            raise ValueError(
                f"features must leave the name {ITEM_SIZE!r} to the number of samples, got a "
                "feature of that name; rename it"
            )
        return cls(list(user), list(item), list(key))


def _features_of(spec: Any) -> Tuple[Mapping[str, tf.TypeSpec], bool]:
    """Returns the specs of the features of a dataset's element, and whether it has labels."""
    has_labels = isinstance(spec, tuple)
    if has_labels and len(spec) != 2:
        raise TypeError(
            f"dataset must have elements features or (features, labels), got a tuple of "
            f"{len(spec)}; map it first"
        )
    features = spec[0] if has_labels else spec
    if not isinstance(features, Mapping):
        raise TypeError(
            f"dataset must have features as a dict of name to tensor, got {features!r}; map it "
            "first"
        )
    for name, feature in features.items():
        _check_rows(f"feature {name!r}", feature)
    return features, has_labels


def _check_rows(what: str, spec: tf.TypeSpec) -> None:
    if getattr(spec, "shape", tf.TensorShape([])).rank == 0:
        raise TypeError(
            f"{what} must be a tensor with rows on axis 0, got {spec!r}; batch the dataset first, "
            "for example with dataset.batch(512)"
        )
