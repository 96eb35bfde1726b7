"""README and docs: Python blocks run against a real site, commands are understood, links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from curtsy import limits, testing, types
from curtsy.cli.context import Exit, exit_for
from curtsy.core.errors import Reason
from curtsy.crawling.extract.scope import OutOfScope
from curtsy.crawling.filters import NO_SITEMAP, NOINDEX, NOT_CANONICAL
from curtsy.crawling.results import DUPLICATE
from curtsy.settings import load
from curtsy.settings.general import keys
from tests.support.commands import commands_in, misread
from tests.support.said import missing
from tests.support.site import Site, closed_port
from tests.support.warm import WARM, Process

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
HASTE = {
    "CURTSY_ALLOW_PRIVATE": "true",
    "CURTSY_PAUSE_MIN": "0",
    "CURTSY_PAUSE_MAX": "0",
    "CURTSY_QPS": "none",
    "CURTSY_GLOBAL_QPS": "none",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NEEDS_MORE = {
    "docker.md",
    "systemd.md",
    "kubernetes.md",
    "engines.md",
    "dashboard.md",
    "crawl-on-many-machines.md",
    "render.md",
}
"""Pages whose commands need more than a site: a daemon, root, a server, a browser."""
ENGINES = "engines.md"
"""Page whose programs need engines; `test_engines.py` runs them."""
KINDS = {"Tutorial": "tutorial", "How-to": "how-to", "Reference": "reference", "Explanation": "explanation"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def with_blocks(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        links = "".join(f'<a href="{path}">{path}</a>' for path in ("/about", "/more", "/gone", "/private/diary"))
        site.page("/", f"<title>/</title><main>Hello {links}</main>")
        for path in ("/about", "/more"):
            site.page(path, f"<title>{path}</title><main>Hello</main>")
        site.robots("User-agent: *\nDisallow: /private/\n")
        yield site


def moved(text: str, site: Site) -> str:
    """A text about example.org and example.net, about the site instead."""
    address = site.url("/").removesuffix("/")
    text = text.replace("https://example.org/bot", "MyBot's page").replace("https://example.org", address)
    text = text.replace("https://example.net", site.url("/", host="127.0.0.2").removesuffix("/"))
    return text.replace("example.org", address.removeprefix("http://")).replace("MyBot's page", "https://x.org")


def curtsy(*words: str, env: dict[str, str], cwd: Path) -> tuple[int, str, str]:
    """Run a command; its exit code, and what it says on standard output and standard error."""
    return run("curtsy.cli", *words, env=env, cwd=cwd)


def run(module: str, *words: str, env: dict[str, str], cwd: Path) -> tuple[int, str, str]:
    """Run a module; its exit code, and what it says on standard output and standard error."""
    pipe = subprocess.PIPE
    process: Process[str] = Process(module, *words, text=True, env=env, cwd=cwd, stdout=pipe, stderr=pipe)
    out, err = process.communicate(120)
    return process.returncode, out, err


# What is in blocks


ROW = re.compile(r"^(.)  (policy|address|cache|robots\.txt|breaker|budget|pace|global) ", re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "tutorial" / "first-crawl.md"], ids=named)
def test_what_curtsy_why_prints_is_what_the_page_shows(page: Path, site: Site, tmp_path: Path) -> None:
    """Issue 6, point 3: `curtsy why` with its output"""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "100"} | HASTE

    _, out, _ = curtsy("why", "--ask", site.url("/private/diary"), env=environment, cwd=tmp_path)

    (shown,) = [text for text in blocks(page, "console") if "curtsy why" in text]
    names = [name for _, name in ROW.findall(out) if name != "address"]  # which is for sites such as ours
    assert names == [name for _, name in ROW.findall(shown)], out
    assert ("✗", "robots.txt") in ROW.findall(out)
    assert ("✗", "robots.txt") in ROW.findall(shown)
    for text in (out, shown):
        assert missing(text, "line 2", '"Disallow: /private/"') == []


@pytest.mark.parametrize("page", with_blocks("console", "sh"), ids=named)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    """Conventions: every code block is run by a test; here, as far as the parser"""
    found = [each for text in blocks(page, "console") for each in commands_in(text)]
    found += [each for text in blocks(page, "sh") for each in commands_in(text, prompt="")]

    assert [(each, why) for each in found if (why := misread(each)) is not None] == []


@pytest.mark.parametrize("page", with_blocks("yaml", "json"), ids=named)
def test_the_files_on_a_page_can_be_read(page: Path, tmp_path: Path) -> None:
    """U9: examples of settings are settings"""
    for text in blocks(page, "json"):
        for line in [text] if text.startswith("{\n") else text.splitlines():
            json.loads(line)
    for number, text in enumerate(blocks(page, "yaml")):
        if keys().keys() | {"default_policy", "allowlist", "denylist"} >= yaml.safe_load(text).keys():
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "curtsy.yaml").write_text(text)
            assert load(directory=folder, user_directory=folder / "user", env={}).warnings == ()


OURS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:curtsy (?!demo)|printf )")
"""Commands that are run; `curtsy demo` takes 20 seconds, and `test_demo.py` runs it."""
TYPED = """
import subprocess


def typed(line):
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.returncode == 0 or ("curtsy why" in line and done.returncode == 3), line + done.stdout + done.stderr
"""


def as_program(page: Path) -> str:
    """A page as one program: its Python, and its commands where they stand."""
    parts = [TYPED]
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            parts.append(text)
        elif language == "console":
            lines = [line.removeprefix("$ ").split(" | ")[0] for line in text.splitlines() if line.startswith("$ ")]
            parts += [f"typed({line!r})" for line in lines if OURS.match(line)]
    return "\n".join(parts)


def followed() -> list[Path]:
    pages = [ROOT / "README.md", *sorted(DOCS.glob("tutorial/*.md")), *sorted(DOCS.glob("how-to/*.md"))]
    return [page for page in pages if page.name not in NEEDS_MORE and "typed('" in as_program(page)]


@pytest.mark.parametrize("page", followed(), ids=named)
def test_a_page_can_be_followed_in_an_empty_folder(page: Path, site: Site, tmp_path: Path) -> None:
    """Conventions: every code block is run by a test; here, one after the other, as a reader does"""
    command = tmp_path / "bin" / "curtsy"
    command.parent.mkdir()
    WARM.write_command(command)
    (tmp_path / "empty").mkdir()
    environment = {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)} | HASTE

    code, out, err = run(
        "tests.support.program", moved(as_program(page), site), env=environment, cwd=tmp_path / "empty"
    )

    assert code == 0, f"{page.name}:\n{out}\n{err}"


@pytest.mark.parametrize(
    "page", [page for page in with_blocks("python") if page.name != ENGINES and page not in followed()], ids=named
)
def test_the_code_of_a_page_runs(page: Path, site: Site, tmp_path: Path) -> None:
    """Conventions: every code block is run by a test"""
    program = moved("\n".join(blocks(page, "python")), site)
    for library in re.findall(r"curtsy\.adapters\.(\w+)", program):
        pytest.importorskip(library)
        if library == "playwright" and shutil.which("chromium") is None:
            pytest.skip("there is no browser")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if any(word in program for word in ("fetch", "crawl", "adapters")):  # not for pages that show what the settings are
        environment |= HASTE

    code, out, err = run("tests.support.program", program, env=environment, cwd=tmp_path)

    assert code == 0, f"{page.name}:\n{out}\n{err}"


def test_the_code_of_the_pages_is_sound_to_a_type_checker(tmp_path: Path) -> None:
    """Conventions: typed for its users; what they copy is what they check"""
    pytest.importorskip("mypy", reason='pip install "curtsy[check]"')
    pages = [page for page in with_blocks("python") if page.name != ENGINES]
    for page in pages:
        name = re.sub(r"\W", "_", named(page))
        (tmp_path / f"{name}.py").write_text("\n".join(blocks(page, "python")))

    # With our settings, so that what a check of the code left in the cache is used; `main` may be twice on a page.
    command = [sys.executable, "-m", "mypy", "--disable-error-code", "no-redef", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {len(pages)} source files" in done.stdout


def alike(line: str) -> str:
    """A line of output without its numbers, times and sizes."""
    line = re.sub(r"\d[\d.,]*( ms| s| min| KB| B\b)?", "0", line)
    return " ".join(line.split())


@pytest.fixture
def seven_pages() -> Iterator[Site]:
    """The site of the tutorial."""
    links = {
        "/": ["/about", "/articles/", "https://elsewhere.example/"],
        "/about": ["/", "/contact"],
        "/contact": ["/"],
        "/articles/": ["/articles/one", "/articles/two", "/articles/three"],
        "/articles/one": ["/articles/"],
        "/articles/two": ["/articles/", "/private/diary"],
        "/articles/three": ["/articles/", "/old"],
    }
    with Site() as site:
        for path, targets in links.items():
            site.page(path, f"<title>{path}</title>" + "".join(f'<a href="{target}">a</a>' for target in targets))
        site.robots("User-agent: *\nDisallow: /private/\n")
        yield site


def test_the_tutorial_shows_what_comes(seven_pages: Site, tmp_path: Path) -> None:
    """Issue 6, point 3: a newcomer's path, command by command"""
    page, site = DOCS / "tutorial" / "first-crawl.md", seven_pages
    host = site.url("/").removeprefix("http://").removesuffix("/")
    commands = [each for text in blocks(page, "console") for each in commands_in(text)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "200"} | HASTE
    said = set()

    for command in commands:
        code, out, err = curtsy(*(moved(word, site) for word in command), env=environment, cwd=tmp_path)
        assert code == (3 if command[0] == "why" else 0), f"{command}: {err}"
        if command == ["config", "init"]:
            (tmp_path / "curtsy.yaml").write_text(blocks(page, "yaml")[0])
        output = (out + err).replace(f"http://{host}", "https://example.org").replace(host, "example.org")
        said |= {alike(line) for line in output.splitlines()}

    shown = [line for text in blocks(page, "console") for line in text.splitlines() if not line.startswith("$ ")]
    unpaced = [line for line in shown if not re.search("pace|fetched in|policy|global|Not fetching|or leave", line)]
    assert [line for line in unpaced if alike(line) not in said] == []
    urls = [json.loads(line)["url"] for line in (tmp_path / "pages.jsonl").read_text().splitlines()]
    assert len(urls) == len(set(urls)) == 7
    assert "robots_disallowed" in (tmp_path / "skipped.csv").read_text()
    assert site.paths().count("/") == 1


# Links


def without_code(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page, where the site that we build and the usual viewers of Markdown agree on them."""
    titles = re.findall(r"^#+ (.+?)\s*$", without_code(page), re.MULTILINE)
    plain = [re.sub(r"`|\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    # Viewers make a hyphen of each blank, our site of each run of blanks and hyphens.
    viewers = [re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title)) for title in plain]
    ours = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title)).strip("-") for title in plain]
    return frozenset(one for one, other in zip(viewers, ours, strict=True) if one == other)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Issue 6, point 3"""
    lost = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", without_code(page))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            lost.append(link)

    assert lost == []


# The site


def entries(nav: list[Any]) -> Iterator[str]:
    for each in nav:
        if isinstance(each, str):
            yield each
        else:
            for value in each.values():
                yield from [value] if isinstance(value, str) else entries(value)


def test_every_page_is_in_the_sites_navigation_under_its_kind() -> None:
    """Conventions: four kinds of page, never mixed"""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}

    assert sorted(entries(nav)) == sorted(pages)
    for title, folder in KINDS.items():
        (section,) = [each[title] for each in nav if title in each]
        assert all(each.startswith(f"{folder}/") for each in entries(section))


def test_the_site_is_built_without_a_complaint_and_needs_no_network(tmp_path: Path) -> None:
    """Issue 6, point 3: `make docs`"""
    pytest.importorskip("zensical", reason='pip install "curtsy[docs]"')
    (tmp_path / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    shutil.copytree(DOCS, tmp_path / "docs")

    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) >= len(list(DOCS.rglob("*.md")))
    for page in built:
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        assert [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)] == []


# Design


DESIGN = DOCS / "explanation" / "design.md"
PACKAGE = ROOT / "src" / "curtsy"
MAP_ENTRY = re.compile(r"^### `([\w/]+/)`$|^\| `([\w/]+\.py)` \|", re.MULTILINE)


def section(page: Path, title: str) -> str:
    """Return the text under a heading of the second level."""
    return page.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def defined(path: Path) -> frozenset[str]:
    """Return the functions and classes of a module, and the methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{each.name}" for each in methods}
    return frozenset(names)


def test_the_module_map_names_every_module_once() -> None:
    """Design: one line per module; a package with an `__init__.py` without code has its heading only"""
    expected = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "__init__.py":
            folder = path.parent.relative_to(PACKAGE.parent).as_posix() + "/"
            expected.append(folder if path.parent == PACKAGE else folder.removeprefix("curtsy/"))
        if path.name != "__init__.py" or len(ast.parse(path.read_text()).body) > 1:
            expected.append(path.relative_to(PACKAGE).as_posix())

    listed = [heading or row for heading, row in MAP_ENTRY.findall(section(DESIGN, "Module map"))]

    assert sorted(listed) == sorted(expected)


def test_every_module_and_function_that_the_design_names_exists() -> None:
    """Design: the way of a request, with its functions"""
    named_there = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", DESIGN.read_text())
    paths = {name: ROOT / name if name.startswith(("tests/", "tools/")) else PACKAGE / name for name, _ in named_there}

    missing = [name for name, path in paths.items() if not path.is_file()]
    assert missing == []
    assert [
        f"{name}:{function}" for name, function in named_there if function and function not in defined(paths[name])
    ] == []
    assert sum(bool(function) for _, function in named_there) >= 40


def test_the_glossary_is_short_and_sorted() -> None:
    """Design: at most 60 terms"""
    terms = re.findall(r"^\| ([^|]+?) \|", section(DESIGN, "Glossary"), re.MULTILINE)[1:]

    assert len(terms) <= 60
    assert terms == sorted(terms, key=str.lower)


# Reference


def test_what_pages_import_is_public_and_the_other_way_round() -> None:
    """Conventions: public API"""
    imported = set()
    for page in with_blocks("python"):
        if page.parent.name != "explanation":  # which looks inside
            nodes = ast.walk(ast.parse("\n".join(blocks(page, "python"))))
            froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module != "curtsy"]
            imported |= {(node.module, each.name) for node in froms for each in node.names}
    rows = re.findall(
        r"^\| `(curtsy\.[\w.]+)` \| (.+) \|$", (DOCS / "reference" / "index.md").read_text(), re.MULTILINE
    )

    public = {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    listed = {(each.__name__, name) for each in (limits, testing, types) for name in each.__all__}
    assert {each for each in imported if str(each[0]).startswith("curtsy.")} - listed == public


def test_every_extra_is_on_the_overview() -> None:
    """Issue 6, point 3"""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DOCS / "reference" / "index.md").read_text()
    section = text[text.index("## Extras") : text.index("## What is public")]

    assert [name for name in extras if f"`{name}`" not in section] == []


def test_exit_codes_and_reasons_are_those_of_the_code() -> None:
    """Conventions: exit codes"""
    text = (DOCS / "reference" / "exit-codes.md").read_text()

    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(code.value) for code in Exit]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE))
    assert rows == {reason.value: str(exit_for(reason, None).value) for reason in Reason}


@pytest.mark.parametrize(
    ("settings", "codes"),
    [({}, [75, 75]), ({"CURTSY_MAX_RETRIES": "0"}, [1, 75, 75]), ({"CURTSY_BREAKER": "false"}, [1])],
    ids=["by default", "without retries", "without a breaker"],
)
def test_a_host_that_does_not_answer_ends_as_the_page_says(
    settings: dict[str, str], codes: list[int], tmp_path: Path
) -> None:
    """Conventions: exit codes"""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CURTSY_RETRY_DELAY": "0"} | HASTE | settings
    found = []

    with closed_port() as port:
        for _ in codes:
            code, _, _ = curtsy("get", f"http://127.0.0.1:{port}/", env=environment, cwd=tmp_path)
            found.append(code)

    assert found == codes


def test_the_reasons_of_a_crawl_are_on_the_page_of_outputs() -> None:
    """U14"""
    text = (DOCS / "reference" / "crawl-output.md").read_text()
    reasons = [*OutOfScope, NOINDEX, NOT_CANONICAL, DUPLICATE, NO_SITEMAP, "host_limit", "reader_crashed", "error"]

    assert [reason for reason in reasons if f"`{reason}`" not in text] == []


def test_the_table_of_variables_is_current() -> None:
    """C7"""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "environment_reference.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr


def test_every_part_that_writes_log_lines_is_on_the_page_of_logs() -> None:
    """N1"""
    text = (DOCS / "reference" / "logs.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    components = set(re.findall(r'library_logger\("(\w+)"\)', sources))

    assert components
    assert [each for each in sorted(components) if f"`{each}`" not in text] == []
