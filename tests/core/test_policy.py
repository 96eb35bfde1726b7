"""What holds for a host: which entry wins, and what an error says."""

from __future__ import annotations

import math
import random
import time
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.errors import InvalidDomain, PolicyError
from curtsy.core.longest_match import matches
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy, entry_name
from curtsy.core.setting import number
from curtsy.core.time import SECOND, calendar
from curtsy.core.url import parse_domain
from tests.strategies import ANY
from tests.support.bounds import cpu_within, slowness
from tests.support.said import missing
from tests.support.snapshot import Snapshot

DEFAULT = Policy()

labels = st.sampled_from(("a", "b", "www", "shop", "xn--bcher-kva", "1"))
names = st.lists(labels, min_size=1, max_size=4).map(lambda each: ".".join((*each, "org")))
domains = names | st.tuples(names, st.sampled_from((80, 8080))).map(lambda each: f"{each[0]}:{each[1]}")


def plain(domain: str) -> str:
    return domain.removeprefix("www.") if domain.count(".") > 1 else domain


def expected(entries: dict[str, Policy], domain: str) -> Policy:
    """The most specific entry, found by looking at all of them."""
    host, _, port = plain(domain).partition(":")
    found: list[tuple[int, bool, Policy]] = []
    for entry, policy in entries.items():
        name, _, its_port = plain(entry).partition(":")
        is_under = host == name or host.endswith("." + name)
        if is_under and its_port in ("", port):
            found.append((name.count("."), bool(its_port), policy))
    return max(found, key=lambda each: each[:2])[2] if found else DEFAULT


# Which entry wins


@ANY
@given(st.lists(domains, max_size=8, unique_by=plain), domains, st.randoms(use_true_random=False))
def test_the_most_specific_entry_wins_and_their_order_means_nothing(
    entries: list[str], domain: str, dice: random.Random
) -> None:
    """U9, B3, C6: an entry covers its host and all under it, on any port; one with a port that port."""
    policies = {entry: Policy(domain_category=entry) for entry in entries}
    shuffled = list(policies.items())
    dice.shuffle(shuffled)

    found = Policies(DEFAULT, policies).of(domain)

    assert found is expected(policies, domain)
    assert Policies(DEFAULT, shuffled).of(domain) is found


@pytest.mark.parametrize(
    ("entry", "domain", "is_covered"),
    [
        ("wikipedia.org", "wikipedia.org", True),
        ("wikipedia.org", "de.wikipedia.org", True),
        ("wikipedia.org", "de.m.wikipedia.org:8080", True),
        ("wikipedia.org", "notwikipedia.org", False),
        ("wikipedia.org", "org", False),
        ("Wikipedia.ORG.", "wikipedia.org", True),
        ("www.example.org", "example.org", True),
        ("example.org", "www.example.org", True),
        ("www.example.org", "shop.example.org", True),
        ("www.example.org:8080", "example.org:8080", True),
        ("example.org:8080", "example.org", False),
        ("example.org:8080", "sub.example.org:8080", True),
        ("example.org:8080", "example.org:8081", False),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1:9000", True),
        ("127.1", "127.0.0.1", True),
        ("0.0.1", "127.0.0.1", False),
        ("1", "127.0.0.1", False),
        ("::1", "[::1]", True),
        ("[::1]", "[::1]:8080", True),
        ("[::1]:8080", "[::1]", False),
        ("[2001:DB8:0::1]", "[2001:db8::1]", True),
        ("localhost", "localhost:3000", True),
    ],
)
def test_what_an_entry_covers(entry: str, domain: str, is_covered: bool) -> None:
    """U9, B3: subdomains, www. on either side, ports, addresses."""
    policy = Policy(domain_category="trusted")

    policies = Policies(DEFAULT, {entry: policy})

    assert policies.of(domain) is (policy if is_covered else DEFAULT)
    assert policies.entry(domain) == (entry_name(entry) if is_covered else None)


def test_hosts_of_a_shared_entry_are_one_and_others_are_not() -> None:
    """C6: shared: true"""
    policies = Policies(DEFAULT, {"example.org": Policy(key="example.org"), "other.org": Policy()})

    keys = {policies.of(domain).key_for(domain) for domain in ("example.org", "a.example.org", "b.example.org")}

    assert keys == {"host:example.org"}
    assert policies.of("a.other.org").key_for("a.other.org") == "host:a.other.org"
    assert policies.of("www.other.org").key_for("www.other.org") != policies.of("other.org").key_for("other.org")


def test_two_entries_for_one_domain_are_an_error(snapshot: Snapshot) -> None:
    """U9: the order of the file does not matter, so the last cannot simply win."""
    with pytest.raises(PolicyError, match=r"\bexample\.org\b") as caught:
        Policies(DEFAULT, {"example.org": Policy(), "www.example.org": Policy()})

    snapshot(str(caught.value))


def test_an_entry_that_is_no_domain_is_an_error_that_shows_the_right_form() -> None:
    """L8"""
    with pytest.raises(InvalidDomain, match=r"'https://example\.org/' .*'example\.org'"):
        Policies(DEFAULT, {"https://example.org/": Policy()})


def test_the_memory_of_look_ups_is_bounded() -> None:
    """Design, section 2: a broad crawl meets millions of hosts."""
    policies = Policies(DEFAULT, {"example.org": Policy()})

    for index in range(70_000):
        policies.of(f"h{index}.test")

    assert len(policies._known) <= 65_536


@pytest.mark.alone
def test_a_warm_look_up_takes_under_a_microsecond() -> None:
    """Issue 2, 2: by the best of many runs, with many entries."""
    policies = Policies(DEFAULT, {f"h{index}.example": Policy() for index in range(1000)})
    of, best = policies.of, math.inf
    of("a.b.h7.example")

    for _ in range(50):
        began = time.perf_counter_ns()
        for _ in range(1000):
            of("a.b.h7.example")
        best = min(best, (time.perf_counter_ns() - began) / 1000)

    assert best < 1000 * slowness(), f"{best:.0f} ns"


def test_the_program_as_a_whole_has_a_rate_and_nothing_else() -> None:
    """Q1: 0.8 requests per second over all, burst 1; None for no limit (C8)."""
    policies = Policies()

    assert policies.global_qps == policies.overall.qps == 0.8
    assert policies.overall.burst == 1
    assert policies.overall.concurrency is None
    assert policies.overall.max_requests_per_day == 0
    assert Policies(global_qps=None).global_qps is None


# Its values


def test_what_holds_when_nothing_is_configured() -> None:
    """B1, P1, Q1, Q4, Q5, R5, R8, N8, N9, C2, C3, U3: the documents' defaults."""
    policy = Policy()

    assert (policy.max_requests_per_day, policy.max_pages_per_day) == (200, 100)
    assert (policy.qps, policy.burst, policy.strategy) == (0.8, 1, "token_bucket")
    assert (policy.pause_min, policy.pause_max, policy.concurrency) == (1.5, 5.5, 1)
    assert (policy.breaker, policy.breaker_failures, policy.breaker_cooldown) == (True, 3, 300.0)
    assert (policy.on_429, policy.obey_retry_after, policy.max_retry_after) == ("obey", 60.0, 86_400.0)
    assert (policy.max_crawl_delay, policy.max_delay) == (300.0, 10.0)
    assert (policy.timeout, policy.robots_timeout, policy.robots_ttl) == (30.0, 10.0, 3600.0)
    assert (policy.respect_robots, policy.robots_unreachable) == (True, "allow")
    assert (policy.max_redirects, policy.max_retries, policy.retry_delay) == (5, 3, 1.0)
    assert policy.lease_us == 35 * SECOND


@ANY
@given(st.floats(1 / 86_400, 1e12))
def test_an_interval_is_never_shorter_than_the_rate_asks_for(qps: float) -> None:
    """Design, section 7: never closer than the interval."""
    policy = Policy(qps=qps)

    assert policy.interval_ns >= 1e9 / qps * (1 - 1e-12)
    assert policy.interval_us * 1000 >= policy.interval_ns
    assert policy.interval_ns - 1 <= 1e9 / qps * (1 + 1e-12)


def test_a_policy_is_itself_and_no_other() -> None:
    """Look-ups and memos rely on it."""
    assert Policy() != Policy()
    assert len({Policy(), Policy()}) == 2
    assert calendar(UTC) is calendar(UTC)


def test_a_changed_copy_is_checked_again() -> None:
    """L6: immutable, replaced whole."""
    policy = Policy(burst=3)

    assert policy.replace(qps=2.0).burst == 3
    assert policy.replace(qps=2.0).interval_us == SECOND // 2
    with pytest.raises(PolicyError, match="qps = 0 "):
        policy.replace(qps=0)
    with pytest.raises(AttributeError):
        policy.qps = 5.0  # type: ignore[misc]


# Errors

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "values", "bound"),
    [
        ("qps", (-1, 0, 0.0, NAN, INF, -INF, True, "1", 10**400, Decimal("sNaN")), "0"),
        ("qps", (1e-9,), "86400"),
        ("burst", (0, 0.5, -1, NAN, INF, False, None), "1"),
        ("concurrency", (0, -1, 1.5, True, "2"), "1"),
        ("max_requests_per_day", (-1, 2.0, NAN, False, None), "0"),
        ("max_pages_per_day", (-1, 2.0, True), "0"),
        ("pause_min", (-0.1, NAN, 86_401), "86400"),
        ("pause_max", (1.0,), "pause_min (1.5)"),
        ("delay", (-1, NAN, INF, None), "0"),
        ("timeout", (0, -1, NAN, INF, 1e300), "0"),
        ("breaker_failures", (0,), "1"),
        ("breaker_cooldown", (0, -5, NAN, 1e9), "0"),
        ("breaker_error_rate", (0, 1.1, NAN, True), "1"),
        ("max_retry_after", (1e9,), "2592000"),
        ("strategy", ("leaky",), "token_bucket, leaky_bucket, sliding_window"),
        ("on_429", ("ignore",), "obey, trip, retry"),
        ("robots_unreachable", (None,), "allow, disallow"),
        ("max_body", (0,), "1"),
        ("timezone", ("Europe/Berlin", 0), "ZoneInfo"),
        ("deny_paths", ("/private", ["/private"], (1,)), "tuple"),
        *((name, ("no",), "true") for name in ("denied", "allow_private", "adapt", "respect_robots")),
        ("breaker", ("no", None), "true"),
        ("domain_category", (None,), "text"),
        ("key", (3,), "text"),
    ],
    ids=lambda each: "" if isinstance(each, tuple) else each,
)
def test_an_error_says_the_field_the_rule_and_the_value(
    snapshot: Snapshot, name: str, values: tuple[Any, ...], bound: str
) -> None:
    """L6, conventions: what, why, what to do."""
    said = []
    for value in values:
        with pytest.raises(PolicyError) as found:
            Policy(**{name: value})
        said.append(str(found.value))
        given = f"{name} = {repr(value)[:50]}"
        assert said[-1].startswith(given)
        assert bound in said[-1].removeprefix(given)
        assert isinstance(found.value, ValueError)

    snapshot("\n".join(said))


@pytest.mark.parametrize("burst", [257, 1.5])
def test_a_sliding_window_remembers_each_request_so_its_burst_is_whole_and_bounded(
    burst: float, snapshot: Snapshot
) -> None:
    """Q12"""
    with pytest.raises(PolicyError, match=rf"burst = {burst} .*256") as caught:
        Policy(strategy="sliding_window", burst=burst)

    snapshot(str(caught.value))


@pytest.mark.parametrize(
    ("rate", "burst", "given", "bound"),
    [
        pytest.param(-1, 1, "requests_per_second = -1 ", "1.0", id="negative rate"),
        pytest.param(0, 1, "requests_per_second = 0 ", "0", id="no rate"),
        pytest.param(NAN, 1, "requests_per_second = nan ", "0", id="rate nan"),
        pytest.param(INF, 1, "requests_per_second = inf ", "0", id="rate inf"),
        pytest.param(True, 1, "requests_per_second = True ", "0", id="rate true"),
        pytest.param("1", 1, "requests_per_second = '1' ", "0", id="rate text"),
        pytest.param(10**400, 1, "requests_per_second = 1000", "0", id="huge rate"),
        pytest.param(1e-9, 1, "requests_per_second = 1e-09 ", "86400", id="tiny rate"),
        pytest.param(1, 0, "burst_capacity = 0 ", "1", id="no burst"),
        pytest.param(1, -3, "burst_capacity = -3 ", "1", id="negative burst"),
        pytest.param(1, 1.5, "burst_capacity = 1.5 ", "1", id="part of a burst"),
        pytest.param(1, True, "burst_capacity = True ", "1", id="burst true"),
        pytest.param(1, None, "burst_capacity = None ", "1", id="burst none"),
    ],
)
def test_a_limit_config_that_is_wrong_says_so(
    snapshot: Snapshot, rate: Any, burst: Any, given: str, bound: str
) -> None:
    """L6: requests_per_second > 0, burst_capacity >= 1; field, rule and value."""
    with pytest.raises(PolicyError) as found:
        LimitConfig(rate, burst)

    message = str(found.value)
    assert message.startswith(given)
    assert bound in message.removeprefix(given)
    snapshot(message)


def test_a_limit_config_is_immutable_and_has_the_documents_defaults() -> None:
    """L6, L7"""
    config = LimitConfig()

    assert (config.requests_per_second, config.burst_capacity) == (1.0, 1)
    with pytest.raises(AttributeError):
        config.burst_capacity = 2  # type: ignore[misc]


@ANY
@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=3), st.none()))
@example(math.inf)
@example(math.nan)
def test_a_number_is_a_finite_number_and_nothing_else(value: Any) -> None:
    """L6: never another exception, whatever is given."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)

    if is_number and -10 <= value <= 10:
        assert number("x", value, least=-10, most=10) == value
    else:
        with pytest.raises(PolicyError, match=r"^x = ") as caught:
            number("x", value, least=-10, most=10)
        assert missing(str(caught.value), " -10 ", " 10") == []


@pytest.mark.parametrize(
    ("arguments", "given", "datum"),
    [
        pytest.param({"default": 5}, "default = 5 ", "Policy", id="default"),
        pytest.param(
            {"entries": {"example.org": {"qps": 1}}}, "entries['example.org'] = {'qps': 1} ", "Policy", id="entry"
        ),
        pytest.param({"entries": 5}, "entries = 5 ", "dict", id="entries"),
        pytest.param({"entries": None}, "entries = None ", "dict", id="no entries"),
        pytest.param({"entries": ["a.org"]}, "entries = ['a.org'] ", "dict", id="list of entries"),
        pytest.param({"global_qps": -1}, "global_qps = -1 ", "0.8", id="negative rate"),
        pytest.param({"global_qps": 1e-9}, "global_qps = 1e-09 ", "1/86400", id="tiny rate"),
        pytest.param({"global_burst": 0}, "global_burst = 0 ", "1000000000000", id="no burst"),
        pytest.param({"user_agent": ""}, "user_agent = '' ", "", id="no user agent"),
    ],
)
def test_policies_name_the_argument_that_is_wrong(
    snapshot: Snapshot, arguments: dict[str, Any], given: str, datum: str
) -> None:
    """U9, Q1, conventions: by the name that the caller knows"""
    with pytest.raises(PolicyError) as found:
        Policies(**arguments)

    message = str(found.value)
    assert message.startswith(given)
    assert datum in message.removeprefix(given)
    snapshot(message)


# Path patterns


@pytest.mark.parametrize(
    ("pattern", "target", "is_match"),
    [
        ("/private", "/private/a", True),
        ("/private", "/privat", False),
        ("/private$", "/private", True),
        ("/private$", "/private/", False),
        ("/*.pdf$", "/a/b.pdf", True),
        ("/*.pdf$", "/a/b.pdf?x", False),
        ("/*.pdf", "/a/b.pdf?x", True),
        ("*", "/", True),
        ("/a*b*c$", "/axxbxxc", True),
        ("/a*b*c$", "/axxbxx", False),
        ("/a*a$", "/a", False),
        ("/a*a$", "/aa", True),
        ("", "/x", True),
        ("$", "/x", False),
    ],
)
def test_a_path_pattern_is_written_as_in_robots_txt(pattern: str, target: str, is_match: bool) -> None:
    """U9"""
    assert matches(pattern, target) is is_match
    assert Policy(deny_paths=(pattern,)).refuses_path(target) == (pattern if is_match else None)


def test_a_hostile_pattern_takes_no_time() -> None:
    """F32: matching is linear."""
    with cpu_within(1.0):
        assert not matches("/" + "*a" * 2000 + "*b$", "/" + "a" * 8000)


@ANY
@given(domains)
def test_an_entrys_name_is_canonical(domain: str) -> None:
    """U9: www. is treated alike on both sides."""
    assert entry_name(domain) == plain(parse_domain(domain))
    assert Policies(DEFAULT, {domain: UNLIMITED}).of(parse_domain(domain)) is UNLIMITED
