"""``[authorization]`` of rrpc-serve's file: who may call what, with real users, reloads and several processes."""

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import Served, ServeFactory, child_environment, eventually, run_python, run_serve

import rrpc
from rrpc.cli.serving.access import AccessLog
from rrpc.cli.serving.settings import guards_of, settings
from rrpc.cli.serving.show_settings import as_toml
from rrpc.observe import ServedCall

MODULE = """
import os
from collections.abc import Iterator
import rrpc

@rrpc.service
class Vault:
    @rrpc.method
    def who(self) -> str:
        return rrpc.context().peer.identity

    @rrpc.method
    def count(self, number: int) -> Iterator[int]:
        yield from range(number)

    @rrpc.method
    async def later(self) -> int:
        return os.getpid()

    @rrpc.method(allow=["same-user"])
    def burn(self) -> bool:
        return True
"""
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

AS_USER = """
import os, sys
import rrpc
user = sys.argv[2]
import pwd
entry = pwd.getpwnam(user)
os.setgroups([])
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)

def outcome(call):
    try:
        return call()
    except rrpc.RpcError as error:
        return f"{type(error).__name__}: {error}"
"""


def write(file: Path, *lines: str) -> None:
    """A reload may come at any time, so the file changes at once."""
    beside = file.with_suffix(".new")
    beside.write_text("\n".join(lines) + "\n")
    beside.replace(file)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "serve.toml"
    write(file, "[authorization]", '"Vault" = ["same-user"]', '"rrpc.Health" = ["any"]')
    return file


def start(serve: ServeFactory, file: Path, listen: str, *more: str) -> Served:
    return serve(MODULE, "Vault", listen=listen, args=["--config", str(file), "--log-level", "info", *more])


def reloaded(served: Served, count: int, text: str = "reloaded") -> None:
    served.signal(signal.SIGHUP)
    eventually(lambda: served.log.count(text) >= count, what=f"{text!r} {count} times in:\n{served.log}")


@needs_root
def test_users_by_name(serve: ServeFactory, policy: Path, short_tmp: Path) -> None:
    write(
        policy,
        "[authorization]",
        '"Vault" = ["user:nobody", "group:daemon"]',
        '"Vault.count" = ["user:daemon"]',
        '"rrpc.Health" = ["any"]',
    )
    short_tmp.chmod(0o755)
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock", "--any-user")
    code = (
        AS_USER
        + """
with rrpc.connect(sys.argv[1], timeout=20.0) as client:
    print(outcome(lambda: client.call("Vault.who")))
    print(outcome(lambda: list(rrpc.open_stream(client, "Vault.count", 2))))
    print(outcome(lambda: client.call("Vault.later") > 0))
    print(outcome(lambda: client.call("Vault.burn")))
    print(outcome(lambda: client.call("rrpc.Health.check", "")))
    print(outcome(lambda: client.call("rrpc.Reflection.services")))
"""
    )
    nobody, daemon, other = (
        run_python(code, served.address, user).stdout.splitlines() for user in ("nobody", "daemon", "bin")
    )
    assert nobody == [
        "process:nobody",
        "PermissionDenied: Vault.count() may not be called by user nobody (uid 65534)",
        "True",
        "PermissionDenied: Vault.burn() may not be called by user nobody (uid 65534)",
        "1",
        "PermissionDenied: rrpc.Reflection.services() may not be called by user nobody (uid 65534)",
    ]
    assert daemon[:3] == ["process:daemon", "[0, 1]", "True"]
    assert daemon[3].startswith("PermissionDenied: Vault.burn()"), "the file lets it in, the code doesn't"
    assert [line.split(":")[0] for line in other] == [*["PermissionDenied"] * 4, "1", "PermissionDenied"]
    assert "denied: Vault.who() may not be called by user bin (uid 2)" in served.log
    assert served.terminate() == 0


@needs_root
@pytest.mark.parametrize("processes", [1, 2])
def test_who_may_connect_by_name(serve: ServeFactory, short_tmp: Path, processes: int) -> None:
    """Other users whom the option names connect over shared memory, and nobody else does."""
    short_tmp.chmod(0o755)
    allowed = ["--allow-client", "user:nobody", "--allow-client", "group:daemon"]
    served = serve(
        MODULE,
        "Vault",
        listen=f"shm://{short_tmp}/vault.sock",
        args=[*allowed, "--processes", str(processes), "--log-level", "info"],
    )
    code = (
        AS_USER
        + """
def ask():
    with rrpc.connect(sys.argv[1], timeout=20.0) as client:
        return client.call("Vault.who")
print(outcome(ask))
"""
    )
    nobody, daemon, other = (
        run_python(code, served.address, user).stdout.strip() for user in ("nobody", "daemon", "bin")
    )
    assert (nobody, daemon) == ("process:nobody", "process:daemon")
    assert other.startswith("PermissionDenied: ")
    assert other.endswith("allow_clients: the server takes no connection of user bin (uid 2)")
    with pytest.raises(rrpc.PermissionDenied, match=r"takes no connection of user \w+ \(uid 0\)"):
        rrpc.connect(served.address)
    assert "denied: allow_clients: the server takes no connection of user bin (uid 2)" in served.log
    served.terminate()


@pytest.mark.parametrize("option", ["authorization", "allow_client", "tls_cert", "tls_client_ca"])
def test_a_process_started_again_keeps_each_guard(option: str) -> None:
    """None starts where the file has lost one meanwhile."""
    settings: Any = SimpleNamespace(authorization=None, allow_client=None, tls_cert=None, tls_client_ca=None)
    assert guards_of(settings) == []
    setattr(settings, option, "there")
    assert guards_of(settings) == [option]


@needs_root
def test_another_user_feels_a_reload_at_its_next_call(
    serve: ServeFactory, policy: Path, short_tmp: Path
) -> None:
    short_tmp.chmod(0o755)
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock", "--any-user")
    code = (
        AS_USER
        + """
with rrpc.connect(sys.argv[1], timeout=20.0) as client:
    for line in sys.stdin:
        print(outcome(lambda: client.call("Vault.who")), flush=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, served.address, "nobody"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def ask() -> str:
            client.stdin.write("\n")  # type: ignore[union-attr]
            client.stdin.flush()  # type: ignore[union-attr]
            return client.stdout.readline().split(":")[0]  # type: ignore[union-attr]

        assert ask() == "PermissionDenied"
        write(policy, "[authorization]", '"Vault" = ["uid:65534"]')
        reloaded(served, 1)
        assert ask() == "process"
        write(policy, "[authorization]", '"Vault" = ["uid:65533"]')
        reloaded(served, 2)
        assert ask() == "PermissionDenied"
        client.stdin.close()


def test_a_reload_under_load_loses_no_call(serve: ServeFactory, policy: Path, short_tmp: Path) -> None:
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock")
    stop = threading.Event()
    others: list[BaseException] = []
    outcomes = {"ok": 0, "denied": 0}

    def call(method: str) -> None:
        with rrpc.connect(served.address, timeout=20.0) as client:
            while not stop.is_set():
                try:
                    if method == "Vault.count":
                        assert len(list(rrpc.open_stream(client, method, 3))) == 3
                    else:
                        client.call(method)
                    outcomes["ok"] += 1
                except rrpc.PermissionDenied:  # noqa: PERF203
                    outcomes["denied"] += 1
                except BaseException as error:
                    others.append(error)
                    return

    threads = [threading.Thread(target=call, args=(m,)) for m in ("Vault.who", "Vault.count", "Vault.later")]
    for thread in threads:
        thread.start()
    for turn in range(1, 7):
        allow = "[]" if turn % 2 else '["same-user"]'
        write(policy, "[authorization]", f'"Vault" = {allow}')
        reloaded(served, turn)
        before = dict(outcomes)
        eventually(lambda: outcomes["denied" if turn % 2 else "ok"] > before["denied" if turn % 2 else "ok"])  # noqa: B023
    stop.set()
    for thread in threads:
        thread.join()
    assert not others
    assert served.terminate() == 0


def test_a_bad_file_keeps_the_policy(serve: ServeFactory, policy: Path, short_tmp: Path) -> None:
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Vault.who")
        bad = [
            (['"Vault" = ["alice"]'], f"{policy}:2: authorization.Vault: there is no principal 'alice'"),
            (
                ['"Vault" = ["any"]', '"Valt.x" = ["any"]'],
                f'{policy}:3: authorization."Valt.x": there is no service',
            ),
            (['"Vault" = "any"'], f"{policy}:2: authorization.Vault: must be a list of principals"),
            (
                ['Vault.who = ["any"]'],
                f'{policy}:2: authorization.Vault: write the name in quotes: "Vault.who"',
            ),
            (
                ['"Vault" = ["token:x"]'],
                f"{policy}:2: authorization.Vault: token:x names the subject of a token",
            ),
            (['"Vault" = ["any"'], f"{policy}:3"),
        ]
        for lines, says in bad:
            write(policy, "[authorization]", *lines)
            served.signal(signal.SIGHUP)
            eventually(lambda: says in served.log, what=f"{says!r} in:\n{served.log}")  # noqa: B023
            assert client.call("Vault.who")
            with pytest.raises(rrpc.PermissionDenied):
                client.call("rrpc.Reflection.services")
        write(policy, "workers = 4")
        served.signal(signal.SIGHUP)
        eventually(lambda: "has no table [authorization] any more; restart" in served.log)
        with pytest.raises(rrpc.PermissionDenied):
            client.call("rrpc.Reflection.services")
        write(policy, "[authorization]", '"*" = []')
        reloaded(served, 1, "with 1 rules of authorization")
        with pytest.raises(rrpc.PermissionDenied):
            client.call("Vault.who")


def test_an_empty_file_keeps_the_policy(serve: ServeFactory, policy: Path, short_tmp: Path) -> None:
    """As an editor leaves it for a moment. The services are named in the file too."""
    (serve.folder / "vault.py").write_text(MODULE)
    write(policy, '[services."vault:Vault"]', "[authorization]", '"Vault" = ["same-user"]')
    served = serve.start(["--config", str(policy), "--listen", f"shm://{short_tmp}/vault.sock"], 1)
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Vault.who")
        write(policy)
        served.signal(signal.SIGHUP)
        eventually(lambda: "all settings stay as they are" in served.log)
        assert client.call("Vault.who")
        with pytest.raises(rrpc.PermissionDenied):
            client.call("rrpc.Health.check", "")
    assert served.terminate() == 0


def test_a_file_without_rules_lets_nobody_in(serve: ServeFactory, policy: Path, short_tmp: Path) -> None:
    write(policy, "[authorization]")
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock")
    with rrpc.connect(served.address, timeout=20.0) as client:
        for method in (
            "Vault.who",
            "rrpc.Health.check",
            "rrpc.Reflection.services",
            "rrpc.Stats.process",
            "x.y",
        ):
            with pytest.raises(rrpc.PermissionDenied):
                client.call(method)


def test_a_policy_that_comes_later(serve: ServeFactory, policy: Path) -> None:
    write(policy, "workers = 2")
    served = start(serve, policy, "tcp")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Vault.who") == ""
        write(policy, "[authorization]", '"Vault" = ["authenticated"]')
        reloaded(served, 1)
        with pytest.raises(rrpc.PermissionDenied, match="anonymous caller"):
            client.call("Vault.who")


def test_all_processes_reload(serve: ServeFactory, policy: Path) -> None:
    write(policy, "[authorization]", '"Vault" = ["any"]')
    served = start(serve, policy, "tcp", "--processes", "2")
    clients = [rrpc.connect(served.address, timeout=20.0) for _ in range(4)]
    try:
        assert len({client.call("Vault.later") for client in clients}) == 2
        write(policy, "[authorization]", '"Vault" = []')
        reloaded(served, 2)
        for client in clients:
            with pytest.raises(rrpc.PermissionDenied):
                client.call("Vault.later")
    finally:
        for client in clients:
            client.close()
    assert served.terminate() == 0


def test_the_access_log_has_the_identity(
    serve: ServeFactory, policy: Path, short_tmp: Path, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    served = start(serve, policy, f"shm://{short_tmp}/vault.sock", "--access-log", str(log))
    with rrpc.connect(served.address, timeout=20.0) as client:
        client.call("Vault.who")
        eventually(lambda: "Vault.who" in log.read_text())
    who = f"process:{pwd.getpwuid(os.getuid()).pw_name}"
    assert log.read_text().strip().endswith(f" who={who}")
    as_json = tmp_path / "access.json"
    peer = rrpc.Peer("pid 1 uid 2 (x)", kind="process", name="alice", uid=2)
    AccessLog(str(as_json), "json")(ServedCall("Vault.who", peer=peer))
    line = json.loads(as_json.read_text())
    assert (line["peer"], line["identity"]) == ("pid 1 uid 2 (x)", "process:alice")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ['"Vault" = ["user:no-such-user"]'],
            ":2: authorization.Vault: user:no-such-user: this host has no user",
        ),
        (
            ['"Vault.x" = ["any"]'],
            ":2: authorization.\"Vault.x\": Vault has no method 'x'; did you mean Vault.",
        ),
        (["x = 1"], ":2: authorization.x: must be a list of principals"),
        (['"Vault " = ["any"]'], ":2: authorization.\"Vault \": 'Vault ' is no service nor method"),
    ],
)
def test_a_bad_policy_at_the_start(tmp_path: Path, policy: Path, lines: list[str], says: str) -> None:
    (tmp_path / "vault.py").write_text(MODULE)
    write(policy, "[authorization]", *lines)
    done = run_serve("vault:Vault", "--config", str(policy), "--listen", "tcp://127.0.0.1:0", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{policy}{says}" in done.stderr
    write(policy, "authorization = 3")
    done = run_serve("vault:Vault", "--config", str(policy), cwd=tmp_path)
    assert (done.returncode, "must be a table, [authorization]" in done.stderr) == (2, True)


def test_the_policy_is_printed(policy: Path, tmp_path: Path) -> None:
    printed = as_toml(settings(["a:B", "--config", str(policy)]))
    assert '[authorization]\nVault = ["same-user"]\n"rrpc.Health" = ["any"]\n' in printed
    again = tmp_path / "again.toml"
    again.write_text(printed)
    rules = settings(["a:B", "--config", str(again)]).authorization.rules
    assert rules == {"Vault": ("same-user",), "rrpc.Health": ("any",)}
    assert "# [authorization]" in as_toml(settings(["a:B"]))
