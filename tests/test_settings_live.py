"""Settings that follow their files while the program runs."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from curtsy.core.errors import PolicyError
from curtsy.log import JsonHandler
from curtsy.settings.live import LiveSettings
from tests.test_settings import Project


class Ticker:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Followed:
    """A project whose settings are followed, and what is logged of it."""

    def __init__(self, directory: Path, lines: io.StringIO) -> None:
        self.project = Project(directory)
        self.clock = Ticker()
        self._lines = lines

    def begin(self, text: str) -> LiveSettings:
        self.write(text)
        return LiveSettings(
            directory=self.project.directory, user_directory=self.project.user, env={}, clock=self.clock
        )

    def write(self, text: str, name: str = "curtsy.yaml") -> None:
        """Write as careful programs do: another file, put in place of the old one."""
        path = self.project.directory / name
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)

    def qps(self, live: LiveSettings, looks: int = 2) -> float | None:
        """The default rate after some seconds with a look in each."""
        for _ in range(looks):
            self.clock.now += 1
            live.check()
        return live.current.policies.default.qps

    def told(self) -> list[tuple[str, str]]:
        """Level and message of every line since the last time, with the error, if any."""
        lines = [json.loads(line) for line in self._lines.getvalue().splitlines()]
        self._lines.seek(0)
        self._lines.truncate()
        return [(line["level"], line["msg"] + (": " + line["error"] if "error" in line else "")) for line in lines]


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


def test_a_changed_file_is_picked_up(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")

    followed.write("default_policy: {qps: 0.25}\n")

    assert followed.qps(live) == 0.25
    assert followed.told() == [("info", "Settings read again")]


def test_a_file_is_read_only_when_it_has_stood_still_for_a_second(followed: Followed) -> None:
    """U9: a file that is just being written must not pass for a shorter one"""
    live = followed.begin("denylist: [a.example, b.example]\n")
    path = followed.project.directory / "curtsy.yaml"

    path.write_text("")
    followed.qps(live, looks=1)
    denied_meanwhile = live.current.policies.of("b.example").denied
    path.write_text("denylist: [a.example]\n")
    followed.qps(live)

    assert denied_meanwhile
    assert live.current.policies.of("a.example").denied
    assert not live.current.policies.of("b.example").denied


def test_a_file_is_looked_at_once_a_second_at_most(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    followed.write("default_policy: {qps: 0.25}\n")

    for _ in range(100):
        live.check()

    assert live.current.policies.default.qps == 0.1


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


def test_a_broken_file_keeps_the_old_settings_and_is_told_once_per_version(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    kept = "The changed settings cannot be used; the ones before are kept: "

    followed.write("default_policy: {qps: -1}\n")
    first = followed.qps(live, looks=10)
    told_first = followed.told()
    followed.write("default_policy: {qps: -22}\n")
    second = followed.qps(live, looks=10)
    told_second = followed.told()
    followed.write("default_policy: {qps: 0.3}\n")
    third = followed.qps(live, looks=10)

    hint = "must be above 0. Leave the line out to use the default, 0.8."
    assert (first, second, third) == (0.1, 0.1, 0.3)
    assert told_first == [("warn", f"{kept}curtsy.yaml, line 1, default_policy: qps = -1 {hint}")]
    assert told_second == [("warn", f"{kept}curtsy.yaml, line 1, default_policy: qps = -22 {hint}")]
    assert followed.told() == [("info", "Settings are fine again")]


def test_a_file_that_is_gone_keeps_the_old_settings_and_is_told(followed: Followed) -> None:
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
    assert told[0][1].endswith("curtsy.yaml is gone. Put it back, or start again without it.")
    assert live.current.policies.of("b.example").denied
    assert followed.told() == [("info", "Settings are fine again")]


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


def test_the_settings_can_be_read_again_at_once(followed: Followed) -> None:
    """U9"""
    live = followed.begin("default_policy: {qps: 0.1}\n")
    followed.write("default_policy: {qps: 0.25}\n")

    assert live.reload().policies.default.qps == 0.25


def test_at_the_start_a_broken_file_is_an_error(followed: Followed) -> None:
    """U9"""
    with pytest.raises(PolicyError, match="line 1, default_policy: burst = 0 must be at least 1"):
        followed.begin("default_policy: {burst: 0}\n")


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
