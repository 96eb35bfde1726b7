"""The errors: each can be sent to another process as it is, or says what is wrong with an optional library."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import curtsy
from curtsy import CurtsyError, Reason
from curtsy.core.errors import not_imported

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
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'a'", name="a"), 'is missing. Install it: pip install "curtsy[x]".'),
        (ModuleNotFoundError("No module named 'a.b'", name="a.b"), 'is missing. Install it: pip install "curtsy[x]".'),
        (
            ModuleNotFoundError("No module named 'b'", name="b"),
            "cannot be imported: No module named 'b'. Install it anew: pip install \"curtsy[x]\".",
        ),
        (
            ImportError("a.b is another project.\nInstall a_b.", name="a.b"),
            'cannot be imported: a.b is another project. Install a_b. Install it anew: pip install "curtsy[x]".',
        ),
    ],
)
def test_what_cannot_be_imported_is_said_with_its_own_words(error: ImportError, said: str) -> None:
    """Conventions: errors"""
    assert str(not_imported("This needs the library a", "a", "x", error)) == f"This needs the library a, which {said}"
