"""Extraction: links, title and directives of a page, over the time that lexbor takes to parse it and find its links.

    python -m benchmarks.extraction [--quick]

Lexbor's time is that of selectolax for the tree and `a[href]`, without resolving a link. The links must be the same.
"""

from __future__ import annotations

from functools import partial

from selectolax.lexbor import LexborHTMLParser

from benchmarks.measure import alternate, cpu, ratios
from benchmarks.pages import KINDS, whole
from benchmarks.report import Report, run
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import extract

BASE = parse_url("https://www.example.org/2026/index.html")


def extraction(report: Report, kind: str) -> None:
    """Report the figures of one kind of page."""
    assert isinstance(BASE, Url)
    body, base = whole(kind), BASE
    hrefs = [node.attributes["href"] for node in LexborHTMLParser(body).css("a[href]")]
    parsed = [parse_url(href, base) for href in hrefs if href is not None]
    theirs = {found.text for found in parsed if isinstance(found, Url)}
    rounds, count = (3, 5) if report.is_quick else (15, 50)
    found = alternate(
        {
            "lexbor": lambda: cpu(lambda: LexborHTMLParser(body).css("a[href]"), count),
            "curtsy": lambda: cpu(lambda: extract(body, "text/html", base), count),
        },
        rounds,
    )
    report.title(f"{kind} page")
    report.add("size", len(body) / 1000, "KB")
    report.add("lexbor, tree and a[href]", found["lexbor"], "µs")
    report.add("curtsy", found["curtsy"], "µs")
    report.add("curtsy over lexbor", ratios(found["curtsy"], found["lexbor"]), "x", at_most=1.5)
    different = theirs ^ {*extract(body, "text/html", base).links}
    report.add("links that differ from lexbor's", len(different), "links", at_most=0)


if __name__ == "__main__":
    run("extraction", __doc__, {kind: partial(extraction, kind=kind) for kind in KINDS})
