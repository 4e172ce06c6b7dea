"""Ray's own certificates secure the arrays, too."""

import datetime
import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from ray_rrpc.certificates import certificates

import rrpc

PROGRAM = Path(__file__).with_name("over_tls.py")


def certificate_and_key() -> tuple[bytes, bytes]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a cluster")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
    )
    text = serialization.Encoding.PEM
    return made.add_extension(names, critical=False).sign(key, hashes.SHA256()).public_bytes(
        text
    ), key.private_bytes(text, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a Ray that uses TLS; its processes alone get it."""
    for name, content in zip(("cert.pem", "key.pem"), certificate_and_key(), strict=True):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for variable, name in (("SERVER_CERT", "cert.pem"), ("SERVER_KEY", "key.pem"), ("CA_CERT", "cert.pem")):
        monkeypatch.setenv(f"RAY_TLS_{variable}", str(tmp_path / name))
    return tmp_path


def test_arrays_go_over_tls(secured: Path) -> None:
    told = secured / "address"
    folder = tempfile.mkdtemp(prefix="ray-")  # a short name: Ray has sockets in it
    command = [sys.executable, str(PROGRAM), str(told), folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "100000.0\n"
            assert process.stdout.readline() == "ready\n"
            address = told.read_text()
            with pytest.raises(rrpc.Unauthenticated, match="isn't signed by an authority of this system"):
                rrpc.connect(address)
            with rrpc.connect(address, transports="tcp", **certificates()) as client:
                assert client.info()["security"].startswith("TLSv1.3")
        finally:
            process.communicate("", timeout=60)
            shutil.rmtree(folder, ignore_errors=True)
    assert process.returncode == 0


def test_in_clear_where_ray_is() -> None:
    assert "RAY_USE_TLS" not in os.environ
    assert certificates() == {}


def test_a_file_that_is_not_named(secured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TLS_SERVER_KEY")
    with pytest.raises(ValueError, match="RAY_USE_TLS is set, and RAY_TLS_SERVER_KEY should name a file"):
        certificates()
