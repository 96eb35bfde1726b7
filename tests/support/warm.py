"""A process that has imported everything, and forks those that the tests start: real ones, without the start-up.

`Process("tests.crawling.worker", …)` is `python -m tests.crawling.worker …`, and is used as a `subprocess.Popen` is.
What it runs is the module's `main`, and it ends as a program does, by an exception or a signal, too. The process that
forks begins with the first that is wanted, and ends with the tests, however they end.

`python -m tests.support.warm SOCKET` listens there. A request is one line: the module, its arguments, the
environment and the directory as JSON, and with it the three standard streams. The answers are the number of the process
and, when it has ended, its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, AnyStr, Generic, NoReturn, Self, TypedDict

from tests.support.ending import ends_with_test
from tests.support.polling import PATIENCE, block_until

ROOT = Path(__file__).parents[2]
MOST = 1 << 20
"""Bytes of a request that are read at once."""

HANG = 60.0
"""Seconds after which a process that is waited for is taken to hang: it is aborted to see where."""

EVERYTHING = (
    "curtsy.cli.report",
    "curtsy.cli.trace",
    "curtsy.client",
    "curtsy.crawling.outputs.jsonlines",
    "curtsy.crawling.outputs.warc",
    "curtsy.crawling.frontier.redis",
    "curtsy.limits",
    "curtsy.settings.general",
    "curtsy.settings.reading",
    "curtsy.cache.disk",
    "curtsy.cache.packed",
    "curtsy.stores.redis",
    "curtsy.stores.fallback",
    "curtsy.stores.sqlite",
    "curtsy.observe.why",
    "curtsy.observe.dashboard.app",
    "curtsy.observe.policy_view",
    "encodings.idna",
    "platformdirs",
    "rich.panel",
    "uvicorn.protocols.http.h11_impl",
    "yaml",
)
"""What is imported when it is needed."""


class Request(TypedDict):
    """What is to be run, and where."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    directory: str
    is_leader: bool


# The process that forks


def serve(path: str) -> None:
    """Answer requests until standard input ends; in a process that was forked, run what it is for."""
    from curtsy.cli import cli

    for module in {*EVERYTHING, *(home for home, _ in cli.lazy.values())}:
        import_module(module)
    asking: dict[int, socket.socket] = {}
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker.fileno())  # when one has ended, `select` ends, too
    with socket.socket(socket.AF_UNIX) as listener, woken, waker:
        listener.bind(f"{path}.new")
        listener.listen(16)
        os.rename(f"{path}.new", path)  # there only when it listens
        while sys.stdin not in (ready := select.select([listener, woken, sys.stdin], [], [])[0]):
            if woken in ready:
                woken.recv(4096)
            _tell_ends(asking)
            if listener not in ready:
                continue
            connection, _ = listener.accept()
            message, streams = _received(connection)
            if not message.endswith(b"\n"):  # it was killed while it asked
                for stream in streams:
                    os.close(stream)
                connection.close()
                continue
            request: Request = json.loads(message)
            import_module(request["module"])  # here, so that it is there for the next one
            gc.freeze()  # what is here already needs no look from those who come
            if (child := os.fork()) == 0:
                break
            asking[child] = connection
            with contextlib.suppress(OSError):  # it was killed meanwhile
                connection.sendall(b"%d\n" % child)
            for stream in streams:
                os.close(stream)
        else:
            return
        signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (connection, *asking.values()):
        each.close()
    _become(request, streams)
    _run(request["module"])


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Read a request and its streams; without a line end, whoever asked has ended."""
    message, streams = b"", list[int]()
    with contextlib.suppress(OSError):
        message, streams, _, _ = socket.recv_fds(connection, MOST, 3)
        while not message.endswith(b"\n") and (more := connection.recv(MOST)):  # a long one comes in pieces
            message += more
    return message, streams


def _tell_ends(asking: dict[int, socket.socket]) -> None:
    """Tell those who ask how their processes have ended."""
    while asking:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with asking.pop(child) as connection, contextlib.suppress(OSError):  # nobody wants to know
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: Request, streams: list[int]) -> None:
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    if request["is_leader"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["directory"])
    sys.argv = [request["module"], *request["arguments"]]
    # For as long as we live, and as an interpreter has them.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(2)  # a process that hangs is aborted, and its stacks are part of the failure


def _run(module: str) -> None:
    """Run it, and end as an interpreter does, but for the tidying up, which takes longer than the rest."""
    program = import_module(module)
    if hasattr(program, "IS_WHOLE"):
        program.main()
        return
    try:
        code = program.main()
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


# Those who ask it


COMMAND = """\
#!/bin/sh
"exec" "{python}" "-IS" "$0" "$@"
import json, os, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = {{
    "module": "curtsy.cli", "arguments": sys.argv[1:], "env": dict(os.environ), "directory": os.getcwd(),
    "is_leader": False,
}}
message = json.dumps(request).encode() + b"\\n"
connection.sendall(message[socket.send_fds(connection, [message], [0, 1, 2]) :])
_, code = connection.makefile()
sys.exit(int(code))
"""
"""`curtsy` for a shell: to it a program of Python, to Python a program with a text at its beginning."""


class _Warm:
    """The process that forks, as it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def connect(self) -> socket.socket:
        """Ask for its attention."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(self._path())
        return connection

    def write_command(self, place: Path) -> None:
        """Write a program to `place` that a shell can start: `curtsy`, in a process that is forked."""
        place.write_text(COMMAND.format(python=sys.executable, path=self._path()))
        place.chmod(0o755)

    def _path(self) -> str:
        with self._lock:  # threads of one test may be the first to ask
            if self._process is None:
                self._start()
        assert self._folder is not None
        return f"{self._folder.name}/socket"

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="curtsy-warm-")
        path = Path(self._folder.name) / "socket"
        command = [sys.executable, "-m", "tests.support.warm", str(path)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
        block_until(path.exists, self._process)

    def end(self) -> None:
        """Let it end, if it has begun."""
        if self._process is not None and self._folder is not None:
            self._process.communicate()
            self._folder.cleanup()
        self._process = self._folder = None


WARM = _Warm()


class Process(Generic[AnyStr]):
    """A process that runs the `main` of a module."""

    def __init__(
        self,
        module: str,
        *arguments: object,
        text: bool,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
    ) -> None:
        """Start it; what is not said is as for a `subprocess.Popen`."""
        self.returncode: int | Any = None  # as typeshed has it, for whoever knows that it has ended
        self._said: dict[int, list[AnyStr]] = {}
        self._reading: list[threading.Thread] | None = None
        request: Request = {
            "module": module, "arguments": [str(each) for each in arguments],
            "env": dict(os.environ if env is None else env), "directory": str(cwd), "is_leader": start_new_session,
        }  # fmt: skip
        theirs, ours, opened = [], [], []
        for place, given in enumerate((stdin, stdout, stderr)):
            if given == subprocess.PIPE:
                ends = os.pipe() if place else os.pipe()[::-1]
                ours.append(ends[0])
                opened.append(ends[1])
                theirs.append(ends[1])
                continue
            ours.append(-1)
            if given == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(opened[-1])
            elif given is None:
                theirs.append(place)
            else:
                theirs.append(given if isinstance(given, int) else given.fileno())
        self._connection = WARM.connect()
        message = json.dumps(request).encode() + b"\n"
        self._connection.sendall(message[socket.send_fds(self._connection, [message], theirs) :])
        for each in opened:
            os.close(each)
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())
        self.stdin: IO[AnyStr] | None = _opened(ours[0], "w", text)
        self.stdout: IO[AnyStr] | None = _opened(ours[1], "r", text)
        self.stderr: IO[AnyStr] | None = _opened(ours[2], "r", text)
        ends_with_test(self)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        found: int | None = self.returncode
        return found

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code, or a signal's number below 0."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        code: int = self.returncode
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[AnyStr, AnyStr]:
        """Close its standard input, and wait for its end; what it has said until then and was not read yet."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._reading is None:
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.stdin.close()
            streams = {place: each for place, each in ((1, self.stdout), (2, self.stderr)) if each is not None}
            self._said = {place: [] for place in streams}
            self._reading = [threading.Thread(target=self._read, args=each) for each in streams.items()]
            for each in self._reading:
                each.start()
        for each in self._reading:
            each.join(None if until is None else max(0.0, until - time.monotonic()))
            if each.is_alive():
                if timeout is not None and timeout >= HANG:
                    self._fail(timeout)
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return self._all_of(1), self._all_of(2)

    def _fail(self, timeout: float) -> NoReturn:
        """Abort the process, which has not ended in time, and fail with what it wrote: its stacks come last."""
        self.send_signal(signal.SIGABRT)
        for each in self._reading or ():
            each.join(10.0)
        written = "".join(str(text) for texts in self._said.values() for text in texts)
        raise AssertionError(f"process {self.pid} still ran after {timeout} s\n{written[-20_000:]}")

    def _read(self, place: int, stream: IO[AnyStr]) -> None:
        with stream:
            self._said[place].append(stream.read())

    def _all_of(self, place: int) -> Any:
        return self._said[place][0] if self._said.get(place) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what leads to it, and wait for its end."""
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.close()
        self.wait()


def _opened(end: int, mode: str, text: bool) -> Any:
    return None if end < 0 else open(end, mode if text else f"{mode}b")


if __name__ == "__main__":
    serve(sys.argv[1])
