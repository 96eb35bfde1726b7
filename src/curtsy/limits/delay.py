"""The delay between two requests to a domain, as it adapts by itself (N8)."""

from __future__ import annotations

from curtsy.core.errors import FetchError


def adapt_delay(current: float, error: BaseException | None, *, max_delay: float = 10.0) -> float:
    """Return the delay after an error (N8): doubled by a 429 up to `max_delay`, or its Retry-After.

    Any other status, and anything that is not a `FetchError`, leaves the delay as it is.
    """
    if not isinstance(error, FetchError) or error.status != 429:
        return current
    if error.retry_after is not None:
        return max(current, error.retry_after)
    return max(current, min(2 * current, max_delay))
