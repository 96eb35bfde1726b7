"""`curtsy breaker`, `curtsy pause`, `curtsy resume` and `curtsy forget`: manual changes of hosts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Domain, Duration, Group
from curtsy.cli.context import CommandContext, Exit

if TYPE_CHECKING:
    from curtsy.core.amendment import Amendment
    from curtsy.core.host import Host
    from curtsy.core.message import Now
    from curtsy.core.policy import Policy
    from curtsy.stores import Store

MOST_NAMED = 5
"""Maximum number of hosts listed by name."""


def _amend(
    given: CommandContext, domains: tuple[str, ...], change: Amendment, words: str, is_json: bool, undo: str = ""
) -> Exit:
    """Apply a change to hosts and report it; waiting requests obey it within moments.

    `undo` is the command that reverts the change. A change without it needs a known host: an unknown one is an error.
    """
    from curtsy.cli.status import none_known
    from curtsy.engine.gate_steps import amended, amended_if_known
    from curtsy.engine.host_view import view_of

    views, code, store = [], Exit.FINE, given.open_shared_store()
    try:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            step = amended(policy, change) if undo else amended_if_known(policy, change)
            host = store.update(policy.key_for(domain), step)
            if host is None:
                code = none_known(domain)
                continue
            views.append(view_of(domain, host, store.now(), policy))
            if not is_json:
                text = words.format(name=_name(domain, policy), undo=given.command(f"{undo} {domain}"))
                console.say(text + (_others(store, domain, policy) if undo else ""))
    finally:
        store.close()
    if is_json:
        console.write_json(views)
    return code


def _name(domain: str, policy: Policy) -> str:
    """Return the host's name, or that of the shared record with all its hosts."""
    return domain if policy.key is None else f"{policy.key}, with all its subdomains,"


def _others(store: Store, domain: str, policy: Policy) -> str:
    """Return a note on known hosts under this one, and its other ports, that have own records; else empty."""
    from curtsy.engine.host_view import is_under

    names = [key.removeprefix("host:") for key in store.keys("host:")]
    found = [name for name in names if name != domain and is_under(name, domain)] if policy.key is None else []
    if not found:
        return ""
    shown, more = ", ".join(found[:MOST_NAMED]), len(found) - MOST_NAMED
    which = f"{shown} and {more:,} more" if more > 0 else shown
    return (
        f" This does not affect {which}, which {'has its own record' if len(found) == 1 else 'have their own records'}."
    )


@click.group(
    cls=Group,
    examples=(
        ("curtsy breaker ls", "Hosts whose breaker is open."),
        ("curtsy breaker reset example.org", "Request a host again, if you know that it works."),
    ),
)
def breaker() -> None:
    """List, reset or trip the circuit breakers of hosts.

    A breaker opens when a host fails three times in a row, answers 403, or answers 429 without Retry-After. While it
    is open, no request is sent. After the cooldown (5 minutes) one trial request tests the host.
    """


@breaker.command("ls", cls=Command, examples=(("curtsy breaker ls --all", "The breakers of all hosts."),))
@click.option("--all", "is_all", is_flag=True, help="List closed breakers too.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def ls(given: CommandContext, is_all: bool, is_json: bool) -> Exit:
    """List the breakers that are not closed."""
    from curtsy.cli.status import breaker_words, known

    found = [view for view in known(given, None) if is_all or view.breaker != "closed"]
    if is_json:
        names = ("domain", "breaker", "breaker_left", "failures", "trips", "last_status")
        console.write_json([{name: getattr(view, name) for name in names} for view in found])
        return Exit.FINE
    if not found:
        console.say("all breakers are closed.")
        return Exit.FINE
    table = console.table("host", "breaker", "failures", "trips", "last", right=("failures", "trips", "last"))
    for view in found:
        table.add_row(
            console.plain(view.domain), breaker_words(view), str(view.failures), str(view.trips),
            str(view.last_status or ""),
        )  # fmt: skip
    console.show(console.out(), table)
    return Exit.FINE


@breaker.command(
    "reset", cls=Command, examples=(("curtsy breaker reset example.org", "Close it, and end a Retry-After."),)
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="Write the new state of the hosts as JSON.")
@click.pass_obj
def reset(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Close a host's breaker, and end its Retry-After.

    Pace and budget are unchanged. Do this only if you know that the host works.
    """
    from curtsy.core.amendment import Reset

    return _amend(given, domains, Reset(), "the breaker of {name} is closed.", is_json)


@breaker.command(
    "trip", cls=Command, examples=(("curtsy breaker trip example.org", "Send it no requests for 5 minutes."),)
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="Write the new state of the hosts as JSON.")
@click.pass_obj
def trip(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Open a host's breaker, as if it had failed: no request is sent for its cooldown."""
    from curtsy.core.amendment import Trip

    words = "the breaker of {name} is open. {undo} closes it."
    return _amend(given, domains, Trip(), words, is_json, "breaker reset")


@click.command(
    cls=Command,
    examples=(
        ("curtsy pause example.org", "Until it is resumed."),
        ("curtsy pause example.org --for 2h", "For two hours."),
    ),
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--for", "seconds", type=Duration(), metavar="TIME", help="Duration of the pause: 90s, 10m, 2h.")
@click.option("--json", "is_json", is_flag=True, help="Write the new state of the hosts as JSON.")
@click.pass_obj
def pause(given: CommandContext, domains: tuple[str, ...], seconds: float | None, is_json: bool) -> Exit:
    """Send no requests to a host until it is resumed.

    The pause applies at once to every process that shares the store. Requests in flight finish. Another port is another
    host, and so is a subdomain, unless the settings let them share a record.
    """
    from curtsy.core.amendment import Pause

    return _amend(given, domains, Pause(seconds), "{name} is paused. {undo} resumes it.", is_json, "resume")


@click.command(cls=Command, examples=(("curtsy resume example.org", "Request it again, at its usual pace."),))
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="Write the new state of the hosts as JSON.")
@click.pass_obj
def resume(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """End a pause."""
    from curtsy.core.amendment import Resume

    return _amend(given, domains, Resume(), "{name} is resumed.", is_json)


@click.command(
    cls=Command,
    examples=(
        ("curtsy forget typo.example", "A host that does not exist."),
        ("curtsy forget --yes example.org example.net", "Several, without confirmation."),
    ),
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "is_json", is_flag=True, help="Write the deleted hosts as JSON.")
@click.pass_obj
def forget(given: CommandContext, domains: tuple[str, ...], is_sure: bool, is_json: bool) -> Exit:
    """Delete the records of a host: pace, budget, breaker and robots.txt.

    The host then counts as unknown, so its daily budget starts at zero. Cached pages and statistics remain.
    """
    from curtsy.cli.status import none_known

    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError("this deletes the records of hosts. Confirm with --yes.")
        click.confirm(f"Delete the records of {', '.join(domains)}, with today's budget?", err=True, abort=True)
    forgotten, code, store = [], Exit.FINE, given.open_shared_store()
    try:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            in_flight = store.update(policy.key_for(domain), _forgotten)
            if in_flight:
                noun = console.counted(in_flight, "request")
                console.say(f"{domain} is not forgotten: {noun} to it may be in flight. Try again after that.")
                code = Exit.ERROR
                continue
            rules = [f"rules:{scheme}://{domain}" for scheme in ("https", "http")]
            if in_flight is None and all(store.read(key) is None for key in rules):
                code = none_known(domain)
                continue
            for key in rules:
                store.forget(key)
            forgotten.append(domain)
            if not is_json:
                console.say(f"{_name(domain, policy)} is forgotten.")
    finally:
        store.close()
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
