"""The router's certificate and its key, read on this machine."""

from __future__ import annotations

import ssl
from pathlib import Path

from tasks.plan.errors import PlanError
from tasks.plan.settings.settings import Settings


def joined(settings: Settings) -> bytes | None:
    """Certificates and key as one PEM file; None where there is no TLS, or both lie on the host.

    Raises PlanError where they cannot be read, hold something else, or do not belong together. Never shows them.
    """
    if settings.router_tls_on_host or settings.router_tls_certificate is None or settings.router_tls_key is None:
        return None
    certificate, key = Path(settings.router_tls_certificate), Path(settings.router_tls_key)
    parts = {"router_tls_certificate": certificate, "router_tls_key": key}
    try:
        content = [path.read_bytes().strip() for path in parts.values()]
    except OSError as error:
        name = next(name for name, path in parts.items() if str(path) == error.filename)
        raise PlanError(
            f"setting {name} = {error.filename!r} cannot be read on this machine: {error.strerror}"
        ) from None
    try:
        # with a password, OpenSSL would ask for it on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or "no PEM file"
        raise PlanError(
            f"settings router_tls_certificate = {settings.router_tls_certificate!r} and router_tls_key = "
            f"{settings.router_tls_key!r} are no certificate with its key ({str(reason).lower().replace('_', ' ')}): "
            "name two PEM files that belong together, the key without a password"
        ) from None
    return b"\n".join(content) + b"\n"
