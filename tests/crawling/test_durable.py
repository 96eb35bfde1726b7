"""What kills, damage and full disks do to a frontier on the disk. Real files, real processes, really killed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from curtsy.core.errors import StoreError
from curtsy.crawling.frontier.protocol import Claimed, Counts, Deferred, Done, Ending, Found
from curtsy.crawling.frontier.sqlite_table import FORMAT
from tests.crawling.driven import Driven, local
from tests.crawling.worker import IN_FLIGHT, ROOT, Worker, page
from tests.support.small_disk import small_disk
from tests.support.snapshot import Snapshot

PAGE = 1024
URLS = [f"https://host{number % 10}.example.org/page/{number}" for number in range(600)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crawl" / "frontier.sqlite"


def fill(path: Path) -> None:
    frontier = local(path)
    frontier.add(URLS, parent="https://example.org/")
    for claimed in frontier.claim(5):
        frontier.done(claimed, notes={"output": 100})
    frontier.close()


def drain(frontier: Driven) -> list[str]:
    """Claim and finish everything there is."""
    got = []
    while claims := frontier.claim(100):
        got += [claimed.url for claimed in claims]
        frontier.conclude([Ending(claimed, Done()) for claimed in claims])
    return got


def is_sound(path: Path) -> bool:
    other = sqlite3.connect(path)
    found = other.execute("PRAGMA integrity_check").fetchall()
    other.close()
    return found == [("ok",)]


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


# Killed


def crawl_with_kills(folder: Path, shape: str, pages: int, kills: int) -> None:
    dice = random.Random(f"{shape} {pages}")
    killed = 0
    for number in range(kills):
        worker = Worker(folder, shape, pages)
        if number % 4:  # else perhaps while the file is made or opened
            worker.wait_until_first_page()
        killed += worker.kill(after=dice.uniform(0, 0.12) if number % 4 == 0 else dice.uniform(0, 0.02))
    assert killed > kills / 2, "most were to be killed at work"
    assert Worker(folder, shape, pages).end() == 0

    wanted = {page(number) for number in range(pages)}
    output = Counter((folder / "output").read_text().splitlines())
    journal = Counter((folder / "journal").read_text().splitlines())
    assert set(output) == wanted, "a page is lost"
    assert set(output.values()) == {1}, "a page is there twice"
    assert set(journal) == wanted
    assert journal.total() - pages <= kills * IN_FLIGHT, "more was asked for again than was in flight"
    frontier = local(folder / "frontier.sqlite")
    assert frontier.counts() == Counts(queued=0, leased=0, done=pages, failed=0, hosts=7)
    frontier.close()
    assert is_sound(folder / "frontier.sqlite")


@pytest.mark.parametrize("shape", ["fan", "tree"])
def test_a_crawl_killed_at_any_moment_loses_nothing_and_repeats_only_what_was_in_flight(
    tmp_path: Path, shape: str
) -> None:
    """F37, F38: on a site that fans out from one page, and on a deep one."""
    crawl_with_kills(tmp_path, shape, pages=3000, kills=12)


@pytest.mark.soak
@pytest.mark.parametrize("shape", ["fan", "tree"])
def test_a_hundred_kills_lose_nothing_either(tmp_path: Path, shape: str) -> None:
    """F37"""
    crawl_with_kills(tmp_path, shape, pages=20_000, kills=100)


def test_a_page_that_kills_its_reader_is_told_by_its_tries(path: Path) -> None:
    """A parser in C has crashed on a page before: whoever claims it again can be careful."""
    program = """
        import os, signal, sys
        from tests.crawling.driven import local

        frontier = local(sys.argv[1])
        frontier.add(["https://example.org/deadly"])
        print(frontier.claim()[0].tries, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """

    assert [run(program, path).stdout for _ in range(3)] == ["0\n", "1\n", "2\n"]
    frontier = local(path)
    [claimed] = frontier.claim()
    assert claimed.tries == 3
    frontier.defer(claimed, 0)
    assert frontier.claim()[0].tries == 3, "put back, it is no less dangerous"
    frontier.close()


# Opened again


def test_everything_is_there_when_it_is_opened_again(path: Path) -> None:
    fill(path)
    frontier = local(path)

    assert frontier.counts() == Counts(queued=595, leased=0, done=5, failed=0, hosts=10)
    assert frontier.notes() == {"output": 100}
    assert frontier.add(URLS) == 0
    assert Counter(drain(frontier)) == Counter(set(URLS) - set(URLS[:5]))
    frontier.close()


def test_the_pages_of_each_host_and_what_was_left_out_are_there_when_it_is_opened_again(path: Path) -> None:
    """Issue 5"""
    one, two = "https://a.org/1", "https://a.org/2"
    frontier = local(path)
    frontier.add([one, two])
    [claimed] = frontier.claim()
    frontier.done(claimed, is_page=True)
    frontier.pass_over(one, two)
    frontier.report([two])
    frontier.close()

    frontier = local(path)

    assert frontier.pass_over(two, one)
    assert frontier.unreported([one, two]) == [one]
    assert [claimed.host_pages for claimed in frontier.claim()] == [1]
    frontier.close()


def test_what_was_out_waits_again_and_an_old_claim_is_worth_nothing(path: Path) -> None:
    frontier = local(path)
    frontier.add(URLS[:1])
    [old] = frontier.claim()
    frontier.close()

    frontier = local(path)
    assert not frontier.done(old)
    [claimed] = frontier.claim()
    assert (claimed.url, claimed.tries) == (old.url, 1)
    frontier.close()


def test_fresh_begins_anew(path: Path) -> None:
    fill(path)
    frontier = local(path, restart=True)

    assert frontier.counts() == Counts(queued=0, leased=0, done=0, failed=0, hosts=0)
    assert frontier.notes() == {}
    assert frontier.add(URLS) == len(URLS)
    frontier.close()


def test_a_file_is_only_its_owners_to_read(path: Path) -> None:
    fill(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_closed_frontier_is_an_error_that_says_so(path: Path, snapshot: Snapshot) -> None:
    frontier = local(path)
    frontier.close()

    with pytest.raises(StoreError) as told:
        frontier.add(URLS)

    snapshot(str(told.value))


def test_a_conclusion_that_raises_is_taken_back_and_its_claims_go_on(path: Path) -> None:
    frontier = local(path)
    frontier.add(URLS[:30])
    claims = frontier.claim(3)
    counts = frontier.counts()

    class Links(list[str]):
        """URLs that cannot all be read."""

        def __iter__(self) -> Iterator[str]:
            yield "https://new.example.org/"
            raise KeyboardInterrupt

    endings = [Ending(claims[0], Done()), Ending(claims[1], Deferred(50)), Ending(claims[2], Done(), [Found(Links())])]
    with pytest.raises(KeyboardInterrupt):
        frontier.conclude(endings, {"output": 1})

    assert frontier.counts() == Counts(counts.queued, 3, 0, 0, 10)
    assert frontier.notes() == {}
    assert all(frontier.done(claimed) for claimed in claims)
    assert sorted(drain(frontier)) == sorted(set(URLS[:30]) - {claimed.url for claimed in claims})
    frontier.close()


# Two at once


def test_a_second_process_is_refused_and_told_who_has_it(path: Path, snapshot: Snapshot) -> None:
    """F42"""
    frontier = local(path)
    program = """
        import sys
        from curtsy.core.errors import StoreError
        from tests.crawling.driven import local

        try:
            local(sys.argv[1], restart=len(sys.argv) > 2)
        except StoreError as error:
            print(error)
    """

    refused, even_fresh = run(program, path).stdout, run(program, path, "fresh").stdout

    assert re.search(rf"\b{os.getpid()}\b", refused)
    snapshot(refused)
    assert even_fresh == refused
    frontier.add(URLS)
    frontier.close()
    assert run(program, path).stdout == ""


def test_a_second_frontier_in_one_process_is_refused_as_well(path: Path) -> None:
    """F42"""
    frontier = local(path)

    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        local(path)
    frontier.add(URLS)
    frontier.close()
    fill(path)


def test_a_deleted_lock_lets_nobody_in(path: Path) -> None:
    """F42: SQLite's own lock is held, too."""
    frontier = local(path)
    frontier.add(URLS)
    Path(f"{path}.lock").unlink()

    done = run("import sys; from tests.crawling.driven import local; local(sys.argv[1])", path)

    error, _, told = done.stderr.splitlines()[-1].partition(": ")
    assert error.endswith(".FileInUse")
    assert str(path) in told
    assert len(drain(frontier)) == len(URLS)
    frontier.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_uses_nor_keeps_what_is_its_parents(path: Path, snapshot: Snapshot) -> None:
    program = """
        import os, subprocess, sys
        from curtsy.core.errors import StoreError
        from tests.crawling.driven import local

        frontier = local(sys.argv[1])
        frontier.add(["https://host0.example.org/page/0"])
        wait, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go)
            try:
                frontier.claim()
            except StoreError as error:
                print(error, flush=True)
            os.read(wait, 1)  # until the parent has gone
            command = [sys.executable, "-m", "tests.crawling.worker", os.path.dirname(sys.argv[1]), "fan", "1"]
            print(subprocess.run(command).returncode, flush=True)
            os._exit(0)
        frontier.add(["https://host1.example.org/page/1"])
        os._exit(0)
    """

    said = run(program, path).stdout.splitlines()

    assert str(path) in said[0]
    snapshot(said[0])
    assert sorted(said[1:]) == ["0", "https://host0.example.org/page/0", "https://host1.example.org/page/1"]


# Damaged


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def use(path: Path) -> None:
    with contextlib.closing(local(path)) as frontier:
        frontier.add(URLS)
        drain(frontier)
        frontier.notes()


def execute(path: Path, statement: str) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(statement)
    other.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage header": lambda path: overwrite(path, 0, b"this is no database at all"),
    "garbage all over": lambda path: path.write_bytes(random.Random(1).randbytes(10 * PAGE)),
    "text": lambda path: path.write_text("dear diary\n" * 1000),
    "zeroed first page": lambda path: overwrite(path, 0, bytes(PAGE)),
    "zeroed everything": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeroed root of a table": lambda path: overwrite(path, 3 * PAGE, bytes(PAGE)),
    "garbage root of a table": lambda path: overwrite(path, 3 * PAGE, random.Random(2).randbytes(PAGE)),
    "unknown format of the schema": lambda path: overwrite(path, 44, b"\0\0\0\7"),
    "name of a table": lambda path: path.write_bytes(path.read_bytes().replace(b"TABLE urls", b"TABLE uxls")),
    "text that is none": lambda path: path.write_bytes(path.read_bytes().replace(b"CREATE", b"CRE\xc2\xc2E")),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut in a page": lambda path: os.truncate(path, PAGE + 100),
    "no totals": lambda path: execute(path, "DELETE FROM totals"),
    "no hosts": lambda path: execute(path, "DELETE FROM hosts"),
    "a host that is none": lambda path: execute(path, "UPDATE urls SET host = 1 << 40 WHERE id = 20"),
    "no text": lambda path: execute(path, "UPDATE urls SET target = x'ff'"),
}


def test_of_a_damaged_file_it_is_said_what_to_do(path: Path, snapshot: Snapshot) -> None:
    """Conventions: what, why and what to do"""
    fill(path)
    DAMAGE["text"](path)

    with pytest.raises(StoreError) as told:
        use(path)

    snapshot(str(told.value))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_an_error_that_says_what_to_do_and_is_left_alone(
    path: Path, damage: Callable[[Path], object]
) -> None:
    """U16: never begun anew by itself, for then what waited would be lost unsaid."""
    fill(path)
    damage(path)
    ruin = path.read_bytes()

    for _ in range(2):
        with pytest.raises(StoreError, match="damaged") as told:
            use(path)
        assert str(path) in str(told.value)

    assert path.read_bytes() == ruin
    frontier = local(path, restart=True)
    assert frontier.add(URLS) == len(URLS)
    frontier.close()


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_whatever_is_another_error(path: Path, seed: int) -> None:
    """U16: some bytes anywhere, in the file or in its log."""
    dice = random.Random(seed)
    fill(path)
    victim = path
    if seed % 3 == 0:
        run(
            "import os, sys; from tests.crawling.driven import local;"
            " f = local(sys.argv[1]); [f.add([f'https://more.org/{n}']) for n in range(50)]; os._exit(0)",
            path,
        )
        victim = Path(f"{path}-wal")
    for _ in range(dice.randint(1, 20)):
        overwrite(victim, dice.randrange(victim.stat().st_size), dice.randbytes(dice.choice([1, 8, 500])))

    with contextlib.suppress(StoreError):
        use(path)


def test_an_empty_file_is_a_fresh_one(path: Path) -> None:
    """As a kill at the very start leaves it."""
    path.parent.mkdir()
    path.touch()

    fill(path)

    assert is_sound(path)


def test_another_programs_database_is_left_alone(path: Path, snapshot: Snapshot) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE diary (entry TEXT)")
    other.close()

    with pytest.raises(StoreError) as told:
        local(path)
    snapshot(str(told.value))
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("diary",)]
    other.close()


def test_a_file_of_an_earlier_version_is_brought_up_to_date(path: Path) -> None:
    fill(path)
    other = sqlite3.connect(path)
    for since in (
        "ALTER TABLE hosts DROP COLUMN pages",
        "DROP TABLE logged",
        *(f"ALTER TABLE failures DROP COLUMN {column}" for column in ("rank", "page")),
    ):
        other.execute(since)
    other.execute("PRAGMA user_version = 10")
    other.close()

    frontier = local(path)

    assert frontier.counts() == Counts(queued=595, leased=0, done=5, failed=0, hosts=10)
    assert {claimed.host_pages for claimed in frontier.claim(10)} == {0}
    frontier.close()


def test_a_file_of_a_later_version_is_left_alone(path: Path, snapshot: Snapshot) -> None:
    fill(path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()

    with pytest.raises(StoreError, match=rf"\b99\b.*\b{len(FORMAT.schema)}\b") as told:
        local(path)

    snapshot(str(told.value))


@pytest.mark.parametrize("what", ["a directory", "under a file"])
def test_a_path_that_cannot_be_a_file_is_an_error_that_says_so(tmp_path: Path, what: str, snapshot: Snapshot) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError) as told:
        local(tmp_path if what == "a directory" else tmp_path / "file" / "frontier.sqlite")

    snapshot(str(told.value))


# Full


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    with small_disk(tmp_path, 16) as place:
        yield place


def repeat(work: Callable[[], None]) -> None:
    """Until the last bit of room is used, too."""
    for _ in range(300):
        work()


def test_a_full_disk_is_an_error_and_room_on_it_the_end_of_that(disk: Path, snapshot: Snapshot) -> None:
    """F40: what was committed is kept, nothing is lost, and the same frontier goes on."""
    frontier = local(disk / "frontier.sqlite")
    frontier.add(URLS)
    claims = frontier.claim(4)
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))

    added: list[str] = []
    done: list[Claimed] = []

    def add(count: int) -> None:
        frontier.add(new := [f"https://new.example.org/{len(added)}/{name}" for name in range(count)])
        added.extend(new)

    def claim() -> None:
        claims.extend(frontier.claim())

    def finish() -> None:
        frontier.done(claims[-1])
        done.append(claims.pop())

    for work in (partial(add, 50), partial(add, 1), claim, finish, partial(add, 1), claim, finish):
        with pytest.raises(StoreError) as told:
            repeat(work)
        snapshot(str(told.value))
    waiting = len(URLS) + len(added) - len(claims) - len(done)
    assert frontier.counts() == Counts(waiting, len(claims), len(done), 0, frontier.counts().hosts)
    ballast.unlink()

    assert all(frontier.done(claimed) for claimed in claims)
    assert sorted(drain(frontier)) == sorted({*URLS, *added} - {claimed.url for claimed in (*claims, *done)})
    frontier.close()
    assert is_sound(disk / "frontier.sqlite")


# Very many


COUNT = """
    import re, resource, sys
    from curtsy.crawling.frontier.protocol import Done, Ending
    from tests.crawling.driven import local

    many, hosts = int(sys.argv[2]), int(sys.argv[3])
    frontier = local(sys.argv[1])
    for begin in range(0, many, 1000):  # as many as a crawl adds at once
        numbers = range(begin, min(many, begin + 1000))
        frontier.add(f"https://big.org/articles/2026/page-{number}" for number in numbers)
    frontier.add(f"https://small{number}.org/" for number in range(hosts))
    first = frontier.claim(hosts + 1)
    assert len({claimed.host for claimed in first}) == hosts + 1
    for start in range(0, len(first), 1000):
        frontier.conclude([Ending(claimed, Done()) for claimed in first[start : start + 1000]])
    assert frontier.counts().queued == many - 1
    assert [claimed.host for claimed in frontier.claim(9)] == ["big.org"]
    if sys.platform == "linux":  # where ru_maxrss begins at what the parent had
        with open("/proc/self/status") as status:
            print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1024)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024))
"""


def test_a_large_host_among_small_ones_takes_no_memory(path: Path) -> None:
    """F61"""
    few, many = (float(run(COUNT, path.with_name(f"{count}.sqlite"), count, 300).stdout) for count in (1000, 60_000))

    assert many - few < 15


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_urls_take_little_memory(path: Path) -> None:
    """F45, F61"""
    command = [sys.executable, "-c", textwrap.dedent(COUNT), str(path), "1000000", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)

    assert float(done.stdout) < 100
