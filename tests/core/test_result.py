"""FetchResult as a value: true when ok, and short when shown."""

from __future__ import annotations

from typing import Any

import pytest

from curtsy.core.errors import Reason
from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers
from curtsy.core.result import FetchResult

URL = "https://example.org/a?token=hunter2"
RECORD = FetchRecord(URL, URL, "example.org", "GET", None, None, 1, 0, 0.0, 0.0, 0, None, None, None, None, None, 0.0)


def result(reason: Reason | None = None, status: int | None = 200, body: bytes = b"hello") -> FetchResult:
    return FetchResult(reason is None, URL, URL, status, reason, "", None, Headers(), body, False, RECORD)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"body": b"x" * 12_000_000}, "200 12,000,000 bytes"),
        ({"reason": Reason.HTTP_STATUS, "status": 404}, "404 http_status 5 bytes"),
        ({"reason": Reason.TIMEOUT, "status": None, "body": b""}, "timeout 0 bytes"),
    ],
)
def test_a_result_is_shown_in_short(given: dict[str, Any], shown: str) -> None:
    """F62: and without secrets"""
    assert repr(result(**given)) == f"<FetchResult https://example.org/a?token=*** {shown}>"


def test_a_result_is_true_when_it_is_ok() -> None:
    """B2"""
    assert result(body=b"")
    assert not result(Reason.HTTP_STATUS, 404)
