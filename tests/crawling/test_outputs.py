"""What holds for every output. Real files, cut at any byte."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curtsy.core.errors import NotWritten, PolicyError, StoreError
from curtsy.crawling.outputs import open_output, open_outputs
from curtsy.crawling.outputs.check import check_output
from curtsy.crawling.outputs.folder import Folder
from curtsy.crawling.outputs.jsonlines import JsonLines
from curtsy.crawling.outputs.parts import Parts
from curtsy.crawling.outputs.protocol import FileOutput, Output, Written
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.outputs.tables import PagesCsv
from curtsy.crawling.outputs.warc import Warc
from tests.crawling.leaves import KINDS, Kind, Leaf, files_of, leaves, lines_of, page, record, sizes, skip, write
from tests.strategies import ANY
from tests.support.snapshot import Snapshot

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def write_all(kind: Kind, folder: Path, some: list[Leaf]) -> Any:
    """A run that nothing interrupts; what it wrote."""
    output = kind.make(folder)
    output.open(None)
    for leaf in some:
        write(output, leaf)
    output.close()
    return kind.content(folder)


def kill(kind: Kind, folder: Path, before: dict[Path, int], dice: random.Random) -> None:
    """Leave of what was written since `before` only what may be there after a kill."""
    for path, size in sizes(folder).items():
        if kind.name == "folder" and path.name != "index.jsonl":
            continue
        kept = before.get(path)
        if kept is None and dice.random() < 0.3 and path.name != "index.jsonl":
            path.unlink()
        else:
            os.truncate(path, dice.randint(kept or 0, size))
    index = folder / "out" / "index.jsonl"
    if kind.name == "folder":  # a page's files are begun when its line is written
        lines = index.read_bytes().split(b"\n")[:-1]
        stems = [json.loads(line)["file"].split("/")[1].partition(".")[0] for line in lines]
        for path in set(sizes(folder)) - set(before) - {index}:
            if path.name.partition(".")[0] not in stems:
                path.unlink()
            elif path.name.startswith(stems[-1]) and dice.random() < 0.5:
                path.rename(path.with_name(path.name + ".part"))


@every_kind
@settings(ANY, max_examples=ANY.max_examples // 2)
@given(some=leaves(), seed=st.integers(0, 2**32))
def test_after_a_kill_at_any_byte_it_is_as_if_there_had_been_none(kind: Kind, some: list[Leaf], seed: int) -> None:
    """Issue 5, F37: no torn line or record, no page twice, none lost."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        whole, torn = Path(place, "whole"), Path(place, "torn")
        wanted = write_all(kind, whole, some)
        output = kind.make(torn)
        output.open(None)
        state, flushed, before, number = output.flush(), 0, sizes(torn), 0
        kills = 3
        while number < len(some):
            write(output, some[number])
            number += 1
            if dice.random() < 0.4:
                state, flushed, before = record(output), number, sizes(torn)
            if kills and dice.random() < 0.4:
                kills -= 1
                output.close()
                kill(kind, torn, before, dice)
                output = kind.make(torn)
                output.open(state)
                number = flushed
        output.close()

        assert kind.content(torn) == wanted


@every_kind
def test_what_was_flushed_is_there_for_others_at_once(kind: Kind, tmp_path: Path) -> None:
    """Issue 5: flushed as they go"""
    output = kind.make(tmp_path)
    output.open(None)
    for number in range(3):
        write(output, page(number))
        write(output, skip(number))
    output.flush()
    shutil.copytree(tmp_path, tmp_path / "seen")
    output.close()

    assert kind.content(tmp_path / "seen")
    assert sizes(tmp_path / "seen").values()
    shutil.rmtree(tmp_path / "seen")
    assert kind.content(tmp_path) == write_all(kind, tmp_path / "again", [*map(page, range(3)), *map(skip, range(3))])


@every_kind
def test_nothing_is_written_before_the_first_page_so_that_a_first_state_can_be_noted(
    kind: Kind, tmp_path: Path
) -> None:
    """Issue 5: killed before anything was noted, a crawl must not find a file that is not its own."""
    for _ in range(2):
        output = kind.make(tmp_path)
        output.open(None)
        output.close()

    assert set(sizes(tmp_path).values()) == {0}


@every_kind
def test_a_file_of_somebody_else_is_never_overwritten(kind: Kind, tmp_path: Path, snapshot: Snapshot) -> None:
    """Issue 5"""
    victim = tmp_path / kind.file
    victim.parent.mkdir(parents=True, exist_ok=True)
    victim.write_text("a diploma thesis")

    with pytest.raises(NotWritten) as told:
        kind.make(tmp_path).open(None)

    assert told.value.is_lasting
    snapshot(str(told.value))
    assert victim.read_text() == "a diploma thesis"
    assert str(told.value.path) in (str(victim), str(victim.parent))


@every_kind
def test_a_file_that_another_writes_is_left_to_that_one(kind: Kind, tmp_path: Path, snapshot: Snapshot) -> None:
    """F42: the second refuses to start, even if nothing is written yet"""
    output = kind.make(tmp_path)
    output.open(None)

    with pytest.raises(NotWritten) as told:
        kind.make(tmp_path).open(None)

    assert told.value.is_lasting
    snapshot(str(told.value))
    write(output, page())
    write(output, skip())
    state = output.flush()
    output.close()
    other = kind.make(tmp_path)
    other.open(state)
    other.close()
    assert "example.org" in str(kind.content(tmp_path))


@every_kind
@pytest.mark.parametrize("left", ["nothing", "half"])
def test_a_file_that_became_shorter_is_gone_on_with_and_that_is_said(
    kind: Kind, left: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 5: at the end of a whole line or record"""
    output = kind.make(tmp_path)
    output.open(None)
    for number in range(2):
        write(output, page(number, b"%d" % number))
        write(output, skip(number))
    state = output.flush()
    output.close()
    victim = tmp_path / kind.file
    os.truncate(victim, 0 if left == "nothing" else victim.stat().st_size - 7)
    # In an archive it is the request beside the last page that is cut.
    whole = 0 if left == "nothing" else 2 if kind.name.startswith("warc") else 1
    output = kind.make(tmp_path)
    output.open(state)
    write(output, page(7))
    write(output, skip(7))
    output.flush()
    output.close()

    assert isinstance(output, FileOutput)
    assert output.written() == Written(output.name, whole + 1, 2 - whole)
    [told] = [record.getMessage() for record in caplog.records if record.name.startswith("curtsy")]
    assert str(victim) in told
    assert "--restart" in told
    assert "7" in str(kind.content(tmp_path))
    if left == "half" and kind.name != "skipped":
        assert "page/0" in str(kind.content(tmp_path))


@every_kind
@pytest.mark.parametrize("other", ["longer", "as long", "shorter", "of another crawl"])
def test_a_file_that_was_replaced_is_left_as_it_is(kind: Kind, other: str, tmp_path: Path) -> None:
    """F40: nothing is appended to it, and nothing cut off"""
    output = kind.make(tmp_path)
    output.open(None)
    write(output, page(1))
    write(output, skip(1))
    state = json.loads(json.dumps(output.flush()))
    output.close()
    victim = tmp_path / kind.file
    size = victim.stat().st_size
    text = {"longer": b"x" * 2 * size, "as long": b"x" * size, "shorter": b"x" * (size // 2)}.get(other)
    if text is None:
        write_all(kind, tmp_path / "other", [page(2), skip(2)])
        text = (tmp_path / "other" / kind.file).read_bytes()
    victim.write_bytes(text)
    before = files_of(tmp_path)

    with pytest.raises(NotWritten, match="--restart") as told:
        kind.make(tmp_path).open(state)

    assert (told.value.path, told.value.is_lasting) == (str(victim), True)
    assert files_of(tmp_path) == before


@every_kind
def test_a_copy_of_a_file_is_as_good_as_the_file(kind: Kind, tmp_path: Path) -> None:
    """F40: an archive that was moved away and put back, or restored, goes on"""
    output = kind.make(tmp_path / "a")
    output.open(None)
    write(output, page(1))
    write(output, skip(1))
    state = json.loads(json.dumps(output.flush()))
    output.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    output = kind.make(tmp_path / "b")
    output.open(state)
    write(output, page(2))
    write(output, skip(2))
    output.close()

    assert kind.content(tmp_path / "b") == write_all(kind, tmp_path / "c", [page(1), skip(1), page(2), skip(2)])


@every_kind
def test_a_file_that_is_removed_while_it_is_written_is_missed(kind: Kind, tmp_path: Path) -> None:
    """F40: an output says what is there, not what was written"""
    output = kind.make(tmp_path)
    output.open(None)
    write(output, page(1))
    write(output, skip(1))
    output.flush()
    assert isinstance(output, FileOutput)
    before = output.written()
    (tmp_path / kind.file).unlink()
    after = output.written()
    output.close()

    assert (before.entries, before.missing) == (1, 0)
    assert (after.entries, after.missing) == (0, 1)


@every_kind
def test_a_state_that_is_none_cuts_no_file(kind: Kind, tmp_path: Path) -> None:
    """Issue 5"""
    write_all(kind, tmp_path, [page(), skip()])
    before = sizes(tmp_path)

    output = kind.make(tmp_path)

    with pytest.raises(StoreError, match=re.escape(output.name)) as told:
        output.open({"file": "the first"})

    assert isinstance(told.value.__cause__, msgspec.ValidationError)
    assert sizes(tmp_path) == before


@every_kind
def test_an_output_that_is_not_open_says_so(kind: Kind, tmp_path: Path) -> None:
    """Conventions: errors"""
    output = kind.make(tmp_path)

    with pytest.raises(NotWritten, match=r"\bopen\(\)") as told:
        output.flush()
    assert told.value.path in (str(tmp_path / kind.file), str((tmp_path / kind.file).parent))
    output.close()

    assert not sizes(tmp_path)


@every_kind
def test_closing_twice_is_closing_once(kind: Kind, tmp_path: Path) -> None:
    """Issue 5: idempotent"""
    output = kind.make(tmp_path)
    output.open(None)
    write(output, page())
    output.close()
    before = sizes(tmp_path)

    output.close()

    assert sizes(tmp_path) == before


@every_kind
def test_a_name_is_the_same_at_every_start_and_another_for_another_place(kind: Kind, tmp_path: Path) -> None:
    """Issue 5: where an output ended is kept under its name"""
    assert kind.make(tmp_path).name == kind.make(tmp_path).name
    assert kind.make(tmp_path).name != kind.make(tmp_path / "other").name
    assert len({each.make(tmp_path).name for each in KINDS}) == len(KINDS)


@every_kind
def test_a_place_that_cannot_be_is_told_in_words(kind: Kind, tmp_path: Path) -> None:
    """Conventions: errors"""
    (tmp_path / "file").write_text("")

    with pytest.raises(NotWritten) as told:
        kind.make(tmp_path / "file").open(None)

    assert isinstance(told.value.__cause__, OSError)
    assert str(told.value.__cause__.strerror) in str(told.value)
    assert told.value.path == str(tmp_path / "file" / kind.file)


def test_of_a_file_that_cannot_be_gone_on_with_it_is_said_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """Conventions: what, why and what to do"""
    path = tmp_path / "out.jsonl"
    output = JsonLines(path)
    with pytest.raises(NotWritten) as told:
        output.flush()
    snapshot(str(told.value), "not open")
    with pytest.raises(StoreError) as unreadable:
        output.open({"file": "the first"})
    snapshot(str(unreadable.value), "state")

    output.open(None)
    output.page(page(1))
    state = output.flush()
    output.close()
    os.truncate(path, 7)
    output.open(state)
    output.close()
    snapshot(caplog.messages[-1], "cut")

    path.write_text("a diploma thesis")
    with pytest.raises(NotWritten) as told:
        output.open(state)
    snapshot(str(told.value), "replaced")


class Forgetful(JsonLines):
    """An output that does not cut off what was not recorded."""

    def open(self, state: Any | None) -> None:
        found = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        super().open(state and state | {"size": found, "tail": self._tail()})

    def _tail(self) -> str:
        return hashlib.blake2b(Path(self.path).read_bytes()[-1024:], digest_size=8).hexdigest()


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name in ("jsonl", "parts")], ids=lambda kind: kind.name
)
def test_outputs_meet_the_public_contract(kind: Kind, tmp_path: Path) -> None:
    check_output(lambda: kind.make(tmp_path), lambda: [row["url"] for row in kind.content(tmp_path)])


def test_an_output_that_breaks_the_contract_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="once each"):
        check_output(lambda: Forgetful(tmp_path / "out.jsonl"), lambda: [row["url"] for row in lines_of(tmp_path)])


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("pages.jsonl", JsonLines, "jsonl:{}/pages.jsonl"),
        ("PAGES.NDJSON", JsonLines, "jsonl:{}/PAGES.NDJSON"),
        ("-", JsonLines, "jsonl:-"),
        ("jsonl:pages", JsonLines, "jsonl:{}/pages"),
        ("a/crawl.warc.gz", Warc, "warc:{}/a/crawl.warc.gz"),
        ("crawl.warc", Warc, "warc:{}/crawl.warc"),
        ("warc:crawl", Warc, "warc:{}/crawl.warc.gz"),
        ("pages/", Folder, "folder:{}/pages"),
        ("folder:pages.jsonl", Folder, "folder:{}/pages.jsonl"),
        ("there", Folder, "folder:{}/there"),
        ("pages.csv", PagesCsv, "csv:{}/pages.csv"),
        ("other:x.csv", PagesCsv, "csv:{}/other:x.csv"),
        ("skipped:x.csv", SkippedCsv, "skipped:{}/x.csv"),
        ("pages.parquet", Parts, "parquet:{}/pages.parquet"),
        ("parquet:pages/", Parts, "parquet:{}/pages"),
        ("memory://bucket/pages.jsonl", Parts, "jsonl:memory://bucket/pages.jsonl"),
        ("warc:memory://bucket/x", Parts, "warc:memory://bucket/x"),
    ],
)
def test_an_output_is_named_by_its_ending_or_its_kind(text: str, kind: type[Output], name: str, inside: Path) -> None:
    """Issue 5"""
    (inside / "there").mkdir()

    output = open_output(text)

    assert isinstance(output, kind)
    assert output.name == name.format(inside)


@pytest.mark.parametrize("text", ["pages.orc", "", "warc:", "orc:pages"])
def test_an_output_that_is_none_is_an_error_that_lists_them(text: str, inside: Path) -> None:
    """Conventions: errors"""
    with pytest.raises(PolicyError) as told:
        open_output(text)

    listed = re.findall(r"\w+:PATH", str(told.value))
    assert listed == [f"{kind}:PATH" for kind in ("jsonl", "warc", "parquet", "csv", "folder", "mirror", "skipped")]


@pytest.mark.parametrize("kinds", [("jsonl", "jsonl"), ("jsonl", "skipped"), ("folder", "mirror"), ("csv", "jsonl")])
def test_two_outputs_to_one_path_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, str]
) -> None:
    """Issue 18: each would truncate what the other has written"""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PolicyError) as refused:
        open_outputs([f"{kinds[0]}:{tmp_path / 'pages'}", f"{kinds[1]}:./pages"])

    assert str(tmp_path / "pages") in str(refused.value)


@every_kind
def test_a_field_that_was_not_requested_is_empty_or_absent(kind: Kind, tmp_path: Path) -> None:
    """Issue 5: no output has the name of a sentinel for it"""
    write_all(kind, tmp_path, [page(1), skip(2)])

    assert [name for name, content in files_of(tmp_path).items() if b"UNSET" in content] == []
