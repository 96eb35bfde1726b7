"""Outputs in parts: in memory behind fsspec, in local folders, and (`make soak`) on a server of the S3 protocol."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.crawling.jobs import look
from curtsy.crawling.outputs import open_output
from curtsy.crawling.outputs.parquet import schema_of
from curtsy.crawling.outputs.parts import Parts
from curtsy.crawling.start import acrawl
from tests.crawling.crawl_process import CrawlProcess
from tests.crawling.leaves import page, record, skip
from tests.crawling.test_resume import IN_FLIGHT, build
from tests.crawling.web import QUICK, html
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, Visit

fsspec = pytest.importorskip("fsspec", reason='pip install "curtsy[remote]"')
arrow = pytest.importorskip("pyarrow", reason='pip install "curtsy[parquet]"')
parquet = pytest.importorskip("pyarrow.parquet")


def rows_of(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(io.BytesIO(data)).to_pylist()
    return found


def responses(data: bytes) -> list[dict[str, Any]]:
    found = [each for each in ArchiveIterator(io.BytesIO(data)) if each.rec_type == "response"]
    return [{"url": each.rec_headers.get_header("WARC-Target-URI")} for each in found]


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def table_of(data: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


READERS: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
    "parquet": rows_of, "warc.gz": responses, "jsonl": lines_of, "csv": table_of,
}  # fmt: skip


@dataclass
class Bucket:
    """A folder somewhere, as a reader sees it."""

    url: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self._store, self._root = fsspec.url_to_fs(self.url, **self.options)

    @property
    def names(self) -> list[str]:
        """The paths of all objects."""
        self._store.invalidate_cache()
        try:
            found: list[str] = self._store.find(self._root)
        except FileNotFoundError:
            return []
        return found

    @property
    def files(self) -> dict[str, bytes]:
        """All objects, by name."""
        return {path.rpartition("/")[2]: self._store.cat_file(path) for path in self.names}

    def urls(self, ending: str) -> list[str]:
        """The URLs of the pages in the listed parts. Of no part that is listed, any is missing or of another size."""
        files, found = self.files, []
        for name in sorted(name for name in files if name.endswith("manifest.jsonl")):
            for entry in lines_of(files[name]):
                rows = READERS[ending](files[entry["name"]])
                assert (len(rows), len(files[entry["name"]])) == (entry["entries"], entry["size"])
                found += [row["url"] for row in rows]
        return found

    @property
    def unlisted(self) -> set[str]:
        """Parts that no manifest lists."""
        files = self.files
        manifests = {name for name in files if name.endswith("manifest.jsonl")}
        return files.keys() - manifests - {each["name"] for name in manifests for each in lines_of(files[name])}


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """One in memory."""
    memory = fsspec.filesystem("memory")
    yield Bucket("memory://bucket", {})
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def fill(output: Parts, numbers: range, folder: Path, state: Any = None) -> Any:
    """Write pages, with a flush after each, and end the run as a crawl does; where it ended."""
    output.place(folder, "docs", "w1")
    output.open(state)
    for number in numbers:
        output.page(page(number))
        record(output)
    state = finish(output)
    output.close()
    return state


def finish(output: Parts) -> Any:
    output.seal()
    record(output)
    return record(output)


@pytest.mark.parametrize("ending", READERS)
def test_parts_are_rolled_by_size_named_and_listed(ending: str, bucket: Bucket, tmp_path: Path) -> None:
    """Each kind, in an object store; a later run goes on with the next number."""
    output = open_output(f"{bucket.url}/crawl/pages.{ending}", part_size=400 if ending == "csv" else 1500)
    assert isinstance(output, Parts)

    state = fill(output, range(5), tmp_path)
    fill(output, range(5, 7), tmp_path, state)

    assert bucket.urls(ending) == [page(number).url for number in range(7)]
    assert not bucket.unlisted
    names = sorted(name for name in bucket.files if name.endswith(ending))
    assert names[:2] == [f"pages-docs-w1-0000{number}.{ending}" for number in (1, 2)]
    assert 3 <= len(names) < 7
    assert not list(tmp_path.glob("0*1/*")), "the spool of a part that is stored is removed"


@pytest.mark.parametrize("body", ["none", "text", "base64"])
def test_parquet_has_the_documented_schema(body: Any, bucket: Bucket, tmp_path: Path) -> None:
    """Read back by pyarrow; all that a JSON line says."""
    output = Parts(f"{bucket.url}/", "parquet", body=body)
    given = page(3, b"<p>\xff" if body == "base64" else b"<p>hi", signals=("noai",), canonical="https://example.org/c")
    output.place(tmp_path)
    output.open(None)
    output.page(given)
    finish(output)
    output.close()

    table = parquet.read_table(io.BytesIO(bucket.files["00001.parquet"]))
    [row] = table.to_pylist()
    assert table.schema.equals(schema_of(body))
    assert (row["url"], row["status"], row["links"]) == (given.url, 200, list(given.links))
    assert row["fetched_at"].isoformat() == "2026-11-15T08:00:00.123000+00:00"
    assert dict(row["headers"])["server"] == "a-server"
    assert row.get("text", row.get("body_bytes")) == {"none": None, "text": "<p>hi", "base64": b"<p>\xff"}[body]
    documented = Path(__file__).parents[2].joinpath("docs/reference/crawl-output.md").read_text()
    assert [field.name for field in table.schema if f"| `{field.name}` |" not in documented] == []


def test_a_part_is_stored_when_it_is_old_enough(bucket: Bucket, tmp_path: Path) -> None:
    """It is due without a further page too."""
    output = Parts(f"{bucket.url}/pages.jsonl", "jsonl", part_time=1e-6)
    output.place(tmp_path)
    output.open(None)
    output.page(page(1))

    record(output)
    assert output.is_behind
    record(output)
    record(output)

    assert not output.is_behind
    assert bucket.urls("jsonl") == [page(1).url]
    output.close()


def test_a_table_of_skipped_urls_can_be_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    output = open_output(f"skipped:{bucket.url}/skipped.csv")
    assert isinstance(output, Parts)
    output.place(tmp_path)
    output.open(None)
    output.skipped(skip(4))
    output.page(page(4))
    finish(output)
    output.close()

    assert bucket.urls("csv") == [skip(4).url]


@pytest.mark.parametrize("library", ["fsspec", "pyarrow"])
def test_a_missing_library_is_told_before_the_first_request(
    library: str, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra, target = {"fsspec": ("remote", "memory://b/x.jsonl"), "pyarrow": ("parquet", "x.parquet")}[library]
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(PolicyError, match=rf"curtsy\[{extra}\]"):
        open_output(target)


def test_addresses_that_cannot_be_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    for text in ("az://container/x.jsonl", "nonsense://x/y.jsonl", "s3://bucket/pages/", "folder:memory://x/"):
        with pytest.raises(PolicyError, match=r"Install adlfs|nonsense|folder"):
            open_output(text)


SECRET = "s3cr3t-of-the-store"


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The URL of a store, and all that is kept of a crawl there and in the folder of its job."""

    def kept() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.sqlite'}", kept
        return
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:

        def all_kept() -> bytes:
            hashes = [key for key in server.command("KEYS", "*") if server.command("TYPE", key) == b"hash"]
            return kept() + repr([(key, server.command("HGETALL", key)) for key in hashes]).encode()

        yield server.url, all_kept


async def test_a_password_in_the_address_of_an_output_is_kept_nowhere(
    site: Site, tmp_path: Path, place: tuple[str, Callable[[], bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 17, F62: and the output is continued with another password"""
    build(site, "fan", 4)
    store, kept = place
    caplog.set_level("DEBUG", "curtsy")
    summaries = []
    for number, most in enumerate((2, 5)):
        output = open_output(f"memory://user:{SECRET}{number}@bucket/{tmp_path.name}/pages.jsonl")
        async with acrawl(
            site.url("/page/0"), **QUICK | {"store": store}, job=tmp_path / "docs", outputs=[output], max_pages=most
        ) as crawl:
            summaries.append(await crawl.run())

    assert [summary.outputs[0].entries for summary in summaries] == [2, 4]
    assert b"memory://***@bucket" in kept()
    assert SECRET.encode() not in kept()
    assert SECRET not in caplog.text + repr(summaries)


def test_a_password_is_in_no_error_about_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 17, F62: those of a library that connects at once are errors of the output"""

    class Unreachable(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        cachable = False

        def __init__(self, *_: Any, **__: Any) -> None:
            raise ConnectionRefusedError(f"sftp://user:{SECRET}@host refused us")

    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    address = f"://user:{SECRET}@host/pages"
    for text in (f"unreachable{address}.jsonl", f"nonsense{address}.jsonl", f"s3{address}", f"folder:sftp{address}"):
        with pytest.raises((NotWritten, PolicyError)) as told:
            open_output(text)
        assert SECRET not in str(told.value)
        assert "***@host" in str(told.value)


async def test_parts_of_another_crawl_are_left_alone(site: Site, bucket: Bucket, tmp_path: Path) -> None:
    """Those of the job are continued if it is started over."""
    site.page("/", html())
    given: dict[str, Any] = {**QUICK, "outputs": [f"{bucket.url}/pages.jsonl"]}
    async with acrawl(site.url("/"), job=tmp_path / "docs", **given) as crawl:
        await crawl.run()
    before = bucket.files
    assert sorted(before) == ["pages-docs-00001.jsonl", "pages-docs.jsonl.manifest.jsonl"]

    for restart in (False, True):
        with pytest.raises(NotWritten) as told:
            async with acrawl(site.url("/"), job=tmp_path / "other" / "docs", restart=restart, **given) as crawl:
                await crawl.run()
        assert told.value.is_lasting
    assert bucket.files == before
    async with acrawl(site.url("/"), job=tmp_path / "docs", restart=True, **given) as crawl:
        await crawl.run()
    assert Counter(bucket.urls("jsonl")) == {site.url("/"): 2}


class Failing(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """A store that can be switched off."""

    protocol = "failing"
    is_off = threading.Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def put_file(self, lpath: str, rpath: str, **given: Any) -> None:
        if self.is_off.is_set() and os.path.getsize(lpath):
            raise ConnectionError("the store is off")
        super().put_file(lpath, rpath, **given)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_while_the_store_fails_no_page_is_lost(
    is_durable: bool, site: Site, bucket: Bucket, tmp_path: Path
) -> None:
    """Otherwise the pages wait in the spool, and are stored by the next run; durable, they are not done."""
    fsspec.register_implementation("failing", Failing, clobber=True)
    build(site, "fan", 20)
    Failing.is_off.set()
    given: dict[str, Any] = {
        **QUICK, "job": tmp_path / "docs", "outputs": ["failing://bucket/pages.jsonl"], "durable": is_durable,
        "patience": 0.01,
    }  # fmt: skip

    try:
        with pytest.raises(NotWritten, match="the store is off"):
            async with acrawl(site.url("/page/0"), **given) as crawl:
                await crawl.run()
        assert crawl.summary is not None
        assert crawl.summary.ended == "later"
        assert crawl.summary.fetched == (0 if is_durable else 20)
    finally:
        Failing.is_off.clear()
    async with acrawl(site.url("/page/0"), **given) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.fetched, summary.missing) == ("done", 20, 0)
    assert sorted(bucket.urls("jsonl")) == sorted(site.url(f"/page/{number}") for number in range(20))
    assert len([visit for visit in site.visits() if visit.path == "/page/7"]) == 1


async def test_a_crawl_without_a_job_stores_its_parts_too(site: Site, bucket: Bucket) -> None:
    build(site, "fan", 5)
    outputs = [f"{bucket.url}/pages.parquet", f"{bucket.url}/pages.jsonl"]
    async with acrawl(site.url("/page/0"), outputs=outputs, **QUICK) as crawl:
        summary = await crawl.run()

    assert [each.entries for each in summary.outputs] == [5, 5]
    names = [f"pages{rest}" for rest in ("-00001.jsonl", "-00001.parquet", ".jsonl.{}", ".parquet.{}")]
    assert sorted(bucket.files) == [name.format("manifest.jsonl") for name in names]


def test_a_spool_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was sealed and not yet stored is missed; what was stored is not."""
    bucket = Bucket(f"file://{tmp_path}/stored", {})
    output = Parts(f"{bucket.url}/pages.jsonl", "jsonl", part_size=1)
    output.place(tmp_path / "spool")
    output.open(None)
    output.page(page(1))
    record(output)
    record(output)
    output.page(page(2))
    state = json.loads(json.dumps(output.flush()))  # sealed, and not recorded yet
    output.close()
    for path in (tmp_path / "spool").glob("0*/part.jsonl"):
        path.unlink()

    output.open(state)
    finish(output)
    output.close()

    assert (output.written().entries, output.written().missing) == (1, 1)
    assert bucket.urls("jsonl") == [page(1).url]
    assert "--restart" in caplog.text


async def test_a_part_that_was_stored_and_not_recorded_is_stored_again(bucket: Bucket, tmp_path: Path) -> None:
    """As when the frontier fails after a durable flush: the same output is opened again, and gets other pages."""
    output = Parts(f"{bucket.url}/pages.jsonl", "jsonl")
    output.is_durable = True
    output.place(tmp_path)
    output.open(None)
    state = record(output)
    output.page(page(1))
    output.flush()
    output.close()

    output.open(state)
    output.page(page(2))
    output.page(page(3))
    record(output)
    output.close()

    assert bucket.urls("jsonl") == [page(2).url, page(3).url]
    assert not bucket.unlisted


def test_durable_parquet_on_this_machine_is_written_to_the_disk_in_parts_of_usual_size(tmp_path: Path) -> None:
    output = Parts(tmp_path / "stored" / "pages.parquet", "parquet")
    output.is_durable = True
    output.place(tmp_path / "spool")
    output.open(None)
    for number in range(3):
        output.page(page(number))
        record(output)
    finish(output)
    output.close()

    bucket = Bucket(f"file://{tmp_path}/stored", {})
    assert sorted(bucket.files) == ["pages-00001.parquet", "pages.parquet.manifest.jsonl"]
    assert len(bucket.urls("parquet")) == 3


# Killed


def kill_again_and_again(
    site: Site, bucket: Bucket, folder: Path, ending: str, kills: int, *, each: int = 30, **more: Any
) -> None:
    """Kill a crawl of `each` pages per kill at moments of its requests, and of its parts."""
    pages, dice = each * kills, random.Random(f"{ending} {kills}")
    # A page with 8,000 links takes many turns: a process that is killed six times meanwhile gives it up (GUILTY).
    build(site, "fan" if pages < 5000 else "tree", pages)
    options: dict[str, Any] = {
        **QUICK, "seeds": site.url("/page/0"), "job": str(folder / "docs"), "max_in_flight": IN_FLIGHT,
        "outputs": [{"text": f"{bucket.url}/pages.{ending}", "part_size": 4000}], **more,
    }  # fmt: skip
    killed = 0
    for number in range(kills):
        enough = len(site.journal) + 1 + dice.randrange(30)
        before = len(bucket.names)
        killed += CrawlProcess(**options).kill_when(
            (lambda: len(site.journal) >= enough)  # noqa: B023
            if number % 3
            else (lambda: len(bucket.names) > before + 1)  # noqa: B023
        )
        if number < 10 or not number % 10:  # reading all parts of a server takes seconds
            assert max(Counter(bucket.urls(ending)).values(), default=1) == 1
    summary = CrawlProcess(**options).summary()

    everything = [site.url(f"/page/{number}") for number in range(pages)]
    assert sorted(bucket.urls(ending)) == sorted(everything)
    assert not bucket.unlisted
    assert (summary["ended"], summary["fetched"], summary["queued"]) == ("done", pages, 0)
    seen = Counter(visit.path for visit in site.visits() if visit.path.startswith("/page/"))
    assert len(seen) == pages
    assert killed >= kills // 2


@pytest.mark.parametrize("is_durable", [False, True])
def test_killed_again_and_again_the_manifest_lists_what_is_done(site: Site, tmp_path: Path, is_durable: bool) -> None:
    """Each page once, and no part that is not listed."""
    bucket = Bucket(f"file://{tmp_path}/stored", {})
    kill_again_and_again(site, bucket, tmp_path, "parquet", 3, durable=is_durable)


@pytest.mark.soak
def test_spools_of_killed_workers_are_stored_by_one_that_is_started_alone(site: Site, tmp_path: Path) -> None:
    """Issue 17: two processes of a machine are killed and one is started again: nothing is lost, and nothing twice"""
    if reason := redis_available():
        pytest.skip(reason)
    pages, names, hosts = 12, ("one", "two"), [f"127.0.0.{number}" for number in range(1, 15)]
    bucket = Bucket(f"file://{tmp_path}/stored", {})
    links = html(*(f"/page/{number}" for number in range(1, pages)))

    def answer(_: Visit) -> Reply:
        """Let the process that is ahead wait for the other."""
        is_one_behind = any(len(_asked_by(site, name)) < 4 for name in names)
        return Reply(body=links, headers={"Content-Type": "text/html"}, wait=0.6 if is_one_behind else 0.05)

    site.on("/page/*", answer)
    with RedisServer() as server:
        options: dict[str, Any] = {
            **QUICK, "seeds": [site.url("/page/0", host=host) for host in hosts], "job": str(tmp_path / "docs"),
            "store": server.url, "lease": 3.0, "scope": "host", "concurrency": 1, "timeout": 1.0, "robots_timeout": 1.0,
            "outputs": [{"text": f"{bucket.url}/pages.jsonl"}],
        }  # fmt: skip
        workers = [CrawlProcess(**options, user_agent=f"{name}/1.0", is_held=True) for name in names]
        for each in workers:
            each.begin()
        block_until(lambda: all(len(_asked_by(site, name)) > 6 for name in names))
        for each in workers:
            assert each.kill_when(lambda: True)
        assert bucket.urls("jsonl") == []
        spooled = [len(lines_of(path.read_bytes())) for path in (tmp_path / "docs").glob("spool/*/*/part.jsonl")]
        summary = CrawlProcess(**options, user_agent="three/1.0").summary()

    assert (summary["ended"], len(spooled)) == ("done", 2)
    everything = [site.url(f"/page/{number}", host=host) for host in hosts for number in range(pages)]
    assert sorted(bucket.urls("jsonl")) == sorted(everything)
    assert not bucket.unlisted


def _asked_by(site: Site, name: str) -> list[Visit]:
    """The requests for pages by a user agent."""
    agents = ((visit, visit.header("User-Agent") or "") for visit in site.visits() if "/page/" in visit.path)
    return [visit for visit, agent in agents if agent.startswith(name)]


def test_durable_a_page_is_done_only_when_it_is_stored(site: Site, tmp_path: Path) -> None:
    """The disk of the worker is lost at any moment: what its job counts as pages is in the listed parts."""
    bucket = Bucket(f"file://{tmp_path}/stored", {})
    build(site, "fan", 60)
    options: dict[str, Any] = {
        **QUICK, "seeds": site.url("/page/0"), "job": str(tmp_path / "docs"), "max_in_flight": IN_FLIGHT,
        "outputs": [{"text": f"{bucket.url}/pages.jsonl"}], "durable": True,
    }  # fmt: skip
    assert CrawlProcess(**options).kill_when(lambda: len(bucket.names) > 2)

    done = look(tmp_path / "docs").totals.pages
    parts = [data for name, data in bucket.files.items() if "manifest" not in name]
    assert done <= sum(len(lines_of(data)) for data in parts)
    assert done > 0


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """A bucket on a server of the S3 protocol."""
    pytest.importorskip("moto", reason='pip install "curtsy[soak]"')
    pytest.importorskip("s3fs", reason='pip install "curtsy[soak]"')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with (tmp_path / "moto.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            block_until(lambda: b"Running on" in (tmp_path / "moto.log").read_bytes())
            store = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
            store.mkdir("bucket")
            yield Bucket("s3://bucket/crawl", {"use_listings_cache": False, "skip_instance_cache": True})
        finally:
            server.terminate()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("ending", ["parquet", "warc.gz"])
@pytest.mark.parametrize(("kills", "each"), [(6, 80), (100, 80)])
def test_on_a_server_of_the_s3_protocol_too(
    site: Site, s3: Bucket, tmp_path: Path, ending: str, is_durable: bool, kills: int, each: int
) -> None:
    """Issue 17: killed again and again, each page is stored once"""
    kill_again_and_again(site, s3, tmp_path, ending, kills, each=each, durable=is_durable)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_hundred_kills_lose_nothing_and_repeat_nothing(site: Site, tmp_path: Path, is_durable: bool) -> None:
    kill_again_and_again(site, Bucket(f"file://{tmp_path}/stored", {}), tmp_path, "jsonl", 100, durable=is_durable)
