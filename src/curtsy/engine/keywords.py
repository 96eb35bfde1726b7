"""Keyword arguments of both clients, for type checkers.

Generated from the declarations by tools/keywords.py. Do not edit.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Literal, TypedDict

from curtsy.cache.keys import PageCache
from curtsy.core.record import FetchRecord
from curtsy.engine.renderer import Renderer
from curtsy.engine.timers import Timers, VirtualClock
from curtsy.http.sender import Sender
from curtsy.settings import CacheMode, Preset
from curtsy.stores import AsyncStore, Store


class SettingKeywords(TypedDict, total=False):
    """Settings besides the parameters of a client."""

    global_qps: float | None
    global_burst: int
    outage: Literal["wait", "alone"] | None
    outage_share: float | None
    max_outage: float | None
    cache_dir: str | os.PathLike[str] | None
    cache_size: int | None
    log_level: str
    log_format: Literal["auto", "text", "json"]
    stats_every: float | None
    domain_category: str
    qps: float | None
    burst: int
    strategy: Literal["token_bucket", "leaky_bucket", "sliding_window"]
    pause: list[float] | tuple[float, float]
    pause_min: float
    pause_max: float
    delay: float
    concurrency: int | None
    max_crawl_delay: float
    global_rate: bool
    adapt: bool
    max_delay: float
    target_latency: float
    latency_factor: float
    max_requests_per_day: int
    max_pages_per_day: int
    timezone: str | tzinfo | None
    breaker: bool
    breaker_failures: int
    breaker_cooldown: float
    breaker_max_cooldown: float
    breaker_error_rate: float | None
    breaker_window: float
    breaker_min_replies: int
    on_429: Literal["obey", "trip", "retry"]
    obey_retry_after: float
    max_retry_after: float
    robots_ttl: float
    robots_timeout: float
    robots_unreachable: Literal["allow", "disallow"]
    timeout: float
    connect_timeout: float
    max_body: int | None
    max_head: int
    max_redirects: int
    min_speed: float
    retry_delay: float
    deny_paths: list[str] | tuple[str, ...]
    allowlist: Sequence[str | Mapping[str, Any]]
    denylist: Sequence[str | Mapping[str, Any]]


class ClientKeywords(SettingKeywords, total=False):
    """Arguments of a client."""

    preset: Preset | None
    config: str | os.PathLike[str] | None
    store: str | os.PathLike[str] | Store | AsyncStore | None
    cache: str | os.PathLike[str] | PageCache | bool | None
    cache_mode: CacheMode | None
    stale_if_error: float
    stale_while_revalidate: bool
    user_agent: str | None
    allow_private: bool | None
    respect_robots: bool | None
    max_retries: int | None
    deadline: float | None
    on_record: Callable[[FetchRecord], None] | None
    proxy: str | None
    verify: bool | str | os.PathLike[str] | ssl.SSLContext
    cookies: bool
    max_in_flight: int
    sender: Sender | None
    clock: VirtualClock | None
    timers: Timers | None
    render: bool | Renderer


class FetchKeywords(TypedDict, total=False):
    """Options of a fetch."""

    method: str | None
    params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None
    headers: Mapping[str, str] | None
    json: Any
    body: bytes | None
    timeout: float | None
    deadline: float | None
    idempotent: bool | None


class GetKeywords(ClientKeywords, total=False):
    """Arguments of a single fetch and its client."""

    method: str | None
    params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None
    headers: Mapping[str, str] | None
    json: Any
    body: bytes | None
    idempotent: bool | None
