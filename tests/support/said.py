"""Data that a sentence must contain, whatever its words."""

from __future__ import annotations


def missing(text: str, *data: str) -> list[str]:
    """Return those of the data that a text does not contain."""
    return [each for each in data if each not in text]
