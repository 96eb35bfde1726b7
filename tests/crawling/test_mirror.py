"""Mirrors: a real site becomes files that lead to one another, whatever its URLs are and whenever it is killed."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.client import AsyncClient
from curtsy.core.errors import NotWritten
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.references import Form, decoded, pieces, replaced, values
from curtsy.crawling.outputs.mirror import Mirror
from curtsy.crawling.outputs.mirror_index import INDEX
from curtsy.crawling.outputs.mirror_names import hashed_name, link_to, name_of
from curtsy.crawling.start import acrawl
from curtsy.http.sender import HttpSender
from curtsy.stores.sqlite_file import FileInUse
from tests.crawling.crawl_process import CrawlProcess
from tests.crawling.leaves import page
from tests.crawling.web import QUICK, html
from tests.support.site import Reply, Site, redirect

STYLE = '@import "more.css"; body { background: url( img/back.png ) } /* url(img/no.png) */'
FRONT = """<!doctype html><link rel=stylesheet href="/style.css?v=2"><title>Caf\xe9</title>
<a href="/a">a</a> <a href='/a/'>folder</a> <a href="docs/page?x=1&amp;y=2#part">query</a> <a href="/old">old</a>
<a href=/copy>copy</a> <a href="/v1.2">text</a> <a href="/v1.2/x">below</a> <a href="/Case">C</a> <a href="/case">c</a>
<a href="http://elsewhere.test/">away</a> <a href="#top">top</a> <a href="/missing">gone</a> <a href="/based/">b</a>
<a href="/index.html">same</a> <a href="/a/b?PHPSESSID=0123456789abcdef0123456789abcdef">session</a>
<img src="/img/logo.png" srcset="/img/logo.png 1x, /img/big.png 2x" alt="caf\xe9"> <img src="/private/secret.png">
<p style="background: url(&quot;/img/p.png&quot;)">\xfc</p>"""


def build(site: Site) -> None:
    """A site with the traps of mirrors."""
    site.robots("User-agent: *\nDisallow: /private/")
    for path in ("/", "/index.html"):
        site.page(path, FRONT.encode("latin-1"), content_type="text/html; charset=iso-8859-1", etag='"front"')
    pages = {"/a": ["/deep"], "/a/": ["b"], "/a/b": ["/"], "/docs/page": [], "/new": [], "/v1.2/x": ["/v1.2"]}
    for path, links in {**pages, "/Case": [], "/case": []}.items():
        site.page(path, html(*links, title=path), etag=f'"{path}"')
    site.page("/deep", html("/deeper", text='<img src="deep.png">'))
    site.reply("/old", redirect("/new"))
    site.page("/copy", html(head='<link rel="canonical" href="/new">'))
    site.page("/based/", html("b", "/new", head='<base href="/a/">'))
    site.page("/v1.2", "plain", content_type="text/plain")
    site.page("/style.css", STYLE, content_type="text/css", etag='"s"')
    site.page("/more.css", "p { color: red }", content_type="text/css")
    for name in ("logo", "big", "back", "p", "no"):
        site.page(f"/img/{name}.png", name.encode(), content_type="image/png", etag=f'"{name}"')
    site.page("/deep.png", b"deep", content_type="image/png")


class _References(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


def files(folder: Path) -> dict[str, bytes]:
    """The files of a mirror, without its index."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(INDEX))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def outside(folder: Path) -> set[str]:
    """The URLs to which a mirror leads; every other link of a page must lead to a file of it."""
    found = set()
    for path in folder.rglob("*.html"):
        for reference in _References(path.read_bytes().decode("latin-1")).found:
            url = urlsplit(urljoin(path.as_uri(), reference))
            if url.scheme != "file":
                found.add(url.geturl())
            else:
                assert Path(unquote(url.path)).is_file(), (path, reference)
                assert Path(unquote(url.path)).is_relative_to(folder)
    return found


async def mirror(site: Site, folder: Path, **options: Any) -> dict[str, Any]:
    """Mirror the site; return the summary."""
    async with acrawl(site.url("/"), outputs=[f"mirror:{folder}"], **{**QUICK, **options}) as crawl:
        return (await crawl.run()).as_dict()


async def test_a_site_becomes_files_that_lead_to_one_another(site: Site, tmp_path: Path) -> None:
    """Links and what pages need; redirects and copies are mapped; robots.txt applies; other bytes stay."""
    build(site)
    host, base = f"127.0.0.1+{site.port}", site.url("")

    summary = await mirror(site, tmp_path)

    found = files(tmp_path)
    [hashed] = [name for name in found if "/~/" in name and name.endswith(".html")]
    plain = ["index", "a", "a/index", "a/b", "docs/page@x=1&y=2", "new", "v1.2/x", "deep", "based/index"]
    [cased] = [name for name in found if name.lower() == f"{host}/case.html"]
    images = [f"img/{name}.png" for name in ("logo", "big", "back", "p")]
    [text] = [name for name in found if found[name] == b"plain"]
    others = ["style.css@v=2.css", "more.css", "deep.png", *images]
    expected = {f"{host}/{name}.html" for name in plain} | {f"{host}/{name}" for name in others} | {hashed, cased, text}
    assert set(found) == expected
    away = {"http://elsewhere.test/", f"{base}/missing", f"{base}/private/secret.png", f"{base}/deeper"}
    assert outside(tmp_path) == away
    front = found[f"{host}/index.html"].decode("latin-1")
    assert 'href="docs/page@x=1&amp;y=2.html#part"' in front
    assert front.count('href="new.html"') == 2
    assert 'srcset="img/logo.png 1x, img/big.png 2x" alt="caf\xe9"' in front
    assert 'style="background: url(&quot;img/p.png&quot;)">\xfc</p>' in front
    assert "url( img/back.png )" in found[f"{host}/style.css@v=2.css"].decode()
    assert '<a href="../a/b.html">b</a>' in found[f"{host}/based/index.html"].decode()
    assert [summary[name] for name in ("fetched", "requisites", "redirected")] == [13, 7, 1]
    assert not any(path.startswith("/private/") for path in site.paths())


async def test_a_later_run_asks_what_has_changed_and_writes_only_that(site: Site, tmp_path: Path) -> None:
    """304 leaves a file; a page that is gone stays; a page that changed is replaced with its links"""
    build(site)
    folder, cache = tmp_path / "site", tmp_path / "cache"
    await mirror(site, folder, cache=cache)
    before, times = files(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*.*") if path.is_file()}
    site.page("/a/", html("/new", title="changed"), etag='"other"')
    site.reply("/docs/page", redirect("/nowhere"))
    site.page("/img/logo.png", b"another", content_type="image/png", etag='"another"')
    site.clear()

    await mirror(site, folder, cache=cache, cache_mode="revalidate")

    now = files(folder)
    host = f"127.0.0.1+{site.port}"
    assert {name for name in now if now[name] != before.get(name)} >= {f"{host}/a/index.html", f"{host}/img/logo.png"}
    assert b'href="../new.html"' in now[f"{host}/a/index.html"]
    assert now.keys() == before.keys()
    assert {visit.status for visit in site.visits("/img/big.png")} == {304}
    unchanged = folder / host / "img" / "big.png"
    assert unchanged.stat().st_mtime_ns == times[unchanged]
    outside(folder)


async def test_the_limit_and_the_depth_are_for_pages_and_what_they_need_is_fetched(site: Site, tmp_path: Path) -> None:
    """Requisites are no pages: no limit of pages keeps a page from its pictures, nor does the daily budget of pages"""
    build(site)

    limited = await mirror(site, tmp_path / "limited", max_pages=1, max_pages_per_host=1)
    shallow = await mirror(site, tmp_path / "shallow", max_depth=0)
    budget = await mirror(site, tmp_path / "budget", max_pages_per_day=1, concurrency=1)

    assert {(each["fetched"], each["requisites"]) for each in (limited, shallow, budget)} == {(1, 6)}
    assert [each["ended"] for each in (limited, shallow, budget)] == ["max_pages", "done", "later"]
    assert files(tmp_path / "limited") == files(tmp_path / "shallow") == files(tmp_path / "budget")


async def test_requisites_are_those_of_the_site_of_the_page(site: Site, tmp_path: Path) -> None:
    """Hosts of the same registered domain serve styles and pictures; other sites are asked only if so wanted"""
    hosts = ("www.shop.test", "static.shop.test", "cdn.test")
    pictures = [site.url("/p.png", host=host) for host in hosts]
    site.page("/", "".join(f'<img src="{each}">' for each in pictures))
    site.page("/p.png", b"p", content_type="image/png")

    for requisites, expected in (("site", hosts[:2]), ("any", hosts)):
        site.clear()
        sender = HttpSender(resolver=site.names)
        async with AsyncClient(sender=sender, **QUICK) as client:
            options: dict[str, Any] = {"scope": "host", "requisites": requisites, "client": client}
            seed = site.url("/", host=hosts[0])
            async with acrawl(seed, outputs=[f"mirror:{tmp_path / requisites}"], **options) as crawl:
                await crawl.run()

        asked = Counter(visit.host.partition(":")[0] for visit in site.visits("/p.png"))
        assert asked == dict.fromkeys(expected, 1)


async def test_a_mirror_that_is_killed_is_completed_and_is_the_same(site: Site, tmp_path: Path) -> None:
    """A kill between the index and the frontier: the next run, with two workers, leaves what one run leaves"""
    build(site)
    await mirror(site, tmp_path / "whole", max_in_flight=1)
    job: dict[str, Any] = {
        "seeds": site.url("/"),
        "outputs": [f"mirror:{tmp_path / 'killed'}"],
        "job": str(tmp_path / "job"),
    }
    killed = CrawlProcess(**QUICK, **job, max_in_flight=1, still_after=5)
    killed.wait_until_still()
    killed.kill_when(lambda: True)

    store = f"sqlite:///{tmp_path / 'state.db'}"
    summary = CrawlProcess(**{**QUICK, **job, "store": store}, workers=2, max_in_flight=1).summary()

    assert summary["ended"] == "done"
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    outside(tmp_path / "killed")


async def test_a_mirror_never_leaves_its_folder(site: Site, tmp_path: Path) -> None:
    """F63: a folder that is a link leads elsewhere; a folder of other files is not ours"""
    build(site)
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    await mirror(site, folder, max_pages=1)
    elsewhere.mkdir()
    host = folder / f"127.0.0.1+{site.port}"
    host.rename(tmp_path / "before")
    host.symlink_to(elsewhere)

    with pytest.raises(NotWritten, match="is a link"):
        await mirror(site, folder)
    (elsewhere / "file").write_text("mine")
    with pytest.raises(NotWritten, match="was not written by this crawl"):
        await mirror(site, elsewhere)

    assert os.listdir(elsewhere) == ["file"]


ODD = [*"aZ./\\:*?<>|\"'~%& @#\0\n\u00e9\u202e", "..", "CON", "nul.", "com1.", "%2e", "%2F"]
HOSTILE = st.lists(st.sampled_from(ODD), max_size=40).map("".join)


@given(HOSTILE, st.sampled_from(["text/html", "text/css", "image/png", "text/plain", None, "x/y"]), st.integers(0, 400))
def test_a_name_is_one_that_any_system_takes(path: str, content_type: str | None, longer: int) -> None:
    """F63: below the folder of its host, plain characters, no device of Windows, no dot at the end, short"""
    url = parse_url(f"https://Example.org:8000/{path}{'x' * longer}")
    if not isinstance(url, Url):
        return

    names = [name for name in (name_of(url, content_type), hashed_name(url, content_type)) if name is not None]

    for name in names:
        parts = name.split("/")
        assert parts[0] == "example.org+8000"
        assert len(name) <= 200
        for part in parts:
            assert 0 < len(part.encode()) <= 255
            assert re.fullmatch(r"[A-Za-z0-9._~$()+,;=@&'!%-]+", part)
            assert not part.endswith((".", " "))
            assert not re.match(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|\Z)", part)
        assert name in (name_of(url, content_type), hashed_name(url, content_type))
        page = "example.org+8000/a/b.html"
        assert unquote(urlsplit(urljoin(f"file:///m/{page}", link_to(name, page))).path) == f"/m/{name}"


PAGE = (
    '<!-- <img src=no> --><base href="/b/"><a href=x.html title="<img src=no>">x</a><img src=\'a.png\' srcset="a.png 1x'
    ', b,c.png 2x"><style>@import "i.css"; a{b:url( \'p.png\' )} /* url(no) */ c{d:url(q.png);e:"url(no)"}</style>'
    '<p style="b:url(&quot;r.png&quot;)"><script src=s.js>"<img src=no>"</script><svg><title>x</title><style/><use '
    'xlink:href="u.svg#a"/></svg><title><img src=no></title><meta http-equiv=refresh content="0; url=/r">'
    '<link rel=stylesheet href=t.css integrity="sha256-x" crossorigin><textarea><img src=no></textarea>'
)  # fmt: skip


def urls_in(page: str) -> list[str]:
    """The URLs of a page, in order."""
    wanted = (each for each in values(page) if each.form is not Form.GUARD)
    return [piece.url for each in wanted for piece in pieces(each.form, decoded(page, each, str))]


def test_the_references_of_a_page_are_found_where_a_browser_finds_them() -> None:
    """Comments, scripts, titles and values of other attributes have none; only the URLs are replaced"""
    found = list(values(PAGE))

    new = replaced(PAGE, found, lambda piece, form: "" if form is Form.GUARD else f"N{piece.url}", str, str)

    urls = urls_in(PAGE)
    assert " ".join(urls) == "/b/ x.html a.png a.png b,c.png i.css p.png q.png r.png s.js u.svg#a /r t.css"
    assert new.count("src=no") == PAGE.count("src=no")
    assert '<link rel=stylesheet href="Nt.css">' in new
    assert urls_in(new) == [f"N{url}" for url in urls]
    unchanged = replaced(PAGE, found, lambda piece, form: None, str, str)
    assert unchanged == PAGE


def test_a_search_page_is_a_link_and_a_search_description_a_requisite() -> None:
    """Sphinx names both with `rel=search`: a browser loads the description only"""
    page = (
        '<link rel="search" title="Search" href="search.html">'
        '<link rel=search type="application/opensearchdescription+xml" href="search.xml">'
        '<link rel="icon search" href="icon.png">'
    )

    forms = {page[each.start : each.end]: each.form for each in values(page)}

    assert forms == {"search.html": Form.LINK, "search.xml": Form.REQUISITE, "icon.png": Form.REQUISITE}


@pytest.mark.soak
async def test_a_mirror_is_the_same_over_forty_kills(site: Site, tmp_path: Path) -> None:
    """At any moment"""
    dice = random.Random(40)
    site.on("/p/*", lambda visit: numbered(int(visit.path.rpartition("/")[2]), 300))
    site.page("/p.css", "b { background: url(/back.png) }", content_type="text/css")
    site.page("/back.png", b"back", content_type="image/png")
    site.page("/", html(*(f"/p/{each}" for each in range(300))))
    await mirror(site, tmp_path / "whole")
    job = {"seeds": site.url("/"), "outputs": [f"mirror:{tmp_path / 'killed'}"], "job": str(tmp_path / "job")}
    kills = 0
    for _ in range(40):
        seen = site.count() + dice.randrange(4, 20)
        kills += CrawlProcess(**{**QUICK, **job}).kill_when(lambda: site.count() >= seen)  # noqa: B023

    CrawlProcess(**{**QUICK, **job}).summary()

    assert kills > 10
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    outside(tmp_path / "killed")


def numbered(number: int, pages: int) -> Reply:
    """A page with links to others before and behind it, and one that is larger than most."""
    links = [f"/p/{(number * 7 + each * each) % pages}" for each in range(60)]
    head = '<link rel=stylesheet href="/p.css">'
    return Reply(
        body=html(*links, head=head, text="text " * (number % 50) * 100), headers={"Content-Type": "text/html"}
    )


def test_a_mirror_whose_files_are_gone_says_so_and_belongs_to_one_crawl_at_a_time(tmp_path: Path) -> None:
    """Q8: a resumed job does not fetch its pages again, so its summary counts them as missing"""
    with closing(Mirror(tmp_path / "site")) as output:
        output.open(None)
        output.page(page(0))
        state = output.flush()
        with pytest.raises(FileInUse):
            Mirror(tmp_path / "site").open(None)
    shutil.rmtree(tmp_path / "site")

    resumed = Mirror(tmp_path / "site")
    resumed.open(state)

    assert (resumed.written().entries, resumed.written().missing) == (0, 1)
    resumed.page(page(1))
    assert resumed.flush() == {"run": 1, "files": 2}
    resumed.close()
