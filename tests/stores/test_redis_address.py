"""Where a Redis can be: every kind of URL, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme

from curtsy.core.errors import PolicyError, StoreError
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.redis_server import parse_address
from tests.stores.steps import count, own_words
from tests.support.redis_server import RedisServer, redis_available
from tests.support.snapshot import Snapshot
from tests.support.stores import redis_store

SLOW = 10.0


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "service"),
    [
        ("redis://example.org", "", (("example.org", 6379),), ""),
        ("redis://:p%40ss@example.org:7000/3", "", (("example.org", 7000),), ""),
        ("rediss://user:pw@[::1]:7000/3?ssl_ca_certs=ca.pem", "", (("::1", 7000),), ""),
        ("redis:///2", "", (("localhost", 6379),), ""),
        ("unix:///run/redis.sock?db=1", "", (), ""),
        ("redis+cluster://a:7000,b:7001,c", "cluster", (("a", 7000), ("b", 7001), ("c", 6379)), ""),
        ("redis+cluster://u:pw@a:7000/0", "cluster", (("a", 7000),), ""),
        ("redis+sentinel://a,b:26380/main", "sentinel", (("a", 26379), ("b", 26380)), "main"),
        ("rediss+sentinel://u:pw@a/main/2?sentinel_password=x", "sentinel", (("a", 26379),), "main"),
    ],
)
def test_a_url_says_what_is_there_and_where(
    url: str, kind: str, hosts: tuple[tuple[str, int], ...], service: str
) -> None:
    """Issue 2, point 5"""
    address = parse_address(url)

    assert (address.kind, address.hosts, address.service) == (kind, hosts, service)


@pytest.mark.parametrize("password", ["p%40ss", "p@ss", "a/b", "a:b", "%", "é"])
def test_a_password_may_be_written_as_it_is(password: str) -> None:
    """Issue 2, point 5"""
    address = parse_address(f"redis://me:{password}@example.org:7000/1")

    assert address.hosts == (("example.org", 7000),)
    assert address.options["password"] == {"p%40ss": "p@ss"}.get(password, password)


def test_options_of_a_url_reach_the_library() -> None:
    """Issue 2, point 5"""
    sentinel = parse_address("rediss+sentinel://me:p%40ss@a/main/2?sentinel_password=x&ssl_ca_certs=ca.pem")
    cluster = parse_address("redis+cluster://me:pw@a/0?health_check_interval=5")

    assert sentinel.options == {
        "username": "me",
        "password": "p@ss",
        "db": 2,
        "ssl": True,
        "sentinel_password": "x",
        "ssl_ca_certs": "ca.pem",
    }
    assert cluster.options == {"username": "me", "password": "pw", "health_check_interval": 5}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.org", "'http'"),
        ("example.org:6379", "redis://host:6379/0"),
        ("redis:", "redis://host:6379/0"),
        ("redis://example.org:port", "'example.org:port'"),
        ("redis://example.org:99999", "'example.org:99999'"),
        ("redis://example.org/zero", "'zero'"),
        ("redis://a,b", "redis+cluster://"),
        ("redis+sentinel://a:26379", "redis+sentinel://host:26379/mymaster"),
        ("redis+cluster://a/1", "redis+cluster://a/1"),
        ("redis://a?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_a_wrong_url_is_an_error_that_shows_the_right_form(url: str, says: str, snapshot: Snapshot) -> None:
    """Conventions: errors say what, why and what to do."""
    with pytest.raises(PolicyError, match=re.escape(says)) as caught:
        redis_store(url)

    snapshot(own_words(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:open-sesame@127.0.0.1:1/0",
        "redis://user:open-sesame@127.0.0.1:1/zero",
        "redis+sentinel://user:open-sesame@127.0.0.1:1/main?sentinel_password=open-sesame",
        "redis+cluster://user:open-sesame@127.0.0.1:1",
        "redis+cluster://user:open-sesame@127.0.0.1:1/1",
        "redis://user:open-sesame@127.0.0.1:port",
        "unix://user:open-sesame@/no/such/socket?password=open-sesame",
        "memcached://user:open-sesame@127.0.0.1",
        "redis://user:a@open-sesame@127.0.0.1:1/0",
        "redis://user:a/open-sesame@127.0.0.1:1/0",
        "redis://user:a/open-sesame@127.0.0.1:port",
        "redis://user:open-sesame?b@127.0.0.1:1/0",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """F62"""
    with pytest.raises((PolicyError, StoreError)) as raised:
        redis_store(url, timeout=SLOW).update("host:a", count)

    error: BaseException | None = raised.value
    while error is not None:
        assert "open-sesame" not in repr(error)
        error = error.__cause__
    if isinstance(raised.value, StoreError):
        assert "open-sesame" not in redis_store(url).identity + repr(parse_address(url))


def test_a_url_that_does_not_answer_is_an_error_that_says_what_to_do(snapshot: Snapshot) -> None:
    """Issue 2, bad input"""
    with pytest.raises(StoreError, match=r"redis://127\.0\.0\.1:1/0") as caught:
        redis_store("redis://127.0.0.1:1/0").now()

    snapshot(own_words(caught.value))


@pytest.mark.parametrize(
    ("prefix", "timeout", "says"), [("a{b", 1.0, "prefix = 'a{b'"), ("a:", 0.0, "timeout = 0.0 must")]
)
def test_wrong_arguments_are_errors(prefix: str, timeout: float, says: str, snapshot: Snapshot) -> None:
    """Conventions: errors say what, why and what to do."""
    with pytest.raises(PolicyError, match=f"^{says}") as caught:
        redis_store("redis://127.0.0.1", prefix=prefix, timeout=timeout)

    snapshot(str(caught.value))


@pytest.mark.parametrize(
    "urls",
    [
        ("redis://127.0.0.1", "redis://me:pw@127.0.0.1:6379/0", "redis://127.0.0.1/0?health_check_interval=5"),
        ("redis+cluster://a:1,B:2", "redis+cluster://me:pw@b:2,a:1/0"),
        ("redis+sentinel://a:1/main", "redis+sentinel://a:1/main/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
    ],
)
def test_stores_of_the_same_records_have_one_identity(urls: tuple[str, ...]) -> None:
    """Store contract: however their address is written, and whoever logs in."""
    identities = {store.identity for url in urls for store in (redis_store(url), AsyncRedisStore(url))}
    others = {
        redis_store(url).identity
        for url in ("redis://127.0.0.1/1", "redis+cluster://a:1", "redis+sentinel://a:1/other", "unix:///run/x.sock")
    }

    assert len(identities) == 1
    assert len(others) == 4
    assert not identities & others


async def test_a_server_is_reached_by_its_socket(server: RedisServer) -> None:
    """Issue 2, point 5"""
    url = f"unix://{server.directory}/redis.sock?db=2"
    store, async_store = redis_store(url, timeout=SLOW), AsyncRedisStore(url, timeout=SLOW)

    assert store.update("host:a", count) == 1
    assert await async_store.update("host:a", count) == 2

    assert server.command("INFO", "keyspace")["db2"]["keys"] == 6  # host, index, generation, looks, clock and formats
    store.close()
    await async_store.close()


async def test_a_server_is_reached_by_tls_and_only_if_its_certificate_is_good(tmp_path: Path) -> None:
    """Issue 2, point 5"""
    if reason := redis_available():
        pytest.skip(reason)
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for name, blob in (
        ("ca.pem", authority.cert_pem),
        ("key.pem", certificate.private_key_pem),
        ("cert.pem", certificate.cert_chain_pems[0]),
    ):
        blob.write_to_path(str(tmp_path / name))
    files = [f"{tmp_path}/{name}" for name in ("ca.pem", "key.pem", "cert.pem")]
    with RedisServer() as server:
        try:
            server.command(
                "CONFIG SET", "tls-ca-cert-file", files[0], "tls-key-file", files[1], "tls-cert-file", files[2]
            )
        except Exception as error:
            pytest.skip(f"this redis-server was built without TLS: {error}")
        port = _any_port(server)
        url = f"rediss://127.0.0.1:{port}/0"
        store = redis_store(f"{url}?ssl_ca_certs={files[0]}", timeout=SLOW)
        async_store = AsyncRedisStore(f"{url}?ssl_ca_certs={files[0]}", timeout=SLOW)

        assert store.update("host:a", count) == 1
        assert await async_store.update("host:a", count) == 2
        with pytest.raises(StoreError, match="certificate"):
            redis_store(url, timeout=SLOW).update("host:a", count)

        store.close()
        await async_store.close()


def _any_port(server: RedisServer) -> int:
    """Let the server open a TLS port; which one is only known to be free when it is taken."""
    server.command("CONFIG SET", "tls-auth-clients", "no")
    for port in range(20_000 + server.port % 10_000, 60_000, 101):
        try:
            server.command("CONFIG SET", "tls-port", port)
        except Exception:
            continue
        return port
    raise RuntimeError("no port is free")
