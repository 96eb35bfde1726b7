"""Several processes with the default store: one pace, one budget, one robots.txt between them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.client.fetching import AGENT, UNPACED
from tests.support.bounds import Lateness
from tests.support.polling import block_until
from tests.support.site import Reply, Site
from tests.support.warm import Process


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """What all of them are given."""
    place = f"sqlite:///{tmp_path}/hosts.sqlite"
    return {"store": place, "cache": False, "allow_private": True, "user_agent": AGENT, **UNPACED}


def start(
    settings: dict[str, Any], urls: Sequence[Sequence[str]], max_in_flight: int = 1000, *, inherited: bool = False
) -> Process[str]:
    task = json.dumps({"settings": settings, "urls": urls, "max_in_flight": max_in_flight, "inherited": inherited})
    return Process(
        "tests.client.worker", task,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def run(
    settings: dict[str, Any], urls: Sequence[Sequence[str]], max_in_flight: int = 1000, *, inherited: bool = False
) -> list[list[dict[str, Any]]]:
    """Let a process fetch each list of URLs, all at once; what came of them."""
    process = start(settings, urls, max_in_flight, inherited=inherited)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def reasons(results: list[list[dict[str, Any]]]) -> Counter[str | None]:
    return Counter(each["reason"] for process in results for each in process)


@pytest.mark.parametrize("inherited", [False, True])
def test_eight_processes_on_a_fresh_origin_make_one_request_for_robots_txt(
    site: Site, settings: dict[str, Any], inherited: bool
) -> None:
    """F35, R5: and no page that it forbids is asked for by any of them, be its client from before the fork or after"""
    site.reply("/robots.txt", Reply(body="User-agent: *\nDisallow: /private\n", wait=0.3))
    site.page("/open/*", "x")
    urls = [
        [site.url(f"/{'private' if number % 2 else 'open'}/{process}/{number}") for number in range(6)]
        for process in range(8)
    ]

    results = run(settings, urls, inherited=inherited)

    assert site.count("/robots.txt") == 1
    assert site.paths()[0] == "/robots.txt"
    assert len(site.paths()) == 1 + 8 * 3
    assert [path for path in site.paths() if path.startswith("/private")] == []
    assert reasons(results) == {None: 24, "robots_disallowed": 24}


def test_two_processes_keep_one_pace(site: Site, settings: dict[str, Any]) -> None:
    """B7, F42: by the site's own clock; one at a time"""
    site.reply("/*", Reply(body="x", wait=0.02))
    settings |= {"pause_min": 0.25, "pause_max": 0.27}
    urls = [[site.url(f"/{process}/{number}") for number in range(4)] for process in range(2)]

    with Lateness() as late:
        run(settings, urls)

    assert site.count() == 1 + 8
    assert min(site.gaps()) >= 0.2 - late.most  # a request that is noticed late makes the next gap look shorter
    assert site.max_concurrency() == 1


def test_three_processes_share_one_budget_to_the_last_request(site: Site, settings: dict[str, Any]) -> None:
    """B4, B7"""
    site.reply("/*", Reply(body="x"))
    settings |= {"max_requests_per_day": 20, "max_pages_per_day": 0}
    urls = [[site.url(f"/{process}/{number}") for number in range(12)] for process in range(3)]

    results = run(settings, urls)

    assert site.count() == 20
    assert site.count("/robots.txt") == 1
    assert reasons(results) == {None: 19, "domain_budget_exceeded": 17}


@pytest.mark.parametrize("place", ["the state directory", "$CURTSY_STORE"])
def test_two_programs_that_name_no_store_share_pace_and_budget(
    site: Site, settings: dict[str, Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4, B7, P1: by default, as the site saw it"""
    site.reply("/*", Reply(body="x", wait=0.02))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if place == "the state directory":
        monkeypatch.delenv("CURTSY_STORE", raising=False)
    else:
        monkeypatch.setenv("CURTSY_STORE", f"sqlite:///{tmp_path}/named/state.sqlite")
    del settings["store"]
    settings |= {"pause_min": 0.25, "pause_max": 0.27, "max_requests_per_day": 7}

    with Lateness() as late:
        programs = [start(settings, [[site.url(f"/{name}/{number}") for number in range(5)]]) for name in "ab"]
        told = [program.communicate(timeout=120) for program in programs]
    results = [json.loads(out) for out, _ in told]

    assert [(program.returncode, err) for program, (_, err) in zip(programs, told, strict=True)] == [(0, "")] * 2
    assert reasons(results) == {None: 6, "domain_budget_exceeded": 4}
    assert (site.count(), site.count("/robots.txt")) == (7, 1)
    assert min(site.gaps()) >= 0.2 - late.most  # a request that is noticed late makes the next gap look shorter
    assert site.max_concurrency() == 1
    [file] = tmp_path.rglob("state.sqlite")
    assert (file.parent.name == "named") == (place == "$CURTSY_STORE")


def test_a_later_process_knows_what_an_earlier_one_has_learned(site: Site, settings: dict[str, Any]) -> None:
    """B7, R5, issue 4, 3: rules, budget and breaker outlive the process"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/open", Reply(body="x"))
    site.reply("/block", Reply(403))

    first = run(settings, [[site.url("/open"), site.url("/block")]], max_in_flight=1)
    second = run(settings, [[site.url("/private"), site.url("/open")]], max_in_flight=1)

    assert [each["status"] for each in first[0]] == [200, 403]
    assert [each["reason"] for each in second[0]] == ["robots_disallowed", "circuit_open"]
    assert site.paths() == ["/robots.txt", "/open", "/block"]


def test_killed_processes_never_overrun_the_budget(site: Site, settings: dict[str, Any]) -> None:
    """F38: charged before it is sent, and not given back by the dead"""
    site.reply("/*", Reply(body="x"))
    settings |= {"max_requests_per_day": 60, "max_pages_per_day": 0, "concurrency": 200, "respect_robots": False}
    dice = random.Random(7)

    for number in range(3):
        seen = site.count()
        victim = start(settings, [[site.url(f"/{number}/{page}") for page in range(400)]], max_in_flight=5)
        most = dice.randint(1, 25)  # requests until it is killed
        block_until(lambda: site.count() >= seen + most or victim.poll() is not None)  # noqa: B023
        kill(victim)
    site.idle()
    seen = site.count()
    [last] = run(settings, [[site.url(f"/last/{page}") for page in range(70)]])

    assert seen > 3
    assert site.count() <= 60
    assert any(each["reason"] == "domain_budget_exceeded" for each in last)


def test_a_process_that_is_killed_while_it_fetches_robots_txt_is_waited_for_no_longer_than_its_request_lasts(
    site: Site, settings: dict[str, Any]
) -> None:
    """F38, R5, R7: by the site's journal: the next one comes when the first must have ended, and neither sooner"""
    site.script("/robots.txt", [Reply(body="User-agent: *\n", wait=30), Reply(body="User-agent: *\n")])
    site.page("/page", "x")
    settings |= {"robots_timeout": 0.8}

    victim = start(settings, [[site.url("/page")]])
    block_until(site.count, victim)
    other = start(settings, [[site.url("/page")]])
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.3)
    kill(victim)
    with Lateness() as late:
        out, err = other.communicate(timeout=120)

    first, second, page = site.visits()
    assert (other.returncode, err, json.loads(out)[0]["ok"]) == (0, "", True)
    assert [each.path for each in (first, second, page)] == ["/robots.txt", "/robots.txt", "/page"]
    assert 0.8 <= second.at - first.at < 0.8 + 1 + 0.5 + late.most + late.still
    assert site.max_concurrency() == 1


def kill(process: Process[str]) -> None:
    """Kill it with all its children, at once, unless it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
