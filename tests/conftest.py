"""What all tests share.

How long an example of Hypothesis takes says nothing on a machine that does other things too. The examples are the same
in every run, so that none fails by chance; with $CURTSY_EXAMPLES there are new ones.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.ending import end_all_since, how_many
from tests.support.noon import zone_at_noon
from tests.support.site import Site
from tests.support.snapshot import snapshot as snapshot
from tests.support.warm import WARM

settings.register_profile("curtsy", deadline=None, derandomize="CURTSY_EXAMPLES" not in os.environ)
settings.load_profile("curtsy")

# `make test &`, `nohup` and some CI runners start their children with these ignored, and a process inherits that:
# then no test could interrupt anything.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# A crawl waits for the next day if that begins soon, so no test is to run near midnight.
os.environ["TZ"] = zone_at_noon()
time.tzset()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only among what the tests make: they themselves are many, and stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_looked_at_once() -> Iterator[None]:
    """Nor among what a module of tests leaves behind, as the caches of Hypothesis."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_warm() -> Iterator[None]:
    """The process that forks others ends with the tests."""
    yield
    WARM.end()


@pytest.fixture(scope="session", autouse=True)
def _runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What processes count while their state file cannot be written stays among the tests."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))
    yield
    os.environ.pop("XDG_RUNTIME_DIR")
    if before is not None:
        os.environ["XDG_RUNTIME_DIR"] = before


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """A test that fails leaves no process behind, nor one that passes."""
    before = how_many()  # those of the module's fixtures stay
    yield
    end_all_since(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Clear away what a failed test has left open. Else another test would be told of it, and fail as well."""
    before = item.session.testsfailed
    answer = yield
    if item.session.testsfailed > before:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return answer


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose robots.txt allows everything, as it has none."""
    with Site() as site:
        yield site


@pytest.fixture
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, store, cache or proxy of whoever runs the tests."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
