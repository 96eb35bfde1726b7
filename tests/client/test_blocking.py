"""The blocking client: shared by threads, at home in a notebook, gives back on Ctrl-C, survives a fork."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curtsy.blocking import Client, LoopThread, get
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.host import Host
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.stores import open_store
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, UNPACED, domain_of
from tests.support.bounds import ends_within
from tests.support.ending import ends_with_test
from tests.support.polling import block_until
from tests.support.site import Reply, Site, hang

ROOT = Path(__file__).parent.parent.parent


def blocking(**settings: Any) -> Client:
    given = {"allow_private": True, "cache": False, "user_agent": AGENT, **settings}
    given.setdefault("clock", FakeClock())
    return Client(**given)


def test_it_fetches_downloads_and_counts(site: Site, tmp_path: Path) -> None:
    """Issue 4, 1: the same, blocking"""
    site.page("/a", "grüezi")

    with blocking() as web:
        result = web.fetch(site.url("/a"), headers={"Accept-Language": "gsw"})
        saved = web.download(site.url("/a"), tmp_path / "a")
        many = list(web.fetch_many([site.url("/a"), "nonsense"]))
        stats = web.stats()
        policy = web.policies.of("example.org")

    assert result.text == "grüezi"
    assert saved
    assert (tmp_path / "a").read_text() == "grüezi"
    assert sorted(each.ok for each in many) == [False, True]
    assert (stats.fetches, stats.requests) == (4, 3)
    assert policy.qps == 0.8


def test_one_line_is_enough(site: Site) -> None:
    """B2"""
    site.page("/", "x")

    assert get(site.url("/"), allow_private=True, user_agent=AGENT, **UNPACED).text == "x"


def test_threads_share_it_one_at_a_time_per_host(site: Site) -> None:
    """L9, P1"""
    site.reply("/*", Reply(body="x", wait=0.002))

    with blocking() as web, ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda number: web.fetch(site.url(f"/{number}")), range(32)))

    assert all(result.ok for result in results)
    assert site.count() == 33
    assert site.max_concurrency() == 1


def test_many_are_read_by_the_caller_as_they_are_needed(site: Site) -> None:
    """N10: the URLs may come from the client itself"""
    site.page("/index", "/1 /2 /3")
    site.page("/*", "x")

    with blocking() as web:

        def links() -> Iterator[str]:
            yield from (site.url(path) for path in web.fetch(site.url("/index")).text.split())

        results = list(web.fetch_many(links(), max_in_flight=2))

    assert sorted(result.final_url for result in results) == [site.url(f"/{number}") for number in (1, 2, 3)]


def test_many_may_be_left_early(site: Site) -> None:
    """B5"""
    site.reply("/slow", hang())
    site.page("/*", "x")

    with blocking(**UNPACED, concurrency=2, respect_robots=False) as web:
        results = web.fetch_many([site.url("/slow"), *(site.url(f"/{number}") for number in range(5))], max_in_flight=2)
        assert next(results).ok
        results.close()
        assert web.fetch(site.url("/after")).ok


async def test_it_works_where_an_event_loop_runs_already(site: Site) -> None:
    """Design, section 5: a notebook"""
    site.page("/", "x")

    with blocking() as web:
        assert web.fetch(site.url("/")).ok


def test_who_waits_when_it_is_closed_is_told(site: Site) -> None:
    """Issue 4, 1"""
    site.reply("/", hang())
    got: list[FetchResult] = []
    web = blocking(**UNPACED, respect_robots=False)
    waiting = threading.Thread(target=lambda: got.append(web.fetch(site.url("/"))))
    waiting.start()
    block_until(lambda: site.count("/"))

    web.close()
    waiting.join(60)

    assert [result.reason for result in got] == [Reason.CLOSED]
    web.close()
    with pytest.raises(PolicyError, match="closed"):
        web.fetch(site.url("/"))


def test_a_batch_whose_client_is_closed_under_it_is_told(site: Site) -> None:
    """Issue 4, 1"""
    site.page("/*", "x")
    web = blocking(**UNPACED)
    results = web.fetch_many([site.url(f"/{number}") for number in range(3)], max_in_flight=1)

    assert next(results).ok
    web.close()

    with pytest.raises(PolicyError, match="closed"):
        next(results)
    assert site.paths() == ["/robots.txt", "/0"]


def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    """L9: one who comes in the moment in which it ends"""
    thread = LoopThread("ending")
    last = thread.submit(asyncio.Event().wait())

    thread.stop()

    assert last.cancelled()
    with pytest.raises(PolicyError, match="closed"):
        thread.submit(asyncio.sleep(0))


@pytest.mark.parametrize("exit_by", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_callback_is_for_who_waits_and_nobody_else(site: Site, exit_by: type[BaseException]) -> None:
    """U17: and the client goes on until it is closed"""
    site.page("/*", "x")
    site.reply("/slow", Reply(body="slow", wait=0.5))

    def told(record: FetchRecord) -> None:
        if record.url.endswith("/exit"):
            raise exit_by(3)

    with blocking(**UNPACED, concurrency=2, respect_robots=False, on_record=told) as web, ThreadPoolExecutor(1) as pool:
        other = pool.submit(web.fetch, site.url("/slow"))
        block_until(lambda: site.count("/slow"))

        with pytest.raises(exit_by):
            web.fetch(site.url("/exit"))
        with pytest.raises(exit_by):
            list(web.fetch_many([site.url("/exit"), site.url("/a")]))

        assert other.result(60).text == "slow"
        assert web.fetch(site.url("/after")).ok
    assert not web._thread._thread.is_alive()


def test_an_exit_while_it_ends_keeps_no_thread_from_ending() -> None:
    """U17"""

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit(3)

    thread = LoopThread("ending")
    last = thread.submit(stubborn())
    thread.call(asyncio.sleep(0))

    thread.stop()

    assert isinstance(last.exception(), SystemExit)
    assert not thread._thread.is_alive()


def test_settings_that_are_wrong_are_told_and_leave_no_thread() -> None:
    """U9"""
    before = set(threading.enumerate())

    with pytest.raises(PolicyError, match="qps"):
        blocking(qps=-1)

    assert before.issuperset(threading.enumerate())  # another test's may have ended meanwhile


def test_a_header_that_cannot_be_sent_is_raised_in_the_callers_thread(site: Site) -> None:
    """F26"""
    with blocking() as web, pytest.raises(PolicyError, match="header"):
        web.fetch(site.url("/"), headers={"X": "a\nb"})


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    return ends_with_test(subprocess.Popen(
        # Since 3.12 Python warns of every fork beside a thread.
        [sys.executable, "-W", "ignore:This process", "-c", code, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ))  # fmt: skip


HANGING = """
import json, sys
from curtsy import Client
with Client(**json.loads(sys.argv[1])) as web:
    print(web.fetch(sys.argv[2]).reason)
"""


def settings(place: Path) -> dict[str, Any]:
    store = f"sqlite:///{place}/hosts.sqlite"
    return {"store": store, "cache": False, "allow_private": True, "user_agent": AGENT, **UNPACED}


def test_ctrl_c_ends_a_fetch_and_gives_back_what_it_held(site: Site, tmp_path: Path) -> None:
    """U17, B5"""
    site.reply("/hang", hang())
    process = script(HANGING, json.dumps(settings(tmp_path)), site.url("/hang"))
    block_until(lambda: site.count("/hang"), process)

    with ends_within(10):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGINT, err
    assert out == ""
    assert err.rstrip().endswith("KeyboardInterrupt")
    with contextlib.closing(open_store(settings(tmp_path)["store"])) as store:
        host = store.read("host:" + domain_of(site.url("/")))
    assert isinstance(host, Host)
    assert host.places == ()
    assert [(day.requests, day.pages) for day in host.days] == [(2, 0)]


FORKING = """
import json, os, sys
from curtsy import Client

settings, url = json.loads(sys.argv[1]), sys.argv[2]
web = Client(**settings)
assert web.fetch(url + "parent").ok
child = os.fork()
if not child:
    assert web.fetch(url + "inherited").ok
    with Client(**settings) as own:
        assert own.fetch(url + "own").ok
    web.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert web.fetch(url + "again").ok
web.close()
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("store", ["memory:", None])
def test_it_survives_a_fork(site: Site, tmp_path: Path, store: str | None) -> None:
    """Design, section 5: parent and child go on, each by itself"""
    site.page("/*", "x")
    given = {**settings(tmp_path), **({"store": store} if store else {})}

    process = script(FORKING, json.dumps(given), site.url("/"))
    out, err = process.communicate(timeout=120)

    assert (process.returncode, out, err) == (0, "fine\n", "")
    pages = [path for path in site.paths() if path != "/robots.txt"]
    assert pages == ["/parent", "/inherited", "/own", "/again"]
    assert site.count("/robots.txt") == (3 if store else 1)
