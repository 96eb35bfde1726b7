"""Names of a mirror's files, made of URLs alone, which any system takes.

    https://example.org/a/b?x=1 (HTML)    example.org/a/b@x=1.html
    https://example.org/a/                example.org/a/index.html
    https://example.org:8000/CON.png      example.org+8000/%43ON.png

A name has ASCII letters, digits and a few signs only, which no system or shell of a browser treats specially. It stays
below the lengths that Windows allows. A URL whose name would not be allowed, or is taken by another URL, gets a name
made of its hash, in the folder `~` of its host.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from curtsy.core.url import Url
from curtsy.crawling.extract.page import kind_of
from curtsy.crawling.outputs.folder import ENDINGS

MOST_COMPONENT, MOST_NAME, MOST_HOST = 120, 200, 100
"""Most characters of one component, of a whole name, and of the folder of a host."""

HASHED = "~"
"""Folder of a host with the files that are named by a hash."""

# Names of devices on Windows, with any ending.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)(?=[.]|\Z)", re.IGNORECASE)
_SAFE = re.compile(r"[^A-Za-z0-9._~$()+,;=@&'!%-]")
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_SAME = {
    "html": "htm html xhtml", "xhtml": "htm html xhtml xht", "jpg": "jpg jpeg jpe jfif", "js": "js mjs cjs",
    "txt": "txt text log md rst asc", "xml": "xml rss atom svg xsl", "gz": "gz tgz svgz", "zip": "zip jar whl",
    "ogg": "ogg oga ogv", "ico": "ico cur",
}  # fmt: skip
"""Endings that mean the same as the usual one of a content type."""

_PROGRAMS = frozenset(["php", "phtml", "asp", "aspx", "jsp", "cgi", "pl", "py", "rb", "do", "cfm"])
"""Endings of programs on servers, which say nothing about what they return."""


def name_of(url: Url, content_type: str | None) -> str | None:
    """Return the name of the file for a URL, with `/` between its components; None if it cannot have a plain name."""
    path, question, query = url.target.partition("?")
    *folders, last = path[1:].split("/")
    last = (last or "index") + (f"@{query}" if question else "")
    parts = [host_folder(url), *(_component(each) for each in (*folders, last))]
    name = "/".join(parts) + _added_ending(last, content_type)
    is_short = len(name) <= MOST_NAME and max(map(len, name.split("/"))) <= MOST_COMPONENT
    return name if is_short and parts[1] != HASHED else None


def hashed_name(url: Url, content_type: str | None) -> str:
    """Return the name by hash of the file for a URL."""
    digest = hashlib.sha256(url.text.encode()).hexdigest()[:32]
    return f"{host_folder(url)}/{HASHED}/{digest}{_ending(content_type) or '.bin'}"


def host_folder(url: Url) -> str:
    """Return the folder of a URL's host: `example.org`, or `example.org+8000` with a port."""
    name = _component(url.domain.replace(":", "+").replace("[", "").replace("]", ""))
    if len(name) <= MOST_HOST:
        return name
    return f"{name[: MOST_HOST - 13]}+{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def link_to(name: str, page: str) -> str:
    """Return the relative URL of a file, as a link in the file of a page."""
    there, here = name.split("/"), page.split("/")[:-1]
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return quote("/".join([".."] * (len(here) - common) + there[common:]), safe="/~@+,;=$&!-._")


def _component(part: str) -> str:
    """Return a part of a URL as a component of a path."""
    part = _SAFE.sub(lambda found: f"%{ord(found[0]):02X}", part) or "%2F"
    if part.endswith("."):  # Windows drops it; this also covers . and ..
        part = f"{part[:-1]}%2E"
    return f"%{ord(part[0]):02X}{part[1:]}" if _RESERVED.match(part) else part


def _ending(content_type: str | None) -> str:
    return ENDINGS.get(kind_of(content_type), "")


def _added_ending(last: str, content_type: str | None) -> str:
    """Return the ending that a name needs, so that a file has the type of its response; empty if it has it."""
    ending = _ending(content_type)
    if not ending:
        return ""
    there = last.rpartition(".")[2].lower() if "." in last else ""
    if there in _SAME.get(ending[1:], ending[1:]).split():
        return ""
    is_told = kind_of(content_type) in _PAGES or ending in (".css", ".svg") or "@" in last
    return ending if is_told or there in _PROGRAMS or not re.fullmatch("[a-z][a-z0-9]{0,7}", there) else ""
