"""JSON Web Tokens at a server, made and checked by PyJWT."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest

import rrpc
from rrpc.interceptors import JwtTokens, ServerToken

SECRET = "a secret" * 8
OTHER = "another secret" * 5


@rrpc.service
class Who:
    @rrpc.method(allow=["token:batch"])
    def who(self) -> str:
        return rrpc.context().peer.token


Calling = Callable[[str], str]


@pytest.fixture
def call(address: str) -> Iterator[Calling]:
    tokens = JwtTokens(SECRET, algorithms=["HS256"], audience="rrpc", issuer="https://issuer.example")
    with (
        rrpc.serve(Who(), listen=address, interceptors=[ServerToken(tokens)]) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):

        def call_with(token: str) -> str:
            result: str = client.call("Who.who", metadata={"authorization": f"Bearer {token}"})
            return result

        yield call_with


def token(secret: str = SECRET, algorithm: str = "HS256", without: str = "", **claims: Any) -> str:
    usual = {"sub": "batch", "aud": "rrpc", "iss": "https://issuer.example", "exp": time.time() + 60}
    every = {name: value for name, value in {**usual, **claims}.items() if name != without}
    return jwt.encode(every, secret, algorithm=algorithm)


def unsigned() -> str:
    parts = ({"alg": "none", "typ": "JWT"}, jwt.decode(token(), options={"verify_signature": False}))
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


def changed() -> str:
    head, _, signature = token(sub="web").split(".")
    return ".".join((head, token().split(".")[1], signature))


def test_a_good_token(call: Calling) -> None:
    assert call(token()) == "batch"
    assert call(token(aud=["other", "rrpc"], nbf=time.time() - 5)) == "batch"
    with pytest.raises(rrpc.PermissionDenied, match="with the token of 'web'"):
        call(token(sub="web"))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: token(OTHER), "Signature verification failed"),
        (changed, "Signature verification failed"),
        (unsigned, "alg"),
        (lambda: token(algorithm="HS512"), "alg"),
        (lambda: token(exp=time.time() - 5), "expired"),
        (lambda: token(without="exp"), '"exp"'),
        (lambda: token(without="sub"), '"sub"'),
        (lambda: token(sub=""), "its claim 'sub' is no text"),
        (lambda: token(nbf=time.time() + 60), "not yet valid"),
        (lambda: token(aud="other"), "[Aa]udience"),
        (lambda: token(without="aud"), '"aud"'),
        (lambda: token(iss="https://evil.example"), "[Ii]ssuer"),
        (lambda: token(without="iss"), '"iss"'),
        (lambda: "no.such.token", "the token isn't good"),
        (lambda: "x", "the token isn't good"),
    ],
)
def test_bad_tokens(call: Calling, bad: Callable[[], str], says: str) -> None:
    with pytest.raises(rrpc.Unauthenticated, match=says):
        call(bad())


def test_keys_by_their_ids() -> None:
    keys = {"1": SECRET, "2": OTHER}
    check = JwtTokens(lambda header: keys[header["kid"]], algorithms=["HS256"], subject="client")

    def made(kid: str, secret: str) -> str:
        claims = {"client": f"c{kid}", "exp": time.time() + 60}
        return jwt.encode(claims, secret, algorithm="HS256", headers={"kid": kid})

    assert check(made("1", SECRET), None) == "c1"
    assert check(made("2", OTHER), None) == "c2"
    with pytest.raises(rrpc.Unauthenticated):
        check(made("2", SECRET), None)
    late = jwt.encode({"client": "x", "exp": time.time() - 5}, SECRET, headers={"kid": "1"})
    patient = JwtTokens(SECRET, algorithms=["HS256"], subject="client", leeway=60.0)
    assert patient(late, None) == "x"


def test_bad_options() -> None:
    with pytest.raises(TypeError, match="algorithms is a list of names"):
        JwtTokens(SECRET, algorithms="HS256")
    with pytest.raises(ValueError, match="name the algorithms"):
        JwtTokens(SECRET, algorithms=[])
    for name in ("none", "None", "HS257"):
        with pytest.raises(ValueError, match=f"'{name}' is no algorithm of signatures; there are "):
            JwtTokens(SECRET, algorithms=["HS256", name])


def test_pyjwt_is_imported_when_it_is_used() -> None:
    code = """
import sys
import rrpc
from rrpc.interceptors import JwtTokens, ServerToken
assert "jwt" not in sys.modules
sys.modules["jwt"] = None
try:
    JwtTokens("x", algorithms=["HS256"])
except ImportError as error:
    assert "pip install 'rrpc-rdma[jwt]'" in str(error), error
else:
    raise AssertionError("made without PyJWT")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
