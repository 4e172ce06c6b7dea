"""Policies of servers: they say who may call what."""

# Rules are compiled where they are set. The core's threads apply them to calls without running Python, but for
# `why_denied`, which an interceptor asks.

from __future__ import annotations

import fnmatch
import grp
import os
import pwd
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rrpc import _core
from rrpc._call.peer import Peer
from rrpc._interface.principals import Principal, parse_principal, principal_texts
from rrpc._options import did_you_mean

_Compiled = list[tuple[str, str | int]]


class PolicyError(ValueError):
    """Reports a bad rule of a policy; ``rule`` is its name."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"{rule}: {why}" if rule else why)
        self.rule = rule
        self.why = why


class Authorization:
    """Says who may call which services and methods. Calls that no rule permits are refused with PermissionDenied.

    A rule's name is a service (``Nearest``, ``lab.search.Nearest``), a method (``Nearest.search``), or a pattern of
    either with ``*`` and ``?``. The most specific rule that matches a method decides: an exact name before a pattern, a
    method before its service, then the pattern with the most characters besides ``*`` and ``?``; of equal ones the
    first. The services that every server has are ``rrpc.Health``, ``rrpc.Reflection`` and ``rrpc.Stats``.

    An ``allow`` in the code restricts a method further: both must permit a call.

    Args:
        rules: For each rule's name its principals: ``{"Nearest": ["group:ml"], "rrpc.Health": ["any"]}``. An empty
            list lets nobody in.

    Raises:
        TypeError: ``rules`` isn't a mapping, or a rule isn't a list.
        ValueError: A name or a principal has no such form, or this host has no user or group of that name.
    """

    def __init__(self, rules: Mapping[str, Iterable[str]]) -> None:
        if not isinstance(rules, Mapping):
            raise TypeError(f"rules must be a dict of lists of principals, not {rules!r:.80}")
        self.rules: dict[str, tuple[str, ...]] = {}
        """The rules as given."""
        self._compiled: list[tuple[str, _Compiled]] = []
        for name, given in rules.items():
            _check_name(name)
            try:
                self.rules[name] = principal_texts(given, name)
                self._compiled.append((name, _compile(self.rules[name])))
            except ValueError as error:
                raise PolicyError(name, str(error).removeprefix(f"{name}: ")) from None
        self._policy = _core.Policy({}, self._compiled, True)

    def permits(self, method: str, peer: Peer) -> bool:
        """Returns whether the rules let a peer call a method. An ``allow`` isn't looked at.

        Args:
            method: The service's name, a dot and the method's.
            peer: Who would call; ``rrpc.context().peer`` in a handler.

        Raises:
            TypeError: The peer isn't an ``rrpc.Peer``.
        """
        if not isinstance(peer, Peer):
            raise TypeError(f"peer must be an rrpc.Peer, not {peer!r:.80}")
        process = certificate = None
        if peer.kind == "process" and peer.uid is not None:
            gid = _NO_GROUP if peer.gid is None else peer.gid
            process = (peer.pid or 0, peer.uid, gid)
        elif peer.kind == "certificate":
            certificate = (peer.subject, peer.dns_names, peer.uris)
        return self._policy.permits(method, process, certificate, peer.token)

    def check_names(self, methods: Sequence[str]) -> None:
        """Raises ValueError for a rule that matches none of these methods, ``Service.method``: it has a typo."""
        services = sorted({method.rpartition(".")[0] for method in methods})
        known = [*methods, *services, *_BUILTIN]
        for name in self.rules:
            if any(fnmatch.fnmatchcase(one, name) for one in known):
                continue
            service, _, method = name.rpartition(".")
            if service in services:
                own = [one for one in methods if one.rpartition(".")[0] == service]
                why = f"{service} has no method {method!r}{did_you_mean(name, own)}"
            else:
                why = f"there is no service or method of that name here{did_you_mean(name, known)}"
            raise PolicyError(name, why)

    def __repr__(self) -> str:
        return f"rrpc.Authorization({self.rules!r})"


_BUILTIN = ("rrpc.Health", "rrpc.Reflection", "rrpc.Stats")  # a server may leave them out
_NO_GROUP = 0xFFFF_FFFF  # which the kernel gives no process


def compile_policy(
    allowed: Mapping[str, Sequence[str]], authorization: Authorization | None, tokens: bool
) -> _core.Policy | None:
    """Returns the core's policy for the code's ``allow`` lists and the rules; None if there are neither.

    ``tokens`` says whether the server has an interceptor that names callers by their tokens. Raises ValueError where it
    has none and principals ask for tokens, and where this host has no user or group of that name.
    """
    if not allowed and authorization is None:
        return None
    of_methods: dict[str, Any] = {}
    for name, texts in allowed.items():
        try:
            of_methods[name] = _compile(texts)
        except ValueError as error:  # noqa: PERF203
            raise PolicyError(f"allow of {name}()", str(error)) from None
    rules = None if authorization is None else authorization._compiled
    if not tokens:
        _refuse_tokens([*of_methods.items(), *(rules or ())])
    return _core.Policy(of_methods, rules, tokens)


def compile_clients(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a server with the principals of ``allow_clients`` as the core takes them.

    Where they name processes of other users, ``any_user`` is on too. Raises TypeError or ValueError for anything but
    a list of principals that a transport can prove.
    """
    given = options.get("allow_clients")
    if given is None:
        return options
    compiled = _compile(principal_texts(given, "allow_clients", "it"))
    if any(kind == "token" for kind, _ in compiled):
        raise ValueError("allow_clients: tokens come with calls, and prove nothing when a client connects")
    own = [("same-user", ""), ("uid", os.geteuid())]
    # Any but these two kinds may stand for processes of other users.
    others = any(one not in own and one[0] not in ("dns", "uri") for one in compiled)
    return options | {"allow_clients": compiled, "any_user": options.get("any_user", False) or others}


def log_denials(core: _core.Server) -> None:
    """Logs refused calls from now on: once for each method of a connection."""
    seen = weakref.ref(core)  # which holds the function until it is called

    def tell() -> None:
        core = seen()
        if core is None or core.stopped():
            return
        core.on_denials(tell)  # first: what is noted while this logs isn't lost
        import logging

        logger = logging.getLogger("rrpc.authorization")
        for text in core.take_denials():
            logger.warning("denied: %s", text)

    core.on_denials(tell)


def _refuse_tokens(rules: Iterable[tuple[str, _Compiled]]) -> None:
    for name, principals in rules:
        for kind, value in principals:
            if kind == "token":
                raise PolicyError(
                    name,
                    f"token:{value} names the subject of a token, but this server has no interceptor that checks "
                    "tokens, such as rrpc.interceptors.ServerToken",
                )


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f'a rule\'s name is a str such as "Nearest.search", not {name!r:.80}')
    parts = name.replace("*", "a").replace("?", "a").split(".")
    if not all(part.isidentifier() for part in parts):
        raise PolicyError(
            name, f"{name!r:.80} is no service nor method, such as Nearest, Nearest.search, lab.* or *"
        )


def _compile(texts: Iterable[str]) -> _Compiled:
    return [_resolved(text, parse_principal(text)) for text in texts]


# Names are looked up once, when the rule is set: later changes of users and groups aren't seen.
def _resolved(text: str, principal: Principal) -> tuple[str, str | int]:
    """Replaces the name of a user or a group by its number."""
    kind, value = principal
    try:
        if kind == "user":
            return "uid", pwd.getpwnam(str(value)).pw_uid
        if kind == "group":
            return "gid", grp.getgrnam(str(value)).gr_gid
    except (KeyError, ValueError):
        raise ValueError(f"{text}: this host has no {kind} of that name") from None
    return kind, value
