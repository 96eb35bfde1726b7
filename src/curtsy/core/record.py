"""Base class of stored records, and the record of a fetch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.masking import masked_repr
from curtsy.core.time import SECOND, Now


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Value that a store keeps under a key. Subclasses set a `tag` and number their formats.

    New fields go to the end, with a default, so that older records remain readable. Any other change raises `current`
    and adds a migration to `stores/codec.py`.
    """

    format: int = 1
    """Format in which this record was written."""

    current: ClassVar[int] = 1
    """Format that this version of curtsy writes."""

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds until the record has no effect and may be dropped; None for never."""
        return None

    @property
    def weight(self) -> int:
        """Return the bytes beyond the size of any record; large only for a robots.txt."""
        return 0

    def joined(self, ours: Self, base: Self | None) -> Self:
        """Return this stored record joined with `ours`, which diverged from `base` during a store outage."""
        return self


WEEK = 7 * 86_400 * SECOND
"""Microseconds for which facts about a host are kept without news."""


class StatsFields(msgspec.Struct, frozen=True):
    """Value with mapping access: `stats["total_requests"]`, `dict(stats)`."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return self.__struct_fields__

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {name: getattr(self, name) for name in self.keys()}


class Share(msgspec.Struct, frozen=True, gc=False):
    """Part of a fetch that concerned one of the hosts on its way."""

    domain: str
    attempts: int
    retries: int
    robots_requests: int
    bytes: int


def share_of(fetch: Any, domain: str, others: tuple[Share, ...]) -> Share:
    """Return the share of a domain: the counts of a fetch without those of the `others`."""
    counts = ("attempts", "retries", "robots_requests", "bytes")
    return Share(domain, *(getattr(fetch, name) - sum(getattr(each, name) for each in others) for name in counts))


class FetchRecord(StatsFields, frozen=True, gc=False):
    """One fetch as a flat record, the input of log, metrics and statistics. Durations are seconds."""

    url: str
    final_url: str
    """URL after redirects."""

    domain: str
    """Domain of the final URL."""

    method: str
    status: int | None
    reason: str | None
    """Reason of a failure; None on success."""

    attempts: int
    """Requests sent, including redirects and retries, without robots.txt."""

    retries: int
    waited: float
    """Time in the queue, over all attempts."""

    took: float
    """Total time, from call to result."""

    bytes: int
    """Bytes of bodies received over the network."""

    cache: str | None
    """`hit`, `revalidated` or `stale`; None if the answer is not from the cache."""

    robots_line: int | None
    """Line of robots.txt that decided; None if no line did."""

    requests_left: int | None
    """Requests left in the host's daily budget; None if unlimited, or if nothing was to be sent."""

    pages_left: int | None
    retry_after: float | None
    at: float
    """Epoch second at which the fetch ended."""

    latency: float | None = None
    """Duration of the last request, from its being written to the end of the answer; None if nothing was written."""

    robots_requests: int = 0
    """Requests sent for robots.txt for this fetch."""

    elsewhere: tuple[Share, ...] = ()
    """Parts of these counts that belong to hosts that redirected the fetch."""

    message: str = ""
    """Description of a failure; empty on success."""

    is_part: bool = False
    """True for a part of a page, such as a script."""

    __repr__ = masked_repr

    def shares(self) -> tuple[Share, ...]:
        """Return the part of each host: first the final host, then the hosts that redirected."""
        return share_of(self, self.domain, self.elsewhere), *self.elsewhere

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values. `elsewhere`, `message` and `is_part` are omitted if empty."""
        fields = super().as_dict()
        shares = fields.pop("elsewhere")
        if shares:
            fields["elsewhere"] = [msgspec.structs.asdict(each) for each in shares]
        for name in ("message", "is_part"):
            if not fields[name]:
                del fields[name]
        return fields
