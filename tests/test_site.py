"""The test site itself: what it plays is what goes over the wire, and its journal is true."""

import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

from tests.support.polling import block_until
from tests.support.site import Reply, Site, hang


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
    with Site() as site, ExitStack() as stack:
        site.reply("/hang", hang())
        for number, host in enumerate(("127.0.0.1", "127.0.0.1", "127.0.0.2")):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", site.port)))
            raw.sendall(f"GET /hang HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            block_until(lambda: site.count("/hang") > number)  # noqa: B023

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
