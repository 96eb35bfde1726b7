"""Records of fetches that were never made, for what only counts them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from curtsy.core.record import FetchRecord
from curtsy.engine.counters import Counters

NOON = 1_800_000_000.0

FETCHED = FetchRecord(
    url="https://example.org/",
    final_url="https://example.org/",
    domain="example.org",
    method="GET",
    status=200,
    reason=None,
    attempts=1,
    retries=0,
    waited=0.0,
    took=0.2,
    bytes=1000,
    cache=None,
    robots_line=None,
    requests_left=199,
    pages_left=99,
    retry_after=None,
    at=NOON,
    latency=0.2,
)
"""A page that came at once."""


def fetched(domain: str = "example.org", **fields: Any) -> FetchRecord:
    """A page that came at once, but for some fields."""
    url = f"https://{domain}/"
    return msgspec.structs.replace(FETCHED, **{"domain": domain, "url": url, "final_url": url, **fields})


def refused(domain: str = "example.org", reason: str = "circuit_open", **fields: Any) -> FetchRecord:
    """A fetch that was not made."""
    nothing: dict[str, Any] = {"status": None, "attempts": 0, "bytes": 0, "latency": None, "requests_left": None}
    return fetched(domain, reason=reason, **{**nothing, **fields})


def tallied(*records: FetchRecord, hosts: int = 1000) -> Counters:
    """A tally that has counted these."""
    counters = Counters(hosts=hosts, epoch=lambda: NOON)
    for record in records:
        counters.count(record)
    return counters


records = st.builds(
    fetched,
    domain=st.sampled_from([f"h{number}.example" for number in range(12)]),
    reason=st.none() | st.sampled_from(["circuit_open", "robots_disallowed", "timeout", "http_status"]),
    attempts=st.integers(0, 3),
    retries=st.integers(0, 2),
    robots_requests=st.integers(0, 1),
    waited=st.integers(0, 2**12).map(lambda each: each / 64),  # exact in binary, so that sums can be compared
    latency=st.none() | st.integers(0, 2**10).map(lambda each: each / 64),
    bytes=st.integers(0, 10_000),
    cache=st.none() | st.sampled_from(["hit", "revalidated", "stale"]),
)
