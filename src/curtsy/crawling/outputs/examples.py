"""Examples: of each reason for which no page came, the first URL; so that a summary can show what it speaks of."""

from __future__ import annotations

from typing import Any

import msgspec

from curtsy.core.secrets import mask_url
from curtsy.crawling.outputs.append_file import read_state
from curtsy.crawling.page import CrawledPage, Skipped

MOST = 100
"""Reasons that are told apart: there are a few dozen, and one for each status."""


class Example(msgspec.Struct, frozen=True):
    """One URL that stands for all with the same reason, secrets masked."""

    url: str
    message: str
    parent: str | None = None


class Examples:
    """An output that writes nothing: it remembers, and has the frontier remember, one URL for each reason."""

    name = "examples"

    def __init__(self) -> None:
        self.by_reason: dict[str, Example] = {}
        self._state: dict[str, Any] = {}

    def open(self, state: Any | None) -> None:
        """Go on with what was known, of which `state` is what `flush` last answered."""
        self.by_reason = read_examples(state)
        self._state = msgspec.to_builtins(self.by_reason)

    def page(self, page: CrawledPage) -> None:
        """Pass it over."""

    def skipped(self, skipped: Skipped) -> None:
        """Remember it, if it is the first of its kind."""
        if skipped.reason in self.by_reason or len(self.by_reason) >= MOST:
            return
        parent = None if skipped.parent is None else mask_url(skipped.parent)
        example = Example(mask_url(skipped.url), mask_url(skipped.message), parent)
        self.by_reason[skipped.reason] = example
        self._state[skipped.reason] = msgspec.to_builtins(example)

    def flush(self) -> dict[str, Any]:
        """What is known, as plain values."""
        return self._state

    def close(self) -> None:
        """Hold nothing."""


def read_examples(state: Any | None) -> dict[str, Example]:
    """What a job has noted. Raises StoreError if it is something else."""
    return read_state(Examples.name, state, dict[str, Example]) or {}
