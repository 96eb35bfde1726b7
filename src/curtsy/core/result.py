"""FetchResult: result of a fetch."""

from __future__ import annotations

import json
from typing import Any, Self

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
from curtsy.core.masking import mask_url
from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers


def parsed_json(body: bytes) -> Any:
    """Parse a body as JSON, in UTF-8, UTF-16 or UTF-32. Raises ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


class FetchResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a fetch; true if `ok`. A fetch raises nothing for errors of the web; `raise_for_reason()` does."""

    ok: bool
    """True for a complete, allowed answer with a status from 200 to 299."""

    url: str
    """Requested URL, canonical if valid."""

    final_url: str
    """URL after redirects."""

    status: int | None
    """Status of the final answer; None without one."""

    reason: Reason | None
    """Reason of a failure; None if ok."""

    message: str
    """Problem, cause and remedy in words; empty if ok."""

    retry_after: float | None
    """Seconds until a retry makes sense; None if never or unknown."""

    headers: Headers
    """Header fields of the answer: a case-insensitive mapping. `headers.all(name)` returns repeated fields one by
    one."""

    body: bytes
    from_cache: bool
    record: FetchRecord
    next_in: float | None = None
    """Minimum seconds from the answer until its host may be contacted again; None if no request was sent."""

    redirected_by: tuple[str, ...] = ()
    """URLs that redirected the fetch, in order; the last redirected to `final_url`."""

    cause: str = ""
    """Cause of a failed request, or of an open breaker, in a few words, such as `connection refused`; else empty."""

    rendered: bool = False
    """True if the body is the DOM of a browser, after the scripts of the page."""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        said = (mask_url(self.final_url), self.status, self.reason, f"{len(self.body):,} bytes")
        return f"<{type(self).__name__} {' '.join(str(each) for each in said if each is not None)}>"

    @property
    def content_type(self) -> str | None:
        """Return the `Content-Type` as received; None if absent."""
        return self.headers.get("content-type")

    @property
    def text(self) -> str:
        """Return the body as text. Each access detects the encoding and decodes again."""
        return decode(self.body, self.content_type)[0]

    @property
    def encoding(self) -> str:
        """Return the encoding that `text` uses."""
        return decode(self.body, self.content_type)[1]

    @property
    def content(self) -> bytes:
        """Return `body`, by the name that requests and httpx use."""
        return self.body

    @property
    def status_code(self) -> int | None:
        """Return `status`, by the name that requests and httpx use."""
        return self.status

    def json(self) -> Any:
        """Return the body parsed as JSON. Raises ValueError if it is not JSON."""
        return parsed_json(self.body)

    def raise_for_status(self) -> Self:
        """Do the same as `raise_for_reason()`, by the name that requests and httpx use."""
        return self.raise_for_reason()

    def raise_for_reason(self) -> Self:
        """Raise the exception for the reason; return the result itself if it has none.

        Raises a subclass of Refused or FetchError.
        """
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
