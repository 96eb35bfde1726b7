"""Codec of the calls and values that a shared frontier exchanges with its Redis scripts.

A script's KEYS are the common prefix of its keys and a name that never exists. While a cluster moves a slot, it answers
TRYAGAIN to a call that names a missing key. So no script runs where some of its keys have not arrived, though it names
none of them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from curtsy.crawling.frontier.local import CHUNK, microseconds
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done, Ending, Failed, Found, host_of
from curtsy.crawling.frontier.url_table import demoted, fingerprint, rank_of, rank_parts, report_group, report_mark
from curtsy.http.registered_domain import site_of

Group = tuple[str, int, str]
"""Host, rank and parent; the parent is empty for URLs without one."""

_PIECE = 500
"""URLs per script call: the server is blocked while a script runs."""

_MIDDLE = 1 << 52
"""Offset that makes ranks non-negative. The sum stays below 2^53, up to which Lua counts exactly."""


_NUMBERS = 1 << 64
"""Upper bound of a ticket number over all partitions."""

NONCE = 32
"""Bits of the random number that marks the claims of one call."""

ANY = 2**32 - 1
"""Limit of leased URLs per host that means no limit."""


class Script(NamedTuple):
    """Lua script with the SHA-1 by which a server caches it."""

    source: str
    sha: str

    def on(self, base: str, *arguments: Any) -> Call:
        """Return a call of the script on the keys that begin with `base`."""
        return Call(("EVALSHA", self.sha, 2, base, f"{base}:moving", *arguments), self)


def lua(*parts: str) -> Script:
    """Return the script of some parts of Lua source."""
    source = "".join(parts)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class Call(NamedTuple):
    """Command to send."""

    words: tuple[Any, ...]
    script: Script | None = None

    @property
    def key(self) -> str:
        """Return the key that decides which server of a cluster gets the call."""
        key: str = self.words[1 if self.script is None else 3]
        return key

    def spelled_out(self) -> Call:
        """Return the call with the script's source for a server that has not cached it."""
        assert self.script is not None
        return Call(("EVAL", self.script.source, *self.words[2:]), self.script)


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Reply of every script on a partition."""

    wait: int
    """Microseconds until the partition may have something to claim; -1 if nothing is left in it."""

    queued: int
    leased: int
    done: int
    failed: int
    hosts: int
    added: int
    """Number of URLs ever added."""

    answer: msgspec.Raw
    """Result in MessagePack; its type depends on the script."""

    @property
    def is_idle(self) -> bool:
        """Return whether no URL is queued or leased."""
        return not self.queued and not self.leased


class Handed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Claimed URL as the script returns it."""

    ticket: int
    host: str
    target: str
    rank: int
    parent: str
    tries: int
    host_pages: int


class LoggedPage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Page that may be queued again. The script that does that also reads its rank and its parent."""

    at: int
    """Epoch second of its end."""

    host: str
    rank: msgspec.Raw
    target: str

    @property
    def url(self) -> str:
        """Return its URL."""
        return url_of(self.host, self.target)


class LoggedFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Failed URL, of the first ones. The script that queues it again also reads its parent."""

    at: int
    """Instant of its end."""

    host: str
    target: str
    reason: str

    @property
    def url(self) -> str:
        """Return its URL."""
        return url_of(self.host, self.target)


read_report = msgspec.msgpack.Decoder(Report).decode
read_number = msgspec.msgpack.Decoder(int).decode
read_numbers = msgspec.msgpack.Decoder(list[int]).decode
read_handed = msgspec.msgpack.Decoder(list[Handed]).decode
read_logged = msgspec.msgpack.Decoder(LoggedPage).decode
read_failure = msgspec.msgpack.Decoder(LoggedFailure).decode


def chunks(founds: Sequence[Found]) -> Iterator[dict[Group, list[str]]]:
    """Yield chunks of URLs grouped by host, rank and parent, in order."""
    each = ((found, url) for found in founds for url in found.urls)
    while chunk := list(itertools.islice(each, CHUNK)):
        groups: dict[Group, list[str]] = {}
        for found, url in chunk:
            rank = rank_of(found.depth, found.priority, found.hops)
            groups.setdefault((host_of(url), rank, _short(found.parent or "")), []).append(url)
        yield groups


def pieces(
    chunk: dict[Group, list[str]], partition_of: Callable[[str], int], limit_of: Callable[[str], int]
) -> list[tuple[int, list[Any]]]:
    """Return partitions with the script arguments that add a chunk of URLs.

    `partition_of` maps a registered domain to its partition, `limit_of` a host to its maximum of leased URLs.
    """
    found: list[tuple[int, list[Any]]] = []
    begun: dict[int, list[Any]] = {}
    for (host, rank, parent), urls in chunk.items():
        site = site_of(host)
        partition = partition_of(site)
        for start in range(0, len(urls), _PIECE):
            words = begun.get(partition)
            if words is None or len(words) > _PIECE:
                words = begun[partition] = []
                found.append((partition, words))
            piece = urls[start : start + _PIECE]
            words += (host, limit_of(host), packed(rank), parent, len(piece), site, fingerprint(_site_mark(site)))
            for url in piece:
                words += (fingerprint(url), target_of(url))
    return found


def report_parts(urls: Iterable[str], partitions: int) -> list[tuple[int, list[str]]]:
    """Return partitions with the URLs without a page whose marks they have, each URL once."""
    found: dict[int, list[str]] = {}
    for url in dict.fromkeys(urls):
        found.setdefault(report_group(url) % partitions, []).append(url)
    return [
        (partition, each[start : start + _PIECE])
        for partition, each in found.items()
        for start in range(0, len(each), _PIECE)
    ]


def report_words(urls: Sequence[str], *, marks: bool) -> tuple[int, ...]:
    """Return the script arguments that look for reported URLs; with `marks`, mark them."""
    return int(marks), *(fingerprint(report_mark(url)) for url in urls)


def failure_calls(base_of: Callable[[int], str], counts: Sequence[int], limit: int) -> list[Call]:
    """Return the calls that read the first `limit` failures or a few more: of each partition the same share.

    `counts` are the failures of each partition, and `base_of` returns the key prefix of a partition.
    """
    share = min(1.0, limit / max(1, sum(counts)))
    return [
        Call(("LRANGE", f"{base_of(partition)}:failures", 0, math.ceil(count * share) - 1))
        for partition, count in enumerate(counts)
        if count
    ]


def read_failures(replies: Sequence[Sequence[bytes]]) -> list[tuple[str, str]]:
    """Return the failed URLs of some partitions with their reasons, by time."""
    found = sorted((read_failure(each) for reply in replies for each in reply), key=attrgetter("at"))
    return [(each.url, each.reason) for each in found]


def end_words(ending: Ending, partitions: int) -> tuple[Any, ...]:
    """Return the script arguments that end a claim."""
    match ending.end:
        case Done(after):
            how = "logged" if ending.is_logged else "page" if ending.is_page else "done"
            return *ticket_words(ending.claimed, partitions), how, _after(after), ""
        case Failed(reason, after):
            return *ticket_words(ending.claimed, partitions), "failed", _after(after), reason
        case Deferred(seconds, last):
            return back_words(ending.claimed, partitions, seconds, last=last)


def back_words(claimed: Claimed, partitions: int, after: float | None, *, last: bool = False) -> tuple[Any, ...]:
    """Return the script arguments that queue a URL again."""
    rank = rank_of(claimed.depth, claimed.priority, claimed.hops)
    return *ticket_words(claimed, partitions), "back", _after(after), packed(demoted(rank) if last else rank)


def _after(seconds: float | None) -> int | str:
    return "" if seconds is None else microseconds(seconds)


def ticket_words(claimed: Claimed, partitions: int) -> tuple[int, int]:
    """Return the ticket number within its partition, and the nonce of the call that claimed it.

    Each partition counts its own numbers. A number repeats if a replica that lacks the last claims becomes the primary.
    The nonce distinguishes these claims.
    """
    nonce, number = divmod(claimed.ticket, _NUMBERS)
    return number // partitions, nonce


def claimed_of(handed: Handed, until: float, nonce: int, partition: int, partitions: int) -> Claimed:
    """Return the claim for a claimed URL of a script that was called with a nonce."""
    depth, priority, hops = rank_parts(handed.rank - _MIDDLE)
    return Claimed(
        url=url_of(handed.host, handed.target),
        host=handed.host,
        depth=depth,
        priority=priority,
        parent=_whole(handed.parent) or None,
        hops=hops,
        tries=handed.tries,
        ticket=nonce * _NUMBERS + handed.ticket * partitions + partition,
        leased_until=until,
        host_pages=handed.host_pages,
    )


def packed(rank: int) -> bytes:
    """Return a rank as bytes that sort in its order."""
    return min(max(rank + _MIDDLE, 0), 2 * _MIDDLE - 1).to_bytes(8, "big")


def _site_mark(site: str) -> str:
    """Return a text for the set of seen URLs that records a registered domain; it cannot be a URL."""
    return f"site {site}"


def _short(parent: str) -> str:
    """Return a parent as it is stored: without `https:`, because each URL of a small host has one of its own."""
    return parent.removeprefix("https:") if parent.startswith("https://") else parent


def _whole(parent: str) -> str:
    """Return the parent that was stored. Earlier versions stored whole URLs."""
    return f"https:{parent}" if parent.startswith("//") else parent


def target_of(url: str) -> str:
    """Return the scheme letter (`s` or `p`), path and query of a canonical URL."""
    scheme, _, rest = url.partition("://")
    return ("s" if scheme == "https" else "p") + rest[rest.index("/") :]


def url_of(host: str, target: str) -> str:
    """Return the canonical URL of a host and a target."""
    return f"http{'s' if target[0] == 's' else ''}://{host}{target[1:]}"
