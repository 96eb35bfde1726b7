"""The files of a project: `.env`, and what no file may loosen without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.settings import Settings, load
from curtsy.settings.problems import Problems
from curtsy.settings.sources import read_dotenv
from tests.cli.shell import Shell
from tests.support.said import missing
from tests.support.site import Site
from tests.support.snapshot import Snapshot


def loaded(directory: Path, env: dict[str, str] | None = None, **arguments: Any) -> Settings:
    """The settings of a project, with nothing of the real user's."""
    return load(directory=directory, user_directory=directory / "user", env=env or {}, **arguments)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# --- .env


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("CURTSY_USER_AGENT=bot/1.0", "bot/1.0"),
        ("  export   CURTSY_USER_AGENT = bot/1.0  # mine", "bot/1.0"),
        ("CURTSY_USER_AGENT='bot # $HOME \\n'  # mine", "bot # $HOME \\n"),
        ('CURTSY_USER_AGENT="bot \\"x\\" ${HOME}"', 'bot "x" ${HOME}'),
        ("CURTSY_USER_AGENT=bot#1", "bot#1"),
        ("RAG_USER_AGENT=bot/2", "bot/2"),
        ("CURTSY_USER_AGENT=bot\r", "bot"),
        ("CURTSY_USER_AGENT=a\nCURTSY_USER_AGENT=b", "b"),
    ],
)
def test_a_variable_of_the_projects_env_file_is_a_setting(tmp_path: Path, line: str, value: str) -> None:
    """C7"""
    (tmp_path / ".env").write_text(f"\ufeff# comment\n\n{line}\nDATABASE_URL=$x'\n", encoding="utf-8", newline="")

    settings = loaded(tmp_path)

    assert settings.user_agent == value
    assert settings.origin(None, "user_agent").startswith(".env:")
    assert settings.warnings == ()


def test_the_real_environment_wins_and_a_file_loses(tmp_path: Path) -> None:
    """C7: environment, .env, curtsy.yaml"""
    (tmp_path / ".env").write_text("CURTSY_QPS=3\nCURTSY_MAX_RETRIES=7\n")
    (tmp_path / "curtsy.yaml").write_text("default_policy:\n  qps: 2\n  max_retries: 6\n")

    settings = loaded(tmp_path, {"CURTSY_QPS": "4"})

    assert (settings.policies.default.qps, settings.policies.default.max_retries) == (4, 7)


def test_only_variables_of_curtsy_are_read(tmp_path: Path, snapshot: Snapshot) -> None:
    """C7"""
    (tmp_path / ".env").write_text("PATH=/x\nHTTP_PROXY=http://x\nCURTSY_QPS=1\nCURTSY_QSP=1\nLOG_LEVEL=debug\n")

    found = read_dotenv(tmp_path, Problems())
    warnings = loaded(tmp_path).warnings

    assert set(found) == {"CURTSY_QPS", "CURTSY_QSP", "LOG_LEVEL"}
    (warning,) = warnings
    assert missing(warning, ".env", "line 4", "CURTSY_QSP", "CURTSY_QPS") == []
    snapshot(warning)


@given(st.text(max_size=80))
def test_no_env_file_is_an_error(text: str) -> None:
    """C7: other programs keep theirs there"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".env").write_text(text, encoding="utf-8", errors="replace", newline="")
        loaded(Path(folder))


def test_a_quote_without_an_end_is_told(tmp_path: Path, snapshot: Snapshot) -> None:
    """C7"""
    (tmp_path / ".env").write_text("CURTSY_QPS='3\n")

    (warning,) = loaded(tmp_path).warnings

    assert missing(warning, ".env", "line 1", "CURTSY_QPS") == []
    snapshot(warning)


# --- What is told

FILES = {
    "curtsy.yaml": "store: 'memory:'\ndefault_policy:\n  respect_robots: false\n  allow_private: true\n",
    "config/domains.yaml": "allowlist:\n- domain: example.org\n  respect_robots: false\n",
    ".env": "CURTSY_ALLOW_PRIVATE=true\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_working_directory_loosens_nothing_without_a_word(tmp_path: Path, name: str) -> None:
    """One warning that names the file and what it sets"""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(FILES[name])

    (warning,) = loaded(tmp_path).notices

    assert str(path) in warning
    assert "respect_robots" in warning or "allow_private" in warning


@pytest.mark.parametrize("name", ["curtsy.yaml", "sub/other.yaml"])
def test_a_file_that_the_env_file_names_loosens_nothing_without_a_word(tmp_path: Path, name: str) -> None:
    """`CURTSY_CONFIG` in `.env` is the project's word; in the real environment it is the user's"""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("default_policy:\n  respect_robots: false\n")
    (tmp_path / ".env").write_text(f"CURTSY_CONFIG={name}\n")

    (warning,) = loaded(tmp_path).notices

    assert str(path) in warning
    assert "respect_robots" in warning
    assert loaded(tmp_path, {"CURTSY_CONFIG": name}).notices == ()


def test_a_file_that_is_named_or_strict_or_overridden_is_not_warned_about(tmp_path: Path) -> None:
    """The user's own word needs no warning"""
    path = tmp_path / "curtsy.yaml"
    path.write_text("default_policy:\n  allow_private: true\n")

    named = loaded(tmp_path, config="curtsy.yaml")
    overridden = loaded(tmp_path, {"CURTSY_ALLOW_PRIVATE": "false"})
    path.write_text("default_policy:\n  allow_private: false\n  respect_robots: true\n")

    assert named.notices == overridden.notices == loaded(tmp_path).notices == ()


def test_a_command_says_once_what_the_projects_file_sets(shell: Shell) -> None:
    """On standard error, and by the doctor"""
    shell.settle("default_policy:\n  allow_private: true\n")
    with Site() as site:
        site.page("/", "x")
        done = shell("get", site.url("/"), CURTSY_ALLOW_PRIVATE=None, CURTSY_LOG_FORMAT="text")
    doctor = shell("doctor", "--json", CURTSY_ALLOW_PRIVATE=None).json

    assert (done.code, done.out) == (0, "x")
    (line,) = done.err.splitlines()
    assert missing(line, "curtsy.yaml", "allow_private") == []
    assert any(missing(each["says"], "curtsy.yaml", "allow_private") == [] for each in doctor["findings"])


def test_the_doctor_shows_each_fault_of_the_settings_on_a_line_of_its_own(shell: Shell) -> None:
    """U9"""
    shell.settle("on_429: retry\ndefault_policy:\n  qps: -1\n")

    shown = shell("doctor")

    assert shown.code == 78
    assert "x0a" not in shown.out
    assert sum("curtsy.yaml, line" in line for line in shown.out.splitlines()) == 2
