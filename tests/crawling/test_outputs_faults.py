"""What kills and full disks do to outputs. Real processes, really killed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pytest

from curtsy.core.cache import url_sha256
from curtsy.core.errors import NotWritten
from curtsy.crawling.outputs.folder import Folder
from curtsy.crawling.outputs.jsonlines import JsonLines
from tests.crawling.leaves import KINDS, Kind, archived, files_of, page, skip
from tests.crawling.writer import noted
from tests.support.bounds import ends_within
from tests.support.snapshot import Snapshot
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]
PAGES = 250

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def start(folder: Path, kind: Kind, pages: int, limit: int = 0) -> Process[str]:
    folder.mkdir(exist_ok=True)
    pipe = subprocess.PIPE
    return Process(
        "tests.crawling.writer", folder, kind.name, pages, limit, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def finish(folder: Path, kind: Kind, pages: int, limit: int = 0) -> tuple[int, str]:
    """Run it to its end; its exit code, and what it complains of."""
    process = start(folder, kind, pages, limit)
    _, complaint = process.communicate(timeout=120)
    return process.returncode, complaint


def uninterrupted(folder: Path, kind: Kind, pages: int) -> object:
    output = kind.make(folder)
    output.open(None)
    for number in range(pages):
        output.page(page(number))
        output.skipped(skip(number))
    output.close()
    return kind.content(folder)


@every_kind
def test_a_process_killed_while_it_writes_goes_on_without_a_trace(kind: Kind, tmp_path: Path) -> None:
    """F37, Issue 5"""
    dice = random.Random(kind.name)
    for _ in range(2):
        process = start(tmp_path / "killed", kind, PAGES)
        assert process.stdin is not None
        assert process.stdout is not None
        steps = dice.randint(1, 20)
        process.stdin.write("\n" * (steps + 3))  # it is in the middle of the last ones, and cannot be done
        process.stdin.flush()
        for _ in range(steps):
            process.stdout.readline()
        process.kill()
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    code, complaint = finish(tmp_path / "killed", kind, PAGES)

    assert (code, complaint) == (0, "")
    assert kind.content(tmp_path / "killed" / "output") == uninterrupted(tmp_path / "whole", kind, PAGES)


def test_files_that_were_written_after_the_last_flush_go_when_it_is_opened_again(tmp_path: Path) -> None:
    """Issue 5: the page may come back as another, or not at all."""
    program = """
        import json, os, signal, sys
        from curtsy.crawling.outputs.folder import Folder
        from tests.crawling.leaves import page

        output = Folder(sys.argv[1])
        output.open(None)
        output.page(page(1))
        print(json.dumps(output.flush()), flush=True)
        output.page(page(2))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert len(files_of(tmp_path)) == 5, done.stderr

    output = Folder(tmp_path / "out")
    output.open(json.loads(done.stdout))
    output.close()

    output = Folder(tmp_path / "other")
    output.open(None)
    output.page(page(1))
    output.close()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "other")


@every_kind
def test_a_full_disk_is_told_and_leaves_what_was_flushed(kind: Kind, tmp_path: Path) -> None:
    """F40: goes on when there is room, and nothing is lost"""
    kept = tmp_path / "full"
    # Files of the folder are small; there it is the index that cannot grow.
    limit = {"warc.gz": 1200, "warc": 3000}.get(kind.name, 8000)
    code, complaint = finish(kept, kind, PAGES, limit)
    number, _ = noted(kept)

    assert code == 1
    assert os.strerror(errno.EFBIG) in complaint
    assert str(kept / "output") in complaint
    assert number < PAGES
    assert kind.content(kept / "output") == uninterrupted(tmp_path / "so far", kind, number)
    assert finish(kept, kind, PAGES) == (0, "")
    assert kind.content(kept / "output") == uninterrupted(tmp_path / "whole", kind, PAGES)


def test_a_disk_that_fills_up_files_later_takes_all_of_them_back(tmp_path: Path) -> None:
    """F40: what was not flushed is in none of an archive's files."""
    program = """
        import os, resource, sys
        from curtsy.core.errors import NotWritten
        from curtsy.crawling.outputs.warc import Warc
        from tests.crawling.leaves import page

        output = Warc(sys.argv[1] + "/out", max_size=1500)
        output.open(None)
        output.page(page(0))
        output.flush()
        for number in range(1, 6):
            output.page(page(number))
        print(len(os.listdir(sys.argv[1])))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            output.page(page(6, os.urandom(500_000)))
        except NotWritten as error:
            print(error)
        output.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)

    assert int(done.stdout.splitlines()[0]) > 3
    assert os.strerror(errno.EFBIG) in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-00001.warc.gz", "out.payloads.txt"]
    assert len(archived(tmp_path)) == 2
    assert len((tmp_path / "out.payloads.txt").read_text().splitlines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
def test_a_device_that_is_full_is_told_at_the_next_flush(snapshot: Snapshot) -> None:
    """F40"""
    output = JsonLines("/dev/full")
    output.open(None)
    output.page(page(1))

    for _ in range(2):  # and it stays so, for what came since is not there
        with pytest.raises(NotWritten, match=os.strerror(errno.ENOSPC)) as told:
            output.flush()
        assert (told.value.path, told.value.is_lasting) == ("/dev/full", False)
        snapshot(str(told.value))
    output.close()


def test_what_a_pipe_does_not_take_is_pending_and_goes_first() -> None:
    """F40: no reader makes a crawl wait for it, and nothing goes twice"""
    end, start = os.pipe()
    output = JsonLines(f"/dev/fd/{start}")
    output.open(None)
    given = [page(number, b"x", main_text="y" * 30_000) for number in range(5)]
    for each in given:
        output.page(each)
    refused = 0
    seen = b""
    with ends_within(5):
        while True:
            try:
                state = output.flush()
                break
            except NotWritten as error:
                refused += isinstance(error.__cause__, BlockingIOError) and not error.is_lasting
                seen += os.read(end, 50_000)
    output.close()
    os.close(start)
    while piece := os.read(end, 65_536):
        seen += piece
    os.close(end)

    assert refused > 1
    assert [json.loads(line)["url"] for line in seen.splitlines()] == [each.url for each in given]
    assert state["size"] == len(seen)


def test_a_pipe_that_is_closed_is_told_before_anything_is_written(snapshot: Snapshot) -> None:
    """F40"""
    end, start = os.pipe()
    output = JsonLines(f"/dev/fd/{start}")
    output.open(None)
    output.check()
    os.close(end)

    with pytest.raises(NotWritten) as told:
        output.check()
    output.page(page(1))
    with pytest.raises(NotWritten) as told_again:
        output.flush()
    output.close()
    os.close(start)

    assert told.value.is_lasting
    assert told.value.path == f"/dev/fd/{start}"
    assert str(told_again.value) == str(told.value)
    snapshot(str(told.value))


def test_an_output_that_failed_can_be_opened_again_where_it_was(tmp_path: Path, snapshot: Snapshot) -> None:
    """F40: in the same process, too"""
    output = Folder(tmp_path / "out")
    output.open(None)
    output.page(page(1))
    state = output.flush()
    before = files_of(tmp_path)
    output.page(page(2))
    in_the_way = tmp_path / "out" / url_sha256(page(3).url)[:2]
    in_the_way.write_text("a file where a folder must be")
    with pytest.raises(NotWritten) as told:
        output.page(page(3))
    snapshot(str(told.value))
    in_the_way.unlink()

    assert files_of(tmp_path) == before
    output.open(state)
    output.page(page(3))
    output.close()
    assert len(files_of(tmp_path)) == len(before) + 2


@every_kind
def test_a_large_body_is_not_held_many_times(kind: Kind, tmp_path: Path) -> None:
    """Issue 5: large bodies make no more copies than are needed"""
    size = 20_000_000
    given = page(2, bytes(size))
    output = kind.make(tmp_path)
    output.open(None)
    output.page(page(1))
    tracemalloc.start()
    try:
        output.page(given)
        output.flush()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        output.close()

    # Base64 is a third more, and grows by half at a time.
    assert peak < (3.5 * size if kind.name in ("jsonl", "parts") else 0.1 * size)
