"""Services as Ray actors: placed and restarted by Ray, found by rrpc's clients under one target."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address, list_named_actors

import rrpc

__all__ = ["Replicas", "serve"]

SCHEME = "rrpc+ray"
NAMESPACE = "rrpc"
ANSWER_SECONDS = 1.0
"""How long a replica may take to tell its address; one that takes longer is left out."""
RESOLVE_SECONDS = 2.0
"""How often clients look for replicas that Ray has started again."""
GONE_SECONDS = 5.0


class Replica:
    """Serves one instance of a service, as long as its actor lives."""

    def __init__(
        self, service: Callable[..., object], args: Any, kwargs: Any, options: Mapping[str, Any]
    ) -> None:
        listen = f"rrpc://{get_node_ip_address()}:0"  # type: ignore[no-untyped-call]
        self._server = rrpc.serve(service(*args, **kwargs), listen=listen, **options)

    def address(self) -> str:
        """Returns the address that the server listens on."""
        return self._server.addresses[0]

    def drain(self, grace: float) -> bool:
        """Refuses new calls and finishes those that run, for ``grace`` seconds at most."""
        return self._server.drain(grace)


REPLICA: Any = ray.remote(Replica)


class Replicas:
    """Replicas of a service. As a context manager it stops them at the end.

    Attributes:
        name: What they are called together.
        target: What clients are given in place of an address, in any process of the cluster that imports ray_rrpc.
    """

    def __init__(self, name: str, actors: list[Any]) -> None:
        self.name = name
        self.target = f"{SCHEME}://{name}"
        self._actors = actors

    def addresses(self) -> list[str]:
        """Addresses of the replicas that answer now."""
        return _answers(self._actors)

    def stop(self, grace: float = 5.0) -> None:
        """Lets running calls end, for ``grace`` seconds at most, and ends the replicas. Stopping twice does nothing."""
        actors, self._actors = self._actors, []
        if not actors or not ray.is_initialized():
            return
        drained = [actor.drain.remote(grace) for actor in actors]
        ray.wait(drained, num_returns=len(drained), timeout=grace + ANSWER_SECONDS)
        for actor in actors:
            ray.kill(actor, no_restart=True)
        end = time.monotonic() + GONE_SECONDS
        while _names(self.name) and time.monotonic() < end:  # until then Ray refuses the name to others
            time.sleep(0.02)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def serve(
    service: Callable[..., object],
    *args: Any,
    replicas: int = 2,
    name: str | None = None,
    timeout: float = 60.0,
    actor_options: Mapping[str, Any] | None = None,
    server_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Replicas:
    """Serves a service from several Ray actors, which Ray places on its nodes and starts again when they die.

    Args:
        service: The service's class, or what makes an instance; called in each replica with ``args`` and ``kwargs``.
        replicas: Number of actors.
        name: What clients ask for; the class's name by default.
        timeout: Seconds until all of them must serve.
        actor_options: Ray's options of an actor: ``num_cpus``, ``resources``, ``scheduling_strategy``, ... The
            replicas are spread over the nodes unless these say otherwise.
        server_options: Options of each ``rrpc.Server``: ``workers``, ``max_queue``, ...

    Returns:
        The replicas; their ``target`` is for clients: ``NearestClient(replicas.target, policy="round_robin")``.

    Raises:
        rrpc.AlreadyExists: Replicas of that name are there.
        rrpc.Unavailable: A replica failed while it started; the text has why.
        rrpc.DeadlineExceeded: Not all served in time, say because no node has room.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: want at least 1")
    called = str(name or getattr(service, "__name__", "service"))
    options = {"max_restarts": -1, "scheduling_strategy": "SPREAD", **(actor_options or {})}
    started = Replicas(called, [])
    try:
        for number in range(replicas):
            own = {**options, "name": f"{called}/{number}", "namespace": NAMESPACE}
            actor = REPLICA.options(**own).remote(service, args, kwargs, dict(server_options or {}))
            started._actors.append(actor)
        _wait_served(started, timeout)
    except BaseException as error:
        started.stop(grace=0.0)
        if isinstance(error, ValueError) and "name" in str(error):
            raise rrpc.AlreadyExists(
                f"replicas called {called!r} are there: stop them, or give name="
            ) from error
        raise
    return started


def _wait_served(replicas: Replicas, timeout: float) -> None:
    pending = [actor.address.remote() for actor in replicas._actors]
    ready, late = ray.wait(pending, num_returns=len(pending), timeout=timeout)
    try:
        ray.get(ready)
    except RayError as error:
        raise rrpc.Unavailable(f"a replica of {replicas.name!r} failed while it started: {error}") from error
    if late:
        raise rrpc.DeadlineExceeded(
            f"{len(late)} of {len(pending)} replicas of {replicas.name!r} don't serve after {timeout} s: "
            "does a node have what they ask for?"
        )


def _answers(actors: list[Any]) -> list[str]:
    """Addresses of those that answer in time, in their order."""
    asked = [actor.address.remote() for actor in actors]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS) if asked else ([], [])
    addresses = []
    for ref in asked:
        if ref in ready:
            try:
                addresses.append(ray.get(ref))
            except RayError:
                continue  # it dies, or is being started again
    return addresses


def _names(name: str) -> list[str]:
    """Names of the actors of a deployment that Ray knows."""
    entries: list[Any] = list_named_actors(all_namespaces=True)
    found = [str(e["name"]) for e in entries if e["namespace"] == NAMESPACE]
    return sorted(one for one in found if one.rpartition("/")[0] == name)


def _actor(name: str) -> Any:
    """The actor of that name, or None when it has just gone."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError:
        return None


class Finder:
    """Resolves ``rrpc+ray://NAME``: asks the replicas themselves."""

    period = RESOLVE_SECONDS

    def __call__(self, target: str) -> list[str]:
        if not ray.is_initialized():
            raise rrpc.FailedPrecondition(
                f"{target}: this process isn't connected to Ray: call ray.init first"
            )
        names = _names(target.partition("://")[2])
        if not names:
            raise rrpc.Unavailable(f"{target}: Ray has no replicas of that name")
        addresses = _answers([actor for name in names if (actor := _actor(name)) is not None])
        if not addresses:
            raise rrpc.Unavailable(
                f"{target}: none of {len(names)} replicas answers; Ray may be starting them again"
            )
        return addresses


rrpc.register_resolver(SCHEME, Finder())
