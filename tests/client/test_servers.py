"""Kept pages behind the servers that sites run, with compression as they do it: Apache, nginx, lighttpd, Caddy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.fetching import UNPACED, client
from tests.support.servers import started

DEFLATE = "AddOutputFilterByType DEFLATE text/html"
BROTLI = "AddOutputFilterByType BROTLI_COMPRESS text/html"
# As it stands in answers and configurations everywhere: the suffix is removed before Apache compares.
WORKAROUND = """RequestHeader edit "If-None-Match" '^"((.*)-gzip)"$' '"$1", "$2"'"""
# This form of it never lets the server see the suffix.
REMOVED = """RequestHeader edit "If-None-Match" '(.*)-gzip"' '$1"'"""

SETTINGS = {
    "apache, plain": ("apache", ""),
    "apache, gzip": ("apache", DEFLATE),
    "apache, gzip, workaround": ("apache", f"{DEFLATE}\n{WORKAROUND}"),
    "apache, gzip, suffix removed": ("apache", f"{DEFLATE}\n{REMOVED}"),
    "apache, gzip, no suffix": ("apache", f"{DEFLATE}\nDeflateAlterETag NoChange"),
    "apache, brotli": ("apache", BROTLI),
    "nginx, plain": ("nginx", ""),
    "nginx, gzip": ("nginx", "gzip on; gzip_min_length 100;"),
    "lighttpd, plain": ("lighttpd", ""),
    "lighttpd, gzip": ("lighttpd", 'deflate.mimetypes = ("text/html")\ndeflate.allowed-encodings = ("gzip")'),
    "lighttpd, brotli": ("lighttpd", 'deflate.mimetypes = ("text/html")\ndeflate.allowed-encodings = ("brotli")'),
    "caddy, plain": ("caddy", ""),
    "caddy, gzip": ("caddy", "encode gzip"),
    "caddy, zstd": ("caddy", "encode zstd"),
}


@pytest.mark.soak
@pytest.mark.parametrize("setting", SETTINGS)
async def test_a_page_is_confirmed_each_time_and_fetched_only_when_it_changes(setting: str, tmp_path: Path) -> None:
    """N6, N11, F15: by the server's own log"""
    kind, more = SETTINGS[setting]
    folder = tmp_path / "server"
    await asyncio.to_thread(folder.mkdir)
    old, new = "<p>old words</p>\n" * 500, "<p>newer words</p>\n" * 600
    with started(kind, folder, more) as server:
        server.write("page.html", old)
        async with client(clock=None, cache=tmp_path / "pages", cache_mode="revalidate", **UNPACED) as web:
            first = await web.fetch(server.url("page.html"))
            if kind == "lighttpd" and more and first.headers.get("content-encoding") is None:
                pytest.skip("this lighttpd has no mod_deflate: install the package lighttpd-mod-deflate")
            again = [await web.fetch(server.url("page.html")) for _ in range(3)]
            server.write("page.html", new)
            changed = await web.fetch(server.url("page.html"))
            after = await web.fetch(server.url("page.html"))

    assert (first.headers.get("content-encoding") is not None) == (more != "")
    assert [each.text for each in (first, *again, changed, after)] == [old] * 4 + [new] * 2
    assert [each.record.cache for each in again] == ["revalidated"] * 3
    assert server.statuses("page.html") == [200, 304, 304, 304, 200, 304]
