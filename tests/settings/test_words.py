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

WRITTEN = [
    ("max_requests_per_day", "1e3", "max_requests_per_day = 1e3 must be a whole number, written 1000."),
    ("max_requests_per_day", "1000.0", "max_requests_per_day = 1000.0 must be a whole number, written 1000."),
    ("max_requests_per_day", "1.50", "max_requests_per_day = 1.50 must be a whole number."),
    ("max_requests_per_day", "1e23", "max_requests_per_day = 1e23 must be a whole number."),
    ("max_requests_per_day", LONG, f"max_requests_per_day = {LONG} must be at most 1000000000000000."),
    ("max_requests_per_day", "-007", "max_requests_per_day = -007 must be at least 0."),
    ("max_body", LONG, f"max_body = {LONG} must be at most 1000000000000000."),
    ("qps", "-0.50", "qps = -0.50 must be above 0."),
    ("delay", "1e9", "delay = 1e9 must be a number of at least 0 and at most 86400."),
    ("burst", LONG, f"burst = {LONG} must be at most {MOST_BURST}."),
]


@pytest.mark.parametrize(("name", "value", "message"), WRITTEN)
@pytest.mark.parametrize("by", ["yaml", "json", "environment"])
def test_a_number_is_shown_as_it_was_written(project: Project, by: str, name: str, value: str, message: str) -> None:
    """U9, C7"""
    if by == "json":
        value = "-7" if value == "-007" else value  # which is no JSON
        said = fault(project, f'{{"default_policy": {{"{name}": {value}}}}}', "settings.json")
        assert message.replace("-007", "-7") in said
    elif by == "yaml":
        assert message in fault(project, f"default_policy:\n  {name}: {value}\n")
    else:
        assert message in fault(project, env={f"CURTSY_{name.upper()}": f" {value} "})


def test_a_number_in_a_list_is_shown_as_it_was_written(project: Project) -> None:
    """U9"""
    assert "pause[1] = -1e3 must be at least 0." in fault(project, "default_policy: {pause: [1, -1e3]}\n")
    assert "pause[1] = -2.50 must be" in fault(project, env={"CURTSY_PAUSE": "1, -2.50"})


def test_a_warning_shows_a_number_as_it_was_written(project: Project) -> None:
    """Q4"""
    project.write("default_policy: {breaker_cooldown: 1e2}\n")

    (warning,) = project.load().warnings

    assert "breaker_cooldown = 1e2 is below 300 s." in warning


def test_a_long_number_is_shown_in_part(project: Project) -> None:
    """U9: a line of a log is no place for a thousand digits"""
    said = fault(project, f"default_policy: {{max_requests_per_day: {'9' * 1000}}}\n")

    assert "…" in said
    assert len(said) < 300


@pytest.mark.parametrize("name", ["max_requests_per_day", "cache_size", "global_burst"])
def test_a_number_too_large_to_count_with_is_refused_from_the_program_too(project: Project, name: str) -> None:
    """U9, U16: a store has 64 bits for it"""
    given: dict[str, Any] = {name: 10**23}

    assert f"argument: {name} = {LONG} must be at most 1000" in fault(project, **given)


# --- Hints


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"domain": {}}, "limits.json: domain is not a setting here. Did you mean domains?"),
        ({"qps": 2}, "limits.json: qps is not a setting here. Known here: default_config, domains, version."),
        (
            {"default_config": {"global_qps": 2}},
            "limits.json, default_config: global_qps is not a setting here. "
            "Known here: requests_per_second, burst_capacity.",
        ),
        (
            {"domains": {"a.example": {"store": "memory:"}}},
            'limits.json, domains "a.example": store is not a setting here. '
            "Known here: requests_per_second, burst_capacity.",
        ),
        (
            {"default_config": {"request_per_second": 2}},
            "limits.json, default_config: request_per_second is not a setting here. Did you mean requests_per_second?",
        ),
    ],
)
def test_the_limiters_file_is_told_its_own_names(project: Project, content: dict[str, Any], message: str) -> None:
    """L7: keys of the other file have no place there"""
    text = json.dumps({"version": "1.0", **content})

    assert fault(project, text, "limits.json") == message
    with pytest.raises(PolicyError) as caught:
        load_limits(project.directory / "limits.json")
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qps: 2\n", "curtsy.yaml, line 1: qps is not a setting here. It belongs under default_policy."),
        ("domain: a.example\n", "domain is not a setting here. It belongs under an entry of allowlist."),
        ("default_policy: {global_qps: 2}\n", "global_qps is not a setting here. It belongs at the top of the file."),
        ("allowlist: [{domain: a.example, store: x}]\n", "store is not a setting here. It belongs at the top of the f"),
    ],
)
def test_a_settings_file_is_told_where_a_key_belongs(project: Project, text: str, message: str) -> None:
    """U9"""
    assert message in fault(project, text)
