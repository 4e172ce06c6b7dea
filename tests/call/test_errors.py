"""Status codes and exception classes: one for each, both ways, and through pickle."""

import pickle

import msgpack
import pytest

import rrpc
from rrpc import errors
from rrpc._call.status import from_status

CODES = [code for code in rrpc.StatusCode if code is not rrpc.StatusCode.OK]
CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, rrpc.RpcError)]


def test_the_codes_are_grpc_s() -> None:
    assert [code.value for code in rrpc.StatusCode] == list(range(17))
    assert rrpc.StatusCode.DEADLINE_EXCEEDED.value == 4
    assert rrpc.StatusCode.UNAVAILABLE.value == 14


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_code_has_its_class(code: rrpc.StatusCode) -> None:
    error = from_status(code.value, "the reason")
    assert type(error).__name__.lower() == code.name.replace("_", "").lower()
    assert error.code is code
    assert error.message == str(error) == "the reason"


def test_an_unknown_code_is_unknown() -> None:
    error = from_status(99, "odd")
    assert type(error) is rrpc.Unknown
    assert str(error) == "odd"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (rrpc.DeadlineExceeded, TimeoutError),
        (rrpc.Unavailable, ConnectionError),
        (rrpc.InvalidArgument, TypeError),
        (rrpc.InvalidArgument, ValueError),
        (rrpc.ProtocolError, rrpc.Internal),
        (rrpc.RemoteError, rrpc.Unknown),
    ],
)
def test_errors_are_what_python_has_for_them(
    error: type[rrpc.RpcError], builtin: type[BaseException]
) -> None:
    assert issubclass(error, builtin)
    caught = error("why")
    assert isinstance(caught, builtin)
    assert "why" in str(caught)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_survive_pickle(cls: type[rrpc.RpcError]) -> None:
    error = rrpc.RemoteError("ValueError", "bad", "trace") if cls is rrpc.RemoteError else cls("bad")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_a_protocol_error() -> None:
    assert type(from_status(13, "bad magic", True)) is rrpc.ProtocolError
    assert (
        type(from_status(13, "bad payload", False, msgpack.packb({"protocol": True}))) is rrpc.ProtocolError
    )


def test_a_handler_s_exception() -> None:
    error = from_status(2, "no such key", False, msgpack.packb({"type": "KeyError"}))
    assert isinstance(error, rrpc.RemoteError)
    assert (error.type_name, error.message, error.remote_traceback) == ("KeyError", "no such key", None)
    assert str(error) == "KeyError: no such key"
    details = msgpack.packb({"type": "KeyError", "traceback": "Traceback:\n  here\n"})
    assert str(from_status(2, "k", False, details)) == "KeyError: k\n\nOn the server:\nTraceback:\n  here"


@pytest.mark.parametrize("details", [b"\xc1", b"\x93\x01", b"\x01", b"\x81\xa4type\x05"])
def test_bad_details_leave_the_status(details: bytes) -> None:
    error = from_status(5, "gone", False, details)
    assert type(error) is rrpc.NotFound
    assert str(error) == "gone"
