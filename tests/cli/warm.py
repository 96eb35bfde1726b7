"""A process that has imported everything, and forks one that runs a command: real processes, without the start-up.

`python -m tests.cli.warm SOCKET` listens there. A request is one message: the arguments, the environment and the
directory as JSON, and with it the three standard streams. The answer is the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TypedDict

from curtsy.cli import COMMANDS, main

MOST = 1 << 20
"""Bytes of a request."""


class Request(TypedDict):
    """What is to be run, and where."""

    arguments: list[str]
    env: dict[str, str]
    directory: str


def serve(path: str) -> NoReturn:
    """Answer requests until killed."""
    for module in {home.partition(":")[0] for home, _ in COMMANDS.values()}:
        import_module(module)
    for module in (
        "curtsy.client",
        "curtsy.watch.assessment",
        "curtsy.cli.telling",
        "curtsy.cli.rehearsal",
        "curtsy.cli.conduct",
        "curtsy.cli.report",
        "curtsy.watch.crawls",
        "curtsy.settings.keys",
        "rich.panel",
    ):
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(16)
        os.rename(f"{path}.new", path)  # there only when it listens
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> NoReturn:
    """Let another process run the command, for this one must tell its exit code whatever becomes of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(connection, MOST, 3)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(str(code).encode())
    os._exit(0)


def _run(request: Request, streams: list[int]) -> NoReturn:
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["directory"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 -- for as long as we live
    code = 1
    try:
        code = main(request["arguments"])
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def running(
    path: Path, arguments: list[str], env: dict[str, str], directory: Path, streams: list[int]
) -> Iterator[Callable[[], int]]:
    """Have a command run by the process that listens at `path`; what is given waits for its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        request: Request = {"arguments": arguments, "env": env, "directory": str(directory)}
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        yield lambda: int(connection.recv(16))


if __name__ == "__main__":
    serve(sys.argv[1])
