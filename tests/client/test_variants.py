"""What a page is kept for: each set of request headers that may select another page has its own copy."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from curtsy.core.errors import Reason
from curtsy.core.time import SECOND
from curtsy.core.variant import MOST_VARIANTS
from curtsy.testing import FakeClock
from tests.client.keeping import HOUR, dated, keeping
from tests.support.polling import until
from tests.support.site import Reply, Site, Visit

NAMES = ("X-Api-Key", "Authorization", "Cookie", "Accept-Language", "X-Tenant", "Referer", "X-Forwarded-For")


def echo(visit: Visit) -> Reply:
    """A page that shows what it was requested with, and says nothing of it in `Vary`."""
    return Reply(body=shown({name: visit.header(name) or "" for name in NAMES}), headers=HOUR)


def shown(headers: dict[str, str]) -> str:
    return "|".join(headers.get(name, "") for name in NAMES)


async def test_a_key_does_not_see_the_page_of_another(site: Site, place: Path, clock: FakeClock) -> None:
    """F62: `X-Api-Key` with no `Vary`; two keys alternate, and each has its page kept"""
    site.on("/a", echo)
    asked: list[dict[str, str]] = [{"X-Api-Key": "key-one-1"}, {"X-Api-Key": "key-two-2"}, {}] * 3

    async with keeping(place, clock) as web:
        texts = [(await web.fetch(site.url("/a"), headers=headers)).text for headers in asked]

    assert texts == [shown(headers) for headers in asked]
    assert site.count("/a") == 3


@pytest.mark.parametrize("seed", range(3))
async def test_any_mix_of_headers_gets_its_own_page_and_no_page_twice(
    site: Site, place: Path, clock: FakeClock, seed: int
) -> None:
    """F62, N6: whatever the order"""
    dice = random.Random(seed)
    sets = [{name: str(dice.randrange(2)) for name in dice.sample(NAMES, dice.randrange(4))} for _ in range(20)]
    sets = list({shown(each): each for each in sets}.values())[:MOST_VARIANTS]
    asked = sets + [dice.choice(sets) for _ in range(30)]
    site.on("/a", echo)

    async with keeping(place, clock) as one, keeping(place, clock) as two:
        texts = [(await dice.choice((one, two)).fetch(site.url("/a"), headers=headers)).text for headers in asked]

    assert texts == [shown(headers) for headers in asked]
    assert site.count("/a") == len(sets)


async def test_no_key_is_written_down(site: Site, place: Path, clock: FakeClock) -> None:
    """F62: neither in a name nor in a file"""
    site.page("/a", "x", headers={**HOUR, "Vary": "X-Api-Key"})

    async with keeping(place, clock) as web:
        for name in NAMES:
            await web.fetch(site.url("/a"), headers={name: "s3cr3t-value"})

    kept = await asyncio.to_thread(files, place.parent)
    assert len(kept) > 0
    assert not [name for name, data in kept if b"s3cr3t" in name.encode() + data]


def files(folder: Path) -> list[tuple[str, bytes]]:
    return [(file.name, file.read_bytes()) for file in folder.rglob("*") if file.is_file()]


async def test_two_programs_with_other_names_share_a_page_unless_it_varies_by_them(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """N6: RFC 9111, 4.1: two user agents alternate, and each has its own copy where the site says so"""
    site.page("/same", "x", headers=HOUR)
    site.on("/own", lambda visit: Reply(body=visit.header("User-Agent") or "", headers={**HOUR, "Vary": "User-Agent"}))
    agents = [f"bot{number}/1.0 (+https://example.org/bot)" for number in (1, 2)]

    async with keeping(place, clock, user_agent=agents[0]) as one, keeping(place, clock, user_agent=agents[1]) as two:
        for _ in range(2):
            await one.fetch(site.url("/same"))
            await two.fetch(site.url("/same"))
        texts = [(await web.fetch(site.url("/own"))).text for web in (one, two, one, two)]

    assert site.count("/same") == 1
    assert texts == [*agents, *agents]
    assert site.count("/own") == 2


async def test_what_a_cookie_was_shown_is_not_for_who_has_another(site: Site, place: Path, clock: FakeClock) -> None:
    """F62: the cookies of a client are part of its requests"""
    site.on("/in", lambda visit: Reply(body="x", headers={"Set-Cookie": f"id={site.count('/in')}; Path=/"}))
    site.on("/me", lambda visit: Reply(body=visit.header("Cookie") or "none", headers=HOUR))

    async with (
        keeping(place, clock, cookies=True) as one,
        keeping(place, clock, cookies=True) as two,
        keeping(place, clock) as three,
    ):
        await one.fetch(site.url("/in"))
        await two.fetch(site.url("/in"))
        texts = [(await web.fetch(site.url("/me"))).text for web in (one, two, three) * 2]

    assert texts == ["id=1", "id=2", "none"] * 2
    assert site.count("/me") == 3


async def test_a_copy_stands_in_only_for_requests_that_it_answers(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 5861, 4: stale-if-error; and offline"""
    site.on(
        "/a",
        lambda visit: Reply(
            body=visit.header("X-Api-Key") or "", headers=dated(clock, "max-age=1, stale-if-error=600")
        ),
    )
    key, other = {"X-Api-Key": "1"}, {"X-Api-Key": "2"}

    async with keeping(place, clock, max_retries=0) as web:
        await web.fetch(site.url("/a"), headers=key)
        clock.advance(60)
        site.reply("/a", Reply(500))
        ours, theirs = [await web.fetch(site.url("/a"), headers=each) for each in (key, other)]
    async with keeping(place, clock, cache_mode="offline") as web:
        replayed, missing = [await web.fetch(site.url("/a"), headers=each) for each in (key, other)]

    assert (ours.text, ours.record.cache) == ("1", "stale")
    assert (theirs.status, theirs.from_cache) == (500, False)
    assert replayed.text == "1"
    assert missing.reason is Reason.NOT_IN_CACHE


async def test_each_variant_is_renewed_behind(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 5861, 3: two at once, of one URL"""
    site.on(
        "/a",
        lambda visit: Reply(
            body=visit.header("X-Api-Key") or "", headers=dated(clock, "max-age=1, stale-while-revalidate=600")
        ),
    )
    keys = [{"X-Api-Key": "1"}, {"X-Api-Key": "2"}]

    async with keeping(place, clock) as web:
        for key in keys:
            await web.fetch(site.url("/a"), headers=key)
        clock.advance(60)
        texts = [each.text for each in await asyncio.gather(*(web.fetch(site.url("/a"), headers=key) for key in keys))]
        await until(lambda: site.count("/a") == 4)

    assert texts == ["1", "2"]
    assert sorted(str(visit.header("X-Api-Key")) for visit in site.journal if visit.path == "/a") == [
        "1",
        "1",
        "2",
        "2",
    ]


async def test_a_change_drops_every_variant_and_a_secret_answer_only_its_own(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """RFC 9111, 4.4 and 5.2.2.5"""
    site.on("/a", echo)
    keys: list[dict[str, str]] = [{}, {"X-Api-Key": "1"}, {"X-Api-Key": "2"}]

    async def hits() -> list[bool]:
        return [(await web.fetch(site.url("/a"), headers=key)).from_cache for key in keys]

    async with keeping(place, clock) as web:
        assert await hits() == [False] * 3
        site.reply("/a", Reply(body="x", headers={"Cache-Control": "no-store"}))
        await web.fetch(site.url("/a"), headers={**keys[1], "Cache-Control": "no-cache"})
        site.on("/a", echo)
        assert await hits() == [True, False, True]

        await web.fetch(site.url("/a"), method="POST")
        assert await hits() == [False] * 3


async def test_a_copy_whose_304_has_another_vary_is_kept_by_it(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9111, 3.2: the fields of a 304 replace those that are kept"""
    tag = {"ETag": '"1"'}
    site.script("/a", [Reply(body="x", headers=tag), Reply(304, headers={**tag, **HOUR, "Vary": "User-Agent"})])

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(3)]
    async with keeping(place, clock, user_agent="other/1.0 (+https://example.org/bot)") as web:
        other = await web.fetch(site.url("/a"))

    assert [(each.text, each.record.cache) for each in results] == [("x", None), ("x", "revalidated"), ("x", "hit")]
    assert not other.from_cache


@pytest.mark.parametrize("varies", [("TE", "User-Agent"), ("User-Agent", "TE")])
async def test_a_page_that_comes_with_another_vary_takes_the_place_of_the_copy_that_answered_before(
    site: Site, place: Path, clock: FakeClock, varies: tuple[str, str]
) -> None:
    """RFC 9111, 4.1: else the old copy stays the answer, and the new one is requested each time"""
    left = list(varies)

    def page(visit: Visit) -> Reply:
        vary = left.pop(0) if len(left) > 1 else left[0]
        return Reply(body=vary, headers=dated(clock, "max-age=3600", Vary=vary))

    site.on("/a", page)

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(4000)
        results = [await web.fetch(site.url("/a")) for _ in range(2)]
    async with keeping(place, clock, cache_mode="offline") as web:
        offline = await web.fetch(site.url("/a"))

    assert [(each.text, each.from_cache) for each in results] == [(varies[1], False), (varies[1], True)]
    assert offline.text == varies[1]
    assert site.paths().count("/a") == 2


# --- 304 -----------------------------------------------------------------------------------------------------------


async def test_a_304_of_a_later_date_is_answered_by_one_more_request_without_conditions(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """RFC 9111, 4.3.4: else the old body would be kept under the new date, and hold for ever"""
    first, second = ({"Last-Modified": f"Mon, 0{day} Jan 2024 00:00:00 GMT"} for day in (1, 8))
    dull = {"Cache-Control": "max-age=0"}
    site.script(
        "/a",
        [Reply(body="old", headers={**first, **dull}), Reply(304, headers=second), Reply(body="new", headers=second)],
    )

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert [each.text for each in results] == ["old", "new"]
    asked = [visit.header("If-Modified-Since") for visit in site.journal if visit.path == "/a"]
    assert asked == [None, first["Last-Modified"], None]


async def test_a_304_of_an_earlier_date_confirms_the_copy(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9110, 13.1.3: a page that is older than the date has not changed since"""
    first, second = ({"Last-Modified": f"Mon, 0{day} Jan 2024 00:00:00 GMT"} for day in (8, 1))
    site.script("/a", [Reply(body="x", headers={**first, "Cache-Control": "max-age=0"}), Reply(304, headers=second)])

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert [(each.text, each.record.cache) for each in results] == [("x", None), ("x", "revalidated")]


async def test_a_304_for_another_version_is_answered_by_one_more_request_without_conditions(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """F15: it never fails a fetch, and passes the gate again"""
    site.script(
        "/a",
        [Reply(body="old", headers={"ETag": '"1"'}), Reply(304, headers={"ETag": '"9"'}), Reply(body="new")],
    )

    async with keeping(place, clock, max_retries=0) as web:
        results = [await web.fetch(site.url("/a"))]
        began = clock.now().at
        results.append(await web.fetch(site.url("/a")))

    assert [(each.text, each.record.cache, each.record.attempts) for each in results] == [
        ("old", None, 1),
        ("new", None, 2),
    ]
    assert [visit.header("If-None-Match") for visit in site.journal[1:]] == [None, '"1"', None]
    assert clock.now().at - began >= 2 * 1.5 * SECOND


async def test_a_304_to_a_request_without_conditions_fails_and_drops_the_copy(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """F15"""
    other = Reply(304, headers={"ETag": '"9"'})
    site.script("/a", [Reply(body="old", headers={"ETag": '"1"'}), other, other, Reply(body="new")])

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(3)]

    assert [each.reason for each in results] == [None, Reason.BAD_RESPONSE, None]
    assert results[2].text == "new"
    assert site.count("/a") == 4


async def test_a_copy_may_stand_in_if_the_second_request_fails(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 5861, 4"""
    site.on(
        "/a",
        lambda visit: Reply(body="old", headers=dated(clock, "max-age=1, stale-if-error=600", ETag='"1"')),
    )

    async with keeping(place, clock, max_retries=0) as web:
        await web.fetch(site.url("/a"))
        clock.advance(60)
        site.script("/a", [Reply(304, headers={"ETag": '"9"'}), Reply(503)])
        result = await web.fetch(site.url("/a"))

    assert (result.text, result.record.cache) == ("old", "stale")


async def test_the_usual_workaround_of_apache_costs_no_page(site: Site, place: Path, clock: FakeClock) -> None:
    """N6: it answers `"x-gzip"` by a 304 for `"x"`"""

    def answer(visit: Visit) -> Reply:
        if '"x"' in (visit.header("If-None-Match") or "").split(", "):
            return Reply(304, headers={"ETag": '"x"'})
        return Reply(body="page", headers={"ETag": '"x-gzip"'})

    site.on("/a", answer)

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(4)]

    assert [(each.text, each.record.cache) for each in results] == [("page", None)] + [("page", "revalidated")] * 3
    assert [visit.header("If-None-Match") for visit in site.journal[2:]] == ['"x-gzip", "x"'] * 3
