"""FetchResult: what came of a fetch."""

from __future__ import annotations

from typing import Self

import msgspec

from curtsy.core.charset import decode
from curtsy.core.errors import (
    REFUSALS,
    BadStatus,
    Reason,
    RefusedByBreaker,
    RefusedByBudget,
    RefusedByPolicy,
    RefusedByRobots,
    Unreachable,
)
from curtsy.core.message import Headers
from curtsy.core.record import FetchRecord
from curtsy.core.secrets import mask_url


class FetchResult(msgspec.Struct, frozen=True, gc=False):
    """What came of a fetch. It is true when ok. It never raises for what the web does; `raise_for_reason()` does."""

    ok: bool
    """A status from 200 to 299, whole and allowed."""

    url: str
    """As it was asked for, canonical where it could be read."""

    final_url: str
    """After redirects."""

    status: int | None
    """Of the answer that it ended with; None if it ended otherwise."""

    reason: Reason | None
    """Why not; None when ok."""

    message: str
    """What, why and what to do, for people; empty when ok."""

    retry_after: float | None
    """Seconds until asking again makes sense; None if it never does, or nobody knows."""

    headers: Headers
    """Of the answer, as a mapping that takes names in any case; `headers.all(name)` has repetitions one by one."""

    body: bytes
    from_cache: bool
    record: FetchRecord
    next_in: float | None = None
    """Seconds from the answer until its host may be asked again at the earliest; None if nothing was asked."""

    redirected_by: tuple[str, ...] = ()
    """The URLs that redirected it, in order; the last of them to `final_url`."""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        said = (mask_url(self.final_url), self.status, self.reason, f"{len(self.body):,} bytes")
        return f"<{type(self).__name__} {' '.join(str(each) for each in said if each is not None)}>"

    @property
    def content_type(self) -> str | None:
        """The `Content-Type` as it came."""
        return self.headers.get("content-type")

    @property
    def text(self) -> str:
        """The body as text, by its own encoding, which is found out at each call."""
        return decode(self.body, self.content_type)[0]

    @property
    def encoding(self) -> str:
        """The encoding that `text` is read in."""
        return decode(self.body, self.content_type)[1]

    def raise_for_reason(self) -> Self:
        """Raise what the reason calls for; return the result itself if all is well."""
        if self.reason is None:
            return self
        refusal = {
            Reason.ROBOTS_DISALLOWED: RefusedByRobots,
            Reason.ROBOTS_UNREACHABLE: RefusedByRobots,
            Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
            Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
            Reason.CIRCUIT_OPEN: RefusedByBreaker,
        }.get(self.reason, RefusedByPolicy if self.reason in REFUSALS else None)
        if refusal is not None:
            raise refusal(self.message, reason=self.reason, url=self.final_url, retry_after=self.retry_after)
        failure = BadStatus if self.reason in (Reason.HTTP_STATUS, Reason.REDIRECTED) else Unreachable
        raise failure(self.message, self.final_url, self.status, self.retry_after, self.reason)
