"""The processes that the tests fork are such as `python -c` and `python -m` start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ending import end_all_since, ends_with_test, how_many
from tests.support.warm import ROOT, WARM, Process

PIPE = subprocess.PIPE


def started(program: str, *arguments: str, **more: object) -> Process[str]:
    given = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **more}
    return Process("tests.support.program", program, *arguments, text=True, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        ("pass", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 2)", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_a_program_does(program: str, code: int, last: str) -> None:
    process = started(program)

    _, said = process.communicate(120)

    assert (process.returncode, (said.splitlines() or [""])[-1]) == (code, last)


def test_it_is_not_over_before_its_threads_and_what_comes_at_exit() -> None:
    process = started(
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Timer(0.05, print, ['a thread']).start()\n"
        "print('the program')\n"
    )

    out, err = process.communicate(120)

    assert (out.splitlines(), err) == (["the program", "a thread", "at exit"], "")


def test_it_has_its_own_arguments_environment_directory_and_session(tmp_path: Path) -> None:
    shown = "[sys.argv, dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()]"
    program = f"import json, os, sys; print(json.dumps({shown}))"

    said = [
        started(program, "a", env={"A": "b"}, cwd=tmp_path, start_new_session=is_leader).communicate(120)[0]
        for is_leader in (True, False)
    ]

    place = str(tmp_path.resolve())
    assert [json.loads(each) for each in said] == [
        [["-c", "a"], {"A": "b"}, place, True],
        [["-c", "a"], {"A": "b"}, place, False],
    ]


def test_it_takes_as_much_as_a_command_line_takes() -> None:
    process = started("import sys; print([len(each) for each in sys.argv])", *["x" * 100_000] * 10)

    assert process.communicate(120) == (f"[2{', 100000' * 10}]\n", "")


def test_it_can_be_spoken_to_waited_for_and_killed() -> None:
    process = started("import sys, time; print(sys.stdin.readline() + 'again', flush=True); time.sleep(60)")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hello\n"

    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.05)
    assert process.poll() is None
    os.kill(process.pid, 0)
    process.kill()

    assert process.communicate(120) == ("again\n", "")
    assert (process.poll(), process.wait(), process.returncode) == (-9, -9, -9)


def test_what_a_test_leaves_running_is_ended_and_closed() -> None:
    """So that one failure does not cause others."""
    before = how_many()
    forked = started("input()")
    bare = ends_with_test(subprocess.Popen([sys.executable, "-c", "input()"], stdin=PIPE, stdout=PIPE))

    end_all_since(before)

    assert (forked.returncode, bare.returncode) == (-signal.SIGKILL, -signal.SIGKILL)
    streams = (forked.stdin, forked.stdout, forked.stderr, bare.stdin, bare.stdout)
    assert all(stream is not None and stream.closed for stream in streams)
    assert how_many() == before


def test_the_tests_can_interrupt_what_they_start_though_their_parent_ignores_it() -> None:
    """As under `make test &`, `nohup` and some CI runners."""
    program = "import tests.conftest, os; os.kill(os.getpid(), 2)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip

    assert (done.returncode, done.stderr.splitlines()[-1:]) == (-signal.SIGINT, ["KeyboardInterrupt"])


@pytest.mark.parametrize("sent", [b"", b'{"module"'])
def test_one_that_is_killed_while_it_asks_leaves_the_others_their_turn(sent: bytes) -> None:
    with WARM.connect() as connection:
        connection.sendall(sent)

    process = started("print('here')")

    assert process.communicate(120) == ("here\n", "")
