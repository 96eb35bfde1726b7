"""What the fuzzer begins with, and what it has found, in every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import MOST, TARGETS, TooCostly, check, expanded, seeds

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*"))


def test_a_few_bytes_stand_for_many() -> None:
    assert expanded(b"\0abc") == b"abc"
    assert expanded(bytes([130, 2]) + b"abc") == b"abababab" + b"c"
    assert len(expanded(bytes([255, 3]) + b"abc")) == MOST - MOST % 3


def test_an_input_that_costs_too_much_is_a_failure() -> None:
    with pytest.raises(TooCostly):
        check(lambda body: print(sum(range(200_000))), b"\0", seconds=0.0001)


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_fuzzer_begins_with_is_cheap(name: str) -> None:
    """F01, F08, F11, F32, F65: the seeds, each alone and a thousand times"""
    for seed in seeds(name, doublings=10):
        check(TARGETS[name], seed)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_what_the_fuzzer_has_found_stays_mended(path: Path) -> None:
    check(TARGETS[path.name.partition("-")[0]], path.read_bytes())
