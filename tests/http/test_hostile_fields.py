"""Whatever stands in a header field or in robots.txt, nothing raises: not in any parser, and not in a fetch."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.cache import Absent, absorb, freshness
from curtsy.core.cache_control import FOREVER, delta_seconds, directives
from curtsy.core.charset import decode
from curtsy.core.fetch_state import redirect_target
from curtsy.core.outcome import classify
from curtsy.core.request import MOST_NUMBER, Headers, Request, Response, whole_number
from curtsy.core.robots import parse
from curtsy.core.time import cookie_date, http_date
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import extract
from curtsy.engine.download import _noted, _total_of
from curtsy.http.cookies import Cookies
from curtsy.http.decoding import UnknownCoding, decoder_of
from tests.client.fetching import client
from tests.support.bounds import cpu_within
from tests.support.site import Site, garbage

DIGITS = st.one_of(
    st.integers(1, 6000).map("9".__mul__),
    st.integers(1, 6000).map(lambda count: "0" * count + "60"),
    st.text("0123456789_+-.eE", max_size=30),
    st.text("٠١٢٣४५६０１²³", min_size=1, max_size=30),
    st.sampled_from(["nan", "inf", "-inf", "Infinity", "1e309", "1_000", "0x10", "+5", "-0", "- 5", "5,5", ""]),
)
NUMBERS = st.one_of(DIGITS, st.text(max_size=60), st.tuples(DIGITS, st.text(max_size=5), DIGITS).map("".join))
VALUES = st.one_of(
    NUMBERS,
    st.tuples(st.sampled_from(["max-age=", "bytes ", '"a";r=0;t=', "a=b; Max-Age=", "a=b; Expires=", "Thu, 01 Jan ",
                               "text/html; charset=", "http://", "http://h:", "gzip, ", "noindex: ", '"']),
              NUMBERS).map("".join),
)  # fmt: skip
NAMES = ["Content-Length", "Retry-After", "Age", "Cache-Control", "RateLimit", "RateLimit-Policy",
         "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Content-Range",
         "Date", "Expires", "Last-Modified", "ETag", "Set-Cookie", "Content-Type", "Content-Encoding", "Location",
         "Vary", "Connection", "X-Robots-Tag", "Link", "Content-Usage", "TDM-Reservation"]  # fmt: skip
NOW = 1_800_000_000.0


def at(text: str) -> Url:
    found = parse_url(text)
    assert isinstance(found, Url)
    return found


HERE = at("http://example.org/a")


@given(NUMBERS)
@example("9" * 5000)
@example("²")
def test_a_number_is_read_or_not_but_never_raises(text: str) -> None:
    """F50"""
    number, seconds = whole_number(text), delta_seconds(text)

    is_number = text.strip(" \t").isascii() and text.strip(" \t").isdigit()
    assert (number is not None) == (seconds is not None) == is_number
    assert number is None or 0 <= number <= MOST_NUMBER
    assert seconds is None or 0 <= seconds <= FOREVER


@given(st.integers(0, 10**18), st.integers(0, 5000))
def test_leading_zeros_do_not_count(number: int, zeros: int) -> None:
    """F50"""
    assert whole_number("0" * zeros + str(number)) == number
    assert delta_seconds("0" * zeros + str(number)) == min(number, FOREVER)


@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=8), st.sampled_from([200, 206, 301, 304, 429, 503]))
def test_no_field_of_an_answer_raises(fields: list[tuple[str, str]], status: int) -> None:
    """F12, F50"""
    headers, request = Headers(fields), Request(HERE)
    answer = Response(status, headers, b"<p>page")
    jar = Cookies(lambda: NOW)

    outcome = classify(answer, NOW)
    freshness(None, Request(HERE, headers=headers), NOW)
    absorb(Absent(), request, answer, NOW)
    redirect_target(HERE, answer)
    jar.take(HERE, headers)
    jar.header_for(HERE)
    decode(answer.body, headers.get("content-type"))
    extract(answer.body, headers.get("content-type"), HERE, agent="bot", x_robots_tag=headers.all("x-robots-tag"))
    _noted("", None, headers)
    _total_of(headers, 0, None)
    for _, value in fields:
        http_date(value)
        cookie_date(value)
        directives(value)
        with contextlib.suppress(UnknownCoding):
            decoder_of(value)

    assert 0 <= outcome.rest < float("inf")


@given(st.sampled_from(["Crawl-delay", "Request-rate", "Visit-time", "Sitemap", "Disallow"]), NUMBERS, NUMBERS)
def test_no_line_of_robots_txt_raises(field: str, number: str, other: str) -> None:
    """F33"""
    robots = parse(f"User-agent: *\n{field}: {number}\n{field}: {number}/{other}\n".encode("utf-8", "surrogatepass"))

    delay = robots.crawl_delay("bot")
    robots.request_rate("bot")
    robots.verdict("bot", HERE.text)
    assert delay is None or 0 <= delay < float("inf")


@pytest.mark.parametrize("value", ["9" * 16_000 + "x", "1e" + "9" * 16_000 + "x", ".9" + "9" * 16_000 + "x"])
def test_a_long_number_in_robots_txt_takes_no_time(value: str) -> None:
    """F32: by the square of its length, one line took seconds"""
    with cpu_within(0.3):
        parse(f"User-agent: *\nCrawl-delay: {value}\n".encode()).crawl_delay("bot")


HOSTILE = ["9" * 5000, "0" * 5000, "-1", "+5", "1_0", "٣", "²", "nan", "inf", "1e309", "\udcff", '"' * 5000]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_field_makes_a_fetch_raise(site: Site, value: str) -> None:
    """F12: 5,000 digits in Content-Length came out of fetch() as a ValueError"""
    names = [name for name in NAMES if name not in ("Content-Length", "Content-Encoding", "Location")]
    line = "\r\n".join(f"{name}: {value}" for name in names).encode("utf-8", "surrogateescape")
    length = f"Content-Length: {value}".encode("utf-8", "surrogateescape")
    heads = {"/all": line + b"\r\nContent-Length: 4", "/length": length, "/close": line}

    async with client(
        cookies=True, breaker=False, max_retries=0, max_retry_after=1, preset="own", max_head=1 << 20
    ) as own:
        for status in (200, 206, 302, 304, 404, 429, 503):
            for path, head in heads.items():
                raw = b"HTTP/1.1 %d X\r\nConnection: close\r\n%b\r\n\r\nbody" % (status, head)
                site.reply(f"{path}{status}", garbage(raw))
                for method in ("GET", "HEAD"):
                    result = await own.fetch(site.url(f"{path}{status}"), method=method)
                    assert result.status in (None, status)

    assert len({visit.path for visit in site.journal}) == 1 + 3 * 7
