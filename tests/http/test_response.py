"""The reader of responses: what is one, where it ends, and what may follow it. However its bytes arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import Reason
from curtsy.http.response import MAX_FIELDS, ReplyError, ResponseReader

GOOD = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "no length": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n", b"ok", True),
    "interim": (b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    "folded": (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    "closed": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
    "1.0, kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    "1.0, chunks": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"", False,
    ),
    "more": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", b"ok", False),
    "more after chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200\r\n\r\n", b"ok", False,
    ),
}  # fmt: skip

BAD = {
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "RTSP": b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "two framings": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two framings, reversed": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
    "empty length": b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
    "huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "space before colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "no name": b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
    "bare return": b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\n\r\n",
    "negative chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
    "chunk without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
}


def read(raw: bytes, cuts: list[int], has_body: bool = True) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader(65_536, has_body)
    places = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})
    for begin, end in pairwise(places):
        if reader.is_complete:  # the connection refuses what comes later
            reader.is_reusable = False
        reader.feed(raw[begin:end])
    return reader, b"".join(reader.parts)


@given(st.sampled_from(sorted(GOOD)), st.lists(st.integers(0, 1000), max_size=8))
def test_a_response_is_read_alike_however_it_arrives(kind: str, cuts: list[int]) -> None:
    """F12: RFC 9112, 6.3"""
    raw, body, is_reusable = GOOD[kind]

    reader, parts = read(raw, cuts)

    assert reader.error is None
    assert (reader.is_complete, parts, reader.is_reusable) == (True, body, is_reusable)


@given(st.sampled_from(sorted(BAD)), st.lists(st.integers(0, 1000), max_size=8))
def test_what_is_ambiguous_or_broken_is_no_response(kind: str, cuts: list[int]) -> None:
    """F08, F12: RFC 9112, 11: responses that could be split or smuggled"""
    reader, _ = read(BAD[kind], cuts)

    assert isinstance(reader.error, ReplyError)
    assert reader.error.reason is Reason.BAD_RESPONSE
    assert not reader.is_reusable


@pytest.mark.parametrize("raw", [b"Content-Length: 2\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_the_answer_to_head_ends_with_its_head(raw: bytes) -> None:
    """F12"""
    alone, _ = read(b"HTTP/1.1 200 OK\r\n" + raw, [], has_body=False)
    more, _ = read(b"HTTP/1.1 200 OK\r\n" + raw + b"0\r\n\r\n", [], has_body=False)

    assert (alone.is_complete, alone.is_reusable) == (True, True)
    assert (more.is_complete, more.is_reusable) == (True, False)


def test_too_many_fields_are_too_large() -> None:
    """F11"""
    reader, _ = read(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n", [])

    assert isinstance(reader.error, ReplyError)
    assert reader.error.reason is Reason.TOO_LARGE
