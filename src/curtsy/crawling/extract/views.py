"""Recognition of links that lead to another view of a page: sorted, filtered, printed, edited, or out of date.

Such a view has the content of the page again, or a form, and the combinations of views have no end. The rules name
parameters and paths that are common to many systems; docs/reference/traps.md lists them. A false positive loses a page,
so a rule that could meet the only link to a content applies only in a series: an order only on a link from the same
path, filters only in combination, dates only in the far future or after a long chain of dates.

Nothing is stored, and each rule depends on the link, the page it is on, its depth and the year alone.
"""

from __future__ import annotations

import re

from curtsy.crawling.extract.scope import OutOfScope

MAX_DATES = 50
"""Links from a seed up to which a page of a date may link to the page of another date."""

_ANY = ".*"
_SHA = "[0-9a-f]{40}"
_YES = "|1|true|yes|y|on"
_SPECIAL = (
    "special:(?:blocklist|comparepages|contributions|createaccount|deletepage|diff|editpage|expandtemplates|export|log"
    "|mycontributions|mytalk|newsection|pagehistory|pageinfo|passwordreset|permanentlink|protectpage|purge"
    "|random(?:incategory|redirect)?|recentchanges(?:linked)?|redirect|search|undelete|userlogin|userrights|whatlinkshere)"
)
"""Special pages of MediaWiki that are forms, logs, or redirect at random."""

PARAMETERS = {
    OutOfScope.SORT_ORDER: {
        "sort sortby sort_by sort-by sortkey sort_key sortfield sort_field sortorder sort_order sortdir sort_dir": _ANY,
        "sort_direction orderby order_by order-by orderdir order_dir ordering": _ANY,
        "order": ".*[^0-9].*",  # a number may be that of an order
        "asc desc ascending descending": "[01]|true|false",
        "dir direction": "a|d|asc|desc|ascending|descending",
        "c": "[nmsd]",  # Apache, nginx
        "o": "[ad]|age|descr|owner|project",  # Apache, nginx; gitweb
        "s": "desc|idle|name|owner",  # cgit
        "sk": "[a-z]",  # phpBB
        "sd": "[ad]",
    },
    OutOfScope.FILTER: {
        "filter filters facet facets refine refinements": _ANY,
        "min_price max_price price_min price_max rating_filter": _ANY,
        "fq": _ANY,
    },
    OutOfScope.PRINT_VIEW: {
        "print printable printerfriendly printer_friendly printview print_view": _YES,
        "action display format layout mode view": "print|printable|printer|printpage|printview",
    },
    OutOfScope.PAGE_TOOL: {
        "like_comment redlink replytocom veaction": _ANY,
        "mark": "forums|topics",  # phpBB, with the present time in another parameter
        "share": "[a-z]+(?:-[a-z]+)*",
        "action": "delete|edit|login|logout|lostpassword|markpatrolled|protect|purge|quote|register|reply|rollback"
        "|submit|unprotect|unwatch|watch",
        "do": "admin|backlink|draft|edit|index|login|logout|media|profile|recent|register|resendpwd|subscribe",
        "mode": "compose|contact|contactadmin|delete|edit|email|forward|login|logout|post|quote|register|reply|report"
        "|sendpassword",
        "watch unwatch": "forum|topic",
        "title": f"{_SPECIAL}(?:/.*)?",
    },
    OutOfScope.OLD_VERSION: {
        "diff oldid r1 r2 rev_id": _ANY,
        "rev revision pathrev": f"[0-9]+|{_SHA}",
        "action": "annotate|credits|diff|history|info|raw|render",
        "do": "diff|revisions|export_[a-z]+",
        "a": "blame|blobdiff|blobdiff_plain|commitdiff|commitdiff_plain|history|snapshot",  # gitweb
        "hb hp hpb id2": _SHA,
    },
}
"""For each reason: names of parameters, and a pattern for the whole value. Case is ignored."""

FILTER_BEGINS = ("attribute_", "f[", "f%5b", "facet[", "facet%5b", "facet_", "filter[", "filter%5b", "filter_", "prefn")
"""Beginnings of further names of filters."""

MOST_FILTERS = 1
"""Filters of one URL: each combination of two or more is one of an endless series."""

TOOLS = (
    rf"/(?:api|mcp|posting|ucp|wp-login|wp-signup)\.php(?:\?|$)|/wp-admin/|[/:]{_SPECIAL}(?:[/?]|$)"
    r"|\.php/post/[0-9]+/report(?:\?|$)"
)
_VERSION_PATHS = (
    rf"/(?:(?:archive|blame|blob|raw|src|tree|\+[a-z]*)/{_SHA}(?:/|\.\.|$)"
    r"|\+(?:archive|blame|describe|diff|log)/|\+[a-z]*/[^?]*(?:\^|%5E)"  # Gerrit; ^ and ^! are a parent and a diff
    rf"|(?:tree|log|diff|patch|plain|blame|refs|snapshot|commit/[^?]+)/?[^?]*\?(?:[^?]*&)?id={_SHA}"
    r"|(?:blame|commit|diff|log|patch|plain|refs|snapshot|stats|tree)/[^?]*\?(?:[^?]*&)?h=[^&]"
    r"|wiki/[^?]*\?(?:[^?]*&)?version=[0-9]+(?:&|$))"
)
_VERSION_QUERIES = rf"(?<!a=commit)[?&;]h={_SHA}(?!.*[&;]hb=(?!{_SHA}))"  # gitweb; the files of a branch have hb=HEAD
"""Patterns of a URL that is a page tool or an old version. A pattern that begins with a slash is searched quickly."""

_TOOLS, _OLD_PATHS, _OLD_QUERIES = (
    re.compile(each, re.IGNORECASE) for each in (TOOLS, _VERSION_PATHS, _VERSION_QUERIES)
)
_DATE = re.compile(r"(?<=/)((?:19|[2-9][0-9])[0-9]{2})(?:[/-][0-9]{1,2}){1,2}/?$")
_DATE_NAMES = frozenset(
    {"cal", "calmonth", "date", "day", "eventdate", "event-date", "month", "tribe-bar-date", "year"}
)
_DATE_VALUE = re.compile(r"((?:19|[2-9][0-9])[0-9]{2})(?:-?[0-9]{1,2}){0,2}")
_SEPARATORS = re.compile("[&;]")


def _by_name() -> dict[str, list[tuple[re.Pattern[str], OutOfScope]]]:
    found: dict[str, list[tuple[re.Pattern[str], OutOfScope]]] = {}
    for reason, rules in PARAMETERS.items():
        for names, value in rules.items():
            for name in names.split():
                found.setdefault(name, []).append((re.compile(value, re.IGNORECASE), reason))
    return found


_NAMES = _by_name()


def view(url: str, page: str = "", depth: int = 0, year: int = 9999) -> OutOfScope | None:
    """Return why a canonical URL leads to another view of a page; None if it does not.

    `page` is the URL of the page that links to it, `depth` the number of links from a seed, `year` the present year.
    """
    path, mark, query = url.partition("?")
    rest = url[8:]
    if (":" in rest or ".php" in rest or "/wp-" in rest) and _TOOLS.search(url):  # `in` is faster than a pattern
        return OutOfScope.PAGE_TOOL
    # A hash has 40 characters.
    if (len(rest) > 48 or "/+" in rest or "version=" in query or "h=" in query) and _OLD_PATHS.search(url):
        return OutOfScope.OLD_VERSION
    if ("h=" in rest or "H=" in rest) and _OLD_QUERIES.search(url):
        return OutOfScope.OLD_VERSION
    found = _DATE.search(path) if path[-1:].isdigit() or path[-2:-1].isdigit() else None
    if not mark and found is None:
        return None
    pairs = _pairs(query)
    is_same = page.partition("?")[0].rstrip("/") == path.rstrip("/")
    reason = _of_parameters(pairs, page if is_same else None)
    if reason is None:
        dates = [found[1]] if found else []
        days = [value for name, value in pairs if name in _DATE_NAMES or (name == "from" and "-" in value)]
        dates += [date[1] for value in days if (date := _DATE_VALUE.fullmatch(value))]
        if dates and (int(max(dates)) > year + 1 or (depth > MAX_DATES and _shape(url) == _shape(page))):
            reason = OutOfScope.CALENDAR
    return reason


def _of_parameters(pairs: list[tuple[str, str]], page: str | None) -> OutOfScope | None:
    """Return the reason of a query. `page` is the URL of the page that links to it; None if it has another path."""
    filters = 0
    order = []
    for name, value in pairs:
        reason = _reason(name, value)
        if reason is OutOfScope.FILTER:
            filters += 1
        elif reason is OutOfScope.SORT_ORDER:
            order.append((name, value))
        elif reason is not None:
            return reason
    if filters > MOST_FILTERS:
        return OutOfScope.FILTER
    return OutOfScope.SORT_ORDER if order and page is not None and order != _order_of(page) else None


def _pairs(query: str) -> list[tuple[str, str]]:
    """Return names and values of a query. Names are in lower case."""
    pairs = [pair.partition("=") for pair in _SEPARATORS.split(query)]
    return [(name.lower(), value) for name, _, value in pairs]


def _reason(name: str, value: str) -> OutOfScope | None:
    for pattern, reason in _NAMES.get(name, ()):
        if pattern.fullmatch(value):
            return reason
    return OutOfScope.FILTER if name.startswith(FILTER_BEGINS) else None


def _order_of(url: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL that set an order."""
    return [pair for pair in _pairs(url.partition("?")[2]) if _reason(*pair) is OutOfScope.SORT_ORDER]


def _shape(url: str) -> str:
    """Return a URL with every number replaced, so that all dates of a calendar are equal."""
    return re.sub("[0-9]+", "0", url)
