"""The words of complaints about settings: values as they were written, and hints that fit the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import PolicyError
from curtsy.core.policy import MOST_BURST
from curtsy.settings import load_limits
from tests.settings.test_settings import Project
from tests.support.said import missing
from tests.support.snapshot import Snapshot

LONG = "1" + 23 * "0"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def fault(project: Project, text: str = "", name: str = "curtsy.yaml", **more: Any) -> str:
    """What is said of a file, or of what else is given."""
    project.write(text, name)
    with pytest.raises(PolicyError) as caught:
        project.load(config=name, **more)
    return str(caught.value)


# --- Values

UNITS = [
    ("max_body", "10M", 10 << 20),
    ("max_head", "64 KiB", 64 << 10),
    ("min_speed", "1.5k", 1536.0),
    ("timeout", "30s", 30.0),
    ("breaker_cooldown", "1h30m", 5400.0),
    ("retry_delay", "500ms", 0.5),
    ("pause", "[1s, 1m]", [1.0, 60.0]),
]


@pytest.mark.parametrize(("name", "value", "meant"), UNITS)
def test_times_and_sizes_take_the_units_of_the_options(project: Project, name: str, value: str, meant: object) -> None:
    project.write(f"default_policy:\n  {name}: {value}\n")

    by_file = project.load()
    by_variable = project.load(env={f"CURTSY_{name.upper()}": value.strip("[]")})

    assert by_file.value(None, name) == by_variable.value(None, name) == meant


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("max_body: 10X", ["500000, 20M", "none"]),
        ("max_body: 0", ["none"]),
        ("concurrency: 0", ["none"]),
        ("timeout: 5 apples", ["1.5s"]),
        ("timeout: 0s", ["above 0"]),
        ("pause: [1, 2 x]", ["1.5s"]),
        ("burst: 10M", ["whole number"]),
    ],
)
def test_a_wrong_time_or_size_is_told_with_how_it_is_written(
    project: Project, snapshot: Snapshot, line: str, wanted: list[str]
) -> None:
    """Whether `none` is allowed, too."""
    said = fault(project, f"default_policy:\n  {line}\n")

    assert missing(said, *wanted) == []
    snapshot(said)


WRITTEN = [
    ("max_requests_per_day", "1e3", "1000"),
    ("max_requests_per_day", "1000.0", "1000"),
    ("max_requests_per_day", "1.50", ""),
    ("max_requests_per_day", "1e23", ""),
    ("max_requests_per_day", LONG, "1000000000000000"),
    ("max_requests_per_day", "-007", "0"),
    ("max_body", LONG, "1000000000000000"),
    ("qps", "-0.50", "0"),
    ("delay", "1e9", "86400"),
    ("burst", LONG, str(MOST_BURST)),
]


@pytest.mark.parametrize(("name", "value", "wanted"), WRITTEN)
@pytest.mark.parametrize("by", ["yaml", "json", "environment"])
def test_a_number_is_shown_as_it_was_written(
    project: Project, snapshot: Snapshot, by: str, name: str, value: str, wanted: str
) -> None:
    """U9, C7"""
    if by == "json":
        value = "-7" if value == "-007" else value  # which is no JSON
        said = fault(project, f'{{"default_policy": {{"{name}": {value}}}}}', "settings.json")
    elif by == "yaml":
        said = fault(project, f"default_policy:\n  {name}: {value}\n")
    else:
        said = fault(project, env={f"CURTSY_{name.upper()}": f" {value} "})

    given = f"{name} = {value} "
    assert given in said
    assert wanted in said.split(given, 1)[1]
    if by == "yaml":
        snapshot(said)


def test_a_number_in_a_list_is_shown_as_it_was_written(project: Project) -> None:
    """U9"""
    in_file = fault(project, "default_policy: {pause: [1, -1e3]}\n")
    in_environment = fault(project, env={"CURTSY_PAUSE": "1, -2.50"})

    assert "pause[1] = -1e3 " in in_file
    assert "pause[1] = -2.50 " in in_environment


def test_a_warning_shows_a_number_as_it_was_written(project: Project) -> None:
    """Q4"""
    project.write("default_policy: {breaker_cooldown: 1e2}\n")

    (warning,) = project.load().warnings

    assert missing(warning, "breaker_cooldown = 1e2 ", "300") == []


def test_a_long_number_is_shown_in_part(project: Project) -> None:
    """U9: a line of a log is no place for a thousand digits"""
    said = fault(project, f"default_policy: {{max_requests_per_day: {'9' * 1000}}}\n")

    assert "…" in said
    assert len(said) < 300


@pytest.mark.parametrize("name", ["max_requests_per_day", "cache_size", "global_burst"])
def test_a_number_too_large_to_count_with_is_refused_from_the_program_too(project: Project, name: str) -> None:
    """U9, U16: a store has 64 bits for it"""
    given: dict[str, Any] = {name: 10**23}

    assert missing(fault(project, **given), "argument", f"{name} = {LONG} ", " 1000") == []


# --- Hints


@pytest.mark.parametrize(
    ("content", "place", "name", "known"),
    [
        pytest.param({"domain": {}}, "", "domain", ["domains"], id="near a section"),
        pytest.param({"qps": 2}, "", "qps", ["default_config", "domains", "version"], id="at the top"),
        pytest.param(
            {"default_config": {"global_qps": 2}},
            "default_config",
            "global_qps",
            ["requests_per_second", "burst_capacity"],
            id="in the default",
        ),
        pytest.param(
            {"domains": {"a.example": {"store": "memory:"}}},
            'domains "a.example"',
            "store",
            ["requests_per_second", "burst_capacity"],
            id="in a domain",
        ),
        pytest.param(
            {"default_config": {"request_per_second": 2}},
            "default_config",
            "request_per_second",
            ["requests_per_second"],
            id="near a name",
        ),
    ],
)
def test_the_limiters_file_is_told_its_own_names(
    project: Project, snapshot: Snapshot, content: dict[str, Any], place: str, name: str, known: list[str]
) -> None:
    """L7: keys of the other file have no place there"""
    text = json.dumps({"version": "1.0", **content})

    message = fault(project, text, "limits.json")

    assert missing(message, "limits.json", place) == []
    assert missing(message.split(f"{name} ", 1)[1], *known) == []
    with pytest.raises(PolicyError) as caught:
        load_limits(project.directory / "limits.json")
    assert str(caught.value).endswith(message)
    snapshot(message)


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("qps: 2\n", "qps", "default_policy"),
        ("domain: a.example\n", "domain", "allowlist"),
        ("default_policy: {global_qps: 2}\n", "global_qps", ""),
        ("allowlist: [{domain: a.example, store: x}]\n", "store", ""),
        ("rate: 2\n", "rate", "Did you mean qps? It belongs under default_policy"),
        ("default_policy: {rate: 2}\n", "rate", "Did you mean qps?"),
        ("max_pages: 500\n", "max_pages", "argument"),
        ("limit: 500\n", "limit", "Did you mean max_pages? It is an argument"),
        ("default_policy: {limit: 500}\n", "limit", "max_pages"),
    ],
)
def test_a_settings_file_is_told_where_a_key_belongs(
    project: Project, snapshot: Snapshot, text: str, name: str, place: str
) -> None:
    """U9"""
    message = fault(project, text)

    assert missing(message, "curtsy.yaml", "line 1") == []
    assert place in message.split(f"{name} ", 1)[1]
    snapshot(message)
