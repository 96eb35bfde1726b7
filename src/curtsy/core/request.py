"""Requests and replies, with their header fields."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from typing import TypeVar, overload

import msgspec

from curtsy.core.errors import Reason
from curtsy.core.masking import mask_header
from curtsy.core.url import Url

T = TypeVar("T")

MOST_NUMBER = 10**18
"""Largest number that is read from a field; larger numbers are reduced to it."""


def whole_number(text: str | None) -> int | None:
    """Parse a field's value as a number without sign (RFC 9110: 1*DIGIT); None if it is not one.

    Leading zeros are ignored. Never raises, unlike `int()` for more than 4,300 digits.
    """
    if text is None:
        return None
    text = text.strip(" \t")
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return MOST_NUMBER if len(digits) > 18 else int(digits or "0")


class Headers(Mapping[str, str]):
    """Immutable header fields in order; names ignore case: `headers["content-type"]`, `dict(headers)`."""

    __slots__ = ("_known", "fields")

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self.fields = tuple(fields)
        self._known: dict[str, str] | None = None

    @property
    def by_name(self) -> Mapping[str, str]:
        """Values by lower-case name; repeated fields are joined by commas."""
        # Computed on first use: for a cached page often never.
        index = self._known
        if index is None:
            index = {}
            for name, value in self.fields:
                name = name.lower()
                # RFC 9110, 5.3: repeated fields are one list. Set-Cookie is the exception, and is read from `fields`.
                index[name] = f"{index[name]}, {value}" if name in index else value
            self._known = index
        return index

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, /, default: str | T) -> str | T: ...
    def get(self, name: str, /, default: str | T | None = None) -> str | T | None:
        """Return the value of a field, repetitions joined by commas; `default` if it is absent."""
        return (self._known or self.by_name).get(name.lower(), default)

    def keys(self) -> KeysView[str]:
        """Return the distinct names, in lower case."""
        return self.by_name.keys()

    def values(self) -> ValuesView[str]:
        """Return the values, repetitions joined as by `get()`."""
        return self.by_name.values()

    def items(self) -> ItemsView[str, str]:
        """Return names and values as `keys()` and `values()` do. `fields` has the original fields."""
        return self.by_name.items()

    def all(self, name: str) -> list[str]:
        """Return every value of a field, not joined."""
        name = name.lower()
        return [value for each, value in self.fields if each.lower() == name]

    def without(self, names: Set[str]) -> Headers:
        """Return the headers without these lower-case names."""
        if names.isdisjoint(self.by_name):
            return self
        return Headers(each for each in self.fields if each[0].lower() not in names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.by_name

    def __getitem__(self, name: str) -> str:
        return self.by_name[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __reduce__(self) -> tuple[type[Headers], tuple[object, ...]]:
        return Headers, (self.fields,)  # without the index, which is computed again on first use

    def __repr__(self) -> str:
        return f"Headers({[(name, mask_header(name, value)) for name, value in self.fields]!r})"


NO_HEADERS = Headers()


class Request(msgspec.Struct, frozen=True):
    """Request as sent: one hop, one attempt."""

    url: Url
    method: str = "GET"
    headers: Headers = NO_HEADERS
    body: bytes | None = None


class Response(msgspec.Struct, frozen=True):
    """Reply of a server, of any status."""

    status: int
    headers: Headers
    body: bytes
    """Decoded body (gzip, br, zstd, deflate removed)."""

    sent_ago: float = 0.0
    """Seconds between writing the request and creating this object, by the sender's monotonic clock."""

    latency: float = 0.0
    """Seconds between writing the request and the response head."""

    wire_bytes: int = 0
    """Bytes of the body on the network."""

    is_whole: bool = True
    """True if the body is complete; bodies of errors and redirects may be incomplete, and those still to be read."""

    rendered: bool = False
    """True if the body is the DOM of a browser, after the scripts of the page."""


class Failure(msgspec.Struct, frozen=True):
    """Absence of a usable response, and its reason."""

    reason: Reason
    detail: str
    """Description of the event, without secrets."""

    sent_ago: float | None = None
    """Seconds since the request was written; None if nothing was sent, which costs the site nothing."""

    status: int | None = None
    """Status of the response, if its head came, for example before an incomplete body."""

    wire_bytes: int = 0
    is_answer: bool = False
    """True if the host answered and is healthy, but speaks another protocol than the URL names."""

    is_lasting: bool = False
    """True if a retry within minutes is useless: the name does not exist, or a proxy requires a login."""

    ended_at_proxy: bool = False
    """True if the proxy failed: the host was not contacted, so this is no evidence about it."""

    advice: str | None = None
    """Advice as a sentence; None: the advice for `reason`; empty if `detail` contains it."""

    part: bytes = b""
    """Received part of the body, decoded; only for bodies that may be cut, such as robots.txt."""


Reply = Response | Failure
