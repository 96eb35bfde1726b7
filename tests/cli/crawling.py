"""What the tests of crawls share: a site with links, and a wait for what happens in another process."""

from __future__ import annotations

import re

from tests.crawling.web import html
from tests.support.site import Site
from tests.support.warm import Process

SECONDS = 30.0
"""How long something may take that takes a moment: machines are busy."""


def linked(site: Site, pages: int = 12, *more: str) -> None:
    """A front page that links to others, each of which links back; `more` are further links on it."""
    paths = [f"/p/{number}" for number in range(pages)]
    site.page("/", html(*paths, *more, title="Home"))
    for path in paths:
        site.page(path, html("/", title=path, text="<main>Hello</main>"))


def line_with(text: str, *data: str) -> str:
    """The one line of a text that has all of these: options, names, paths, numbers."""
    found = [line for line in text.splitlines() if all(each in line for each in data)]
    assert len(found) == 1, f"{len(found)} lines have {data}:\n{text}"
    return found[0]


def numbers(text: str) -> list[int]:
    """The whole numbers in a text, in their order."""
    return [int(each) for each in re.findall(r"\d+", text)]


def reasons_in(text: str) -> list[tuple[int, str, str]]:
    """The reasons in a summary: how many URLs have it, what it is called, and one of the URLs."""
    found = re.findall(r"^ +(\d+)  (.+)\n +(\S+)$", text, re.MULTILINE)
    return [(int(count), what, url) for count, what, url in found]


def told(process: Process[bytes], words: str) -> str:
    """Read standard error up to the line that has some words; that line."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if words.encode() in line:
            return line.decode()
    raise AssertionError(f"{words!r} was never said")
