"""`curtsy breaker`, `curtsy pause`, `curtsy resume` and `curtsy forget`: manual changes of hosts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Group
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit
from curtsy.cli.values import Domain, Duration

if TYPE_CHECKING:
    from curtsy.core.amendment import Amendment
    from curtsy.core.host import Host
    from curtsy.core.message import Now
    from curtsy.core.policy import Policy
    from curtsy.stores import Store

MOST_NAMED = 5
"""Maximum number of hosts listed by name."""


def _begin(
    given: CommandContext, domains: tuple[str, ...], change: Amendment, words: str, undo: str, is_json: bool
) -> Exit:
    """Apply a change to hosts, known or not, and report it.

    Waiting requests to a host obey the change within moments.
    """
    from curtsy.engine.gate_steps import amended
    from curtsy.engine.host_view import view_of

    views, store = [], given.open_shared_store()
    try:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            host = store.update(policy.key_for(domain), amended(policy, change))
            views.append(view_of(domain, host, store.now(), policy))
            if not is_json:
                said = words.format(name=_name(domain, policy), undo=given.command(f"{undo} {domain}"))
                console.say(said + _others(store, domain, policy))
    finally:
        store.close()
    if is_json:
        console.write_json(views)
    return Exit.FINE


def _end(given: CommandContext, domains: tuple[str, ...], change: Amendment, words: str, is_json: bool) -> Exit:
    """Undo a change of hosts; report an unknown host as an error and write nothing."""
    from curtsy.cli.status import none_known
    from curtsy.engine.gate_steps import amended_if_known
    from curtsy.engine.host_view import view_of

    views, code, store = [], Exit.FINE, given.open_shared_store()
    try:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            host = store.update(policy.key_for(domain), amended_if_known(policy, change))
            if host is None:
                code = none_known(domain)
                continue
            views.append(view_of(domain, host, store.now(), policy))
            if not is_json:
                console.say(words.format(name=_name(domain, policy)))
    finally:
        store.close()
    if is_json:
        console.write_json(views)
    return code


def _name(domain: str, policy: Policy) -> str:
    """Return the host's name, or that of the shared record with all its hosts."""
    return domain if policy.key is None else f"{policy.key}, with all hosts under it,"


def _others(store: Store, domain: str, policy: Policy) -> str:
    """Return a note on known hosts under this one, and its other ports, that have own records; else empty."""
    from curtsy.engine.host_view import is_under

    names = [key.removeprefix("host:") for key in store.keys("host:")]
    found = [name for name in names if name != domain and is_under(name, domain)] if policy.key is None else []
    if not found:
        return ""
    shown, more = ", ".join(found[:MOST_NAMED]), len(found) - MOST_NAMED
    which = f"{shown} and {more:,} more" if more > 0 else shown
    return f" This does not touch {which}, {'a host of its' if len(found) == 1 else 'hosts of their'} own."


@click.group(
    cls=Group,
    examples=(
        ("curtsy breaker ls", "Hosts that are being left alone."),
        ("curtsy breaker reset example.org", "Ask a host again, if you know that it is well."),
    ),
)
def breaker() -> None:
    """List, reset or trip the circuit breakers of hosts.

    A breaker opens when a host fails three times in a row, answers 403, or answers 429 without saying when to come
    back. While it is open, nothing is sent; after the cooldown (5 minutes) one request tries whether the host is well.
    """


@breaker.command("ls", cls=Command, examples=(("curtsy breaker ls --all", "The breakers of all hosts."),))
@click.option("--all", "is_all", is_flag=True, help="Also those that are closed.")
@click.option("--json", "is_json", is_flag=True, help="The same as JSON.")
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
    "reset", cls=Command, examples=(("curtsy breaker reset example.org", "Close it, and end every rest."),)
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def reset(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Close a host's breaker, and end any rest that it asked for.

    Pace and budget stay as they are. Do this only if you know that the host is well.
    """
    from curtsy.core.amendment import Reset

    return _end(given, domains, Reset(), "the breaker of {name} is closed.", is_json)


@breaker.command("trip", cls=Command, examples=(("curtsy breaker trip example.org", "Leave it alone for 5 minutes."),))
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def trip(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Open a host's breaker, as if it had failed: nothing is sent for its cooldown."""
    from curtsy.core.amendment import Trip

    words = "the breaker of {name} is open. {undo} closes it."
    return _begin(given, domains, Trip(), words, "breaker reset", is_json)


@click.command(
    cls=Command,
    examples=(
        ("curtsy pause example.org", "Until it is resumed."),
        ("curtsy pause example.org --for 2h", "For two hours."),
    ),
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--for", "seconds", type=Duration(), metavar="TIME", help="Only so long: 90s, 10m, 2h.")
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def pause(given: CommandContext, domains: tuple[str, ...], seconds: float | None, is_json: bool) -> Exit:
    """Send nothing to a host, until it is resumed.

    It holds for every process that shares the store, at once; what is under way ends as usual. Another port is another
    host, and so is a host under this one, unless the settings let them share a record.
    """
    from curtsy.core.amendment import Pause

    return _begin(given, domains, Pause(seconds), "{name} is paused. {undo} ends that.", "resume", is_json)


@click.command(cls=Command, examples=(("curtsy resume example.org", "Ask it again, at its usual pace."),))
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def resume(given: CommandContext, domains: tuple[str, ...], is_json: bool) -> Exit:
    """End a pause."""
    from curtsy.core.amendment import Resume

    return _end(given, domains, Resume(), "{name} is not paused any more.", is_json)


@click.command(
    cls=Command,
    examples=(
        ("curtsy forget typo.example", "A host that does not exist, and stands in the list."),
        ("curtsy forget --yes example.org example.net", "Some of them, without being asked."),
    ),
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="The hosts that are forgotten, as JSON.")
@click.pass_obj
def forget(given: CommandContext, domains: tuple[str, ...], is_sure: bool, is_json: bool) -> Exit:
    """Forget what is known of a host: its pace, budget, breaker and robots.txt.

    It then counts as never asked, so its budget of the day begins anew. Kept pages and statistics stay.
    """
    from curtsy.cli.status import none_known

    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError("hosts are forgotten only if you are sure. Say --yes.")
        click.confirm(f"Forget {', '.join(domains)}, and what was spent of the day?", err=True, abort=True)
    forgotten, code, store = [], Exit.FINE, given.open_shared_store()
    try:
        for domain in domains:
            policy = given.settings().policies.of(domain)
            under_way = store.update(policy.key_for(domain), _forgotten)
            if under_way:
                noun = console.counted(under_way, "request")
                console.say(f"{domain} is not forgotten: {noun} to it may be under way. Try again when that has ended.")
                code = Exit.ERROR
                continue
            rules = [f"rules:{scheme}://{domain}" for scheme in ("https", "http")]
            if under_way is None and all(store.read(key) is None for key in rules):
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
    under_way = sum(place.until > now.at for place in in_time(host, now).places)
    return (host if under_way else None), under_way
