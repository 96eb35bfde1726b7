"""Texts derived from the declared settings: help of each key, values as files have them, and a file to begin with."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from itertools import pairwise
from typing import Any

from curtsy.core.policy import Policy
from curtsy.settings.general import Entry, General, Key, keys_of
from curtsy.settings.problems import shown

_REQUIREMENT = re.compile(r" \([A-Z]\d+(?:, [A-Z]\d+)*\)")

_HEAD = """\
# Settings of curtsy. Commands and Python programs that run in this directory read this file, and read it again when it
# changes.
# Each line that begins with "# " and a name shows a default: remove the "# " to change it.
# Check the file: curtsy config check. Show the settings of a host: curtsy config show --origin example.org
# Set `user_agent` first, to a name and a page or address where you can be reached: "MyBot/1.0 (+https://example.org/bot)".
# For a site on your own machine, set `allow_private: true` below `default_policy`.
"""
_POLICY = "# Policy of every host without an entry below.\ndefault_policy:\n"
_LISTS = """\
# Sites with limits of their own. An entry applies to its host and all hosts under it; other keys are as above.
# allowlist:
#   - domain: wikipedia.org
#     domain_category: trusted
#     max_requests_per_day: 500
#     max_pages_per_day: 250

# Sites that are never requested.
# denylist:
#   - private.example.net
"""


def help_texts() -> dict[str, str]:
    """Return the help of each key: the docstring under its field, on one line."""
    found = {"pause": "Minimum and maximum of the random pause: `pause_min` and `pause_max` in one."}
    for model in (General, Policy, Entry):
        (tree,) = ast.parse(inspect.getsource(model)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                    plain = _REQUIREMENT.sub("", " ".join(words.split()))
                    found[name] = re.sub(r"\b(None|True|False)\b", lambda word: f"`{word[0].lower()}`", plain)
    return found


def yaml_value(value: Any) -> str:
    """Return a value in the syntax of a settings file."""
    if isinstance(value, list | tuple) or (
        isinstance(value, str) and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
    ):
        return json.dumps(value)
    return shown(value, bare=True)


def template() -> str:
    """Return a settings file with every key at its default, explained and commented out."""
    texts = help_texts()
    general = [_lines(key, texts[name], "# ") for name, key in keys_of("general").items()]
    policy = [_lines(key, texts[name], "#   ") for name, key in keys_of("policy").items() if name != "pause"]
    return "\n".join([_HEAD, *general, _POLICY + "".join(policy), _LISTS])


def _lines(key: Key, text: str, indent: str) -> str:
    comment = f"{indent}# " if indent != "# " else indent
    value = "local" if key.name == "timezone" else yaml_value(key.default)
    return "\n".join(
        [
            *textwrap.wrap(text, 110, initial_indent=comment, subsequent_indent=comment),
            f"{indent}{key.name}: {value}",
            "",
        ]
    )
