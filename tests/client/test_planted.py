"""What others have put where curtsy writes: a link, a pipe, a file of theirs. What it leads to is never touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from curtsy.core.errors import NotWritten, Reason, StoreError
from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.jobs import WORKER_FILE, WorkerId
from curtsy.crawling.outputs.append_file import AppendFile, whole_lines
from curtsy.crawling.outputs.folder import create_whole
from curtsy.system.file_lock import FileLock
from curtsy.system.own_file import create_own, open_own
from tests.client.fetching import client
from tests.client.filing import CONTENT, SHA256, cut, files, served
from tests.support.site import Site
from tests.support.snapshot import Snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are of other systems")

SECRET = "what must not change"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(SECRET)
    return path


def said(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory in which everybody can write, as /tmp."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_link_in_the_place_of_a_part_is_not_followed(
    site: Site, victim: Path, shared: Path, is_there: bool, snapshot: Snapshot
) -> None:
    """U15: be there a file where it leads, or none"""
    if not is_there:
        os.unlink(victim)
    site.page("/file", CONTENT)
    (shared / "f.part").symlink_to(victim)

    async with client() as web:
        result = await web.download(site.url("/file"), shared / "f")

    assert (result.ok, result.reason) == (False, Reason.NOT_WRITTEN)
    assert "f.part" in result.message
    assert "symbolic link" in result.message
    snapshot(result.message)
    assert said(victim) == (SECRET if is_there else None)
    assert not (shared / "f").exists()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_link_in_the_place_of_a_note_is_replaced_and_not_followed(
    site: Site, victim: Path, shared: Path, is_there: bool
) -> None:
    """U15"""
    if not is_there:
        os.unlink(victim)
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))
    (shared / "f.part.json").symlink_to(victim)

    async with client() as web:
        result = await web.download(site.url("/file"), shared / "f")

    assert (result.ok, result.sha256) == (True, SHA256)
    assert result.resumed_at > 0
    assert said(victim) == (SECRET if is_there else None)
    assert files(shared / "f") == ["f"]


@pytest.mark.parametrize("name", ["f.part", "f.part.json"])
async def test_a_pipe_in_the_place_of_a_part_or_a_note_holds_nobody_up(site: Site, shared: Path, name: str) -> None:
    """U15"""
    site.page("/file", CONTENT)
    os.mkfifo(shared / name)

    async with client() as web:
        result = await web.download(site.url("/file"), shared / "f")

    assert result.reason is (Reason.NOT_WRITTEN if name == "f.part" else None)


async def test_a_part_that_another_user_has_left_where_all_can_write_is_not_used(site: Site, shared: Path) -> None:
    """U15: its owner could change it after its checksum was taken"""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    site.page("/file", CONTENT)
    (shared / "f.part").write_bytes(b"x")
    os.chown(shared / "f.part", 12345, 12345)

    async with client() as web:
        result = await web.download(site.url("/file"), shared / "f")
        os.chmod(shared, 0o755)
        own = await web.download(site.url("/file"), shared / "f")

    assert (result.ok, result.reason) == (False, Reason.NOT_WRITTEN)
    assert "another user" in result.message
    assert own.ok


async def test_a_hard_link_in_the_place_of_a_part_is_not_written(
    site: Site, victim: Path, tmp_path: Path, snapshot: Snapshot
) -> None:
    """U15: also in a directory that only its owner can write, who may be another user, or have linked a backup"""
    site.page("/file", CONTENT)
    os.link(victim, tmp_path / "f.part")

    async with client() as web:
        result = await web.download(site.url("/file"), tmp_path / "f")
        os.unlink(tmp_path / "f.part")
        again = await web.download(site.url("/file"), tmp_path / "f")

    assert (result.ok, result.reason) == (False, Reason.NOT_WRITTEN)
    assert "f.part" in result.message
    assert "hard link" in result.message
    snapshot(result.message)
    assert said(victim) == SECRET
    assert again.ok


def test_a_link_that_is_put_there_between_two_looks_is_found(victim: Path, shared: Path) -> None:
    """The kernel does not follow it: nothing is looked at before."""
    (shared / "a").symlink_to(victim)

    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError, match="symbolic link"):
            open_own(shared / "a", flags)
    os.close(create_own(shared / "a"))

    assert victim.read_text() == SECRET
    assert not (shared / "a").is_symlink()


def test_the_files_beside_a_store_a_job_and_an_output_follow_no_link(victim: Path, shared: Path) -> None:
    """The lock of a store, the lock and the name of a job, pages in a folder, records and their notes."""
    for name in ("state.sqlite.lock", "job.sqlite.lock", WORKER_FILE, "page.html.part", "a-00001.warc.gz"):
        (shared / name).symlink_to(victim)
    empty = shared.parent / "empty"
    (shared / "index.jsonl").symlink_to(empty)

    with pytest.raises(OSError, match="symbolic link"):
        FileLock(str(shared / "state.sqlite.lock")).take()
    with pytest.raises(StoreError, match="symbolic link"):
        LocalFrontier(shared / "job.sqlite")
    with pytest.raises(StoreError, match="symbolic link"):
        WorkerId(shared)
    create_whole(str(shared / "page.html"), b"page")
    for name in ("a-00001.warc.gz", "index.jsonl"):
        with pytest.raises(NotWritten, match="symbolic link"):
            AppendFile(str(shared / name), is_ours=True).open(None, whole_lines)

    assert (shared / "page.html").read_bytes() == b"page"
    assert victim.read_text() == SECRET
    assert not empty.exists()
