"""Authorities and certificates for tests, made with the cryptography package."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.timezone.utc)


@dataclass(frozen=True)
class Issued:
    cert: Path
    key: Path
    certificate: x509.Certificate

    def options(self) -> dict[str, Any]:
        """Returns the options of one who shows this certificate."""
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}


class Authority:
    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            self._builder(self._name, self._key, NOW - 2 * DAY, NOW + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name.replace(' ', '-')}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begin: datetime.datetime,
        end: datetime.datetime,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    def issue(
        self,
        name: str,
        *names: str,
        valid: tuple[float, float] = (-1, 10),
    ) -> Issued:
        """Issues a certificate for DNS names, IP addresses and URIs.

        ``valid``: days from now, of its beginning and its end. The files of an earlier one of that name are replaced.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key, NOW + valid[0] * DAY, NOW + valid[1] * DAY)
            .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        issued = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key", certificate)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        issued.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return issued

    def revocation_list(self, revoked: Sequence[Issued] = ()) -> Path:
        """Writes the list of what was revoked; returns its path."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(NOW - DAY).next_update(NOW + DAY)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(NOW - DAY).build())
        path = self._folder / "revoked.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True)
class Parties:
    """A server and a client that know each other by certificates of one authority."""

    authority: Authority
    server: Issued
    client: Issued

    @classmethod
    def meet(cls, folder: Path) -> Parties:
        authority = Authority(folder)
        return cls(
            authority,
            authority.issue("server", "localhost", "127.0.0.1", "spiffe://example.org/server"),
            authority.issue("client", "client.example.org", "spiffe://example.org/client"),
        )

    def of_server(self) -> dict[str, Any]:
        """Returns the options of a server that asks for certificates."""
        return self.server.options() | {"tls_ca": str(self.authority.path)}

    def of_client(self) -> dict[str, Any]:
        return self.client.options() | {"tls_ca": str(self.authority.path)}
