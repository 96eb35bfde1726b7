"""A crawl that is killed, stopped or started with other settings goes on. Real processes, really killed."""

from __future__ import annotations

import csv
import json
import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.crawling import jobs
from curtsy.crawling.crawl import AsyncCrawl
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.start import Crawl, acrawl
from curtsy.stores.sqlite_file import FileInUse
from tests.crawling.crawl_process import CrawlProcess
from tests.crawling.web import QUICK, crawled, graph, html
from tests.support.site import Reply, Site, Visit
from tests.support.snapshot import Snapshot

IN_FLIGHT = 8


def fan(number: int, pages: int) -> list[int]:
    """One page links to all others."""
    return list(range(1, pages)) if number == 0 else [0]


def tree(number: int, pages: int) -> list[int]:
    """Each links to two below it, and to some above."""
    dice = random.Random(number)
    below = [2 * number + 1, 2 * number + 2, *(dice.randrange(number + 1) for _ in range(3))]
    return [each for each in below if each < pages]


SHAPES = {"fan": fan, "tree": tree}


def build(site: Site, shape: str, pages: int) -> None:
    """A site of so many pages."""

    def answer(visit: Visit) -> Reply:
        number = int(visit.path.rpartition("/")[2])
        links = [f"/page/{each}" for each in SHAPES[shape](number, pages)]
        return Reply(body=html(*links, title=f"Page {number}"), headers={"Content-Type": "text/html"})

    site.on("/page/*", answer)


def listed(site: Site, pages: int) -> dict[str, Any]:
    """A site whose pages are found by its sitemaps alone; how it is to be crawled."""
    maps = [f"/map/{number}" for number in range(8)]
    entries = "".join(f"<sitemap><loc>{site.url(path)}</loc></sitemap>" for path in maps)
    site.reply("/sitemap.xml", Reply(body=f"<sitemapindex>{entries}</sitemapindex>"))
    for place, path in enumerate(maps):
        urls = (site.url(f"/page/{number}") for number in range(place, pages, len(maps)))
        site.reply(path, Reply(body=f"<urlset>{''.join(f'<url><loc>{url}</loc></url>' for url in urls)}</urlset>"))
    return {"sitemaps": True}


def seeded(site: Site, pages: int) -> dict[str, Any]:
    """A site whose pages are all given as seeds."""
    return {"seeds": [site.url(f"/page/{number}") for number in range(pages)]}


SOURCES = {"sitemaps": listed, "seeds": seeded}


def kill_again_and_again(site: Site, folder: Path, shape: str, pages: int, kills: int) -> None:
    dice = random.Random(pages + kills)
    output = folder / "pages.jsonl"
    options: dict[str, Any] = {
        **QUICK, "seeds": site.url("/page/0"), "job": str(folder / "job"),
        "outputs": [str(output), str(table := folder / "pages.csv")], "max_in_flight": IN_FLIGHT,
        "extract": {"name": "title", "links[]": "a::url(href)"},
    }  # fmt: skip
    if shape in SOURCES:
        site.on("/page/*", lambda visit: Reply(body=html(), headers={"Content-Type": "text/html"}))
        options |= SOURCES[shape](site, pages)
    else:
        build(site, shape, pages)
    killed = 0
    while killed < kills:
        enough = len(site.journal) + 1 + dice.randrange(2 * pages // kills)
        if not CrawlProcess(**options).kill_when(lambda: len(site.journal) >= enough):  # noqa: B023
            break
        killed += 1
    summary = CrawlProcess(**options).summary()

    seen = Counter(visit.path for visit in site.visits() if visit.path.startswith("/page/"))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    everything = {f"/page/{number}" for number in range(pages)}
    assert set(seen) == everything, "some page was lost"
    most = 2 * IN_FLIGHT  # what was in flight, and what had come before it and was not written yet
    assert sum(seen.values()) - pages <= killed * most, "more was repeated than was in flight"
    assert Counter(line["url"] for line in lines) == Counter(site.url(path) for path in everything)
    csv.field_size_limit(1 << 24)  # links of a page, in one field
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["url"]: (row["name"], json.loads(row["links"])) for row in rows} == {
        line["url"]: (line["extracted"]["name"], line["extracted"]["links"]) for line in lines
    }
    assert len(rows) == pages, "some row was lost, or written twice"
    assert (summary["ended"], summary["fetched"], summary["queued"]) == ("done", pages, 0)
    assert killed >= kills // 2


@pytest.mark.parametrize("shape", [*SHAPES, *SOURCES])
def test_killed_again_and_again_it_loses_nothing(site: Site, tmp_path: Path, shape: str) -> None:
    """F37, Issue 5: no page is lost, in the output each stands once, and only what was in flight is asked for again"""
    kill_again_and_again(site, tmp_path, shape, pages=160, kills=4)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", [*SHAPES, *SOURCES])
def test_thousands_of_pages_and_twenty_kills(site: Site, tmp_path: Path, shape: str) -> None:
    """F37, Issue 5"""
    kill_again_and_again(site, tmp_path, shape, pages=4000, kills=20)


async def test_stopped_in_the_middle_it_goes_on(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4"""
    build(site, "tree", 100)
    job = tmp_path / "job"

    first = []
    async with acrawl(site.url("/page/0"), job=job, max_in_flight=IN_FLIGHT, **QUICK) as crawl:
        async for page in crawl:
            first.append(page.url)
            if len(first) == 30:
                break
    second, done = await crawled(site, "/page/0", job=job)

    assert len(set(first) | {site.url(path) for path in second}) == 100
    assert done.summary is not None
    assert done.summary.fetched == 100
    assert (
        site.count() - site.count("/robots.txt") <= 100 + 2 * IN_FLIGHT
    )  # what was in flight, and what had come before it was asked for


async def test_the_time_of_a_job_is_that_of_all_its_runs(site: Site, tmp_path: Path) -> None:
    """U14: also that after its last page, so that it never goes back"""
    build(site, "fan", 20)
    seconds = []
    for most in (3, 6, None):
        async with acrawl(site.url("/page/0"), **QUICK, job=tmp_path / "job", max_pages=most) as crawl:
            summary = await crawl.run()
        seconds += [summary.totals.seconds, jobs.look(tmp_path / "job").totals.seconds]

    assert seconds[::2] == seconds[1::2]
    assert 0 < seconds[0] < seconds[2] < seconds[4]


async def test_a_page_that_was_handed_out_but_not_dealt_with_comes_again(site: Site, tmp_path: Path) -> None:
    """Issue 5: whoever iterates has a page for good only when asking for the next"""
    build(site, "fan", 5)
    job = tmp_path / "job"
    crawl = acrawl(site.url("/page/0"), job=job, **QUICK)
    pages = aiter(crawl)
    first = await anext(pages)
    crawl.stop()
    crawl.stop()
    await crawl.run()

    again, _ = await crawled(site, "/page/0", job=job)

    assert first.url == site.url("/page/0")
    assert sorted(again) == [f"/page/{number}" for number in range(5)]


async def test_what_is_finished_is_not_done_again_unless_afresh(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4"""
    graph(site, {"/": ["/a"], "/a": []})
    job = tmp_path / "job"

    await crawled(site, job=job)
    again, _ = await crawled(site, job=job)
    afresh, _ = await crawled(site, job=job, restart=True)

    assert again == []
    assert sorted(afresh) == ["/", "/a"]


async def test_a_seed_that_the_settings_forbade_is_asked_for_when_they_allow_it(site: Site, tmp_path: Path) -> None:
    """U2, U9: with the same job, and no word of a fresh start"""
    graph(site, {"/": ["/a"], "/a": []})
    job = tmp_path / "job"

    refused, before = await crawled(site, job=job, allow_private=False)
    allowed, after = await crawled(site, job=job)

    assert refused == []
    assert before.summary is not None
    assert before.summary.reasons == {site.url("/"): "address_refused"}
    assert (before.summary.skipped, before.summary.total) == (1, 1)
    assert sorted(allowed) == ["/", "/a"]
    assert after.summary is not None
    assert (after.summary.skipped, after.summary.fetched) == (0, 2)


async def test_a_changed_scope_is_said(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """Issue 5, point 4"""
    graph(site, {"/": ["/a"], "/a": []})
    job = tmp_path / "job"
    await crawled(site, job=job)

    with caplog.at_level(logging.WARNING, "curtsy"):
        await crawled(site, job=job)
        unchanged = [record.getMessage() for record in caplog.records]
        _, changed = await crawled(site, job=job, max_depth=1)

    assert changed.summary is not None
    [told] = [text for each in caplog.records if (text := each.getMessage()) not in unchanged]
    assert "depth" in told
    assert told in changed.summary.message
    snapshot(told)


async def test_a_job_is_not_gone_on_with_from_where_it_never_was(
    site: Site, tmp_path: Path, snapshot: Snapshot
) -> None:
    """Issue 5, point 4: nothing is asked for, nothing is written, and the job stays as it was"""
    graph(site, {"/": ["/a"], "/a": []})
    job, output = tmp_path / "job", tmp_path / "pages.jsonl"
    await crawled(site, job=job, outputs=[output])
    site.clear()
    there = site.url("/", host="127.0.0.2")

    for work in (AsyncCrawl.plan, AsyncCrawl.run):
        async with acrawl(there, **QUICK, job=job, outputs=[output, tmp_path / "other.jsonl"]) as crawl:
            with pytest.raises(PolicyError) as told:
                await work(crawl)
        assert site.url("/") in str(told.value)
        assert there in str(told.value)
        snapshot(str(told.value))

    assert site.count() == 0
    assert not (tmp_path / "other.jsonl").exists()
    assert jobs.look(job).seeds == (site.url("/"),)


@pytest.mark.parametrize(
    ("seeds", "given"),
    [
        (["127.0.0.1/docs/"], {}),
        (["127.0.0.1/docs/deeper/"], {}),
        (["127.0.0.1/docs/a.pdf"], {"max_depth": 0}),
        (["127.0.0.1/docs/", "127.0.0.2/"], {}),
        (["127.0.0.2/"], {"restart": True}),
    ],
    ids=["the same", "further down", "no page", "one of two", "anew"],
)
async def test_a_job_is_gone_on_with_if_one_of_its_seeds_has_to_do_with_it(
    site: Site, tmp_path: Path, seeds: list[str], given: dict[str, Any]
) -> None:
    """Issue 5, point 4"""
    site.page("/*", html())

    def url(seed: str) -> str:
        host, _, path = seed.partition("/")
        return site.url(f"/{path}", host=host)

    await crawled(site, "/docs/", job=tmp_path / "job", scope="prefix")

    async with acrawl([url(seed) for seed in seeds], **QUICK, **given, job=tmp_path / "job", scope="prefix") as crawl:
        summary = await crawl.run()

    assert summary.ended == "done"


async def test_a_job_remembers_all_where_it_began(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4: a run further down does not keep the next one from going on at the top"""
    site.page("/*", html())
    job = tmp_path / "job"
    for path in ("/docs/", "/docs/deeper/", "/docs/"):
        await crawled(site, path, job=job, scope="prefix")

    assert jobs.look(job).seeds == (site.url("/docs/"), site.url("/docs/deeper/"))


@pytest.mark.parametrize("seed", ["127.0.0.1", "127.0.0.2"], ids=["the same", "where it led"])
async def test_where_a_seed_led_belongs_to_a_resumed_job(site: Site, tmp_path: Path, seed: str) -> None:
    """Issue 5: the seed is not requested again"""
    there = "127.0.0.2"
    site.reply("/", Reply(302, headers={"Location": site.url("/home", host=there)}), host="127.0.0.1")
    site.page("/home", html("/a"), host=there)
    site.page("/a", html("/b"), host=there)
    site.page("/b", html("/c"), host=there)
    job = tmp_path / "job"
    await crawled(site, job=job, scope="host", max_pages=1)
    path = "/" if seed == "127.0.0.1" else "/home"

    async with acrawl(site.url(path, host=seed), **QUICK, job=job, scope="host") as crawl:
        pages = [page.url async for page in crawl]

    assert pages == [site.url("/a", host=there), site.url("/b", host=there)]
    assert (site.count("/"), site.count("/home", host=there)) == (1, 1)


async def test_a_limit_of_pages_holds_over_all_parts_of_a_job(site: Site, tmp_path: Path) -> None:
    """Issue 5"""
    build(site, "fan", 20)
    job = tmp_path / "job"

    first, _ = await crawled(site, "/page/0", job=job, max_pages=5)
    second, _ = await crawled(site, "/page/0", job=job, max_pages=8)

    assert (len(first), len(second)) == (5, 3)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_url_outside_the_crawl_has_one_row_however_often_the_job_is_resumed(
    kind: str, request: pytest.FixtureRequest, site: Site, tmp_path: Path
) -> None:
    """Also one that two hosts link to, and a seed that the settings refuse."""
    there = site.url("", host="localhost")
    far, near, refused = "http://far.test/", site.url("/no/1"), site.url("/denied")
    graph(site, {"/": ["/a", "/b", far, "/no/1"], "/a": [far, "/no/1"], "/b": [far, "/no/1"]})
    graph(site, {"/": [f"{there}/a", far], "/a": [far]}, host="localhost")
    given: dict[str, Any] = {"job": "once" if kind == "redis" else tmp_path / "job", "skip": ["/no/"], **QUICK}
    if kind == "redis":
        given["store"] = request.getfixturevalue("server").url
    table, seeds = tmp_path / "skipped.csv", [site.url("/"), f"{there}/", refused]
    written = []

    for most in (1, 2, 3, None):
        outputs = [f"skipped:{table}"]
        async with acrawl(seeds, outputs=outputs, max_pages=most, deny_paths=["/denied"], **given) as crawl:
            summary = await crawl.run()
        with table.open(newline="") as file:
            written.append([row["url"] for row in csv.DictReader(file)])

    assert sorted(written[-1]) == sorted([far, near, refused])
    assert all(len(set(rows)) == len(rows) for rows in written)
    assert sum(crawl.totals.left_out.values()) == 2
    assert (summary.ended, summary.skipped) == ("done", 1)


async def test_a_limit_of_pages_per_host_holds_over_all_parts_of_a_job(site: Site, tmp_path: Path) -> None:
    """Issue 5: also over a part that had no such limit"""
    build(site, "fan", 20)
    job = tmp_path / "job"

    first, _ = await crawled(site, "/page/0", job=job, max_pages=5)
    second, _ = await crawled(site, "/page/0", job=job, max_pages=7, max_pages_per_host=9)
    third, done = await crawled(site, "/page/0", job=job, max_pages_per_host=9)

    assert (len(first), len(second), len(third)) == (5, 2, 2)
    assert done.totals.skipped == {"host_limit": 11}


async def test_a_second_crawl_of_the_same_job_is_told_whose_it_is(site: Site, tmp_path: Path) -> None:
    """F42: and asks nothing"""
    graph(site, {"/": []})
    job = tmp_path / "job"

    async with acrawl(site.url("/"), job=job, **QUICK):
        with pytest.raises(FileInUse, match=rf"\b{os.getpid()}\b"):
            acrawl(site.url("/"), job=job, **QUICK)

    assert site.count() == 0


async def test_a_page_on_which_the_reader_dies_does_not_end_every_run(site: Site, tmp_path: Path) -> None:
    """Issue 5: parsers in C have crashed on real pages. It is tried alone, and given up in the end"""
    build(site, "fan", 10)
    options: dict[str, Any] = {**QUICK, "seeds": site.url("/page/0"), "job": str(tmp_path / "job")}
    for _ in range(8):
        process = CrawlProcess(**options)
        asked = site.count("/page/7")
        if not process.kill_when(lambda: site.count("/page/7") > asked):  # noqa: B023
            break
    summary = CrawlProcess(**options).summary()

    assert summary["ended"] == "done"
    assert summary["fetched"] + summary["failed"] == 10
    assert summary["failed"] <= 1
    assert site.count("/page/7") <= 7


def test_jobs_can_be_looked_at_and_removed(site: Site, tmp_path: Path) -> None:
    """Issue 6: `curtsy jobs`"""
    build(site, "fan", 4)
    folder = tmp_path / "jobs" / "first"
    CrawlProcess(**{**QUICK, "seeds": site.url("/page/0"), "job": str(folder), "max_pages": 2}).summary()

    [job] = jobs.jobs(tmp_path / "jobs")
    jobs.remove(folder)

    assert (job.name, job.seeds, job.totals.pages, job.is_running) == ("first", (site.url("/page/0"),), 2, False)
    assert job.counts is not None
    assert job.counts.queued == 2
    assert not list(jobs.jobs(tmp_path / "jobs"))


async def test_an_output_is_compared_with_all_pages_of_its_job(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U14: those of runs in which it was not named are not in it; a job that starts over has none of them"""
    build(site, "fan", 20)
    site.reply("/page/19", Reply(404))
    job, names = tmp_path / "job", ("a.jsonl", "b.jsonl", "skipped.csv")
    a, b, skipped = (tmp_path / name for name in names)

    async def lacking(most: int, *outputs: Path, **more: Any) -> dict[str, int]:
        given = [SkippedCsv(each) if each == skipped else each for each in outputs]
        async with acrawl(
            site.url("/page/0"), job=job, outputs=given, max_pages=most, max_in_flight=1, **QUICK, **more
        ) as crawl:
            summary = await crawl.run()
        return {Path(each.name).name: each.earlier for each in summary.outputs}

    found = [await lacking(3, a)]
    with caplog.at_level(logging.WARNING, "curtsy"):
        found += [await lacking(7, a, b), await lacking(9, b)]
        told = [record.getMessage() for record in caplog.records if record.name == "curtsy.crawl"]
        found += [await lacking(10, a, b), await lacking(12, a, b), await lacking(40, a), await lacking(40, b, skipped)]
    anew = await lacking(5, a, b, restart=True)

    assert found == [
        {"a.jsonl": 0}, {"a.jsonl": 0, "b.jsonl": 3}, {"b.jsonl": 3}, {"a.jsonl": 2, "b.jsonl": 3},
        {"a.jsonl": 2, "b.jsonl": 3}, {"a.jsonl": 2}, {"b.jsonl": 10, "skipped.csv": 1},
    ]  # fmt: skip
    assert anew == {"a.jsonl": 0, "b.jsonl": 0}
    assert [(str(a) in each, str(b) in each) for each in told] == [(False, True), (True, False)]
    snapshot("\n".join(told))


@pytest.mark.parametrize("restart", [False, True])
async def test_what_a_user_adds_to_an_output_is_not_cut_off(
    site: Site, tmp_path: Path, snapshot: Snapshot, restart: bool
) -> None:
    """F37: after a run that ended, every byte beyond its end is another program's; the job stays as it was"""
    build(site, "fan", 8)
    job, outputs = tmp_path / "job", [tmp_path / "a.jsonl", tmp_path / "b.csv", f"{tmp_path}/c/", tmp_path / "d.warc"]
    given: dict[str, Any] = {**QUICK, "job": job, "outputs": outputs}
    await crawled(site, "/page/0", max_pages=3, **given)

    for name in ("a.jsonl", "b.csv", "c/index.jsonl", "d-00001.warc"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before + b"mine\n")
        with pytest.raises(NotWritten) as told:
            await crawled(site, "/page/0", restart=restart, **given)
        assert (tmp_path / name).read_bytes() == before + b"mine\n"
        assert jobs.look(job).totals.pages == 3
        (tmp_path / name).write_bytes(before)
    _, done = await crawled(site, "/page/0", **given)

    assert told.value.is_lasting
    snapshot(str(told.value))
    assert done.summary is not None
    assert (done.summary.fetched, done.summary.missing) == (8, 0)


async def test_rows_of_skipped_seeds_are_no_addition_of_a_user(site: Site, tmp_path: Path) -> None:
    """F37: they are written after the last commit"""
    build(site, "fan", 3)
    given: dict[str, Any] = {**QUICK, "job": tmp_path / "job", "outputs": [SkippedCsv(tmp_path / "skipped.csv")]}
    seeds = [site.url("/page/0"), site.url("/page/1", host="127.0.0.2")]

    for most in (1, 2, None):
        async with acrawl(seeds, denylist=["127.0.0.2"], max_pages=most, **given) as crawl:
            summary = await crawl.run()

    assert (summary.fetched, summary.skipped) == (3, 1)


async def test_a_crawl_that_cannot_start_leaves_no_job(site: Site, tmp_path: Path) -> None:
    """F42: in Python as on the command line, whether it fails, is only planned or is a second one"""
    graph(site, {"/": []})
    (tmp_path / "other.jsonl").write_text("not ours\n")
    job = tmp_path / "job"

    async with acrawl(site.url("/"), job=job, outputs=[tmp_path / "other.jsonl"], **QUICK) as crawl:
        with pytest.raises(NotWritten):
            await crawl.run()
    after_error = job.exists()
    async with acrawl(site.url("/"), job=job, **QUICK) as crawl:
        await crawl.plan()
    after_plan = job.exists()
    other = Crawl(site.url("/"), job=job, outputs=[tmp_path / "other.jsonl"], **QUICK)
    with other as blocking, pytest.raises(NotWritten):
        blocking.run()

    assert (after_error, after_plan, job.exists(), site.journal) == (False, False, False, [])


async def test_a_job_that_has_begun_stays_if_its_next_crawl_cannot_start(site: Site, tmp_path: Path) -> None:
    """F37: so do its folder and what else is in it"""
    graph(site, {"/": ["/a"], "/a": []})
    (tmp_path / "other.jsonl").write_text("not ours\n")
    job, new = tmp_path / "job", tmp_path / "new"
    new.mkdir()
    (new / "notes.txt").write_text("the user's")
    async with acrawl(site.url("/"), job=job, max_pages=1, **QUICK) as crawl:
        await crawl.run()

    for folder in (job, new):
        async with acrawl(site.url("/"), job=folder, outputs=[tmp_path / "other.jsonl"], **QUICK) as crawl:
            with pytest.raises(NotWritten):
                await crawl.run()

    assert jobs.look(job).totals.pages == 1
    assert [path.name for path in new.iterdir()] == ["notes.txt"]
