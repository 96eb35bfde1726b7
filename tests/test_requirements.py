"""Every requirement and every fault that is built has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# B14 says what is not wanted, which no test can show.
REQUIREMENTS = (
    [f"B{number}" for number in range(1, 14)]
    + [f"L{number}" for number in range(1, 11)]
    + [f"R{number}" for number in range(1, 13)]
    + [f"N{number}" for number in range(1, 12)]
    + [f"Q{number}" for number in range(1, 13)]
    + [f"P{number}" for number in range(1, 4)]
    + [f"U{number}" for number in range(1, 18)]
    + [f"C{number}" for number in range(1, 15)]
)
FAULTS = [
    "F01", "F03", "F04", "F06", "F08", "F11", "F12", "F15", "F17", "F19", "F22", "F23", "F25", "F26", "F27", "F28",
    "F30", "F32", "F33", "F35", "F36", "F37", "F38", "F40", "F42", "F45", "F46", "F48", "F50", "F52", "F53", "F54",
    "F55", "F59", "F60", "F61", "F62", "F63", "F64", "F65",
]  # fmt: skip
HERE = Path(__file__)
TESTS = "\n".join(path.read_text() for path in sorted(HERE.parent.rglob("test_*.py")) if path != HERE)


@pytest.mark.parametrize("name", [*REQUIREMENTS, *FAULTS])
def test_it_is_named_by_a_test(name: str) -> None:
    assert re.search(rf"\b{name}\b", TESTS)
