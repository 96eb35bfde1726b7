"""Cache decisions: use of a cached copy, and storage of a reply (RFC 9111, private cache).

    found = freshness(entry, request, now)           # before sending
    ...                                              # send found.conditional(request) if it is stale
    match absorb(found, request, reply, now): ...    # store, refresh, drop, or no change

The headers of a response are interpreted once, when it is stored. A hit compares a few numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Literal

import msgspec

from curtsy.core.bounded import remember_short
from curtsy.core.cache_control import Directives, delta_seconds, directives
from curtsy.core.masking import masked_repr
from curtsy.core.request import Failure, Headers, Reply, Request, Response
from curtsy.core.time import http_date
from curtsy.core.url import REMEMBERED
from curtsy.core.variant import variant_of

Mode = Literal["normal", "refresh", "revalidate", "offline"]
"""`normal`: by RFC 9111. `refresh`: always request, as if nothing were cached. `revalidate`: always request, with
validators (N6). `offline`: never request; a copy of any age is used."""

Fields = tuple[tuple[str, str], ...]
"""Header fields in order."""

KEPT = frozenset({200, 203, 204, 300, 301, 308, 404, 410})
"""Statuses that are cached without explicit permission (RFC 9110, 15.1). Excluded are 405, 414 and 501, which do not
answer for the page, and 206, a part of it. A copy without a lifetime serves for validators and `offline`."""

KEPT_IF_SAID = frozenset({302, 303, 307})
"""Statuses that are cached only if the response states a lifetime."""

HEURISTIC_SHARE = 0.1
"""Heuristic lifetime, as a share of the time since the last modification (RFC 9111, 4.2.2)."""

HEURISTIC_MOST = 86_400.0
"""Most seconds of a heuristic lifetime: a day."""

REWRITTEN = 86_400.0
"""Seconds after which a 304 without changes is written nevertheless."""

MOST_AGE = 2**31
"""Largest age in seconds that is reported, also for an unknown age (RFC 9111, 1.2.2)."""

SKEW = 60.0
"""Seconds by which a copy may be in the future: clock corrections are smaller. Beyond that its age is unknown."""

# Requests with conditions or a range of their own bypass the cache.
_OWN_CONDITIONS = frozenset(
    {"range", "if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range"}
)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# RFC 9111, 3.1, secrets, and fields of one exchange. Cookies are kept in the cookie store only (F62). `Age` is computed
# for each use.
_NOT_KEPT = frozenset(
    {
        "age",
        "connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
        "proxy-authenticate", "proxy-authorization", "proxy-authentication-info",
        "www-authenticate", "authentication-info", "set-cookie", "set-cookie2",
    }
)  # fmt: skip
# RFC 9111, 3.2: a 304 does not update the fields of the stored, decoded body.
_NOT_RENEWED = _NOT_KEPT | {"content-length", "content-encoding", "content-range", "content-type"}
_NOT_COMPARED = _NOT_RENEWED | {"date", "age"}
_JUST_ETAG = frozenset({"etag"})
# RFC 9111, 4.2: zones that make `Expires` invalid, though `http_date()` accepts them.
_OTHER_ZONES = ("UTC", "utc", "0000")
# Quoted, or bare as some servers send it. It cannot end a header line, nor be `*`, which would match any page when sent
# back (F15).
_ETAG = re.compile(r'(?:W/)?"[\x20\x21\x23-\x7e\x80-\xff]{0,1000}"|[A-Za-z0-9._:+/=-]{1,1000}')
# Marks of compressed versions by Apache, Caddy and Jetty: `"x"` becomes `"x-gzip"`, `"x--gzip"`.
_CODED = re.compile(r'(?<=[^"])--?(?:gzip|br|zstd)"$')


class Entry(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Metadata of a cached page. Times are epoch seconds, durations seconds."""

    url: str
    """URL without credentials. Its secrets may be masked if read from disk, so `url_sha256` identifies the page."""

    url_sha256: str
    status: int
    headers: Fields
    """Original header fields, without cookies, credentials and fields of the connection."""

    body_sha256: str
    """SHA-256 of the body as stored, in a `PackedCache` mostly compressed; empty before it is stored."""

    body_size: int
    fetched_at: float
    """Time of the response, or of the last 304."""

    age: float = 0.0
    """Age at `fetched_at` (RFC 9111, 4.2.3)."""

    lifetime: float = 0.0
    """Age up to which the copy is fresh; 0 if each use needs a revalidation."""

    etag: str | None = None
    last_modified: str | None = None
    must_revalidate: bool = False
    """True if the copy must not be used stale."""

    immutable: bool = False
    """True if a reload (`max-age=0`) may use the fresh copy without a request (RFC 8246)."""

    stale_if_error: float = 0.0
    """Seconds beyond the lifetime for which the copy may replace a failed reply (RFC 5861)."""

    stale_while_revalidate: float = 0.0
    """Seconds beyond the lifetime for which the copy may be used during a revalidation."""

    vary: tuple[str, ...] = ()
    """Request headers named by `Vary`, in lower case."""

    variant: str = ""
    """Hash of the request headers that select this copy; empty without such headers. See `variant_of()`."""

    def answers(self, request: Request) -> bool:
        """Return whether this copy is the variant that the request selects."""
        return variant_of(self.vary, request) == self.variant

    def response(self, body: bytes, method: str, age: float | None = None) -> Response:
        """Return the response for a request. `age` becomes the `Age` header; None after a 304 (RFC 9111, 4)."""
        fields = self.headers
        if age is not None:
            fields = (*fields, ("Age", str(int(age) if age < MOST_AGE else MOST_AGE)))
        return Response(self.status, Headers(fields), b"" if method == "HEAD" else body)

    __repr__ = masked_repr


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """Cached copy that answers without a request."""

    entry: Entry
    age: float
    """Seconds for the `Age` header; infinite if the clock was set back and the age is unknown."""


class Stale(msgspec.Struct, frozen=True, gc=False):
    """Cached copy that needs a revalidation."""

    entry: Entry
    age: float
    validators: Fields
    """`If-None-Match` and `If-Modified-Since`; empty if the copy has no validators: the whole page is sent."""

    may_serve_meanwhile: bool = False
    """True if the copy may be served at once and revalidated afterwards."""

    may_serve_on_error: bool = False
    """True if the copy may be served when the revalidation fails (no reply, or 500, 502, 503, 504)."""

    def conditional(self, request: Request) -> Request:
        """Return the request with the validators."""
        headers = Headers((*request.headers.fields, *self.validators))
        return Request(request.url, request.method, headers, request.body)


class Absent(msgspec.Struct, frozen=True, gc=False):
    """Absence of a usable copy."""

    may_ask: bool = True
    """False if only the cache may answer (`offline`, `only-if-cached`)."""


Freshness = Fresh | Stale | Absent


class Store(msgspec.Struct, frozen=True, gc=False):
    """Decision: store the page in place of the same variant."""

    entry: Entry
    body: bytes


class Refresh(msgspec.Struct, frozen=True, gc=False):
    """Decision after a 304: answer with the cached body, and update its entry."""

    entry: Entry


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Decision: delete a copy whose successor may not be stored. After a 304 it still answers this request."""

    variant: str | None = None
    """Variant to delete; None: all variants of the URL."""


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Decision: leave the cache unchanged."""


class Unusable(msgspec.Struct, frozen=True, gc=False):
    """304 for a version that is not cached (F15): the fetch fails, and a cached copy is dropped."""

    why: str


Absorbed = Store | Refresh | Drop | Leave | Unusable

_ASK, _MISS = Absent(), Absent(may_ask=False)


def freshness(
    entry: Entry | None, request: Request, now: float, mode: Mode = "normal", stale_if_error: float = 0.0
) -> Freshness:
    """Return the state of the cached copy for a request at epoch second `now`.

    `stale_if_error` is the user's permission, in seconds beyond the lifetime. The site's own permission also counts.
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
    if resident < 0:  # the clock was set back: the time since `fetched_at` is unknown
        resident = 0.0 if resident >= -SKEW else math.inf
    age = entry.age + resident
    staleness = age - entry.lifetime
    if mode == "offline" or (mode == "normal" and _is_usable(entry, wanted, age, staleness)):
        return Fresh(entry, age)
    if not may_ask:
        return _MISS
    if request.method == "HEAD":  # a 304 lacks the headers that a HEAD is for
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
    """Return whether both sides allow the copy without a revalidation (RFC 9111, 4.2 and 5.2.1)."""
    if wanted.no_cache or staleness + wanted.min_fresh >= (0 if entry.must_revalidate else wanted.max_stale):
        return False
    return wanted.max_age is None or age <= wanted.max_age or (entry.immutable and staleness < 0)


def validators(entry: Entry) -> Fields:
    """Return the conditions that revalidate a copy."""
    etag = () if entry.etag is None else (("If-None-Match", ", ".join(_forms(entry.etag))),)
    return etag if entry.last_modified is None else (*etag, ("If-Modified-Since", entry.last_modified))


def _forms(etag: str) -> tuple[str, ...]:
    """Return the ETag and, if it marks a compressed version, also the ETag before compression.

    Apache compares `If-None-Match` before it adds the suffix: sent alone, `"x-gzip"` never gets a 304.
    """
    plain = _CODED.sub('"', etag)
    return (etag,) if plain == etag else (etag, plain)


def _opaque(etag: str) -> frozenset[str]:
    """Return the forms of an ETag for weak comparison (RFC 9110, 8.8.3.2)."""
    return frozenset(form.removeprefix("W/") for form in _forms(etag))


def names_another(found: Freshness, reply: Reply) -> bool:
    """Return whether a 304 names a version that the conditions of `found` did not name.

    Such a 304 confirms nothing: the page has to be requested without conditions.
    """
    if not isinstance(found, Stale) or not isinstance(reply, Response) or reply.status != 304:
        return False
    old, new = found.entry.etag, reply.headers.by_name.get("etag")
    if old is None:
        # Without an ETag only dates were compared, and an unmodified page cannot have a later date.
        return _is_later(reply.headers.by_name.get("last-modified"), found.entry.last_modified)
    if new == old or usable_etag(new) is None:
        return False
    return new is not None and new.removeprefix("W/") not in _opaque(old)


def _is_later(said: str | None, kept: str | None) -> bool:
    """Return whether the date `said` is after `kept`; False if either is not a date."""
    if said == kept:
        return False
    new, old = http_date(said), http_date(kept)
    return new is not None and old is not None and new > old


def absorb(found: Freshness, request: Request, reply: Reply, now: float) -> Absorbed:
    """Return the change of the cache after a reply that came at epoch second `now`.

    `found` is the result of `freshness()` before sending, `request` the request without our validators. After a 304
    to a `Stale` the cached body answers the request, unless the result is `Unusable`.
    """
    if isinstance(reply, Failure):
        return Leave()
    if request.method not in _SAFE:  # RFC 9111, 4.4: an unsafe method invalidates the copies
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
    """Return the entry of a page that came at epoch second `now`; None if it may not be stored."""
    headers = _kept(reply.headers, _NOT_KEPT)
    # A redirect that sets a cookie needs it at its target. A cached redirect would lead there without it.
    if 300 < reply.status < 400 and ("location" not in headers or "set-cookie" in reply.headers):
        return None
    entry = _entry(request, reply.status, headers, reply, now, "", len(reply.body))
    if entry is not None and reply.status in KEPT_IF_SAID and not entry.lifetime:
        return None
    return entry


def _renew(found: Freshness, request: Request, reply: Response, now: float) -> Refresh | Drop | Leave | Unusable:
    """Update the cached copy by a 304 (RFC 9111, 4.3.4)."""
    if not isinstance(found, Stale) or not found.validators:
        return Unusable("the site answered 304 (not modified), but was not asked whether the page had changed")
    old, said = found.entry, reply.headers
    etag = said.by_name.get("etag")
    if names_another(found, reply):
        named = said.by_name.get("last-modified") if old.etag is None else etag
        kept = old.etag or old.last_modified
        return Unusable(f"the site answered 304 (not modified) for the version {named}, but the one kept is {kept}")
    if etag and old.etag and etag.removeprefix("W/") != old.etag.removeprefix("W/"):
        said = said.without(_JUST_ETAG)  # the shorter form of the ETag: the stored one implies both
    is_dull = old.must_revalidate and not old.lifetime
    if is_dull and 0 <= now - old.fetched_at < REWRITTEN and _is_known(said, old.headers):
        # A page that is revalidated each time, and never used stale, gains little from a new date: it is written once
        # a day.
        return Leave()
    renewed = _kept(said, _NOT_RENEWED)
    headers = Headers((*(each for each in old.headers if each[0].lower() not in renewed), *renewed.fields))
    entry = _entry(request, old.status, headers, reply, now, old.body_sha256, old.body_size)
    return Drop(old.variant) if entry is None else Refresh(entry)


def contradicts(reply: Response, entry: Entry) -> bool:
    """Return whether the reply to a HEAD shows that the cached page is outdated (RFC 9111, 4.3.5)."""
    said = reply.headers.get
    pairs = ((usable_etag(said("etag")), entry.etag), (said("last-modified"), entry.last_modified))
    is_other = any(new and old and _opaque(new).isdisjoint(_opaque(old)) for new, old in pairs)
    return reply.status == 200 and is_other


def _is_known(said: Headers, fields: Fields) -> bool:
    """Return whether a 304 changes no field except dates."""
    index = said.by_name
    dull, known = _NOT_COMPARED.union(_names_in(index.get("connection"))), Headers(fields).by_name
    return all(known.get(name) == value for name, value in index.items() if name not in dull)


def _entry(
    request: Request, status: int, headers: Headers, reply: Response, now: float, body_sha256: str, body_size: int
) -> Entry | None:
    """Return the entry that `headers` describe, with the times of `reply`; None if they forbid storage."""
    field, came = headers.by_name.get, reply.headers.by_name.get
    said = directives(field("cache-control"))
    vary = _names_in(field("vary"))
    if said.no_store or "*" in vary:
        return None
    # RFC 9111, 4.2.3. The time of the response is that of its head, `latency` after the request.
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
        # `no-cache` means a lifetime of 0 without stale use.
        must_revalidate=said.must_revalidate or said.no_cache,
        immutable=said.immutable,
        stale_if_error=said.stale_if_error,
        stale_while_revalidate=said.stale_while_revalidate,
        vary=vary,
        variant=variant_of(vary, request),
    )


def _milliseconds(seconds: float) -> float:
    """Round to milliseconds, five times as fast as `round()`."""
    return int(seconds * 1000 + 0.5) / 1000


def _lifetime(said: Directives, expires: str | None, status: int, date: float, modified_at: float | None) -> float:
    """Return the seconds for which a response is fresh (RFC 9111, 4.2.1 and 4.2.2)."""
    if said.max_age is not None:
        return float(said.max_age)
    if expires is not None:  # RFC 9111, 5.3: an invalid date such as `0` or `-1` means "already expired"
        expires_at = None if expires.rstrip().endswith(_OTHER_ZONES) else http_date(expires)
        return 0.0 if expires_at is None else max(0.0, expires_at - date)
    if status in KEPT and modified_at is not None:
        return min(HEURISTIC_MOST, max(0.0, date - modified_at) * HEURISTIC_SHARE)
    return 0.0


def _kept(headers: Headers, not_kept: frozenset[str]) -> Headers:
    """Return the fields that may be stored: without `not_kept`, and without those that `Connection` names."""
    kept = headers.without(not_kept.union(_names_in(headers.by_name.get("connection"))))
    if "".join(map("".join, kept.fields)).isascii():
        return kept
    return Headers(each for each in kept.fields if _is_text("".join(each)))


@remember_short(64)  # the same on all pages of a site
def _names_in(text: str | None) -> tuple[str, ...]:
    """Return the names of a comma-separated list, in lower case and sorted."""
    return tuple(sorted({name.strip().lower() for name in text.split(",")} - {""})) if text else ()


def _is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: undecodable raw bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def usable_etag(text: str | None) -> str | None:
    """Return the ETag; None if it cannot be sent back as a validator (F15)."""
    return text if text is not None and _ETAG.fullmatch(text) else None


@remember_short(4096, REMEMBERED)  # as for parsed URLs; a page needs it for lookup, absorb and storage
def url_sha256(text: str) -> str:
    """Return the hash of a canonical URL, which identifies a page."""
    return hashlib.sha256(text.encode()).hexdigest()
