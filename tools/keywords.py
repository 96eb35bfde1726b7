"""Write the keyword arguments of clients and crawls for type checkers; `--check` only says if they are current.

The sources are the declared settings, the fields of `CrawlOptions`, and the signatures of `AsyncClient`, of its
`fetch()` and of `acrawl()`. A new setting, option or parameter needs no second declaration: run this tool.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from datetime import tzinfo
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from curtsy.client import AsyncClient
from curtsy.core.policy import Policy
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.start import acrawl
from curtsy.settings.general import General, keys_of

PACKAGE = Path(__file__).parent.parent / "src" / "curtsy"

HOMES = {
    "typing": ("Any", "Literal", "TypedDict"),
    "collections.abc": ("Mapping", "Sequence"),
    "datetime": ("tzinfo",),
    "curtsy.engine.keywords": ("ClientKeywords",),
}
"""Names that this tool writes, by module."""

SEVERAL = "list[str] | tuple[str, ...]"


class Table(NamedTuple):
    """Keyword arguments that become one TypedDict."""

    name: str
    above: str
    says: str
    types: dict[str, str]
    """Types as text, by the name of the argument."""


def written(hint: Any, texts: str = SEVERAL) -> str:
    """Return a declared type as users may give it; `texts` stands for a tuple of texts."""
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(written(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        choices = ", ".join(f'"{each}"' for each in get_args(hint))
        return f"Literal[{choices}]"
    if get_origin(hint) is tuple:
        return texts
    return {NoneType: "None", Path: "str | os.PathLike[str]", tzinfo: "str | tzinfo"}.get(hint, hint.__name__)


def parameters_of(function: Any) -> dict[str, str]:
    """Return the types of a function's keyword-only parameters."""
    given = inspect.signature(function).parameters.values()
    named = [each for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return {each.name: each.annotation.replace("'", '"') for each in named}


def settings() -> dict[str, str]:
    """Return the types of the settings that are not parameters of a client."""
    hints = get_type_hints(General) | get_type_hints(Policy)
    types = {
        name: written(int if key.range.whole else hints.get(name, key.kind))
        for name, key in keys_of("general", "policy").items()
    }
    types["pause"] = "list[float] | tuple[float, float]"
    types["log_level"] = "str"  # all spellings of a level are accepted, such as WARNING
    types["allowlist"] = types["denylist"] = "Sequence[str | Mapping[str, Any]]"
    return {name: each for name, each in types.items() if name not in parameters_of(AsyncClient)}


def single() -> dict[str, str]:
    """Return the types of the arguments of `fetch` that are none of a client."""
    known = parameters_of(AsyncClient).keys() | settings().keys()
    return {name: hint for name, hint in parameters_of(AsyncClient.fetch).items() if name not in known}


def options() -> dict[str, str]:
    """Return the types of a crawl's options. A single text is accepted for several, unless it is a choice.

    An option that a client has too is declared for the client.
    """
    hints, known = get_type_hints(CrawlOptions), parameters_of(AsyncClient)
    types = {name: written(hint, f"str | {SEVERAL}") for name, hint in hints.items() if name not in known}
    types["extract"] = "Mapping[str, str] | Callable[[CrawledPage], Mapping[str, Any] | None] | None"
    return types


def imports(tables: tuple[Table, ...], module: str) -> str:
    """Return the imports of all names in the types, from the modules that `module` imports them from."""
    homes = {name: home for home, names in HOMES.items() for name in names}
    for node in ast.parse(inspect.getsource(import_module(module))).body:
        if isinstance(node, ast.Import):
            homes |= {each.name: "" for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            homes |= {each.name: node.module for each in node.names}
    text = " ".join(hint for table in tables for hint in (table.above, *table.types.values()))
    used = set(re.findall(r"\w+", re.sub(r'"\w+"', "", text))) - {table.name for table in tables}
    modules: dict[str, list[str]] = {}
    for name in sorted(homes.keys() & used):
        modules.setdefault(homes[name], []).append(name)
    plain = [f"import {name}" for name in modules.pop("", ())]
    lines = [f"from {home} import {', '.join(names)}" for home, names in sorted(modules.items())]
    foreign, own = ([each for each in lines if ("curtsy" in each) is is_own] for is_own in (False, True))
    return "\n".join([*plain, *foreign, "", *own])


def source(title: str, module: str, *tables: Table) -> str:
    """Return the source of a module with TypedDicts for the arguments of `module`."""
    text = (
        f'"""{title}, for type checkers.\n\nGenerated from the declarations by tools/keywords.py. Do not edit.\n"""\n\n'
        f"from __future__ import annotations\n\n{imports(tables, module)}\n"
    )
    for table in tables:
        rows = "".join(f"    {name}: {hint}\n" for name, hint in table.types.items())
        text += f'\n\nclass {table.name}({table.above}, total=False):\n    """{table.says}"""\n\n{rows}'
    return text


def sources() -> dict[Path, str]:
    """Return the sources by file."""
    return {
        PACKAGE / "engine" / "keywords.py": source(
            "Keyword arguments of both clients", "curtsy.client",
            Table("SettingKeywords", "TypedDict", "Settings besides the parameters of a client.", settings()),
            Table("ClientKeywords", "SettingKeywords", "Arguments of a client.", parameters_of(AsyncClient)),
            Table("FetchKeywords", "TypedDict", "Options of a fetch.", parameters_of(AsyncClient.fetch)),
            Table("GetKeywords", "ClientKeywords", "Arguments of a single fetch and its client.", single()),
        ),
        PACKAGE / "crawling" / "keywords.py": source(
            "Keyword arguments of a crawl", "curtsy.crawling.start",
            Table("OptionKeywords", "ClientKeywords", "Options of a crawl, and arguments of its client.", options()),
            Table("CrawlKeywords", "OptionKeywords", "Arguments of a crawl.", parameters_of(acrawl)),
        ),
    }  # fmt: skip


def main() -> None:
    """Write the modules, or check them."""
    for path, text in sources().items():
        if "--check" in sys.argv[1:]:
            if path.read_text(encoding="utf-8") != text:
                raise SystemExit(f"{path.relative_to(PACKAGE)} is not current. Run python tools/keywords.py.")
        else:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
