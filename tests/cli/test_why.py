"""`curtsy why`: the verdict as a process gives it, and each check for any state of a host."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import PageCache
from curtsy.core.admission import admit
from curtsy.core.amendment import Override, Pause, Trip, amend
from curtsy.core.cache import Entry, url_sha256
from curtsy.core.decision import Go
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.rules import Rules, learned
from curtsy.core.settlement import settle
from curtsy.core.url import Url, parse_url
from curtsy.engine.dry_driver import HostRecords
from curtsy.observe.why import Check, Explanation, assess
from curtsy.settings import Settings, load
from curtsy.testing import FakeClock
from tests.cli.shell import Shell
from tests.support.site import Site, closed_port
from tests.support.snapshot import Snapshot

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def check_named(found: Any, name: str) -> Any:
    return next(each for each in found["checks"] if each["name"] == name)


def row_named(out: str, name: str) -> str:
    """The row of a check, with single spaces between its columns."""
    return next(" ".join(line.split()) for line in out.splitlines() if line.split()[1:2] == [name])


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_it_asks_nothing_of_anybody_and_says_what_it_does_not_know(shell: Shell, site: Site) -> None:
    """issue: asks nothing of the page itself; robots.txt only from memory"""
    done = shell("why", "--json", site.url("/private/a"))

    assert (done.code, done.err) == (0, "")
    assert set(done.json) == {
        "url", "domain", "user_agent", "verdict", "reason", "message", "allowed_in", "checks"
    }  # fmt: skip
    assert (done.json["verdict"], done.json["allowed_in"]) == ("unknown", None)
    assert check_named(done.json, "robots.txt")["state"] == "unknown"
    assert site.journal == []
    assert not (shell.home / "cache").exists()


def test_it_may_be_let_ask_for_the_rules_and_names_the_line(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """R1: `--ask` fetches robots.txt, politely, and nothing else"""
    done = shell.cold("why", "--ask", site.url("/private/a"))
    again = shell("why", "--json", site.url("/private/a"))

    assert site.paths() == ["/robots.txt"]
    assert (done.code, again.code) == (3, 3)
    row, verdict = row_named(done.out, "robots.txt"), done.out.splitlines()[-1]
    assert row.startswith("✗")
    assert all("line 2" in text and '"Disallow: /private/"' in text for text in (row, verdict))
    snapshot(verdict)
    assert again.json["reason"] == "robots_disallowed"
    robots = check_named(again.json, "robots.txt")
    assert (robots["line"], robots["rule"], robots["group"]) == (2, "Disallow: /private/", "User-agent: *")


def test_several_pages_are_explained_one_after_the_other(shell: Shell, site: Site) -> None:
    """U5: robots.txt of each site is requested once; the code is that of the worst"""
    urls = (site.url("/"), site.url("/private/"), site.url("/", host="127.0.0.2"))

    done = shell("why", "--ask", urls[0], "-i", "-", "--json", stdin="\n".join(urls[1:]))
    people = shell("why", *urls)

    assert [(each["url"], each["verdict"]) for each in done.lines] == list(
        zip(urls, ("allowed", "refused", "allowed"), strict=True)
    )
    assert (done.code, people.code, site.count("/robots.txt")) == (3, 3, 2)
    assert [people.out.index(url) for url in urls] == sorted(people.out.index(url) for url in urls)
    assert shell("why").code == 2


def test_the_policy_that_applies_is_named_with_its_file_and_line(shell: Shell, site: Site) -> None:
    """U9: Settings.origin; C6: the entry that applies"""
    domain = site.url("").removeprefix("http://")
    shell.settle(
        f"allowlist:\n  - domain: '{domain}'\n    domain_category: trusted\n    max_requests_per_day: 1\n",
        "config/domains.yaml",
    )
    shell("why", "--ask", site.url("/"))

    done = shell("why", "--json", site.url("/"))

    policy, budget = check_named(done.json, "policy"), check_named(done.json, "budget")
    assert (policy["entry"], policy["category"]) == (domain, "trusted")
    assert policy["origin"] == "config/domains.yaml:3"
    assert (budget["state"], budget["origin"]) == ("no", "config/domains.yaml:4")
    assert (done.json["reason"], done.code) == ("domain_budget_exceeded", 75)
    assert 0 < done.json["allowed_in"] <= 86_400
    assert domain in done.json["message"]
    assert "1 request" in done.json["message"]


def test_no_line_is_wider_than_the_terminal_and_colours_can_be_had_without(shell: Shell, site: Site) -> None:
    """issue: narrow terminals; NO_COLOR"""
    narrow = shell("why", site.url("/"), COLUMNS="40")
    coloured = shell.on_terminal("why", site.url("/"), columns=80)
    plain = shell.on_terminal("why", site.url("/"), columns=80, NO_COLOR="1")

    assert max(map(len, narrow.out.splitlines())) <= 40
    assert max(len(ESCAPES.sub("", line)) for line in coloured.out.splitlines()) <= 80
    assert "\x1b[32m" in coloured.out
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", plain.out) is None
    assert ESCAPES.sub("", plain.out) == ESCAPES.sub("", coloured.out)


def test_a_host_that_gives_no_answer_is_not_called_all_right(shell: Shell, snapshot: Snapshot) -> None:
    """R6: also later, by what is remembered; `get` would end with 1 too"""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"

        asked, later = shell("why", "--ask", url), shell("why", "--json", url)

    assert (asked.code, later.code) == (1, 1)
    verdict = asked.out.splitlines()[-1]
    assert f"127.0.0.1:{port} " in verdict
    assert "connection refused" in verdict
    assert row_named(asked.out, "robots.txt").startswith("?")
    snapshot(verdict, "verdict")
    snapshot(check_named(later.json, "robots.txt")["says"], "robots.txt")
    assert (later.json["verdict"], later.json["allowed_in"]) == ("unknown", None)


def test_what_can_be_asked_for_is_said_where_it_can(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """issue: `crawl` has no `--ask`"""
    why = shell("why", site.url("/"))
    dry = shell("crawl", site.url("/"), "--dry-run", CURTSY_ALLOW_PRIVATE=None)

    rows = {"why": row_named(why.out, "robots.txt"), "crawl": row_named(dry.out, "robots.txt")}
    assert [row[0] for row in rows.values()] == ["?", "?"]
    assert "--ask" in rows["why"]
    assert "--ask" not in dry.out
    for name, row in rows.items():
        snapshot(row, name)


def test_a_store_that_cannot_be_read_is_told_not_hidden(shell: Shell, site: Site) -> None:
    """U16: no permission on the state directory"""
    Path(shell.env["XDG_STATE_HOME"]).write_text("a file where a directory should be")

    done = shell("why", "--json", site.url("/"))

    assert (done.code, done.json["verdict"]) == (1, "unknown")
    assert check_named(done.json, "store")["state"] == "no"
    assert "Traceback" not in done.err


# --- For any state of a host, without a process ----------------------------------------------------------------------

CLOCK = FakeClock()
URL = parse_url("https://example.org/a?b=1")
assert isinstance(URL, Url)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(directory=tmp_path, user_directory=tmp_path / "user", env={})


def assessed(
    settings: Settings,
    host: Host | None = None,
    rules: Rules | None = None,
    overall: Host | None = None,
    cache: PageCache | None = None,
) -> Explanation:
    allowing = learned(None, CLOCK.now(), settings.policies.default, b"User-agent: *\nDisallow: /no\n")
    assert isinstance(URL, Url)
    return asyncio.run(assess(URL, settings, HostRecords(CLOCK.now(), host, overall, rules or allowing), cache))


def named(found: Explanation, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


def asked(settings: Settings, ago: float = 0.0) -> Host:
    """A host that was asked once, and answered well."""
    clock = FakeClock()
    policy, now = settings.policies.default, clock.now()
    earlier = msgspec.structs.replace(now, at=now.at - round(ago * 1e6), epoch=now.epoch - round(ago * 1e6))
    host, go = admit(None, earlier, policy, roll=0.5)
    assert isinstance(go, Go)
    return settle(host, earlier, policy, go.lease, Outcome(Kind.ANSWERED, status=200, page=True))


def test_a_host_that_is_not_known_may_be_asked_now(settings: Settings, snapshot: Snapshot) -> None:
    """issue: verdict in one sentence and the time until it would be allowed"""
    found = assessed(settings)

    assert (found.verdict, found.allowed_in) == ("allowed", 0.0)
    snapshot(found.message)
    assert [check.name for check in found.checks] == [
        "policy", "cache", "robots.txt", "breaker", "budget", "pace", "global"
    ]  # fmt: skip


def test_the_pause_is_waited_for(settings: Settings, snapshot: Snapshot) -> None:
    """P1, C1: the pause that was drawn at departure"""
    found = assessed(settings, asked(settings, ago=1.0))

    assert found.verdict == "allowed"
    assert found.allowed_in == pytest.approx(0.5 + 4 * 128 / 255, abs=0.001)  # the middle one of 256 sides
    assert {2.5, 1.5, 5.5} <= set(numbers(found.message))
    assert named(found, "pace").state == "wait"
    assert numbers(named(found, "budget").says) == [1, 200, 1, 100]
    snapshot(found.message, "message")
    snapshot(named(found, "budget").says, "budget")


def test_a_hand_a_breaker_and_a_budget_refuse_in_that_order(settings: Settings) -> None:
    """B13, Q4: as the gate would say it, with the time"""
    policy, now = settings.policies.default, CLOCK.now()
    tripped = amend(None, now, policy, Trip())
    paused = amend(tripped, now, policy, Pause(60))
    for_good = amend(tripped, now, policy, Pause())
    spent = amend(None, now, policy, Override((("max_requests_per_day", 1.0),)))
    spent = admit(spent, now, policy)[0] or spent

    verdicts = [assessed(settings, host) for host in (tripped, paused, for_good, spent)]

    assert [(found.reason, found.allowed_in) for found in verdicts[:3]] == [
        ("circuit_open", 300.0), ("paused", 60.0), ("paused", None)
    ]  # fmt: skip
    assert verdicts[3].reason == "domain_budget_exceeded"
    assert named(verdicts[0], "breaker").after == 300.0
    assert named(verdicts[3], "by hand").says.endswith(" max_requests_per_day = 1")
    assert numbers(named(verdicts[3], "budget").says)[:4] == [1, 1, 1, 100]


def test_rules_that_are_old_are_asked_for_again_first(settings: Settings, snapshot: Snapshot) -> None:
    """R5: and the page comes after the pause"""
    policy, now = settings.policies.default, CLOCK.now()
    earlier = msgspec.structs.replace(now, epoch=now.epoch - 4000 * 1_000_000)
    old = learned(None, earlier, policy, b"User-agent: *\nDisallow: /a\n")
    gone = learned(None, earlier, policy, None, "it timed out")

    forbidding, unreachable = assessed(settings, rules=old), assessed(settings, rules=gone)

    assert (forbidding.verdict, forbidding.reason, forbidding.allowed_in) == ("unknown", None, None)
    assert named(forbidding, "robots.txt").state == "no"
    assert (unreachable.verdict, unreachable.allowed_in) == ("allowed", 1.5)
    assert {1.5, 5.5} <= set(numbers(unreachable.message))
    snapshot(named(forbidding, "robots.txt").says, "robots.txt")
    snapshot(unreachable.message, "message")


NO_ANSWER = (
    "https://example.org/robots.txt could not be fetched: name or service not known",
    b"",
    "name or service not known",
)


@pytest.mark.parametrize(
    ("failure", "verdict", "state"),
    [
        (NO_ANSWER, "unknown", "unknown"),
        (("https://example.org/robots.txt answered with status 503",), "allowed", "yes"),
        (("https://www.example.org/robots.txt could not be fetched: name or service not known",), "allowed", "yes"),
    ],
)
def test_only_a_host_that_gave_no_answer_may_not_be_there(
    settings: Settings, failure: tuple[Any, ...], verdict: str, state: str
) -> None:
    """R6: an error is an answer, and so is a redirect to a host that is not there"""
    failed = learned(None, CLOCK.now(), settings.policies.default, None, *failure)

    found = assessed(settings, rules=failed)

    assert (found.verdict, named(found, "robots.txt").state) == (verdict, state)


@pytest.mark.parametrize(("failures", "verdict"), [(0, "allowed"), (2, "unknown")])
def test_a_host_that_has_answered_since_is_there(settings: Settings, failures: int, verdict: str) -> None:
    """R6: though its rules are not asked for again for a while"""
    failed = learned(None, CLOCK.now(), settings.policies.default, None, *NO_ANSWER)
    earlier = msgspec.structs.replace(failed, checked_at=failed.checked_at - 60)

    found = assessed(settings, asked(settings).replace(failures=failures), earlier)

    assert found.verdict == verdict


def test_a_breaker_may_have_been_tripped_by_hand(settings: Settings, snapshot: Snapshot) -> None:
    """Q4: the record does not tell, so the words fit both"""
    host = amend(None, CLOCK.now(), settings.policies.default, Trip())

    found = assessed(settings, host)

    assert (found.reason, named(found, "breaker").state) == ("circuit_open", "no")
    snapshot(found.message, "message")
    snapshot(named(found, "breaker").says, "breaker")


def test_a_budget_names_where_both_its_limits_come_from(tmp_path: Path) -> None:
    """B3: the one that is used up, if one is"""
    (tmp_path / "curtsy.yaml").write_text("default_policy:\n  max_pages_per_day: 1\n")
    settings = load(directory=tmp_path, user_directory=tmp_path / "user", env={})
    now, policy = CLOCK.now(), settings.policies.default
    by_hand = amend(None, now, policy, Override((("max_requests_per_day", 7.0),)))

    origins = [named(assessed(settings, host), "budget").origin for host in (None, asked(settings), by_hand)]

    assert [origin.split(", ") for origin in origins] == [
        ["requests: built-in", "pages: curtsy.yaml:2"],
        ["curtsy.yaml:2"],
        ["requests: by hand", "pages: curtsy.yaml:2"],
    ]


def test_the_settings_may_refuse(tmp_path: Path) -> None:
    """U9: denylist and deny_paths, with the line"""
    (tmp_path / "curtsy.yaml").write_text("default_policy:\n  deny_paths: ['/a']\ndenylist:\n  - example.net\n")
    offline = load(directory=tmp_path / "none", user_directory=tmp_path / "user", env={}, cache_mode="offline")
    settings = load(directory=tmp_path, user_directory=tmp_path / "user", env={})
    other = parse_url("https://example.net/")
    assert isinstance(other, Url)

    path, domain = assessed(settings), asyncio.run(assess(other, settings, HostRecords(CLOCK.now())))

    assert (path.reason, named(path, "policy").origin) == ("path_denied", "curtsy.yaml:2")
    assert assessed(offline).reason == "not_in_cache"
    assert (domain.reason, named(domain, "policy").origin) == ("domain_denied", "curtsy.yaml:4")


def test_a_delay_that_is_too_long_and_a_request_under_way_are_told(settings: Settings, snapshot: Snapshot) -> None:
    """R8, P1"""
    policy, now = settings.policies.default, CLOCK.now()
    long = asked(settings).replace(crawl_delay=301 * 1_000_000)
    busy, _ = admit(None, now, policy)
    resting = asked(settings, 10).replace(retry_after_until=now.at + 7_000_000)

    too_long, waiting, rests = assessed(settings, long), assessed(settings, busy), assessed(settings, resting)

    assert (too_long.reason, named(too_long, "pace").state) == ("crawl_delay_too_long", "no")
    assert named(waiting, "pace").state == "wait"
    assert numbers(named(waiting, "pace").says) == [1, 1]
    snapshot(named(waiting, "pace").says)
    assert (rests.allowed_in, named(rests, "rest").after) == (7.0, 7.0)


def test_the_global_rate_is_waited_for(settings: Settings, snapshot: Snapshot) -> None:
    """Q1"""
    overall, _ = admit(None, CLOCK.now(), settings.policies.overall, page=False)

    found = assessed(settings, overall=overall)

    assert (found.verdict, found.allowed_in) == ("allowed", 1.25)
    assert 0.8 in numbers(found.message)
    snapshot(found.message)


def test_a_fresh_copy_answers_and_a_stale_one_is_revalidated(
    settings: Settings, tmp_path: Path, snapshot: Snapshot
) -> None:
    """N6: what is kept is part of the verdict"""
    assert isinstance(URL, Url)
    second = CLOCK.now().epoch / 1e6
    copy = Entry(URL.text, url_sha256(URL.text), 200, (), "", 5, fetched_at=second - 60, lifetime=600, etag='"1"')
    old = msgspec.structs.replace(copy, lifetime=10)

    cache = DiskCache(tmp_path / "pages", clock=CLOCK)

    cache.keep(copy, b"12345")
    fresh = assessed(settings, cache=cache)
    cache.keep(old, b"12345")
    stale = assessed(settings, cache=cache)

    assert (fresh.verdict, fresh.allowed_in) == ("cached", 0.0)
    assert stale.verdict == "allowed"
    for name, found in (("fresh", fresh), ("stale", stale)):
        assert "1 min" in named(found, "cache").says
        snapshot(named(found, "cache").says, name)


def test_http_is_not_tried_without_a_request(shell: Shell) -> None:
    """U1: whether https can be connected is only known by a connection"""
    done = shell("why", "example.org", "--allow-http")

    assert done.code == 2
    assert "--ask" in done.err
