"""Certificates of a Dask cluster, as rrpc takes them."""

from __future__ import annotations

from ssl import Purpose, SSLContext
from typing import Any

import dask.config
import distributed
from dask.utils import parse_timedelta
from distributed.comm.core import FatalCommClosedError

__all__ = ["Security", "options"]


class Security(distributed.Security):  # type: ignore[misc]
    """Dask's ``Security``, with the certificates where rrpc finds them: an ``ssl.SSLContext`` doesn't give them away.

    Files and PEM text are taken. Names in certificates aren't looked at, as Dask doesn't: whoever has one of the
    authority in ``tls_ca_file`` belongs to the cluster.
    """

    def _get_tls_context(self, tls: dict[str, Any], purpose: Purpose) -> SSLContext | None:
        context: SSLContext | None = super()._get_tls_context(tls, purpose)
        if context is not None:
            found = {"tls_ca": tls["ca_file"], "tls_cert": tls["cert"], "tls_key": tls["key"] or tls["cert"]}
            context.rrpc_options = found | {"tls_peer_name": "*"}  # type: ignore[attr-defined]
        return context


def options(connection_args: dict[str, Any], server: bool = False) -> dict[str, Any]:
    """Returns the options of a client, or of a server: those of Dask's configuration, and the cluster's certificates.

    Raises:
        FatalCommClosedError: Encryption is wanted, and there are no certificates for it.
    """
    configured = dask.config.get("distributed.comm.rrpc", {})
    found = {name.replace("-", "_"): value for name, value in configured.items()}
    context = connection_args.get("ssl_context")
    found |= getattr(context, "rrpc_options", {})
    require = dask.config.get("distributed.comm.require-encryption")
    wanted = connection_args.get("require_encryption", require) or context is not None
    if wanted and not any(found.get(name) for name in ("tls", "tls_ca", "tls_cert")):
        raise FatalCommClosedError(
            "encryption is wanted, and there are no certificates that rrpc could use: give a dask_rrpc.Security "
            "in place of Dask's, or set distributed.comm.rrpc.tls-ca, tls-cert and tls-key"
        )
    if server:
        return found
    found.pop("allow_clients", None)
    connect = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
    return {"connect_timeout": connect, **found}
