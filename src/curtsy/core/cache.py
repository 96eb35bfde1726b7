"""What a kept copy is good for: fresh, stale or absent; and what of a reply may be kept (RFC 9111, private cache).

    found = freshness(entry, request, now)           # before anything is sent
    ...                                              # send found.conditional(request) if it is stale
    match absorb(found, request, reply, now): ...    # store, refresh, drop, or leave things as they are

Everything that a response says about itself is read once, when it is kept; a hit compares a few numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from curtsy.core.bounded import remember_short
from curtsy.core.cache_control import Directives, delta_seconds, directives
from curtsy.core.dates import http_date
from curtsy.core.message import REMEMBERED, Failure, Headers, Reply, Request, Response
from curtsy.core.secrets import masked_repr
from curtsy.core.variant import variant_of

Mode = Literal["normal", "refresh", "revalidate", "offline"]
"""`normal`: by RFC 9111. `refresh`: always ask, as if nothing were kept. `revalidate`: always ask, with validators, as
N6 has it. `offline`: never ask; whatever is kept will do, however old."""

Fields = tuple[tuple[str, str], ...]
"""Header fields in order."""

KEPT = frozenset({200, 203, 204, 300, 301, 308, 404, 410})
"""Statuses that may be kept though the response says nothing about it (RFC 9110, 15.1), as far as they are answers.
206 is not: a part is not the page. Without a lifetime such a copy is still good for validators and for `offline`."""

KEPT_IF_SAID = frozenset({302, 303, 307})
"""Statuses that are kept only if the response gives itself a lifetime."""

HEURISTIC_SHARE = 0.1
"""Of the time since the page last changed: how long it is taken to stay, if it does not say (RFC 9111, 4.2.2)."""

HEURISTIC_MOST = 86_400.0
"""Seconds: a guess is never longer than a day."""

REWRITTEN = 86_400.0
"""Seconds after which a 304 that says nothing new is written down all the same."""

MOST_AGE = 2**31
"""Seconds: the largest age that is ever told, also of a copy whose age is not known (RFC 9111, 1.2.2)."""

SKEW = 60.0
"""Seconds that a copy may come from the future: clocks are corrected by less. Beyond that its age is unknown."""

# A request that has conditions or a range of its own is between its maker and the site: no kept copy answers it.
_OWN_CONDITIONS = frozenset(
    {"range", "if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range"}
)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# RFC 9111, 3.1, and what is secret or belongs to one exchange: cookies live in the cookie store only (F62). `Age` is
# written anew for each use.
_NOT_KEPT = frozenset(
    {
        "age",
        "connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
        "proxy-authenticate", "proxy-authorization", "proxy-authentication-info",
        "www-authenticate", "authentication-info", "set-cookie", "set-cookie2",
    }
)  # fmt: skip
# RFC 9111, 3.2: they describe the body that we hold, decoded, and a 304 has none.
_OF_THE_BODY = frozenset({"content-length", "content-encoding", "content-range", "content-type"})
_DATES = frozenset({"date", "age"})
_JUST_ETAG = frozenset({"etag"})
# RFC 9111, 4.2: in `Expires` they are no date, though elsewhere everybody knows what is meant.
_OTHER_ZONES = ("UTC", "utc", "0000")
# Quoted as it should be, or bare as some servers write it; nothing that could end a header line, and no `*`, which
# sent back would mean "any page" (F15).
_ETAG = re.compile(r'(?:W/)?"[\x20\x21\x23-\x7e\x80-\xff]{0,1000}"|[A-Za-z0-9._:+/=-]{1,1000}')
# How Apache, Caddy and Jetty mark the version of a page that they compress: `"x"` becomes `"x-gzip"`, `"x--gzip"`.
_CODED = re.compile(r'(?<=[^"])--?(?:gzip|br|zstd)"$')


class Entry(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """All that is known of a kept page but its body. Times are epoch seconds."""

    url: str
    """Without credentials. As read from a disk, its secrets may be masked: what identifies a page is `url_sha256`."""

    url_sha256: str
    status: int
    headers: Fields
    """As they came, less what is never kept: cookies, credentials, and what concerned the connection."""

    body_sha256: str
    """Of the body as it is kept, which in a `PackedCache` mostly is compressed; empty before it is."""

    body_size: int
    fetched_at: float
    """When the answer, or the last 304, came."""

    age: float = 0.0
    """How old it already was then (RFC 9111, 4.2.3)."""

    lifetime: float = 0.0
    """The age up to which it may be used without asking; 0 if the site wants to be asked each time."""

    etag: str | None = None
    last_modified: str | None = None
    must_revalidate: bool = False
    """Never to be used stale."""

    immutable: bool = False
    """While fresh, a reload (`max-age=0`) need not ask (RFC 8246)."""

    stale_if_error: float = 0.0
    """Seconds beyond its lifetime that it may stand in for an answer that failed (RFC 5861)."""

    stale_while_revalidate: float = 0.0
    """Seconds beyond its lifetime that it may be used while a new one is asked for."""

    vary: tuple[str, ...] = ()
    """The request headers, lower-case, that the response names in `Vary`."""

    variant: str = ""
    """A hash of the request headers that select this copy; empty if there are none. See `variant_of()`."""

    def answers(self, request: Request) -> bool:
        """Return whether this copy is the variant that the request selects."""
        return variant_of(self.vary, request) == self.variant

    def response(self, body: bytes, method: str, age: float | None = None) -> Response:
        """The answer to a request; with its age, unless the site has just said that the copy holds (RFC 9111, 4)."""
        fields = self.headers
        if age is not None:
            fields = (*fields, ("Age", str(int(age) if age < MOST_AGE else MOST_AGE)))
        return Response(self.status, Headers(fields), b"" if method == "HEAD" else body)

    __repr__ = masked_repr


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """The kept copy is the answer; nothing is sent."""

    entry: Entry
    age: float
    """Seconds, as for the `Age` header; infinite if the calendar was set back and it cannot be told."""


class Stale(msgspec.Struct, frozen=True, gc=False):
    """There is a copy, but the site is to be asked whether it still holds."""

    entry: Entry
    age: float
    validators: Fields
    """`If-None-Match` and `If-Modified-Since`; empty if the copy has none, so that the whole page will come."""

    may_serve_meanwhile: bool = False
    """The copy may be given out at once, if the site is asked afterwards."""

    may_serve_on_error: bool = False
    """The copy may stand in if asking fails (no answer, or 500, 502, 503, 504)."""

    def conditional(self, request: Request) -> Request:
        """The request with the validators added."""
        headers = Headers((*request.headers.fields, *self.validators))
        return Request(request.url, request.method, headers, request.body)


class Absent(msgspec.Struct, frozen=True, gc=False):
    """No kept copy is of use."""

    may_ask: bool = True
    """False if the caller wants an answer from the cache or none (`offline`, `only-if-cached`)."""


Freshness = Fresh | Stale | Absent


class Store(msgspec.Struct, frozen=True, gc=False):
    """Keep this page, in place of the same variant."""

    entry: Entry
    body: bytes


class Refresh(msgspec.Struct, frozen=True, gc=False):
    """The kept body holds (304): answer with it, and renew what is known of it."""

    entry: Entry


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Forget a kept copy, because a newer one may not be kept. After a 304 the copy still answers this request."""

    variant: str | None = None
    """The variant to forget; None for every variant of the URL."""


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Change nothing in what is kept."""


class Unusable(msgspec.Struct, frozen=True, gc=False):
    """A 304 for something that we do not hold (F15): a failure of the fetch. A copy that is kept is to be dropped."""

    why: str


Absorbed = Store | Refresh | Drop | Leave | Unusable

_ASK, _MISS = Absent(), Absent(may_ask=False)


def freshness(
    entry: Entry | None, request: Request, now: float, mode: Mode = "normal", stale_if_error: float = 0.0
) -> Freshness:
    """Judge the kept copy of the request's URL at epoch second `now`.

    `stale_if_error` is the user's own permission, in seconds beyond the lifetime, besides the site's.
    """
    said = request.headers.by_name
    is_plain = request.body is None and _OWN_CONDITIONS.isdisjoint(said)
    if not is_plain or request.method not in ("GET", "HEAD"):
        return _MISS if mode == "offline" else _ASK
    wanted = directives(said.get("cache-control"))
    may_ask = not (mode == "offline" or wanted.only_if_cached)
    if entry is None or mode == "refresh" or not entry.answers(request):
        return _ASK if may_ask else _MISS
    resident = now - entry.fetched_at
    if resident < 0:  # the calendar was set back: how long the copy has been here is not known
        resident = 0.0 if resident >= -SKEW else math.inf
    age = entry.age + resident
    staleness = age - entry.lifetime
    if mode == "offline" or (mode == "normal" and _is_usable(entry, wanted, age, staleness)):
        return Fresh(entry, age)
    if not may_ask:
        return _MISS
    if request.method == "HEAD":  # a 304 would leave it without the headers it asked for
        return _ASK
    is_bound = entry.must_revalidate or wanted.no_cache
    is_choosy = mode != "normal" or wanted.max_age is not None or wanted.min_fresh > 0
    return Stale(
        entry,
        age,
        validators(entry),
        may_serve_meanwhile=not (is_bound or is_choosy) and entry.stale_while_revalidate > max(0.0, staleness),
        may_serve_on_error=not is_bound
        and max(entry.stale_if_error, wanted.stale_if_error, stale_if_error) > max(0.0, staleness),
    )


def _is_usable(entry: Entry, wanted: Directives, age: float, staleness: float) -> bool:
    """Whether both sides let the copy be used without asking (RFC 9111, 4.2 and 5.2.1)."""
    if wanted.no_cache or staleness + wanted.min_fresh >= (0 if entry.must_revalidate else wanted.max_stale):
        return False
    return wanted.max_age is None or age <= wanted.max_age or (entry.immutable and staleness < 0)


def validators(entry: Entry) -> Fields:
    """The conditions that ask whether a copy still holds."""
    etag = () if entry.etag is None else (("If-None-Match", ", ".join(_forms(entry.etag))),)
    return etag if entry.last_modified is None else (*etag, ("If-Modified-Since", entry.last_modified))


def _forms(etag: str) -> tuple[str, ...]:
    """The ETag, and the one that the same version has before it is compressed, if the ETag shows that it is.

    Apache compares `If-None-Match` before it adds the suffix: sent alone, `"x-gzip"` never gets a 304.
    """
    plain = _CODED.sub('"', etag)
    return (etag,) if plain == etag else (etag, plain)


def _opaque(etag: str) -> frozenset[str]:
    """The forms of an ETag as the weak comparison sees them (RFC 9110, 8.8.3.2)."""
    return frozenset(form.removeprefix("W/") for form in _forms(etag))


def names_another(found: Freshness, reply: Reply) -> bool:
    """Return whether a 304 names a version that the conditions of `found` did not name.

    Such a 304 confirms nothing: the page has to be requested without conditions.
    """
    if not isinstance(found, Stale) or not isinstance(reply, Response) or reply.status != 304:
        return False
    old, new = found.entry.etag, reply.headers.by_name.get("etag")
    if old is None:
        # Without an ETag the date is all that was compared, and none can be later that was not changed since.
        return _is_later(reply.headers.by_name.get("last-modified"), found.entry.last_modified)
    if new == old or usable_etag(new) is None:
        return False
    return new is not None and new.removeprefix("W/") not in _opaque(old)


def _is_later(said: str | None, kept: str | None) -> bool:
    """Whether one date of a page is after another; False if either is none."""
    if said == kept:
        return False
    new, old = http_date(said), http_date(kept)
    return new is not None and old is not None and new > old


def absorb(found: Freshness, request: Request, reply: Reply, now: float) -> Absorbed:
    """Say what becomes of the kept copy after a reply that came at epoch second `now`.

    `found` is what `freshness()` said before the request was sent, `request` the one without our validators. After a
    304 to a `Stale` the kept body answers the request, whatever comes out but `Unusable`.
    """
    if isinstance(reply, Failure):
        return Leave()
    if request.method not in _SAFE:  # RFC 9111, 4.4: it has changed the page
        return Drop() if 200 <= reply.status < 400 else Leave()
    said = request.headers.by_name
    if request.body is not None or not _OWN_CONDITIONS.isdisjoint(said):
        return Leave()
    is_secret = directives(said.get("cache-control")).no_store
    if reply.status == 304:
        renewed = _renew(found, request, reply, now)
        return Leave() if is_secret and isinstance(renewed, Refresh) else renewed
    if request.method != "GET" or is_secret or not reply.is_whole:
        return Leave()
    if reply.status not in KEPT and reply.status not in KEPT_IF_SAID:
        return Leave()
    entry = entry_of(request, reply, now)
    if entry is not None:
        return Store(entry, reply.body)
    return Drop(
        found.entry.variant if isinstance(found, Stale) else variant_of(_names_in(reply.headers.get("vary")), request)
    )


def entry_of(request: Request, reply: Response, now: float) -> Entry | None:
    """The entry of a page that came at `now`, or None if it may not be kept."""
    headers = _kept(reply.headers, _not_kept)
    # A redirect that sets a cookie wants it back where it leads to: without it, the copy would lead nowhere.
    if 300 < reply.status < 400 and ("location" not in headers or "set-cookie" in reply.headers):
        return None
    entry = _entry(request, reply.status, headers, reply, now, "", len(reply.body))
    if entry is not None and reply.status in KEPT_IF_SAID and not entry.lifetime:
        return None
    return entry


def _renew(found: Freshness, request: Request, reply: Response, now: float) -> Refresh | Drop | Leave | Unusable:
    """Freshen the kept copy by a 304 (RFC 9111, 4.3.4)."""
    if not isinstance(found, Stale) or not found.validators:
        return Unusable("the site answered 304 (not modified), but was not asked whether the page had changed")
    old, said = found.entry, reply.headers
    etag = said.by_name.get("etag")
    if names_another(found, reply):
        named = said.by_name.get("last-modified") if old.etag is None else etag
        kept = old.etag or old.last_modified
        return Unusable(f"the site answered 304 (not modified) for the version {named}, but the one kept is {kept}")
    if etag and old.etag and etag.removeprefix("W/") != old.etag.removeprefix("W/"):
        said = said.without(_JUST_ETAG)  # the other form of it: the longer one implies both
    is_dull = old.must_revalidate and not old.lifetime
    if is_dull and 0 <= now - old.fetched_at < REWRITTEN and _is_known(said, old.headers):
        # A page that is asked about each time, and never used stale, gains nothing by the date of the last time: that
        # is written once a day.
        return Leave()
    renewed = _kept(said, _not_renewed)
    headers = Headers((*(each for each in old.headers if each[0].lower() not in renewed), *renewed.fields))
    entry = _entry(request, old.status, headers, reply, now, old.body_sha256, old.body_size)
    return Drop(old.variant) if entry is None else Refresh(entry)


def contradicts(reply: Response, entry: Entry) -> bool:
    """Whether the answer to a HEAD shows that the page is not the one kept any more (RFC 9111, 4.3.5)."""
    said = reply.headers.get
    pairs = ((usable_etag(said("etag")), entry.etag), (said("last-modified"), entry.last_modified))
    is_other = any(new and old and _opaque(new).isdisjoint(_opaque(old)) for new, old in pairs)
    return reply.status == 200 and is_other


def _is_known(said: Headers, fields: Fields) -> bool:
    """Whether a 304 says nothing new, but for dates."""
    index = said.by_name
    dull, known = _not_compared(index.get("connection")), Headers(fields).by_name
    return all(known.get(name) == value for name, value in index.items() if name not in dull)


def _entry(
    request: Request,
    status: int,
    headers: Headers,
    reply: Response,
    now: float,
    body_sha256: str,
    body_size: int,
) -> Entry | None:
    """Read all that `headers` say, as of the exchange that `reply` ended."""
    field, came = headers.by_name.get, reply.headers.by_name.get
    said = directives(field("cache-control"))
    vary = _names_in(field("vary"))
    if said.no_store or "*" in vary:
        return None
    # RFC 9111, 4.2.3. The moment of the answer is that of its head, `latency` after the request.
    came_at = now - max(0.0, reply.sent_ago - reply.latency)
    sent_date = http_date(came("date"))
    date = came_at if sent_date is None else sent_date
    told = came("age")
    told_age = 0 if told is None else delta_seconds(told.partition(",")[0]) or 0
    last_modified = field("last-modified")
    modified_at = http_date(last_modified)
    lifetime = 0.0 if said.no_cache else _lifetime(said, field("expires"), status, date, modified_at)
    return Entry(
        url=request.url.text,
        url_sha256=url_sha256(request.url.text),
        status=status,
        headers=headers.fields,
        body_sha256=body_sha256,
        body_size=body_size,
        fetched_at=_milliseconds(came_at),
        age=_milliseconds(max(0.0, came_at - date, told_age + reply.latency)),
        lifetime=lifetime,
        etag=usable_etag(field("etag")),
        last_modified=None if modified_at is None else last_modified,
        # `no-cache` is a lifetime of nothing, and no staleness allowed.
        must_revalidate=said.must_revalidate or said.no_cache,
        immutable=said.immutable,
        stale_if_error=said.stale_if_error,
        stale_while_revalidate=said.stale_while_revalidate,
        vary=vary,
        variant=variant_of(vary, request),
    )


def _milliseconds(seconds: float) -> float:
    """To the millisecond; `round()` takes five times as long."""
    return int(seconds * 1000 + 0.5) / 1000


def _lifetime(said: Directives, expires: str | None, status: int, date: float, modified_at: float | None) -> float:
    """Seconds that a response stays fresh (RFC 9111, 4.2.1 and 4.2.2)."""
    if said.max_age is not None:
        return float(said.max_age)
    if expires is not None:  # `0`, `-1` and whatever else is no date mean "already past" (RFC 9111, 5.3)
        expires_at = None if expires.rstrip().endswith(_OTHER_ZONES) else http_date(expires)
        return 0.0 if expires_at is None else max(0.0, expires_at - date)
    if status in KEPT and modified_at is not None:
        return min(HEURISTIC_MOST, max(0.0, date - modified_at) * HEURISTIC_SHARE)
    return 0.0


def _kept(headers: Headers, not_kept: Callable[[str | None], frozenset[str]]) -> Headers:
    """The fields that may be kept."""
    kept = headers.without(not_kept(headers.by_name.get("connection")))
    if "".join(map("".join, kept.fields)).isascii():
        return kept
    return Headers(each for each in kept.fields if _is_text("".join(each)))


@remember_short(64)
def _not_kept(connection: str | None) -> frozenset[str]:
    """The names of those that may not be: some never, some because `Connection` says so."""
    return _NOT_KEPT.union(_names_in(connection))


@remember_short(64)
def _not_renewed(connection: str | None) -> frozenset[str]:
    """Likewise, of a 304."""
    return _not_kept(connection) | _OF_THE_BODY


@remember_short(64)
def _not_compared(connection: str | None) -> frozenset[str]:
    """The names of those in which a 304 says nothing new."""
    return _not_renewed(connection) | _DATES


@remember_short(64)  # they are the same on all pages of a site
def _names_in(text: str | None) -> tuple[str, ...]:
    """The names in a list of them, in lower case and in order."""
    return tuple(sorted({name.strip().lower() for name in text.split(",")} - {""})) if text else ()


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: raw bytes that a sender could not decode cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def usable_etag(text: str | None) -> str | None:
    """The validator, or None if it is none that could be sent back (F15)."""
    return text if text is not None and _ETAG.fullmatch(text) else None


@remember_short(4096, REMEMBERED)  # as of parsed URLs; needed when a page is looked up, absorbed and kept
def url_sha256(text: str) -> str:
    """What identifies a page: its canonical URL, hashed."""
    return hashlib.sha256(text.encode()).hexdigest()
