"""`curtsy breaker`, `curtsy pause` and `curtsy resume`: what is done to a host by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from curtsy.cli import screen
from curtsy.cli.command import Command, Group
from curtsy.cli.exits import Exit
from curtsy.cli.given import Given
from curtsy.cli.values import Domain, Duration

if TYPE_CHECKING:
    from curtsy.core.admission import Amendment
    from curtsy.watch.hostview import HostView


def _amend(given: Given, domain: str, change: Amendment) -> HostView:
    """Change a host's record, and say how it stands then. Whoever waits for the host sees it within moments."""
    from curtsy.steps import amended
    from curtsy.watch.hostview import view_of

    policy, store = given.settings().policies.of(domain), given.open_store()
    try:
        host = store.update(policy.key_for(domain), amended(policy, change))
        return view_of(domain, host, store.now(), policy)
    finally:
        store.close()


def _tell(views: list[HostView], is_json: bool, words: str) -> Exit:
    if is_json:
        screen.write_json(views)
    else:
        for view in views:
            screen.say(words.format(domain=view.domain))
    return Exit.FINE


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
def ls(given: Given, is_all: bool, is_json: bool) -> Exit:
    """List the breakers that are not closed."""
    from curtsy.cli.status import breaker_words, known

    found = [view for view in known(given, None) if is_all or view.breaker != "closed"]
    if is_json:
        names = ("domain", "breaker", "breaker_left", "failures", "trips", "last_status")
        screen.write_json([{name: getattr(view, name) for name in names} for view in found])
        return Exit.FINE
    if not found:
        screen.say("all breakers are closed.")
        return Exit.FINE
    table = screen.table("host", "breaker", "failures", "trips", "last", right=("failures", "trips", "last"))
    for view in found:
        table.add_row(
            screen.plain(view.domain), breaker_words(view), str(view.failures), str(view.trips),
            str(view.last_status or ""),
        )  # fmt: skip
    screen.show(screen.out(), table)
    return Exit.FINE


@breaker.command(
    "reset", cls=Command, examples=(("curtsy breaker reset example.org", "Close it, and end every rest."),)
)
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def reset(given: Given, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Close a host's breaker, and end any rest that it asked for.

    Pace and budget stay as they are. Do this only if you know that the host is well.
    """
    from curtsy.core.admission import Reset

    return _tell([_amend(given, each, Reset()) for each in domains], is_json, "the breaker of {domain} is closed.")


@breaker.command("trip", cls=Command, examples=(("curtsy breaker trip example.org", "Leave it alone for 5 minutes."),))
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def trip(given: Given, domains: tuple[str, ...], is_json: bool) -> Exit:
    """Open a host's breaker, as if it had failed: nothing is sent for its cooldown."""
    from curtsy.core.admission import Trip

    words = "the breaker of {domain} is open. curtsy breaker reset {domain} closes it."
    return _tell([_amend(given, each, Trip()) for each in domains], is_json, words)


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
def pause(given: Given, domains: tuple[str, ...], seconds: float | None, is_json: bool) -> Exit:
    """Send nothing to a host, until it is resumed.

    It holds for every process that shares the store, at once; what is under way ends as usual.
    """
    from curtsy.core.admission import Pause

    words = "{domain} is paused. curtsy resume {domain} ends that."
    return _tell([_amend(given, each, Pause(seconds)) for each in domains], is_json, words)


@click.command(cls=Command, examples=(("curtsy resume example.org", "Ask it again, at its usual pace."),))
@click.argument("domains", metavar="DOMAIN...", type=Domain(), nargs=-1, required=True)
@click.option("--json", "is_json", is_flag=True, help="How the hosts stand then, as JSON.")
@click.pass_obj
def resume(given: Given, domains: tuple[str, ...], is_json: bool) -> Exit:
    """End a pause."""
    from curtsy.core.admission import Resume

    return _tell([_amend(given, each, Resume()) for each in domains], is_json, "{domain} is not paused any more.")
