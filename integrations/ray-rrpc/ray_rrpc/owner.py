"""The owner's side: arrays that this process holds for Ray, and the service that other processes fetch them from."""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any

import ray
from numpy.typing import NDArray

import rrpc

from .certificates import certificates

__all__ = ["FETCH", "Owner", "owner", "whoami"]

FETCH = "ray.Tensors.fetch"


@rrpc.service(name="ray.Tensors")
class Tensors:
    """Lists of arrays by key. A key can't be guessed: only Ray's metadata tells it."""

    def __init__(self) -> None:
        self.lists: dict[str, list[NDArray[Any]]] = {}

    @rrpc.method(idempotent=True)
    def fetch(self, key: str, first: int, count: int) -> list[rrpc.Borrowed[NDArray[Any]]]:
        """The arrays of a list from number ``first`` on, ``count`` of them, lent to receivers that borrow."""
        arrays = self.lists.get(key)
        if arrays is None:
            raise rrpc.NotFound("the owner doesn't hold these arrays: all references to them were dropped")
        return arrays[first : first + count]


class Owner:
    """Holds arrays until Ray frees them, and serves them from the first one on. One for each process."""

    def __init__(self) -> None:
        self._tensors = Tensors()
        self._server: rrpc.Server | None = None
        self._lock = threading.Lock()
        self._secret = secrets.token_hex(16)

    def hold(self, object_id: str, arrays: list[NDArray[Any]]) -> tuple[str, str]:
        """Keeps the arrays for fetching.

        Args:
            object_id: Ray's id of the object; a second call with the same id replaces the arrays.
            arrays: What the object consists of; they are not copied.

        Returns:
            The address to fetch from, and the key.

        Raises:
            TypeError: An array's items are objects, which have no bytes of their own.
            rrpc.Unavailable: The node's address can't be listened on.
        """
        for number, array in enumerate(arrays):
            if array.dtype.hasobject or array.dtype.kind == "T":
                raise TypeError(
                    f"array {number} of object {object_id} has dtype {array.dtype}, whose items are Python objects: "
                    "return it from a method without tensor_transport, or convert it to a dtype of fixed size"
                )
        with self._lock:
            if self._server is None:
                listen = f"rrpc://{ray.util.get_node_ip_address()}:0"  # type: ignore[no-untyped-call]
                self._server = rrpc.serve(
                    self._tensors, listen=listen, workers=2, builtin=False, **certificates()
                )
            key = f"{self._secret}.{object_id}"
            self._tensors.lists[key] = arrays
            return self._server.addresses[0], key

    def drop(self, key: str) -> None:
        """Lets the arrays of a key go, once the fetches of them that have begun are over; does nothing otherwise."""
        self._tensors.lists.pop(key, None)

    def held(self) -> int:
        """Number of objects held."""
        return len(self._tensors.lists)


def whoami() -> str:
    """Names this process in other processes' errors: its actor, pid and node."""
    context = ray.get_runtime_context()
    actor = context.get_actor_id()
    name = context.get_actor_name() if actor else ""
    who = f"actor {name or actor[:16]}" if actor else "the driver"
    return f"{who} (pid {os.getpid()}, node {context.get_node_id()[:16]})"


owner = Owner()
