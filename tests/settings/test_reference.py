"""The reference page of the settings: its tables are those of the code, and its examples work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from curtsy.settings import load, load_limits
from curtsy.settings.general import ALIASES, keys

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "settings.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_tables_are_current() -> None:
    """C7: every key with type, unit and default on one page"""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "settings_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_every_key_and_every_variable_is_on_the_page() -> None:
    """C7"""
    text = PAGE.read_text()

    assert [name for name in keys() if f"| `{name}` |" not in text] == []
    assert [name for name in ALIASES if f"`{name}`" not in text] == []


def test_the_example_of_a_file_is_read(tmp_path: Path) -> None:
    """U9"""
    (example,) = blocks("yaml")
    (tmp_path / "curtsy.yaml").write_text(example)

    settings = load(directory=tmp_path, user_directory=tmp_path / "user", env={})

    assert settings.warnings == ()
    assert settings.policies.of("de.wikipedia.org").max_pages_per_day == 250
    assert settings.policies.of("a.example.org").key == "example.org"
    assert settings.policies.of("a.example.org").refuses_path("/a/b.pdf") == "/*.pdf$"
    assert settings.policies.of("example.org:8080").denied
    assert settings.policies.of("intranet.example.net").qps is None


def test_the_example_of_the_json_file_is_read(tmp_path: Path) -> None:
    """L7"""
    (example,) = blocks("json")
    path = tmp_path / "limits.json"
    path.write_text(example)

    default, domains = load_limits(path)

    assert default.requests_per_second == 1.0
    assert domains["example.com"].burst_capacity == 2


def test_the_example_in_python_runs(tmp_path: Path) -> None:
    """C7, U9"""
    (example,) = blocks("python")

    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
