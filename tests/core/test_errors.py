"""The errors: each can be sent to another process as it is, or says what is wrong with an optional library."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import curtsy
from curtsy import CurtsyError, Reason
from curtsy.core.errors import not_imported
from tests.support.said import missing
from tests.support.snapshot import Snapshot

ABOUT_A_URL = {"url": "http://a/", "retry_after": 7.0, "reason": Reason.TIMEOUT}
GIVEN: dict[str, dict[str, Any]] = {
    "Refused": ABOUT_A_URL,
    "FetchError": {**ABOUT_A_URL, "status": 503},
    "NotWritten": {"path": "/a"},
    "WaitTimeout": {"needed": 7.0},
}
"""What these classes, and those derived from them, take besides a message."""

KINDS = [kind for name in curtsy.__all__ if isinstance(kind := getattr(curtsy, name), type)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, BaseException)])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_a_copy_and_a_pickle(kind: type[CurtsyError], again: Any) -> None:
    """Conventions: errors carry what a program needs; a process pool hands them on"""
    given = next((GIVEN[each.__name__] for each in kind.__mro__ if each.__name__ in GIVEN), {})
    error: Any = kind("No. Ask later.", **given)
    error.add_note("and this")

    other = again(error)

    assert type(other) is kind
    assert (str(other), other.args) == ("No. Ask later.", error.args)
    assert vars(other) == {**given, "__notes__": ["and this"]}


@pytest.mark.parametrize(
    ("error", "quoted"),
    [
        pytest.param(ModuleNotFoundError("No module named 'a'", name="a"), "", id="missing"),
        pytest.param(ModuleNotFoundError("No module named 'a.b'", name="a.b"), "", id="a part of it missing"),
        pytest.param(ModuleNotFoundError("No module named 'b'", name="b"), "No module named 'b'", id="another missing"),
        pytest.param(
            ImportError("a.b is another project.\nInstall a_b.", name="a.b"),
            "a.b is another project. Install a_b",
            id="its own words",
        ),
    ],
)
def test_what_cannot_be_imported_is_said_with_its_own_words(
    snapshot: Snapshot, error: ImportError, quoted: str
) -> None:
    """Conventions: errors"""
    need = "This needs the library a"

    said = str(not_imported(need, "a", "x", error))

    assert missing(said, need, quoted, 'pip install "curtsy[x]"') == []
    assert bool(quoted) == ("No module" in said or "another project" in said)
    snapshot(said)
