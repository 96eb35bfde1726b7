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

PACKAGES = (
    "core",  # decides
    "system",  # clock, threads, files, log
    "stores", "http", "settings",  # remember records, send one request, read settings
    "cache", "engine",  # keep pages, carry out a flow
    "rendering",  # run the scripts of pages
    "testing", "client", "blocking",  # fake time; fetch, for tasks and for threads
    "limits",  # the parts of the documents
    "crawling", "observe", "adapters",  # fetch many pages, show the state, wrap other libraries
    "types",  # the types of public signatures
    "cli", "__main__",
)  # fmt: skip
"""The packages and top-level modules. Each may import only those before it."""

OUTSIDE = frozenset(
    {
        "asyncio", "fcntl", "http", "httptools", "io", "logging", "multiprocessing", "os", "pathlib", "platform",
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
        elif not isinstance(node, ast.expr):
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


def package(name: str) -> str:
    return name.split(".")[1]


NAMES = tuple(name for name in PATHS if name != "curtsy")
CORE = tuple(name for name in NAMES if package(name) == "core")


def test_packages_import_in_one_direction() -> None:
    """Design, section 1: imports in functions and for the type checker count too."""
    wrong = [
        f"{name} imports {other}"
        for name in NAMES
        for other, _ in own_imports(name)
        if PACKAGES.index(package(other)) > PACKAGES.index(package(name))
    ]

    assert not wrong


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
    for name in CORE:
        tree = modules()[name]
        assert not {each.module for each in imports(tree) if each.module.split(".")[0] in OUTSIDE}, name
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & ASKS_THE_WORLD, name


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
            if not child.name.startswith("_") and not is_further(child) and not is_override(node, child.name):
                yield from undocumented(child, f"{name}.{child.name}")


@cache
def classes() -> dict[str, ast.ClassDef]:
    nodes = (node for tree in modules().values() for node in tree.body)
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def is_override(node: ast.Module | ast.ClassDef, method: str) -> bool:
    """Whether a base class explains the method."""
    names = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
    bases = [classes()[name] for name in names if name in classes()]
    own = [child for base in bases for child in base.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(child.name == method and ast.get_docstring(child) for child in own) or any(
        is_override(base, method) for base in bases
    )


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
