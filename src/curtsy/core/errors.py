"""What can go wrong, as one tree split by whose decision it was.

    CurtsyError
    ├── Refused              we chose not to ask
    │   ├── RefusedByRobots      the site's robots.txt forbids it
    │   ├── RefusedByBudget      the day's budget of the host is spent
    │   ├── RefusedByBreaker     the host is being left alone
    │   └── RefusedByPolicy      our own settings forbid it, or it cannot be done in time
    ├── FetchError           we asked, it failed
    │   ├── Unreachable          no usable answer came
    │   └── BadStatus            an answer came, and it says no
    ├── StoreError           our own memory failed
    ├── NotWritten           an output of a crawl cannot be written
    ├── LimiterClosed        a limiter was used after close()
    ├── UnknownDomain        statistics of a domain never seen (also a KeyError)
    ├── WaitTimeout          a wait that would take too long (also a TimeoutError)
    └── PolicyError          the settings are wrong (also a ValueError)
        └── InvalidDomain        a domain that is none

Inside the library outcomes are values; these are raised at its edge.
"""

from enum import StrEnum
from typing import Any, Self


class Reason(StrEnum):
    """Why a fetch did not succeed: the closed set that programs can rely on."""

    # We chose not to ask.
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
    CLOSED = "closed"
    # We asked, it failed.
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


REFUSALS = frozenset(
    {
        Reason.INVALID_URL, Reason.DOMAIN_DENIED, Reason.PATH_DENIED, Reason.ADDRESS_REFUSED, Reason.ROBOTS_DISALLOWED,
        Reason.ROBOTS_UNREACHABLE, Reason.CRAWL_DELAY_TOO_LONG, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CIRCUIT_OPEN,
        Reason.PAUSED, Reason.DEADLINE, Reason.NOT_IN_CACHE, Reason.CLOSED,
    }
)  # fmt: skip
"""Reasons for which nothing was asked, by our own choice."""


class CurtsyError(Exception):
    """Everything that curtsy raises on purpose."""


class Refused(CurtsyError):
    """We chose not to ask."""

    def __init__(
        self, message: str, *, reason: Reason | None = None, url: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.url = url
        self.retry_after = retry_after
        """Seconds until asking again makes sense; None if it never does."""


class RefusedByRobots(Refused):
    """The site's robots.txt forbids it."""


class RefusedByBudget(Refused):
    """The day's budget of the host is spent."""


class RefusedByBreaker(Refused):
    """The host is being left alone for a while."""


class RefusedByPolicy(Refused):
    """Our own settings forbid it, or it cannot be done in the time given."""


class FetchError(CurtsyError):
    """We asked, and it failed."""

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
        """Seconds after which the site said to come back; None if it did not say."""
        self.reason = reason


class Unreachable(FetchError):
    """No usable answer came: a name, connection, TLS or protocol error, or too late."""


class BadStatus(FetchError):
    """An answer came, and its status says no."""


class StoreError(CurtsyError):
    """Our own memory failed: it cannot be reached, read or written."""


class NotWritten(CurtsyError):
    """An output cannot be written: no room, no permission, or something else lies at its place."""

    def __init__(self, message: str, path: str | None = None, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.path = path
        """The file or folder; None if it is none, as standard output."""
        self.is_lasting = is_lasting
        """Whether waiting does not help: a pipe that was closed, a file that is not ours. A full disk is not."""


class LimiterClosed(CurtsyError):
    """A limiter was used after `close()`, or closed while somebody waited."""


class UnknownDomain(CurtsyError, KeyError):
    """Statistics were asked for of a domain that was never seen."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of the message


class WaitTimeout(CurtsyError, TimeoutError):
    """Waiting would take longer than the caller allows."""

    def __init__(self, message: str, needed: float) -> None:
        super().__init__(message)
        self.needed = needed
        """Seconds that the wait would have taken."""

    def __reduce__(self) -> tuple[type[Self], tuple[str, float], dict[str, Any]]:
        # By itself it would be made anew of the message alone, which its own constructor refuses.
        return type(self), (str(self), self.needed), self.__dict__


class PolicyError(CurtsyError, ValueError):
    """The settings are wrong; the message names where, the rule and the value."""


class InvalidDomain(PolicyError):
    """What was given as a domain is none."""


def not_imported(need: str, module: str, extra: str, error: ImportError) -> PolicyError:
    """What to raise if the library of an optional part cannot be imported; `need` says who needs which."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == module:
        return PolicyError(f'{need}, which is missing. Install it: pip install "curtsy[{extra}]".')
    why = " ".join(str(error).split()).rstrip(".")
    return PolicyError(f'{need}, which cannot be imported: {why}. Install it anew: pip install "curtsy[{extra}]".')
