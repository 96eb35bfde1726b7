"""Secrets: in a URL, a header or a cookie, they reach the site that they are for, and nothing else."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.record import FetchRecord
from curtsy.limits import PDFDownloader
from curtsy.system.log import install_json_logging
from tests.client.fetching import AGENT, UNPACED, client
from tests.support.site import Reply, Site, closed_port, cut_short, later, redirect, reset

PASSWORD, TOKEN, BEARER, COOKIE = "hunter2-pass", "t0ken-in-query", "b3arer-abc", "c00kie-xyz"
SECRETS = (PASSWORD, TOKEN, BEARER, COOKIE)
HEADERS = {"Authorization": f"Bearer {BEARER}", "Cookie": f"sid={COOKIE}"}


def secret(site: Site, path: str, host: str = "127.0.0.1") -> str:
    """A URL with a password and a token."""
    return site.url(f"{path}?access_token={TOKEN}&page=2", host=host).replace("://", f"://user:{PASSWORD}@")


def assert_clean(*texts: str | bytes) -> None:
    for text in texts:
        for each in SECRETS:
            assert each not in (text if isinstance(text, str) else text.decode("latin-1"))


def files_under(place: Path) -> Iterator[tuple[str, bytes]]:
    for path in place.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(place)), path.read_bytes()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that the library says, in full."""
    stream = io.StringIO()
    handler = install_json_logging("debug", stream=stream)
    yield stream
    logger = logging.getLogger("curtsy")
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


TROUBLE = {
    "fine": Reply(body="x", headers={"Cache-Control": "max-age=900"}),
    "missing": Reply(404),
    "blocked": Reply(403),
    "later": later(5),
    "reset": reset(),
    "cut short": cut_short(b"x" * 50, 5),
    "a bad redirect": redirect(f"ftp://user:{PASSWORD}@127.0.0.1/?access_token={TOKEN}"),
    "a loop": redirect("?access_token=" + TOKEN),
}


@pytest.mark.parametrize("kind", TROUBLE)
async def test_no_secret_is_in_logs_messages_files_or_the_store(
    site: Site, kind: str, tmp_path: Path, log: io.StringIO
) -> None:
    """F62"""
    site.reply("/page", TROUBLE[kind])
    site.page("/other", "x")
    told: list[FetchRecord] = []
    settings = {"cache": tmp_path / "pages", "store": f"sqlite:///{tmp_path}/hosts.sqlite", "on_record": told.append}

    async with client(**settings, **UNPACED, max_retries=1) as web:
        result = await web.fetch(secret(site, "/page"), headers=HEADERS)
        download = await web.download(secret(site, "/page"), tmp_path / "file")
        other = await web.fetch(site.url("/other", host="127.0.0.2"))

    sent = site.visits("/page")[0]
    assert (sent.header("Authorization"), sent.header("Cookie")) == (f"Bearer {BEARER}", f"sid={COOKIE}")
    assert TOKEN in sent.target
    assert log.getvalue().count("\n") >= 3
    assert_clean(log.getvalue(), result.message, download.message, str(web.stats()))
    assert_clean(repr(other.record), repr(site.visits(host="127.0.0.2")))
    assert PASSWORD not in repr(result) + repr(download) + repr(told)
    for name, content in files_under(tmp_path):
        assert_clean(name, content)
    if not result.ok:
        with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
            result.raise_for_reason()
        assert_clean(str(caught.value))


@pytest.mark.parametrize(
    "url",
    [f"http://user:{PASSWORD}@", f"htp://user:{PASSWORD}@host/", f"http://user:{PASSWORD}@ho st/",
     f"user:{PASSWORD}@host", f"http://user:pa/{PASSWORD}@host/", f"nonsense?access_token={TOKEN}",
     f"https://h:99999/?access_token={TOKEN}", f"http:///user:{PASSWORD}@host/", f"https://https://user:{PASSWORD}@host/",
     f"http://user:{PASSWORD * 1000}@host/", f"user:{PASSWORD * 1000}@host/"],
)  # fmt: skip
async def test_what_is_no_url_keeps_its_secrets_too(url: str, log: io.StringIO) -> None:
    """F62: the message, the record and the log of a refusal"""
    async with client() as web:
        result = await web.fetch(url)

    assert not result.ok
    assert_clean(log.getvalue(), result.message, repr(result.record))


async def test_a_password_that_is_wrong_for_robots_txt_is_not_told(
    site: Site, tmp_path: Path, log: io.StringIO
) -> None:
    """F62: what is remembered of a failure"""
    site.reply("/robots.txt", reset())
    site.page("/page", "x")

    async with client(store=f"sqlite:///{tmp_path}/hosts.sqlite", **UNPACED) as web:
        await web.fetch(secret(site, "/page"), headers=HEADERS)

    assert site.visits("/robots.txt")[0].header("Authorization") is not None  # the URL's own, for its own origin
    assert_clean(log.getvalue(), *(content for _, content in files_under(tmp_path)))


async def test_the_downloaders_log_has_no_secret(site: Site, tmp_path: Path, log: io.StringIO) -> None:
    """F62, Q8"""
    async with PDFDownloader(False, allow_private=True, user_agent=AGENT, store="memory:") as downloader:
        assert not await downloader.download(secret(site, "/missing"), tmp_path / "file")

    assert "Not downloaded" in log.getvalue()
    assert_clean(log.getvalue())


async def test_a_proxy_that_cannot_be_reached_is_named_without_its_password(log: io.StringIO) -> None:
    """F62"""
    with closed_port() as port:
        proxy = f"http://user:{PASSWORD}@127.0.0.1:{port}"
        async with client(proxy=proxy, max_retries=0, respect_robots=False) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")

    assert not result.ok
    assert_clean(result.message, log.getvalue(), repr(result))


async def test_a_store_with_a_password_is_not_told(log: io.StringIO) -> None:
    """F62: engine URL"""
    pytest.importorskip("redis")
    with closed_port() as port:
        store = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
        given: dict[str, Any] = {**UNPACED, "outage": "alone", "max_retries": 0, "respect_robots": False}
        async with client(store=store, clock=None, **given) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")

    assert not result.ok
    assert log.getvalue()
    assert_clean(log.getvalue(), result.message, repr(session_of(web).settings.current))
