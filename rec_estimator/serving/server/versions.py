# SPDX-License-Identifier: Apache-2.0
"""The versions of models in folders: finds new ones, loads them, and replaces the old ones.

A model's folder has a folder for each version, whose name is a number, as exports make them. The
largest number is served, as TensorFlow Serving does by default.
"""

import contextlib
import os
import threading
import time
from typing import Callable, Dict, Iterator, Mapping, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator.serving.model_session import ModelSession, Refreshed
from rec_estimator.serving.replaceable import Replaceable

# The largest version that a request can name: an int64.
_LARGEST = 2**63 - 1

# Seconds before a version that failed to load is tried again.
_RETRY_SECS = 60

# The most ended versions of which a model keeps the state.
_ENDED = 10

# The states of TensorFlow Serving's ModelVersionStatus.
LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"


class Status(NamedTuple):
    """The state of a version, and the error that ended it."""

    state: str
    error: Optional[Exception] = None


class Version:
    """A loaded version.

    Attributes:
      number: The version.
      model: The model.
    """

    def __init__(self, number: int, model: ModelSession, on_close: Callable[[int], None]) -> None:
        self.number = number
        self.model = model
        self._on_close = on_close

    def close(self) -> None:
        """Frees the model."""
        self.model.close()
        self._on_close(self.number)


class ServedModel:
    """A model of which the newest version answers requests.

    Args:
      name: The name in requests.
      folder: The folder with the folders of versions.
      load: Loads the SavedModel in a folder.
    """

    def __init__(self, name: str, folder: str, load: Callable[[str], ModelSession]) -> None:
        self.name = name
        self._folder = folder
        self._load = load
        self._versions: Optional[Replaceable[Version]] = None
        self._lock = threading.Lock()
        self._statuses: Dict[int, Status] = {}
        self._retry_at: Dict[int, float] = {}

    @contextlib.contextmanager
    def use(self, number: Optional[int] = None) -> Iterator[Version]:
        """Yields the version that is served; it stays loaded meanwhile.

        Raises:
          tf.errors.NotFoundError: It is not the one with this number, or there is none.
        """
        asked = f"Latest({self.name})" if number is None else f"Specific({self.name}, {number})"
        not_found = tf.errors.NotFoundError(None, None, f"Servable not found for request: {asked}")
        if self._versions is None:
            raise not_found
        with self._versions.use() as version:
            if number not in (None, version.number):
                raise not_found
            yield version

    @property
    def served(self) -> Optional[int]:
        """The number of the version that answers, or None."""
        numbers = [number for number, each in self.statuses().items() if each.state == AVAILABLE]
        return max(numbers, default=None)

    def statuses(self) -> Dict[int, Status]:
        """The states of versions, by number."""
        with self._lock:
            return dict(self._statuses)

    def poll(self) -> None:
        """Loads the newest version, if it is not the served one. Logs what fails.

        Only one thread may call this.
        """
        try:
            numbers = self._list()
        except (OSError, tf.errors.OpError) as error:
            tf.logging.warning("model %r: %r cannot be listed: %s", self.name, self._folder, error)
            return
        if not numbers:
            return
        newest = max(numbers)
        if newest != self.served and time.monotonic() >= self._retry_at.get(newest, 0):
            self._replace(newest, numbers[newest])

    def refresh(self, delta: str) -> Refreshed:
        """Applies a delta to the version that is served, as ModelSession.refresh.

        Raises:
          tf.errors.NotFoundError: No version is served.
        """
        with self.use() as version:
            return version.model.refresh(delta)

    def close(self) -> None:
        """Waits for the requests that use the model, and frees it."""
        if self._versions is not None:
            self._versions.close()

    def _list(self) -> Dict[int, str]:
        """{number: folder} of the versions that are whole."""
        found = {}
        for name in (name.rstrip("/") for name in tf.io.gfile.listdir(self._folder)):
            folder = os.path.join(self._folder, name)
            is_version = name.isascii() and name.isdigit() and int(name) <= _LARGEST
            # A version that somebody copies to this place may not have its graph yet.
            if is_version and tf.saved_model.contains_saved_model(folder):
                found[int(name)] = folder
        return found

    def _replace(self, number: int, folder: str) -> None:
        self._set({number: Status(LOADING)})
        try:
            model = self._load(folder)
        except Exception as error:  # Any: the served version must go on answering.
            self._retry_at[number] = time.monotonic() + _RETRY_SECS
            self._set({number: Status(END, error)})
            tf.logging.error("model %r: version %d was not loaded: %s", self.name, number, error)
            return
        version = Version(number, model, lambda closed: self._set({closed: Status(END)}))
        # Together, so that at any time one version is available.
        changes = {each: Status(UNLOADING) for each in [self.served] if each is not None}
        changes[number] = Status(AVAILABLE)
        if self._versions is None:
            self._versions = Replaceable(version, f"model {self.name!r}")
            self._set(changes)
        else:
            self._set(changes)
            self._versions.replace(version)
        tf.logging.info("model %r: version %d is served", self.name, number)

    def _set(self, statuses: Dict[int, Status]) -> None:
        with self._lock:
            self._statuses.update(statuses)
            ended = [n for n, each in sorted(self._statuses.items()) if each.state == END]
            for old in ended[:-_ENDED]:
                del self._statuses[old]
                self._retry_at.pop(old, None)


class ServedModels:
    """All models of a server, and the thread that looks for their new versions.

    Args:
      models: The models.
      poll_secs: Seconds between two looks.
      on_poll: Called after each look.
    """

    def __init__(
        self, models: Mapping[str, ServedModel], poll_secs: float, on_poll: Callable[[], None]
    ) -> None:
        self._models = dict(models)
        self._poll_secs = poll_secs
        self._on_poll = on_poll
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)

    def find(self, name: str) -> ServedModel:
        """The model of a name.

        Raises:
          tf.errors.NotFoundError: There is none.
        """
        if name not in self._models:
            raise tf.errors.NotFoundError(
                None, None, f"Servable not found for request: Latest({name})"
            )
        return self._models[name]

    def served(self) -> Dict[str, Optional[int]]:
        """{name: number of the version that answers, or None}."""
        return {name: model.served for name, model in self._models.items()}

    def start(self) -> None:
        """Loads the newest versions, and looks for newer ones from now on."""
        self._poll()
        self._thread.start()

    def close(self) -> None:
        """Stops to look, and frees the models after their last requests."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for model in self._models.values():
            model.close()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_secs):
            self._poll()

    def _poll(self) -> None:
        for model in self._models.values():
            model.poll()
        self._on_poll()
