"""Pages: five kinds of real HTML, made from what comes with Python and with this repository.

pydoc     documentation of a module of the standard library, as `pydoc` writes it
docs      a page of `docs/`, with the navigation over all pages beside it
listing   the directory listing of `http.server` over the standard library
app       a minified page with style, cards with SVG icons, and a script, made from the dashboard
old       the pydoc page as HTML of the nineties: upper case and single quotes
"""

from __future__ import annotations

import functools
import http.server
import pydoc
import re
from importlib import import_module
from itertools import cycle
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "src" / "curtsy" / "observe" / "dashboard" / "static"
SIZE = 20_000
"""Bytes of a page of the benchmark site."""

LINKS = 20
"""Different links of a page of the benchmark site, whatever its kind."""

HREF = re.compile(r"""(<a\b[^>]*?\shref=)("[^"]*"|'[^']*'|[^\s>]+)""", re.IGNORECASE)


def _pydoc() -> str:
    html = pydoc.HTMLDoc()
    return html.page("http.client", html.docmodule(import_module("http.client")))


def _docs() -> str:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    navigation = "".join(
        f'<li class="toctree-l1"><a class="reference internal" href="../{page.relative_to(ROOT / "docs")}">'
        f"{page.stem.replace('-', ' ').title()}</a></li>\n"
        for page in pages
    )
    body = MarkdownIt("commonmark").enable("table").render((ROOT / "docs" / "explanation" / "design.md").read_text())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Design</title>\n</head>\n<body>\n'
        f'<nav class="sidebar" role="navigation">\n<ul>\n{navigation}</ul>\n</nav>\n<main>\n{body}</main>\n</body>'
    )


class _Listing(http.server.SimpleHTTPRequestHandler):
    """Handler without a connection, for its directory listing."""

    def __init__(self) -> None:
        self.path = "/"

    def send_response(self, code: int, message: str | None = None) -> None:
        """Send nothing."""

    def send_header(self, keyword: str, value: str) -> None:
        """Send nothing."""

    def end_headers(self) -> None:
        """Send nothing."""


def _listing() -> str:
    file = _Listing().list_directory(str(Path(http.server.__file__).parents[1]))
    assert file is not None
    return file.read().decode()


def _app() -> str:
    page, style, script, icon = (
        (STATIC / name).read_text() for name in ("index.html", "style.css", "app.js", "icon.svg")
    )
    head, body = page.replace('<meta name="robots" content="noindex">', "").split("<body>")
    cards = "".join(
        f'<a class="card" data-id="{number}" rel="noopener" href="/items/{number}?from=list">{icon}<b>{number}</b></a>'
        for number in range(60)
    )
    html = f"{head}<style>{style[:4000]}</style><body><main>{cards}</main>{body}<script>{script}</script>"
    return re.sub(r"\s+", " ", html).replace("> <", "><")


def _old() -> str:
    def shout(tag: re.Match[str]) -> str:
        return re.sub(r"""([\w-]+)=["']?([^"'\s>]*)["']?""", lambda each: f"{each[1].upper()}='{each[2]}'", tag[0])

    html = re.sub(r"<a href=[^>]*>", shout, _pydoc())
    return re.sub(r"</?\w+", lambda tag: tag[0].upper(), html)


KINDS = {"pydoc": _pydoc, "docs": _docs, "listing": _listing, "app": _app, "old": _old}


@functools.cache
def whole(kind: str) -> bytes:
    """Return a page of a kind with its own links."""
    return KINDS[kind]().encode()


@functools.cache
def _template(kind: str) -> list[str]:
    """Return a page of a kind, cut to SIZE: the parts between its hrefs, and fewer than LINKS of them filled up."""
    text = whole(kind).decode()
    text = text[: text.rindex("<", 0, SIZE)]
    more = max(0, LINKS - len(HREF.findall(text)))
    text += '<p><a href="">more</a></p>\n' * more
    parts = HREF.split(text)
    return [before + tag for before, tag in zip(parts[:-1:3], parts[1::3], strict=True)] + [parts[-1]]


def page(kind: str, hrefs: list[str]) -> bytes:
    """Return a page of a kind whose links are these instead of its own, as often as it has links."""
    *parts, last = _template(kind)
    quote = "'" if kind == "old" else '"'
    return (
        "".join(f"{part}{quote}{href}{quote}" for part, href in zip(parts, cycle(hrefs), strict=False)) + last
    ).encode()
