"""DomainDailyBudgetManager: how much of a domain's day is spent (B1-B12, the manager's part)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from curtsy.core.amendment import Override
from curtsy.core.decision import Go, No
from curtsy.core.errors import InvalidDomain, PolicyError, StoreError
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UTC, Policies, Policy
from curtsy.core.time import Now
from curtsy.engine.gate_steps import amended, charge, settled
from curtsy.limits import DomainBudgetCheckResult, DomainDailyBudget, DomainDailyBudgetManager
from curtsy.settings import load
from curtsy.stores import Answer, Step
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.limits.conftest import Told
from tests.support.noon import zone_at_noon
from tests.support.said import missing
from tests.support.warm import Process

NOON = 1_799_971_200 + 12 * 3600
"""15 January 2027, 12:00 UTC."""

UNLIMITED = 2**31 - 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(epoch=NOON)


def policies(**limits: Any) -> Policies:
    return Policies(Policy(timezone=UTC, **limits))


def manager_of(clock: FakeClock, given: Policies | None = None) -> DomainDailyBudgetManager:
    return DomainDailyBudgetManager(given or policies(), store=MemoryStore(clock))


def spend(manager: DomainDailyBudgetManager, domain: str, requests: int, pages: int = 0) -> None:
    for number in range(requests):
        manager.record_domain_request(domain, is_page=number < pages)


# B1, B12: the cases that every suite of it has


def test_the_first_request_of_a_day_is_allowed_with_the_whole_budget_left(clock: FakeClock) -> None:
    """B12, B1: 200 requests and 100 pages if nothing is said."""
    found = manager_of(clock).can_request_to_domain("example.org")

    assert found == DomainBudgetCheckResult(allowed=True, requests_remaining=200, pages_remaining=100)
    assert found.reason is None


def test_within_the_budget_requests_are_allowed_and_looking_counts_nothing(clock: FakeClock) -> None:
    """B12, B10"""
    manager = manager_of(clock)
    spend(manager, "example.org", 3, pages=1)

    for _ in range(5):
        found = manager.can_request_to_domain("example.org")

    assert (found.allowed, found.requests_remaining, found.pages_remaining) == (True, 197, 99)


def test_the_request_limit_is_reached_exactly(clock: FakeClock, told: Told) -> None:
    """B12, B2: refused with the reason, which limit it was, and when it resets; it is logged."""
    manager = manager_of(clock, policies(max_requests_per_day=5))
    spend(manager, "example.org", 4)
    assert manager.can_request_to_domain("example.org").allowed
    spend(manager, "example.org", 1)

    found = manager.can_request_to_domain("example.org")

    assert found == DomainBudgetCheckResult(
        allowed=False, reason="domain_budget_exceeded", requests_remaining=0, pages_remaining=100,
        limit="max_requests_per_day", retry_after=12 * 3600,
    )  # fmt: skip
    assert any(missing(line, "example.org", "max_requests_per_day") == [] for line in told(logging.INFO))


def test_the_page_limit_is_reached_exactly(clock: FakeClock) -> None:
    """B12: pages run out before requests."""
    manager = manager_of(clock, policies(max_pages_per_day=2))
    spend(manager, "example.org", 3, pages=2)

    found = manager.can_request_to_domain("example.org")

    assert (found.allowed, found.reason, found.limit) == (False, "domain_budget_exceeded", "max_pages_per_day")
    assert (found.requests_remaining, found.pages_remaining) == (197, 0)


def test_a_limit_of_zero_is_none_at_all(clock: FakeClock) -> None:
    """B1, B12, B10: shown as 2**31 - 1."""
    manager = manager_of(clock, policies(max_requests_per_day=0, max_pages_per_day=0))
    spend(manager, "example.org", 300, pages=300)

    found = manager.can_request_to_domain("example.org")

    assert (found.allowed, found.requests_remaining, found.pages_remaining) == (True, UNLIMITED, UNLIMITED)
    assert manager.get_domain_budget("example.org").requests_today == 300


def test_a_limit_of_one_allows_one(clock: FakeClock) -> None:
    """B12"""
    manager = manager_of(clock, policies(max_requests_per_day=1))
    assert manager.can_request_to_domain("example.org").allowed

    spend(manager, "example.org", 1)

    assert not manager.can_request_to_domain("example.org").allowed


def test_a_new_day_starts_with_a_full_budget(clock: FakeClock) -> None:
    """B6, B12: at midnight in the configured zone, to the second."""
    manager = manager_of(clock, policies(max_requests_per_day=1))
    spend(manager, "example.org", 1)

    clock.advance(12 * 3600 - 1)
    assert not manager.can_request_to_domain("example.org").allowed
    assert manager.get_domain_budget("example.org").date == "2027-01-15"
    clock.advance(1)

    assert manager.can_request_to_domain("example.org").allowed
    assert manager.get_domain_budget("example.org") == DomainDailyBudget(
        domain="example.org", requests_today=0, pages_today=0, max_requests_per_day=1, max_pages_per_day=100,
        date="2027-01-16",
    )  # fmt: skip


def test_domains_are_independent_and_lower_cased(clock: FakeClock) -> None:
    """B9, B12"""
    manager = manager_of(clock, policies(max_requests_per_day=1))

    spend(manager, "EXAMPLE.org", 1)

    assert not manager.can_request_to_domain("example.ORG").allowed
    assert manager.can_request_to_domain("example.net").allowed
    assert manager.can_request_to_domain("www.example.org").allowed
    assert manager.get_domain_budget("Example.Org").domain == "example.org"


def test_a_domain_has_its_own_limits_and_what_it_leaves_out_is_the_default(clock: FakeClock, tmp_path: Path) -> None:
    """B3, B11, B12: the documents' example, subdomains included; a domain without an entry has the default."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "domains.yaml").write_text(
        "default_policy:\n  max_requests_per_day: 20\n  timezone: UTC\n"
        "allowlist:\n"
        "  - domain: wikipedia.org\n    domain_category: trusted\n"
        "    max_requests_per_day: 500\n    max_pages_per_day: 250\n"
        "  - domain: half.org\n    max_pages_per_day: 7\n"
    )
    settings = load(directory=tmp_path, user_directory=tmp_path, env={})
    manager = DomainDailyBudgetManager(settings.policies, store=MemoryStore(clock))

    limits = {
        domain: (found.max_requests_per_day, found.max_pages_per_day)
        for domain in ("wikipedia.org", "de.wikipedia.org", "half.org", "elsewhere.org")
        for found in [manager.get_domain_budget(domain)]
    }

    assert limits == {
        "wikipedia.org": (500, 250), "de.wikipedia.org": (500, 250), "half.org": (20, 7), "elsewhere.org": (20, 100),
    }  # fmt: skip


def test_a_recorded_request_and_a_recorded_page_count_as_they_should(clock: FakeClock) -> None:
    """B12: a page is a request too."""
    manager = manager_of(clock)

    manager.record_domain_request("example.org")
    manager.record_domain_request("example.org", is_page=True)

    found = manager.get_domain_budget("example.org")
    assert (found.requests_today, found.pages_today) == (2, 1)
    assert (found.requests_remaining, found.pages_remaining) == (198, 99)


def test_the_manager_and_the_client_count_in_the_same_record(clock: FakeClock) -> None:
    """B4, B5: what the gate charges shows here; what is given back or not modified does not."""
    given, store = policies(max_requests_per_day=10), MemoryStore(clock)
    manager, policy = (
        DomainDailyBudgetManager(given, store=store),
        given.default.replace(pause_min=0, pause_max=0, qps=None),
    )
    outcomes = [
        Outcome(Kind.ANSWERED, 200, page=True),
        Outcome(Kind.ANSWERED, 404),
        Outcome(Kind.FAILED, 500),
        Outcome(Kind.NOT_MODIFIED, 304),
        Outcome(Kind.ABANDONED, sent=False),
        Outcome(Kind.FAILED, sent=False),
    ]
    for outcome in outcomes:
        decision, _ = store.update("host:example.org", charge(policy, 0.0, page=True))
        assert isinstance(decision, Go)
        store.update("host:example.org", settled(policy, decision.lease, outcome))

    found = manager.get_domain_budget("example.org")

    assert (found.requests_today, found.pages_today) == (3, 1)


# B10: its types


def test_a_budget_counts_from_zero_computes_what_is_left_and_describes_itself() -> None:
    """B10"""
    fresh = DomainDailyBudget(domain="example.org", max_requests_per_day=5, max_pages_per_day=0, date="2027-01-15")
    over = fresh.model_copy(update={"requests_today": 7})

    assert (fresh.requests_today, fresh.pages_today) == (0, 0)
    assert (fresh.requests_remaining, fresh.pages_remaining) == (5, 2**31 - 1)
    assert over.requests_remaining == 0
    assert fresh.model_dump()["requests_remaining"] == 5
    assert DomainDailyBudget.model_validate_json(over.model_dump_json()) == over
    for model in (DomainDailyBudget, DomainBudgetCheckResult):
        schema = model.model_json_schema(mode="serialization")["properties"]
        assert all(field.get("description") for field in schema.values())


@pytest.mark.parametrize("broken", ["allowlist: [", "default_policy:\n  max_requests_per_day: many\n"])
def test_settings_that_are_broken_at_the_start_mean_the_default_limits(
    tmp_path: Path, nothing_from_outside: None, broken: str
) -> None:
    """C17, B8: one warning; and they hold when they can be read. A client refuses to start."""
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "domains.yaml").write_text(broken)
    script = """
import logging, pathlib, time
logging.basicConfig(format="%(levelname)s %(message)s")
import curtsy
from curtsy.limits.budget import can_request_to_domain, get_domain_budget_manager, record_domain_request
for _ in range(3):
    assert can_request_to_domain("example.org").requests_remaining == 200
record_domain_request("example.org")
assert get_domain_budget_manager().get_domain_budget("example.org").requests_remaining == 199
try:
    curtsy.Client()
except curtsy.PolicyError:
    print("refused")
pathlib.Path("config/domains.yaml").write_text("default_policy:\\n  max_requests_per_day: 7\\n")
give_up_at = time.monotonic() + 20
while can_request_to_domain("example.org").requests_remaining != 6 and time.monotonic() < give_up_at:
    time.sleep(0.02)
print(can_request_to_domain("example.org").requests_remaining)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n6\n"
    assert done.stderr.count("WARNING") == 1


def test_null_is_no_override(tmp_path: Path, clock: FakeClock) -> None:
    """B3: either limit can be overridden alone"""
    (tmp_path / "domains.yaml").write_text(
        "default_policy:\n  max_requests_per_day: 50\nallowlist:\n"
        "  - domain: example.org\n    max_requests_per_day: null\n    max_pages_per_day: 7\n"
    )
    settings = load(config=tmp_path / "domains.yaml", env={}, directory=tmp_path, user_directory=tmp_path)
    manager = DomainDailyBudgetManager(settings.policies, store=MemoryStore(clock))

    budget = manager.get_domain_budget("example.org")

    assert (budget.max_requests_per_day, budget.max_pages_per_day) == (50, 7)


def test_the_two_types_refuse_what_cannot_be() -> None:
    """B10: pydantic models; counters and limits are at least 0, a date is YYYY-MM-DD."""
    good = {
        "domain": "example.org", "requests_today": 0, "pages_today": 0, "max_requests_per_day": 0,
        "max_pages_per_day": 0, "date": "2027-01-15",
    }  # fmt: skip
    DomainDailyBudget.model_validate(good)
    for name in good:
        if name not in ("domain", "date"):
            with pytest.raises(ValidationError):
                DomainDailyBudget.model_validate({**good, name: -1})
    for date in ("2027-1-15", "15.01.2027", ""):
        with pytest.raises(ValidationError):
            DomainDailyBudget.model_validate({**good, "date": date})
    with pytest.raises(ValidationError):
        DomainBudgetCheckResult(allowed=True, requests_remaining=-1, pages_remaining=0)
    assert json.loads(DomainBudgetCheckResult(allowed=True, requests_remaining=1, pages_remaining=2).model_dump_json())


@pytest.mark.parametrize("domain", ["", "https://example.org", "exa mple.org"])
def test_what_is_no_domain_is_an_error_that_shows_the_right_form(clock: FakeClock, domain: str) -> None:
    """L8: bad input is not an outage."""
    manager = manager_of(clock)

    for call in (manager.can_request_to_domain, manager.record_domain_request, manager.get_domain_budget):
        with pytest.raises(InvalidDomain, match="domain = "):
            call(domain)


# B7: restarts and other processes


SPENDER = """
import sys
from zoneinfo import ZoneInfo
from curtsy.core.policy import Policies, Policy
from curtsy.limits import DomainDailyBudgetManager

manager = DomainDailyBudgetManager(Policies(Policy(timezone=ZoneInfo(sys.argv[2]))), store=sys.argv[1])
for _ in range(25):
    manager.record_domain_request("example.org", is_page=True)
"""


def test_a_budget_is_shared_by_processes(tmp_path: Path) -> None:
    """B7, B4: four of them count at once on one file, and none of the counts is lost."""
    url = f"sqlite:///{tmp_path / 'state.sqlite'}"
    zone = zone_at_noon()
    spenders: list[Process[str]] = [Process("tests.support.program", SPENDER, url, zone, text=True) for _ in range(4)]
    assert [spender.wait(120) for spender in spenders] == [0] * 4

    manager = DomainDailyBudgetManager(Policies(Policy(timezone=ZoneInfo(zone))), store=url)
    found = manager.can_request_to_domain("example.org")

    assert (found.allowed, found.limit, found.requests_remaining) == (False, "max_pages_per_day", 100)


# B8: fail-open


class Broken:
    """A store that fails when it is told to, as a full disk or a lost server does."""

    identity = "broken:"

    def __init__(self, clock: FakeClock) -> None:
        self._store = MemoryStore(clock)
        self.error: Exception | None = None

    def update(self, key: str, step: Step[Answer]) -> Answer:
        if self.error is not None:
            raise self.error
        return self._store.update(key, step)

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        return [self.update(key, step) for key, step in steps]

    def read(self, key: str) -> Any:
        return self._store.read(key)

    def keys(self, prefix: str = "") -> list[str]:
        return self._store.keys(prefix)

    def forget(self, key: str) -> None:
        self._store.forget(key)

    def now(self) -> Now:
        if self.error is not None:
            raise self.error
        return self._store.now()

    def close(self) -> None:
        self._store.close()


@pytest.fixture(params=[StoreError("broken: the disk is full. Make room."), OSError("No space left on device")])
def error(request: pytest.FixtureRequest) -> Iterator[Exception]:
    found: Exception = request.param
    yield found
    found.__traceback__ = None


def test_a_store_that_fails_refuses_nothing_counts_in_memory_and_is_told_once(
    clock: FakeClock, told: Told, error: Exception
) -> None:
    """B8, B12, C10: an outage is no licence either; whatever the store raises."""
    store = Broken(clock)
    manager = DomainDailyBudgetManager(policies(max_requests_per_day=5), store=store)
    spend(manager, "other.org", 1)
    store.error = error

    assert manager.can_request_to_domain("example.org").allowed
    spend(manager, "example.org", 5)

    assert not manager.can_request_to_domain("example.org").allowed
    assert manager.get_domain_budget("example.org").requests_today == 5
    assert len(told(logging.WARNING)) == 1


def test_policies_that_cannot_be_read_mean_the_default_limits_and_are_told_once(clock: FakeClock, told: Told) -> None:
    """B8: once per outage, and again when it happens again."""
    is_broken = True

    def present() -> Policies:
        if is_broken:
            raise PolicyError("domains.yaml, line 3: not a mapping")
        return policies(max_requests_per_day=7)

    manager = DomainDailyBudgetManager(present, store=MemoryStore(clock))

    for _ in range(5):
        assert manager.get_domain_budget("example.org").max_requests_per_day == 200
    assert len(told(logging.WARNING)) == 1
    assert "domains.yaml, line 3" in told(logging.WARNING)[0]
    is_broken = False
    assert manager.get_domain_budget("example.org").max_requests_per_day == 7
    is_broken = True
    manager.can_request_to_domain("example.org")

    assert len(told(logging.WARNING)) == 2


@pytest.mark.parametrize("limit", ["max_requests_per_day", "max_pages_per_day"])
def test_a_limit_changed_by_hand_holds_here_too(clock: FakeClock, limit: str) -> None:
    """B1: it answers as the gate would"""
    store, policy = MemoryStore(clock), Policy(timezone=UTC)
    manager = DomainDailyBudgetManager(Policies(policy), store=store)
    store.update("host:example.org", amended(policy, Override(((limit, 1),))))
    assert manager.can_request_to_domain("example.org").allowed

    manager.record_domain_request("example.org", is_page=True)

    found = manager.can_request_to_domain("example.org")
    decision, _ = store.update("host:example.org", charge(policy, 0.0, page=True))
    assert isinstance(decision, No)
    assert (found.allowed, found.limit, found.retry_after) == (False, limit, decision.retry_after)
    assert getattr(manager.get_domain_budget("example.org"), limit) == 1


@pytest.mark.parametrize(
    "date", ["2026-13-45", "2026-02-29", "0000-01-01", "\u0662\u0660\u0662\u0666-01-01", "20260101"]
)
def test_a_budget_is_of_a_day_that_exists(date: str) -> None:
    """B10"""
    with pytest.raises(ValidationError):
        DomainDailyBudget(domain="example.org", max_requests_per_day=5, max_pages_per_day=0, date=date)
