"""Files that hosts of the project read: continuous integration, issue forms, citation. No host is needed here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import curtsy

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PIPELINES = [*WORKFLOWS, ROOT / ".gitlab-ci.yml"]


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def texts(node: Any) -> Iterator[str]:
    """All texts in a file."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from texts(each)
    elif isinstance(node, str):
        yield node


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
def test_a_pipeline_calls_only_targets_of_the_makefile(path: Path) -> None:
    called = {name for text in texts(loaded(path)) for name in re.findall(r"^make (\w+)", text, re.M)}

    assert called
    assert called <= targets()


def test_the_pipelines_test_every_version_that_the_package_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = {each.rsplit(" ", 1)[1] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}

    on_github = set(loaded(GITHUB / "workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"])
    on_gitlab = set(loaded(ROOT / ".gitlab-ci.yml")["test"]["parallel"]["matrix"][0]["PYTHON"])

    assert claimed
    assert claimed <= on_github == on_gitlab


def test_a_release_is_published_only_after_the_tests_and_without_a_stored_secret() -> None:
    jobs = loaded(GITHUB / "workflows/release.yml")["jobs"]
    steps = [step.get("run", "") for step in jobs["build"]["steps"]]

    assert [step for step in steps if step.startswith("make")] == ["make test", "make dist"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (GITHUB / "workflows/release.yml").read_text()


def test_the_version_that_a_release_compares_is_that_of_the_package() -> None:
    found = re.search(r'^__version__ = "(.*)"', (ROOT / "src/curtsy/__init__.py").read_text(), re.M)

    assert found is not None
    assert found[1] == curtsy.__version__


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_has_a_label_and_a_name_for_each_field(name: str) -> None:
    form = loaded(GITHUB / f"ISSUE_TEMPLATE/{name}.yml")
    fields = [each for each in form["body"] if each["type"] != "markdown"]

    assert form["name"]
    assert form["description"]
    assert all(each["attributes"]["label"] for each in fields)
    assert len({each["id"] for each in fields}) == len(fields)


def test_the_citation_names_the_package_and_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = loaded(ROOT / "CITATION.cff")

    assert citation["title"].startswith(f"{project['name']}:")
    assert citation["license"] == project["license"]
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in project["authors"]]
