"""`curtsy doctor`: check the installation and its environment."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from curtsy import __version__
from curtsy.cli import console
from curtsy.cli.command import command
from curtsy.cli.context import CommandContext, Exit
from curtsy.core.errors import CurtsyError, PolicyError

if TYPE_CHECKING:
    from curtsy.observe.why import State
    from curtsy.settings import Settings

LITTLE_ROOM = 100 * 1024**2
"""Free bytes below which a disk causes a warning."""

LIBRARIES = ("httptools", "msgspec", "pydantic", "rich", "click")
EXTRAS = {
    "redis": ("redis", "a shared store"),
    "fsspec": ("remote", "outputs in object stores"),
    "pyarrow": ("parquet", "Parquet"),
    "uvloop": ("fast", "speed"),
}
"""Optional libraries: extra of the package, and purpose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    state: State
    """`yes`: fine; `wait`: works, but needs attention; `no`: does not work; `off`: absent, not needed."""

    says: str
    advice: str = ""
    """Remedy; empty if none is needed."""


@command(
    ("curtsy doctor", "Check everything; only a shared store is contacted."),
    ("curtsy doctor --verbose", "Show all checks, and count the known hosts."),
    (
        "curtsy doctor --store redis://10.0.0.5:6379",
        "Check a server: is it reachable and writable, and is its clock right?",
    ),
)
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Show all checks, and count the known hosts.")
@click.option("--json", "is_json", is_flag=True, help="Write all checks as JSON.")
@click.pass_obj
def doctor(given: CommandContext, is_verbose: bool, is_json: bool) -> Exit:
    """Check the installation and its environment.

    Checks Python and the libraries, the settings, the store (reachable and writable), the clock, the user agent (does
    it name a contact?) and the cache. Shows errors and warnings. The exit code is 1 if something does not work, 78 if
    the settings are wrong, so that it serves as a health check.
    """
    findings, code = _examine(given, is_verbose)
    if is_json:
        console.write_json({"ok": code is Exit.FINE, "findings": [asdict(each) for each in findings]})
    else:
        _show(findings, is_verbose)
    return code


def _examine(given: CommandContext, is_verbose: bool) -> tuple[list[Finding], Exit]:
    found = [*_python()]
    try:
        settings = given.settings()
    except PolicyError as error:
        *others, last = str(error).splitlines()
        found += [Finding("settings", "no", each) for each in others]
        found.append(Finding("settings", "no", last, "Correct it, then run curtsy config check."))
        return found, Exit.CONFIGURATION
    found += [
        *_settings(settings),
        _user_agent(settings),
        *_store(given, is_verbose),
        _clock(settings),
        _cache(settings),
    ]
    found += _context()
    return found, Exit.ERROR if any(each.state == "no" for each in found) else Exit.FINE


def _python() -> Iterator[Finding]:
    yield Finding("curtsy", "yes", f"{__version__}, Python {platform.python_version()} on {platform.system()}")
    versions = {name: _version(name) for name in (*LIBRARIES, *EXTRAS)}
    if missing := [name for name in LIBRARIES if versions[name] is None]:
        yield Finding("libraries", "no", f"{', '.join(missing)} missing", "Install curtsy again: pip install curtsy")
    else:
        yield Finding("libraries", "yes", ", ".join(f"{name} {versions[name]}" for name in LIBRARIES))
    for name, (extra, purpose) in EXTRAS.items():
        if versions[name] is None:
            advice = f'If you want it: pip install "curtsy[{extra}]"'
            yield Finding(name, "off", f"not installed; for {purpose}", advice)
        else:
            yield Finding(name, "yes", f"{versions[name]}, for {purpose}")


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _settings(settings: Settings) -> Iterator[Finding]:
    files = ", ".join(str(each) for each in settings.files) or "no file: the built-in defaults"
    yield Finding("settings", "yes", f"{files}, preset {settings.preset}")
    for warning in (*settings.warnings, *settings.notices):
        yield Finding("settings", "wait", warning)


def _user_agent(settings: Settings) -> Finding:
    from curtsy.settings import names_contact
    from curtsy.settings.general import USER_AGENT

    agent = settings.user_agent
    if not names_contact(agent):
        advice = 'Add a page or a mail address: user_agent: "MyBot/1.0 (+https://example.org/bot)"'
        return Finding("user agent", "wait", f"{agent} names no contact", advice)
    if agent == USER_AGENT:
        where = f"user_agent in {settings.files[-1]}" if settings.files else "curtsy config init writes a file for it"
        advice = f"Set your own, so that site owners can reach you: {where}"
        return Finding("user agent", "wait", f"{agent}, which is the default", advice)
    return Finding("user agent", "yes", agent)


def _store(given: CommandContext, is_verbose: bool) -> Iterator[Finding]:
    """Write, read and remove a record. Count the hosts only if verbose, because they may be millions.

    A missing SQLite file is not created here.
    """
    from curtsy.core.host import fresh
    from curtsy.stores import for_threads

    key = f"doctor:{os.getpid()}"
    try:
        with closing(given.open_store()) as store:
            kind, _, place = store.identity.partition(":")
            if kind == "sqlite" and not os.path.exists(place):
                yield _to_be_made("store", Path(place), "Choose another path: store")
                return
            began = time.monotonic()
            store.update(key, lambda host, now: (fresh(now), None))
            is_there = store.read(key) is not None
            store.forget(key)
            took = time.monotonic() - began
            skew = store.now().epoch / 1e6 - time.time()
            known = f", {console.counted(for_threads(store).survey(1, 1).total, 'host')} known" if is_verbose else ""
    except CurtsyError as error:
        is_wrong = isinstance(error, PolicyError)
        yield Finding("store", "no", str(error), "Correct the setting store." if is_wrong else _in_outage(given))
        return
    words = f"{store.identity}, written and read in {took * 1000:.0f} ms{known}"
    yield Finding("store", "yes" if is_there else "no", words)
    if abs(skew) > 2:
        words = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        advice = "The pace is not affected, but budgets use the days of the store."
        yield Finding("store's clock", "wait", words, advice)


def _in_outage(given: CommandContext) -> str:
    """Return what happens while the store does not work, by the setting `outage` or its default for this store."""
    from curtsy.stores import outage_of

    settings = given.settings()
    if outage_of(settings.store, settings.outage) == "wait":
        return "Until it works, no request is sent (outage: wait)."
    return "Until it works, each process applies the limits on its own (outage: alone)."


def _to_be_made(name: str, path: Path, advice: str) -> Finding:
    """Check whether a missing file or folder could be created."""
    from tempfile import TemporaryFile

    above = next(each for each in path.absolute().parents if os.path.exists(each))
    try:
        with TemporaryFile(dir=above):
            return Finding(name, "yes", f"{path}, does not exist yet; it is created on first use")
    except OSError as error:
        return Finding(name, "no", f"{path} does not exist, and cannot be created in {above}: {error.strerror}", advice)


def _clock(settings: Settings) -> Finding:
    from curtsy.settings.problems import shown

    zone = settings.policies.default.timezone
    day = f"{time.strftime('%Z')} (local)" if zone is None else shown(zone, bare=True)
    words = f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}; days end at midnight {day}"
    if time.gmtime().tm_year < 2025:
        return Finding("clock", "no", words, "Set the clock: budgets and the cache depend on it.")
    return Finding("clock", "yes", words)


def _cache(settings: Settings) -> Finding:
    from tempfile import TemporaryFile

    from curtsy.cache.opening import cache_path, is_packed

    if settings.cache_mode == "off":
        return Finding("cache", "off", "pages are not cached")
    path = cache_path(settings.cache_dir)
    folder = path.parent if is_packed(path) else path
    advice = "Pages are not cached until this works. Choose another path: cache_dir"
    if not os.path.exists(folder):
        return _to_be_made("cache", folder, advice)
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("cache", "no", f"{path} cannot be written: {error.strerror}", advice)
    words = f"{path}, {console.size(free)} free"
    if free < LITTLE_ROOM:
        return Finding("cache", "wait", words, "Free some space, or run curtsy cache gc --max-size 10M")
    return Finding("cache", "yes", words)


def _context() -> Iterator[Finding]:
    from curtsy.core.url import Url
    from curtsy.http.proxy import environment_proxies

    for scheme, proxy in environment_proxies().items():
        if isinstance(proxy, Url):
            login = "" if proxy.credentials is None else "***@"
            place = f"{proxy.scheme}://{login}{proxy.domain}"
            yield Finding("proxy", "yes", f"{scheme.upper()}_PROXY is {place}: requests go through it")
        else:
            words, _, advice = str(proxy).partition(". ")
            yield Finding("proxy", "no", words, advice)
    if sys.stdout.isatty():
        yield Finding("terminal", "yes", f"{shutil.get_terminal_size().columns} columns, {sys.stdout.encoding}")


def _show(findings: list[Finding], is_verbose: bool) -> None:
    visible = [each for each in findings if is_verbose or each.state in ("no", "wait")]
    table = console.table("", "", "", folded=(2,))
    for each in visible:
        words = console.text(console.plain(each.says), style="dim" if each.state == "off" else "")
        if each.advice:
            words = console.text(words, "\n", (console.plain(each.advice), "italic" if each.state != "off" else "dim"))
        mark = console.text("!", style="yellow") if each.state == "wait" else console.mark(each.state)
        table.add_row(mark, console.text(each.name, style="bold"), words)
    if visible:
        console.show(console.out(), table)
    bad = sum(each.state == "no" for each in findings)
    odd = sum(each.state == "wait" for each in findings)
    end = "no problems" if not bad + odd else f"{console.counted(bad, 'error')}, {console.counted(odd, 'warning')}"
    console.say(f"{end}." if is_verbose else f"{end} in {len(findings)} checks; --verbose shows all.")
