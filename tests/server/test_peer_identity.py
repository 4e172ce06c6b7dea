"""The caller of a call as handlers see it, principals, and what is wrong with rules."""

import grp
import os
import pickle
import pwd
from typing import Any

import pytest

import rrpc

ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name


@rrpc.service
class Vault:
    @rrpc.method
    def open(self) -> str:
        return rrpc.context().peer

    @rrpc.method
    def knock(self) -> str:
        return rrpc.context().peer.kind


@pytest.fixture
def vault() -> Vault:
    return Vault()


def test_the_peer_says_who_it_is(address: str) -> None:
    found: list[rrpc.Peer] = []

    @rrpc.service
    class Who:
        @rrpc.method
        def who(self) -> str:
            found.append(rrpc.context().peer)
            return rrpc.context().peer  # a str like any other

    with rrpc.serve(Who(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        assert client.call("Who.who") == found[0]
    peer = found[0]
    assert isinstance(peer, str)
    assert type(peer) is rrpc.Peer
    if address.startswith("shm"):
        assert (peer.kind, peer.name, peer.uid, peer.gid) == ("process", ME, os.geteuid(), os.getegid())
        assert peer.pid == os.getpid()
        assert str(peer).startswith(f"pid {os.getpid()} uid {os.getuid()}")
        assert peer.identity == f"process:{ME}"
    else:
        assert (peer.kind, peer.name, peer.uid, peer.gid, peer.pid) == ("anonymous", "", None, None, None)
        assert peer.identity == ""
    assert (peer.dns_names, peer.uris, peer.subject, peer.token) == ((), (), "", "")
    with pytest.raises(AttributeError, match="can't be changed"):
        peer.uid = 0
    copied = pickle.loads(pickle.dumps(peer))
    assert (copied, copied.kind, copied.uid, copied.identity) == (peer, peer.kind, peer.uid, peer.identity)


def test_peers_of_certificates() -> None:
    from rrpc._call.peer import peer_of

    certificate = ("CN=worker,O=Example", ("worker.example.org",), ("spiffe://example.org/worker",))
    peer = peer_of("10.0.0.1:4711", (None, certificate), "batch")
    assert (peer, peer.kind, peer.name) == ("10.0.0.1:4711", "certificate", "worker.example.org")
    assert (peer.subject, peer.dns_names, peer.uris) == certificate
    assert peer.identity == "certificate:worker.example.org,token:batch"
    assert peer_of("x", (None, ("CN=a", (), ()))).name == "CN=a"
    with pytest.raises(ValueError, match="kind must be"):
        rrpc.Peer("x", kind="root")


def test_permits() -> None:
    rules = rrpc.Authorization(
        {
            "Vault": [f"user:{ME}", f"group:{MY_GROUP}", "gid:70"],
            "Vault.open": ["dns:*.example.org", "spiffe://example.org/ml/*", "token:batch"],
            "rrpc.*": ["authenticated"],
        }
    )
    me = rrpc.Peer(kind="process", uid=os.getuid(), gid=os.getgid())
    stranger = rrpc.Peer(kind="process", uid=3_999_999_999, gid=3_999_999_999)
    worker = rrpc.Peer(kind="certificate", dns_names=("a.example.org",))
    trainer = rrpc.Peer(kind="certificate", uris=("spiffe://example.org/ml/train",))
    assert [rules.permits("Vault.knock", one) for one in (me, stranger, worker, rrpc.Peer())] == [
        True,
        *[False] * 3,
    ]
    assert [rules.permits("Vault.open", one) for one in (me, worker, trainer)] == [False, True, True]
    assert rules.permits("Vault.knock", rrpc.Peer(kind="process", uid=3_999_999_999, gid=70))
    assert rules.permits("Vault.open", stranger.with_token("batch"))
    assert not rules.permits("Vault.open", stranger.with_token("other"))
    assert [rules.permits("rrpc.Health.check", one) for one in (stranger, rrpc.Peer())] == [True, False]
    assert not rules.permits("Other.thing", me)
    with pytest.raises(TypeError, match=r"an rrpc\.Peer"):
        rules.permits("Vault.open", "root")  # type: ignore[arg-type]


# What is wrong


@pytest.mark.parametrize(
    ("principal", "says"),
    [
        ("alice", "there is no principal 'alice': there are any, authenticated, same-user, user:NAME"),
        ("", "there is no principal ''"),
        ("User:alice", "there is no principal 'User:alice'"),
        ("user:", "needs a name after the colon, as in user:alice"),
        ("uid:root", "needs a number from 0 to 4294967294, as in uid:1000"),
        ("uid:-1", "needs a number"),
        ("gid:4294967295", "needs a number"),
        ("dns:", "is no DNS name, as in dns:worker.example.org"),
        ("dns:a.*.org", "is no DNS name"),
        ("dns:*", "is no DNS name"),
        ("spiffe://Example.org/x", "is no SPIFFE id: write spiffe://DOMAIN/PATH"),
        ("spiffe://example.org/*/x", "is no SPIFFE id"),
        (7, "7 is no principal, which is a str"),
    ],
)
def test_bad_principals(principal: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"Vault\.open") as caught:
        rrpc.Authorization({"Vault.open": [principal]})
    assert says in str(caught.value)
    with pytest.raises(ValueError, match="test_bad_principals") as caught:

        @rrpc.method(allow=[principal])
        def broken(self: Any) -> None: ...

    assert says in str(caught.value)


def test_bad_rules(vault: Vault) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (["any"], TypeError, "rules must be a dict"),
        ({"Vault": "any"}, TypeError, "Vault: allow takes a list of principals"),
        ({3: ["any"]}, TypeError, "a rule's name is a str"),
        ({"Vault.": ["any"]}, ValueError, "'Vault.' is no service nor method"),
        ({"a b": ["any"]}, ValueError, "is no service nor method"),
        (
            {"Vault": ["user:no-such-user"]},
            ValueError,
            "Vault: user:no-such-user: this host has no user of that name",
        ),
        ({"Vault": ["group:no-such-group"]}, ValueError, "this host has no group of that name"),
    ]
    for rules, kind, says in wrong:
        with pytest.raises(kind, match=says):
            rrpc.Authorization(rules)
    server = rrpc.Server(vault)
    for rules, says in (
        ({"Valt": ["any"]}, "Valt: there is no service or method of that name here; did you mean Vault?"),
        ({"Vault.opn": ["any"]}, r"Vault has no method 'opn'; did you mean Vault.open\?"),
        ({"lab.*": ["any"]}, "no service or method of that name"),
        (
            {"Vault": ["token:batch"]},
            "token:batch names the subject of a token, but this server has no interceptor",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            server.authorize(rrpc.Authorization(rules))
    assert server.authorization is None
    with pytest.raises(TypeError, match=r"must be an rrpc\.Authorization"):
        server.authorize({"Vault": ["any"]})  # type: ignore[arg-type]
    rrpc.Server(vault, builtin=False).authorize(rrpc.Authorization({"rrpc.Health": ["any"]}))
    with pytest.raises(TypeError, match="allow takes a list"):
        rrpc.service(allow="any")(Vault)

    @rrpc.service
    class Strange:
        @rrpc.method(allow=["user:no-such-user"])
        def method(self) -> None: ...

    with pytest.raises(
        ValueError, match=r"allow of Strange.method\(\): user:no-such-user: this host has no user"
    ):
        rrpc.Server(Strange())
