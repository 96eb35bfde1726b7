"""`curtsy breaker`, `curtsy pause`, `curtsy resume` and `curtsy forget`: manual changes of hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import DOMAINS, JSON, YES, command, duration, group
from curtsy.cli.context import CommandContext, Exit
from curtsy.cli.status import batched, breaker_words, none_known, opened_by
from curtsy.core.time import span

if TYPE_CHECKING:
    from curtsy.core.amendment import Amendment
    from curtsy.core.host import Host
    from curtsy.core.policy import Policy
    from curtsy.core.time import Now
    from curtsy.engine.host_view import HostView
    from curtsy.stores import Store

MOST_NAMED = 5
"""Maximum number of hosts listed by name."""


NEW_STATE = click.option("--json", "is_json", is_flag=True, help="Write the new state of the hosts as JSON.")


def _amend(
    given: CommandContext, domains: tuple[str, ...], change: Amendment, words: str, is_json: bool, *, undo: str = "",
    idle: str = "",
) -> Exit:  # fmt: skip
    """Apply a change to hosts and report it; waiting requests obey it within moments.

    `undo` is the command that reverts the change. A change without it needs a known host: an unknown one is an error.
    `idle` is the message for a host that the change leaves as it was.
    """
    from curtsy.core.host import Host
    from curtsy.engine.gate_steps import amended, amended_if_known
    from curtsy.engine.host_view import view_of

    found, code = [], Exit.FINE
    with closing(given.open_shared_store()) as store:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            step = amended(policy, change) if undo else amended_if_known(policy, change)
            before, host = store.read(policy.key_for(domain)), store.update(policy.key_for(domain), step)
            if host is None:
                code = _unknown(store, domain)
                continue
            now = store.now()
            found.append(view_of(domain, host, now, policy))
            if not is_json:
                is_idle = idle and isinstance(before, Host) and view_of(domain, before, now, policy) == found[-1]
                text = (idle if is_idle else words).format(
                    name=_name(domain, policy), undo=given.command(f"{undo} {domain}")
                )
                console.say(text + (_never(found[-1]) + _others(store, domain, policy) if undo else ""))
    if is_json:
        console.write_json(found)
    return code


def _never(view: HostView) -> str:
    """Return a note on a host without requests, whose name may be mistyped; else empty."""
    return " No request was sent to it yet: check the name." if view.last_asked_ago is None else ""


def _name(domain: str, policy: Policy) -> str:
    """Return the host's name, or that of the shared record with all its hosts."""
    return domain if policy.key is None else f"{policy.key}, with all its subdomains,"


def _others(store: Store, domain: str, policy: Policy) -> str:
    """Return a note on known hosts under this one, and its other ports, that have own records; else empty."""
    found = [] if policy.key is not None else _known_under(store, domain)
    if not found:
        return ""
    records = "has its own record" if len(found) == 1 else "have their own records"
    return f" This does not affect {_listed(found)}, which {records}."


def _known_under(store: Store, domain: str) -> list[str]:
    """Return known hosts under a domain, and its other ports, without itself."""
    from curtsy.engine.host_view import FOUND, is_under
    from curtsy.stores import for_threads
    from curtsy.stores.survey import HOSTS

    names = [key.removeprefix(HOSTS) for key, _ in for_threads(store).page(HOSTS, part=domain, most=FOUND)]
    return [name for name in names if name != domain and is_under(name, domain)]


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown, more = ", ".join(names[:MOST_NAMED]), len(names) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _unknown(store: Store, domain: str) -> Exit:
    """Report an unknown host, with the known ones of its name on other ports and under it."""
    from curtsy.http.registered_domain import name_and_port

    return none_known(domain, _listed(_known_under(store, name_and_port(domain)[0])))


@group(
    ("curtsy breaker ls", "Hosts whose breaker is open."),
    ("curtsy breaker reset example.org", "Request a host again, if you know that it works."),
)
def breaker() -> None:
    """List, reset or trip the circuit breakers of hosts.

    A breaker opens when a host fails three times in a row, answers 403, or answers 429 without Retry-After. While it
    is open, no request is sent. After the cooldown (5 minutes) one trial request tests the host.
    """


@command(("curtsy breaker ls --all", "The breakers of all hosts."), of=breaker)
@click.option("--all", "is_all", is_flag=True, help="List closed breakers too.")
@JSON
@click.pass_obj
def ls(given: CommandContext, is_all: bool, is_json: bool) -> None:
    """List the breakers that are not closed."""
    from curtsy.engine.host_view import every_view, list_hosts

    policies = given.settings().policies
    with closing(given.open_store()) as store:
        listed = list_hosts(store, policies)
        found: Iterable[HostView] = [view for view in listed.views if is_all or view.breaker != "closed"]
        if is_all and not listed.is_complete:
            found = every_view(store, policies)
        if is_json:
            names = ("domain", "breaker", "breaker_left", "opened_by", "failures", "trips", "last_status")
            console.write_json_list({name: getattr(view, name) for name in names} for view in found)
        elif not found:
            console.say("all breakers are closed.")
        else:
            for views in batched(found, True):
                _show_breakers(views)


def _show_breakers(views: list[HostView]) -> None:
    table = console.fitted_table(
        "host", "breaker", "opened by", "failures", "trips", "last", right=("failures", "trips", "last"),
        least=("last", "trips", "failures", "opened by"),
    )  # fmt: skip
    for view in views:
        figures = (str(view.failures), str(view.trips), str(view.last_status or ""))
        table.add_row(console.plain(view.domain), breaker_words(view), opened_by(view), *figures)
    console.show(console.out(), table)


@command(("curtsy breaker reset example.org", "Close it, and end a Retry-After."), of=breaker)
@DOMAINS
@NEW_STATE
@click.pass_obj
def reset(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Close a host's breaker, and end its Retry-After.

    Pace and budget are unchanged. Do this only if you know that the host works.
    """
    from curtsy.core.amendment import Reset

    return _amend(
        given,
        domains,
        Reset(),
        "the breaker of {name} is closed.",
        is_json,
        idle="the breaker of {name} was closed already.",
    )


@command(("curtsy breaker trip example.org", "Send it no requests for 5 minutes."), of=breaker)
@DOMAINS
@NEW_STATE
@click.pass_obj
def trip(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Open a host's breaker, as if it had failed: no request is sent for its cooldown."""
    from curtsy.core.amendment import Trip

    words = "the breaker of {name} is open. {undo} closes it."
    return _amend(given, domains, Trip(), words, is_json, undo="breaker reset")


@command(
    ("curtsy pause example.org", "Until it is resumed."),
    ("curtsy pause example.org --for 2h", "For two hours."),
)
@DOMAINS
@click.option("--for", "seconds", type=duration, metavar="TIME", help="Duration of the pause: 90s, 10m, 2h.")
@NEW_STATE
@click.pass_obj
def pause(given: CommandContext, domains: tuple[str, ...], seconds: float | None, is_json: bool) -> Exit:
    """Send no requests to a host until it is resumed.

    The pause applies at once to every process that shares the store. Requests in flight finish. Another port is another
    host, and so is a subdomain, unless the settings let them share a record.
    """
    from curtsy.core.amendment import Pause

    words = f"{{name}} is paused{_until(seconds)}. {{undo}} resumes it."
    return _amend(given, domains, Pause(seconds), words, is_json, undo="resume")


def _until(seconds: float | None) -> str:
    """Return the duration and the end of a pause in local time, in words; empty without an end."""
    if seconds is None:
        return ""
    end, today = time.localtime(time.time() + seconds), time.localtime()
    is_today = (end.tm_year, end.tm_yday) == (today.tm_year, today.tm_yday)
    return f" for {span(seconds)}, until {time.strftime('%H:%M' if is_today else '%Y-%m-%d %H:%M', end)}"


@command(("curtsy resume example.org", "Request it again, at its usual pace."))
@DOMAINS
@NEW_STATE
@click.pass_obj
def resume(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """End a pause."""
    from curtsy.core.amendment import Resume

    return _amend(given, domains, Resume(), "{name} is resumed.", is_json, idle="{name} was not paused.")


@command(
    ("curtsy forget typo.example", "A host that does not exist."),
    ("curtsy forget --yes example.org example.net", "Several, without confirmation."),
)
@DOMAINS
@YES
@click.option("--json", "is_json", is_flag=True, help="Write the deleted hosts as JSON.")
@click.pass_obj
def forget(given: CommandContext, domains: tuple[str, ...], is_sure: bool, is_json: bool) -> Exit:
    """Delete the records of a host: pace, budget, breaker and robots.txt.

    The host then counts as unknown, so its daily budget starts at zero. Cached pages and statistics remain.
    """
    if not is_sure:
        what = f"Delete the records of {', '.join(domains)}, with today's budget?"
        console.confirm("this deletes the records of hosts", what)
    forgotten, code = [], Exit.FINE
    with closing(given.open_shared_store()) as store:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            in_flight = store.update(policy.key_for(domain), _forgotten)
            rules = [f"rules:{scheme}://{domain}" for scheme in ("https", "http")]
            if in_flight:
                noun = console.counted(in_flight, "request")
                console.say(f"{domain} is not forgotten: {noun} to it may be in flight. Try again after that.")
                code = Exit.ERROR
            elif in_flight is None and all(store.read(key) is None for key in rules):
                code = _unknown(store, domain)
            else:
                for key in rules:
                    store.forget(key)
                forgotten.append(domain)
                if not is_json:
                    console.say(f"{_name(domain, policy)} is forgotten.")
    if is_json:
        console.write_json({"forgotten": forgotten})
    return code


def _forgotten(host: Host | None, now: Now) -> tuple[Host | None, int | None]:
    """Remove a record without requests in flight; return their number, or None without a record."""
    from curtsy.core.host import in_time

    if host is None:
        return None, None
    in_flight = sum(place.until > now.at for place in in_time(host, now).places)
    return (host if in_flight else None), in_flight
