"""The tensor transport that Ray calls: owners describe what they hold, receivers fetch it by themselves."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from ray.experimental import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

import rrpc

from .arrays import array_of, check, device_of, tensor_of
from .owner import FETCH, owner, whoami
from .peers import Peers

__all__ = ["FetchFailed", "Held", "RrpcTransport", "register", "target"]

CALL_ARRAYS_MAX = 4096
"""Number of arrays that one call fetches."""

PUBLIC = "ray_rrpc"
"""Module by which pickles name what other processes are sent.

Where one thread imports the package and another one a module in it, Python breaks their deadlock by giving one of
them a half-made module. So all of them import the package.
"""

_peers = Peers()


class FetchFailed(RuntimeError):
    """The arrays of an object couldn't be fetched from their owner. The text names the object, the owner and why."""

    __module__ = PUBLIC


@dataclass
class Held(TensorTransportMetadata):
    """Tells a receiver which address has the arrays, and under which key."""

    __module__ = PUBLIC

    address: str = ""
    key: str = ""
    owner: str = ""


@dataclass
class Fetch(FetchRequest):
    """A fetch under way: a future for each slice of the list, all with one deadline."""

    held: Held
    borrow: bool
    calls: list[rrpc.Future[Any]] = field(default_factory=list)
    leased: bool = False

    def begin(self, timeout: float) -> None:
        """Calls the owner: for slices of the list or, with targets in ``tensors``, for each array by itself."""
        count, key = len(self.held.tensor_meta), self.held.key
        step = 1 if self.tensors else CALL_ARRAYS_MAX
        outs = list(map(array_of, self.tensors)) if self.tensors else [None] * -(-count // step)
        if not outs:
            return
        client = _peers.lend(self.held.address)
        self.leased = True
        for number, out in enumerate(outs):
            call = client.start(FETCH, key, number * step, step, timeout=timeout, out=out, borrow=self.borrow)
            self.calls.append(call)

    def result(self, timeout: float | None) -> list[Any]:
        """The tensors, checked against the metadata; the arguments' and errors' rules are those of rrpc's futures."""
        end = None if timeout is None else monotonic() + timeout
        arrays: list[NDArray[Any]] = []
        for call in self.calls:
            arrays += call.result(None if end is None else max(0.0, end - monotonic()))
        described = self.held.tensor_meta
        if len(arrays) != len(described):
            raise ValueError(f"expected {len(described)} arrays, got {len(arrays)}")
        for array, (shape, dtype) in zip(arrays, described, strict=True):
            check(array, shape, dtype)
        return self.tensors or [tensor_of(a, dtype) for a, (_, dtype) in zip(arrays, described, strict=True)]

    def failure(self, error: Exception) -> FetchFailed:
        """Ends the fetch, and says what happened.

        Raise it outside of the ``except``: Ray keeps an error, and all that its traceback and causes refer to, until
        a garbage collection.
        """
        error.with_traceback(None)  # it has this fetch, whose future has the error
        self.end(failed=True)
        return FetchFailed(
            f"object {self.obj_id} couldn't be fetched from its owner, {self.held.owner} at {self.held.address}: "
            f"{type(error).__name__}: {error}"
        )

    def end(self, failed: bool = False) -> None:
        """Cancels what is still under way and gives the connection back; ending twice does nothing.

        A connection over which a fetch failed isn't kept: its owner may be gone for good.
        """
        calls, self.calls = self.calls, []
        for call in calls:
            call.cancel()
        if self.leased:
            self.leased = False
            _peers.give_back(self.held.address, keep=not failed)

    def __del__(self) -> None:
        self.end()


class RrpcTransport(TensorTransportManager):
    """Moves numpy arrays, or torch tensors in the processor's memory, over rrpc. Ray makes one in each process."""

    __module__ = PUBLIC
    name = "RRPC"
    timeout = 30.0
    """Seconds that one fetch may take. Ray's own limit is 60 s (``RAY_rdt_fetch_fail_timeout_milliseconds``)."""
    borrow = False
    """Whether arrays arrive read-only, in their owner's memory where that can be lent."""

    def __init__(self) -> None:
        self._fetches: weakref.WeakValueDictionary[int, Fetch] = weakref.WeakValueDictionary()

    def tensor_transport_backend(self) -> str:
        return self.name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Held:
        """Owner: holds the arrays of an object until ``garbage_collect``, and tells where they are."""
        shapes = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        if not rdt_object:
            return Held(shapes, "cpu")
        address, key = owner.hold(obj_id, [array_of(tensor) for tensor in rdt_object])
        return Held(shapes, device_of(rdt_object[0]), address, key, whoami())

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]
    ) -> None:
        """Owner: lets the arrays go."""
        owner.drop(cast(Held, tensor_transport_meta).key)

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Receiver: begins to fetch the arrays of an object, into ``target_buffers`` where there are some."""
        fetch = Fetch(obj_id, target_buffers or [], cast(Held, tensor_transport_metadata), self.borrow)
        self._fetches[id(fetch)] = fetch
        try:
            fetch.begin(self.timeout)
            return fetch
        except rrpc.RpcError as error:
            failure = fetch.failure(error)
        raise failure

    def wait_fetch_complete(self, fetch_request: FetchRequest, timeout: float = -1) -> list[Any]:
        """Receiver: the tensors of a fetch.

        Args:
            fetch_request: What ``fetch_multiple_tensors`` gave.
            timeout: Seconds to wait; below 0 as long as the fetch may take.

        Raises:
            TimeoutError: It isn't complete yet.
            FetchFailed: The owner is gone, silent, or has let the arrays go.
        """
        fetch = cast(Fetch, fetch_request)
        try:
            return fetch.result(None if timeout < 0 else timeout)
        except (rrpc.RpcError, ValueError) as error:
            failure = fetch.failure(error)
        finally:
            fetch.end()
        raise failure

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Receiver: fetches the arrays of an object."""
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(
                obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
            )
        )

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("rrpc is a one-sided transport: receivers fetch, owners send nothing")

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Receiver: cancels the fetches of an object that are under way."""
        for fetch in list(self._fetches.values()):
            if fetch.obj_id == obj_id:
                for call in fetch.calls:
                    call.cancel()


def register(
    name: str = "rrpc", data_type: type = np.ndarray, timeout: float = 30.0, borrow: bool = False
) -> None:
    """Makes the transport known to Ray, in this process and in the actors that it makes from then on.

    An actor that Ray may restart, or that names the transport in a ``ray.put`` of its own, calls it in its ``__init__``
    too: Ray tells only an actor's first process of transports, and may call its methods before that. Registering a name
    again does nothing.

    Args:
        name: What methods give as ``tensor_transport=``.
        data_type: What it moves: ``numpy.ndarray``, or ``torch.Tensor`` under another name.
        timeout: Seconds that a fetch may take.
        borrow: Have arrays arrive read-only. On one host those that the owner has made by ``rrpc.empty``, ``zeros``,
            ``like`` or ``snapshot`` stay in its memory, which is lent; all others are copied. The owner must never
            change such an array once it was returned: a receiver may hold it longer than Ray does.

    Raises:
        ValueError: The timeout isn't positive, or torch tensors are to be borrowed, which can't be read-only.
    """
    if not timeout > 0:
        raise ValueError(f"a timeout of {timeout} s: want more than 0")
    if borrow and data_type is not np.ndarray:
        raise ValueError(
            f"borrowed arrays are read-only, which {data_type.__name__} can't be: want numpy.ndarray"
        )
    # Ray ships the class to actors and makes it without arguments: its attributes are what it is told.
    options = {"name": name.upper(), "timeout": timeout, "borrow": borrow, "__module__": PUBLIC}
    transport = type(f"{RrpcTransport.__name__}_{name}", (RrpcTransport,), options)
    with contextlib.suppress(ValueError):  # registered already
        register_tensor_transport(name, ["cpu"], transport, data_type)


class Target(np.ndarray):
    """An array that Ray takes as a target: it asks what only torch's tensors answer."""

    def is_contiguous(self) -> bool:
        return self.flags.c_contiguous


def target(array: NDArray[Any]) -> NDArray[Any]:
    """A view of an array for ``ray.experimental.set_target_for_ref``: ``ray.get`` then writes into that memory.

    Keep it until then: Ray holds a target weakly, and fetches into new memory when it is gone.

    Raises:
        ValueError: The array isn't writable and C-contiguous.
    """
    if not array.flags.writeable or not array.flags.c_contiguous:
        raise ValueError("a target must be a writable, C-contiguous array")
    return array.view(Target)
