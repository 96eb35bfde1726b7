"""Secrets: masked in every text that is shown, in time linear in its length (F62, F32)."""

from __future__ import annotations

import ast
import json
import random
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import curtsy
from curtsy.core.cache import Entry
from curtsy.core.effects import FetchRequest
from curtsy.core.masking import mask_line, mask_url, mask_urls
from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers, Request
from curtsy.core.url import InvalidUrl, Url, parse_url
from curtsy.crawling.frontier.protocol import Claimed, Found
from curtsy.crawling.results import SkippedUrl
from tests.support.bounds import cpu_within, slowness

SECRET = "geheim4711"
TOKEN_URL = f"https://example.org/?access_token={SECRET}&page=2"

# --- What is hidden

odd = st.text(st.sampled_from(" \t\u00a0\u2028\u3000<>\"'`:@&;,.%aZ0-"), max_size=6)


@given(odd, odd, odd)
@example("user", "pa ", "ss")
@example("us er", "", "")
@example("user", "", "<b>")
@example("user", "a\u2028", "")
@example("", "", "")
def test_a_login_is_hidden_whatever_is_in_it(user: str, before: str, after: str) -> None:
    """F62"""
    masked = mask_url(f"https://{user}:{before}{SECRET}{after}@example.org/")

    assert SECRET not in masked
    assert masked.endswith("@example.org/")


@given(odd.filter(lambda user: "." not in user), odd, odd)  # x.y is a host, and behind it are other words
def test_a_login_is_hidden_within_other_text(user: str, before: str, after: str) -> None:
    """F62"""
    assert SECRET not in mask_url(f"not fetching https://x{user}:y{before}{SECRET}{after}@example.org/: no answer")


@given(st.text(st.sampled_from("/?#&=:aZ ")), st.text(st.sampled_from("/?#&=:@aZ ")))
def test_a_password_with_a_raw_slash_is_hidden(before: str, after: str) -> None:
    """F62"""
    assert SECRET not in mask_url(f"https://user:x{before}{SECRET}{after}@example.org/")


@given(st.integers(0, 4), st.sampled_from([str, str.lower]))
def test_secrets_of_a_url_inside_another_are_hidden_however_often_it_is_encoded(times: int, written: object) -> None:
    """F62"""
    inner = f"https://user:{SECRET}@example.org/?a=1&token={SECRET}&b=2"
    for _ in range(times):
        inner = quote(inner, safe="")

    masked = mask_url(f"https://example.com/login?next={inner}&page=2")

    assert SECRET not in masked
    assert masked.startswith("https://example.com/login?next=https")
    assert masked.endswith("&page=2")


def test_what_is_encoded_once_more_belongs_to_the_secret() -> None:
    """F62: a slash in a password, and an ampersand in a token"""
    inner = quote(f"https://user:a%2F{SECRET}@example.org/?token=a%26{SECRET}", safe="")

    assert SECRET not in mask_url(f"https://example.com/?next={inner}")


@pytest.mark.parametrize(
    "text",
    [
        "Bot/1.0 (+https://example.org; me@example.org)",
        "Bot/1.0 (+https://example.org:8080, mailto:me@example.org)",
        "see https://example.org or write to me@example.org",
        'ask "https://example.org" or me@example.org',
        "Disallow: /*?sid=*",
        "Disallow: /*?token=*$",
    ],
)
def test_a_host_beside_an_address_is_no_login(text: str) -> None:
    """F62: a User-Agent names both"""
    assert mask_url(text) == text


@given(
    st.lists(st.text(st.sampled_from("htps://@?&=%34025.token"), max_size=30).map("https://a.org/".__add__), max_size=4)
)
@example(["", "https://user:secret@a.org/"])
@example(["", "?token=secret"])
def test_many_urls_are_hidden_as_each_is(urls: list[str]) -> None:
    """F62"""
    urls = [f"https://a.org/{url}" for url in urls]

    assert mask_urls(tuple(urls)) == tuple(map(mask_url, urls))


@given(st.text(st.sampled_from('://@?&;#=%\\" <a1.token'), max_size=40))
def test_masking_twice_changes_nothing(text: str) -> None:
    """F62"""
    once = mask_url(text)

    assert mask_url(once) == once


nested = st.recursive(
    st.text(st.sampled_from('://@?&=\\" tokenCie\n'), max_size=12) | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "Cookie", "url"]), inner),
    max_leaves=6,
)


@given(nested)
@example({"Cookie": [["a"], ["b"]]})
@example({"Cookie": {"a": {"b": "c"}}})
@example(["?token=a\\", "?token=b", "cookie"] * 40)
def test_a_line_of_json_stays_json(value: object) -> None:
    """N1, F62"""
    json.loads(mask_line(json.dumps(value)))
    json.loads(mask_line(json.dumps(value, ensure_ascii=False)))


def test_every_header_with_credentials_is_hidden_as_a_whole() -> None:
    """F62"""
    line = mask_line(json.dumps({"headers": {"Cookie": [[SECRET], {"a": [SECRET]}]}, "status": 200}))

    assert json.loads(line) == {"headers": {"Cookie": "***"}, "status": 200}


def test_lower_case_changes_the_length_of_one_letter_only() -> None:
    """What masking relies on"""
    assert [letter for letter in map(chr, range(0x110000)) if len(letter.lower()) != 1] == ["\u0130"]


# --- What is shown of values


RECORD = FetchRecord(
    TOKEN_URL, TOKEN_URL, "example.org", "GET", 200, None, 1, 0, 0.0, 0.1, 9, None, None, None, None, None, 0.0
)  # fmt: skip
URL = parse_url(TOKEN_URL.replace("://", f"://user:{SECRET}@"))


@pytest.mark.parametrize(
    "value",
    [
        RECORD,
        URL,
        InvalidUrl(f"https://us er:{SECRET}@", "it has no host"),
        Request(URL, headers=Headers([("Cookie", SECRET), ("authorization", SECRET), ("Referer", TOKEN_URL)])),
        FetchRequest(TOKEN_URL, headers=Headers([("Authorization", SECRET)])),
        SkippedUrl(TOKEN_URL, "other_host", parent=TOKEN_URL),
        Claimed(TOKEN_URL, "example.org", 0, 0, TOKEN_URL, 0, 0, 0, 0.0),
        Found([TOKEN_URL], parent=TOKEN_URL),
        Entry(TOKEN_URL, "", 200, (("Location", TOKEN_URL),), "", 0, 0.0),
    ]
    if isinstance(URL, Url)
    else [],
    ids=lambda value: type(value).__name__,
)
def test_the_repr_of_a_value_has_no_secret(value: object) -> None:
    """F62"""
    assert SECRET not in repr(value)
    assert SECRET not in str(value)
    assert type(value).__name__ in repr(value)


MASKED_BEFORE = {
    "Explanation", "Example", "IndexEntry", "PageEntry", "Fetch",  # by what makes them
    "Listed", "_Meta",  # never shown by their repr
}  # fmt: skip


def test_every_value_with_a_url_masks_its_repr() -> None:
    """F62: the repr that a dataclass or a Struct gets by itself shows the URL as it is"""
    bare = set()
    for file in Path(curtsy.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for kind in ast.walk(ast.parse(text)) if "url: str" in text or "urls: " in text else ():
            if isinstance(kind, ast.ClassDef) and (kind.decorator_list or "Struct" in ast.unparse(kind)):
                shown = {each for line in kind.body if isinstance(line, ast.AnnAssign) for each in [ast.unparse(line)]}
                has_url = any(
                    each.split(":")[0] in ("url", "final_url", "urls") and "str" in each and "repr=False" not in each
                    for each in shown
                )
                if has_url and "__repr__" not in ast.unparse(kind):
                    bare.add(kind.name)

    assert bare <= MASKED_BEFORE, bare - MASKED_BEFORE


# --- How long it takes

MOST = 0.050
"""Seconds of CPU for a megabyte."""

PIECES = (
    *("://", "@", ":", "/", "//", "%40", "%25", "%3A", "%2F", "%3D", "%26", "%3F", "%2540", "%253a%252f%252f"),
    *("&", "?", ";", "#", "=", "<", '"', "'", "\\", " ", "\n", "\u2028", "\u00a0", "\u0130", "é", "%", "-", "[", "*"),
    *("a", "s", "pa", "sess", "sessi", "token", "pw", "key", "pass", "auth", "cod", "hmac", "x.y", "1", "cookie"),
)
SHAPES = (
    *("/N/@://a:://a:", "://a:", "@://a:", "://@ ", "://:a/@ ", "%3a%2f%2fa%40", "%253a%252f%252f", "%25", "%%40"),
    *("?a=", "?pw=x&", "?token=", "&sid=x;", "?tokentoken", "%3fpw%3dx", "%25253fpw%25253dx%26", "\nkey=&", "?code="),
    *('"?pw=x",', "cookie: '", "://a.b ", "://a.b.c.d:1; ", "\u2028://@", "token=x "),
    "https://user:pass@example.org:8080/a/../b;c?d=e&token=f#g",
    *(
        "code=",
        "acode=",
        "_code=",
        "userpw=%3d&credentia-;https://%26%40tok......",
        "c-%3A%2F%2Fpass=#_%3A%2F%2F?akey=authcode",
    ),
)


def cost(text: str) -> float:
    """Seconds of CPU for a megabyte of such text, on a quiet machine; the best of five."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        mask_url(text)
        taken.append(time.process_time() - began)
        if taken[-1] * 1_000_000 < MOST * len(text):
            break
        taken[-1] /= slowness()
    return min(taken) * 1_000_000 / len(text)


@pytest.mark.alone
@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_is_slow_to_mask(shape: str) -> None:
    """F32, F62: time is linear in the length, and little"""
    assert cost(shape * (300_000 // len(shape))) < MOST
    assert cost(f"@ ?a=1 {shape * (300_000 // len(shape))}@") < MOST
    assert cost(f"https://example.org/{shape * (2_000 // len(shape))}" * 100) < MOST


@pytest.mark.alone
def test_no_mixture_is_slow_to_mask() -> None:
    """F32, F62: the slowest of a small search are mixed again"""
    dice = random.Random(62)
    pool = [[dice.choice(PIECES) for _ in range(dice.randint(1, 6))] for _ in range(60)]
    worst: list[tuple[float, list[str]]] = []
    for _ in range(5):
        for shape in pool:
            text = "".join(shape)
            worst.append((cost(text * (30_000 // len(text))), shape))
        worst = sorted(worst, key=lambda each: -each[0])[:15]
        pool = [_changed(shape, dice) for _, shape in worst for _ in range(3)]

    assert worst[0][0] < MOST, worst[:3]


def _changed(shape: list[str], dice: random.Random) -> list[str]:
    shape = list(shape)
    place = dice.randrange(len(shape))
    match dice.randrange(3):
        case 0:
            shape[place] = dice.choice(PIECES)
        case 1:
            shape.insert(place, dice.choice(PIECES))
        case _ if len(shape) > 1:
            del shape[place]
    return shape


@pytest.mark.alone
def test_a_line_of_json_is_masked_in_linear_time() -> None:
    """F32, F62"""
    for text in ("cookie: '", '"cookie":[', "cookie    ", "?pw=x&", "://a:", "authorization,'"):
        for value in (text * 20_000, [text] * 20_000, {"cookie": text * 20_000}):
            line = json.dumps(value)
            with cpu_within(0.5 * len(line) / 1_000_000 + 0.1):
                mask_line(line)
