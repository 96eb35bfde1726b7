"""Fields of each command's `--json` output; the reference page and the tests read them.

They are part of the public interface: fields may be added, but not renamed or removed. Durations are seconds.
"""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """JSON output of a command."""

    form: str
    """Number and layout of the objects."""

    fields: dict[str, str]


ONE, LIST, LINES = "one object", "a list of objects", "one object a line, in the order of the URLs"

_BUDGET = {
    "requests_today": "requests that were charged to its budget today, by processes that have a limit",
    "max_requests_per_day": "0 for unlimited",
    "pages_today": "pages that were charged to it likewise",
    "max_pages_per_day": "0 for unlimited",
    "budget_resets_in": "time until the day changes",
}

_HOST = {
    "domain": "the host, with its port if that is not the usual one",
    "next_in": "time until the next page can be asked for; null if nobody knows",
    "waiting_for": "what that wait is for (`pause`, `rate`, `circuit_open` …); null for nothing",
    **_BUDGET,
    "breaker": "`closed`, `open` or `half_open`",
    "breaker_left": "how long it stays open; null if it is not",
    "failures": "failures in a row",
    "trips": "how often the breaker has opened",
    "paused": "whether it is paused by hand",
    "paused_left": "for how long; null until it is resumed, or if it is not paused",
    "in_flight": "requests under way",
    "last_asked_ago": "time since the last request; null before the first",
    "last_status": "the last status seen; null for none",
    "requests": "requests that were ever sent",
    "pages": "pages that were ever received",
    "crawl_delay": "what its robots.txt asks for; null for nothing",
    "adapted_delay": "what its pace was slowed to; null if it was not",
    "latency": "its response time, smoothed; null before the first",
    "changed_limits": "limits that were changed by hand, by name",
}

_PAGE = {
    "url": "the URL, values that look secret masked",
    "variant": "a hash of the request headers that select this copy; empty if there were none",
    "status": "the status that it came with",
    "body_size": "bytes of its body",
    "fetched_at": "when it came, or was last confirmed (epoch seconds)",
    "lifetime": "the age up to which it is used without asking",
    "etag": "its validator, or null",
    "last_modified": "its other validator, or null",
    "body_sha256": "of its body as it is kept, which in a packed cache is mostly compressed",
}

_SUMMARY = {
    "total": "URLs that were dealt with, over all runs of the job, as all that follow",
    "fetched": "pages that came from their sites",
    "cached": "pages whose kept copy still held",
    "skipped": "URLs that we chose not to ask for, or not to keep",
    "failed": "URLs that were asked for in vain",
    "redirected": "URLs that led to another",
    "sitemaps": "sitemaps that were read",
    "bytes": "bytes of bodies that came over the network",
    "seconds": "time spent crawling",
    "queued": "URLs that are left; null if nobody knows",
    "skipped_by_reason": "how many, by reason (`robots_disallowed` …)",
    "failed_by_reason": "how many, by reason (`http_status 404` …)",
    "left_out_by_reason": "links that are no part of the crawl, by reason (`other_site`, `too_deep` …)",
    "examples": "for each of these reasons one URL: `url` and `message`",
}

_ENDED = {
    "ended": "`done`, `max_pages`, `max_time`, `max_bytes`, `later`, `not_written` or `stopped`",
    "resume_in": "time after which going on makes sense; null if at once, if nothing is left, or if that is paused",
    "message": "how it ended, in a sentence",
    "job": "its name; null if it has none",
    "outputs": "where the pages are, by kind: `folder`, `jsonl`, `warc`, `csv`",
    "written": "how many entries each output holds, over all runs",
    "missing": "how many entries were written to an output and are not there, because it was cut or removed meanwhile",
    "resume": "the command line that goes on with it; null if nothing is left, or not kept",
}

_JOB = {
    "name": "the job",
    "state": "`running`, `unfinished`, `done` or `damaged`",
    "ended": "how its last run ended, as `crawl --json` says it; null if it runs or was killed",
    "is_shared": "whether it is in a shared store, where many machines work on it",
    "workers": "how many are at work on it",
    "pages": "pages so far; null if nobody knows",
    "queued": "URLs that are left; null if nobody knows",
    "failed": "URLs that were asked for in vain; null if nobody knows",
    "skipped": "URLs that we chose not to ask for, or not to keep; null if nobody knows",
    "hosts": "hosts that were met; null if nobody knows",
    "changed_at": "when something last changed (epoch seconds); null if nobody knows",
    "folder": "where it is kept; null if it is shared",
}

SHAPES: dict[str, Shape] = {
    "get": Shape(
        LINES,
        {
            "ok": "whether the page came",
            "message": "what was not done, why, and what to do; empty if all is well",
            "url": "as it was asked for, canonical",
            "final_url": "after redirects",
            "domain": "of the final URL",
            "method": "`GET` or `HEAD`",
            "status": "the last status; null if no answer came",
            "reason": "why not, as one word (`robots_disallowed` …); null if ok",
            "attempts": "requests that were sent for it, redirects and retries included, robots.txt not",
            "retries": "retries among them",
            "waited": "time in line",
            "took": "time altogether",
            "bytes": "bytes of bodies that came over the network",
            "cache": "`hit`, `revalidated` or `stale`; null if the answer is the site's own",
            "robots_line": "the line of robots.txt that decided; null if none did",
            "requests_left": "of the host's day; null for unlimited, or if nothing was sent",
            "pages_left": "of the host's day; null for unlimited, or if nothing was sent",
            "retry_after": "time until asking again makes sense; null if it never does, or nobody knows",
            "at": "when it ended (epoch seconds)",
            "latency": "of the last request, to the end of its answer; null if nothing was written",
            "robots_requests": "requests that were sent for robots.txt on its behalf",
            "elsewhere": "of all these, what went to hosts that redirected it to another one",
        },
    ),
    "crawl": Shape(ONE, {**_SUMMARY, **_ENDED}),
    "crawl --dry-run": Shape(
        ONE,
        {
            "scope": "which URLs belong to the crawl, in words",
            "plan": "`pages` at most, `gap` between two requests to a host, `seconds`, `allowed_today`, `message`",
            "seeds": "each URL that was given, as `curtsy why --json` tells of it",
            "sitemaps": "with `--sitemap`: `url`, `urls`, `in_scope`, `left_out` by reason, `trouble`",
            "job": "`name`, `running`, `pages`, `counts`; null if there is none of that name",
        },
    ),
    "download": Shape(
        ONE,
        {
            "ok": "whether the file is there, whole",
            "url": "after redirects",
            "path": "the file",
            "size": "its bytes",
            "sha256": "of the whole file; null if it is not there",
            "resumed_at": "bytes that an earlier try had left",
            "status": "the last status; null if no answer came",
            "reason": "why not, as one word; null if ok",
            "message": "what was not done, why, and what to do; empty if all is well",
            "retry_after": "time until asking again makes sense; null if it never does, or nobody knows",
        },
    ),
    "why": Shape(
        ONE,
        {
            "url": "the URL, canonical",
            "domain": "its host, with its port if that is not the usual one",
            "user_agent": "who asks",
            "verdict": "`allowed`, `cached`, `refused` or `unknown` (robots.txt is not known yet, or no answer came)",
            "reason": "why not, as one word (`robots_disallowed`, `circuit_open` …); null if nothing stands in the way",
            "message": "the verdict in a sentence",
            "allowed_in": "time until it would be fetched at the earliest; null if never, or not known",
            "checks": "what decides, in the order of a fetch: `name`, `state` (`yes`, `no`, `wait`, `unknown`, `off`), "
            "`says`, `origin` (file and line), `after` (how long it stands in the way), and figures of its own",
        },
    ),
    "robots": Shape(
        ONE,
        {
            "source": "the URL or file",
            "note": "since when it is known, or why not",
            "instead": "what holds while it cannot be had, and for how long; null if it can",
            "found": "whether there is a file that says anything",
            "agent": "the product token that it was read for",
            "crawl_delay": "for that agent; null for nothing",
            "groups": "`line`, `agents`, `applies` (whether it is for that agent), `rules` (`line` and `text`)",
            "sitemaps": "their URLs",
            "signals": "Content-Signal and Content-Usage: `line`, `field`, `value`",
            "oddities": "`line` and `message`",
            "tests": "for each `--test`: `path`, `allowed`, `line`, `rule`, `reason`",
        },
    ),
    "status": Shape(LIST, {**_HOST, "alerts": "what is alarming about it: `breaker_open`, `budget_nearly_used`"}),
    "budget": Shape(
        LIST,
        {
            "domain": _HOST["domain"],
            **_BUDGET,
            "origin": "where max_requests_per_day comes from: file and line, or `by hand`",
            "pages_origin": "where max_pages_per_day comes from, likewise",
        },
    ),
    "breaker ls": Shape(
        LIST, {name: _HOST[name] for name in ("domain", "breaker", "breaker_left", "failures", "trips", "last_status")}
    ),
    "breaker reset": Shape(LIST, _HOST),
    "breaker trip": Shape(LIST, _HOST),
    "pause": Shape(LIST, _HOST),
    "resume": Shape(LIST, _HOST),
    "forget": Shape(ONE, {"forgotten": "the hosts that are forgotten"}),
    "top": Shape(
        ONE,
        {
            "crawls": "those that run, or did in the last hour: `job`, `process`, `state`, `pages`, `cached`, "
            "`failed`, `skipped`, `queued`, `in_flight`, `bytes`, `rate`, `seconds_left`, `waiting_for`, `seeds`, "
            "`hosts`, `started_at`, `updated_at`, `ended`, `is_job`, `pages_before`. Counts are of all runs of the "
            "job; `pages_before` is how many of the pages (`pages` and `cached`) earlier runs have brought, null in "
            "the first; `hosts` have what this run did",
            "hosts": "as `curtsy status --json` has them, the last asked first",
        },
    ),
    "jobs ls": Shape(LIST, _JOB),
    "jobs show": Shape(
        ONE,
        {
            **_JOB,
            "seeds": "where it began",
            "scope": "which URLs belong to it, in words; null if nobody knows",
            **{name: meaning for name, meaning in _SUMMARY.items() if name not in _JOB},
            "resume": "the command line that goes on with it; null if nobody knows",
            "crew": "who is at work on it, or was and did not take leave: `worker` (its name in a shared job), "
            "`process` (null if nobody knows), `heard_ago`, `pages` (over all its runs)",
            "busiest": "while it runs, the hosts with the most pages: `host`, `pages`, `errors`, of this run",
        },
    ),
    "jobs rm": Shape(ONE, {"removed": "the jobs that are gone"}),
    "cache ls": Shape(LIST, _PAGE),
    "cache show": Shape(ONE, {**_PAGE, "headers": "pairs of name and value"}),
    "cache verify": Shape(ONE, {"good": "pages that are in order", "damaged": "pages that were not, and were dropped"}),
    "cache gc": Shape(ONE, {"freed": "bytes given back", "size": "bytes kept"}),
    "cache clear": Shape(ONE, {"dropped": "pages that are gone", "left": "pages that could not be removed"}),
    "config show": Shape(ONE, {"(each setting)": "`value`, and `origin`: a file and its line, a variable, a preset …"}),
    "config check": Shape(ONE, {"ok": "true", "files": "those that were read", "warnings": "what is allowed, but odd"}),
    "doctor": Shape(
        ONE,
        {
            "ok": "whether nothing is amiss",
            "findings": "`name`, `state` (`yes`, `wait`: look at it, `no`: does not work, `off`: not needed), `says`, "
            "`advice`",
        },
    ),
}
"""JSON output by command."""
