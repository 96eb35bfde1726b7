"""A certificate authority of the tests' own, and certificates good and bad that it gave out.

authority = Authority()
Site(tls=authority.server("good"))                  # or "expired", "wrong host", "self-signed"
HttpSender(verify=authority.client())            # trusts the authority, and nobody else
authority.write(path)                               # its certificate as a PEM file
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import trustme

Kind = Literal["good", "expired", "wrong host", "self-signed"]


class Authority:
    """Gives out certificates for some loopback addresses and for `shop.test`, `news.test` and what is under them."""

    names = ("127.0.0.1", "127.0.0.2", "::1", "localhost", "shop.test", "*.shop.test", "news.test", "*.news.test")

    @cached_property
    def _root(self) -> Any:
        return trustme.CA(organization_name="curtsy tests")

    def server(self, kind: Kind = "good") -> ssl.SSLContext:
        """What a site shows: a good certificate, or one that must be refused."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        yesterday = datetime.now(UTC) - timedelta(days=1)
        match kind:
            case "good":
                certificate = self._root.issue_cert(*self.names)
            case "expired":
                certificate = self._root.issue_cert(*self.names, not_after=yesterday)
            case "wrong host":
                certificate = self._root.issue_cert("elsewhere.example")
            case "self-signed":
                # Signed by somebody whom nobody has heard of.
                certificate = trustme.CA(organization_name="nobody").issue_cert(*self.names)
        certificate.configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        """What a client verifies with: this authority, and nothing else."""
        context = ssl.create_default_context()
        self._root.configure_trust(context)
        return context

    def write(self, path: Path) -> None:
        """Write the authority's certificate to a file, as a user would have it."""
        self._root.cert_pem.write_to_path(str(path))
