"""Settings that follow their files while the program runs."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import PolicyError
from curtsy.settings import AT_START
from curtsy.settings.general import keys, names
from curtsy.settings.live import LiveSettings
from curtsy.system.log import JsonHandler
from tests.settings.test_settings import Project, example_of
from tests.support.bounds import ends_within
from tests.support.said import missing
from tests.support.snapshot import Snapshot

HOUR = 3600.0


class Ticker:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """The same by the calendar, which files have their times from."""
        return 1_700_000_000 + self.now


class Followed:
    """A project whose settings are followed, and what is logged of it."""

    def __init__(self, directory: Path, lines: io.StringIO) -> None:
        self.project = Project(directory)
        self.clock = Ticker()
        self._lines = lines

    def begin(self, text: str, **more: Any) -> LiveSettings:
        self.write(text)
        return LiveSettings(
            directory=self.project.directory,
            user_directory=self.project.user,
            env={},
            clock=self.clock,
            wall=self.clock.wall,
            **more,
        )

    def write(self, text: str, name: str = "curtsy.yaml", at: float | None = None) -> None:
        """Write as careful programs do: another file, put in place of the old one."""
        path = self.project.directory / name
        part = path.with_suffix(".part")
        part.write_text(text)
        self._date(part, at)
        part.replace(path)

    def write_in_place(self, text: str) -> None:
        """Write as careless programs do, who may not be done yet."""
        path = self.project.directory / "curtsy.yaml"
        path.write_text(text)
        self._date(path)

    def _date(self, path: Path, at: float | None = None) -> None:
        written_at = round((self.clock.wall() if at is None else at) * 1e9)
        os.utime(path, ns=(written_at, written_at))

    def qps(self, live: LiveSettings, looks: int = 2) -> float | None:
        """The default rate after some seconds with a look in each."""
        for _ in range(looks):
            self.clock.now += 1
            live.check()
        return live.current.policies.default.qps

    def told(self) -> list[tuple[str, str]]:
        """Level and message of every line since the last time, with the error or the keys, if any."""
        lines = [json.loads(line) for line in self._lines.getvalue().splitlines()]
        self._lines.seek(0)
        self._lines.truncate()
        more = [line.get("error") or ", ".join(line.get("keys", ())) for line in lines]
        return [
            (line["level"], ": ".join(filter(None, (line["msg"], each))))
            for line, each in zip(lines, more, strict=True)
        ]


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    lines = io.StringIO()
    handler = JsonHandler(stream=lines)
    logger = logging.getLogger("curtsy.settings")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield Followed(tmp_path, lines)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_a_changed_file_is_picked_up(followed: Followed, snapshot: Snapshot) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.write("default_policy: {qps: 0.25}\n")

    assert followed.qps(live) == 0.25
    ((level, message),) = followed.told()
    assert level == "info"
    snapshot(message)


def test_a_file_is_read_only_when_it_has_stood_still_for_a_second(followed: Followed) -> None:
    """U9: a file that is just being written must not pass for a shorter one"""
    live = followed.begin("denylist: [a.example, b.example]\n")

    followed.clock.now += 0.5
    followed.write_in_place("")
    followed.clock.now += 0.5
    denied_meanwhile = live.check().policies.of("b.example").denied
    followed.write_in_place("denylist: [a.example]\n")
    followed.qps(live, looks=1)

    assert denied_meanwhile
    assert live.current.policies.of("a.example").denied
    assert not live.current.policies.of("b.example").denied


def test_after_an_idle_hour_the_first_who_asks_has_the_change(followed: Followed) -> None:
    """U9: a host that was denied meanwhile gets no request more"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.clock.now += HOUR
    followed.write("denylist: [a.example]\n")
    followed.clock.now += 1
    settings = live.check()

    assert settings.policies.of("a.example").denied
    assert [level for level, _ in followed.told()] == ["info"]


def test_a_file_that_was_put_there_with_its_old_time_is_read_at_once(followed: Followed) -> None:
    """U9: `mv` and `cp -p` leave a file whole, and as old as it was"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.write("default_policy: {qps: 0.25}\n", at=followed.clock.wall() - HOUR)

    assert followed.qps(live, looks=1) == 0.25


@pytest.mark.parametrize("ahead", [-0.5, 0.0, 0.5, HOUR])
def test_after_an_idle_hour_a_file_that_may_be_half_written_is_looked_at_twice(
    followed: Followed, ahead: float
) -> None:
    """U9: one that was written within the last second, or has a time that is still to come"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.clock.now += HOUR
    followed.write("default_policy: {qps: 0.25}\n", at=followed.clock.wall() + ahead)
    at_once = live.check().policies.default.qps

    assert at_once == 0.1
    assert followed.qps(live, looks=1) == 0.25


def test_a_version_that_comes_back_is_looked_at_anew(followed: Followed) -> None:
    """U9: that it was seen once says nothing of whether it is whole now"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    first, other = followed.project.directory / "curtsy.yaml", followed.project.directory / "other.yaml"
    followed.write("default_policy: {qps: 0.25}\n", "other.yaml", at=followed.clock.wall() + HOUR)

    for _ in range(2):  # there, away, and there again
        first.rename(first.with_suffix(".kept"))
        other.rename(first)
        between = followed.qps(live, looks=1)
        first.rename(other)
        first.with_suffix(".kept").rename(first)
        followed.qps(live, looks=1)

    assert between == 0.1
    assert followed.told() == []


def test_after_an_idle_hour_a_file_that_is_gone_keeps_the_old_settings(followed: Followed) -> None:
    """U9"""
    live = followed.begin("denylist: [a.example]\n")

    followed.clock.now += HOUR
    (followed.project.directory / "curtsy.yaml").unlink()

    assert live.check().policies.of("a.example").denied
    assert followed.told() == []  # somebody may be about to put another in its place
    followed.qps(live, looks=3)
    assert live.current.policies.of("a.example").denied
    assert [level for level, _ in followed.told()] == ["warn"]


@given(
    st.lists(st.floats(0.01, 5), max_size=6),
    st.floats(0, HOUR),
    st.lists(st.floats(0, 1.99), max_size=8),
)
def test_whoever_asks_two_seconds_after_a_change_has_it(
    tmp_path_factory: pytest.TempPathFactory, looks_before: list[float], idle: float, looks_after: list[float]
) -> None:
    """U9: however often the settings were asked for before and after it was written"""
    followed = Followed(tmp_path_factory.mktemp("project"), io.StringIO())
    live = followed.begin("default_policy: {qps: 0.1}\n")
    for seconds in looks_before:
        followed.clock.now += seconds
        live.check()

    followed.clock.now += idle
    followed.write("default_policy: {qps: 0.25}\n")
    written_at = followed.clock.now
    for after in sorted(looks_after):
        followed.clock.now = written_at + after
        live.check()
    followed.clock.now = written_at + 2.001

    assert live.check().policies.default.qps == 0.25


def test_who_asks_after_an_idle_hour_while_another_thread_reads_waits_for_it(followed: Followed) -> None:
    """U9, L9: a change holds for all who ask, not only for the one who reads it"""
    reading, asked, may_go_on = threading.Event(), threading.Event(), threading.Event()

    class Held(Ticker):
        def __call__(self) -> float:
            if threading.current_thread().name == "second":
                asked.set()
            return self.now

        def wall(self) -> float:
            reading.set()
            assert may_go_on.wait(60)
            return super().wall()

    clock = followed.clock
    live = followed.begin("default_policy: {qps: 0.1}\n", every=30)
    live._clock = held = Held()
    live._wall = held.wall
    held.now = clock.now = clock.now + HOUR
    followed.write("default_policy: {qps: 0.25}\n", at=clock.wall() - 60)
    seen: dict[str, float | None] = {}

    def look() -> None:
        seen[threading.current_thread().name] = live.check().policies.default.qps

    first, second = (threading.Thread(target=look, name=name) for name in ("first", "second"))
    first.start()
    assert reading.wait(60)
    second.start()
    assert asked.wait(60)
    may_go_on.set()
    first.join()
    second.join()

    assert seen == {"first": 0.25, "second": 0.25}


def test_who_hears_in_the_log_of_a_change_may_ask_for_the_settings(followed: Followed) -> None:
    """U9: the thread that reads does not wait for itself"""
    live = followed.begin("default_policy: {qps: 0.1}\n", every=30)
    heard: list[float | None] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(live.check().policies.default.qps)

    followed.clock.now += HOUR
    followed.write("default_policy: {qps: 0.25}\n", at=followed.clock.wall() - 60)
    listener = Listener()
    logging.getLogger("curtsy.settings").addHandler(listener)
    with ends_within(15):
        live.check()
    logging.getLogger("curtsy.settings").removeHandler(listener)

    assert heard == [0.25]


def test_nothing_is_read_while_nothing_changes(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    before = live.current

    followed.qps(live, looks=10)

    assert live.current is before
    assert followed.told() == []


def test_a_file_that_is_changed_in_place_to_the_same_size_is_noticed(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    path = followed.project.directory / "curtsy.yaml"
    before = path.stat()

    path.write_text("default_policy: {qps: 0.2}\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))

    assert followed.qps(live) == 0.2


def test_a_broken_file_keeps_the_old_settings_and_is_told_once_per_version(
    followed: Followed, snapshot: Snapshot
) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.write("default_policy: {qps: -1}\n")
    first = followed.qps(live, looks=10)
    told_first = followed.told()
    followed.write("default_policy: {qps: -22}\n")
    second = followed.qps(live, looks=10)
    told_second = followed.told()
    followed.write("default_policy: {qps: 0.3}\n")
    third = followed.qps(live, looks=10)

    assert (first, second, third) == (0.1, 0.1, 0.3)
    for told, value in ((told_first, "qps = -1 "), (told_second, "qps = -22 ")):
        ((level, message),) = told
        assert level == "warn"
        assert missing(message, "curtsy.yaml", "line 1", "default_policy", value, "0.8") == []
    ((level, message),) = followed.told()
    assert level == "info"
    snapshot(told_first[0][1], "broken")
    snapshot(message, "fine again")


def test_a_file_that_is_gone_keeps_the_old_settings_and_is_told(followed: Followed, snapshot: Snapshot) -> None:
    """U9"""
    live = followed.begin("denylist: [a.example]\n")
    path = followed.project.directory / "curtsy.yaml"

    path.unlink()
    followed.qps(live, looks=5)
    denied_while_gone = live.current.policies.of("a.example").denied
    told = followed.told()
    followed.write("denylist: [b.example]\n")
    followed.qps(live)

    assert denied_while_gone
    assert [level for level, _ in told] == ["warn"]
    assert "curtsy.yaml" in told[0][1]
    assert live.current.policies.of("b.example").denied
    assert [level for level, _ in followed.told()] == ["info"]
    snapshot(told[0][1])


def test_a_file_that_comes_later_is_picked_up(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.project.write_user("default_policy: {qps: 0.9, burst: 2}\n")

    assert followed.qps(live) == 0.1
    assert live.current.policies.default.burst == 2


def test_odd_settings_are_warned_about_when_they_are_read_again(followed: Followed) -> None:
    """Q4, U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.write("default_policy: {breaker_cooldown: 10}\n")
    followed.qps(live)

    levels = [level for level, _ in followed.told()]
    assert levels == ["info", "warn"]


def test_a_file_that_loosens_manners_while_the_program_runs_is_named(followed: Followed) -> None:
    """U9: as one that does so at the start"""
    live = followed.begin("default_policy: {qps: 0.1, allow_private: true}\n")

    followed.write("default_policy: {qps: 0.1, allow_private: true, respect_robots: false}\n")
    followed.qps(live)
    told = followed.told()
    followed.write("default_policy: {qps: 0.2, allow_private: true, respect_robots: false}\n")
    followed.qps(live)

    assert [level for level, _ in told] == ["info", "warn"]
    assert "allow_private, respect_robots" in told[1][1]
    assert [level for level, _ in followed.told()] == ["info"]


def test_changed_settings_that_need_a_restart_are_named_once_per_reading(
    followed: Followed, snapshot: Snapshot
) -> None:
    """U9: and what is in use goes on being shown as such"""
    live = followed.begin("store: 'memory:'\ncache_mode: normal\n")

    followed.write("# new\nstore: sqlite:///two.db\ncache_mode: offline\nglobal_qps: 0.25\n")
    followed.qps(live, looks=5)
    told_first = followed.told()
    followed.write("# new\nstore: sqlite:///two.db\ncache_mode: offline\nglobal_qps: 0.5\n")
    followed.qps(live, looks=5)
    told_second = followed.told()
    in_use = live.current
    followed.write("\nstore: 'memory:'\nglobal_qps: 0.5\n")
    followed.qps(live, looks=5)

    assert told_first == told_second
    assert [level for level, _ in told_first] == ["info", "warn"]
    assert told_first[1][1].endswith(": store, cache_mode")
    snapshot(told_first[1][1])
    assert (in_use.store, in_use.cache_mode, in_use.global_qps) == ("memory:", "normal", 0.5)
    assert (in_use.origin(None, "store"), in_use.origin(None, "global_qps")) == ("curtsy.yaml:1", "curtsy.yaml:4")
    assert [level for level, _ in followed.told()] == ["info"]


@pytest.mark.parametrize("name", names("general"))
def test_every_setting_of_the_whole_program_is_followed_or_named_as_needing_a_restart(
    followed: Followed, name: str
) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    text, _ = example_of(keys()[name])
    before = live.current

    followed.write(f"{name}: {text!r}\n" if keys()[name].kind in (str, Path) else f"{name}: {text}\n")
    followed.qps(live)

    path = str(followed.project.directory)  # in a warning that the file loosens manners
    told = [message for level, message in followed.told() if level == "warn" and path not in message]
    is_followed = live.current.value(None, name) != before.value(None, name)
    assert is_followed is (name not in AT_START)
    assert len(told) == (0 if is_followed else 1)
    assert all(message.endswith(f": {name}") for message in told)


def test_the_settings_can_be_read_again_at_once(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    followed.write("default_policy: {qps: 0.25}\n")

    assert live.reload().policies.default.qps == 0.25


def test_at_the_start_a_broken_file_is_an_error(followed: Followed) -> None:
    """U9"""
    with pytest.raises(PolicyError) as caught:
        followed.begin("default_policy: {burst: 0}\n")

    assert missing(str(caught.value), "curtsy.yaml", "line 1", "default_policy", "burst = 0 ") == []


def test_arguments_still_win_after_a_file_has_changed(followed: Followed) -> None:
    """U9"""
    followed.write("default_policy: {qps: 0.1}\n")
    live = LiveSettings(
        directory=followed.project.directory,
        user_directory=followed.project.user,
        env={"CURTSY_DELAY": "3"},
        clock=followed.clock,
        preset="broad",
        qps=0.7,
    )

    followed.write("default_policy: {qps: 0.2, burst: 4}\n")

    assert followed.qps(live) == 0.7
    assert (live.current.policies.default.burst, live.current.policies.default.delay) == (4, 3)
    assert live.current.global_qps is None


def test_many_threads_see_whole_settings_while_the_file_changes(followed: Followed) -> None:
    """U9, L9"""
    live = LiveSettings(
        directory=followed.project.directory,
        user_directory=followed.project.user,
        env={},
        clock=followed.clock,
        every=0,
    )
    stop = threading.Event()
    seen: set[tuple[float | None, float]] = set()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                default = live.check().policies.default
                seen.add((default.qps, default.delay))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 11):
        followed.write(f"default_policy: {{qps: {number}, delay: {number}}}\n")
        live.reload()
    stop.set()
    for thread in threads:
        thread.join()

    assert errors == []
    assert all(qps == delay for qps, delay in seen - {(0.8, 0.0)})
    assert live.current.policies.default.qps == 10
