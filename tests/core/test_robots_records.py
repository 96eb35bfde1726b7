"""What robots.txt says besides its rules: delays, rates, times, sitemaps, content signals; and what was odd in it."""

from datetime import time

import pytest

from curtsy.core.robots import MAX_BYTES, MAX_WARNINGS, ContentSignal, RequestRate, VisitTime, parse
from tests.support.bounds import cpu_within
from tests.support.said import missing
from tests.support.snapshot import Snapshot


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+5", 5.0),
        ("1e1", 10.0),
        ("5 # seconds", 5.0),
        ("999999999", 999_999_999.0),
        ("", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("1e309", None),
        ("9" * 400, None),
        ("5s", None),
        ("5 10", None),
        ("1,5", None),
        ("1_0", None),
        ("0x10", None),
        ("٥", None),
        ("five", None),
    ],
)
def test_a_crawl_delay_is_a_finite_number_that_is_not_negative(value: str, delay: float | None) -> None:
    """R8, F33"""
    robots = parse(f"User-agent: *\nCrawl-delay: {value}\n".encode())

    assert robots.crawl_delay("a") == delay


@pytest.mark.parametrize("field", ["crawl-delay", "CRAWL-DELAY", "Crawldelay", "Crawl delay"])
def test_the_field_of_a_crawl_delay_may_be_misspelt(field: str) -> None:
    """R8, U11"""
    assert parse(f"User-agent: *\n{field}: 3\n".encode()).crawl_delay("a") == 3


def test_a_missing_colon_is_understood_in_every_record() -> None:
    """U11"""
    robots = parse(b"User-agent: *\nCrawl-delay 3\nSitemap https://example.org/s.xml\n")

    assert robots.crawl_delay("a") == 3
    assert robots.sitemaps == ("https://example.org/s.xml",)


def test_a_crawl_delay_is_that_of_the_agents_own_groups() -> None:
    """R8, R2"""
    robots = parse(
        b"User-agent: *\nCrawl-delay: 9\n\nUser-agent: a\nDisallow: /x\nCrawl-delay: 2\n\nUser-agent: b\nAllow: /\n"
    )

    assert robots.crawl_delay("a/1.0") == 2
    assert robots.crawl_delay("b") is None
    assert robots.crawl_delay("c") == 9


def test_of_several_crawl_delays_the_longest_holds() -> None:
    """R8: never sooner than the site wishes"""
    robots = parse(
        b"User-agent: a\nCrawl-delay: 2\nDisallow: /x\n\nUser-agent: a\nCrawl-delay: 7\nCrawl-delay: bad\nAllow: /\n"
    )

    assert robots.crawl_delay("a") == 7


def test_a_crawl_delay_between_agents_is_for_all_of_them() -> None:
    """U11: it does not end their list"""
    robots = parse(b"User-agent: a\nCrawl-delay: 4\nUser-agent: b\nDisallow: /x\n")

    assert robots.crawl_delay("a") == 4
    assert robots.crawl_delay("b") == 4


def test_a_crawl_delay_before_an_empty_line_is_for_the_agents_above_it() -> None:
    """R8: the RFC does not know the field, and who writes so means one agent"""
    robots = parse(
        b"User-agent: slow\nCrawl-delay: 900\n\nUser-agent: quick\nCrawl-delay: 1\n\nUser-agent: *\nDisallow: /x\n"
    )

    assert robots.crawl_delay("slow") == 900
    assert robots.crawl_delay("quick") == 1
    assert robots.crawl_delay("other") is None
    assert not robots.verdict("slow", "/x").allowed


def test_a_crawl_delay_above_the_first_agent_is_nobodys() -> None:
    """R8"""
    assert parse(b"Crawl-delay: 4\nUser-agent: *\nDisallow: /x\n").crawl_delay("a") is None


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        ("1/5", RequestRate(1, 5)),
        ("10 / 60s", RequestRate(10, 60)),
        ("1/10m", RequestRate(1, 600)),
        ("1/2H", RequestRate(1, 7200)),
        ("1/1d", RequestRate(1, 86400)),
        ("1/5 0600-0845", RequestRate(1, 5, time(6), time(8, 45))),
        ("1/0", None),
        ("0/5", None),
        ("-1/5", None),
        ("1/5x", None),
        ("1/5 2560-0845", None),
        ("5", None),
        ("", None),
    ],
)
def test_a_request_rate_is_so_many_in_so_long(value: str, rate: RequestRate | None) -> None:
    """R8"""
    assert parse(f"User-agent: *\nRequest-rate: {value}\n".encode()).request_rate("a") == rate


def test_of_several_request_rates_the_slowest_holds() -> None:
    """R8"""
    robots = parse(b"User-agent: *\nRequest-rate: 1/5\nRequest-rate: 2/60\nRequest-rate: 1/1\n")

    rate = robots.request_rate("a")

    assert rate is not None
    assert rate.interval == 30


@pytest.mark.parametrize(
    ("value", "visit"),
    [
        ("0600-0845", VisitTime(time(6), time(8, 45))),
        ("600 - 845", VisitTime(time(6), time(8, 45))),
        ("22:00-04:30", VisitTime(time(22), time(4, 30))),
        ("0600 0845", VisitTime(time(6), time(8, 45))),
        ("2400-0100", None),
        ("0660-0845", None),
        ("0600", None),
        ("", None),
    ],
)
def test_a_visit_time_is_two_times_of_day(value: str, visit: VisitTime | None) -> None:
    """R8"""
    assert parse(f"User-agent: *\nVisit-time: {value}\n".encode()).visit_time("a") == visit


def test_records_that_are_not_there_are_none() -> None:
    """R8"""
    robots = parse(b"")

    assert robots.crawl_delay("a") is None
    assert robots.request_rate("a") is None
    assert robots.visit_time("a") is None
    assert (robots.sitemaps, robots.content_signals("a"), robots.warnings) == ((), (), ())


def test_sitemaps_are_collected_wherever_they_stand() -> None:
    """R12"""
    robots = parse(
        b"Sitemap: https://example.org/a.xml\nUser-agent: x\nSITEMAP:https://example.org/b.xml # second\nDisallow: /\n"
        b"Site-map: https://example.org/c.xml\nSitemap:\nSitemap: https://example.org/a.xml\nSitemap: https://example.org/\xc3\xa9.xml"
    )

    assert robots.sitemaps == (
        "https://example.org/a.xml",
        "https://example.org/b.xml",
        "https://example.org/c.xml",
        "https://example.org/é.xml",
    )


def test_content_signals_are_given_as_they_stand_in_the_agents_groups() -> None:
    """R12"""
    robots = parse(
        b"User-agent: *\nContent-Signal: search=yes, ai-train=no\nAllow: /\n\n"
        b"User-agent: a\nContent-signal: ai-train=yes\nDisallow: /x\nContent-Usage: /x train-ai=n # no\n"
    )

    assert robots.content_signals("other") == (ContentSignal(2, "content-signal", "search=yes, ai-train=no"),)
    assert robots.content_signals("a") == (
        ContentSignal(6, "content-signal", "ai-train=yes"),
        ContentSignal(8, "content-usage", "/x train-ai=n"),
    )


@pytest.mark.parametrize(
    ("body", "line", "data"),
    [
        pytest.param(b"User-agent: *\nDisalow: /x\n", 2, ['"Disalow: /x"', "disallow"], id="misspelt"),
        pytest.param(b"User-agent: *\nDisallow /x\n", 2, ['"Disallow /x"', "disallow"], id="no colon"),
        pytest.param(b"User-agent: *\nhm\n", 2, ['"hm"'], id="no field"),
        pytest.param(b"User-agent: *\nNoindex: /x\n", 2, ['"Noindex: /x"'], id="unknown field"),
        pytest.param(b"Disallow: /x\n", 1, ['"Disallow: /x"'], id="no group"),
        pytest.param(b"User-agent: *\nDisallow: x\n", 2, ['"Disallow: x"'], id="no path"),
        pytest.param(b"User-agent: (007)\n", 1, ['"User-agent: (007)"'], id="no product token"),
        pytest.param(b"User-agent: *\nCrawl-delay: soon\n", 2, ['"Crawl-delay: soon"'], id="no number"),
        pytest.param(b"Sitemap:\n", 1, ['"Sitemap:"'], id="no value"),
        pytest.param(b"User-agent: *\nDisallow: /x\0y\n", 2, ["NUL"], id="NUL"),
        pytest.param(b"\n" + b"a" * 20_000 + b":\n", 2, ["16663"], id="long line"),
        pytest.param(b"\xff\xfeS\0", 1, ["UTF-16-LE"], id="UTF-16"),
        pytest.param(b"#\n" * 300_000, 256_001, [str(MAX_BYTES), "600000"], id="long file"),
    ],
)
def test_what_is_odd_is_told_with_its_line(snapshot: Snapshot, body: bytes, line: int, data: list[str]) -> None:
    """R4"""
    parse_warning = parse(body).warnings[0]

    assert parse_warning.line == line
    assert missing(parse_warning.message, *data) == []
    snapshot(parse_warning.message)


def test_a_file_in_order_has_no_warnings() -> None:
    """R4"""
    body = (
        b"\xef\xbb\xbf# ours\r\nUser-Agent: *\r\n\r\nDisallow: /x # no\r\nAllow: *.gif$\r\nDisallow:\r\nCrawl-Delay: 5"
    )

    assert parse(body).warnings == ()


def test_a_file_of_rubbish_has_a_hundred_warnings_at_most() -> None:
    """R4"""
    assert len(parse(b"rubbish\n" * 10_000).warnings) == MAX_WARNINGS == 100


def test_many_agents_do_not_fill_the_memory() -> None:
    """L10: what is kept for agents is bounded"""
    robots = parse(
        b"".join(b"User-agent: bot%s\nDisallow: /x\n" % bytes([97 + i % 26, 97 + i // 26]) for i in range(600))
    )

    verdicts = [robots.verdict(f"bot{chr(97 + i % 26)}{chr(97 + i // 26)}/{i}", "/x") for i in range(600)]

    assert not any(verdict.allowed for verdict in verdicts)
    assert len(robots._books) <= 64


def test_the_groups_of_a_file_can_be_listed() -> None:
    """R1, R2"""
    robots = parse(b"User-agent: a\nUser-agent: b\nDisallow: /x\n\nUser-agent: *\nAllow: /\nDisallow: /y\n")

    first, second = robots.groups("B/1.0")

    assert (first.line, first.agents, first.rules, first.applies) == (1, ("a", "b"), ((3, "Disallow: /x"),), True)
    assert (second.line, second.agents, second.applies) == (5, ("*",), False)
    assert [line for line, _ in second.rules] == [6, 7]


def test_a_group_of_many_agents_and_rules_is_listed_in_bounded_time() -> None:
    """F32"""
    agents = "".join(f"User-agent: a{number}\n" for number in range(16_000))
    robots = parse((agents + "Disallow: /\n" * 16_000).encode())

    with cpu_within(2):
        (group,) = robots.groups("a7")

    assert (group.line, len(group.agents), len(group.rules), group.applies) == (1, 16_000, 16_000, True)
