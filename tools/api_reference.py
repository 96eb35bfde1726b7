"""Write the pages of the Python API from the docstrings and signatures; `--check` only says if they are current.

The headings and the text between the names are written by hand; what stands from `<!-- Name -->` to `<!-- end -->` is
made here: the signature, the docstring, and the public fields, properties and methods with theirs. `types` is the
table of the types of our own that stand in all these, and have no place of their own; `names` the table of all names.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import curtsy
import curtsy.limits
import curtsy.testing
import curtsy.types

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
TOPICS = "fetch crawl results errors limits budgets robots settings statistics cache logs-and-tests types"
PAGES = (REFERENCE / "api.md", *(REFERENCE / "api" / f"{topic}.md" for topic in TOPICS.split()))
PLACE = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
WIDTH = 110
REQUIREMENT = re.compile(r" \([A-Z]\d+(?:, [A-Z]\d+)*\)")

Function = ast.FunctionDef | ast.AsyncFunctionDef

HOMES = {
    name: module.__name__ for module in (curtsy.types, curtsy.testing, curtsy.limits, curtsy) for name in module.__all__
}
"""Module from which a user imports each public name; the top level comes first."""


@cache
def tree_of(module: str) -> ast.Module:
    """The source of a module."""
    return ast.parse(inspect.getsource(import_module(module)))


def definition(thing: Any) -> ast.ClassDef | Function:
    """Where a class or function is defined; of a function with overloads, the last, which says most."""
    found = [
        node
        for node in tree_of(thing.__module__).body
        if isinstance(node, ast.ClassDef | Function) and node.name == thing.__name__
    ]
    return found[-1]


def prose(text: str | None) -> str:
    """A docstring as paragraphs, without the numbers of requirements."""
    return REQUIREMENT.sub("", inspect.cleandoc(text or ""))


def line(text: str | None) -> str:
    """A docstring on one line."""
    return " ".join(prose(text).split())


def parameters(given: ast.arguments, module: str) -> Iterator[str]:
    """What a function takes, each as it would be written."""
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    for each, default in zip(plain, [*defaults, *given.defaults], strict=True):
        if each.arg not in ("self", "cls"):
            yield parameter(each, default, module)
    if given.vararg:
        yield "*" + parameter(given.vararg, None, module)
    elif given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield parameter(each, default, module)
    if given.kwarg:
        yield "**" + parameter(given.kwarg, None, module)


def parameter(given: ast.arg, default: ast.expr | None, module: str) -> str:
    """One of them, with its type and its default; a number that has a name is shown as the number."""
    text = given.arg if given.annotation is None else f"{given.arg}: {ast.unparse(given.annotation)}"
    if default is None:
        return text
    value = getattr(import_module(module), default.id, None) if isinstance(default, ast.Name) else None
    shown = f"{value:_}" if isinstance(value, int) else ast.unparse(default).replace("'", '"')
    return f"{text} = {shown}"


def signature(name: str, function: Function, module: str, width: int = 1000) -> str:
    """How a function is called, on as many lines as it needs."""
    returned = "" if function.returns is None or function.name == "__init__" else f" -> {ast.unparse(function.returns)}"
    colour = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    given = list(parameters(function.args, module))
    text = f"{colour}{name}({', '.join(given)}){returned}"
    if len(text) <= width:
        return text
    return f"{colour}{name}(\n" + "".join(f"    {each},\n" for each in given) + f"){returned}"


def families(kind: type) -> Iterator[tuple[type, ast.ClassDef]]:
    """The definitions of a class and of those of our own that it is made from, itself first."""
    for each in kind.__mro__:
        if each.__module__.startswith("curtsy."):
            node = definition(each)
            assert isinstance(node, ast.ClassDef)
            yield each, node


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """The public fields of a class: name, type, meaning."""
    for field, after in pairwise([*node.body, ast.Pass()]):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        is_derived = field.value is not None and "init=False" in ast.unparse(field.value)
        if field.target.id.startswith("_") or is_derived:
            continue
        is_said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        meaning = line(str(after.value.value)) if is_said else ""  # type: ignore[attr-defined]
        yield field.target.id, ast.unparse(field.annotation), meaning


def members(kind: type) -> Iterator[str]:
    """The public fields, properties and methods of a class, a line each."""
    seen: set[str] = set()
    for _, node in families(kind):
        if node.name in ("Protocol", "StatsFields", "LimiterStats"):
            continue
        for name, type_, meaning in fields(node):
            if name not in seen:
                seen.add(name)
                yield f"- `{name}: {type_}`" + (f" {meaning}" if meaning else "")
    for owner, node in families(kind):
        for each in {each.name: each for each in node.body if isinstance(each, Function)}.values():
            if each.name.startswith("_") or each.name in seen:
                continue
            seen.add(each.name)
            is_property = any("property" in ast.unparse(mark) for mark in each.decorator_list)
            if is_property:
                returned = "Any" if each.returns is None else ast.unparse(each.returns)
                yield f"- `{each.name}: {returned}` {line(ast.get_docstring(each))}"
            else:
                yield f"- `{signature(each.name, each, owner.__module__)}` {line(ast.get_docstring(each))}"


def constructor(name: str, kind: type) -> str | None:
    """How a class is made; None if its fields say it."""
    for owner, node in families(kind):
        for each in node.body:
            if isinstance(each, Function) and each.name == "__init__":
                return signature(name, each, owner.__module__, WIDTH)
    return None


def entry(name: str) -> str:
    """Return the reference of a public name."""
    thing = getattr(import_module(HOMES[name]), name)
    node = definition(thing)
    parts = [f"### {name}\n"]
    if HOMES[name] != "curtsy":
        parts.append(f"`from {HOMES[name]} import {name}`\n")
    if isinstance(node, Function):
        parts.append(f"```text\n{signature(name, node, thing.__module__, WIDTH)}\n```\n")
        parts.append(prose(ast.get_docstring(node)) + "\n")
        return "\n".join(parts)
    if issubclass(thing, Exception):
        above = ", ".join(f"`{each.__name__}`" for each in thing.__bases__)
        parts.append(f"An error, of the kind {above}." + "\n")
    if (made := constructor(name, thing)) and not (issubclass(thing, Exception) and "__init__" not in vars(thing)):
        parts.append(f"```text\n{made}\n```\n")
    parts.append(prose(ast.get_docstring(node)) + "\n")
    if hasattr(thing, "__members__"):
        parts.append(", ".join(f"`{each.value}`" for each in thing) + ".\n")
    elif listed := list(members(thing)):
        parts.append("\n".join(listed) + "\n")
    return "\n".join(parts)


def types_of(thing: Any) -> Iterator[tuple[str, str]]:
    """The names in the types of a public name's fields, parameters and results, each with the module it stands in."""
    node = definition(thing)
    owners = [(thing.__module__, node)] if isinstance(node, Function) else [
        (owner.__module__, each) for owner, each in families(thing)
    ]  # fmt: skip
    for module, owner in owners:
        for each in [owner] if isinstance(owner, Function) else owner.body:
            said: list[ast.expr | None] = []
            if isinstance(each, Function) and (each.name == "__init__" or not each.name.startswith("_")):
                given = each.args
                every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
                said = [each.returns, *(one.annotation for one in every if one is not None)]
            elif isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
                said = [each.annotation]
            for annotation in said:
                for part in ast.walk(annotation) if annotation is not None else ():
                    if isinstance(part, ast.Name):
                        yield part.id, module


def home(name: str, module: str) -> tuple[str, ast.stmt, ast.stmt] | None:
    """The module of our own that defines a name which stands in `module`, how, and what follows; None if none does."""
    body = tree_of(module).body
    for node, after in pairwise([*body, ast.Pass()]):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if (isinstance(node, ast.ClassDef) and node.name == name) or name in map(ast.unparse, targets):
            return module, node, after
    for part in ast.walk(tree_of(module)):
        if isinstance(part, ast.ImportFrom) and part.module and part.module.startswith("curtsy"):
            found = next((each.name for each in part.names if (each.asname or each.name) == name), None)
            if found is not None:
                return home(found, part.module)
    return None


def types(named: set[str]) -> str:
    """Return a table of the types in the signatures of `named` that have no entry of their own."""
    rows = {}
    for public in named:
        for name, module in types_of(getattr(import_module(HOMES[public]), public)):
            found = None if name in named else home(name, module)
            if found is None:
                continue
            where, node, after = found
            if isinstance(node, ast.ClassDef):
                meaning = prose(ast.get_docstring(node)).split("\n\n")[0]
            elif "TypeVar" in (value := ast.unparse(node).partition(" = ")[2]):
                continue
            else:
                is_said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                shown = value.replace("'", '"').replace("|", "\\|")
                meaning = f"`{shown}`" + (f" {line(str(after.value.value))}" if is_said else "")  # type: ignore[attr-defined]
            where = HOMES.get(name, where)
            rows[name, where] = f"| `{name}` | `{where}` | {' '.join(meaning.split())} |"
    return "\n".join(["| name | module | what it is |", "|---|---|---|", *(rows[key] for key in sorted(rows)), ""])


def names_table(pages: dict[Path, list[str]]) -> str:
    """Return a table of the names of all pages, each with its page and the first sentence about it."""
    rows = []
    for path, names in pages.items():
        for name in names:
            node = definition(getattr(import_module(HOMES[name]), name))
            first = line((ast.get_docstring(node) or "").split("\n\n")[0]).replace("|", "\\|")
            sentence = re.split(r"(?<=\.) (?=[A-Z])", first)[0]
            link = f"[`{name}`]({path.relative_to(REFERENCE).as_posix()}#{name.lower()})"
            rows.append(f"| {link} | `{HOMES[name]}` | {sentence} |")
    return "\n".join(["| name | module | what it is |", "|---|---|---|", *rows, ""])


def pages() -> dict[Path, tuple[str, str]]:
    """Each page as it is, and with every place filled as it should be."""
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    places = {path: [name for name, _ in PLACE.findall(text) if name in HOMES] for path, text in texts.items()}
    named = {name for names in places.values() for name in names}
    missing = sorted({*curtsy.__all__, *curtsy.limits.__all__, *curtsy.testing.__all__} - named)
    if missing:
        raise SystemExit(f"no page has a place for {', '.join(missing)}: put <!-- Name --> and <!-- end --> into one.")
    tables = {"types": lambda: types(named), "names": lambda: names_table(places)}

    def filled(place: re.Match[str]) -> str:
        name = place[1]
        return f"<!-- {name} -->\n{tables[name]() if name in tables else entry(name)}<!-- end -->"

    return {path: (text, PLACE.sub(filled, text)) for path, text in texts.items()}


def main() -> None:
    """Write the pages, or check them."""
    for path, (old, new) in pages().items():
        if new == old:
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path.name} is not current. Run python tools/api_reference.py.")
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
