"""Files of odd shapes, as the web has them: all written for this suite, each with the answers it must give."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from curtsy.core.robots import parse

CORPUS = Path(__file__).parent.parent / "data" / "robots"


class Expected(TypedDict, total=False):
    asks: list[tuple[str, str, bool, int | None]]
    delays: dict[str, float | None]
    signals: dict[str, list[str]]
    sitemaps: list[str]


EXPECTED: dict[str, Expected] = json.loads((CORPUS / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_the_corpus_gives_its_answers(name: str) -> None:
    """R2, R3, R4, R8, R12, U11, F32"""
    robots = parse((CORPUS / name).read_bytes())
    expected = EXPECTED[name]

    for agent, url, allowed, line in expected["asks"]:
        verdict = robots.verdict(agent, url)
        assert (verdict.allowed, verdict.line) == (allowed, line), (agent, url, verdict.reason)
    assert robots.sitemaps == tuple(expected.get("sitemaps", ()))
    assert {agent: robots.crawl_delay(agent) for agent in expected.get("delays", {})} == expected.get("delays", {})
    for agent, values in expected.get("signals", {}).items():
        assert [signal.value for signal in robots.content_signals(agent)] == values


def test_every_file_of_the_corpus_has_answers() -> None:
    """R4"""
    assert {path.name for path in CORPUS.glob("*.txt")} == set(EXPECTED)
