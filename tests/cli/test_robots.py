"""`curtsy robots`: a file or a site, as curtsy reads it."""

from __future__ import annotations

import re

import pytest

from tests.cli.documented import FIELDS
from tests.cli.shell import Shell
from tests.support.site import Reply, Site, closed_port
from tests.support.snapshot import Snapshot

FILE = b"""\
User-agent: Googlebot
User-agent: Bingbot
Disallow: /search

User-agent: *
Disallow: /private/
Allow: /private/open
Crawl-delay: 2
Disalow: /drafts/\x1b]0;owned\x07
Content-Signal: search=yes, ai-train=no
Sitemap: https://example.org/sitemap.xml
"""


def test_a_local_file_is_shown_with_what_applies_to_us_and_what_is_odd(shell: Shell, snapshot: Snapshot) -> None:
    """R2, R12, U11: groups, delays, sitemaps, signals, oddities; nothing in it can steer a terminal"""
    (shell.project / "robots.txt").write_bytes(FILE)

    done = shell.cold("robots", "robots.txt", "--test", "/private/a", "--test", "/private/open/b", "--test", "/c")
    narrow = shell("robots", "robots.txt", "--all", COLUMNS="40")

    lines = [line.strip() for line in done.out.splitlines()]
    assert done.code == 3
    [theirs, ours] = [line for line in lines if re.match(r"(▸ )?User-agent: ", line)]
    assert theirs.startswith("User-agent: googlebot, bingbot  ")
    assert re.findall(r"\d+", theirs) == ["1", "1"]
    assert ours.startswith("▸ User-agent: *  ")
    assert re.findall(r"\d+", ours) == ["5", "3"]
    snapshot(ours)
    assert "Disallow: /search" not in done.out
    assert "Disallow: /search" in narrow.out
    assert "https://example.org/sitemap.xml" in lines
    assert any(line.startswith("Crawl-delay: 2 s") for line in lines)
    assert any(line.startswith("10  ") and line.endswith(" search=yes, ai-train=no") for line in lines)
    assert any(line.startswith("9  ") and "disallow" in line for line in lines)
    [forbidden] = [line for line in lines if line.startswith("✗  /private/a ")]
    assert "line 6" in forbidden
    assert '"Disallow: /private/"' in forbidden
    assert any(line.startswith("✓  /c ") for line in lines)
    assert "\x1b" not in done.out
    assert r"\x1b]0;owned\x07" in done.out
    assert max(map(len, narrow.out.splitlines())) <= 40


def test_another_agent_and_standard_input(shell: Shell) -> None:
    """R2: `--agent`, and `--json` with every group"""
    done = shell("robots", "-", "--agent", "Bingbot/2.0", "--test", "/private/a", "--json", stdin=FILE)

    found = done.json
    assert (done.code, done.err) == (0, "")
    assert set(found) == FIELDS["robots"]
    assert (found["agent"], found["crawl_delay"]) == ("Bingbot", None)
    assert [(group["line"], group["agents"], group["applies"]) for group in found["groups"]] == [
        (1, ["googlebot", "bingbot"], True), (5, ["*"], False)
    ]  # fmt: skip
    assert found["groups"][0]["rules"] == [{"line": 3, "text": "Disallow: /search"}]
    assert [test["allowed"] for test in found["tests"]] == [True]


def test_the_file_of_a_site_is_asked_for_once_and_remembered(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """R5, R6: `--refresh` asks anew; a site without one, and one that may not be asked, are told"""
    site.robots("", status=404, host="127.0.0.2")

    first = shell("robots", site.url("/any/page"))
    second = shell("robots", site.url("/"), "--json", "--test", "/private/x")
    asked = site.paths()
    shell("robots", site.url("/"), "--refresh")
    none = shell("robots", site.url("/", host="127.0.0.2"))
    refused = shell("robots", site.url("/"), "--refresh", CURTSY_ALLOW_PRIVATE=None)

    assert (first.code, second.code, asked) == (0, 3, ["/robots.txt"])
    assert second.json["tests"][0]["line"] == 2
    assert site.paths("127.0.0.1") == ["/robots.txt"] * 2
    snapshot(none.out.splitlines()[-1])
    assert refused.code == 3
    assert "allow_private" in refused.err


def test_several_files_are_shown(shell: Shell, site: Site) -> None:
    """R5: one request for each site"""
    urls = (site.url("/"), site.url("/a"), site.url("/", host="127.0.0.2"))

    done = shell("robots", urls[0], "-i", "-", "--json", "--test", "/private/", stdin="\n".join(urls[1:]))
    people = shell("robots", *urls)

    assert [each["source"] for each in done.lines] == [f"{url.rpartition('/')[0]}/robots.txt" for url in urls]
    assert (done.code, people.code, site.count("/robots.txt"), people.out.count("robots.txt\n")) == (3, 0, 2, 3)
    assert shell("robots").code == 2


def test_what_is_neither_file_nor_url_is_told(shell: Shell, snapshot: Snapshot) -> None:
    """U1"""
    done = shell("robots", "robots.txt")

    assert done.code == 2
    assert "robots.txt" in done.err
    snapshot(done.err)


@pytest.mark.parametrize("path", ["a", "private/x", "?q=1", ""])
def test_a_path_without_its_slash_is_not_guessed_at(shell: Shell, site: Site, path: str, snapshot: Snapshot) -> None:
    """R3: it would match no rule, and so be called allowed"""
    (shell.project / "robots.txt").write_text("User-agent: *\nDisallow: /a\n")

    ends = [shell("robots", source, "--test", path) for source in ("robots.txt", site.url("/"))]

    assert [(done.code, done.out) for done in ends] == [(2, "")] * 2
    assert f"--test {path!r} " in ends[0].err
    assert ends[0].err == ends[1].err
    snapshot(ends[0].err)
    assert site.journal == []


def test_while_a_file_cannot_be_had_what_holds_is_said_and_for_how_long(shell: Shell, snapshot: Snapshot) -> None:
    """R6, C5: as the settings have it, for the paths that are tested too"""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"

        allowed = shell("robots", url, "--test", "/a")
        strict = shell("robots", url, "--test", "/a", "--json", CURTSY_ROBOTS_UNREACHABLE="disallow")

    assert (allowed.code, strict.code) == (1, 3)
    assert "robots_unreachable: allow" in allowed.out
    assert re.search(r"\b[45] min\b", allowed.out)
    assert "✓  /a" in allowed.out
    assert "robots_unreachable: disallow" in strict.json["instead"]
    snapshot(strict.json["instead"].partition(". ")[0])
    assert [test["allowed"] for test in strict.json["tests"]] == [False]


def test_of_a_file_that_broke_off_what_came_is_shown_and_holds(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """C21, R6"""
    text = "User-agent: *\nDisallow: /private\nDisallow: /zzz\n"
    site.reply("/robots.txt", Reply(body=text, stop_after=len(text) - 5, end="close"))

    done = shell("robots", site.url("/"), "--test", "/private", "--test", "/page", "--json")
    why = shell("why", site.url("/private"), "--json")

    shown = done.json
    assert done.code == 3
    assert [(each["allowed"], each["line"]) for each in shown["tests"]] == [(False, 2), (True, None)]
    assert [rule["text"] for rule in shown["groups"][0]["rules"]] == ["Disallow: /private"]
    snapshot(shown["note"].rpartition(". ")[0])  # without the time until it is asked for again
    assert why.json["reason"] == "robots_disallowed"
    [robots] = [check for check in why.json["checks"] if check["name"] == "robots.txt"]
    assert (robots["line"], robots["rule"]) == (2, "Disallow: /private")


def test_a_proxy_that_cannot_be_reached_is_named(shell: Shell, snapshot: Snapshot) -> None:
    """U11: the site was not asked, so it is no refusal"""
    with closed_port() as port:
        done = shell("robots", "http://shop.test/", "--allow-private", HTTP_PROXY=f"http://127.0.0.1:{port}")

    assert done.code == 1
    assert "http://shop.test/robots.txt" in done.err
    assert f"http://127.0.0.1:{port} " in done.err
    snapshot(done.err)
