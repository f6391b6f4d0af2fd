# SPDX-License-Identifier: Apache-2.0
"""The lists of a Saver that no save or restore needs: old checkpoints, collections to export."""

from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint import var_list as var_lists
from rec_estimator.checkpoint.retention import Retention


class SaverLists(tf.train.Saver):
    """``tf.compat.v1.train.Saver`` with a Retention, and without collections of tables alone."""

    _retention: Retention

    @property
    def last_checkpoints(self) -> List[str]:
        """Prefixes of the checkpoints that were not deleted, from oldest to newest."""
        return self._retention.prefixes

    def set_last_checkpoints(self, last_checkpoints: List[str]) -> None:
        """Sets the list of old checkpoints; this Saver never deletes them."""
        self.set_last_checkpoints_with_time([(prefix, np.inf) for prefix in last_checkpoints])

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: List[Tuple[str, float]]
    ) -> None:
        """Sets the list of old checkpoints and their times, in seconds since 1970."""
        self._retention.records = list(last_checkpoints_with_time)

    def export_meta_graph(
        self,
        filename: Optional[str] = None,
        collection_list: Optional[List[str]] = None,
        as_text: bool = False,
        export_scope: Optional[str] = None,
        *args: Any,
        **kwargs: Any,
    ) -> tf.MetaGraphDef:
        """Returns the MetaGraph as TensorFlow's Saver does, without collections of tables alone.

        Args:
          filename: Path of the file to write. None: none.
          collection_list: Names of collections. None: all that hold more than tables.
          as_text: Whether to write the file as text.
          export_scope: The name scope to export. None: all of the graph.
          *args, **kwargs: As in ``tf.compat.v1.train.Saver.export_meta_graph``.
        """
        if collection_list is None:
            graph = tf.get_default_graph()
            collection_list = var_lists.exported_collections(graph, export_scope or "")
        return super().export_meta_graph(
            filename, collection_list, as_text, export_scope, *args, **kwargs
        )
