"""TLS: which certificates are trusted, and what errors of a connection mean."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from functools import cache
from pathlib import Path

from curtsy.core.errors import PolicyError

Verify = bool | str | Path | ssl.SSLContext
"""True for the system's CAs, the path of a CA file or folder to trust besides them, or a context."""


@cache
def system_context() -> ssl.SSLContext:
    """Return a context that trusts the system's CAs, loaded once: that takes some milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def check_verify(verify: Verify) -> ssl.SSLContext | None:
    """Return the context for `verify`; None stands for `system_context()`. Raises PolicyError."""
    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify is True:
        return None
    if verify is False:
        raise PolicyError(
            "verify = False must be True, the path of a CA file or folder, or an ssl.SSLContext. "
            "Certificates are always verified; for a site of your own, give its CA."
        )
    path = Path(verify)
    if not path.exists():
        raise PolicyError(f"verify = {str(path)!r} must be a CA file or folder that exists.")
    context = ssl.create_default_context()
    if path.is_dir():
        context.load_verify_locations(capath=str(path))
    else:
        context.load_verify_locations(cafile=str(path))
    context.set_alpn_protocols(["http/1.1"])
    return context


def has_ended_safely(transport: asyncio.Transport) -> bool:
    """Return whether the peer itself ended its data. Under TLS, an attacker can forge a FIN, but no close_notify."""
    session = transport.get_extra_info("ssl_object")
    try:
        return session is None or not session.read(1)
    except ssl.SSLError:
        return False


def is_plain(error: BaseException) -> bool:
    """Return whether the peer answered a TLS handshake without TLS, usually by a 400 in plain HTTP."""
    return isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"


def describe(error: BaseException) -> str:
    """Describe an error of the operating system or of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with this server: {(error.reason or 'unknown').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
