"""`curtsy status`, `budget`, `breaker`, `pause`, `resume`: what is known of hosts, and what is done to them by hand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from curtsy.core.host import Host, fresh
from curtsy.core.policy import Policies
from curtsy.core.time import Now
from curtsy.engine.gate_steps import charge
from curtsy.engine.host_view import RECENT
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell
from tests.support.reply import dripping
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot


def test_the_hosts_that_were_asked_are_shown_with_their_figures(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """L5, Q6, B10: pace, budget, breaker, last status, counts; a table, one host in full, and JSON"""
    domain = site.url("").removeprefix("http://")
    nothing = shell("status")
    shell("get", site.url("/"), site.url("/missing"))

    table, one, found = shell.cold("status"), shell("status", domain), shell("status", "--json").json
    unknown = shell("status", "example.org")

    assert (nothing.code, nothing.out) == (0, "")
    snapshot(nothing.err, "no host")
    assert table.out.split()[:7] == ["host", "next", "today", "pages", "breaker", "last", "total"]
    assert re.split(r"\s{2,}", table.out.splitlines()[1]) == [domain, "now", "3/200", "1/100", "closed", "404", "3"]
    assert one.out.splitlines()[0] == domain
    assert "3/200" in one.out
    [host] = found
    assert set(host) == FIELDS["status"]
    assert (host["domain"], host["requests"], host["pages"], host["last_status"]) == (domain, 3, 1, 404)
    assert unknown.code == 1
    assert "example.org" in unknown.err
    assert "curtsy status" in unknown.err
    snapshot(unknown.err, "unknown host")


def test_many_hosts_are_listed_the_last_asked_first_and_cut_only_for_people(shell: Shell) -> None:
    """L5: a store with many hosts; a domain stands for the hosts under it; narrow terminals"""
    with shell.store() as store:
        for number in range(50):
            store.update(f"host:h{number}.example.org", lambda host, now: (fresh(now), None))

    table, everything = shell("status", COLUMNS="40"), shell("status", "--json")
    under = shell("budget", "example.org", "--json")

    assert len(table.out.splitlines()) == 41
    assert max(map(len, table.out.splitlines())) <= 40
    assert "10 more" in table.err
    assert "--all" in table.err
    assert len(everything.json) == 50
    assert len(under.json) == 51


def test_more_hosts_than_a_list_has_are_counted_searched_and_streamed(shell: Shell, snapshot: Snapshot) -> None:
    """Issue 16, L5: the lists are bounded; --all has every host once, by name, as the same JSON"""
    number = RECENT + 50
    with shell.store() as store:
        store.update("host:early.example.org", lambda host, now: (used(now), None))
        store.update_many([(f"host:h{n:04}.org", lambda host, now: (used(now), None)) for n in range(number)])
    shell("pause", "early.example.org")

    table, some, everything = shell("status"), shell("status", "--json"), shell("status", "--json", "--all")
    whole, budgets = shell("status", "--all"), shell("budget", "--json", "--all").json
    top, breakers = shell("top", "--json").json, shell("breaker", "ls", "--json", "--all").json
    one, under = shell("status", "h0003.org"), shell("status", "example.org", "--json").json

    assert len(table.out.splitlines()) == 41
    assert f"{number + 1:,} hosts" in table.err
    snapshot(table.err, "more")
    assert "early.example.org" in {host["domain"] for host in some.json}
    assert RECENT <= len(some.json) <= RECENT + 1
    assert "--all" in some.err
    names = ["early.example.org", *(f"h{n:04}.org" for n in range(number))]
    assert [host["domain"] for host in everything.json] == names
    assert everything.out == json.dumps(everything.json, indent=2) + "\n"
    assert {line.split()[0] for line in whole.out.splitlines()} == {"host", *names}
    assert [len(budgets), len(breakers), top["known_hosts"]] == [number + 1] * 3
    assert one.out.splitlines()[0] == "h0003.org"
    assert [host["domain"] for host in under] == ["early.example.org"]


def used(now: Now) -> Host:
    return msgspec.structs.replace(fresh(now), sent_at=now.at)


def test_hosts_in_trouble_are_listed_alone(shell: Shell, snapshot: Snapshot) -> None:
    """Issue 16, L5: paused, open, out of budget; others are not"""
    none = shell("status", "--trouble")
    with shell.store() as store:
        for number in range(50):
            store.update(f"host:h{number}.org", lambda host, now: (used(now), None))
    nothing = shell("status", "--trouble")
    shell("pause", "h3.org")
    shell("breaker", "trip", "h4.org")

    found, as_json = shell("status", "--trouble"), shell("status", "--trouble", "--json").json
    of_one = shell("status", "h5.org", "--trouble", "--json")

    assert (none.code, nothing.code, nothing.out) == (0, 0, "")
    snapshot(nothing.err)
    assert {line.split()[0] for line in found.out.splitlines()[1:]} == {"h3.org", "h4.org"}
    assert {(host["domain"], host["waiting_for"]) for host in as_json} == {
        ("h3.org", "paused"), ("h4.org", "circuit_open"),
    }  # fmt: skip
    assert (of_one.code, of_one.json) == (0, [])


def test_a_budget_is_shown_with_where_its_limits_come_from(shell: Shell) -> None:
    """B3, B10: also of a host that was never asked"""
    shell.settle("allowlist:\n  - domain: example.org\n    max_requests_per_day: 7\n")

    done, table = shell("budget", "--json", "www.example.org"), shell("budget", "example.org")

    [found] = done.json
    assert set(found) == FIELDS["budget"]
    assert (found["requests_today"], found["max_requests_per_day"], found["max_pages_per_day"]) == (0, 7, 100)
    assert (found["origin"], found["pages_origin"]) == ("curtsy.yaml:3", "built-in")
    row = re.split(r"\s{2,}", table.out.splitlines()[1])
    assert (row[1:3], row[4].split(", ")) == (["0/7", "0/100"], ["requests: curtsy.yaml:3", "pages: built-in"])


def test_a_breaker_is_tripped_listed_and_reset_by_hand(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Q4, U6: manual reset; state and time left can be asked for; nothing is sent while it is open"""
    domain = site.url("").removeprefix("http://")

    tripped = shell("breaker", "trip", domain, "--json")
    refused = shell("get", site.url("/"))
    listed, as_json = shell.cold("breaker", "ls"), shell("breaker", "ls", "--json").json
    reset, after = shell("breaker", "reset", domain), shell("breaker", "ls")

    assert set(tripped.json[0]) == FIELDS["breaker trip"]
    assert (tripped.json[0]["breaker"], refused.code, site.journal) == ("open", 75, [])
    assert domain in refused.err
    assert re.search(r"\b[45] min\b", refused.err)
    assert re.match(rf"{re.escape(domain)}\s+open ", listed.out.splitlines()[1])
    assert set(as_json[0]) == FIELDS["breaker ls"]
    assert (as_json[0]["opened_by"], "by hand" in listed.out) == ("user", True)
    assert 290 < as_json[0]["breaker_left"] <= 300
    assert (reset.code, reset.out) == (0, "")
    assert (after.code, after.out) == (0, "")
    snapshot(after.err)


def test_a_host_is_paused_and_resumed_by_hand(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """P3: nothing is sent until it ends"""
    domain = site.url("").removeprefix("http://")

    for_good = shell("pause", domain)
    refused = shell("get", site.url("/"))
    for_a_while = shell("pause", domain, "--for", "1h30m", "--json")
    resumed, again = shell("resume", domain, "--json"), shell("resume", domain)

    assert f"curtsy resume {domain}" in for_good.err
    assert refused.code == 3
    assert domain in refused.err
    snapshot(refused.err)
    assert 5390 < for_a_while.json[0]["paused_left"] <= 5400
    assert (resumed.json[0]["paused"], resumed.json[0]["next_in"]) == (False, 0)
    assert again.code == 0
    snapshot(again.err, "not paused")


def test_a_breaker_says_what_opened_it(shell: Shell, site: Site) -> None:
    """Q5: a denial, failures with and without an answer"""
    site.reply("/", Reply(403))
    site.reply("/", Reply(500), host="127.0.0.2")
    urls = (site.url("/"), site.url("/", host="127.0.0.2"), "http://127.0.0.3:1/")
    shell("get", *urls, "--no-cache")

    found = {each["domain"]: each["opened_by"] for each in shell("breaker", "ls", "--json").json}
    table, one = shell("breaker", "ls").out, shell("status", urls[0]).out
    refused, why = shell("get", urls[2]).err, shell("why", urls[2]).out

    assert list(dict(sorted(found.items())).values()) == ["block:403", "failures:500", "failures:connection_error"]
    for words in ("denied (403)", "failures (500)", "failures (no connection)"):
        assert words in table
    assert "denied (403)" in one
    assert "no connection" in refused
    assert "no connection" in why


def test_a_breaker_says_that_slow_bodies_opened_it(shell: Shell, site: Site) -> None:
    """Q5: a status of success did not open it"""
    site.reply("/", dripping(b"slow" * 1000, every=0.1))
    shell("get", site.url("/"), "--no-cache", "--timeout", "0.3")

    [found], why = shell("breaker", "ls", "--json").json, shell("why", site.url("/")).out

    assert (found["opened_by"], found["last_status"]) == ("failures:timeout", 200)
    assert "(no response in" in why


def test_several_hosts_are_shown_by_names_and_urls_and_unknown_ones_are_told_of(shell: Shell) -> None:
    """L5: `status` and `budget` call the same hosts unknown"""
    shell.settle("allowlist:\n  - domain: shared.example\n    shared: true\n")
    with shell.store() as store:
        for name in ("a.example", "b.example", "shared.example"):
            store.update(f"host:{name}", lambda host, now: (used(now), None))

    some = shell("status", "https://a.example/x", "nosuch", "-i", "-", "--json", stdin="http://b.example/\na.example\n")
    part, budget = shell("status", "www.shared.example"), shell("budget", "www.shared.example")
    nosuch = shell("budget", "nosuch")

    assert [each["domain"] for each in some.json] == ["a.example", "b.example"]
    assert (part.code, budget.code) == (0, 0)
    assert (nosuch.code, nosuch.out.split("\n")[1].split()[:3]) == (1, ["nosuch", "0/200", "0/100"])
    assert (some.code, nosuch.err) == (1, some.err)


def test_a_record_from_before_its_host_shared_one_is_not_shown(shell: Shell) -> None:
    """C6, Q10: its breaker and budget are not in use any more, so they are no trouble and no alert"""
    shell("breaker", "trip", "www.shared.example", "other.example")
    before = shell("status", "--json").json
    shell.settle("allowlist:\n  - domain: shared.example\n    shared: true\n")

    after, every = (shell("status", *more, "--json").json for more in ((), ("--all",)))
    trouble, one = shell("status", "--trouble", "--json").json, shell("status", "www.shared.example")
    shell("pause", "www.shared.example")
    [shared] = shell("status", "www.shared.example", "--json").json

    assert sorted(each["domain"] for each in before) == ["other.example", "www.shared.example"]
    assert [[each["domain"] for each in found] for found in (after, every, trouble)] == [["other.example"]] * 3
    assert one.code == 1
    assert (shared["domain"], shared["paused"], shared["breaker"], shared["alerts"]) == (
        "www.shared.example", True, "closed", [],
    )  # fmt: skip


@pytest.mark.parametrize(("words", "undo"), [(("pause",), "resume"), (("breaker", "trip"), "breaker reset")])
def test_what_undoes_it_can_be_typed_as_it_is_shown(
    shell: Shell, tmp_path: Path, words: tuple[str, ...], undo: str
) -> None:
    """P3: the store that was named stands in it, too"""
    store = f"sqlite:///{tmp_path / 'an other.sqlite'}"

    done = shell(*words, "example.org", "--store", store)

    shown = next(part for part in done.err.split(". ") if part.startswith("curtsy "))
    undone = shlex.split(shown.rsplit(" ", 2)[0])
    assert undone == ["curtsy", *undo.split(), "example.org", "--store", store]
    assert shell(*undone[1:]).code == 0


def test_a_store_that_ends_with_the_command_is_refused(shell: Shell, snapshot: Snapshot) -> None:
    """P3: it could not have any effect"""
    commands = [("pause",), ("resume",), ("breaker", "trip"), ("breaker", "reset"), ("forget", "--yes")]

    ends = [shell(*words, "example.org", "--store", "memory:") for words in commands]

    assert [(done.code, done.out) for done in ends] == [(2, "")] * 5
    [said] = {done.err.splitlines()[0] for done in ends}
    assert "--store sqlite:///FILE" in said
    snapshot(said)


@pytest.mark.parametrize("words", [("breaker", "reset"), ("resume",), ("forget", "--yes")])
def test_there_is_nothing_to_undo_at_a_host_that_was_never_asked(shell: Shell, words: tuple[str, ...]) -> None:
    """U6: a name that is mistyped is told, and not remembered; the others are dealt with"""
    shell("pause", "example.org")

    done, as_json = shell(*words, "typo.example", "example.org"), shell(*words, "typo.example", "--json")

    assert (done.code, done.out, as_json.code) == (1, "", 1)
    assert "typo.example" in done.err.splitlines()[0]
    assert "example.org" in done.err.splitlines()[1]
    assert "typo.example" in as_json.err
    assert as_json.json in ([], {"forgotten": []})
    assert [host["domain"] for host in shell("status", "--json").json if host["domain"] != "example.org"] == []


@pytest.mark.parametrize("words", [("breaker", "reset"), ("resume",), ("forget", "--yes")])
def test_a_host_without_its_port_is_unknown_and_the_known_ports_are_named(
    shell: Shell, words: tuple[str, ...], snapshot: Snapshot
) -> None:
    """Also with another port."""
    shell("pause", "127.0.7.1:8000", "127.0.7.1:8001", "127.0.7.11:8000")

    done, other = shell(*words, "127.0.7.1"), shell(*words, "127.0.7.1:9")

    assert (done.code, other.code) == (1, 1)
    assert "127.0.7.1:8000" in other.err
    assert "127.0.7.11" not in done.err
    if words == ("resume",):
        snapshot(done.err)


@pytest.mark.parametrize(
    "words", [("pause",), ("resume",), ("breaker", "trip"), ("breaker", "reset"), ("forget", "--yes"), ("budget",)]
)
def test_a_host_is_also_named_by_a_url(shell: Shell, words: tuple[str, ...]) -> None:
    shell("pause", "127.0.7.1:8000")

    done = shell(*words, "http://127.0.7.1:8000/a", "--json")

    [host] = done.json["forgotten"] if words[0] == "forget" else [each["domain"] for each in done.json]
    assert (done.code, host) == (0, "127.0.7.1:8000")


@pytest.mark.parametrize("words", [("pause",), ("breaker", "trip")])
def test_a_host_that_was_never_requested_is_told_because_its_name_may_be_mistyped(
    shell: Shell, site: Site, words: tuple[str, ...], snapshot: Snapshot
) -> None:
    """U6: to pause it before its first request is legitimate"""
    known = site.url("").removeprefix("http://")
    shell("get", site.url("/"))

    done = shell(*words, "typo.example", known)

    first, second = done.err.splitlines()
    assert done.code == 0
    assert known in second
    note = " No request"
    assert (first.count(note), second.count(note)) == (1, 0)
    snapshot(first)


def test_a_pause_with_a_duration_says_when_it_ends(shell: Shell, snapshot: Snapshot) -> None:
    brief, long = shell("pause", "example.org", "--for", "5m"), shell("pause", "example.org", "--for", "2d")

    assert re.search(r" 5 min, until (\d{4}-\d\d-\d\d )?\d\d:\d\d\. ", brief.err), "the date if it is tomorrow"
    assert re.search(r" 2 days, until \d{4}-\d\d-\d\d \d\d:\d\d\. ", long.err)
    snapshot(long.err)


@pytest.mark.parametrize("words", [("pause",), ("breaker", "trip")])
def test_the_hosts_that_are_not_meant_are_named(shell: Shell, words: tuple[str, ...], snapshot: Snapshot) -> None:
    """C6: another port is another host, and so is a host under it; unless the settings say that they are one"""
    shell.settle("allowlist:\n  - domain: shared.example\n    shared: true\n")
    with shell.store() as store:
        for name in ("example.org:8080", "www.example.org", "other.org", "a.shared.example"):
            store.update(f"host:{name}", lambda host, now: (fresh(now), None))

    several, alone = shell(*words, "example.org"), shell(*words, "example.org:8080")
    shared, known = shell(*words, "b.shared.example"), shell("status", "--json").json

    assert "example.org:8080, www.example.org" in several.err
    assert "other.org" not in several.err
    assert "www.example.org" not in alone.err + shared.err
    assert "a.shared.example" not in shared.err
    assert re.search(r"(?<!b\.)shared\.example", shared.err)
    snapshot(several.err, "several")
    snapshot(shared.err, "shared")
    touched = {host["domain"] for host in known if host["paused"] or host["breaker"] == "open"}
    assert touched == {"example.org", "example.org:8080", "shared.example"}


def test_a_host_is_forgotten_with_its_rules_if_somebody_is_sure(shell: Shell, site: Site) -> None:
    """Issue 6: it then counts as never asked"""
    domain = site.url("").removeprefix("http://")
    shell("get", site.url("/"))

    unsure = shell("forget", domain)
    known = shell("status", domain)
    sure, again = shell("forget", domain, "--yes", "--json"), shell("forget", domain, "--yes")
    shell("get", "--no-cache", site.url("/"))

    assert (unsure.code, unsure.out, known.code) == (2, "", 0)
    assert "--yes" in unsure.err
    assert (sure.code, sure.json, set(sure.json)) == (0, {"forgotten": [domain]}, FIELDS["forget"])
    assert again.code == 1
    assert site.paths() == ["/robots.txt", "/"] * 2
    assert shell("budget", domain, "--json").json[0]["requests_today"] == 2


def test_a_host_that_is_being_asked_is_not_forgotten(shell: Shell, snapshot: Snapshot) -> None:
    """B4: its budget would begin anew under the request"""
    policy = Policies().of("example.org")
    with shell.store() as store:
        store.update("host:example.org", charge(policy, 0.5, page=True))

    done = shell("forget", "example.org", "--yes", "--json")

    assert (done.code, done.json) == (1, {"forgotten": []})
    assert "example.org" in done.err
    assert "1 request" in done.err
    snapshot(done.err)
    assert shell("status", "example.org").code == 0


def test_a_host_is_not_told_of_what_concerns_others_only(shell: Shell, site: Site) -> None:
    """Q10: what all processes have counted is an alert of all"""
    domain = site.url("").removeprefix("http://")
    shell("get", site.url("/"))
    shell("breaker", "trip", "127.0.0.2:1")
    shell("get", "http://127.0.0.2:1/")

    everything, one, other = shell("status"), shell("status", domain), shell("status", "127.0.0.2:1")
    total = shell("status", "--total", domain)

    assert {"alert breaker_open", "alert many_blocked"} <= set(re.findall(r"alert \w+", everything.err))
    assert (one.code, one.err) == (0, "")
    assert re.findall(r"alert \w+", other.err) == ["alert breaker_open"]
    assert "alert many_blocked" in total.err


def test_a_state_directory_that_cannot_be_used_stops_no_fetch_but_is_told(shell: Shell, site: Site) -> None:
    """U16, B8: limits then hold in memory; one warning; a look into the store is an error in a sentence"""
    Path(shell.env["XDG_STATE_HOME"]).write_text("a file where a directory should be")

    done, status, trip = shell("get", site.url("/")), shell("status"), shell("breaker", "trip", "example.org")

    assert (done.code, done.out) == (0, "<title>Home</title>\n")
    assert len(done.err.splitlines()) == 1
    assert '"level":"warn"' in done.err
    assert (status.code, status.out, trip.code) == (1, "", 1)
    assert str(shell.env["XDG_STATE_HOME"]) in status.err
    assert "Traceback" not in status.err + trip.err
