"""`curtsy cache` and `curtsy download`: what is kept, and what is saved."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from curtsy.cache.disk import DiskCache
from curtsy.cache.opening import open_cache
from curtsy.cli.cache import SCREEN
from curtsy.cli.trace import Progress, StepLines
from curtsy.core.policy import Policies, Policy
from curtsy.core.request import Request
from curtsy.core.url import Url, parse_url
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell, stop
from tests.support.pages import NOW, page
from tests.support.polling import block_until
from tests.support.site import Reply, Site, cut_short, encoded, hang
from tests.support.snapshot import Snapshot


def test_kept_pages_are_listed_shown_verified_and_cleared(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N6, N7: `ls`, `show`, `verify`, `gc`, `clear`"""
    shell.env["CURTSY_CACHE_DIR"] = str(shell.home / "pages")
    site.page("/b", "b" * 1000, headers={"Cache-Control": "max-age=600"})
    shell("get", site.url("/"), site.url("/b"))

    listed, as_json = shell.cold("cache", "ls"), shell("cache", "ls", "--json", "127.0.0.1").json
    show, body = shell("cache", "show", "--json", site.url("/")), shell("cache", "show", "--body", site.url("/"))
    [damaged] = (shell.home / "pages").rglob(f"{_stem(site.url('/b'))}.html")
    damaged.write_text("something else")
    os.utime(damaged.with_suffix(".meta.json"), (1, 1))  # nobody is writing it just now
    verified, again = shell("cache", "verify", "--json"), shell("cache", "verify")
    missing = shell("cache", "show", site.url("/b"))
    cleared, empty = shell("cache", "clear", "127.0.0.1", "--json"), shell("cache", "ls")

    assert [line.split()[-1] for line in listed.out.splitlines()[1:]] == [site.url("/b"), site.url("/")]
    assert "2 pages" in listed.err
    assert all(set(page) == FIELDS["cache ls"] for page in as_json)
    assert set(show.json) == FIELDS["cache show"]
    assert (show.json["status"], show.json["etag"]) == (200, '"1"')
    assert body.out == "<title>Home</title>\n"
    assert (verified.code, verified.json) == (1, {"good": 1, "damaged": 1})
    assert '"level":"warn"' in verified.err
    assert (again.code, re.findall(r"\d+", again.err)) == (0, ["1", "0"])
    snapshot(again.err, "verified")
    assert missing.code == 1
    assert cleared.json == {"dropped": 1, "left": 0}
    assert (empty.code, empty.out) == (0, "")
    snapshot(empty.err, "nothing kept")


def _stem(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def test_the_cache_is_made_to_fit_and_forgotten_only_when_asked_for_clearly(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """N6: `gc --max-size`, `clear --all`"""
    shell("get", "--json", site.url("/"))

    unclear = shell("cache", "clear")
    shrunk = shell("cache", "gc", "--max-size", "0", "--json")
    shell("get", "--json", site.url("/"))
    cleared = shell("cache", "clear", "--all", "--json")

    assert unclear.code == 2
    assert "--all" in unclear.err
    snapshot(unclear.err)
    assert set(shrunk.json) == FIELDS["cache gc"]
    assert shrunk.json["size"] == 0 < shrunk.json["freed"]
    assert (cleared.code, cleared.json) == (0, {"dropped": 1, "left": 0})


@pytest.mark.parametrize("place", [None, "pages"])
def test_a_long_list_is_written_in_parts_and_can_be_limited(shell: Shell, site: Site, place: str | None) -> None:
    """Issue 16, C24: the default cache is one file; a named folder holds files"""
    if place is not None:
        shell.env["CURTSY_CACHE_DIR"] = str(shell.home / place)
    path = shell.home / place if place else Path(shell.env["XDG_CACHE_HOME"], "curtsy", "pages.sqlite")
    shell("get", "--json", site.url("/"))
    assert path.is_file() if place is None else list(path.rglob("*.html"))
    with closing(open_cache(path, None)) as kept:
        for number in range(SCREEN + 5):
            kept.keep(*page(f"https://www.example.org/{number}", now=NOW + number))

    every, some = shell("cache", "ls", "example.org"), shell("cache", "ls", "-n", "3")
    other, as_json = shell("cache", "ls", "ample.org"), shell("cache", "ls", "--json", "example.org").json

    urls = [f"https://www.example.org/{number}" for number in reversed(range(SCREEN + 5))]
    assert [line.split()[-1] for line in every.out.splitlines()] == ["url", *urls]
    assert len({line.index("https") for line in every.out.splitlines()[1:]}) == 1
    assert [line.split()[-1] for line in some.out.splitlines()] == ["url", *urls[:3]]
    assert other.out == ""
    assert [each["url"] for each in as_json] == urls


@pytest.mark.parametrize(("place", "target"), [("pages", "copy.sqlite"), ("pages.sqlite", "copy")])
def test_pages_are_exported_from_either_form_to_the_other(shell: Shell, site: Site, place: str, target: str) -> None:
    """C24: every variant with its body and validators; a URL with a masked secret is counted and left out"""
    shell.env["CURTSY_CACHE_DIR"] = str(shell.home / place)
    language = ["-H", "Accept-Language: de"]
    site.page("/v", "hello", headers={"Vary": "Accept-Language"})
    shell("get", site.url("/"), site.url("/v"))
    shell("get", *language, site.url("/v"))
    kept = shell("cache", "ls", "--json").json

    done = shell("cache", "export", shell.home / target, "127.0.0.1", "--json")
    itself = shell("cache", "export", shell.home / place)
    shell("get", "--json", site.url("/?token=s3cret"))
    masked = shell("cache", "export", shell.home / target)

    shell.env["CURTSY_CACHE_DIR"] = str(shell.home / target)
    assert (done.code, done.json) == (0, {"copied": 3, "failed": 0})
    assert shell("cache", "ls", "--json").json == kept
    assert shell("cache", "show", "--body", site.url("/")).out == "<title>Home</title>\n"
    assert itself.code == 2
    assert (masked.code, re.findall(r"(\d+) page", masked.err)) == (1, ["3", "1"])


@pytest.mark.parametrize("place", ["pages", "pages.sqlite"])
def test_pages_with_secrets_in_their_urls_are_cleared_with_their_host(shell: Shell, site: Site, place: str) -> None:
    """N6, F62: they are masked where they are kept"""
    shell.env["CURTSY_CACHE_DIR"] = str(shell.home / place)
    shell("get", "--json", site.url("/?token=s3cret"))

    kept = shell("cache", "ls")
    other, cleared = shell("cache", "clear", "other.example"), shell("cache", "clear", "127.0.0.1", "--json")

    assert "/?token=***" in kept.out
    assert other.code == 0
    assert "0 pages" in other.err
    assert (cleared.code, cleared.json) == (0, {"dropped": 1, "left": 0})
    assert shell("cache", "ls").out == ""


def test_pages_in_folders_with_names_of_their_own_are_shown_and_cleared(shell: Shell, snapshot: Snapshot) -> None:
    """N6: `<collection>/<document>` instead of the host"""
    place = shell.home / "pages"
    shell.env["CURTSY_CACHE_DIR"] = str(place)
    DiskCache(place, collection="handbook", document="one").keep(*page("https://example.org/a", b"hello"))

    show = shell("cache", "show", "--body", "https://example.org/a")
    missing = shell("cache", "show", "https://example.org/b")
    cleared = shell("cache", "clear", "example.org")

    assert (show.code, show.out) == (0, "hello")
    assert missing.code == 1
    assert cleared.code == 0
    assert "1 page " in cleared.err
    snapshot(cleared.err)
    assert list(place.rglob("*.html")) == []


@pytest.mark.parametrize("place", ["pages", "pages.sqlite"])
def test_every_variant_of_a_page_is_listed_shown_and_cleared(shell: Shell, site: Site, place: str) -> None:
    """N6: one URL, kept for two keys and for none"""
    shell.env["CURTSY_CACHE_DIR"] = str(shell.home / place)
    site.on("/v", lambda visit: Reply(body=visit.header("X-Key") or "none", headers={"Cache-Control": "max-age=60"}))
    for key in ("one", "two"):
        shell("get", "--json", "-H", f"X-Key: {key}", site.url("/v"))
    shell("get", "--json", site.url("/v"))

    listed = shell("cache", "ls", "--json").json
    bodies = {
        shell("cache", "show", "--body", "--variant", each["variant"], site.url("/v")).out
        for each in listed
        if each["url"] == site.url("/v")
    }
    newest, missing = (
        shell("cache", "show", "--body", *more, site.url("/v")) for more in ((), ("--variant", "f" * 16))
    )
    table = shell("cache", "ls").out
    cleared = shell("cache", "clear", "127.0.0.1", "--json")

    assert bodies == {"one", "two", "none"}
    assert newest.out == "none"
    assert "3 variants" in newest.err
    assert (missing.code, missing.out) == (1, "")
    assert all((each["variant"] or "–") in table for each in listed)
    assert cleared.json["left"] == 0
    assert shell("cache", "ls").out == ""


def test_pages_that_cannot_be_removed_are_told_of(shell: Shell, snapshot: Snapshot) -> None:
    """N6, U16"""
    place = shell.home / "pages"
    shell.env["CURTSY_CACHE_DIR"] = str(place)
    with closing(DiskCache(place)) as kept:
        kept.keep(*page("https://example.org/a"))
    done = subprocess.run(["mount", "--bind", place, place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no read-only view: a folder cannot be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        cleared = shell("cache", "clear", "example.org")
    finally:
        subprocess.run(["umount", "--lazy", place], check=False)

    assert cleared.code == 1
    assert "1 page " in cleared.err
    snapshot(cleared.err.splitlines()[-1])


def test_a_file_is_saved_whole_and_gone_on_with(shell: Shell, site: Site) -> None:
    """Q8, U15: streamed, resumed, its checksum reported"""
    content = bytes(range(256)) * 400
    site.reply("/data", cut_short(content, 50_000))
    broken = shell("download", site.url("/data"), "-o", "data.bin", "--json", CURTSY_MAX_RETRIES="0")
    site.page("/data", content, etag='"d"', ranges=True)

    done = shell.cold("download", site.url("/data"), "-o", "data.bin", "--json")
    too_large = shell("download", site.url("/data"), "-o", "other.bin", "--max-size", "1k")
    shown = shell.on_terminal("download", site.url("/data"), "-o", "third.bin")

    assert (broken.code, broken.json["reason"]) == (1, "incomplete")
    assert (done.code, set(done.json)) == (0, FIELDS["download"])
    assert done.json["sha256"] == hashlib.sha256(content).hexdigest()
    assert (shell.project / "data.bin").read_bytes() == content
    assert too_large.code == 1
    assert not (shell.project / "other.bin").exists()
    assert shown.code == 0
    assert "100.0 KB" in shown.out or "100 KB" in shown.out
    assert "100 KB of 100 KB" in shown.out
    assert "iB" not in shown.out


@pytest.mark.parametrize("etag", ['"d"', None], ids=["resumed", "anew"])
def test_a_download_that_is_stopped_says_what_is_kept_and_whether_it_is_resumed(
    shell: Shell, site: Site, etag: str | None, snapshot: Snapshot
) -> None:
    """Q8, U15: without a version of the file, the bytes cannot be joined with later ones"""
    content = bytes(range(256)) * 400
    headers = {} if etag is None else {"ETag": etag}
    site.reply("/data", Reply(200, content, headers=headers, stop_after=50_000, end="hang"))
    words = ("download", site.url("/data"), "-o", "data.bin")
    part = shell.project / "data.bin.part"

    process = shell.start(*words)
    block_until(lambda: part.exists() and part.stat().st_size == 50_000, process)
    stopped = stop(process)
    site.page("/data", content, etag=etag, ranges=True)
    again = shell(*words, "--json")

    assert (stopped.code, stopped.out) == (130, "")
    snapshot(stopped.err)
    assert (again.code, again.json["resumed_at"]) == (0, 50_000 if etag else 0)


def test_a_download_that_fails_or_is_stopped_early_says_what_is_kept(shell: Shell, site: Site) -> None:
    """Q8: nothing is promised of a file that did not begin"""
    site.reply("/data", cut_short(bytes(100_000), 50_000))
    site.reply("/slow", hang())

    broken = shell("download", site.url("/data"), "-o", "data.bin", CURTSY_MAX_RETRIES="0")
    process = shell.start("download", site.url("/slow"), "-o", "slow.bin")
    block_until(lambda: bool(site.count("/slow")), process)
    stopped = stop(process)

    assert (broken.code, broken.err.count("data.bin.part")) == (1, 1)
    assert (stopped.code, stopped.err.count("slow.bin"), ".part" in stopped.err) == (130, 1, False)


@pytest.mark.parametrize("kind", [Progress, StepLines])
def test_a_long_download_writes_a_line_now_and_then(
    kind: type[Progress | StepLines], capsys: pytest.CaptureFixture[str]
) -> None:
    """U15: standard error is no terminal here"""
    now, found = 0.0, parse_url("https://example.org/data")
    assert isinstance(found, Url)
    trace = kind(Policies(Policy()), clock=lambda: now)
    trace.sends(Request(found))
    capsys.readouterr()

    for now in range(0, 31, 2):
        trace.receives(2048 * (now + 1), 204_800)
    trace.receives(204_800, None)

    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("] ")[2] or line.removeprefix("curtsy: ") for line in lines] == [
        "22.0 KB of 200 KB, 2.0 KB/s, about 1 min 29 s left",
        "42.0 KB of 200 KB, 2.0 KB/s, about 1 min 19 s left",
        "62.0 KB of 200 KB, 2.0 KB/s, about 1 min 9 s left",
    ]


def test_a_forbidden_file_is_not_saved(shell: Shell, site: Site) -> None:
    """R1"""
    done = shell("download", site.url("/private/a"), "-o", "a.bin")

    assert (done.code, done.out) == (3, "")
    assert "robots.txt line 2" in done.err
    assert list(shell.project.iterdir()) == []


def test_a_file_that_is_labelled_as_coded_is_saved_as_it_comes_unless_it_is_to_be_decoded(
    shell: Shell, site: Site
) -> None:
    """U15: `--decode`"""
    packed = encoded(b"many words " * 100, "gzip")
    site.reply("/f.tar.gz", packed)
    raw, plain = shell.home / "raw", shell.home / "plain"

    done = [
        shell("download", site.url("/f.tar.gz"), "-o", str(raw)),
        shell("download", "--decode", site.url("/f.tar.gz"), "-o", str(plain)),
    ]

    assert [each.code for each in done] == [0, 0]
    assert raw.read_bytes() == packed.body
    assert plain.read_bytes() == b"many words " * 100
