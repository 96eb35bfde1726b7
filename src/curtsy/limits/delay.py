"""Adaptive delay between two requests to a domain (N8)."""

from __future__ import annotations

from curtsy.core.errors import FetchError


def adapt_delay(current: float, error: BaseException | None, *, max_delay: float = 10.0) -> float:
    """Return the delay after an error (N8): a 429 doubles it up to `max_delay`, or sets its Retry-After.

    The delay never decreases. Any other status, and errors other than `FetchError`, leave it unchanged.
    """
    if not isinstance(error, FetchError) or error.status != 429:
        return current
    if error.retry_after is not None:
        return max(current, error.retry_after)
    return max(current, min(2 * current, max_delay))
