"""TLS as operators turn it on: rrpc-serve, rrpc-call, rrpc-info."""

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from certificates import Parties
from processes import ServeFactory, eventually, patience, run_command, run_serve
from tls_service import port_of

import rrpc

VAULT = """
import rrpc

@rrpc.service
class Vault:
    @rrpc.method
    def add(self, a: int, b: int) -> int:
        return a + b
"""


def _flags(options: dict[str, str], ca: str = "tls-ca") -> list[str]:
    names = {"tls_cert": "tls-cert", "tls_key": "tls-key", "tls_ca": ca}
    return [word for name, value in options.items() for word in (f"--{names[name]}", value)]


def test_a_server_and_its_callers(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    served = serve(VAULT, "Vault", args=_flags(parties.of_server(), "tls-client-ca"))
    assert served.address.startswith("tcps://")
    flags = _flags(parties.of_client())
    done = run_command("call", served.address, "Vault.add", "1", "2", *flags)
    assert done.stdout == "3\n"
    plain = served.address.replace("tcps", "tcp")
    assert run_command("call", plain, "Vault.add", "1", "2", *flags).stdout == "3\n"
    refused = run_command("call", served.address, "Vault.add", "1", "2", *flags[4:], check=False)
    assert refused.returncode == 1
    assert re.search(r"UNAUTHENTICATED.*the server asks for a certificate", refused.stderr)
    assert "\n" not in refused.stderr.strip()


def test_info_says_how_a_server_is_protected(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    secure = serve(VAULT, "Vault", args=_flags(parties.of_server(), "tls-client-ca"))
    told = run_command("info", secure.address, *_flags(parties.of_client()), "--json").stdout
    assert json.loads(told)["connection"]["security"].startswith("TLSv1.3")
    clear = serve(VAULT, "Vault")
    told = run_command("info", clear.address).stdout
    assert re.search(r"security +none", told)
    assert re.search(r"warning +calls go in clear, and whoever reaches this address may call", told)
    near = serve(VAULT, "Vault", listen="shm")
    assert "warning" not in run_command("info", near.address).stdout


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "rrpc://:0", "tcp://[::]:0", "verbs://10.9.0.1:0"])
def test_clear_text_for_other_machines_must_be_wanted(tmp_path: Path, address: str) -> None:
    (tmp_path / "vault.py").write_text(VAULT)
    done = run_serve("vault:Vault", "--listen", address, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{address} is reached by other machines" in done.stderr
    assert "--insecure" in done.stderr


def test_it_is_allowed_where_it_is_wanted_or_secure(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    # The helper gives --insecure for that address.
    assert serve(VAULT, "Vault", listen="tcp://0.0.0.0:0").address.startswith("tcp://0.0.0.0")
    (tmp_path / "vault.py").write_text(VAULT)
    secure = serve.start(
        ["vault:Vault", "--listen", "rrpc://0.0.0.0:0", *_flags(parties.of_server(), "tls-client-ca")], 1
    )
    assert secure.address.startswith("rrpcs://0.0.0.0")
    address = secure.address.replace("0.0.0.0", "127.0.0.1")
    with rrpc.connect(address, transports="tcp", **parties.of_client()) as client:
        assert client.call("Vault.add", 1, 2) == 3


def test_verbs_with_a_certificate_is_not_in_clear(serve: ServeFactory, tmp_path: Path) -> None:
    """It isn't refused for being in clear, but where nothing protects RDMA; and the commands say what does."""
    parties = Parties.meet(tmp_path)
    (tmp_path / "vault.py").write_text(VAULT)
    flags = _flags(parties.of_server(), "tls-client-ca")
    done = run_serve("vault:Vault", "--listen", "verbs://192.0.2.1:0", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert "it is 'none', and must be identity, sign or encrypt" in done.stderr
    flags_of_rdma = [*flags, "--rdma-security", "sign", "--processes", "2"]
    done = run_serve("vault:Vault", "--listen", "verbs://192.0.2.1:0", *flags_of_rdma, cwd=tmp_path)
    assert done.returncode == 2
    assert "192.0.2.1" in done.stderr, "no adapter has that address"
    assert "none" not in done.stderr, "the process in front knows what protects RDMA, too"
    served = serve(VAULT, "Vault", args=flags)
    call = ["call", served.address, "Vault.add", "1", "2", *_flags(parties.of_client())]
    assert run_command(*call, "--rdma-security", "sign").stdout == "3\n"
    refused = run_command(*call, "--rdma-security", "much", check=False)
    assert "rdma_security is 'much'; it may be none, identity" in refused.stderr


def test_several_processes_behind_one_certificate(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    flags = [*_flags(parties.of_server(), "tls-client-ca"), "--processes", "2"]
    served = serve(VAULT, "Vault", listen="rrpcs://127.0.0.1:0", args=flags)
    for transports in ("tcp", "shm"):
        with rrpc.connect(served.address, transports=transports, **parties.of_client()) as client:
            assert client.call("Vault.add", 1, 2) == 3
            assert client.info()["transport"] == transports
    with pytest.raises(rrpc.Unauthenticated, match="asks for a certificate"):
        rrpc.connect(served.address, tls_ca=str(parties.authority.path))


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "vault.py").write_text(VAULT)
    listen = ["vault:Vault", "--listen", "tcp://127.0.0.1:0"]
    done = run_serve(*listen, "--tls-cert", "no.pem", "--tls-key", "no.key", cwd=tmp_path)
    assert done.returncode == 2
    assert "TLS: no.pem: no certificate in PEM form can be read from it (No such file" in done.stderr
    done = run_serve(*listen, "--tls-cert", "no.pem", cwd=tmp_path)
    assert "a certificate and its key go together, and the key is missing" in done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl's command isn't here")
def test_openssl_connects_and_shows_the_chain(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    served = serve(VAULT, "Vault", args=_flags(parties.server.options()))
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port_of(served.address)}", "-alpn", "rrpc/1"]
    trust = ["-CAfile", str(parties.authority.path), "-showcerts", "-verify_return_error"]
    done = subprocess.run(
        [*command, *trust], input="", capture_output=True, text=True, timeout=60, check=False
    )
    assert "Verify return code: 0 (ok)" in done.stdout
    assert "CN = server" in done.stdout
    assert "ALPN protocol: rrpc/1" in done.stdout
    assert "TLSv1.3" in done.stdout
    with socket.create_connection(("127.0.0.1", port_of(served.address))):
        pass


def test_a_client_that_moves_to_shared_memory_counts_once(serve: ServeFactory, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    limit = ["--connections-max", "1"]
    served = serve(
        VAULT, "Vault", listen="rrpc", args=[*_flags(parties.of_server(), "tls-client-ca"), *limit]
    )

    def connect() -> rrpc.Client:
        return rrpc.connect(served.address, connect_timeout=patience(20.0), **parties.of_client())

    def lets_in() -> bool:
        try:
            connect().close()
        except rrpc.ResourceExhausted:
            return False
        return True

    with connect() as client:
        assert client.info()["transport"] == "shm"
        with pytest.raises(rrpc.ResourceExhausted, match="connections_max: the server has 1 clients"):
            connect()
        assert client.call("Vault.add", 1, 2) == 3
    eventually(lets_in)
