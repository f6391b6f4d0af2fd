# SPDX-License-Identifier: Apache-2.0
"""A resource that threads use while another thread replaces it."""

import contextlib
import threading
from typing import Any, Generic, Iterator, Optional, TypeVar

_Resource = TypeVar("_Resource")


class _Counted(Generic[_Resource]):
    """A resource and the number of its users."""

    def __init__(self, resource: _Resource) -> None:
        self.resource = resource
        self.users = 0


class Replaceable(Generic[_Resource]):
    """Holds a resource with a method ``close``, which is called after its last use.

    Each use sees one resource from its beginning to its end. ``replace`` does not wait for uses of
    the previous resource: the last of them closes it.

    Args:
      resource: The first resource.
      name: Its name in errors.
    """

    def __init__(self, resource: _Resource, name: str) -> None:
        self._name = name
        self._current: Optional[_Counted[_Resource]] = _Counted(resource)
        self._changed = threading.Condition()
        self._unclosed = 1

    @contextlib.contextmanager
    def use(self) -> Iterator[_Resource]:
        """Yields the current resource.

        Raises:
          RuntimeError: It is closed.
        """
        with self._changed:
            used = self._current
            if used is None:
                raise RuntimeError(f"{self._name} is closed")
            used.users += 1
        try:
            yield used.resource
        finally:
            with self._changed:
                used.users -= 1
            self._close_if_unused(used)

    def replace(self, resource: _Resource) -> None:
        """Makes the next uses see another resource.

        Raises:
          RuntimeError: It is closed. Closes the other resource, too.
        """
        with self._changed:
            previous = self._current
            if previous is not None:
                self._current = _Counted(resource)
                self._unclosed += 1
        if previous is None:
            _close(resource)
            raise RuntimeError(f"{self._name} is closed")
        self._close_if_unused(previous)

    def close(self) -> None:
        """Ends the uses: waits for those that have begun, and closes the resource. Idempotent."""
        with self._changed:
            last, self._current = self._current, None
        if last is not None:
            self._close_if_unused(last)
        with self._changed:
            self._changed.wait_for(lambda: not self._unclosed)

    def _close_if_unused(self, counted: "_Counted[_Resource]") -> None:
        with self._changed:
            # -1: another thread closes it.
            if counted is self._current or counted.users != 0:
                return
            counted.users = -1
        try:
            _close(counted.resource)
        finally:
            with self._changed:
                self._unclosed -= 1
                self._changed.notify_all()


def _close(resource: Any) -> None:
    resource.close()
