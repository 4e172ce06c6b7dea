"""The flags by which the commands that connect speak TLS."""

from __future__ import annotations

import argparse
from typing import Any

from rrpc.cli.common import takes_files

_FILES = {
    "tls_ca": "certificates of the authorities to trust, in PEM form (default: those of the system)",
    "tls_cert": "this client's certificate, where the server asks for one",
    "tls_key": "the key of --tls-cert",
    "tls_crl": "revocation lists of the authorities",
}


def add_tls_flags(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tls-ca``, ``--tls-cert``, ``--tls-key``, ``--tls-crl``, ``--tls-peer-name`` and ``--rdma-security``."""
    group = parser.add_argument_group("TLS, for rrpcs://, tcps:// and verbs://")
    for name, text in _FILES.items():
        takes_files(group.add_argument(f"--{name.replace('_', '-')}", metavar="FILE.pem", help=text))
    group.add_argument(
        "--tls-peer-name",
        metavar="NAME",
        help="the DNS name, IP address or SPIFFE id of the server's certificate (default: the host connected to)",
    )
    group.add_argument(
        "--rdma-security",
        metavar="MODE",
        help="what protects RDMA at least: identity, sign or encrypt (default: none, and RDMA isn't used beside TLS)",
    )


def tls_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of ``rrpc.connect`` that the flags give."""
    names = [name for name in vars(options) if name.startswith("tls_") or name == "rdma_security"]
    return {name: value for name in names if (value := getattr(options, name))}
