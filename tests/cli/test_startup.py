"""The start and the end of a command: Ctrl-C at any moment, and streams that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import CURTSY, Shell
from tests.support.ending import ends_with_test
from tests.support.site import Site, hang

# --- Ctrl-C


@pytest.mark.parametrize("imports", [0, 30, 180])
def test_ctrl_c_while_it_starts_prints_no_traceback(shell: Shell, site: Site, imports: int) -> None:
    """U17: from the first instant of our own code; -X importtime tells how far it is"""
    site.reply("/robots.txt", hang())
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "curtsy", "get", site.url("/")],
        cwd=shell.project, env=shell.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(line.rstrip().endswith(" curtsy.system.startup") for line in lines)
        for _ in range(imports):
            process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err


def test_ctrl_c_before_it_can_be_caught_prints_no_traceback(shell: Shell, tmp_path: Path) -> None:
    """U17: while the standard library's own module for signals is imported"""
    (tmp_path / "signal.py").write_text("import os\nos.kill(os.getpid(), 2)\nwhile True: pass\n")

    done = subprocess.run(
        [*CURTSY, "doctor"], env={**shell.env, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_program_that_imports_curtsy_keeps_its_ctrl_c(tmp_path: Path) -> None:
    """U17: only the command changes what Ctrl-C does"""
    program = tmp_path / "own.py"
    program.write_text("import signal, curtsy\nprint(signal.getsignal(2) is signal.default_int_handler)")

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"


# --- Standard error that cannot be written

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
NOWHERE = ["2>&-", "2> >(:)", pytest.param("2>/dev/full", marks=needs_full)]


@pytest.mark.parametrize("nowhere", NOWHERE)
def test_a_log_that_cannot_be_written_stops_no_crawl(shell: Shell, site: Site, nowhere: str) -> None:
    """N1, F40: the exit code is that of the work"""
    site.page("/", '<a href="/a">a</a>')
    site.page("/a", "a")

    done = shell.bash(f"curtsy crawl {site.url('/')} --log-level debug --out pages {nowhere}")

    assert done.code == 0
    assert len(site.visits("/")) == len(site.visits("/a")) == 1
    assert (shell.project / "pages").is_dir()


@needs_full
@pytest.mark.parametrize(("path", "code"), [("/", 0), ("/private/", 3), ("/missing", 22)])
def test_a_message_that_cannot_be_written_changes_no_exit_code(shell: Shell, site: Site, path: str, code: int) -> None:
    """N1, F40"""
    done = shell.bash(f"curtsy get -v {site.url(path)} 2>/dev/full")

    assert done.code == code
    assert done.out == ("<title>Home</title>\n" if code == 0 else "")


def test_a_terminal_that_is_gone_stops_no_crawl(shell: Shell, site: Site) -> None:
    """N1: the live view is drawn on it; SIGHUP is ignored, as by nohup"""
    linked = "".join(f'<a href="/{number}">x</a>' for number in range(5))
    site.page("/", linked)
    for number in range(5):
        site.page(f"/{number}", "x")
    leader, follower = os.openpty()
    process = ends_with_test(subprocess.Popen(
        [*CURTSY, "crawl", site.url("/"), "--out", "pages"],
        cwd=shell.project, env={**shell.env, "TERM": "xterm"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=follower, start_new_session=True,
    ))  # fmt: skip
    os.close(follower)
    os.read(leader, 1)
    os.close(leader)  # from now on each write to it fails

    assert process.wait(120) == 0
    assert len(site.visits()) == 7
