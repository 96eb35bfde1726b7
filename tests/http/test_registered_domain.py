"""The test site itself: what it plays is what goes over the wire, and its journal is true."""

import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.support.polling import block_until
from tests.support.site import Reply, Site, closed_port, deaf_port, hang, has_ipv6, later, redirect


def ask(site: Site, head: str) -> bytes:
    """Send a request by hand and read all that comes."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as raw:
        raw.sendall(head.encode() + b"\r\n\r\n")
        received = b""
        while data := raw.recv(65_536):
            received += data
        return received


def status(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_page_answers_conditional_requests() -> None:
    """N6"""
    date = "Sun, 15 Nov 2026 10:00:00 GMT"
    with Site() as site:
        site.page("/a", "hello", etag='"1"', last_modified=date)

        assert status(site.url("/a")) == (200, b"hello")
        assert status(site.url("/a"), **{"If-None-Match": '"0", "1"'}) == (304, b"")
        assert status(site.url("/a"), **{"If-None-Match": '"2"', "If-Modified-Since": date}) == (200, b"hello")
        assert status(site.url("/a"), **{"If-Modified-Since": date}) == (304, b"")
        assert [visit.status for visit in site.journal] == [200, 304, 200, 304]


def test_a_page_may_be_asked_for_in_parts() -> None:
    """U15"""
    with Site() as site:
        site.page("/f", "0123456789", etag='"1"', ranges=True)

        assert status(site.url("/f"), Range="bytes=4-") == (206, b"456789")
        assert status(site.url("/f"), Range="bytes=4-", **{"If-Range": '"old"'}) == (200, b"0123456789")
        assert status(site.url("/f"), Range="bytes=10-")[0] == 416


def test_a_script_is_played_in_turn_and_its_last_reply_stays() -> None:
    """N3"""
    with Site() as site:
        site.script("/flaky", [Reply(503), later(2), Reply(200, "fine")])

        assert [status(site.url("/flaky"))[0] for _ in range(4)] == [503, 429, 200, 200]


def test_the_most_specific_answer_wins() -> None:
    """B9"""
    with Site() as site:
        site.on("/p/*", lambda visit: Reply(body=visit.target))
        site.page("/p/a", "page")
        site.page("/p/a?x=1", "query")
        site.page("/p/a", "other host", host="127.0.0.2")
        site.robots("User-agent: *")

        assert status(site.url("/p/b?c"))[1] == b"/p/b?c"
        assert status(site.url("/p/a?x=2"))[1] == b"page"
        assert status(site.url("/p/a?x=1"))[1] == b"query"
        assert status(site.url("/p/a", host="127.0.0.2"))[1] == b"other host"
        assert status(site.url("/robots.txt"))[1] == b"User-agent: *"
        assert status(site.url("/nothing"))[0] == 404


def test_the_journal_says_who_asked_for_what_and_when() -> None:
    """P1"""
    with Site() as site:
        site.reply("/slow", Reply(wait=0.05))
        before = time.monotonic()
        status(site.url("/slow"))
        status(site.url("/b", host="127.0.0.2"), **{"X-A": "1"})

        first, second = site.journal
        assert before <= first.at
        assert first.answered_at is not None
        assert first.answered_at - first.at >= 0.05
        assert second.header("x-a") == "1"
        assert (first.host, second.host) == ("127.0.0.1", "127.0.0.2")
        assert site.paths() == ["/slow", "/b"]
        assert site.paths("127.0.0.2") == ["/b"]
        assert (site.count("/slow"), site.count(), site.count(host="127.0.0.2")) == (1, 2, 1)
        assert len(site.gaps()) == 1
        assert site.gaps()[0] >= 0.05
        assert site.gaps("127.0.0.2") == []


def test_the_journal_counts_requests_under_way_per_host() -> None:
    """P1"""
    with Site() as site:
        site.reply("/slow", Reply(wait=0.2))
        urls = [site.url("/slow"), site.url("/slow"), site.url("/slow", host="127.0.0.2")]
        threads = [threading.Thread(target=status, args=(url,)) for url in urls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert site.max_concurrency("127.0.0.1") == 2
        assert site.max_concurrency("127.0.0.2") == 1


def test_a_client_that_leaves_is_not_under_way_any_more() -> None:
    """P1"""
    with Site() as site:
        site.reply("/hang", hang())
        for number in range(5):
            with socket.create_connection(("127.0.0.1", site.port)) as raw:
                raw.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
                block_until(lambda: site.count("/hang") > number)  # noqa: B023

        assert site.idle()
        assert site.max_concurrency() == 1
        assert site.count("/hang") == 5


def test_every_part_of_a_reply_can_be_wrong() -> None:
    """F12"""
    get = "GET / HTTP/1.1\r\nHost: a"
    with Site() as site:
        site.reply("/", Reply(raw=b"no HTTP", end="close"))
        assert ask(site, get) == b"no HTTP"
        site.reply("/", Reply(body="hello", length=99, stop_after=2, end="close", headers={"Date": "never"}))
        assert ask(site, get) == b"HTTP/1.1 200 OK\r\nDate: never\r\nContent-Length: 99\r\n\r\nhe"
        site.reply("/", Reply(299, "hi", [("A", "1"), ("A", "2"), ("Date", "x")], chunked=True, version="1.0"))
        sent = ask(site, get)
        assert sent == (
            b"HTTP/1.0 299 Unknown\r\nA: 1\r\nA: 2\r\nDate: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
        )
        assert site.visits("/")[-1].taken == len(sent)


def test_a_reset_is_a_reset() -> None:
    """F12"""
    with Site() as site:
        site.reply("/", Reply(raw=b"", end="reset"))

        with pytest.raises(ConnectionResetError):
            ask(site, "GET / HTTP/1.1\r\nHost: a")


def test_a_redirect_says_where_to() -> None:
    """U3"""
    with Site() as site:
        site.reply("/", redirect("/there"))
        site.page("/there", "here")

        assert status(site.url("/"))[1] == b"here"
        assert site.paths() == ["/", "/there"]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6_is_listened_on() -> None:
    """U2"""
    with Site() as site:
        assert status(site.url("/", host="::1"))[0] == 404
        assert site.journal[0].host == "::1"


def test_a_deaf_port_takes_no_connection_and_a_closed_one_refuses_it() -> None:
    """N9"""
    with deaf_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
    with closed_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
