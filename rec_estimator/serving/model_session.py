# SPDX-License-Identifier: Apache-2.0
"""A session with a model that answers requests."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.serving.refreshable import REFRESH
from rec_estimator.serving.signature import Signature


class Refreshed(NamedTuple):
    """What a delta changed in a model.

    Attributes:
      step: The global step of the model.
      rows_written: The number of rows that were added or overwritten.
      rows_deleted: The number of rows that were deleted.
      variables_written: The number of dense variables that were overwritten.
      checkpoint: The name of the checkpoint that the model now has.
    """

    step: int
    rows_written: int
    rows_deleted: int
    variables_written: int
    checkpoint: str


class ModelSession:
    """A session and the signatures of its model. Any number of threads may call ``run`` at once.

    Args:
      session: The session, which this object owns.
      signatures: {name: signature}.
      definitions: {name: SignatureDef}, if the model is a SavedModel.
    """

    def __init__(
        self,
        session: tf.Session,
        signatures: Mapping[str, Signature],
        definitions: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._session = session
        self.signatures = dict(signatures)
        self.definitions = dict(definitions or {})

    def run(
        self,
        signature: Signature,
        features: Mapping[str, Any],
        outputs: Optional[Sequence[str]] = None,
        timeout_secs: Optional[float] = None,
    ) -> Dict[str, np.ndarray]:
        """Returns the outputs of a signature, all or the named ones.

        Raises:
          ValueError, TypeError: A feature does not fit, as in Signature.feed.
          tf.errors.DeadlineExceededError: It took longer than timeout_secs.
        """
        fetches = signature.outputs
        if outputs:
            fetches = {name: fetches[name] for name in outputs}
        options = None
        if timeout_secs is not None:
            options = tf.RunOptions(timeout_in_ms=max(1, round(timeout_secs * 1000)))
        found = self._session.run(fetches, signature.feed(features), options)
        return {name: _as_array(value) for name, value in found.items()}

    def refresh(self, delta: str) -> Refreshed:
        """Brings the model up to date with a delta, by its signature ``refresh``.

        Args:
          delta: The name of a delta; "": change nothing, and return what the model has.

        Raises:
          ValueError: The model has no such signature.
          tf.errors.OpError: The delta was refused; the model is as it was.
        """
        if REFRESH not in self.signatures:
            raise ValueError(
                f"the model must have the signature {REFRESH!r}, got {sorted(self.signatures)}; "
                "export it with refreshable=True"
            )
        result = self.run(self.signatures[REFRESH], {"delta": delta})
        step, written, deleted, variables, name = (result[n].item() for n in Refreshed._fields)
        return Refreshed(step, written, deleted, variables, name.decode())

    def close(self) -> None:
        """Ends the session and its tables."""
        self._session.close()


def _as_array(value: Any) -> Any:
    """A session returns a scalar of NumPy for an array without axes, and bytes for a string."""
    if isinstance(value, bytes):
        return np.array(value, object)
    return np.asarray(value) if isinstance(value, np.generic) else value


def load_saved_model(folder: str) -> ModelSession:
    """Loads a SavedModel of any kind that TensorFlow's sessions load.

    Raises:
      OSError: The folder has no SavedModel.
      tf.errors.OpError: The SavedModel is damaged.
    """
    graph = tf.Graph()
    session = tf.Session(graph=graph)
    try:
        with graph.as_default():
            meta_graph = tf.saved_model.load(
                session, [tf.saved_model.tag_constants.SERVING], folder
            )
            definitions = dict(meta_graph.signature_def)
            signatures = {name: _signature(each) for name, each in definitions.items()}
        graph.finalize()
    except BaseException:
        session.close()
        raise
    return ModelSession(session, signatures, definitions)


def _signature(definition: Any) -> Signature:
    """The tensors of a SignatureDef in the default graph."""
    inputs, outputs = (
        {
            name: tf.saved_model.utils.get_tensor_from_tensor_info(info)
            for name, info in each.items()
        }
        for each in (definition.inputs, definition.outputs)
    )
    return Signature(inputs, outputs)
