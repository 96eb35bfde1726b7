"""A shell for the tests: `curtsy` as a process of its own, at home in a directory of its own."""

from __future__ import annotations

import copy
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curtsy.stores import Store, open_store
from tests.support.warm import Process

CURTSY = (sys.executable, "-m", "curtsy")

HASTE = {
    "CURTSY_ALLOW_PRIVATE": "true",
    "CURTSY_QPS": "none",
    "CURTSY_GLOBAL_QPS": "none",
    "CURTSY_PAUSE_MIN": "0",
    "CURTSY_PAUSE_MAX": "0",
    "CURTSY_RETRY_DELAY": "0.01",
}
"""No pace, for tests that are about something else; robots.txt, budget and breaker are as ever."""


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output, which must be JSON lines and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands with nothing of the real user's: settings, state and cache are under `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.project.mkdir()
        self.env = {"PATH": os.environ["PATH"], "TZ": os.environ["TZ"], "HOME": str(home), "LANG": "C.UTF-8", **HASTE}
        for name in ("STATE", "CACHE", "CONFIG", "DATA"):
            self.env[f"XDG_{name}_HOME"] = str(home / name.lower())

    def __call__(self, *arguments: object, stdin: bytes | str = b"", **env: str | None) -> Done:
        """Run `curtsy` to its end, in a process of its own. A variable that is None is left out."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            code = self._process(*arguments, env=self._env(env), stdin=given, stdout=out, stderr=err).wait(120)
            out.seek(0)
            err.seek(0)
            return Done(code, out.read().decode(), err.read().decode())

    def cold(self, *arguments: object, stdin: bytes | str = b"", **env: str | None) -> Done:
        """The same, started as a user starts it: interpreter, imports and all, which takes a while."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [*CURTSY, *map(str, arguments)],
            cwd=self.project,
            env=self._env(env),
            input=given,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def bash(self, line: str) -> Done:
        """Run a line of bash in which `curtsy` is ours; its code is that of the first command that fails."""
        name = " ".join(CURTSY)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f'curtsy() {{ {name} "$@"; }}; {line}'],
            cwd=self.project, env=self.env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: object, **env: str | None) -> Process[bytes]:
        """Start `curtsy`, and let it run."""
        pipe = subprocess.PIPE
        return self._process(*arguments, env=self._env(env), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

    def on_terminal(self, *arguments: object, columns: int = 80, **env: str | None) -> Done:
        """Run `curtsy` with standard output and standard error on a terminal; both come back as `out`."""
        leader, follower = pty.openpty()
        given = self._env({"TERM": "xterm-256color", "COLUMNS": str(columns), **env})
        process = self._process(*arguments, env=given, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:  # on Linux the end of a terminal is an error
            pass
        os.close(leader)
        return Done(process.wait(120), shown.decode().replace("\r\n", "\n"), "")

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store that the commands use."""
        path = Path(self.env["XDG_STATE_HOME"]) / "curtsy" / "state.sqlite"
        store = open_store(f"sqlite:///{path}", fallback=False)
        yield store
        store.close()

    def unhurried(self) -> Shell:
        """The same without the haste: every default as users have it."""
        other = copy.copy(self)
        other.env = {name: value for name, value in self.env.items() if name not in HASTE}
        return other

    def settle(self, text: str, name: str = "curtsy.yaml") -> None:
        """Write a settings file of the project."""
        path = self.project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def _process(self, *arguments: object, env: dict[str, str], **streams: Any) -> Process[bytes]:
        return Process("curtsy.cli", *arguments, text=False, cwd=self.project, env=env, **streams)

    def _env(self, more: dict[str, str | None]) -> dict[str, str]:
        return {name: value for name, value in {**self.env, **more}.items() if value is not None}


def stop(process: Process[bytes] | subprocess.Popen[bytes], number: signal.Signals = signal.SIGINT) -> Done:
    """Send a signal, and wait for the end."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out.decode(), err.decode())
