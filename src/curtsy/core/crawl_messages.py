"""Messages for users about a crawl: skipped URLs, jobs, workers and ends, with reason and remedy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from curtsy.core.errors import Reason
from curtsy.core.masking import mask_url
from curtsy.core.time import span


def noindex(url: str) -> str:
    """Describe a page that says noindex."""
    return f"{mask_url(url)} says noindex, so it is not kept. Use obey_noindex=False (--keep-noindex) to keep it."


def not_canonical(url: str, canonical: str) -> str:
    """Describe a page that is replaced by its canonical URL."""
    named = f"its canonical URL is {mask_url(canonical)}"
    return f"not keeping {mask_url(url)}: {named}. Use obey_canonical=False (--keep-copies) to keep it."


def duplicate(url: str, first: str) -> str:
    """Describe a page with the body of an earlier one."""
    return f"not keeping {mask_url(url)}: it equals {mask_url(first)}. Use drop_duplicates=False to keep both."


def no_sitemap(url: str) -> str:
    """Describe a page to which a sitemap URL redirects."""
    return f"not keeping {mask_url(url)}: a sitemap URL redirects to this page. Tell the site's owner, or ignore it."


def bad_redirect(url: str, why: str | None) -> str:
    """Describe a redirect without a valid target. `why` is None if the target is missing."""
    where = "it redirects without a target" if why is None else f"it redirects to an invalid URL: {why}"
    return f"{mask_url(url)} could not be fetched: {where}. Tell the site's owner, or leave it out."


def redirected_in_circle(url: str) -> str:
    """Describe a URL that redirects in a circle."""
    advice = "If the site requires cookies, keep them (cookies=True); else leave it out."
    return f"{mask_url(url)} could not be fetched: it redirects in a circle. {advice}"


def redirected_too_often(url: str, most: int) -> str:
    """Describe a URL with more than `most` redirects."""
    advice = "Raise max_redirects to follow more, or leave it out."
    return f"{mask_url(url)} could not be fetched: it was redirected more than {most} times. {advice}"


def redirected_outside(url: str, target: str) -> str:
    """Describe a redirect out of the scope."""
    led = f"it redirects to {mask_url(target)}, which is outside the scope"
    return f"not keeping {mask_url(url)}: {led}. Widen the scope to fetch it."


def too_many_links(url: str, count: int, most: int) -> str:
    """Describe a page with `count` or more dropped links."""
    return (
        f"{mask_url(url)}: {count:,} or more links were dropped, because the page has more than {most:,} or takes "
        "too long to parse. Raise max_links_per_page to use more."
    )


_TRAPS = "Use avoid_traps=False (--traps) to fetch it."
_OUT_OF_SCOPE = {
    "other_host": (
        "it is on {host}, and the crawl covers {covers}",
        'Use the scope "site" (--scope site), or name the host in domains (--domain), to fetch it too.',
    ),
    "other_site": ("it is on {host}, and the crawl covers {covers}", "Name it in domains (--domain) to fetch it too."),
    "other_domain": ("it is on {host}, and the crawl covers {covers}", "Add it to domains (--domain) to fetch it too."),
    "outside_prefix": (
        "it is outside {covers}",
        'Add a seed that is further up, or use the scope "host" (--scope host).',
    ),
    "too_deep": (
        "it is more than {max_depth} links away from the seeds",
        "Raise max_depth (--max-depth) to fetch it too.",
    ),
    "not_matched": ("it matches none of {match}", "Add a pattern to match (--match) to fetch it too."),
    "skipped": ("it matches {skip}, which is to be skipped", "Narrow that pattern (--skip) to fetch it."),
    "file_type": (
        "its ending, {ending}, is not that of a page",
        'Use files=["{ending}"] or "all" (--files) to fetch it too.',
    ),
    "robots_file": ("it has the rules of its host, and is not a page", 'Use files="all" (--files) to fetch it too.'),
    "trap": ("it looks like a trap that has no end", _TRAPS),
    "too_long": ("its {length:,} characters look like a trap", _TRAPS),
    "sort_order": ("it is its page in another order", _TRAPS),
    "filter": ("it is a page with a combination of filters, one of very many", _TRAPS),
    "print_view": ("it is the print view of a page", _TRAPS),
    "page_tool": ("it is a form or a tool of a page, without content of its own", _TRAPS),
    "old_version": ("it is an old version of a page, or a comparison of versions", _TRAPS),
    "calendar": ("it is a date of a calendar that has no end", _TRAPS),
}


def out_of_scope(reason: str, url: str, **facts: object) -> str:
    """Describe a URL outside the scope of a crawl. `facts`: host, covers, max_depth, match, skip and ending."""
    why, advice = (text.format(length=len(url), **facts) for text in _OUT_OF_SCOPE[reason])
    return f"not fetching {mask_url(url)}: {why}. {advice}"


def host_limit(url: str, most: int | None) -> str:
    """Describe a URL whose host has reached its page limit."""
    return f"not fetching {mask_url(url)}: its host has reached max_pages_per_host, {most}. Raise it to fetch more."


def reader_crashed(url: str) -> str:
    """Describe a URL on which the process crashed repeatedly."""
    return f"{mask_url(url)} could not be parsed: the process crashed each time. Report it, or leave it out."


def other_job(job: str, began: Sequence[str], seed: str) -> str:
    """Describe a seed that does not belong to a job, which began at the URLs `began`."""
    first, more = mask_url(began[0]), f" and {len(began) - 1:,} more" if len(began) > 1 else ""
    return (
        f"{f'the job {job}' if job else 'this job'} began at {first}{more}, and {mask_url(seed)} is not part of it: "
        f"the pages of two crawls would be mixed. Choose another name for this one; or name {first} too, if both are "
        "meant to be one; or restart the job (--restart, restart=True)."
    )


def unreadable_totals(note: str, error: object) -> str:
    """Describe a job whose totals cannot be read. `note` is the name of the damaged note."""
    return (
        f"the totals of this job cannot be read ({note}: {error}). They were written by another version of curtsy, or "
        "are damaged. Resume the job with the version that wrote it, or restart it (--restart, restart=True)."
    )


def no_job(folder: object, server: str = "") -> str:
    """Describe a folder without a job. `server` is the URL of a store that does not have it either."""
    nor = f", and {mask_url(server)} has none of this name" if server else ""
    return f"there is no job in {folder}{nor}. `curtsy jobs ls` lists all jobs."


def unknown_format(job: str, server: str, format: int, oldest: int, latest: int) -> str:
    """Return the message for a shared job whose format this version cannot read."""
    if format > latest:
        return (
            f"the job {job!r} on {server} has format {format}, and this curtsy knows formats up to {latest}: a later "
            "version wrote it. Upgrade curtsy here."
        )
    return (
        f"the job {job!r} on {server} has format {format}, and this curtsy knows formats from {oldest} on: an earlier "
        "version wrote it. Finish it with that version, or restart it."
    )


def replicas_behind(server: str, replicas: int, seconds: float) -> str:
    """Return the message for writes that too few replicas have."""
    return (
        f"{server}: the last writes did not reach {replicas} replica{'s' * (replicas > 1)} in {span(seconds)}. Check "
        f"the replicas, or lower replicas={replicas} in the store's URL."
    )


def running_job(name: str) -> str:
    """Describe a job that cannot be removed or changed while it runs."""
    return f"the job {name} is running. Stop it first."


def job_in_use(label: str, name: str, owner: str, *, is_named: bool) -> str:
    """Describe a job that cannot start because it runs already. `owner` is the process that runs it, in words."""
    beside = "--no-job runs this command beside it, without a job." if not is_named else "Another --job runs beside it."
    return (
        f"{label} is already running, in {owner}. A job of this machine runs once at a time.\n"
        f"Wait until it ends: curtsy jobs show {shlex.quote(name)} shows its progress. {beside}"
    )


def present_workers(job: str, workers: Sequence[str]) -> str:
    """Describe workers whose pages cannot be queued again, because they are at work."""
    verb = "is" if len(workers) == 1 else "are"
    return (
        f"{', '.join(workers)} of the job {job} {verb} at work. Stop them first, or name the worker that is lost with "
        "--worker."
    )


def unknown_worker(job: str, worker: str, workers: Sequence[str]) -> str:
    """Describe a name that no worker of a shared job has."""
    return f"the job {job} has no worker {worker!r}. Its workers are {', '.join(workers) or 'none'}."


def waits(next_in: float | None, elsewhere: int = 0, lost: int = 0, lost_for: float = 0.0) -> str | None:
    """Describe what a crawl without a due URL waits for; None if that is nothing.

    `next_in` is the seconds until a host is due. In a shared crawl, `elsewhere` URLs are leased by other workers, and
    `lost` URLs by a worker that was killed, for `lost_for` seconds.
    """
    found = []
    if lost:
        found.append(f"{_urls(lost)} leased by a lost worker for {span(lost_for)}")
    if elsewhere:
        found.append(f"{_urls(elsewhere)} leased by other workers")
    if next_in is not None:
        found.append(f"next host in {span(next_in)}")
    return ", ".join(found) or None


def retries(waiting: Mapping[str, int]) -> str | None:
    """Describe URLs that wait for their retry, by the reason of the last reply; None without any."""
    if not (count := sum(waiting.values())):
        return None
    reasons = ", ".join(describe(reason).what for reason in sorted(waiting, key=lambda each: -waiting[each]))
    return f"{_urls(count)} {'waits for its retry' if count == 1 else 'wait for their retries'}: {reasons}"


def _urls(count: int) -> str:
    return f"{count:,} {'URL' if count == 1 else 'URLs'}"


class Description(NamedTuple):
    """Short text for all URLs with the same reason."""

    what: str
    advice: str
    """Empty if the user can do nothing."""


_LATER = "Try again later."

_DESCRIPTIONS: dict[str, Description] = {
    Reason.INVALID_URL: Description("invalid URL", "Correct the link."),
    Reason.DOMAIN_DENIED: Description("on the denylist", "Remove the host from the denylist to fetch it."),
    Reason.PATH_DENIED: Description("path denied by the settings", "Change deny_paths to fetch it."),
    Reason.ADDRESS_REFUSED: Description(
        "private or unreachable address", "Set allow_private (--allow-private) if it is a site of your own."
    ),
    Reason.ROBOTS_DISALLOWED: Description(
        "disallowed by robots.txt", "Ask the site's owner, or exclude it with --skip."
    ),
    Reason.ROBOTS_UNREACHABLE: Description("robots.txt cannot be fetched", _LATER),
    Reason.CRAWL_DELAY_TOO_LONG: Description("Crawl-delay too long", "Raise max_crawl_delay to wait that long."),
    Reason.DOMAIN_BUDGET_EXCEEDED: Description("daily limit reached", "Resume on the next day."),
    Reason.CIRCUIT_OPEN: Description("circuit breaker open", _LATER),
    Reason.PAUSED: Description("paused by a user", "curtsy resume HOST ends the pause."),
    Reason.STORE_UNREACHABLE: Description("store unreachable", _LATER),
    Reason.RECORD_TOO_NEW: Description("record of a later version", "Upgrade curtsy."),
    Reason.NOT_IN_CACHE: Description("not in the cache, which is offline", "Fetch it once online."),
    Reason.TIMEOUT: Description("no response in time", "Try again later, or raise timeout (--timeout)."),
    Reason.DNS_ERROR: Description("unknown host name", "Check the name."),
    Reason.CONNECTION_ERROR: Description("no connection", _LATER),
    Reason.TLS_ERROR: Description("no secure connection", "If its certificate is invalid, tell the site's owner."),
    Reason.BAD_RESPONSE: Description("invalid HTTP response", "Tell the site's owner."),
    Reason.INCOMPLETE: Description("incomplete response", _LATER),
    Reason.TOO_LARGE: Description("too large", "Raise max_body, or use curtsy download."),
    Reason.TOO_SLOW: Description("too slow", _LATER),
    Reason.NOT_RENDERED: Description("not rendered by the browser", "Fetch it without --render."),
    Reason.TOO_MANY_REDIRECTS: Description(
        "too many redirects", "If the site requires cookies, use --cookies; else raise max_redirects."
    ),
    Reason.BAD_REDIRECT: Description("invalid redirect", "Tell the site's owner."),
    "other_host": Description("on another host", "--scope site or --domain HOST includes it."),
    "other_site": Description("on another site", "--domain DOMAIN includes it."),
    "other_domain": Description("on another domain", "--domain DOMAIN includes it."),
    "outside_prefix": Description("outside the folder of the seeds", "--scope host includes it."),
    "too_deep": Description("beyond --max-depth", "Raise --max-depth to fetch it."),
    "not_matched": Description("not matched by --match", "Another --match includes it."),
    "skipped": Description("matched by --skip", ""),
    "file_type": Description("not a page, by its file type", "--files ENDING or --files all includes it."),
    "robots_file": Description("a robots.txt, not a page", "--files all includes it."),
    "trap": Description("looks like an endless trap", "--traps includes it."),
    "too_long": Description("URL as long as in a trap", "--traps includes it."),
    "sort_order": Description("page in another order", "--traps includes it."),
    "filter": Description("combination of filters", "--traps includes it."),
    "print_view": Description("print view of a page", "--traps includes it."),
    "page_tool": Description("form or tool of a page", "--traps includes it."),
    "old_version": Description("old version of a page", "--traps includes it."),
    "calendar": Description("date of an endless calendar", "--traps includes it."),
    "too_many_links": Description("on a page with too many links", "Raise --max-links-per-page to use more of them."),
    "noindex": Description("not kept because of noindex", "--keep-noindex keeps it."),
    "not_canonical": Description("has another canonical URL", "--keep-copies keeps it."),
    "duplicate": Description("same body as an earlier page", ""),
    "no_sitemap": Description("not a sitemap", ""),
    "host_limit": Description("beyond --max-pages-per-host", "Raise --max-pages-per-host to fetch it."),
    "reader_crashed": Description("crashed the process", "Please report it."),
    "error": Description("error in curtsy", "Please report it."),
}


def describe(reason: str) -> Description:
    """Return the description of a reason such as `timeout` or `http_status 404`; an unknown one describes itself."""
    name, _, status = reason.partition(" ")
    if name == Reason.HTTP_STATUS and status.isdecimal():
        return _describe_status(int(status))
    return _DESCRIPTIONS.get(reason) or Description(reason.replace("_", " "), "")


def _describe_status(status: int) -> Description:
    match status:
        case 404 | 410:
            return Description(f"not found ({status})", "Tell the site's owner about the broken link, or ignore it.")
        case 401 | 403:
            return Description(f"access denied ({status})", "Ask the site's owner for access.")
        case 429:
            return Description("too many requests (429)", "Resume later, with a slower pace.")
        case _ if status >= 500:
            return Description(f"server error ({status})", _LATER)
        case _:
            return Description(f"status {status}", "")


def not_extracted(url: str, why: str) -> str:
    """Describe a page whose fields could not be extracted, or not completely."""
    return f"the fields of {mask_url(url)} are not complete: {why}. The page is kept."


def not_extracted_in_run(count: int) -> str:
    """Describe how many pages of a crawl lack fields."""
    pages = "1 page" if count == 1 else f"{count:,} pages"
    return f"the fields of {pages} are not complete: extract_error in JSON lines says why."


def other_fields(job: str) -> str:
    """Describe a job that began with other fields."""
    return (
        f"the job {job} began with another extract, and its finished pages are not read again. Give the same, or start "
        "over with restart=True (--restart) and other outputs; pages that are still fresh come from the cache."
    )


def other_cache_mode(job: str, *, is_offline: bool) -> str:
    """Describe a job that is to run offline and began online, or the reverse. `is_offline`: it is to run offline."""
    if is_offline:
        return (
            f"the job {job} was begun online. A replay from the cache (cache_mode offline) would give up its queued "
            "URLs, because they are not cached. Choose another job for the replay, or give none."
        )
    return (
        f"the job {job} replays the cache (cache_mode offline), and has given up the URLs that were not cached. Choose "
        "another job for a crawl of the site, or start over with restart=True (--restart)."
    )


def column_missing(path: str, name: str) -> str:
    """Describe a field for which a table has no column."""
    return (
        f"{path} has no column for the field {name}: its columns are the fields of its first row. Return the same "
        "fields for each page, or use JSON lines."
    )


def other_scope(change: str) -> str:
    """Describe a job that resumes with another scope; `change` says what differs."""
    return (
        f"The crawl resumes with another scope: {change}. URLs skipped before stay skipped, until the job starts over "
        "(--restart, restart=True)."
    )


def other_shared_scope(job: str, options: Sequence[str], scope: str) -> str:
    """Describe a worker of a shared job whose scope `options` differ from those of the workers that run it."""
    return (
        f"other workers run the job {job} with another scope ({', '.join(options)}), and a URL that one worker skips "
        f"is skipped for all. The job covers {scope}. Start this worker with the same start URLs and options, stop the "
        "other workers first, or choose another job."
    )


def has_enough(pages: int) -> str:
    """Describe a job that has as many pages as its limit allows."""
    return f"the job has {count_pages(pages)} already: a higher --max-pages fetches more."


def output_not_named(path: str) -> str:
    """Describe an output of a job that a run does not name."""
    return f"the job wrote to {path} before, which is not named now: it will lack the new pages."


def output_lacks(path: str, earlier: int, entries: int) -> str:
    """Describe an output without the first `earlier` of a job's `entries`: runs without the output fetched them."""
    return (
        f"{path} lacks {earlier:,} of {entries:,} entries: the crawl had fetched them before this output was named. To "
        "get all, start over (--restart, restart=True)."
    )


STORE_IS_OUT = "The store of the limits does not answer: check it, then resume."
"""Addition to the end of a crawl that waited for its store when it ended."""


def seeds_without_page(reasons: Sequence[tuple[str, str]], seeds: int) -> str:
    """Describe start URLs without a page. `reasons` has each of them with its reason, `seeds` is the number of all."""
    (url, reason), count = reasons[0], len(reasons)
    whole = "" if seeds <= 1 else f" ({count:,} of {seeds:,} start URLs)"
    found = describe(reason)
    return f"no page from {mask_url(url)}{whole}: {found.what}. {found.advice}".rstrip()


def nothing_new(job: str, pages: int) -> str:
    """Describe a run of a finished job without a new page. `pages` is the number of pages of earlier runs."""
    return (
        f"no page was fetched: the job {job} is finished, and has {count_pages(pages)} of earlier runs. Restart it "
        "(restart=True, --restart) to fetch them again."
    )


def slots_of_killed_run(held: Mapping[str, float]) -> str:
    """Describe hosts whose slots are held after a run was killed, with the seconds until they are free."""
    (host, seconds), more = min(held.items(), key=lambda each: each[1]), len(held) - 1
    others = f", and {more:,} other host{'s' * (more > 1)}" if more else ""
    return (
        f"the last run was killed while a request to {host} was in flight{others}. The site may still work on it, so "
        f"the next one leaves in {span(seconds)} at the latest."
    )


LIMITS = {"max_pages": "--max-pages", "max_time": "--max-time", "max_bytes": "--max-bytes", "later": "--patience"}
"""Option that ended a crawl, by `Summary.ended`; absent for a crawl that finished, was stopped or was killed."""


def count_pages(count: int) -> str:
    """Return a number of pages in words."""
    return f"{count:,} {'page' if count == 1 else 'pages'}"


BUDGET_SPENT = "budget spent"
"""State of a host whose budget of the day is spent."""


def limit_of(ended: str, waited_for: str = "") -> str | None:
    """Return what ended a crawl: an option, or the daily limit; None if it finished, was stopped or was killed.

    `waited_for` is the state of the host that was due first.
    """
    return "the daily limit" if ended == "later" and waited_for == BUDGET_SPENT else LIMITS.get(ended)


def reached(limit: str, value: object) -> str:
    """Describe a crawl that ended at a limit, such as `max_pages` or `--max-pages`."""
    return f"Stopped: reached {limit} {value}."


def no_workers(count: int, why: str) -> str:
    """Describe why a crawl cannot have several worker processes."""
    return f"workers = {count} is not possible: {why}. Leave workers out, or change that."


def worker_died(number: int, process: int, urls: int) -> str:
    """Describe the death of a worker process."""
    back = "Its URL is" if urls == 1 else f"Its {urls:,} URLs are"
    return (
        f"The worker process {process} (number {number}) died. {back} put back, and another is started. "
        "If that repeats, check the machine's memory."
    )


def workers_died(deaths: int) -> str:
    """Describe the end of a crawl whose workers keep dying."""
    return f"{deaths} worker processes died, so no more are started. Check the machine's memory, then resume."


def deaths_in_run(deaths: int) -> str:
    """Describe the worker processes that died during a crawl."""
    were = "1 worker process died and was" if deaths == 1 else f"{deaths} worker processes died and were"
    return f"{were} started again."


def crawl_end(ended: str, due: float | None = None) -> str:
    """Describe the end of a crawl that reached no limit. `due`: seconds until the next URL; None if paused."""
    match ended:
        case "done":
            return "Finished: no URL is left to fetch."
        case "later" if due is None:
            return "Stopped: all remaining hosts are paused. Resume the hosts, then the crawl."
        case "later":
            return f"Stopped: the next URL may be requested in {span(due or 0.0)}. Resume then."
        case _:
            return "Stopped on request."
