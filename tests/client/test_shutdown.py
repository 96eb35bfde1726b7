"""How it ends: closed once and whole, though who closes is called off, forgets it, or leaves it to the very end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curtsy.blocking import Client, LoopThread
from curtsy.core.errors import CurtsyError, PolicyError, Reason
from curtsy.core.host import Host
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.statistics import summed
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.crawling.start import Crawl, acrawl, crawl
from curtsy.engine.counters import read_statistics
from curtsy.http.sender import HttpSender
from curtsy.stores import open_store
from curtsy.stores.sqlite import _writers
from curtsy.system.threads import begun_in_thread, in_thread
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, UNPACED, client, domain_of
from tests.support.polling import until
from tests.support.site import Site, hang
from tests.support.snapshot import Snapshot as TextSnapshot
from tests.support.warm import Process

ROOT = Path(__file__).parent.parent.parent

SETTINGS: dict[str, Any] = {"cache": False, "allow_private": True, "user_agent": AGENT, "preset": "own"}

BEGINNING = """
import atexit, json, os, sys, threading
import curtsy
settings, url, place = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]

def pages():
    with curtsy.Client(**settings) as web:
        yield from web.fetch_many([url + "1", url + "2"])

def mistaken():
    found = iter(curtsy.crawl(url, **settings))
    next(found)
    raise KeyError("mine")

class Owner:
    def __init__(self):
        self.web = curtsy.Client(**settings)
    def __del__(self):
        self.web.close()

class Late:
    get, error = staticmethod(curtsy.get), curtsy.PolicyError
    def __del__(self):
        try:
            self.get(url, **settings)
        except self.error as error:
            os.write(1, str(error).encode())
"""


def ended(site: Site, place: Path, code: str, **given: Any) -> tuple[int, str, str]:
    """How a program ends: its exit code and what it wrote. Every warning is an error in it."""
    settings = {**SETTINGS, "store": f"sqlite:///{place}/hosts.sqlite", **given}
    words, pipe = (BEGINNING + code, json.dumps(settings), site.url("/"), place), subprocess.PIPE
    process: Process[str] = Process("tests.support.whole", *words, text=True, stdout=pipe, stderr=pipe)
    out, err = process.communicate(120)
    return process.returncode, out, err


def told(place: Path) -> int:
    """How many fetches the store has been told of."""
    with contextlib.closing(open_store(f"sqlite:///{place}/hosts.sqlite")) as store:
        return summed(read_statistics(store)).fetches


def is_open(path: Path) -> bool:
    """Whether this process still has an SQLite file open."""
    return os.path.realpath(path) in _writers


LEFT = {
    "a generator with a client in it": ("found = pages(); next(found)", 0),
    "a crawl that is read in part": ("found = iter(curtsy.crawl(url, **settings)); next(found)", 0),
    "the same, behind a map": ("found = map(str, curtsy.crawl(url, **settings)); next(found)", 0),
    "the same, with an exit code": ("found = iter(curtsy.crawl(url, **settings)); next(found); sys.exit(4)", 4),
    "a local that its traceback keeps": ("mistaken()", 1),
    "a client that is closed too late": ("owner = Owner(); owner.web.fetch(url)", 0),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("store", ["memory:", None])
def test_a_program_ends_whatever_it_has_left_open(site: Site, tmp_path: Path, name: str, store: str | None) -> None:
    """U17: no thread runs on at the very end, so nobody waits for one"""
    site.page("/*", '<a href="/1">1</a> <a href="/2">2</a>')
    program, exit_code = LEFT[name]

    code, out, err = ended(site, tmp_path, program, **({"store": store} if store else {}))

    assert (code, out) == (exit_code, ""), err
    assert err.splitlines()[-1:] == (["KeyError: 'mine'"] if exit_code == 1 else [])


def test_a_fetch_at_the_very_end_is_refused(site: Site, tmp_path: Path, snapshot: TextSnapshot) -> None:
    """U17: it would wait for a thread that never begins"""
    code, out, err = ended(site, tmp_path, "late = Late()")

    assert (code, err) == (0, "")
    snapshot(out)
    assert not site.count()


def test_nobody_waits_at_the_very_end_for_a_thread_that_stands_still(
    site: Site, tmp_path: Path, snapshot: TextSnapshot
) -> None:
    """U17: whoever had it"""
    program = """
import asyncio
from curtsy.blocking import LoopThread
class Waiting:
    error, sleep = curtsy.PolicyError, staticmethod(asyncio.sleep)
    def __init__(self):
        self.thread = LoopThread("late")
    def __del__(self):
        try:
            self.thread.call(self.sleep(0))
        except self.error as error:
            os.write(1, str(error).encode())
        self.thread.close(lambda: self.sleep(0))
        self.thread.stop()
waiting = Waiting()
"""

    code, out, err = ended(site, tmp_path, program)

    assert (code, err) == (0, "")
    snapshot(out)


def test_a_program_ends_though_a_callback_does_not(site: Site, tmp_path: Path) -> None:
    """U17: what cannot be closed is waited for, but not for ever"""
    site.page("/*", "x")
    code = """
def stuck(record):
    called.set()
    threading.Event().wait()
called = threading.Event()
web = curtsy.Client(on_record=stuck, **settings)
threading.Thread(target=web.fetch, args=(url,), daemon=True).start()
called.wait()
"""

    assert ended(site, tmp_path, code) == (0, "", "")


def test_what_nobody_closed_is_closed_at_the_end_of_the_program(site: Site, tmp_path: Path) -> None:
    """U17: the store hears of the last fetches, which it is told of every five seconds otherwise"""
    site.page("/*", "x")

    code, out, err = ended(site, tmp_path, "web = curtsy.Client(**settings); web.fetch(url)")

    assert (code, out, err) == (0, "", "")
    assert told(tmp_path) == 1


def test_the_end_of_the_program_may_close_and_fetch(site: Site, tmp_path: Path) -> None:
    """U17: though no pool of threads takes anything more by then"""
    site.page("/*", "a file")
    code = """
web = curtsy.Client(**settings)
def last():
    print(web.download(url + "file", place + "/file").ok)
    print(web.fetch(url).ok)
    web.close()
atexit.register(last)
web.fetch(url + "first")
"""

    assert ended(site, tmp_path, code) == (0, "True\nTrue\n", "")

    assert (tmp_path / "file").read_text() == "a file"
    assert told(tmp_path) == 3


@pytest.mark.parametrize("between", ["", "curtsy.get(url, **settings)"])
def test_handlers_of_the_program_come_before(site: Site, tmp_path: Path, between: str) -> None:
    """U17: whenever the client was made, and whoever was made since"""
    program = f"""
atexit.register(lambda: print(web.fetch(url).status))
web = curtsy.Client(**settings)
{between}
"""
    code, out, err = ended(site, tmp_path, program)

    assert (code, out, err) == (0, "404\n", "")


def test_a_client_that_is_dropped_at_the_end_is_waited_for(site: Site, tmp_path: Path) -> None:
    """U17: what it has counted is written"""
    program = """
import warnings
warnings.simplefilter("ignore", ResourceWarning)
def main():
    web = curtsy.Client(**settings)
    web.fetch(url)
main()
"""
    code, out, err = ended(site, tmp_path, program)

    assert (code, out, err) == (0, "", "")
    assert told(tmp_path) == 1


def test_a_thread_that_outlives_the_main_one_fetches_on(site: Site, tmp_path: Path) -> None:
    """U17: with a cache and a store that are files"""
    site.page("/*", "x")
    code = """
def last():
    threading.main_thread().join()
    with curtsy_client as web:
        print(web.fetch(url).ok, web.download(url, place + "/file").ok)
curtsy_client = curtsy.Client(**settings)
curtsy_client.fetch(url + "first")
threading.Thread(target=last).start()
"""

    assert ended(site, tmp_path, code, cache=str(tmp_path / "cache")) == (0, "True True\n", "")

    assert told(tmp_path) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_neither_closes_nor_waits_for_what_it_inherited(site: Site, tmp_path: Path) -> None:
    """Design, section 5: dropped, closed or left open in the child, it is the parent's"""
    site.page("/*", "x")
    code = """
dropped, kept = curtsy.Client(**settings), curtsy.Client(**settings)
found = iter(curtsy.crawl(url, **settings))
next(found)
if not os.fork():
    del dropped
    found.close()
    sys.exit(0)
_, status = os.wait()
with dropped, kept:
    print(json.dumps([status, dropped.fetch(url + "1").ok, kept.fetch(url + "2").ok, len(list(found))]))
"""

    exit_code, out, err = ended(site, tmp_path, code)

    assert (exit_code, json.loads(out), err) == (0, [0, True, True, 0], "")


def test_a_crawl_of_the_parents_is_not_waited_for_in_a_forked_child(
    site: Site, tmp_path: Path, snapshot: TextSnapshot
) -> None:
    """U17: its thread is not there"""
    site.page("/*", '<a href="/1">1</a> <a href="/2">2</a>')
    program = """
found = iter(curtsy.crawl(url, **settings))
next(found)
if os.fork() == 0:
    try:
        next(found)
    except curtsy.PolicyError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(len(list(found)))
"""
    code, out, err = ended(site, tmp_path, program)

    said, left = out.splitlines()
    assert (code, left, err) == (0, "2", "")
    snapshot(said)


async def test_what_the_pool_refuses_is_done_at_once() -> None:
    """U17: and what it raises is raised"""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(1)
    loop.set_default_executor(pool)

    assert await in_thread(threading.current_thread) is not threading.main_thread()
    pool.shutdown()

    assert await in_thread(threading.current_thread) is threading.current_thread()
    failed = begun_in_thread(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        await failed


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_closing_that_is_cancelled_goes_on_and_can_be_waited_for(
    site: Site, tmp_path: Path, turns: int
) -> None:
    """B5, U17"""
    site.page("/*", "x")
    path = tmp_path / "hosts.sqlite"
    web = client(store=path, clock=None, **UNPACED)
    await web.fetch(site.url("/"))
    closing = asyncio.ensure_future(web.close())
    for _ in range(turns):
        await asyncio.sleep(0)

    closing.cancel()
    await asyncio.wait([closing])
    await web.close()

    assert not is_open(path)
    await web.close()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
async def test_a_closing_that_is_cancelled_gives_back_what_was_under_way(
    site: Site, tmp_path: Path, turns: int
) -> None:
    """B5: the file is closed only when that is done"""
    site.reply("/*", hang())
    path = tmp_path / "hosts.sqlite"
    web = client(store=path, clock=None, respect_robots=False, **UNPACED)
    fetching = asyncio.ensure_future(web.fetch(site.url("/")))
    await until(lambda: site.count("/"))
    closing = asyncio.ensure_future(web.close())
    for _ in range(turns):
        await asyncio.sleep(0)

    closing.cancel()
    await asyncio.wait([closing])
    await until(lambda: not is_open(path))  # by itself

    assert closing.cancelled()
    assert (await fetching).reason is Reason.CLOSED
    assert told(tmp_path) == 1
    with contextlib.closing(open_store(f"sqlite:///{path}")) as store:
        host = store.read("host:" + domain_of(site.url("/")))
    assert isinstance(host, Host)
    assert host.places == ()


async def test_whoever_closes_waits_until_it_is_closed(site: Site, tmp_path: Path) -> None:
    """U17: also who comes second"""
    site.page("/*", "x")
    path = tmp_path / "hosts.sqlite"
    web = client(store=path, clock=None, **UNPACED)
    await web.fetch(site.url("/"))

    async def closed() -> bool:
        await web.close()
        return not is_open(path)

    assert all(await asyncio.gather(closed(), closed()))


class SlowToClose(HttpSender):
    """A sender that is closed when it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.has_begun.set()
        await self.may_end.wait()
        await super().close()


async def test_it_may_be_closed_from_another_loop_while_it_is_being_closed(site: Site, tmp_path: Path) -> None:
    """Idempotent, whoever calls"""
    sender = SlowToClose()
    web = client(clock=None, store=tmp_path / "hosts.sqlite", sender=sender)
    await web.fetch(site.url("/"))
    first = asyncio.ensure_future(web.close())
    await sender.has_begun.wait()

    second = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(web.close())))
    await asyncio.sleep(0)
    sender.may_end.set()

    await asyncio.gather(first, second)
    assert not is_open(tmp_path / "hosts.sqlite")


async def test_what_cannot_be_closed_keeps_nothing_else_open(tmp_path: Path) -> None:
    """U17"""

    class Broken:
        async def send(self, *given: Any, **named: Any) -> Any:
            raise AssertionError

        stream = locate = send

        async def close(self) -> None:
            raise OSError("no such luck")

    path = tmp_path / "hosts.sqlite"
    web = client(store=path, clock=None, sender=Broken())

    with pytest.raises(OSError, match="no such luck"):
        await web.close()

    assert not is_open(path)


def test_a_loop_that_ends_meanwhile_leaves_nothing_open(site: Site, tmp_path: Path) -> None:
    """B5: a closing that its loop cancels gives back all the same"""
    site.reply("/*", hang())
    path = tmp_path / "hosts.sqlite"

    async def left() -> None:
        web = client(store=path, clock=None, respect_robots=False, **UNPACED)
        fetching = asyncio.ensure_future(web.fetch(site.url("/")))
        await until(lambda: site.count("/"))
        closing = asyncio.ensure_future(web.close())
        await asyncio.sleep(0)
        assert not closing.done()
        assert not fetching.done()

    asyncio.run(left())

    assert not is_open(path)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_crawls_closing_that_is_cancelled_goes_on_too(site: Site, tmp_path: Path, turns: int) -> None:
    """B5, U17"""
    site.page("/*", "x")
    path = tmp_path / "hosts.sqlite"
    pages = acrawl(site.url("/"), **{**SETTINGS, "store": path})
    await pages.plan()
    closing = asyncio.ensure_future(pages.close())
    for _ in range(turns):
        await asyncio.sleep(0)

    closing.cancel()
    await asyncio.wait([closing])
    await pages.close()

    assert not is_open(path)


@pytest.mark.parametrize("call", ["fetch", "many", "download", "close"])
def test_a_callback_that_would_wait_for_itself_is_told(
    site: Site, tmp_path: Path, call: str, snapshot: TextSnapshot
) -> None:
    """L9: and the client goes on"""
    site.page("/*", "x")
    raised: list[PolicyError] = []
    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: web.fetch(site.url("/b")),
        "many": lambda: list(web.fetch_many([site.url("/b")])),
        "download": lambda: web.download(site.url("/b"), tmp_path / "b"),
        "close": lambda: web.close(),
    }

    def on_record(record: FetchRecord) -> None:
        try:
            calls[call]()
        except PolicyError as error:
            raised.append(error)

    with Client(**SETTINGS, clock=FakeClock(), on_record=on_record) as web:
        results: list[FetchResult] = [web.fetch(site.url("/a")), web.fetch(site.url("/a"))]

    assert all(result.ok for result in results)
    assert ["callback" in str(error) for error in raised] == [True, True]
    snapshot(str(raised[0]))
    assert not site.count("/b")


def test_a_thread_does_not_stop_itself() -> None:
    """L9"""
    thread = LoopThread("itself")

    async def stop() -> None:
        thread.stop()

    with pytest.raises(PolicyError, match="callback"):
        thread.call(stop())

    thread.stop()
    assert not thread._thread.is_alive()


def test_whoever_is_told_of_a_crawl_may_look_and_stop_it_but_not_wait_for_it(site: Site) -> None:
    """Issue 5: any thread may ask how far it has come, its own too"""
    site.page("/*", "x")
    states: list[str] = []
    raised: list[CurtsyError] = []

    def on_progress(snapshot: CrawlSnapshot) -> None:
        if found:  # else it is still being made
            seen = found[0].snapshot()
            states.append(seen.state)
            assert (seen.state, seen.totals, seen.hosts) == (snapshot.state, snapshot.totals, snapshot.hosts)
            for call in (found[0].close, found[0].plan, found[0].run):
                try:
                    call()
                except CurtsyError as error:
                    raised.append(error)

    found: list[Crawl] = []
    with crawl(site.url("/"), **SETTINGS, store="memory:", on_progress=on_progress) as pages:
        found.append(pages)
        urls = [page.url for page in pages]

    assert urls == [site.url("/")]
    assert states[-1:] == ["done"]
    assert len(raised) == 3 * len(states)
    assert all("callback" in str(error) for error in raised)


def test_a_client_that_is_dropped_is_told_of_and_given_back(site: Site, tmp_path: Path, snapshot: TextSnapshot) -> None:
    """U17: an unclosed file warns too"""
    site.page("/*", "x")
    path = tmp_path / "hosts.sqlite"
    web = Client(**SETTINGS, store=path)
    assert web.fetch(site.url("/")).ok
    thread = web._thread._thread

    with pytest.warns(ResourceWarning, match=r"curtsy\.Client") as warned:
        del web
    snapshot(str(warned[0].message))
    thread.join(60)

    assert not thread.is_alive()
    assert not is_open(path)
    assert told(tmp_path) == 1


def test_a_crawl_that_is_dropped_is_told_of_and_given_back(site: Site, tmp_path: Path, snapshot: TextSnapshot) -> None:
    """U17"""
    path = tmp_path / "hosts.sqlite"
    pages = crawl(site.url("/"), **SETTINGS, store=path)
    pages.plan()
    thread = pages._thread._thread

    with pytest.warns(ResourceWarning, match=r"curtsy\.Crawl") as warned:
        del pages
    snapshot(str(warned[0].message))
    thread.join(60)

    assert not thread.is_alive()
    assert not is_open(path)


@pytest.mark.filterwarnings("error")
def test_who_could_not_be_made_or_was_closed_is_not_warned_of(site: Site, snapshot: TextSnapshot) -> None:
    """U9, U17"""
    make: Any = Client
    with pytest.raises(TypeError):
        make(1)
    with pytest.raises(PolicyError, match="qps"):
        Client(**SETTINGS, qps=-1)
    with pytest.raises(PolicyError, match="crawl") as caught:
        crawl([], **SETTINGS)
    snapshot(str(caught.value))
    with Client(**SETTINGS, store="memory:"), crawl(site.url("/"), **SETTINGS, store="memory:"):
        pass

    gc.collect()
