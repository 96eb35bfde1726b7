"""The dashboard under attack: half requests, and guesses of its token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from curtsy.observe.dashboard.security import LOGINS, REQUEST_TIMEOUT, SLOTS, Connection, Guesses
from tests.observe.serving import TOKEN, serving
from tests.support.bounds import ends_within
from tests.support.polling import PATIENCE


class Impatient(Connection):
    """The same in a hurry."""

    request_timeout = 0.5


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers when the whole request is there."""
    await Request(scope, receive).body()
    await PlainTextResponse("x")(scope, receive, send)


@contextmanager
def server() -> Iterator[int]:
    """A server with such connections, in a thread; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application, http=Impatient, log_config=None, lifespan="off", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        listener.close()


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("first", [b"", b"G", HEAD[:-2], HEAD, POST], ids=repr)
def test_half_a_request_does_not_hold_a_connection(first: bytes) -> None:
    """F32: slowloris; also when it drips, and behind a whole request"""
    with server() as port, ends_within(5), ExitStack() as stack:
        began = time.monotonic()
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection.sendall(first)
        if first == HEAD:
            assert b"200 OK" in connection.recv(4096)
            connection.sendall(HEAD[:9])
        try:
            while time.monotonic() - began < PATIENCE:
                connection.settimeout(0.1)
                try:
                    if not connection.recv(4096):
                        break
                except TimeoutError:
                    if first not in (b"", HEAD):
                        connection.sendall(b"X-A: b\r\n")  # it drips
        except (ConnectionError, BrokenPipeError):
            pass
        took = time.monotonic() - began

    assert took > 0.4


def test_a_whole_head_may_come_in_two_parts() -> None:
    """F32"""
    with server() as port, socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(HEAD[:9])
        connection.sendall(HEAD[9:])

        assert b"200 OK" in connection.recv(4096)
    assert REQUEST_TIMEOUT == 10


# --- Guesses

FREE_GUESSES, GUESS_EVERY = LOGINS


def test_guesses_are_slowed_down_and_nobody_is_locked_out_for_long() -> None:
    """Constant memory; each address by itself"""
    now = 0.0
    guesses = Guesses(FREE_GUESSES, GUESS_EVERY, lambda: now)
    for _ in range(FREE_GUESSES):
        assert guesses.may_guess("192.0.2.1") == 0
        guesses.count("192.0.2.1")

    assert 0 < guesses.may_guess("192.0.2.1") <= GUESS_EVERY
    others = [f"198.51.100.{number}" for number in range(100)]
    assert sum(guesses.may_guess(other) > 0 for other in others) < 10
    now = GUESS_EVERY
    assert guesses.may_guess("192.0.2.1") == 0
    assert len(guesses._free_at) == SLOTS


def test_wrong_tokens_are_answered_ever_later(tmp_path: Path) -> None:
    """The form and the query share one count; a session stays open"""
    with serving(tmp_path, CURTSY_DASHBOARD_TOKEN=TOKEN) as served:
        cookie = served.ask("/api/login", "POST", {"token": TOKEN}).headers["set-cookie"].partition(";")[0]

        statuses = [served.ask("/?token=wrong").status for _ in range(5)]
        statuses += [served.ask("/api/login", "POST", {"token": "x" * 20}).status for _ in range(12)]
        refused = served.ask("/api/login", "POST", {"token": TOKEN})
        known = served.ask("/api/hosts", cookie=cookie)
        program = served.ask("/api/hosts", authorization=f"Bearer {TOKEN}")

        assert statuses[:FREE_GUESSES] == [401] * FREE_GUESSES
        assert 429 in statuses
        assert known.status == program.status == 200
        if refused.status == 429:  # else the machine was slow
            assert 1 <= int(refused.headers["retry-after"]) <= 3
