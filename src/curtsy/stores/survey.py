"""Survey: the hosts of a store that were used last and those in trouble, found without reading all hosts.

SQLite and Redis stores keep an index of hosts for it, which their updates maintain. An entry changes only if the host's
trouble begins or ends, or if the minute of its last use changes. `HostNotes` collects the changes and releases them
at most once per second, so that an update costs the same with and without the index. If a process is killed, the
notes of its last second are lost, and with them only the position of a host in the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import NamedTuple

from curtsy.core.host import Host
from curtsy.core.record import Record

HOSTS = "host:"
"""Prefix of the keys of hosts."""

KEPT = 10_000
"""Maximum number of hosts without trouble in an index: those used last."""

EVERY = 1.0
"""Minimum seconds between two writes of notes without news about trouble."""

_MINUTE = 60


class Survey(NamedTuple):
    """Part of the hosts of a store, with counts of all."""

    hosts: dict[str, Host]
    """Hosts used last, and hosts in trouble, by key. All hosts if the store has few."""

    total: int
    """Number of hosts in the store."""

    in_trouble: int
    """Number of hosts in trouble (`Host.is_in_trouble`)."""

    is_exact: bool = True
    """False if `total` is an estimate."""

    def overlaid(self, hosts: Mapping[str, Host]) -> Survey:
        """Return the survey with these hosts instead of the ones that it has, or in addition."""
        new = hosts.keys() - self.hosts.keys()
        return self._replace(hosts={**self.hosts, **hosts}, total=max(self.total, len(self.hosts) + len(new)))

    def only(self, is_used: Callable[[str], bool]) -> Survey:
        """Return the survey without the hosts whose keys are not used."""
        gone = {key: host for key, host in self.hosts.items() if not is_used(key)}
        if not gone:
            return self
        hosts = {key: host for key, host in self.hosts.items() if key not in gone}
        in_trouble = self.in_trouble - sum(host.is_in_trouble for host in gone.values())
        return self._replace(hosts=hosts, total=self.total - len(gone), in_trouble=in_trouble)


class Note(NamedTuple):
    """Entry of a host in an index."""

    used_at: int
    """Epoch second of the last use."""

    is_in_trouble: bool


class HostNotes:
    """Changes of an index that are not yet written."""

    def __init__(self) -> None:
        self._notes: dict[str, Note | None] = {}
        self._due_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._notes)

    def add(self, key: str, old: Record | None, new: Record | None) -> None:
        """Note the change of a record, if the index must change with it."""
        if type(old) is Host and type(new) is Host:  # the usual case comes first: every update passes here
            is_near = old.used_at // _MINUTE == new.used_at // _MINUTE
            if is_near and old.is_in_trouble == new.is_in_trouble:
                return
        if not key.startswith(HOSTS):
            return
        had_trouble, has_trouble = (type(each) is Host and each.is_in_trouble for each in (old, new))
        if had_trouble != has_trouble:
            self._due_at = 0.0
        elif old is new:
            return
        self._notes[key] = Note(new.used_at, has_trouble) if type(new) is Host else None

    def is_due(self, now: float) -> bool:
        """Return whether there are notes to write at the monotonic second `now`."""
        return bool(self._notes) and now >= self._due_at

    def take(self, *, is_last: bool = False) -> dict[str, Note | None]:
        """Remove and return the notes if they are due; None stands for a removed host. `is_last`: at the end."""
        now = time.monotonic()
        if not is_last and not self.is_due(now):
            return {}
        self._due_at = now + EVERY
        taken, self._notes = self._notes, {}
        return taken


def survey_of(records: Iterable[tuple[str, Record | None]], recent: int, troubled: int) -> Survey:
    """Return the survey of all records of hosts, in one pass that keeps only the chosen ones."""
    total = 0
    trouble: list[tuple[str, Host]] = []

    def hosts() -> Iterator[tuple[str, Host]]:
        nonlocal total
        for key, host in records:
            if isinstance(host, Host):
                total += 1
                if host.is_in_trouble:
                    trouble.append((key, host))
                yield key, host

    latest = nlargest(max(1, recent), hosts(), key=_used_at)[:recent]
    return Survey({**dict(latest), **dict(nlargest(troubled, trouble, key=_used_at))}, total, len(trouble))


def _used_at(entry: tuple[str, Host]) -> int:
    return entry[1].used_at
