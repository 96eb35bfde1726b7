"""Links to other views of a page, as the usual systems for listings, wikis, forums and repositories write them."""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.scope import OutOfScope
from curtsy.crawling.extract.traps import MAX_ORDERS, Traps
from curtsy.crawling.extract.views import FILTER_BEGINS, MAX_DATES, PARAMETERS, view
from curtsy.crawling.start import acrawl
from tests.crawling.web import QUICK, graph
from tests.support.site import Site

SHA = "0123456789abcdef0123456789abcdef01234567"
YEAR = 2026
COLOURS = "red", "large", "cotton", "sale"


class Links(NamedTuple):
    """Links on one page of a system: those that a crawl follows, and those that it skips, by reason."""

    page: str
    followed: tuple[str, ...]
    skipped: dict[str, tuple[str, ...]]


SYSTEMS = {
    "Apache listing": Links(
        "https://a.org/pub/",
        ("https://a.org/", "https://a.org/pub/linux/", "https://a.org/pub/README"),
        {"sort_order": ("?C=N;O=D", "?C=M;O=A", "?C=S;O=A", "?C=D;O=A")},
    ),
    "nginx listing": Links(
        "https://a.org/pub/",
        ("https://a.org/pub/linux/", "https://a.org/pub/a+b/c", "https://a.org/+pub/a"),
        {"sort_order": ("?C=N&O=A", "?C=N&O=D", "?C=M&O=A", "?C=S&O=D")},
    ),
    "MediaWiki": Links(
        "https://a.org/wiki/Bread",
        (
            "https://a.org/wiki/Talk:Bread", "https://a.org/wiki/Category:Food", "https://a.org/wiki/Special:AllPages",
            "https://a.org/w/index.php?title=Category:Food&pagefrom=Salt", "https://a.org/wiki/Special:AllPages?from=B",
        ),
        {
            "page_tool": (
                "https://a.org/w/index.php?title=Bread&action=edit",
                "https://a.org/w/index.php?title=Nothing&action=edit&redlink=1",
                "https://a.org/w/index.php?title=Bread&veaction=edit", "https://a.org/wiki/Special:WhatLinksHere/Bread",
                "https://a.org/wiki/Special:RecentChangesLinked/Bread",
                "https://a.org/w/index.php?title=Special:UserLogin&returnto=Bread",
            ),
            "old_version": (
                "https://a.org/w/index.php?title=Bread&action=history", "https://a.org/w/index.php?title=Bread&oldid=7",
                "https://a.org/w/index.php?title=Bread&diff=8&oldid=7",
                "https://a.org/w/index.php?title=Bread&action=info",
            ),
            "print_view": ("https://a.org/w/index.php?title=Bread&printable=yes",),
        },
    ),
    "WordPress": Links(
        "https://a.org/2019/05/bread/",
        (
            "https://a.org/2019/05/", "https://a.org/page/2/", "https://a.org/?p=17", "https://a.org/category/food/",
            "https://a.org/?s=bread", "https://a.org/feed/",
        ),
        {
            "page_tool": (
                "https://a.org/2019/05/bread/?replytocom=123", "https://a.org/wp-login.php?redirect_to=x",
                "https://a.org/wp-admin/", "https://a.org/2019/05/bread/?share=twitter",
                "https://a.org/2019/05/bread/?like_comment=9",
            ),
            "filter": ("https://a.org/shop/?filter_color=red&filter_size=xl", "https://a.org/shop/?min_price=5&max_price=9"),
            "calendar": ("https://a.org/2031/05/", "https://a.org/events/2031-05/", "https://a.org/?tribe-bar-date=2031-05-01"),
        },
    ),
    "WooCommerce": Links(
        "https://a.org/shop/",
        ("https://a.org/shop/page/2/", "https://a.org/shop/?filter_color=red", "https://a.org/product/bread/"),
        {"sort_order": ("https://a.org/shop/?orderby=price", "https://a.org/shop/?orderby=price-desc")},
    ),
    "phpBB": Links(
        "https://a.org/viewtopic.php?f=2&t=17",
        (
            "https://a.org/viewforum.php?f=2", "https://a.org/viewtopic.php?f=2&t=17&start=25",
            "https://a.org/viewtopic.php?p=99", "https://a.org/memberlist.php?mode=viewprofile&u=2",
            "https://a.org/memberlist.php?mode=team", "https://a.org/memberlist.php?mode=group&g=5",
            "https://a.org/search.php?search_id=active_topics", "https://a.org/search.php?author_id=2&sr=posts",
            "https://a.org/app.php/help/faq", "https://a.org/viewonline.php", "https://a.org/report.php?year=2024",
        ),
        {
            "page_tool": (
                "https://a.org/posting.php?mode=reply&f=2&t=17", "https://a.org/ucp.php?mode=login",
                "https://a.org/ucp.php?i=pm&mode=compose&action=quotepost&p=56", "https://a.org/ucp.php?mode=delete_cookies",
                "https://a.org/memberlist.php?mode=contact", "https://a.org/memberlist.php?mode=email&t=17",
                "https://a.org/index.php?hash=bc25afbd&mark=forums&mark_time=1475233356",
                "https://a.org/viewforum.php?hash=bc25afbd&f=2&mark=topics&mark_time=1475233357",
                "https://a.org/viewtopic.php?uid=2&f=2&t=17&watch=topic&start=0&hash=18f0f5a8",
                "https://a.org/viewforum.php?f=2&unwatch=forum&hash=18f0f5a8", "https://a.org/app.php/post/56/report",
            ),
            "print_view": ("https://a.org/viewtopic.php?f=2&t=17&view=print",),
            "sort_order": ("https://a.org/viewtopic.php?f=2&t=17&st=0&sk=t&sd=d",),
        },
    ),
    "Discourse": Links(
        "https://a.org/latest",
        (
            "https://a.org/t/bread/17", "https://a.org/t/bread/17?page=2", "https://a.org/t/bread/17/5",
            "https://a.org/latest?no_definitions=true&page=2", "https://a.org/c/food/5", "https://a.org/tag/rye",
            "https://a.org/top?period=weekly", "https://a.org/categories", "https://a.org/u/baker",
        ),
        {"sort_order": ("https://a.org/latest?order=posts", "https://a.org/latest?ascending=true&order=views")},
    ),
    "Sphinx": Links(
        "https://a.org/en/latest/index.html",
        (
            "https://a.org/en/latest/genindex.html", "https://a.org/en/latest/_sources/index.rst.txt",
            "https://a.org/en/latest/search.html", "https://a.org/en/3.2/index.html?highlight=bread",
        ),
        {},
    ),
    "Trac": Links(
        "https://a.org/wiki/Bread",
        ("https://a.org/ticket/17", "https://a.org/report/1", "https://a.org/changeset/99", "https://a.org/browser/trunk"),
        {
            "old_version": (
                "https://a.org/wiki/Bread?action=diff&version=3", "https://a.org/wiki/Bread?version=3",
                "https://a.org/wiki/Bread?action=history", "https://a.org/browser/trunk?rev=99",
            ),
            "page_tool": ("https://a.org/wiki/Bread?action=edit",),
        },
    ),
    "Trac report": Links(
        "https://a.org/report/1",
        ("https://a.org/report/2", "https://a.org/report/1?page=2"),
        {"sort_order": ("https://a.org/report/1?sort=ticket&asc=1&page=1", "https://a.org/report/1?asc=0")},
    ),
    "cgit": Links(
        "https://a.org/bread.git/tree/",
        (
            "https://a.org/bread.git/log/", "https://a.org/bread.git/tree/src/main.c", "https://a.org/bread.git/refs/",
            f"https://a.org/bread.git/commit/?id={SHA}", "https://a.org/bread.git/log/?ofs=50",
        ),
        {
            "old_version": (
                f"https://a.org/bread.git/tree/?id={SHA}", f"https://a.org/bread.git/diff/?id={SHA}",
                f"https://a.org/bread.git/plain/src/main.c?id={SHA}", f"https://a.org/bread.git/log/?h=main&id={SHA}",
                f"https://a.org/bread.git/diff/?id={SHA}&id2={SHA}",
            )
        },
    ),
    "gitweb": Links(
        "https://a.org/?p=bread.git;a=summary",
        ("https://a.org/?p=bread.git;a=log", "https://a.org/?p=bread.git;a=shortlog"),
        {
            "old_version": (
                f"https://a.org/?p=bread.git;a=blob;f=x.c;hb={SHA}", "https://a.org/?p=bread.git;a=commitdiff",
                f"https://a.org/?p=bread.git;a=tree;h={SHA}",
            )
        },
    ),
    "Gerrit (gitiles)": Links(
        "https://a.org/bread/+/refs/heads/main",
        (
            "https://a.org/bread/+/refs/heads/main/src/main.c", "https://a.org/bread/+refs", "https://a.org/bread/",
            "https://a.org/bread/+/refs/tags/v1.0", "https://a.org/bread/+show/refs/heads/main/README.md",
        ),
        {
            "old_version": (
                f"https://a.org/bread/+/{SHA}", f"https://a.org/bread/+/{SHA}/src", "https://a.org/bread/+log/main",
                "https://a.org/bread/+blame/main/x.c", "https://a.org/bread/+archive/main.tar.gz",
                f"https://a.org/bread/+/{SHA}%5E%21/", f"https://a.org/bread/+/{SHA}%5E/src", f"https://a.org/bread/+/{SHA}..{SHA}/",
                "https://a.org/bread/+/refs/heads/main%5E%21/", "https://a.org/bread/+/refs/heads/main%5E/src/main.c",
                f"https://a.org/bread/+doc/{SHA}/README.md", f"https://a.org/bread/+show/{SHA}/README.md",
                "https://a.org/bread/+diff/main%5E..main",
            )
        },
    ),
    "DokuWiki": Links(
        "https://a.org/doku.php?id=food:bread",
        ("https://a.org/doku.php?id=food:rye", "https://a.org/lib/exe/fetch.php?media=bread.png", "https://a.org/doku.php?id=start"),
        {
            "page_tool": (
                "https://a.org/doku.php?id=food:bread&do=edit", "https://a.org/doku.php?id=food:bread&do=login",
                "https://a.org/doku.php?id=food:bread&do=backlink", "https://a.org/doku.php?id=start&do=index",
            ),
            "old_version": (
                "https://a.org/doku.php?id=food:bread&do=revisions", "https://a.org/doku.php?id=food:bread&rev=1699999999",
                "https://a.org/doku.php?id=food:bread&do=export_pdf", "https://a.org/doku.php?id=food:bread&do=diff",
            ),
        },
    ),
}  # fmt: skip


def canonical(page: str, link: str) -> str:
    url = parse_url(page.partition("?")[0] + link if link.startswith("?") else link)
    assert isinstance(url, Url)
    return url.text


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_pages_of_a_system_are_followed_and_their_other_views_are_not(system: str) -> None:
    """Issue 18, point 3"""
    page, followed, skipped = SYSTEMS[system]
    traps = Traps()

    found = {link: traps.filters(canonical(page, link), page, 1, YEAR) for link in followed}
    left = {link: traps.filters(canonical(page, link), page, 1, YEAR) for links in skipped.values() for link in links}

    assert found == dict.fromkeys(followed)
    assert left == {link: reason for reason, links in skipped.items() for link in links}


RECORDED = json.loads((Path(__file__).parent / "recorded_links.json").read_text())
"""Links of pages that these systems served: by system, page and decision (`followed` or the reason)."""


@pytest.mark.parametrize("system", RECORDED)
def test_recorded_pages_of_a_system_are_followed_and_their_other_views_are_not(system: str) -> None:
    """Issue 18, point 3"""
    for page, links in RECORDED[system].items():
        traps = Traps()
        parent = f"https://a.org{page}"
        assert {
            link: str(traps.filters(f"https://a.org{link}", parent, 1, YEAR) or "followed")
            for decision in links.values()
            for link in decision
        } == {link: name for name, decision in links.items() for link in decision}


def test_an_order_is_skipped_only_on_its_own_page_and_kept_from_page_to_page() -> None:
    """Issue 18, point 3: the only link to a list may name an order"""
    list_, ordered = "https://a.org/list", "https://a.org/list?sort=name"

    assert view(ordered, "https://a.org/") is None
    assert view(f"{ordered}&page=2", ordered) is None
    assert view("https://a.org/list?sort=age", ordered) is OutOfScope.SORT_ORDER
    assert view(ordered, list_) is OutOfScope.SORT_ORDER
    assert view("https://a.org/buy?order=1234", "https://a.org/buy") is None


def test_a_calendar_ends_in_the_next_year_or_after_a_long_chain_of_dates() -> None:
    """Issue 18, point 3: an archive that an index links to is read completely"""
    may, june, april = (f"https://a.org/events/{date}/" for date in ("2026/05", "2026/06", "1885/04"))

    assert view(june, may, MAX_DATES, YEAR) is None
    assert view(june, may, MAX_DATES + 1, YEAR) is OutOfScope.CALENDAR
    assert view(april, "https://a.org/archive", MAX_DATES + 1, YEAR) is None
    assert view("https://a.org/events/2027/01/", may, 1, YEAR) is None
    assert view("https://a.org/events/2028/01/", may, 1, YEAR) is OutOfScope.CALENDAR
    assert view("https://a.org/2031/05/robots-of-the-future/", may, 1, YEAR) is None


def test_filters_as_folders_end_at_their_tenth_reordering() -> None:
    """Issue 18, point 3: faceted filters across paths"""
    urls = [f"https://a.org/shoes/{'/'.join(words)}/{page}" for words in permutations(COLOURS) for page in range(2)]
    traps = Traps()

    first, again = ([traps.filters(url) for url in urls] for _ in range(2))

    assert first == again
    assert first == [None] * 2 * (1 + MAX_ORDERS) + [OutOfScope.TRAP] * (len(urls) - 2 * (1 + MAX_ORDERS))
    assert traps.filters("https://a.org/2019/05/03/") is traps.filters("https://a.org/2019/03/05/") is None


parts = st.text("abc=&;/?+:.-0123456789CNOS", max_size=60)


@given(parts, parts, st.integers(0, 100))
def test_any_link_on_any_page_has_an_answer_that_is_the_same_again(link: str, page: str, depth: int) -> None:
    """Issue 18, point 3; F65"""
    url, parent = f"https://a.org/{link}", f"https://a.org/{page}"

    assert view(url, parent, depth, YEAR) is view(url, parent, depth, YEAR)
    assert "?" in link or view(url, parent) not in (OutOfScope.SORT_ORDER, OutOfScope.FILTER, OutOfScope.PRINT_VIEW)


async def test_a_listing_is_crawled_once_in_one_order(site: Site) -> None:
    """Issue 18, point 3: by the site's journal; skipped links are counted by reason"""
    orders = [f"?C={key};O={way}" for key in "NMSD" for way in "AD"]
    folders = {"/": ["/a/", *orders], "/a/": ["/", "/a/b/", *orders], "/a/b/": ["/a/", *orders]}
    graph(site, folders)

    async with acrawl(site.url("/"), **QUICK) as crawl:
        summary = await crawl.run()

    assert sorted(path for path in site.paths() if path != "/robots.txt") == sorted(folders)
    assert summary.totals.left_out == {"sort_order": len(folders) * len(orders)}


def test_the_documents_list_every_parameter() -> None:
    """Issue 18, point 3: a public list"""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "traps.md").read_text()
    shown = set(re.findall(r"`([^`]+)`", page))
    names = {name for rules in PARAMETERS.values() for each in rules for name in each.split()}

    assert names - shown == set()
    assert {each for each in FILTER_BEGINS if "%" not in each} - {each.removesuffix("*") for each in shown} == set()
    assert {str(reason) for reason in PARAMETERS} - shown == set()
