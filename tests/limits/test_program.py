"""The program's own limiter and budget manager, and what the environment says of them (Q6, Q7, B10, C7, C10)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.noon import zone_at_noon
from tests.support.said import missing
from tests.support.warm import Process

LIMITER = """
import json
from curtsy.limits import get_rate_limiter

limiter = get_rate_limiter()
found = {
    "global_qps": limiter.overall.qps,
    "qps": limiter.domain("example.org").policy.qps,
    "other": limiter.domain("a.slow.org").policy.qps,
    "burst": limiter.domain("example.org").policy.burst,
    "breaker": limiter.domain("example.org").guarded.breaker,
    "cooldown": limiter.domain("example.org").guarded.breaker_cooldown,
    "same": limiter is get_rate_limiter(),
}
changed = get_rate_limiter(global_qps=3.0)
found["changed"] = [changed is limiter, limiter.overall.qps, get_rate_limiter().overall.qps]
limiter.close()
found["renewed"] = get_rate_limiter() is not limiter and get_rate_limiter().allow("example.org")
print(json.dumps(found))
"""

MANAGER = """
import json
from curtsy.limits import can_request_to_domain, get_domain_budget_manager, record_domain_request

before = can_request_to_domain("example.org").requests_remaining
record_domain_request("example.org", is_page=True)
after = get_domain_budget_manager().get_domain_budget("example.org")
same = get_domain_budget_manager() is get_domain_budget_manager()
print(json.dumps([before, after.requests_today, after.pages_today, after.max_requests_per_day, same]))
"""

FOLLOWING = """
import asyncio, json, pathlib, time
from curtsy import LimitConfig, get_rate_limiter

def seen():
    limiter = get_rate_limiter()
    one = limiter.domain("example.org")
    return [
        limiter.overall.qps, one.policy.qps, *(limiter.domain(name).policy.qps for name in ("slow.org", "own.org")),
        one.guarded.breaker, one.guarded.breaker_cooldown, one.policy.strategy,
    ]

async def main():
    limiter = get_rate_limiter()
    limiter.update_config("own.org", LimitConfig(7.0, 1))
    before = seen()
    await limiter.wait("example.org")
    waiting = asyncio.ensure_future(limiter.wait("example.org"))  # at the old rate, for an hour
    await asyncio.sleep(0)
    pathlib.Path("config/domains.yaml").write_text(
        "default_policy: {qps: 50, breaker_cooldown: 400, strategy: leaky_bucket}\\n"
        "allowlist: [{domain: slow.org, qps: 2}]\\nglobal_qps: 9\\n"
    )
    until = time.monotonic() + 20
    while seen() == before and time.monotonic() < until:
        await asyncio.sleep(0.05)
    await asyncio.wait_for(waiting, 60)
    after = seen()
    get_rate_limiter(global_qps=3.0)
    pathlib.Path("config/domains.yaml").write_text("default_policy: {qps: 40}\\nglobal_qps: 8\\n")
    while seen()[1] == 50 and time.monotonic() < until:
        await asyncio.sleep(0.05)
    print(json.dumps([before, after, seen()]))

asyncio.run(main())
"""

CHANGED = """
import json, pathlib, time
from curtsy.limits import get_domain_budget_manager

def limit():
    return get_domain_budget_manager().get_domain_budget("example.org").max_requests_per_day

before = limit()
pathlib.Path("config/domains.yaml").write_text("default_policy:\\n  max_requests_per_day: 77\\n")
until = time.monotonic() + 20
while limit() == before and time.monotonic() < until:
    time.sleep(0.05)
print(json.dumps([before, limit()]))
"""


def run(program: str, directory: Path, **variables: str) -> tuple[int, str, str]:
    """Run a program in a directory of its own, with nothing else set that matters; its exit code, and what it says."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LANG")}
    home = {"HOME": str(directory), "XDG_STATE_HOME": str(directory / "state"), "XDG_CONFIG_HOME": str(directory)}
    process: Process[str] = Process(
        "tests.support.program", program, text=True, cwd=directory, env={**kept, **home, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(120)
    return process.returncode, out, err


def said(program: str, directory: Path, **variables: str) -> Any:
    _, out, err = run(program, directory, **variables)
    assert err == "", "the library prints nothing uninvited"
    return json.loads(out)


def test_without_settings_it_has_the_documents_rates(tmp_path: Path) -> None:
    """Q1, Q6, C10, C26: 0.8 and 0.8, burst 1, the breaker at 300 s; one instance; a higher global rate is not taken."""
    assert said(LIMITER, tmp_path) == {
        "global_qps": 0.8, "qps": 0.8, "other": 0.8, "burst": 1, "breaker": True, "cooldown": 300.0, "same": True,
        "changed": [True, 0.8, 0.8], "renewed": True,
    }  # fmt: skip


def test_the_environment_sets_its_rates_and_its_breaker(tmp_path: Path) -> None:
    """Q7: 0.5 and 0.5 as the document recommends for production; and a project's file sets those of a domain."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "domains.yaml").write_text("allowlist:\n  - domain: slow.org\n    qps: 0.1\n")

    found = said(
        LIMITER, tmp_path,
        CRAWLER_GLOBAL_QPS="0.5", CRAWLER_PER_DOMAIN_QPS="0.25",
        CIRCUIT_BREAKER_ENABLED="false", CIRCUIT_BREAKER_COOLDOWN="600",
    )  # fmt: skip

    assert (found["global_qps"], found["qps"], found["other"]) == (0.5, 0.25, 0.1)
    assert found["breaker"] is False
    assert said(LIMITER, tmp_path, CIRCUIT_BREAKER_COOLDOWN="600")["cooldown"] == 600.0


def test_what_is_odd_in_the_settings_is_told_once(tmp_path: Path) -> None:
    """L6, Q4: by who reads them, with file and line; a single request is no burst"""
    (tmp_path / "curtsy.yaml").write_text(
        "default_policy: {breaker_cooldown: 100, burst: 70}\nallowlist: [{domain: a.org, qps: 0.001, burst: 1}]\n"
    )
    program = """
import json, logging
from curtsy import get_rate_limiter

told = []
class Listener(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            told.append(record.getMessage())
logging.getLogger("curtsy").addHandler(Listener())
limiter = get_rate_limiter()
for domain in ("a.org", "b.org", "c.org"):
    limiter.allow(domain)
print(json.dumps(told))
"""

    burst, cooldown = said(program, tmp_path)

    assert missing(burst, "curtsy.yaml", "line 1", "default_policy", "burst = 70 ") == []
    assert missing(cooldown, "curtsy.yaml", "line 1", "default_policy", "breaker_cooldown = 100 ", "300") == []


@pytest.mark.parametrize(("every", "lines"), [("none", 0), ("0.000001", 3), ("3600", 0)])
def test_how_often_it_tells_its_statistics_is_a_setting(tmp_path: Path, every: str, lines: int) -> None:
    """Q10, U9"""
    program = """
import asyncio, json, logging
from curtsy import get_rate_limiter

told = []
class Listener(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
logger = logging.getLogger("curtsy")
logger.addHandler(Listener())
logger.setLevel(logging.INFO)
async def main():
    limiter = get_rate_limiter()
    for number in range(3):
        await limiter.acquire(f"https://{number}.org/")
asyncio.run(main())
print(json.dumps(sum("statistics" in each for each in told)))
"""

    assert said(program, tmp_path, CURTSY_STATS_EVERY=every, CURTSY_GLOBAL_QPS="none", CURTSY_STORE="memory:") == lines


def test_a_site_of_ones_own_has_no_limit(tmp_path: Path) -> None:
    """C8: the preset `own` means what it says for this limiter too."""
    found = said(LIMITER, tmp_path, CURTSY_PRESET="own")

    assert (found["global_qps"], found["qps"]) == (None, None)


@pytest.mark.parametrize(
    ("variable", "value"), [("CRAWLER_GLOBAL_QPS", "-1"), ("CIRCUIT_BREAKER_COOLDOWN", "soon")]
)  # fmt: skip
def test_a_bad_variable_is_an_error_that_names_it(tmp_path: Path, variable: str, value: str) -> None:
    """Q7, C7"""
    code, _, told = run(LIMITER, tmp_path, **{variable: value})

    assert code == 1
    assert "PolicyError" in told
    assert variable in told.splitlines()[-1]
    assert value in told.splitlines()[-1]


def test_the_functions_of_the_budget_use_one_manager_on_the_users_store(tmp_path: Path) -> None:
    """B10, B7: a second run finds what the first has counted."""
    settings = {"CURTSY_MAX_REQUESTS_PER_DAY": "50", "CURTSY_TIMEZONE": zone_at_noon()}

    assert said(MANAGER, tmp_path, **settings) == [50, 1, 1, 50, True]
    assert said(MANAGER, tmp_path, **settings) == [49, 2, 2, 50, True]
    assert list((tmp_path / "state").rglob("state.sqlite"))
    assert said(MANAGER, tmp_path, **settings, CURTSY_STORE="none") == [48, 3, 3, 50, True]


def test_the_budget_manager_names_a_project_file_that_sets_its_store(tmp_path: Path) -> None:
    """B10: once, as clients and the limiter do"""
    (tmp_path / "curtsy.yaml").write_text("store: 'memory:'\n")
    program = """
import curtsy.limits, curtsy.system.log
curtsy.system.log.install_json_logging("warn")
for _ in range(2):
    curtsy.limits.can_request_to_domain("example.org")
"""

    code, _, err = run(program, tmp_path)

    assert code == 0
    (line,) = err.splitlines()
    assert missing(line, "curtsy.yaml", "store") == []


def test_the_budget_manager_follows_a_file_that_changes(tmp_path: Path) -> None:
    """U9, B3"""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "domains.yaml").write_text("default_policy:\n  max_requests_per_day: 5\n")

    assert said(CHANGED, tmp_path) == [5, 77]


def test_the_limiter_follows_a_file_that_changes(tmp_path: Path) -> None:
    """U9, Q6: for whoever waits already too; what the program has said itself stays."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "domains.yaml").write_text("default_policy: {qps: 0.0003}\n")

    before, after, last = said(FOLLOWING, tmp_path)

    assert before == [0.8, 0.0003, 0.0003, 7.0, True, 300.0, "token_bucket"]
    assert after == [9.0, 50.0, 2.0, 7.0, True, 400.0, "leaky_bucket"]
    assert (last[:2], last[3]) == ([3.0, 40.0], 7.0)
