"""JSON views of the board. Instants are epoch seconds, durations seconds; see `docs/reference/dashboard.md`."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from curtsy.core.masking import mask_url
from curtsy.core.messages import because
from curtsy.core.policy import OVERRIDABLE
from curtsy.core.robots import parse, product_token
from curtsy.core.rules import Rules, filters
from curtsy.core.statistics import Counts, Distribution
from curtsy.core.time import SECOND, span
from curtsy.core.url import Url, parse_url
from curtsy.engine.alerts import budget_used
from curtsy.engine.crawl_view import WORKER_STATES, CrawlView
from curtsy.engine.host_view import changed, view_of
from curtsy.observe.dashboard.board import STATES, Board, Row, row_of
from curtsy.observe.policy_view import origin as where
from curtsy.observe.policy_view import values_of
from curtsy.settings import Settings
from curtsy.stores import Store

MOST_ROWS = 200
"""Maximum number of table rows per response."""

MOST_CRAWLS, MOST_WORKERS = 50, 20
"""Maximum number of crawls per response, and of workers of each."""

_HIDDEN = ("format", "worker", "job_pages")
"""Fields of a crawl record that say nothing about the sum of all workers."""

QUIET = 120.0
"""Seconds without an update after which a process is not listed."""

MOST_LINES = 2000
"""Maximum number of robots.txt lines per response."""

_RANK = {state: rank for rank, state in enumerate(STATES)}
_CALM = _RANK["waiting"]

SORTS: dict[str, Callable[[Row], Any]] = {
    "host": lambda row: row.view.domain,
    # waiting, fetching and free change every second: they rank equal, so that rows keep their place.
    "state": lambda row: min(_RANK[row.state], _CALM),
    "next": lambda row: row.until if row.until is not None else 0.0 if row.state in ("free", "fetching") else 1e18,
    "budget": lambda row: budget_used(row.view),
    "requests": lambda row: row.view.requests,
    "pages": lambda row: row.view.pages,
    "latency": lambda row: row.view.latency or 0.0,
    "asked": lambda row: row.last_asked or 0.0,
}
"""Sort keys of the table; equal rows are sorted by name."""


class InvalidQuery(ValueError):
    """Invalid query parameter."""


@dataclass(frozen=True, slots=True)
class Query:
    """Selection and order of the table's rows."""

    sort: str = "state"
    descending: bool = False
    search: str = ""
    state: str = ""
    """Only hosts in this state; empty for all."""

    offset: int = 0
    limit: int = 50

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse a URL's query; an empty parameter counts as absent. Raises InvalidQuery."""
        return cls(
            sort=_one_of(given, "sort", SORTS) or "state",
            descending=_one_of(given, "order", ("asc", "desc")) == "desc",
            search=given.get("search", "").strip().lower()[:200],
            state=_one_of(given, "state", STATES),
            offset=_whole(given, "offset", 0, 10**9),
            limit=_whole(given, "limit", 50, MOST_ROWS),
        )


def _one_of(given: Mapping[str, str], name: str, known: Iterable[str]) -> str:
    text = given.get(name, "")
    if text and text not in known:
        raise InvalidQuery(f"{name} = {text[:100]!r} must be one of {', '.join(known)}.")
    return text


def _whole(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, "")
    if text and re.fullmatch("[0-9]{1,18}", text) is None:
        raise InvalidQuery(f"{name} = {text[:100]!r} must be a whole number, of at most 18 digits.")
    return min(int(text), most) if text else default


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a query, with the number of all matching rows."""

    rows: list[Row]
    matching: int
    offset: int


def page_of(board: Board, query: Query) -> Page:
    """Search, sort and cut the rows. Only the rows up to the end of the page are sorted; equal ones stay by name.

    It may read the store, because a search also finds hosts that are not on the board.
    """
    board.find(query.search)
    rows = [row for domain, row in board.rows.items() if query.search in domain and query.state in ("", row.state)]
    offset = min(query.offset, max(0, (len(rows) - 1) // max(1, query.limit) * query.limit))
    pick = heapq.nlargest if query.descending else heapq.nsmallest
    return Page(pick(offset + query.limit, rows, key=SORTS[query.sort])[offset:], len(rows), offset)


def overview_of(board: Board) -> dict[str, Any]:
    """Return the overview without the table and the samples."""
    return {
        "history": board.statistics.history.as_dict(),
        "trouble": board.trouble,
        "figures": figures_of(board),
        "alerts": board.alerts,
        "crawls": [_crawl(each) for each in board.crawls[:MOST_CRAWLS]],
    }


def _crawl(crawl: CrawlView) -> dict[str, Any]:
    """Return a crawl with its sums and its first workers."""
    whole = crawl.whole
    fields = {name: value for name, value in msgspec.structs.asdict(whole).items() if name not in _HIDDEN}
    return fields | {
        "seeds": [mask_url(seed) for seed in whole.seeds],
        "workers": crawl.workers[:MOST_WORKERS],
        "states": {state: count for state in WORKER_STATES if (count := crawl.count(state))},
    }


COUNTED = ("fetches", "ok", "bytes", "cache_hits", "revalidated", "retries", "delayed", "refused", "failed")
"""Counts that are shown of all hosts together and of each host."""


def figures_of(board: Board) -> dict[str, Any]:
    """Return the totals over all hosts."""
    return {
        **board.totals,
        "processes": [
            {name: getattr(process, name) for name in ("process", "program", "started_at", "at")}
            for process in board.processes
            if board.at - process.at < QUIET
        ],
        "since": board.statistics.started_at,
        **_counts(board.statistics, *COUNTED),
    }


def _counts(source: Counts, *names: str) -> dict[str, Any]:
    found = {name: getattr(source, name) for name in names}
    return found | {"waits": _quantiles(source.waits), "latency": _quantiles(source.latency)}


def _quantiles(found: Distribution) -> dict[str, float] | None:
    """Return median and 95th percentile of a distribution; None if it is empty."""
    return {"median": found.quantile(0.5), "p95": found.quantile(0.95)} if found.count else None


def fetches_of(board: Board, domain: str) -> dict[str, Any]:
    """Return one host's last fetches, the latest first, and its counts and history over all processes."""
    found = board.statistics.hosts.get(domain)
    if found is None:
        return {"fetches": [], "counts": None, "history": None}
    fetches = [msgspec.structs.asdict(fetch) for fetch in reversed(found.last)]
    return {
        "fetches": fetches,
        "counts": _counts(found, *COUNTED, "requests", "pages"),
        "history": found.history.as_dict(),
    }


def host_of(store: Store, settings: Settings, domain: str) -> dict[str, Any]:
    """Return the state of one host, even if it was never requested. Raises StoreError."""
    policy = settings.policies.of(domain)
    host = store.read(policy.key_for(domain))
    now = store.now()
    second = now.epoch / SECOND
    view = view_of(domain, host, now, policy)
    effective = policy if host is None else changed(policy, host)
    return {
        "domain": domain,
        "at": second,
        "known": host is not None,
        "row": row_of(view, effective, second).fields(),
        "view": view,
        "waiting_for": None if view.waiting_for is None else because(view.waiting_for, effective, host),
        "shared_as": policy.key,
        "overridable": list(OVERRIDABLE),
    }


def policy_of(settings: Settings, domain: str) -> list[dict[str, Any]]:
    """Return a host's policy: each value and its origin."""
    _, values = values_of(settings, domain)
    return [{"name": name, "value": value, "origin": where(settings, domain, name)} for name, value in values.items()]


def robots_of(store: Store, settings: Settings, domain: str, urls: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the stored robots.txt of a host, for https and http. Raises StoreError."""
    found = []
    for scheme in ("https", "http"):
        rules = store.read(f"rules:{scheme}://{domain}")
        if isinstance(rules, Rules) and rules.is_known:
            now = store.now().epoch / SECOND
            of_scheme = [url for url in urls if url.startswith(f"{scheme}://")]
            found.append(_robots(f"{scheme}://{domain}", rules, settings, domain, of_scheme, now))
    return found


def _robots(origin: str, rules: Rules, settings: Settings, domain: str, urls: list[str], now: float) -> dict[str, Any]:
    agent, policy, body = settings.user_agent, settings.policies.of(domain), rules.text
    robots = parse(body)
    groups = robots.groups(agent)
    ours = {line for group in groups if group.applies for line in (group.line, *(line for line, _ in group.rules))}
    decided: dict[int, list[str]] = {}
    for url in urls:
        verdict = filters(rules, policy, agent, url)
        if verdict.line is not None:
            target = parse_url(url)
            decided.setdefault(verdict.line, []).append(target.target if isinstance(target, Url) else url)
    lines = _lines(body)
    return {
        "origin": origin,
        "agent": product_token(agent) or agent,
        "size": len(body),
        "asked_at": rules.checked_at,
        "valid_until": rules.valid_until,
        "failure": rules.why or None,
        "note": _note(rules, now),
        "lines": [
            {"line": number, "text": text[:1000], "ours": number in ours, "decided": decided.get(number, [])[:5]}
            for number, text in enumerate(lines[:MOST_LINES], 1)
        ],
        "left_out": max(0, len(lines) - MOST_LINES),
        "crawl_delay": robots.crawl_delay(agent),
        "sitemaps": list(robots.sitemaps[:50]),
    }


def _note(rules: Rules, now: float) -> str:
    ago = span(max(0.0, now - rules.checked_at))
    if rules.body is None:
        return f"It cannot be fetched ({rules.why}), last attempt {ago} ago."
    if rules.why:
        copy = span(max(0.0, now - rules.body_at))
        return f"A copy from {copy} ago; the request {ago} ago failed: {rules.why}."
    if not rules.body:
        return f"The site has none, so everything is allowed. Requested {ago} ago."
    left = rules.valid_until - now
    good = f"valid for {span(left)}" if left > 0 else "requested again before the next page"
    return f"Requested {ago} ago, {good}."


_EOL = re.compile(r"\r\n|\r|\n")


def _lines(body: bytes) -> list[str]:
    """Split a file into lines as `core/robots.py` counts them, comments included."""
    if not body:
        return []
    wide = body[:2] in (b"\xff\xfe", b"\xfe\xff")
    return _EOL.split(body.decode("utf-16" if wide else "utf-8-sig", "replace"))
