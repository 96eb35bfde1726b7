"""Race: one crawler over one site, in a process of its own, with what it cost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crawling.crawlers import AGENT, Job
from benchmarks.crawling.score import Plan, Score
from benchmarks.crawling.site import Site

ROOT = Path(__file__).parents[2]
LOOK = 0.05
"""Seconds between two looks at a crawler."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the site saw of a crawler, and what the crawler cost."""

    score: Score
    wall: float
    """Seconds that the process ran, its start included."""

    cpu: float
    """Seconds of CPU, user and system."""

    waited: float
    """Seconds that its main thread was ready to run, and had to wait for a core."""

    peak: float
    """Most memory that it had, in MB."""

    was_cut: bool
    """Whether it was ended because its time was over."""

    failure: str
    """The last words of a crawler that failed; empty otherwise."""


def command(name: str, job: Job, folder: str) -> tuple[list[str], str]:
    """The command line of a crawler, and what it reads from standard input."""
    if name != "wget":
        return [sys.executable, "-m", "benchmarks.crawling.crawlers", name], job.packed()
    options = ["-q", "-r", "-l", "inf", "-w", f"{job.pause:g}", "-U", AGENT, "-P", folder, "-i", "-"]
    return [shutil.which("wget") or "wget", *options], "\n".join(job.seeds)


def look(pid: int) -> tuple[float, float]:
    """The most memory that a process had so far, in MB, and its seconds of waiting for a core; 0 when it has ended."""
    try:
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024, waited
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0, 0.0


def race(name: str, plan: Plan, in_flight: int, limit: float) -> Result:
    """Send a crawler over a new site, for `limit` seconds at most."""
    with (
        Site(plan) as site,
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as words,
        tempfile.TemporaryFile() as given,
    ):
        line, text = command(name, Job(site.seeds, plan.pause, plan.per_host, in_flight), folder)
        given.write(text.encode())
        given.seek(0)
        began = time.monotonic()
        # In a folder without settings or files of anybody's.
        process = subprocess.Popen(
            line, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=given, stdout=words, stderr=words
        )
        peak, waited, was_cut = 0.0, 0.0, False
        while True:
            # Not ru_maxrss: that of a child begins with what its parent had.
            peak, waited = map(max, (peak, waited), look(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began > limit and not was_cut:
                process.send_signal(signal.SIGKILL)
                was_cut = True
            time.sleep(LOOK)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        failure = ""
        if process.returncode and not was_cut and name != "wget":  # whose code tells of a 404 too
            words.seek(0)
            failure = (words.read().decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        return Result(site.score(), wall, usage.ru_utime + usage.ru_stime, waited, peak, was_cut, failure)
