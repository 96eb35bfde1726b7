"""The programs of docs/how-to/engines.md, each in its real engine. The site's journal is the judge."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.bounds import Lateness
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, Visit
from tests.support.venv import python_with

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "engines.md"
BUDGET = 30
GAP = 0.25
LATENESS = 0.1
"""Seconds by which a busy machine may notice a request too late: that makes the next gap look shorter."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]


def program(engine: str, site: Site) -> str:
    """The Python under the heading of an engine, about the site instead of example.org."""
    _, _, section = PAGE.read_text().partition(f"\n## {engine}\n")
    [text] = re.findall(r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    address = site.url("/").removesuffix("/")
    return re.sub(r"https://example\.org/(?!bot)", f"{address}/", text)


def environment(store: RedisServer, home: Path) -> dict[str, str]:
    """Settings that every process inherits, and nothing of the real user's."""
    return {
        "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "CURTSY_STORE": store.url,
        "CURTSY_ALLOW_PRIVATE": "true", "CURTSY_QPS": "none", "CURTSY_GLOBAL_QPS": "none",
        "CURTSY_PAUSE_MIN": str(GAP), "CURTSY_PAUSE_MAX": str(GAP), "CURTSY_MAX_PAGES_PER_DAY": "0",
        "CURTSY_MAX_REQUESTS_PER_DAY": str(BUDGET),
    }  # fmt: skip


@contextmanager
def judged(site: Site) -> Iterator[None]:
    """Check that all processes together used the budget exactly, and kept the pace of one."""
    with Lateness() as late:
        yield
    visits = site.visits()
    assert len(visits) == BUDGET
    assert site.max_concurrency() == 1
    assert all(after.at - before.at >= GAP - LATENESS - late.most for before, after in pairwise(visits))
    assert visits[-1].at - visits[0].at >= GAP * (BUDGET - 1) - LATENESS - late.most


@pytest.fixture
def site() -> Iterator[Site]:
    def answer(visit: Visit) -> Reply:
        links = "".join(f'<a href="/{number}">{number}</a>' for number in range(2 * BUDGET))
        return Reply(body=f"<title>{visit.path}</title>{links}", headers={"Content-Type": "text/html"})

    with Site() as site:
        site.on("/*", answer)
        site.robots("User-agent: *\nDisallow: /private/\n")
        yield site


@pytest.fixture
def store() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server


def run(python: Path, arguments: list[str], env: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [python, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(("engine", "package"), [("Ray", "ray"), ("Dask", "distributed")])
def test_a_program_keeps_the_limits_over_its_workers(
    engine: str, package: str, site: Site, store: RedisServer, tmp_path: Path
) -> None:
    """Issue 17, 4: tasks and actors of Ray, tasks of Dask; clients go to the workers as their settings"""
    python = python_with(package)
    (tmp_path / "program.py").write_text(program(engine, site))

    with judged(site):
        out = run(python, ["program.py"], environment(store, tmp_path), tmp_path)

    assert out.count("200") == BUDGET - site.count("/robots.txt")
    assert out.count("None") == 40 - out.count("200")


def test_celery_keeps_the_limits_over_its_forked_processes(site: Site, store: RedisServer, tmp_path: Path) -> None:
    """Issue 17, 4: a client that is made before the fork"""
    python = python_with("celery[redis]")
    (tmp_path / "tasks.py").write_text(program("Celery", site))
    (tmp_path / "ask.py").write_text(
        "import sys\n"
        "from celery import group\n"
        "from tasks import status\n"
        "print(group(status.s(sys.argv[1] + str(number)) for number in range(40))().get(timeout=300))\n"
    )
    worker_command = "celery -A tasks worker --pool prefork --concurrency 4"
    assert f"$ {worker_command}\n" in PAGE.read_text()

    with RedisServer() as broker, judged(site), (tmp_path / "log").open("w") as log:
        env = environment(store, tmp_path) | {"BROKER": broker.url}
        command = [str(python), "-m", *worker_command.split()]
        worker = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
        try:
            out = run(python, ["ask.py", site.url("/")], env, tmp_path)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)

    assert out.count("200") == BUDGET - site.count("/robots.txt")
    assert out.count("None") == 40 - out.count("200")
    assert worker.returncode == 0, (tmp_path / "log").read_text()[-4000:]


def test_airflow_tasks_share_a_job(site: Site, store: RedisServer, tmp_path: Path) -> None:
    """Issue 17, 4: two runs of a DAG at once, each in its own process, take part in one crawl"""
    python = python_with("apache-airflow")
    runs = []
    with judged(site), ExitStack() as stack:
        for name in ("one", "two"):
            home = tmp_path / name
            (home / "dags").mkdir(parents=True)
            (home / "dags" / "nightly.py").write_text(program("Airflow", site))
            env = environment(store, home) | {
                "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"), "CURTSY_CACHE_DIR": str(home / "cache"),
            }  # fmt: skip
            run(python, ["-m", "airflow", "db", "migrate"], env, home)
            command = [str(python), "-m", "airflow", "dags", "test", "nightly_crawl"]
            log = stack.enter_context((home / "log").open("w"))
            run_of_dag = stack.enter_context(subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log))
            stack.callback(run_of_dag.kill)
            runs.append(run_of_dag)
        codes = [each.wait(300) for each in runs]

    assert codes == [0, 0], (tmp_path / "one" / "log").read_text()[-4000:]
    pages = [line for name in ("one", "two") for line in (tmp_path / name / "pages.jsonl").read_text().splitlines()]
    assert len(pages) == BUDGET - site.count("/robots.txt")
