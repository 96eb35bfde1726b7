"""Wire: how URLs, ranks and ends are told to the scripts of a shared frontier, and what they say is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from curtsy.crawling.frontier.local import CHUNK, microseconds
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done, Ending, Failed, Found, host_of
from curtsy.crawling.frontier.url_table import demoted, depth_of, hops_of, priority_of, rank_of

Group = tuple[str, int, str]
"""Host, rank and parent; the parent is empty if there is none."""

_MIDDLE = 1 << 52
"""What is added to a rank, so that it is not negative. Together they stay below what Lua can count to."""


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What every script on a partition says."""

    wait: int
    """Microseconds until something may be had there; -1 if nothing is left there."""

    queued: int
    leased: int
    done: int
    failed: int
    hosts: int
    added: int
    """Ever."""

    answer: msgspec.Raw
    """Packed; each script has its own."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left."""
        return not self.queued and not self.leased


class Handed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A URL that was handed out, as the script has it."""

    ticket: int
    host: str
    target: str
    rank: int
    parent: str
    tries: int
    host_pages: int


read_report = msgspec.msgpack.Decoder(Report).decode
read_number = msgspec.msgpack.Decoder(int).decode
read_numbers = msgspec.msgpack.Decoder(list[int]).decode
read_handed = msgspec.msgpack.Decoder(list[Handed]).decode
read_failure = msgspec.msgpack.Decoder(tuple[int, str, str, str]).decode
"""When, host, target and reason."""


def chunks(founds: Sequence[Found]) -> Iterator[dict[Group, list[str]]]:
    """URLs that have host, rank and parent in common, in order, some thousands at a time."""
    each = ((found, url) for found in founds for url in found.urls)
    while chunk := list(itertools.islice(each, CHUNK)):
        groups: dict[Group, list[str]] = {}
        for found, url in chunk:
            rank = rank_of(found.depth, found.priority, found.hops)
            groups.setdefault((host_of(url), rank, found.parent or ""), []).append(url)
        yield groups


def end_words(ending: Ending, partitions: int) -> tuple[Any, ...]:
    """What the script is told of an ending."""
    match ending.end:
        case Done(after):
            how = "page" if ending.is_page else "done"
            return number_of(ending.claimed, partitions), how, _after(after), ""
        case Failed(reason, after):
            return number_of(ending.claimed, partitions), "failed", _after(after), reason
        case Deferred(seconds, last):
            return back_words(ending.claimed, partitions, seconds, last=last)


def back_words(claimed: Claimed, partitions: int, after: float | None, *, last: bool = False) -> tuple[Any, ...]:
    """What the script is told of a URL that goes back."""
    rank = rank_of(claimed.depth, claimed.priority, claimed.hops)
    return number_of(claimed, partitions), "back", _after(after), packed(demoted(rank) if last else rank)


def _after(seconds: float | None) -> int | str:
    return "" if seconds is None else microseconds(seconds)


def number_of(claimed: Claimed, partitions: int) -> int:
    """The ticket as its partition knows it: each counts its own."""
    return claimed.ticket // partitions


def claimed_of(handed: Handed, until: float, partition: int, partitions: int) -> Claimed:
    """What was handed out, as the crawl has it."""
    rank = handed.rank - _MIDDLE
    return Claimed(
        url=url_of(handed.host, handed.target),
        host=handed.host,
        depth=depth_of(rank),
        priority=priority_of(rank),
        parent=handed.parent or None,
        hops=hops_of(rank),
        tries=handed.tries,
        ticket=handed.ticket * partitions + partition,
        leased_until=until,
        host_pages=handed.host_pages,
    )


def packed(rank: int) -> bytes:
    """A rank as bytes that have its order."""
    return min(max(rank + _MIDDLE, 0), 2 * _MIDDLE - 1).to_bytes(8, "big")


def target_of(url: str) -> str:
    """A canonical URL without its host."""
    scheme, _, rest = url.partition("://")
    return ("s" if scheme == "https" else "p") + rest[rest.index("/") :]


def url_of(host: str, target: str) -> str:
    """The canonical URL of both."""
    return f"http{'s' if target[0] == 's' else ''}://{host}{target[1:]}"
