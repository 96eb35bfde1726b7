"""A mistake in a part that a program gives is raised to the program, and no host is blamed for it."""

from __future__ import annotations

import pytest

from curtsy.core.request import Reply, Request
from curtsy.core.url import Url
from curtsy.http.sender import HttpSender, Limits, Sink
from tests.client.fetching import UNPACED, client, host_of
from tests.support.site import Site

MISTAKES = [TypeError, AttributeError, AssertionError, NameError, KeyError, IndexError, ZeroDivisionError]


class Broken:
    """A sender that raises before it has sent anything, until it is mended."""

    def __init__(self, mistake: type[Exception]) -> None:
        self.mistake: type[Exception] | None = mistake
        self._inner = HttpSender()

    async def send(self, request: Request, limits: Limits) -> Reply:
        if self.mistake is not None:
            raise self.mistake("our own")
        return await self._inner.send(request, limits)

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        raise NotImplementedError

    async def locate(self, url: Url, limits: Limits) -> str:
        return ""

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize("respect_robots", [False, True])
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_a_sender_is_raised_and_blames_no_host(
    site: Site, mistake: type[Exception], respect_robots: bool
) -> None:
    """U6, B5: neither a failure nor a lease is left, so the next request goes at once"""
    site.page("/", "here")
    sender, url = Broken(mistake), site.url("/")

    async with client(sender=sender, respect_robots=respect_robots, **UNPACED) as web:
        for _ in range(5):
            with pytest.raises(mistake, match="our own"):
                await web.fetch(url)
        host = await host_of(web, url)
        sender.mistake = None
        result = await web.fetch(url)

    assert (host.failures, len(host.places)) == (0, 0)
    assert result.text == "here"


class Silent(Broken):
    """A sender whose author forgot to return the reply."""

    async def send(self, request: Request, limits: Limits) -> Reply:
        return None  # type: ignore[return-value]


async def test_a_sender_that_returns_no_reply_is_a_mistake_and_not_asked_again(site: Site) -> None:
    """U6: None would mean that nothing was sent, so the request went again for ever and the event loop stood still"""
    async with client(sender=Silent(TypeError), respect_robots=False, **UNPACED) as web:
        with pytest.raises(TypeError, match="None"):
            await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert (host.failures, len(host.places)) == (0, 0)


class BrokenNames:
    """A resolver with a mistake in it."""

    async def resolve(self, host: str) -> list[str]:
        raise TypeError("our own")


async def test_a_mistake_in_a_resolver_is_raised_and_blames_no_host() -> None:
    """U6"""
    url = "http://shop.test/"

    async with client(sender=HttpSender(resolver=BrokenNames()), respect_robots=False, **UNPACED) as web:
        for _ in range(5):
            with pytest.raises(TypeError, match="our own"):
                await web.fetch(url)
        host = await host_of(web, url)

    assert (host.failures, len(host.places)) == (0, 0)
