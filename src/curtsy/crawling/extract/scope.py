"""Scope of a crawl: which URLs belong to it, and why others do not (Issue 5).

The rules apply in this order, and the first that fails is the reason:

1. *Location*, by `kind`:
   - `host`: on a host of the seeds, with the same port;
   - `site` (the default): in a registered domain of the seeds, on any host under it, port and scheme. `example.co.uk`
     is one, and so is `alice.github.io`, by the Public Suffix List. An IP address or a single label such as
     `localhost` has no registered domain, so each with its port is a site of its own;
   - `prefix`: under the folder of a seed, on the same host, with http or https. The folder is the URL up to the last
     `/` of its path. (`https://example.org/docs` has the folder `/`; write `/docs/` for what is under it.)
   - `domains`: in one of `domains` only;
   - `any`: anywhere.

For every kind, `domains` and the hosts under them belong to the crawl too. A domain with a port means that port. 2.
*Distance*: at most `max_depth` links from a seed. 3. *Exclusion*: no pattern of `skip` is found in the URL. 4.
*Inclusion*: a pattern of `match` is found in the URL, if there are any. `match` decides what is **fetched**: it also
skips pages that only lead to matching pages. So give patterns for these too, as `match=[r"/category/",
r"/item/\\d+"]`. Scrapy has separate rules to follow and to keep. 5. *File type*, by the ending of the path: images,
archives, styles, documents and the like are skipped. `files` lists the endings that are wanted anyway. A URL with
another ending (`.php`, `.v2`) or none counts as a page. A robots.txt is none: a crawl reads it as rules.

A seed is always fetched. Patterns are regular expressions, searched in the canonical URL: lower-case host, punycode,
percent-encoded, no fragment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from curtsy.core.crawl_messages import out_of_scope
from curtsy.core.errors import PolicyError
from curtsy.core.messages import given
from curtsy.core.url import Url, parse_domain, parse_url
from curtsy.crawling.frontier.protocol import host_of
from curtsy.http.registered_domain import name_and_port, site_of

Kind = Literal["host", "site", "domains", "prefix", "any"]

Files = Literal["pages", "all"] | tuple[str, ...]
"""Wanted files: `pages`, `all`, or a tuple of endings, with their dots, wanted besides pages."""

NO_PAGES = frozenset(
    f".{ending}"
    for endings in (
        "avif bmp gif heic heif ico jfif jpe jpeg jpg jxl png psd svg svgz tif tiff webp",
        "aac aif aiff au flac m4a mid midi mp3 oga ogg opus ra wav wma",
        "3gp asf avi f4v flv m3u8 m4v mkv mov mp4 mpeg mpg ogv qt rm swf vob webm wmv",
        "eot otf ttf woff woff2",
        "7z apk bz2 cab deb dmg exe gz img iso jar msi pkg rar rpm tar tbz2 tgz txz war whl xz z zip zst",
        "css js map mjs wasm",
        "bin class dat db dll parquet pyc so sqlite",
        "doc docm docx dot dotx eps epub mobi odg odp ods odt pdf pps ppsx ppt pptm pptx ps rtf xls xlsb xlsm xlsx",
    )
    for ending in endings.split()
)
"""Endings of images, sound, video, fonts, archives, scripts, styles, data and documents."""

_ROBOTS = "/robots.txt"
"""Path of the rules of a host (RFC 9309, 2.3)."""

_FOLDERS = 50
"""Folders of a URL that are compared with those of the seeds; a trap's URL may have a thousand."""

_SHOWN = 3
_ENDING = re.compile(r"\.[a-z0-9_+~-]+")


class OutOfScope(StrEnum):
    """Reason why a URL does not belong to a crawl: the closed set."""

    OTHER_HOST = "other_host"
    OTHER_SITE = "other_site"
    OTHER_DOMAIN = "other_domain"
    OUTSIDE_PREFIX = "outside_prefix"
    TOO_DEEP = "too_deep"
    NOT_MATCHED = "not_matched"
    SKIPPED = "skipped"
    FILE_TYPE = "file_type"
    ROBOTS_FILE = "robots_file"
    # By `traps.py`, not by a scope.
    TRAP = "trap"
    TOO_LONG = "too_long"
    # By `views.py`.
    SORT_ORDER = "sort_order"
    FILTER = "filter"
    PRINT_VIEW = "print_view"
    PAGE_TOOL = "page_tool"
    OLD_VERSION = "old_version"
    CALENDAR = "calendar"


class Scope(msgspec.Struct, frozen=True, dict=True, rename={"max_depth": "depth"}):
    """Rules for the URLs of a crawl: a value, made by `around` and applied by `refuses`.

    In the notes of a job, `max_depth` keeps its name of version 0.1.
    """

    kind: Kind
    places: tuple[str, ...]
    """Locations of the seeds, sorted: hosts, sites, or folders without their scheme, by `kind`."""

    domains: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_depth: int | None = None
    """Maximum number of links between a seed and a page; None for no limit."""

    files: Files = "pages"
    """Wanted files: `pages`, `all`, or the endings (`.pdf`) wanted besides pages."""

    always: tuple[str, ...] = ()
    """Seeds that the rules would refuse."""

    def __post_init__(self) -> None:
        _ = self._match, self._skip  # reports an invalid pattern now rather than at the first page

    @classmethod
    def around(
        cls,
        seeds: Sequence[str],
        *,
        kind: Kind = "site",
        domains: Sequence[str] = (),
        match: Sequence[str] = (),
        skip: Sequence[str] = (),
        max_depth: int | None = None,
        files: str | Sequence[str] = "pages",
    ) -> Scope:
        """Return the scope of a crawl that starts at `seeds`. Raise PolicyError for invalid arguments.

        A string in place of a sequence counts as a sequence of one.
        """
        if kind not in get_args(Kind):
            raise PolicyError(f"kind = {kind!r} must be one of {', '.join(get_args(Kind))}.")
        if max_depth is not None and (not isinstance(max_depth, int) or isinstance(max_depth, bool) or max_depth < 0):
            raise PolicyError(
                f"max_depth = {max_depth!r} must be a whole number, 0 or more. Leave it out for no limit."
            )
        urls = [_seed(each) for each in _several(seeds)]
        scope = cls(
            kind=kind,
            places=tuple(sorted({_PLACES[kind](url) for url in urls})) if kind in _PLACES else (),
            domains=tuple(sorted({parse_domain(each) for each in _several(domains)})),
            match=tuple(_several(match)),
            skip=tuple(_several(skip)),
            max_depth=max_depth,
            files=_file_types(_several(files)),
        )
        if kind != "any" and not scope.places and not scope.domains:
            missing = "domains = () names none" if kind == "domains" else "seeds = () names no URL"
            raise PolicyError(f"{missing}, so nothing could be fetched. Give at least one.")
        outside = {url for url in urls if scope._rule(url, 0) is not None}
        return msgspec.structs.replace(scope, always=tuple(sorted(outside))) if outside else scope

    # Queries

    def refuses(self, url: str, depth: int) -> OutOfScope | None:
        """Return why a canonical URL at `depth` links from a seed is refused; None if it is not."""
        reason = self._rule(url, depth)
        return None if reason is None or url in self._always else reason

    def covers(self, url: str) -> bool:
        """Return whether the location of a canonical URL is in the crawl; other rules may refuse it."""
        return self._is_inside(url) or url in self._always

    def skips(self, url: str) -> bool:
        """Return whether a pattern of `skip` is found in a URL."""
        return any(found(url) for found in self._skip)

    def _rule(self, url: str, depth: int) -> OutOfScope | None:
        if not self._is_inside(url):
            return self._elsewhere(url)
        if self.max_depth is not None and depth > self.max_depth:
            return OutOfScope.TOO_DEEP
        for found in self._skip:
            if found(url):
                return OutOfScope.SKIPPED
        if wanted := self._match:
            for found in wanted:  # any() costs more than the patterns
                if found(url):
                    break
            else:
                return OutOfScope.NOT_MATCHED
        if self.files != "all":
            if ending_of(url) in self._no_pages:
                return OutOfScope.FILE_TYPE
            if url.endswith(_ROBOTS) and url.count("/") == 3:
                return OutOfScope.ROBOTS_FILE
        return None

    def _is_inside(self, url: str) -> bool:
        """Return whether the location of a URL is in the crawl."""
        if self.kind == "any":
            return True
        if self.kind in _PLACES:
            place = _PLACES[self.kind](url)
            if hash(place) in self._inside or (self.kind == "prefix" and self._is_in_folder(place)):
                return True
        return bool(self._domains) and not self._domains.isdisjoint(map(hash, _domains_of(host_of(url))))

    def _elsewhere(self, url: str) -> OutOfScope:
        """Return why the location of a URL is not in the crawl: the reason tells which option would include it."""
        if self.kind == "domains":
            return OutOfScope.OTHER_DOMAIN
        host = host_of(url)
        if self.kind == "prefix" and hash(host) in self._inside:
            return OutOfScope.OUTSIDE_PREFIX
        return OutOfScope.OTHER_HOST if hash(site_of(host)) in self._sites else OutOfScope.OTHER_SITE

    def _is_in_folder(self, place: str) -> bool:
        """Return whether a folder is under one of the seeds'."""
        end = place.find("/")
        if hash(place[:end]) not in self._inside:
            return False
        for _ in range(_FOLDERS):
            if hash(place[: end + 1]) in self._inside:
                return True
            end = place.find("/", end + 1)
            if end < 0:
                break
        return False

    # Values derived from the fields

    @cached_property
    def _inside(self) -> set[int]:
        """Hashes of the seeds' locations, also of those read later: there may be a million.

        For the kind `prefix`, also those of their hosts; no folder equals one, because it ends with a slash.
        """
        hosts = (place.partition("/")[0] for place in self.places)
        return {hash(place) for place in (*self.places, *(hosts if self.kind == "prefix" else ()))}

    @cached_property
    def _sites(self) -> set[int]:
        """Hashes of the sites of the seeds, if `kind` is narrower than a site; else empty."""
        return {hash(site_of(place.partition("/")[0])) for place in self.places if self.kind != "site"}

    @cached_property
    def _domains(self) -> set[int]:
        return {hash(domain) for domain in self.domains}

    @cached_property
    def _always(self) -> set[str]:
        return set(self.always)

    @cached_property
    def _match(self) -> tuple[Callable[[str], object], ...]:
        return _searches("match", self.match)

    @cached_property
    def _skip(self) -> tuple[Callable[[str], object], ...]:
        return _searches("skip", self.skip)

    @cached_property
    def _no_pages(self) -> frozenset[str]:
        return NO_PAGES if isinstance(self.files, str) else NO_PAGES - set(self.files)

    # Changes

    def admit(self, url: str) -> bool:
        """Add the location of one more seed to the crawl; return whether it is a new one.

        The value does not change or store it.
        """
        if self.kind not in _PLACES or (place := hash(_PLACES[self.kind](url))) in self._inside:
            return False
        self._inside.add(place)
        if self.kind == "prefix":
            self._inside.add(hash(host_of(url)))
        if self.kind != "site":
            self._sites.add(hash(site_of(host_of(url))))
        return True

    def widen(self, url: str) -> bool:
        """Add `url` like a seed, as for the target of a seed's redirect; return whether that was needed.

        So a crawl of `example.org` that redirects to `www.example.org` covers that host too. The page itself is fetched
        even if the patterns exclude it. On a host that the crawl covers by prefix, only that one page is added: a
        redirect to `/login` must not admit the whole site. The value does not change: the caller stores the URL,
        because a list of seeds can have any number of redirects.
        """
        if self.refuses(url, 0) is None:
            return False
        host = host_of(url)
        if self.kind == "domains":
            self._domains.add(hash(host))
        elif self.kind != "prefix" or hash(host) not in self._inside:
            self.admit(url)
        if self.refuses(url, 0) is not None:
            self._always.add(url)
        return True

    # Storage

    def as_plain(self) -> dict[str, Any]:
        """Return the scope as plain values that a job's notes can store."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Scope:
        """Return the scope of plain values from `as_plain`. Raise PolicyError for others."""
        try:
            return msgspec.convert(dict(plain), cls)
        except (TypeError, ValueError, msgspec.ValidationError) as error:  # the last is no ValueError in 0.19
            raise PolicyError(f"this is not the scope of a crawl: {error}. Start over with a fresh one.") from error

    def changes(self, old: Mapping[str, Any]) -> list[str]:
        """Return the differences from the scope of an earlier run, kept by `as_plain`.

        Each is a sentence without a full stop.
        """
        try:
            was = Scope.from_plain(old)
        except PolicyError:
            return [f"that of the earlier run cannot be read, and now it is {self.describe()}"]
        told = []
        if self.kind != was.kind:
            told.append(f"the crawl now covers {self._where()}, and before it was {was._where()}")
        else:
            told += _difference(_PLURALS[self.kind], was.places, self.places)
        told += _difference("domains", was.domains, self.domains)
        told += _difference("patterns to match", was.match, self.match)
        told += _difference("patterns to skip", was.skip, self.skip)
        if self.max_depth != was.max_depth:
            told.append(f"max_depth is now {_limit(self.max_depth)}, and before it was {_limit(was.max_depth)}")
        if self.files != was.files:
            told.append(f"it now takes {self._what()}, and before it took {was._what()}")
        return told

    # Descriptions

    def describe(self) -> str:
        """Return a description of the scope in one line."""
        parts = [self._where()]
        if self.max_depth is not None:
            parts.append(f"at most {self.max_depth} link{'' if self.max_depth == 1 else 's'} deep")
        if self.match:
            parts.append(f"only what matches {_list(self.match, 'or')}")
        if self.skip:
            parts.append(f"nothing that matches {_list(self.skip, 'or')}")
        return ", ".join([*parts, self._what()])

    def _where(self) -> str:
        if self.kind == "any":
            return "any host"
        parts = []
        if self.places:
            parts.append(f"the {_PLURALS[self.kind] if len(self.places) > 1 else self.kind} {_list(self.places)}")
        if self.domains:
            parts.append(f"the domain{'s' if len(self.domains) > 1 else ''} {_list(self.domains)}")
        return " and ".join(parts)

    def _what(self) -> str:
        match self.files:
            case "pages":
                return "pages only"
            case "all":
                return "files of every type"
            case endings:
                return f"pages and {_list(endings)}"

    def explain(self, reason: str, url: str) -> str:
        """Return which URL is not fetched, why, and advice.

        `reason` comes from `refuses` or `Traps.filters`.
        """
        skipped = next((text for text in self.skip if re.search(text, url)), "a pattern")
        match, ending = _list(self.match) if self.match else "", ending_of(url)
        return out_of_scope(
            OutOfScope(reason), url,
            host=host_of(url), covers=self._where(), max_depth=self.max_depth, match=match, skip=skipped, ending=ending,
        )  # fmt: skip


_PLURALS = {"host": "hosts", "site": "sites", "prefix": "prefixes", "domains": "domains", "any": "hosts"}


def _folder_of(url: str) -> str:
    """Return the folder of a canonical URL, with its host and without its scheme."""
    folder, slash, _ = url.partition("?")[0].partition("://")[2].rpartition("/")
    return folder + slash


_PLACES: dict[str, Callable[[str], str]] = {
    "host": host_of,
    "site": lambda url: site_of(host_of(url)),
    "prefix": _folder_of,
}
"""Functions that return the location of a seed, by the kind of scope; the other kinds have none."""


def _domains_of(host: str) -> Iterator[str]:
    """Yield a host and every domain above it, with its port and without."""
    name, port = name_and_port(host)
    while name:
        yield name
        yield name + port
        name = name.partition(".")[2]


def _several(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _seed(text: str) -> str:
    url = parse_url(text)
    if isinstance(url, Url):
        return url.text
    raise PolicyError(f"the seed {given(url)!r} is not a URL: {url.why}. Give an http or https URL.")


def _searches(name: str, texts: Sequence[str]) -> tuple[Callable[[str], object], ...]:
    searches = []
    for place, text in enumerate(texts):
        try:
            searches.append(re.compile(text).search)
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise PolicyError(
                f"{name}[{place}] = {text!r:.200} is not a regular expression: {error}. Correct it; a backslash before "
                "a special character makes it a plain one."
            ) from error
    return tuple(searches)


def _list(items: Sequence[str], word: str = "and") -> str:
    """Return the first items as an English list."""
    shown = list(items[:_SHOWN])
    if len(items) > _SHOWN:
        shown.append(f"{len(items) - _SHOWN:,} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"


def _limit(max_depth: int | None) -> str:
    return "unlimited" if max_depth is None else str(max_depth)


def _difference(name: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    before, now, told = set(old), set(new), []
    if added := [each for each in new if each not in before]:
        told.append(f"new among the {name}: {_list(added)}")
    if gone := [each for each in old if each not in now]:
        told.append(f"no longer among the {name}: {_list(gone)}")
    return told


def ending_of(url: str) -> str:
    """Return the ending of a canonical URL's path, with its dot, in lower case; empty if it has none."""
    end = url.find("?")
    if end < 0:
        end = len(url)
    slash = url.rfind("/", 0, end)
    dot = url.rfind(".", slash, end)
    # /wiki/File:Picture.jpg is the page about a picture.
    return "" if dot < 0 or url.find(":", slash, dot) > 0 else url[dot:end].lower()


def _file_types(given: Sequence[str]) -> Files:
    """Parse `pages`, `all` or endings (`.pdf`, `pdf`, `*.PDF`). Raise PolicyError for others."""
    match list(given):
        case [] | ["pages"]:
            return "pages"
        case ["all"]:
            return "all"
    endings = sorted({"." + str(each).strip().lower().lstrip("*").lstrip(".") for each in given})
    for ending in endings:
        if not _ENDING.fullmatch(ending):
            raise PolicyError(f'files: {ending!r} is no ending. Give one such as ".pdf", or "pages" or "all".')
    return tuple(endings)
