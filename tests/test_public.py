"""The public face: every name is there, documented and typed, and `import curtsy` is quick."""

from __future__ import annotations

import builtins
import collections.abc
import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import curtsy
import curtsy.limits
import curtsy.testing
import curtsy.types
from tests.support.bounds import slowness

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", curtsy.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    """Conventions: docstrings"""
    thing = getattr(curtsy, name)

    assert inspect.getdoc(thing)
    assert name in dir(curtsy)


def public_members() -> list[tuple[str, Any]]:
    found = []
    for name in curtsy.__all__:
        thing = getattr(curtsy, name)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                is_callable = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
                if not member.startswith("_") and is_callable:
                    found.append((f"{name}.{member}", value))
        elif inspect.isfunction(thing):
            found.append((name, thing))
    return found


def test_every_method_of_a_public_class_has_a_docstring() -> None:
    """Conventions: docstrings"""
    assert [name for name, value in public_members() if not inspect.getdoc(value)] == []


def test_every_public_function_is_typed() -> None:
    """Conventions: types"""
    bare = []
    for name, value in public_members():
        function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        signature = inspect.signature(function)
        given = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
        if signature.return_annotation is inspect.Parameter.empty or any(
            each.annotation is inspect.Parameter.empty for each in given
        ):
            bare.append(name)

    assert bare == []


def test_a_name_that_is_none_is_an_error_in_words() -> None:
    """Conventions: errors"""
    with pytest.raises(AttributeError, match=r"'curtsy' .*'nonsense'"):
        curtsy.nonsense  # noqa: B018


def test_what_type_checkers_see_is_what_is_there() -> None:
    """Conventions: `py.typed`"""
    source = (ROOT / "src" / "curtsy" / "__init__.py").read_text()
    imported = re.findall(r"^    from (\S+) import (\w+) as (\w+)", source, re.MULTILINE)

    assert sorted(public for _, _, public in imported) == list(curtsy.__all__)
    for module, name, public in imported:
        assert getattr(importlib.import_module(module), name) is getattr(curtsy, public)
    assert (ROOT / "src" / "curtsy" / "py.typed").exists()


def checked(program: str, path: Path) -> str:
    """What a type checker says of a program of a user's, with our settings, which are strict."""
    pytest.importorskip("mypy", reason='pip install "curtsy[check]"')
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_a_users_program_may_use_every_name(tmp_path: Path) -> None:
    """Conventions: typed for its users"""
    program = "import curtsy\n" + "".join(f"print(curtsy.{name})\n" for name in curtsy.__all__)

    said = checked(program, tmp_path / "program.py")

    assert said.startswith("Success: ")


def test_a_type_checker_sees_a_slip_in_what_clients_and_crawls_are_given(tmp_path: Path) -> None:
    """Conventions: typed for its users"""
    fetch = ["metod='GET'", "body=3"]
    client = ["user_agnet='x'", "store=3", "cache_mode='ofline'", "qps='1'", "timeot=3"]
    crawl = [*client, "max_pagess=3", "max_pages='3'", "match=3", "outputs=3", "job=3", "lease='x'"]
    settings = ["user_agent='x'", "cache=False", "qps=None", "pause=(1, 2)", "cache_dir=Path('x')", "log_level='WARN'"]
    options = [*settings, "max_pages=3", "match='a'", "skip=['a']", "files=('.pdf',)", "job='a'"]
    kinds = [
        ("crawl('x', {})", crawl, options),
        ("acrawl('x', {})", crawl, options),
        ("Client({})", client, settings),
        ("AsyncClient({})", client, settings),
        ("get('x', {})", client, settings),
        ("fetch_url('x', {})", client, settings),
        ("Client().fetch_many([], {})", fetch, ["method='HEAD'"]),
        ("AsyncClient().fetch_many([], {})", fetch, ["method='HEAD'"]),
    ]
    slips = [f"print(curtsy.{call.format(each)})" for call, wrong, _ in kinds for each in wrong]
    right = [f"print(curtsy.{call.format(each)})" for call, _, given in kinds for each in given]

    said = checked("\n".join(["import curtsy", "from pathlib import Path", *slips, *right]), tmp_path / "program.py")

    lines = {int(found) for found in re.findall(r"program\.py:(\d+): error", said)}
    assert lines == set(range(3, 3 + len(slips)))


@pytest.mark.parametrize("slip", [{"max_pagess": 3}, {"max_pages": "3"}, {"match": 3}, {"user_agnet": "x"}], ids=str)
@pytest.mark.parametrize("way_in", ["crawl", "acrawl"])
async def test_a_slip_in_an_option_or_a_setting_is_an_error_at_the_call(way_in: str, slip: dict[str, object]) -> None:
    """U9"""
    with pytest.raises(curtsy.PolicyError, match=next(iter(slip))):
        getattr(curtsy, way_in)("https://example.org/", **slip)


def test_import_is_quick_and_brings_nothing_heavy_along() -> None:
    """Design, section 1: lazy"""
    code = (
        "import sys, time; began = time.process_time(); import curtsy; took = time.process_time() - began;"
        "print(took, [name for name in ('httptools', 'pydantic', 'asyncio', 'msgspec', 'yaml') if name in sys.modules])"
    )

    seconds, _, heavy = run(code).partition(" ")

    assert heavy == "[]"
    assert float(seconds) < 0.1 * slowness()


def test_a_client_needs_no_pydantic_until_settings_are_read() -> None:
    """Design, section 6: settings at the edge only"""
    code = "import sys, curtsy; curtsy.AsyncClient, curtsy.FetchResult; print('pydantic' in sys.modules)"

    assert run(code) == "False"


def test_every_name_is_on_the_reference_page() -> None:
    """Conventions: a test that compares `__all__` with the reference"""
    headings = re.findall(r"^### (\w+)$", "".join(page.read_text() for page in PAGES), re.MULTILINE)
    names = {*curtsy.__all__, *curtsy.limits.__all__, *curtsy.testing.__all__}

    assert len(headings) == len(set(headings))
    assert names <= set(headings) <= {*names, *curtsy.types.__all__}


def test_every_type_in_a_signature_is_on_the_reference_page() -> None:
    """Conventions: habits; as a name of its own, or in the table of the others"""
    text = "".join(page.read_text() for page in PAGES)
    signatures = re.findall(r"```text\n(.*?)```", text, re.DOTALL) + re.findall(r"^- `([^`]*)`", text, re.MULTILINE)
    named = set(re.findall(r"\b[A-Z]\w*[a-z]\w*", re.sub(r'"[^"]*"', "", " ".join(signatures))))
    others = {"EllipsisType", "Path", "PathLike", "SSLContext", "Result"}  # of Python, and what a function brings back
    foreign = {*dir(builtins), *dir(typing), *dir(collections.abc), *others}

    told = {
        *re.findall(r"^### (\w+)$", text, re.MULTILINE),
        *re.findall(r"^\| `(\w+)` \| `curtsy\.", text, re.MULTILINE),
    }

    assert {"Preset", "Share", "ClientKeywords"} <= named
    assert named - foreign - told == set()


def test_the_reference_page_is_current() -> None:
    """Conventions: habits"""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "api_reference.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_version_is_a_version() -> None:
    """Conventions: habits"""
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:[a-z]+\d+)?", curtsy.__version__)
