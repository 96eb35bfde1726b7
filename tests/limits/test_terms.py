"""What a limiter makes of policies, and how it follows settings that change (U6, U9, C6, Q6, L6)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.breaker import State
from curtsy.core.errors import InvalidDomain, PolicyError, Reason
from curtsy.core.policy import LimitConfig, Policies, Policy
from curtsy.core.time import SECOND
from curtsy.limits import CircuitBreaker, DomainDailyBudgetManager, DomainLimiter, RateLimiter, TokenBucket
from curtsy.limits.program_limiter import ProgramLimiter
from curtsy.settings.live import LiveSettings
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.testing import FakeClock
from tests.limits.asking import waits
from tests.limits.conftest import Made, Told
from tests.support.said import missing
from tests.support.snapshot import Snapshot

URL = "https://example.org/page"
MEMORY = {"CURTSY_STORE": "memory:"}
TOO_LARGE = r"burst_capacity = 300 .*256.*sliding_window"


class Project:
    """A directory whose settings a limiter of the program follows, on a clock that is moved by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 100.0

    def begin(self, text: str, global_qps: float | None = None) -> ProgramLimiter:
        self.write(text)
        user = self.directory / "user"
        live = LiveSettings(directory=self.directory, user_directory=user, env=MEMORY, clock=lambda: self.now)
        limiter = ProgramLimiter(live)
        if global_qps is not None:
            limiter.use_global(global_qps)
        return limiter

    def write(self, text: str) -> None:
        """Write as careful programs do: another file, put in place of the old one."""
        part = self.directory / "curtsy.part"
        part.write_text(text)
        part.replace(self.directory / "curtsy.yaml")

    def change(self, limiter: RateLimiter, text: str) -> None:
        """Write, and let the limiter look twice, as it does when it is used."""
        self.write(text)
        for _ in range(2):
            self.now += 1
            limiter.domain("example.org")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# U6: what a failure is


@pytest.mark.parametrize("status", [200, 304, 400, 401, 404, 410, 451])
def test_an_answer_is_no_failure_for_the_breaker(made: Made, clock: FakeClock, status: int) -> None:
    """U6: however many of them there are, and a trial that is answered so closes it."""
    limiter, breaker = made(), CircuitBreaker(store=MemoryStore(clock))
    for _ in range(5):
        limiter.record_failure(URL, status)
        breaker.record_failure(status)
    assert (limiter.breaker_state("example.org")[0], breaker.state) == (State.CLOSED, State.CLOSED)

    breaker.trip()
    clock.advance(300)
    assert breaker.attempt_reset()
    breaker.record_failure(status)

    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("status", [500, 503, 599, None])
def test_five_hundreds_and_no_status_are_failures(made: Made, status: int | None) -> None:
    """U6"""
    limiter = made()

    for _ in range(3):
        limiter.record_failure(URL, status)

    assert limiter.breaker_state("example.org")[0] is State.OPEN


# U9: overrides of every limit


def test_each_domain_has_the_breaker_of_its_policy(made: Made) -> None:
    """U9: whether it has one, how soon it opens, and for how long."""
    entries = {
        "never.org": Policy(breaker=False),
        "soon.org": Policy(breaker_failures=1, breaker_cooldown=900.0, breaker_max_cooldown=1000.0),
        "share.org": Policy(breaker_failures=100, breaker_error_rate=0.2, breaker_min_replies=5, breaker_window=60.0),
        "retry.org": Policy(on_429="retry"),
    }
    limiter = made(policies=Policies(Policy(breaker_failures=5), entries))

    for _ in range(4):
        for name in ("never.org", "other.org"):
            limiter.record_failure(f"https://{name}/", 500)
    limiter.record_failure("https://a.soon.org/", 500)
    for status in (200, 200, 200, 200, 500, 500):
        limiter.record_failure("https://share.org/", status)
    limiter.record_failure("https://retry.org/", 429)
    limiter.record_failure("https://blocked.org/", 429)

    states = {
        name: state.value
        for name, state in ((each, limiter.breaker_state(each)[0]) for each in limiter.get_all_stats())
    }
    assert states == {
        "never.org": "closed", "other.org": "closed", "a.soon.org": "open", "share.org": "open", "retry.org": "closed",
        "blocked.org": "open",
    }  # fmt: skip
    assert limiter.breaker_state("a.soon.org") == (State.OPEN, 900.0)
    limiter.record_failure("https://other.org/", 500)
    assert limiter.breaker_state("other.org")[0] is State.OPEN


async def test_each_domain_has_the_strategy_rate_and_burst_of_its_policy(made: Made, clock: FakeClock) -> None:
    """U9, Q12: a burst that one strategy cannot have is no matter for another."""
    entries = {"bucket.org": Policy(qps=1.0, burst=300), "leaky.org": Policy(qps=1.0, burst=5, strategy="leaky_bucket")}
    limiter = made(policies=Policies(Policy(qps=1.0, burst=3, strategy="sliding_window"), entries))

    assert sum(limiter.allow("bucket.org") for _ in range(310)) == 300
    assert sum(limiter.allow("leaky.org") for _ in range(310)) == 1
    assert await waits(limiter, clock, 5, "window.org") == [0.0, 0.0, 0.0, 3.0, 3.0]


async def test_hosts_of_a_shared_entry_have_one_rate_and_one_breaker(made: Made, clock: FakeClock) -> None:
    """C6, U9: which is counted once."""
    limiter = made(policies=Policies(Policy(qps=1.0), {"one.org": Policy(qps=0.1, key="one.org")}))

    await limiter.wait("a.one.org")
    assert not limiter.allow("b.one.org")
    assert limiter.allow("a.org")
    assert limiter.allow("b.org")
    limiter.record_failure("https://a.one.org/", 429)

    assert not await limiter.acquire("https://b.one.org/")
    stats = limiter.get_stats()
    assert (stats.circuit_breaker_trips, stats.circuit_breakers_open, stats.blocked_requests) == (1, 1, 1)


async def test_a_denied_domain_is_refused_by_acquire_alone(made: Made) -> None:
    """U9, L3: whatever configuration of its own it has; wait and allow are the plain limiter."""
    limiter = made(
        domains={"b.bad.org": LimitConfig(5.0, 5)}, policies=Policies(Policy(), {"bad.org": Policy(denied=True)})
    )

    for url in ("https://a.bad.org/", "https://b.bad.org/"):
        assert not await limiter.acquire(url)
        refusal = limiter.refusal(url)
        assert refusal is not None
        assert (refusal.reason, refusal.retry_after) == (Reason.DOMAIN_DENIED, None)
    assert limiter.allow("a.bad.org")
    assert await limiter.acquire(URL)


async def test_a_domain_that_is_denied_while_one_waits_for_it_is_refused(made: Made) -> None:
    """U9"""
    limiter = made(policies=Policies(Policy(qps=0.001)))
    await limiter.acquire(URL)
    waiting = asyncio.ensure_future(limiter.acquire(URL))
    await asyncio.sleep(0)

    limiter.use_policies(Policies(Policy(qps=100.0), {"example.org": Policy(denied=True)}))

    assert not await waiting


# U9: settings that change


def test_the_programs_limiter_has_all_that_the_settings_say(project: Project) -> None:
    """U9, C6, Q6: the burst over all too, also beside a global rate of the program's own."""
    text = (
        "global_qps: 0.5\nglobal_burst: 4\ndefault_policy: {strategy: sliding_window, breaker_failures: 7}\n"
        "allowlist:\n  - {domain: one.org, shared: true, strategy: token_bucket, burst: 300, qps: 5}\n"
        "denylist: [bad.org]\n"
    )
    limiter = project.begin(text)

    one, other = limiter.domain("a.one.org"), limiter.domain("other.org")
    assert (limiter.overall.qps, limiter.overall.burst) == (0.5, 4)
    assert limiter.allow_n("a.one.org", 300)
    assert (one.policy.strategy, one.policy.qps, one.policy.burst) == ("token_bucket", 5, 300)
    assert one.key == limiter.domain("b.one.org").key
    assert (other.policy.strategy, other.guarded.breaker_failures) == ("sliding_window", 7)
    assert not asyncio.run(limiter.acquire("https://bad.org/"))
    ours = project.begin(text, global_qps=0.3)
    assert (ours.overall.qps, ours.overall.burst) == (0.3, 4)
    ours.use_global(0.2)
    project.change(ours, "global_burst: 9\n")
    assert (ours.overall.qps, ours.overall.burst) == (0.2, 9)


async def test_settings_that_cannot_be_used_leave_all_as_it_was_and_are_told_once(
    project: Project, told: Told, snapshot: Snapshot
) -> None:
    """U9, L6: the program has said a burst that the strategy of the changed file cannot have."""
    limiter = project.begin("global_qps: 2\ndefault_policy: {qps: 3}\n")
    limiter.update_config("own.org", LimitConfig(50.0, 300))

    project.change(limiter, "global_qps: 4\ndefault_policy: {qps: 5, strategy: sliding_window}\n")

    assert all(limiter.allow(name) for name in ("own.org", "new.org", "other.org"))
    assert (limiter.overall.qps, limiter.domain("new.org").policy.qps) == (2, 3)
    [warning] = told(logging.WARNING)
    assert missing(warning, "burst_capacity = 300 ", "256", "sliding_window") == []
    snapshot(warning)
    project.change(limiter, "global_qps: 6\ndefault_policy: {qps: 7}\n")
    assert (limiter.overall.qps, limiter.domain("new.org").policy.qps) == (6, 7)


def test_a_burst_that_the_strategy_cannot_have_is_an_error_at_once(made: Made) -> None:
    """L6: not when the domain is first asked for."""
    with pytest.raises(PolicyError, match=TOO_LARGE):
        made(LimitConfig(5.0, 300), strategy="sliding_window")
    with pytest.raises(PolicyError, match=TOO_LARGE):
        made(domains={"a.org": LimitConfig(5.0, 300)}, strategy="sliding_window")
    limiter = made(strategy="sliding_window")

    with pytest.raises(PolicyError, match=TOO_LARGE):
        limiter.update_config("a.org", LimitConfig(5.0, 300))

    assert limiter.domain("a.org").config == LimitConfig()


@pytest.mark.parametrize("given", ["at the start", "while running"])
async def test_a_configuration_is_a_rate_and_a_burst_and_all_else_is_the_policys(made: Made, given: str) -> None:
    """L6, U9, C6: strategy, breaker, record and denial"""
    policy = Policy(
        qps=1.0, strategy="leaky_bucket", key="example.org", denied=True, max_crawl_delay=900.0,
        breaker_cooldown=3600.0, breaker_failures=1, on_429="retry",
    )  # fmt: skip
    policies, config = Policies(Policy(qps=2.0), {"example.org": policy}), LimitConfig(5.0, 7)
    limiter = made(domains={"a.example.org": config} if given == "at the start" else None, policies=policies)
    if given == "while running":
        limiter.update_config("a.example.org", config)

    one, other = limiter.domain("a.example.org"), limiter.domain("b.example.org")
    for name in ("strategy", "breaker_cooldown", "breaker_failures", "on_429", "max_crawl_delay"):
        assert getattr(one.guarded, name) == getattr(other.guarded, name) == getattr(policy, name)
    assert (one.guarded.qps, one.guarded.burst, one.config) == (5.0, 7, config)
    assert (one.policy.qps, one.policy.burst, one.policy.breaker) == (5.0, 7, False)
    assert one.key == other.key == "host:example.org"
    assert not await limiter.acquire("https://a.example.org/")


def test_with_policies_a_configured_domain_has_all_but_its_rate_of_its_policy(made: Made) -> None:
    """U9: of its own, and no longer of the limiter's arguments"""
    limiter = made(domains={"a.org": LimitConfig(5.0, 7)}, circuit_breaker=False, strategy="leaky_bucket")
    one = limiter.domain("a.org")
    assert (one.guarded.breaker, one.guarded.strategy) == (False, "leaky_bucket")

    own = Policy(breaker_cooldown=900.0, strategy="sliding_window")
    limiter.use_policies(Policies(Policy(breaker=False), {"a.org": own}))

    assert (one.guarded.breaker, one.guarded.breaker_cooldown, one.guarded.strategy) == (True, 900.0, "sliding_window")
    assert one.config == LimitConfig(5.0, 7)
    with pytest.raises(PolicyError, match=TOO_LARGE):
        limiter.update_config("a.org", LimitConfig(5.0, 300))
    limiter.update_config("b.org", LimitConfig(5.0, 300))


class Slow(Policies):
    """Policies that somebody else changes the global rate beside, just while they are put in place."""

    def __init__(self, limiter: RateLimiter) -> None:
        super().__init__()
        self._other = threading.Thread(target=limiter.use_global, args=(5.0,))

    def of(self, domain: str) -> Policy:
        self._other.start()
        self._other.join(0.2)
        return super().of(domain)


def test_a_global_rate_said_while_policies_are_put_in_place_is_not_lost(made: Made) -> None:
    """Q6, L9"""
    limiter = made(domains={"a.org": LimitConfig()}, global_qps=1.0)
    policies = Slow(limiter)

    limiter.use_policies(policies)
    policies._other.join()

    assert limiter.overall.qps == 5.0


def test_a_change_takes_no_longer_for_many_known_domains(made: Made) -> None:
    """U9: each is worked out again when it is next asked for."""
    limiter = made(policies=Policies(Policy(qps=1.0)))
    names = [f"{number}.org" for number in range(20_000)]
    began = time.thread_time()
    assert all(limiter.allow(name) for name in names)
    all_of_them = time.thread_time() - began

    began = time.thread_time()
    limiter.use_policies(Policies(Policy(qps=2.0)))
    took = time.thread_time() - began

    assert took < all_of_them / 5
    assert {limiter.domain(name).policy.qps for name in names[::100]} == {2.0}


async def test_those_who_wait_are_told_of_a_change(made: Made, clock: FakeClock) -> None:
    """U9: in every line, and in one that is of no domain any more."""
    slow = Policies(Policy(qps=0.001), {"one.org": Policy(qps=0.001, key="one.org")})
    limiter = made(policies=slow)
    names = ["a.one.org", "b.org", "c.org"]
    for name in names:
        await limiter.wait(name)
    waiting = [asyncio.ensure_future(limiter.wait(name)) for name in names]
    await asyncio.sleep(0)
    began = clock.now().at

    limiter.use_policies(Policies(Policy(qps=0.001)))
    limiter.allow("a.one.org")
    limiter.use_policies(Policies(Policy(qps=1.0)))
    await asyncio.gather(*waiting)

    assert clock.now().at - began <= SECOND


def test_asking_for_a_known_domain_is_enough_to_follow(project: Project) -> None:
    """U9, Q6: the global rate too."""
    limiter = project.begin("global_qps: 2\n")
    limiter.domain("example.org")
    project.write("global_qps: 4\n")

    for _ in range(2):
        project.now += 1
        limiter.domain("example.org")

    assert limiter.overall.qps == 4


def test_a_global_rate_that_is_refused_changes_nothing(project: Project) -> None:
    """Q6, U9: the settings are followed as before."""
    limiter = project.begin("global_qps: 2\n")

    with pytest.raises(PolicyError, match="global_qps = -1 "):
        limiter.use_global(-1)
    project.change(limiter, "global_qps: 4\n")

    assert limiter.overall.qps == 4


# Q6: what is logged


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("preset: own\n", (None, None)),
        ("default_policy: {qps: 2, burst: 5, breaker: false}\n", (2, 5)),
        ("{}\n", (0.8, 1)),
    ],
)
def test_the_rates_that_hold_are_logged_at_the_start(
    project: Project, told: Told, text: str, rates: tuple[float | None, float | None]
) -> None:
    """Q6"""
    limiter = project.begin(text)

    [line] = [line for line in told(logging.INFO) if line.startswith("Rate limiter ready ")]
    said = json.loads(line.removeprefix("Rate limiter ready "))
    assert (said["per_domain_qps"], said["burst"]) == rates
    assert said["circuit_breaker"] is limiter.domain("example.org").guarded.breaker


def test_the_files_that_were_read_again_are_logged_as_text(project: Project, told: Told) -> None:
    """U9, N1"""
    limiter = project.begin("global_qps: 2\n")

    project.change(limiter, "global_qps: 4\n")

    [line] = [line for line in told(logging.INFO) if line.startswith("Settings reloaded ")]
    assert json.loads(line.removeprefix("Settings reloaded ")) == {"files": [str(project.directory / "curtsy.yaml")]}


# L6, U8: bad input


def made_wrong(what: Any, **given: Any) -> Any:
    return lambda: what(**given)


@pytest.mark.parametrize(
    ("mistake", "shown"),
    [
        (made_wrong(RateLimiter, domains={"a.com": 5}), "domains['a.com'] = 5 "),
        (made_wrong(RateLimiter, domains=["a.com"]), "domains = ['a.com'] "),
        (made_wrong(RateLimiter, unlimited="abc"), "unlimited = 'abc' "),
        (made_wrong(RateLimiter, policies=5), "policies = 5 "),
        (made_wrong(RateLimiter, store=5), "store = 5 "),
        (made_wrong(RateLimiter, store=(5, 6)), "store = (5, 6) "),
        (made_wrong(RateLimiter, store={}), "store = {} "),
        (
            made_wrong(RateLimiter, store=MemoryStore),
            "store = <class 'curtsy.stores.memory.MemoryStore'> ",
        ),
        (made_wrong(TokenBucket, tokens_per_second=1, store=AsyncMemoryStore()), "store = <curtsy"),
        (made_wrong(DomainDailyBudgetManager, store=5), "store = 5 "),
        (made_wrong(DomainDailyBudgetManager, store={}), "store = {} "),
        (
            made_wrong(DomainLimiter, domain="a.com", config=LimitConfig(), limiter=RateLimiter()),
            "config = LimitConfig(requests_per_second=1.0, burst_capacity=1) ",
        ),
        (made_wrong(DomainLimiter, domain="a.com", limiter="x"), "limiter = 'x' "),
        (made_wrong(CircuitBreaker, store=5), "store = 5 "),
        (made_wrong(CircuitBreaker, store=AsyncMemoryStore()), "store = <curtsy.stores.memory.AsyncMemoryStore"),
        (made_wrong(CircuitBreaker, key=5), "key = 5 "),
        (made_wrong(TokenBucket, tokens_per_second=1, store=5), "store = 5 "),
        (made_wrong(TokenBucket, tokens_per_second=1, key=None), "key = None "),
        (made_wrong(TokenBucket, tokens_per_second=1, timers=5), "timers = 5 "),
        (made_wrong(TokenBucket, tokens_per_second=1, capacity=1e308), "capacity = 1e+308 "),
        (made_wrong(RateLimiter().use_policies, policies=None), "policies = None "),
        (made_wrong(RateLimiter().record_failure, url=URL, status="429"), "status = '429' "),
        (made_wrong(RateLimiter().record_failure, url=URL, status=True), "status = True "),
        (made_wrong(RateLimiter().record_failure, url=URL, status=0), "status = 0 "),
        (made_wrong(CircuitBreaker().record_failure, status="429"), "status = '429' "),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_value_that_cannot_be_is_an_error_that_says_so(snapshot: Snapshot, mistake: Any, shown: str) -> None:
    """L6, U8: what, why, and what to do."""
    with pytest.raises(PolicyError) as error:
        mistake()

    assert str(error.value).startswith(shown)
    snapshot(re.sub("0x[0-9a-f]+", "0x0", str(error.value)))


@pytest.mark.parametrize("is_page", [5, "x", None])
def test_a_page_is_one_or_it_is_not(is_page: Any) -> None:
    """B10: and nothing is counted of what is neither."""
    manager = DomainDailyBudgetManager(store="memory:")

    with pytest.raises(PolicyError, match=f"is_page = {is_page!r} .*True"):
        manager.record_domain_request("example.org", is_page)

    assert manager.get_domain_budget("example.org").requests_today == 0


def test_a_domain_that_is_no_text_is_an_invalid_domain() -> None:
    """L8"""
    with pytest.raises(InvalidDomain, match=r"domain = \['x'\]"):
        RateLimiter().allow(["x"])  # type: ignore[arg-type]


# L9: a fork

FORKED = """
import os, pathlib, signal, threading, time
from curtsy.limits import DomainLimiter, LimitConfig, RateLimiter, get_domain_budget_manager, get_rate_limiter
from curtsy.limits.statistics import LOCK

limiter, own, manager = get_rate_limiter(), RateLimiter(LimitConfig(1.0, 5)), get_domain_budget_manager()
live, alone = limiter._live, DomainLimiter("a.org")
second = DomainLimiter("a.org", limiter=own)
held, end = threading.Event(), threading.Event()

def hold():
    with live._lock:
        with LOCK:
            held.set()
            time.sleep(0.2)
        end.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    assert alone.allow() and second.allow()
    assert own.allow("a.org") and limiter.allow("a.org") and get_rate_limiter(global_qps=3.0) is limiter
    assert get_domain_budget_manager() is manager
    manager._warn("store", "told")
    pathlib.Path("curtsy.yaml").write_text("default_policy: {qps: 7}")
    live.reload()
    assert limiter.domain("b.org").policy.qps == 7
    os._exit(0)
status = os.waitpid(child, 0)[1]
end.set()
assert status == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_while_other_threads_hold_the_locks_leaves_the_child_working_parts(tmp_path: Path) -> None:
    """L9: nobody would be left in the child to release them."""
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LANG")}

    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], cwd=tmp_path, env={**kept, **home}, check=True, timeout=120
    )


SAID = """
import os, signal
from curtsy import Policies, Policy, get_rate_limiter

limiter = get_rate_limiter()
limiter.use_policies(Policies(Policy(qps=0.01)))
child = os.fork()
if not child:
    signal.alarm(10)
    os._exit(0 if limiter.domain("a.org").policy.qps == 0.01 else 1)
status = os.waitpid(child, 0)[1]
assert status == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_what_the_program_has_said_itself_survives_a_fork(tmp_path: Path) -> None:
    """U9, L9"""
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LANG")}

    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAID], cwd=tmp_path, env={**kept, **home}, check=True, timeout=120
    )
