"""Every requirement and every fault that is built has a test that names it in its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REQUIREMENTS = (
    [f"B{number}" for number in range(1, 15)]
    + [f"L{number}" for number in range(1, 11)]
    + [f"R{number}" for number in range(1, 13)]
    + [f"N{number}" for number in range(1, 12)]
    + [f"Q{number}" for number in range(1, 13)]
    + [f"P{number}" for number in range(1, 4)]
    + [f"U{number}" for number in range(1, 18)]
    + [f"C{number}" for number in range(1, 15)]
    + ["C21", "C22"]
)
FAULTS = [
    "F01", "F03", "F04", "F06", "F08", "F11", "F12", "F15", "F17", "F19", "F22", "F23", "F25", "F26", "F27", "F28",
    "F30", "F32", "F33", "F35", "F36", "F37", "F38", "F40", "F42", "F45", "F46", "F48", "F50", "F52", "F53", "F54",
    "F55", "F59", "F60", "F61", "F62", "F63", "F64", "F65",
]  # fmt: skip
HERE = Path(__file__)
NAME = re.compile(r"(?<![\w%&/.-])[A-Z]\d+(?![\w%/-])")
"""A name by itself: not in `%C3`, and not in a word that is longer."""


def docstrings(text: str) -> Iterator[str]:
    """What the tests of a file say of themselves."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield ast.get_docstring(node) or ""


def names(text: str) -> set[str]:
    """The requirements and faults that the tests of a file name."""
    return {name for docstring in docstrings(text) for name in NAME.findall(docstring)}


def test_each_is_named_by_a_test() -> None:
    files = [path for path in HERE.parent.rglob("test_*.py") if path != HERE]

    named = set().union(*(names(path.read_text()) for path in files))

    assert [name for name in [*REQUIREMENTS, *FAULTS] if name not in named] == []


def test_only_whole_words_in_docstrings_of_tests_count() -> None:
    text = '''
"""B1"""
URL = "/%C3%A9?B2"  # B3
def helper():
    """B4"""
def test_one(url="B5"):
    """B6, B7: as in %C3 and B12 (F01); not XB8, B9x, B10-x or /B11."""
    assert "B13"
class TestAll:
    """B14"""
    async def test_two(self):
        """Q1"""
'''

    assert names(text) == {"B6", "B7", "B12", "F01", "Q1"}
