"""rrpc-call against real servers: every kind of value, and every kind of bad input with its exact line."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import LabServer
from processes import Served, child_environment, eventually, patience, run_python
from rrpc_call import TRACK, Run

import rrpc
from rrpc._channel.versions import ANSWER_BYTES_MAX
from rrpc.idl import parse
from rrpc.schema import from_data, module_of


def test_over_every_transport(call_server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for address in call_server.addresses:
        assert Run(address, capsys).result("Kinds.plain", "a=5") == [5, 0.5, False, "d", None]


def test_as_a_process(call_server: Served, tmp_path: Path) -> None:
    def rrpc_call(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "rrpc.cli.call", call_server.address, *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=child_environment(),
            timeout=patience(60),
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    npy = io.BytesIO()
    np.save(npy, np.array([1, 2], np.float32))
    assert rrpc_call("Kinds.floats", "@-", "-o", "twice.npy", stdin=npy.getvalue())[::2] == (0, b"")
    assert np.load(tmp_path / "twice.npy").tolist() == [2.0, 4.0]
    assert rrpc_call("Kinds.missing", "swim") == (
        1,
        b"",
        b"rrpc-call: NOT_FOUND: there is no track 'swim'\n",
    )


def test_output_files(rrpc_call: Run, tmp_path: Path) -> None:
    one, folder = tmp_path / "one.npy", tmp_path / "all"
    assert rrpc_call.result("Kinds.floats", "[1]", "-o", str(one)) == {
        "dtype": "float32",
        "shape": [1],
        "file": str(one),
    }
    assert np.load(one).tolist() == [2.0]
    shown = rrpc_call.result("Kinds.two", "3", "-o", f"{folder}/")
    assert shown == [
        {"dtype": "int64", "shape": [3], "file": f"{folder}/0.npy"},
        {"dtype": "float32", "shape": [3, 2], "file": f"{folder}/1.npy"},
    ]
    assert np.load(folder / "0.npy").tolist() == [0, 1, 2]
    assert (
        rrpc_call.result("Kinds.track", TRACK, "-o", str(folder))["points"]["file"] == f"{folder}/points.npy"
    )
    assert (
        rrpc_call.result("Kinds.plain", "1", "-o", f"{tmp_path}/out.json")["file"] == f"{tmp_path}/out.json"
    )
    assert json.loads((tmp_path / "out.json").read_text()) == [1, 0.5, False, "d", None]
    rrpc_call.result("Kinds.two", "300", "-o", f"{tmp_path}/out.json")  # in full
    assert json.loads((tmp_path / "out.json").read_text())[0]["data"] == list(range(300))


def test_a_result_is_not_lost_for_a_wrong_output(rrpc_call: Run, tmp_path: Path) -> None:
    status, out, err = rrpc_call("Kinds.two", "2", "-o", f"{tmp_path}/x.npy")
    assert status == 2
    assert [item["data"] for item in json.loads(out)] == [[0, 1], [[0.0, 0.0], [0.0, 0.0]]]
    assert err == (
        f"rrpc-call: -o {tmp_path}/x.npy: the result has several arrays: give a folder, {tmp_path}/x/\n"
    )
    status, out, err = rrpc_call("Kinds.text", "x", "-o", f"{tmp_path}/y.npy")
    assert (status, out, err) == (2, '"x"\n', f"rrpc-call: -o {tmp_path}/y.npy: the result has no array\n")


LIST = """\
Kinds                     All kinds of values.
  plain                   Plain values.
  text
"""


def test_list(rrpc_call: Run) -> None:
    status, out, err = rrpc_call("list")
    assert (status, err) == (0, "")
    assert out.startswith(LIST)
    assert "\nrrpc.Health   " in out
    listed = rrpc_call.result("list", "--json")
    assert [service["name"] for service in listed] == [
        "Kinds",
        "Odd",
        "rrpc.Health",
        "rrpc.Reflection",
        "rrpc.Stats",
    ]
    assert listed[0]["methods"][:3] == ["plain", "text", "maybe"]


PLAIN = """\
/// All kinds of values.
service Kinds {
  /// Plain values.
  ///
  /// More about them.
  plain(a: int, b: float = 0.5, c: bool = false, d: string = "d", e: none = none) -> list<any>;
}
"""
TRACK_METHOD = """\
enum Unit {
  METRE = "m";
  FOOT = "ft";
}

/// A walk.
struct Track {
  1: name: string;
  2: points: array<f64>;
  3: unit: Unit = METRE;
  4: tags: list<string> = [];
}

/// All kinds of values.
service Kinds {
  track(track: Track) -> Track;
}
"""
PYTHON_ONLY = """

// Odd.mutable(): result: bytearray has no word in the language
//   Odd.mutable() -> Any
"""


def test_describe(rrpc_call: Run) -> None:
    assert rrpc_call("describe", "Kinds.plain") == (0, PLAIN, "")
    assert rrpc_call("describe", "Kinds.track") == (0, TRACK_METHOD, "")
    status, out, err = rrpc_call("describe", "Kinds")
    assert (status, err) == (0, "")
    assert module_of([from_data(rrpc_call.result("describe", "Kinds", "--json")[0])]) == parse(out)
    status, out, err = rrpc_call("describe", "Odd")
    assert (status, err) == (0, "")
    assert out.endswith(PYTHON_ONLY)
    assert [method.name for method in parse(out).services["Odd"].methods] == ["fine"]
    assert rrpc_call("describe")[1].count("\npackage rrpc;") == 3
    (described,) = rrpc_call.result("describe", "rrpc.Health", "--json")
    assert from_data(described).name == "rrpc.Health"
    assert len(rrpc_call.result("describe", "--json")) == 5


def test_describe_without_lark(call_server: Served) -> None:
    code = """
import sys
sys.modules["lark"] = None
from rrpc.cli import call
print(call.main([sys.argv[1], "describe", "Kinds"]), call.main([sys.argv[1], "describe", "Kinds", "--json"]) == 0)
"""
    done = run_python(code, call_server.address)
    assert done.stdout.splitlines()[-1] == "2 True"
    assert done.stderr == "rrpc-call: describe needs lark: pip install lark; --json does without\n"


def test_failed_calls(rrpc_call: Run) -> None:
    assert rrpc_call("Kinds.missing", "swim") == (1, "", "rrpc-call: NOT_FOUND: there is no track 'swim'\n")
    status, out, err = rrpc_call("Kinds.missing", "swim", "--json")
    assert (status, json.loads(out)) == (
        1,
        {"error": {"code": "NOT_FOUND", "message": "there is no track 'swim'"}},
    )
    status, out, err = rrpc_call("Kinds.broken")
    assert (status, out) == (1, "")
    lines = err.splitlines()
    assert lines[0] == "rrpc-call: UNKNOWN: KeyError: 'swim'"
    assert lines[1] == "Traceback (most recent call last):"  # the server has --tracebacks


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert Run("shm:///nowhere.sock", capsys)("A.b") == (
        1,
        "",
        "rrpc-call: UNAVAILABLE: no server listens on /nowhere.sock\n",
    )


BAD = [
    (["Kinds.plain"], "Kinds.plain() missing a required argument: 'a'"),
    (["Kinds.plain", "a=x"], "Kinds.plain(): argument 'a': expected int, got str"),
    (["Kinds.plain", "a=1.5"], "Kinds.plain(): argument 'a': expected int, got float"),
    (["Kinds.plain", "1", "a=1"], "Kinds.plain() got multiple values for argument 'a'"),
    (["Kinds.plain", "a=1", "a=2"], "a is given twice"),
    (["Kinds.plain", "a=1", "2"], "2: what has no name goes before what has one"),
    (["Kinds.plain", "A=1"], "Kinds.plain() has no parameter 'A'; there is a, b, c, d, e"),
    (["Kinds.choice", "m", "levl=1"], "Kinds.choice() has no parameter 'levl'; did you mean level?"),
    (["Kinds.text", "1", "2"], "Kinds.text() takes 1 positional argument but 2 were given"),
    (["Kinds.choice", "m", "2"], "Kinds.choice() takes 1 positional argument but 2 were given"),
    (["Kinds.choice", "FOTO"], 'FOTO: expected Unit (METRE, FOOT), got "FOTO"; did you mean FOOT?'),
    (["Kinds.choice", "m", "literal=b"], "literal=b: expected one of 'a', 2, got \"b\""),
    (["Kinds.track", "track=5"], "track=5: expected Track, an object, got 5"),
    (["Kinds.track", '{"name": "x"}'], '{"name": "x"}: Track without points'),
    (["Kinds.track", 'track={"nam": "x"}'], "track={\"nam\": \"x\"}: Track has no field 'nam'; did you mean name?"),
    (
        ["Kinds.track", TRACK.replace("FOOT", "YARD").join(["track=", ""])],
        'track.unit: expected Unit (METRE, FOOT), got "YARD"',
    ),
    (["Kinds.track", 'track={"name": 5, "points": [1]}'],
     "Kinds.track(): argument 'track'.name: expected str, got int"),
    (["Kinds.shape", '{"side": 1}'], '{"side": 1}: expected Circle | Square, got {"side": 1}'),
    (["Kinds.either", '{"$type": "Circle", "sise": 1}'],
     "{\"$type\": \"Circle\", \"sise\": 1}: Circle has no field 'sise'; did you mean size?"),
    (["Kinds.maybe_track", 'track={"name": "x", "points": [1], "unit": 3}'],
     "track.unit: expected Unit (METRE, FOOT), got 3"),
    (["Kinds.containers", "a=5"], "a=5: expected list[int], a list, got 5"),
    (["Kinds.containers", "[]", "b=[1]"], "b=[1]: expected tuple[int, str], a list of 2, got [1]"),
    (["Kinds.binary", '{"base64": "?"}'], '{"base64": "?"}: expected base64, got "?"'),
    (["Kinds.floats", "[[1], [1, 2]]"], "[[1], [1, 2]]: no array: its rows differ in length"),
    (["Kinds.floats", '["x"]'], '["x"]: no array: it has items that aren\'t numbers'),
    (["Kinds.bytes_of", "[1, 300]"], "[1, 300]: no uint8 array: it has items that aren't uint8"),
    (["Kinds.bytes_of", "[1, 1.5]"], "[1, 1.5]: no uint8 array: it has items that aren't uint8"),
    (["Kinds.floats", "array=x"], 'array=x: expected NDArray[float32], nested lists or @file.npy, got "x"'),
    (["Kinds.floats", "array=@nowhere.npy"], "@nowhere.npy: No such file or directory"),
    (["Kinds.plain", "@nowhere"], "@nowhere: No such file or directory"),
    (["Kinds.missing"], "Kinds.missing() missing a required argument: 'name'"),
    (["Kinds.mising", "x"], "Kinds has no method 'mising'; did you mean missing?"),
    (["Kind.missing", "x"], "there is no service 'Kind'; did you mean Kinds?"),
    (["Health.check"], "there is no service 'Health'; did you mean rrpc.Health?"),
    (
        ["Zzz.x"],
        "there is no service 'Zzz'; there is Kinds, Odd, rrpc.Health, rrpc.Reflection, rrpc.Stats",
    ),
    (["missing", "x"], "'missing' is no method: write service.method; did you mean Kinds.missing?"),
    (["zzz"], "'zzz' is no method: write service.method"),
    (["describe", "Kins"], "there is no service 'Kins'; did you mean Kinds?"),
    (["describe", "Kinds.plan"], "Kinds has no method 'plan'; did you mean plain?"),
    (["describe", "a", "b"], "describe takes one service or service.method"),
    (["list", "Kinds"], "list takes no 'Kinds'; describe Kinds shows one"),
    (["Kinds.text", "x", "-o", "/nowhere/x"], "-o /nowhere/x: there is no folder /nowhere"),
    (["Kinds.text", "x", "--timeout", "soon"],
     "argument --timeout: invalid float value: 'soon' (see rrpc-call --help)"),
    ([], "the following arguments are required: service.method (see rrpc-call --help)"),
]  # fmt: skip


def test_an_interrupt_ends_it_at_once(lab_server: LabServer) -> None:
    name = f"call-{os.getpid()}"
    command = [sys.executable, "-m", "rrpc.cli.call", lab_server.address("tcp"), "Lab.hold", name, "30"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=child_environment())
    with rrpc.connect(lab_server.address("tcp"), timeout=20.0) as client:
        eventually(lambda: client.call("Lab.holding", name))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=patience(10))[1] == b"rrpc-call: interrupted\n"
        assert process.returncode == 130
        client.call("Lab.release", name)


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments)[:40] for arguments, _ in BAD])
def test_bad_usage(rrpc_call: Run, arguments: list[str], line: str) -> None:
    assert rrpc_call.bad(*arguments) == line


def test_bad_files(rrpc_call: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "wrong.json").write_text('{"name": "x", "points": [1], "unit": 7}')
    (tmp_path / "binary").write_bytes(b"\xff")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "double.npy", np.ones(2))
    at = f"@{tmp_path}"
    assert rrpc_call.bad("Kinds.floats", f"{at}/bad.npy").startswith(
        f"{at}/bad.npy: no .npy file of numbers: "
    )
    assert rrpc_call.bad("Kinds.floats", f"{at}/objects.npy").startswith(
        f"{at}/objects.npy: no .npy file of numbers: "
    )
    assert rrpc_call.bad("Kinds.floats", f"{at}/double.npy") == (
        "Kinds.floats(): argument 'array': expected float32 array, got float64 array of shape (2,) "
        "(use .astype(np.float32))"
    )
    assert rrpc_call.bad("Kinds.track", f"{at}/bad.json").startswith(f"{at}/bad.json: no JSON: ")
    assert (
        rrpc_call.bad("Kinds.track", f"{at}/wrong.json")
        == f"{at}/wrong.json: unit: expected Unit (METRE, FOOT), got 7"
    )
    assert rrpc_call.bad("Kinds.text", f"{at}/binary") == f"{at}/binary: no UTF-8 text"
    assert rrpc_call.bad("Kinds.plain", "a=" + "[" * 100_000) == "JSON nested too deep"


def test_bad_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    assert Run("nowhere", capsys).bad("A.b") == (
        "address 'nowhere' has no scheme; write it like rrpc://127.0.0.1:7471, tcp://host:port or shm://name"
    )


def test_a_server_without_reflection(
    new_address: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    from lab_service import Lab

    import rrpc

    with rrpc.serve(Lab(), listen=new_address("tcp"), builtin=False) as server:
        rrpc_call = Run(server.addresses[0], capsys)
        assert rrpc_call.result("Lab.add", "2", "b=3") == 5
        assert rrpc_call.result("Lab.echo", '{"a": [1]}') == {"a": [1]}
        assert rrpc_call.result("Lab.echo", "bare") == "bare"
        assert rrpc_call("Lab.add", "x")[::2] == (
            1,
            "rrpc-call: INVALID_ARGUMENT: Lab.add(): argument 'a': expected int, got str\n",
        )
        assert rrpc_call("Lab.ad", "1")[0] == 1
        assert rrpc_call.bad("list") == "this server has no reflection, so it can't say what it offers"
        assert rrpc_call.bad("add") == "'add' is no method: write service.method"


@rrpc.service(name="rrpc.Reflection")
class Liar:
    """Says what no server of rrpc would."""

    def __init__(self, names: Any, described: Any) -> None:
        self._names = names
        self._described = described

    @rrpc.method
    def services(self) -> Any:
        return self._names

    @rrpc.method
    def describe(self, service: str) -> Any:
        return self._described


LONG = {"doc": "x" * ANSWER_BYTES_MAX}


@pytest.mark.parametrize(
    ("names", "described", "line"),
    [
        (5, {}, "what the server says of its services can't be read: not a list of names"),
        ([b"x"], {}, "what the server says of its services can't be read: not a list of names"),
        (["A"], 5, "what the server says of A can't be read: "),
        (["A"], {}, "what the server says of A can't be read: "),
        (["A"], LONG, "what the server says of A can't be read: it has 419"),
        (["A", LONG["doc"]], {}, "what the server says of its services can't be read: it has 419"),
        (
            ["A"],
            {"service": {"name": 5}},
            "what the server says of A can't be read: not a service's description: ",
        ),
    ],
)
def test_a_server_whose_descriptions_mean_nothing(
    new_address: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    names: Any,
    described: Any,
    line: str,
) -> None:
    with rrpc.serve(Liar(names, described), listen=new_address("tcp")) as server:
        for arguments in (["list"], ["describe", "A"], ["A.x"]):
            status, out, err = Run(server.addresses[0], capsys)(*arguments)
            assert (status, out) == (1, "")
            assert err.startswith(f"rrpc-call: INTERNAL: {line}")
            assert err.count("\n") == 1


def test_metadata(rrpc_call: Run) -> None:
    given = [
        "--metadata",
        "key=a=b",
        "--metadata",
        "tag=1",
        "--metadata",
        "tag=2",
        "--metadata",
        "x-bin=AP8=",
    ]
    status, out, err = rrpc_call("Kinds.badge", *given, "--show-metadata")
    assert status == 0
    assert json.loads(out) == {"key": ["a=b"], "tag": ["1", "2"], "x-bin": [{"base64": "AP8="}]}
    assert err.splitlines() == ["key: a=b", "tag: 1", "tag: 2", "x-bin: AP8="]
    assert rrpc_call("Kinds.badge", *given)[2] == ""
    assert rrpc_call.result("Kinds.badge", "--show-metadata") == {}


def test_an_error_s_metadata_and_details(rrpc_call: Run) -> None:
    arguments = ["Kinds.badge", "shown=false", "--metadata", "key=a"]
    status, out, err = rrpc_call(*arguments, "--show-metadata", "--json")
    assert status == 1
    assert json.loads(out) == {
        "error": {"code": "PERMISSION_DENIED", "message": "no badge", "details": {"wanted": ["key", 7]}}
    }
    lines = ["rrpc-call: PERMISSION_DENIED: no badge", 'rrpc-call: details: {"wanted": ["key", 7]}']
    assert err.splitlines() == ["key: a", *lines]
    assert rrpc_call(*arguments)[1:] == ("", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("key", "--metadata key: write name=value"),
        ("Key=a", "metadata: 'Key' can't be a name: use lower-case ASCII letters, digits, '_', '-' and '.'"),
        ("key-bin=?", "--metadata key-bin=?: -bin values are base64: Only base64 data is allowed"),
    ],
)
def test_what_can_t_be_metadata(rrpc_call: Run, given: str, why: str) -> None:
    assert rrpc_call.bad("Kinds.badge", "--metadata", given) == why
