"""Pages made to hurt, and a program that reads one of them and says what that took:

    python -m tests.crawling.costly NAME

prints the seconds of CPU time and the MiB above the start, the body included in the start, for links and for the main
text. Reading is done in a child process: its own high-water mark counts, and nothing of what made the page.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from tempfile import TemporaryFile

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import extract
from curtsy.crawling.extract.text import main_text

SIZE = 10 << 20
"""Bytes of a page: as many as a client takes by default."""


def _full(part: str, *, head: str = "") -> bytes:
    """A page of one part, again and again."""
    written = part.encode()
    return head.encode() + written * (SIZE // len(written))


def _numbered(part: str) -> bytes:
    """A page of parts with a number each, in place of `#`."""
    before, _, after = part.partition("#")
    size = len(part.encode()) + 6
    return "".join(f"{before}{number}{after}" for number in range(SIZE // size)).encode()


def _based(base: str, href: str) -> bytes:
    """A small page of links that are relative to a long base."""
    before, _, after = href.partition("#")
    links = "".join(f"<a href='{before}{number}{after}'>" for number in range(20_000))
    return f"<base href='http://example.org/{base}/'>{links}".encode()


def _names() -> bytes:
    """Links to hosts of four labels of Chinese characters each."""
    letters = random.Random(1)
    labels = ["".join(chr(letters.randrange(0x4E00, 0x9000)) for _ in range(19)) for _ in range(4000)]
    return "".join(f'<a href="http://{".".join(letters.sample(labels, 4))}/">' for _ in range(40_000)).encode()


BOMBS: dict[str, Callable[[], bytes]] = {
    "links": lambda: _numbered("<a href=/#>x</a>"),
    "plain links": lambda: _numbered('<a href="/#">'),
    "links with rel": lambda: _numbered('<a rel=x href="/#&amp;">'),
    "links without a target": lambda: _full("<a>"),
    "links with attributes": lambda: _full("<a href=x " + "b " * 30_000 + ">"),
    "names": lambda: _numbered('<a href="http://bücher#.example/">'),
    "long names": _names,
    "escaped names": lambda: _numbered("<a href='h\tttp://b%C3%BCch#.example/'>"),
    "long hosts": lambda: _numbered(f"<a href=http://#{'.a' * 100}/>"),
    "long paths": lambda: _numbered(f"<a href='/#{'%41' * 2600}'>"),
    "blanks": lambda: _numbered(f"<a href='/#{' é' * 900}'>"),
    "dots": lambda: _numbered(f"<a href='/#{'/a/..' * 1300}'>"),
    "a long base": lambda: _based("a" * 8000, "#"),
    "a deep base": lambda: _based("a/" * 4000, "../../#"),
    "a foreign base": lambda: _based("é" * 900, "é#"),
    "nested blocks": lambda: _full("<div>"),
    "nested sections": lambda: _full("<nav>"),
    "nested drawings": lambda: _full("<svg>"),
    "blocks in a drawing": lambda: _full("<p>", head="<svg><title>"),
    "ends in a drawing": lambda: _full("</q>", head=f"<div title='{'<!--' * 1000}'><svg>"),
    "ends in drawings": lambda: _full(f"<div title='{'<script>' * 250}'>{'<svg></q></svg>' * 130}"),
    "drawings left open": lambda: _full("<div><svg></div>"),
    "templates": lambda: _full("<template></template>"),
    "formatting left open": lambda: b"<p>" + b"".join(b"<font c=%d>" % n for n in range(1000)) + _full("</p><p>x"),
    "capitals": lambda: _full("<P>"),
    "nothing but beginnings": lambda: _full("<"),
    "comments": lambda: _full("<!-->"),
    "scripts": lambda: _full("<script><!--</script>"),
    "scripts left open": lambda: _full("<script>"),
    "empty scripts": lambda: _full("<script/>"),
    "titles": lambda: _full("<title></title>"),
    "a title": lambda: _full("&amp;x ", head="<title>"),
    "directives": lambda: _full('<meta name=robots content="' + "a,b," * 15_000 + '">'),
    "refreshes": lambda: _numbered("<meta http-equiv=refresh content=1;url=#>"),
    "references": lambda: _full("<a href='" + "&lt;" * 2000 + "'>"),
    "quotes": lambda: _full('<a "'),
    "attributes": lambda: _full("b ", head="<<b>p "),
    "an emoji": lambda: _full("x", head="<p>\U0001f600"),
    "words": lambda: _full("ж ", head="<p>"),
    "noise": lambda: b"<p>" + random.Random(1).randbytes(SIZE),
    "kana": lambda: b"<p>" + b"\xb1" * SIZE,
    "declarations": lambda: _full("<meta '") + b"\xff",
}

QUICK = (
    "links",
    "long names",
    "a foreign base",
    "nested blocks",
    "blocks in a drawing",
    "ends in a drawing",
    "words",
    "noise",
)
"""Those that are read in every run of the tests; the soak reads all."""


def _measured(work: Callable[[], object]) -> tuple[float, float]:
    """The seconds of CPU time that work takes, and the MiB that it adds, in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with open("/proc/self/statm") as file:
                os.write(writing, file.read().split()[1].encode())  # a child has fewer pages than its parent
            work()
            status = 0
        finally:
            os._exit(status)
    _, status, used = os.wait4(child, 0)
    assert status == 0, status
    start = int(os.read(reading, 100)) * os.sysconf("SC_PAGE_SIZE")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024 - start / (1 << 20)


def main(arguments: Sequence[str]) -> None:
    """Read a page, and say what that took."""
    (name,) = arguments
    kind = "application/xhtml+xml" if name == "empty scripts" else "text/html"
    page = parse_url("http://example.org/")
    assert isinstance(page, Url)
    for body in (b"<p>x", b"\xa4\xff"):  # what is imported late is no part of the price
        extract(body, "text/html", page)
        main_text(body, "text/html")
    with TemporaryFile(buffering=0) as file:
        _measured(lambda: file.write(BOMBS[name]()))  # elsewhere, so that no memory is left over here
        file.seek(0)
        body = file.read()
    seconds, mib = _measured(lambda: extract(body, kind, page))
    more, text_mib = _measured(lambda: main_text(body, kind))
    print(seconds, more, mib, text_mib)


if __name__ == "__main__":
    main(sys.argv[1:])
