# SPDX-License-Identifier: Apache-2.0
"""Draws candidates for training two towers: the items of the batch, and some of a catalog."""

from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import tensorflow as tf

_LOG_Q = "item_log_q"


class CandidateSampler:
    """Adds candidates to the batches of a dataset: their own items, then some of a catalog.

    The softmax over the candidates estimates the softmax over the catalog if the log of how often a
    candidate is expected is subtracted from its logit (Yi et al., 2019, Sampling-Bias-Corrected
    Neural Modeling for Large Corpus Item Recommendations, https://doi.org/10.1145/3298689.3346996).
    Candidates beyond those of the batch give items that nobody chooses a place among the negatives
    (Yang et al., 2020, Mixed Negative Sampling, https://doi.org/10.1145/3366424.3386195).

    Args:
      catalog: The columns of all items, [items, …] by name, one row for each item.
      counts: [items]. How often each item is the right one in the data.
      item: The column of the ids, int64 [items].
      negatives: How many items are drawn for each batch, with replacement, each as likely.
      seed: The candidates depend on it and on the number of the batch alone.

    Raises:
      ValueError: There is no such column, an id is there twice, columns have different lengths,
        there is no count, or negatives is below 0.

    Example:
      >>> catalog = {"item": np.array([10, 20, 30]), "price": np.array([1.0, 2.0, 3.0])}
      >>> sampler = rec.inputs.CandidateSampler(catalog, [5, 1, 0], item="item", negatives=2)
      >>> rows = tf.data.Dataset.from_tensors({"user": [7], "item": np.array([20])})
      >>> features, right = sampler.add_to(rows).element_spec
      >>> sorted(features), right.dtype
      (['item', 'item_log_q', 'price', 'user'], tf.int64)
    """

    def __init__(
        self,
        catalog: Mapping[str, Any],
        counts: Any,
        *,
        item: str,
        negatives: int,
        seed: int = 0,
    ) -> None:
        columns = {name: np.asarray(values) for name, values in catalog.items()}
        counts = np.asarray(counts)
        if item not in columns:
            raise ValueError(f"item must be a column of catalog, got {item!r}; name its ids")
        ids = columns[item]
        lengths = {name: len(values) for name, values in columns.items()}
        if set(lengths.values()) != {len(counts)}:
            raise ValueError(
                f"catalog must have one row for each of the {len(counts)} counts, got {lengths}; "
                "give every item a row"
            )
        if len(np.unique(ids)) != len(ids):
            raise ValueError(f"catalog must have each item once, got {item!r} with repeated ids")
        if negatives < 0:
            raise ValueError(f"negatives must be at least 0, got {negatives}; 0 draws none")
        if not counts.sum() > 0 or counts.min() < 0:
            raise ValueError("counts must be at least 0, with one above 0; count the right items")
        order = np.argsort(ids)
        self._columns = {name: values[order] for name, values in columns.items()}
        self._counts, self._item = counts[order], item
        self._negatives, self._seed = negatives, seed

    def draw(self, ids: np.ndarray, number: int) -> Tuple[Dict[str, np.ndarray], np.ndarray]:
        """Returns the candidates of a batch.

        Args:
          ids: int64 [B], the items of the batch.
          number: The number of the batch.

        Returns:
          The columns of the candidates, [B + negatives, …] by name, those of the batch first; and
          the log of how often each is expected among so many draws, float32 [B + negatives].

        Raises:
          ValueError: An item is not in the catalog, or it is not counted and nothing is drawn.
        """
        all_ids = self._columns[self._item]
        own = np.minimum(np.searchsorted(all_ids, ids), len(all_ids) - 1)
        unknown = ids[all_ids[own] != ids]
        if len(unknown):
            raise ValueError(
                f"items of a batch must be in the catalog, got {unknown[0]}; add it to the catalog"
            )
        random = np.random.default_rng([self._seed, number])
        rows = np.concatenate([own, random.integers(0, len(all_ids), self._negatives)])
        share = self._counts[rows] / self._counts.sum()
        expected = len(ids) * share + self._negatives / len(all_ids)
        if not expected.all():
            raise ValueError(
                f"items of a batch must have counts above 0 without negatives, got 0 for "
                f"{all_ids[rows[expected == 0][0]]}; count it"
            )
        columns = {name: values[rows] for name, values in self._columns.items()}
        return columns, np.log(expected).astype(np.float32)

    def add_to(self, batches: tf.data.Dataset, first: int = 0) -> tf.data.Dataset:
        """Makes a dataset of (features, rows) from one of features with the ids of right items.

        Args:
          batches: Features by name. That of the ids is [B].
          first: The number of the first batch, if the ones before are skipped.

        Returns:
          The features, in which the columns of the catalog are those of the candidates, and
          ``item_log_q``, float32 [B + negatives]; and the right candidate of each row, int64 [B].
        """
        types = [tf.as_dtype(values.dtype) for values in self._columns.values()]

        def draw(ids: np.ndarray, number: np.int64) -> List[np.ndarray]:
            columns, log_q = self.draw(ids, int(number) + first)
            return [np.arange(len(ids)), log_q, *columns.values()]

        def add(number: tf.Tensor, features: Dict[str, Any]) -> Tuple[Dict[str, Any], tf.Tensor]:
            ids = features[self._item]
            right, log_q, *drawn = tf.numpy_function(
                draw, [ids, number], [tf.int64, tf.float32, *types]
            )
            users = tf.compat.dimension_value(ids.shape[0])
            count = None if users is None else users + self._negatives
            right.set_shape([users])
            log_q.set_shape([count])
            for (name, values), tensor in zip(self._columns.items(), drawn):
                tensor.set_shape([count, *values.shape[1:]])
                features = {**features, name: tensor}
            return {**features, _LOG_Q: log_q}, right

        return batches.enumerate().map(add)
