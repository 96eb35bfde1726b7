"""Exceptions of curtsy, split by the party that caused them.

    CurtsyError
    ├── Refused              curtsy sent no request
    │   ├── RefusedByRobots      the site's robots.txt forbids it
    │   ├── RefusedByBudget      the host's daily budget is exhausted
    │   ├── RefusedByBreaker     the host is blocked for a while
    │   └── RefusedByPolicy      the settings forbid it, or the deadline is too short
    ├── FetchError           the request failed
    │   ├── Unreachable          no usable answer was received
    │   └── BadStatus            the answer has an error status
    ├── StoreError           the store failed
    │   └── RecordTooNew         a later version of curtsy wrote the record
    ├── NotWritten           an output of a crawl cannot be written
    ├── LimiterClosed        a limiter was used after close()
    ├── UnknownDomain        statistics of a domain never seen (also a KeyError)
    ├── WaitTimeout          a wait that would take too long (also a TimeoutError)
    └── PolicyError          the settings are wrong (also a ValueError)
        └── InvalidDomain        an invalid domain

Inside the library, outcomes are values; only the public interface raises these.
"""

from enum import StrEnum
from typing import Any, Self


class Reason(StrEnum):
    """Reason of a fetch without success: a closed set that programs can rely on."""

    # curtsy sent no request.
    INVALID_URL = "invalid_url"
    DOMAIN_DENIED = "domain_denied"
    PATH_DENIED = "path_denied"
    ADDRESS_REFUSED = "address_refused"
    ROBOTS_DISALLOWED = "robots_disallowed"
    ROBOTS_UNREACHABLE = "robots_unreachable"
    CRAWL_DELAY_TOO_LONG = "crawl_delay_too_long"
    DOMAIN_BUDGET_EXCEEDED = "domain_budget_exceeded"
    CIRCUIT_OPEN = "circuit_open"
    PAUSED = "paused"
    DEADLINE = "deadline_exceeded"
    NOT_IN_CACHE = "not_in_cache"
    STORE_UNREACHABLE = "store_unreachable"
    RECORD_TOO_NEW = "record_too_new"
    CLOSED = "closed"
    # The request failed.
    HTTP_STATUS = "http_status"
    TIMEOUT = "timeout"
    DNS_ERROR = "dns_error"
    CONNECTION_ERROR = "connection_error"
    TLS_ERROR = "tls_error"
    BAD_RESPONSE = "bad_response"
    INCOMPLETE = "incomplete"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    REDIRECTED = "redirected"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    BAD_REDIRECT = "bad_redirect"
    NOT_WRITTEN = "not_written"
    NOT_RENDERED = "not_rendered"


REFUSALS = frozenset(
    {
        Reason.INVALID_URL, Reason.DOMAIN_DENIED, Reason.PATH_DENIED, Reason.ADDRESS_REFUSED, Reason.ROBOTS_DISALLOWED,
        Reason.ROBOTS_UNREACHABLE, Reason.CRAWL_DELAY_TOO_LONG, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CIRCUIT_OPEN,
        Reason.PAUSED, Reason.DEADLINE, Reason.NOT_IN_CACHE, Reason.STORE_UNREACHABLE, Reason.RECORD_TOO_NEW,
        Reason.CLOSED,
    }
)  # fmt: skip
"""Reasons for which curtsy sent no request."""


class CurtsyError(Exception):
    """Base class of the exceptions that curtsy raises on purpose."""


class Refused(CurtsyError):
    """Refusal: curtsy sent no request."""

    def __init__(
        self, message: str, *, reason: Reason | None = None, url: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.url = url
        self.retry_after = retry_after
        """Seconds until a retry makes sense; None if never or unknown."""


class RefusedByRobots(Refused):
    """Refusal by the site's robots.txt."""


class RefusedByBudget(Refused):
    """Refusal because the host's daily budget is exhausted."""


class RefusedByBreaker(Refused):
    """Refusal because the host's breaker is open, or the site requested a long rest."""


class RefusedByPolicy(Refused):
    """Refusal by the settings, or by a deadline that is too short."""


class FetchError(CurtsyError):
    """Failure of an attempted request."""

    def __init__(
        self,
        message: str,
        url: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.status = status
        self.retry_after = retry_after
        """Seconds after which the site wants a retry; None if it did not say."""
        self.reason = reason


class Unreachable(FetchError):
    """Failure without a usable answer: a DNS, connection, TLS or protocol error, or a timeout."""


class BadStatus(FetchError):
    """Failure with an answer whose status is an error."""


class StoreError(CurtsyError):
    """Failure of the store: it cannot be reached, read or written."""


class RecordTooNew(StoreError):
    """Record that a later version of curtsy wrote. The store works: only this record cannot be used."""


class NotWritten(CurtsyError):
    """Output that cannot be written: no space, no permission, or another object at its path."""

    def __init__(self, message: str, path: str | None = None, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.path = path
        """File or folder; None for other outputs, such as standard output."""
        self.is_lasting = is_lasting
        """True if waiting does not help, as with a closed pipe or a foreign file; False for a full disk."""


class LimiterClosed(CurtsyError):
    """Use of a limiter after `close()`, or a close during a wait."""


class UnknownDomain(CurtsyError, KeyError):
    """Request for statistics of a domain that was never seen."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of the message


class WaitTimeout(CurtsyError, TimeoutError):
    """Wait that would take longer than the caller allows."""

    def __init__(self, message: str, needed: float) -> None:
        super().__init__(message)
        self.needed = needed
        """Seconds that the wait would have taken."""

    def __reduce__(self) -> tuple[type[Self], tuple[str, float], dict[str, Any]]:
        # The default would pass only the message, which this constructor rejects.
        return type(self), (str(self), self.needed), self.__dict__


class PolicyError(CurtsyError, ValueError):
    """Invalid settings; the message names the place, the rule and the value."""


class InvalidDomain(PolicyError):
    """Invalid domain."""


def not_imported(need: str, module: str, extra: str, error: ImportError) -> PolicyError:
    """Return the error for an optional library that cannot be imported; `need` names the feature and the library."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == module:
        return PolicyError(f'{need}, which is missing. Install it: pip install "curtsy[{extra}]".')
    why = " ".join(str(error).split()).rstrip(".")
    return PolicyError(f'{need}, which cannot be imported: {why}. Install it anew: pip install "curtsy[{extra}]".')
