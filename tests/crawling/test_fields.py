"""Extraction: selectors and functions, what every output has of it, and what hostile pages cost."""

from __future__ import annotations

import csv
import json
import time
from glob import glob
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.crawling import jobs
from curtsy.crawling.extract.fields import MOST_MATCHES, MOST_TAGS, fields_of, values_of
from curtsy.crawling.results import CrawledPage
from curtsy.crawling.start import acrawl
from tests.crawling.web import QUICK, html
from tests.support.site import Site
from tests.support.snapshot import Snapshot

HTML = "text/html; charset=utf-8"
PAGE = """
<base href="/shop/"><h1>  A <b>tea</b>
pot </h1>
<p class="price" data-cents="1250">12.50</p>
<p class="price">9</p><a href="a">a</a><a>none</a><a href="http://[x">odd</a>
<script type="application/ld+json">{"sku": 7}</script>
"""


def found(given: dict[str, str], page: str = PAGE, content_type: str = HTML) -> dict[str, Any]:
    """The fields of a page without a problem."""
    values, problem = values_of(fields_of(given), page.encode(), content_type, "https://example.org/x/y")
    assert problem is None
    return values


def read(path: str | Path) -> str:
    """The text of a file."""
    return Path(path).read_text()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of an output."""
    return [json.loads(line) for line in read(path).splitlines()]


def item(page: CrawledPage) -> dict[str, Any] | None:
    """What a user's function returns: something, nothing, or an error."""
    if page.url.endswith("/bad"):
        raise KeyError("price")
    if page.url.endswith("/none"):
        return None
    return {"url": page.url, "title": page.title, "size": len(page.text), "pair": (1, 2)}


def listed(page: CrawledPage) -> Any:
    """No dict."""
    return [page.url]


async def later(page: CrawledPage) -> dict[str, Any]:
    """Awaits nothing, but might."""
    return {"url": page.url}


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ("h1", "A tea pot"),
        ("h1::text", "A tea pot"),
        ("p.price ::attr( data-cents )", "1250"),
        ("p.price::attr(DATA-CENTS)", "1250"),
        ("h1 > b::html", "<b>tea</b>"),
        ("a::attr(href)", "a"),
        ("a::url(href)", "https://example.org/shop/a"),
        ("h2", None),
        ("h2, h1", "A tea pot"),
        ("p[class='price']:nth-of-type(2)", "9"),
        ("script[type='application/ld+json']", '{"sku": 7}'),
    ],
)
def test_a_field_is_the_first_match(selector: str, value: str | None) -> None:
    """Issue 18, 5"""
    assert found({"x": selector}) == {"x": value}


def test_a_list_has_all_matches() -> None:
    """Issue 18, 5: an element without the attribute is none"""
    given = {"prices[]": ".price", "urls[]": "a::url(href)", "none[]": "h9"}

    assert found(given) == {"prices": ["12.50", "9"], "urls": ["https://example.org/shop/a", "http://[x"], "none": []}


@pytest.mark.parametrize(("page", "content_type"), [("%PDF <h1>x", "application/pdf"), ("", HTML), ("<!--", HTML)])
def test_a_page_without_any_has_all_names(page: str, content_type: str) -> None:
    """Issue 18, 5: rows have the same columns"""
    assert found({"a": "h1", "b[]": "p"}, page, content_type) == {"a": None, "b": []}


@pytest.mark.parametrize(
    "given",
    [
        {"x": "h1["}, {"x": "main .a > h2::txt"}, {"price": "div ..b c"}, {"x": "h1 >"}, {"x": "p:foo(1)"}, {"x": ""},
        {"x": "a[href='x y'] b["}, {"a b": "h1"}, {"": "h1"}, {"x": 3}, {}, {"x": "h1", "x[]": "h2"},
        {"x": "a b c d e"},
    ],
    ids=lambda given: str(given),
)  # fmt: skip
async def test_what_is_no_selector_is_shown_before_anything_is_asked(
    site: Site, given: dict[str, Any], snapshot: Snapshot
) -> None:
    """Issue 18, 5: with its place"""
    with pytest.raises(PolicyError, match="extract") as caught:
        acrawl(site.url("/"), extract=given, **QUICK)

    snapshot(str(caught.value))
    assert site.connections == 0


HOSTILE = {
    "nested": "<div class=b>" * 60_000,
    "nested and flat": "<div class=a>" * 200 + "<i class=b></i>" * 15_000,
    "flat": "<i class=b></i>" * 25_000,
    "attributes": "<p " + " ".join(f"a{number}" for number in range(100_000)) + ">",
    "script": "<script " + " ".join(f"a{number}" for number in range(150_000)) + ">x</script>",
    "text in text": "<div class=b>" * 200 + "x" * 100_000,
    "formatting": "<a><b class=b><p>" * 5_000,
    "tables": "<table><td class=b>" * 20_000,
}
QUICKEST = ("nested", "nested and flat", "attributes")
SELECTORS = (".no .a .b", "i:nth-last-child(2n+1)", "*:has(.no)", "*::html")


@pytest.mark.parametrize(
    "page",
    [each if each in QUICKEST else pytest.param(each, marks=pytest.mark.soak) for each in HOSTILE],
)
def test_a_hostile_page_takes_bounded_time_and_memory(page: str) -> None:
    """Issue 18, 5, U6: CPU time, and all that was not read is told"""
    body = ("<h1>title</h1>" + HOSTILE[page]).encode()

    for selector in SELECTORS:
        began = time.process_time()
        values, problem = values_of(fields_of({"x[]": selector}), body, HTML, "https://example.org/")

        assert time.process_time() - began < 8, selector
        assert len(values["x"]) <= MOST_MATCHES
        assert sum(map(len, values["x"])) <= 5 << 20
        assert problem is not None or len(values["x"]) < MOST_MATCHES or body.count(b"<") < MOST_TAGS
    if page in ("attributes", "script"):
        assert found({"x": "h1"}, body.decode()) == {"x": "title"}


def shop(site: Site) -> None:
    """A list, and items with prices, one of them odd."""
    site.page("/", html("/tea", "/cup", "/none", "/bad"))
    site.page("/tea", html(title="Tea", text="<h1>Tea</h1><p class=price>-3.50</p>"))
    site.page("/cup", html(title="Cup", text="<h1>=Cup</h1>"))
    site.page("/none", html(title=""))
    site.page("/bad", html(title="Bad", text="<h1>Bad</h1>"))


async def test_every_output_has_the_fields(site: Site, tmp_path: Path) -> None:
    """Issue 18, 5: JSON lines, a table, a folder, Parquet"""
    parquet = pytest.importorskip("pyarrow.parquet")
    shop(site)
    names = ["x.jsonl", "x.csv", "x.parquet", "x/"]
    outputs = [str(tmp_path / name) + ("/" if name.endswith("/") else "") for name in names]

    extract = {"name": "h1", "price": ".price", "links[]": "a::attr(href)"}
    summary = await acrawl(site.url("/"), extract=extract, outputs=outputs, **QUICK).run()

    lines = {line["url"]: line["extracted"] for line in lines_of(tmp_path / "x.jsonl")}
    expected = {
        "/": {"name": None, "price": None, "links": ["/tea", "/cup", "/none", "/bad"]},
        "/tea": {"name": "Tea", "price": "-3.50", "links": []},
        "/cup": {"name": "=Cup", "price": None, "links": []},
        "/none": {"name": None, "price": None, "links": []},
        "/bad": {"name": "Bad", "price": None, "links": []},
    }
    assert lines == {site.url(path): fields for path, fields in expected.items()}
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert list(rows[0]) == ["url", "name", "price", "links", "fetched_at"]
    assert {row["url"]: (row["name"], row["price"], row["links"]) for row in rows} == {
        site.url("/"): ("", "", '["/tea","/cup","/none","/bad"]'),
        site.url("/tea"): ("Tea", "-3.50", "[]"),
        site.url("/cup"): ("'=Cup", "", "[]"),
        site.url("/bad"): ("Bad", "", "[]"),
    }
    [part] = glob(f"{tmp_path}/x-*.parquet")
    assert {row["url"]: json.loads(row["extracted"]) for row in parquet.read_table(part).to_pylist()} == lines
    metas = [json.loads(read(path)) for path in glob(f"{tmp_path}/x/*/*.meta.json")]
    assert {meta["url"]: meta["extracted"] for meta in metas} == lines
    assert summary.totals.extract_errors == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_function_of_the_user_extracts(site: Site, tmp_path: Path, workers: int) -> None:
    """Issue 18, 5: an error keeps the page, and is counted and told"""
    shop(site)
    given = QUICK | {"workers": workers, "store": f"sqlite:///{tmp_path / 'state.sqlite'}"}

    outputs = [str(tmp_path / "x.jsonl"), str(tmp_path / "x.csv")]
    summary = await acrawl(site.url("/"), extract=item, outputs=outputs, **given).run()

    lines = {line["url"]: line for line in lines_of(tmp_path / "x.jsonl")}
    assert lines[site.url("/tea")]["extracted"] | {"size": 0} == {
        "url": site.url("/tea"), "title": "Tea", "size": 0, "pair": [1, 2],
    }  # fmt: skip
    assert [lines[site.url(path)]["extracted"] for path in ("/none", "/bad")] == [{}, {}]
    assert lines[site.url("/bad")]["extract_error"] == "KeyError: 'price'"
    assert "extract_error" not in lines[site.url("/none")]
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert {(row["url"], row["title"], row["pair"]) for row in rows} == {
        (site.url("/"), "A page", "[1,2]"), (site.url("/tea"), "Tea", "[1,2]"), (site.url("/cup"), "Cup", "[1,2]"),
    }  # fmt: skip
    assert (summary.fetched, summary.totals.extract_errors) == (5, 1)


async def test_what_is_no_dict_is_an_error_of_each_page(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 18, 5: the pages come nevertheless"""
    shop(site)

    async with acrawl(site.url("/"), extract=listed, **QUICK) as crawl:
        pages = [page async for page in crawl]

    assert len(pages) == 5
    assert {page.extract_error for page in pages} == {
        "the function returned a value of the type list, and must return a dict"
    }
    assert caplog.text.count("are not complete") == 5


@pytest.mark.parametrize("extract", [later, "h1", 3], ids=["async", "text", "number"])
async def test_what_cannot_extract_is_refused(extract: Any, snapshot: Snapshot) -> None:
    """Issue 18, 5"""
    with pytest.raises(PolicyError, match="extract") as caught:
        acrawl("https://example.org/", extract=extract)

    snapshot(str(caught.value).partition(" must be ")[2])


async def test_workers_must_be_able_to_import_the_function(tmp_path: Path, snapshot: Snapshot) -> None:
    """Issue 18, 5"""
    main = FunctionType(listed.__code__, {"__name__": "__main__"})
    local: Any = lambda page: {}  # noqa: E731
    told = []

    for function in (local, main):
        with pytest.raises(PolicyError, match="workers = 2") as caught:
            acrawl("https://example.org/", extract=function, workers=2, store=f"sqlite:///{tmp_path / 's.sqlite'}")
        told.append(str(caught.value).rpartition("Put")[2])

    snapshot("|".join(told))


async def test_a_job_keeps_its_fields(site: Site, tmp_path: Path, snapshot: Snapshot) -> None:
    """Issue 18, 5: an output never has pages with other fields; the same fields resume"""
    shop(site)
    given: dict[str, Any] = QUICK | {"job": tmp_path / "job", "outputs": [str(tmp_path / "x.csv")]}

    await acrawl(site.url("/"), extract={"name": "h1"}, max_pages=2, **given).run()
    with pytest.raises(PolicyError) as caught:
        await acrawl(site.url("/"), extract={"name": "h2"}, **given).run()
    with pytest.raises(PolicyError):
        await acrawl(site.url("/"), **given).run()
    summary = await acrawl(site.url("/"), extract={"name": "h1"}, **given).run()

    snapshot(str(caught.value))
    assert summary.fetched == 5
    rows = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    names = {"/tea": "Tea", "/cup": "'=Cup", "/bad": "Bad"}
    assert rows[0] == ["url", "name", "fetched_at"]
    assert sorted(row[:2] for row in rows[1:]) == sorted([site.url(path), name] for path, name in names.items())


@pytest.mark.parametrize("most", [2, None], ids=["unfinished", "finished"])
async def test_an_output_with_other_fields_is_not_continued(
    site: Site, tmp_path: Path, snapshot: Snapshot, most: int | None
) -> None:
    """Issue 18, 5: nor by a job that starts over, which is left as it is"""
    shop(site)
    table, lines = tmp_path / "x.csv", tmp_path / "x.jsonl"
    given: dict[str, Any] = QUICK | {"job": tmp_path / "job", "max_pages": most}
    await acrawl(site.url("/"), extract={"name": "h1"}, outputs=[table, lines], **given).run()
    before, pages = table.read_bytes(), jobs.look(tmp_path / "job").totals.pages
    site.clear()

    for output, extract in ((table, {"name": "title"}), (table, {"name": "h1", "x": "p"}), (lines, None)):
        with pytest.raises(NotWritten) as caught:
            acrawl(site.url("/"), extract=extract, outputs=[output], restart=True, **given)
    left = jobs.look(tmp_path / "job").totals.pages
    other = {"extract": {"name": "title"}, **given}
    await acrawl(site.url("/"), outputs=[tmp_path / "y.csv"], restart=True, **other).run()
    with pytest.raises(NotWritten):
        await acrawl(site.url("/"), outputs=[tmp_path / "y.csv", table], **other).run()
    await acrawl(site.url("/"), extract={"name": "h1"}, outputs=[table], restart=True, **given).run()

    snapshot(str(caught.value))
    assert left == pages
    assert table.read_bytes().startswith(before)
    assert {row["name"] for row in csv.DictReader(table.read_text().splitlines())} <= {"Tea", "'=Cup", "Bad"}


async def test_rows_of_two_runs_differ_in_their_time(site: Site, tmp_path: Path) -> None:
    """Issue 18, 5: a table of a crawl that runs again has the rows of both; a field of that name is the user's"""
    shop(site)
    given: dict[str, Any] = QUICK | {"job": tmp_path / "job", "extract": {"name": "h1"}}
    for _ in range(2):
        summary = await acrawl(site.url("/"), outputs=[tmp_path / "x.csv"], restart=True, **given).run()
    await acrawl(site.url("/"), extract={"fetched_at": "h1"}, outputs=[tmp_path / "y.csv"], **QUICK).run()

    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert len({(row["url"], row["fetched_at"]) for row in rows}) == len(rows) == 6
    [written] = summary.outputs
    assert (written.before, written.entries) == (3, 6)
    assert (tmp_path / "y.csv").read_text().startswith("url,fetched_at\n")
