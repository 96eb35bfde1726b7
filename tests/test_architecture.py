"""How the code is laid out: imports point one way, the core is pure, names say something, all is explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

CORE = (
    # What everything speaks in.
    "errors", "dates", "secrets", "text", "bounded", "hostname", "message", "record", "crawl", "pattern", "policy",
    # What sites say.
    "filelines", "robots", "rules", "cachecontrol", "variant", "cache", "outcome",
    # One limit each, and the record that they all share.
    "breaker", "budget", "pace", "host", "admission",
    # How hosts share what is limited.
    "turns",
    # The way of a request.
    "result", "explain", "effects", "journey", "heeding", "flow",
)  # fmt: skip
"""The modules of the core, each of which may import those before it."""

UNITS = (
    "core",  # decides: imports nothing but itself
    "unseen", "log",  # tells
    "clock",  # where Now comes from
    "watch.distribution", "watch.statistics",  # what is counted, which stores keep too
    "fields", "tally", "cookies", "site", "place", "ownfile",  # small nouns that know only the core
    "threads", "startup", "ending",  # where what blocks is done, and what at a program's start and end
    "settings",  # files, environment, arguments -> policies
    "stores",  # remember
    "watch.hostview", "watch.alerts", "watch.publishing", "watch.reporting", "watch.rhythm",  # what a client tells
    "alarm", "lines", "steps", "gate",  # the queue before the decision
    "places", "address", "decoding", "connections", "body", "exchange", "http",  # the sender
    "download", "surroundings", "drive",  # carry out a flow's effects
    "keywords", "arguments", "storage", "flights", "saving", "batch",  # what a client is made of
    "client", "blocking",  # the everyday way in
    "guards",  # the documents' parts
    "crawling",  # many pages
    "adapters", "mcp",  # other ways in
    "watch",  # metrics and the dashboard
    "cli.screen", "cli.reasons", "cli.report", "cli.view",  # how a crawl is shown, by the demo too
    "demo", "cli", "__main__",
)  # fmt: skip
"""The modules and packages, each of which may import those before it. A new one says here where it stands."""

OUTSIDE = frozenset(
    {
        "aiohttp", "asyncio", "fcntl", "http", "io", "logging", "multiprocessing", "os", "pathlib", "platform",
        "random", "redis", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
        "tempfile", "time", "uuid", "zoneinfo",
    }
)  # fmt: skip
"""Where a clock, dice, a socket, a file or a logger would come from."""

ASKS_THE_WORLD = frozenset(
    {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print", "input", "urlopen"}
)
"""Calls that do the same; a moment that is given, as in `Calendar.day_of(second)`, is another thing."""

NO_NOUN = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "managers", "misc", "tools"})


class Import(NamedTuple):
    module: str
    name: str | None
    is_deferred: bool
    """In a function, or for the type checker only."""


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in sorted((SOURCE / "curtsy").rglob("*.py"))}


@cache
def modules() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(), str(path)) for name, path in PATHS.items()}


def imports(tree: ast.AST, is_deferred: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, None, is_deferred) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (Import(node.module or "", each.name, is_deferred) for each in node.names)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            yield from imports(node, is_deferred or is_function or is_typing)


def own_imports(name: str) -> Iterator[tuple[str, bool]]:
    """The modules of curtsy that a module imports, and whether only later."""
    for each in imports(modules()[name]):
        if each.module.split(".")[0] != "curtsy":
            continue
        submodule = f"{each.module}.{each.name}"
        if each.module == "curtsy" and submodule not in modules():
            assert each.name == "__version__", f"{name} imports {each.name} from curtsy. Import it from its own module."
            continue
        yield (submodule if submodule in modules() else each.module), each.is_deferred


def unit(name: str) -> str:
    """The unit of a module: its package, unless it stands elsewhere than the rest of that."""
    inner = name.removeprefix("curtsy.")
    return inner if inner in UNITS else inner.split(".")[0]


NAMES = tuple(name for name in PATHS if name != "curtsy")


def test_imports_point_one_way() -> None:
    """Design, section 1: from the bottom of the list to the top, never round; not even later, in a function."""
    new = {unit(name) for name in NAMES} - set(UNITS)
    assert not new, f"{new} are new: say in UNITS where they stand"

    wrong = [
        f"{name} imports {other}, which stands below it"
        for name in NAMES
        for other, _ in own_imports(name)
        if UNITS.index(unit(other)) > UNITS.index(unit(name))
    ]

    assert not wrong


def test_the_core_imports_only_itself_and_one_way() -> None:
    """Design, section 1"""
    found = {name.removeprefix("curtsy.core.") for name in NAMES if name.startswith("curtsy.core.")}
    assert found == set(CORE), "say in CORE where a new module stands"

    for noun in CORE:
        for other, _ in own_imports(f"curtsy.core.{noun}"):
            assert other.startswith("curtsy.core"), f"core.{noun} imports {other}, which is outside the core"
            if other != "curtsy.core":
                place = CORE.index(other.removeprefix("curtsy.core."))
                assert place < CORE.index(noun), f"core.{noun} imports {other}, which stands below it"


def test_no_imports_go_round() -> None:
    """Design, section 1: within a package too, as far as they happen when a module is loaded."""
    graph = {name: {other for other, is_deferred in own_imports(name) if not is_deferred} for name in modules()}
    for name, others in graph.items():
        others.discard(name.rpartition(".")[0])  # a package is being loaded while its modules are

    while free := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in free:
            del graph[name]

    assert not graph, f"these import each other: {graph}"


def test_the_core_asks_nothing_of_the_world() -> None:
    """Design: no clock, no dice, no socket, no file and no logger; now and luck are arguments."""
    for noun in CORE:
        tree = modules()[f"curtsy.core.{noun}"]
        assert not {each.module for each in imports(tree) if each.module.split(".")[0] in OUTSIDE}, noun
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & ASKS_THE_WORLD, noun


def test_a_module_is_named_by_a_noun_of_its_own() -> None:
    """Design, section 1: a function with no home has not been named yet."""
    assert not [name for name in NAMES if NO_NOUN & set(name.split("."))]


def test_every_public_name_has_a_docstring() -> None:
    """Conventions"""
    assert not [missing for name, tree in modules().items() for missing in undocumented(tree, name)]


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(node: Documented, name: str) -> Iterator[str]:
    if not ast.get_docstring(node):
        yield name
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not child.name.startswith("_") and not is_further(child):
                yield from undocumented(child, f"{name}.{child.name}")


def is_further(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a further form of what was explained before: an overload, or a setter."""
    return any(ast.unparse(each).endswith(("overload", ".setter")) for each in node.decorator_list)


ARGUED_AWAY = re.compile(
    r"\bcast\(|import cast\b|#\s*mypy:|#\s*type:\s*ignore(?!\[[a-z-]+(, ?[a-z-]+)*\])"
)  # fmt: skip


def test_types_are_not_argued_away() -> None:
    """Conventions: no cast, no bare `type: ignore`."""
    scripts = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]

    wrong = [
        f"{path.relative_to(ROOT)}, line {number}"
        for path in scripts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ARGUED_AWAY.search(line)
    ]

    assert not wrong


def test_the_order_names_nothing_twice() -> None:
    """The lists above are what the tests go by."""
    assert len(set(UNITS)) == len(UNITS)
    assert len(set(CORE)) == len(CORE)
    assert {f"curtsy.core.{noun}" for noun in CORE} <= set(NAMES)
