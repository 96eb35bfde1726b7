"""Real Redis servers for tests: on free loopback ports, in directories of their own, never left behind.

A test that is killed cannot clean up. So each server has a keeper, a shell that holds the other end of a pipe: when
the pipe closes, however that came about, the keeper ends the server by its process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.polling import block_until

_KEEPER = 'redis-server "$@" >/dev/null 2>&1 & pid=$!; echo $pid; read -r _; kill -9 $pid; wait $pid 2>/dev/null'
_LOOPBACK = "127.0.0.1"


def redis_available() -> str | None:
    """Say why no server can be started, or None if one can. Under CI=true that is a failure, not a reason to skip."""
    if shutil.which("redis-server") is not None:
        return None
    reason = (
        "redis-server is not installed. `make test` installs it where it may; "
        "else install your system's package redis-server, 7.0 or later."
    )
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    return reason


class RedisServer:
    """One server. A context manager: it runs from entering to leaving."""

    def __init__(self, *options: str, appendonly: bool = False) -> None:
        """Take further options as on the command line, for example `"--maxmemory", "10mb"`."""
        self._options = (*options, "--appendonly", "yes" if appendonly else "no")
        self._directory = tempfile.TemporaryDirectory(prefix="curtsy-redis-", ignore_cleanup_errors=True)
        self._keeper: subprocess.Popen[str] | None = None
        self.port = 0
        """The TCP port; it stays the same over `restart()`."""
        self.pid = 0
        """The server's own process, 0 while it does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._directory.cleanup()

    @property
    def url(self) -> str:
        """Where it is, as `BlockingStore` takes it."""
        return f"redis://{_LOOPBACK}:{self.port}/0"

    @property
    def directory(self) -> Path:
        """Where it keeps its log, its socket and what it persists."""
        return Path(self._directory.name)

    def start(self) -> None:
        """Start it, on the port that it had or on a free one, and wait until it answers."""
        wanted = self.port
        for _ in range(5):  # a free port may be taken by another process before the server has it
            self.port = wanted or _free_port()
            if self._launch():
                return
        raise RuntimeError(f"redis-server does not start: {self._log()}")

    def stop(self) -> None:
        """End it at once, as a crash does; what was not persisted is gone. Idempotent."""
        keeper, self._keeper, self.pid = self._keeper, None, 0
        if keeper is not None:
            keeper.communicate()  # closes the pipe and waits

    def restart(self) -> None:
        """Stop it and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let it hang: connections stay open and are taken, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a `pause()`."""
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        """Remove all keys."""
        self.command("FLUSHALL")

    def command(self, *words: str | bytes | int) -> Any:
        """Send one command on a connection of its own and return the reply."""
        no_retry = Retry(NoBackoff(), 0)  # while it starts, we ask often enough
        with redis.Redis(host=_LOOPBACK, port=self.port, socket_timeout=5, retry=no_retry) as client:
            return client.execute_command(*words)

    def calls(self) -> dict[str, int]:
        """How often each command was called since the last `CONFIG RESETSTAT`, by INFO commandstats.

        What a script calls is counted as well as the script.
        """
        return {
            name.removeprefix("cmdstat_"): int(fields["calls"])
            for name, fields in self.command("INFO", "commandstats").items()
        }

    def _arguments(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", _LOOPBACK, "--dir", self._directory.name),
            *("--logfile", "redis.log", "--unixsocket", str(self.directory / "redis.sock"), "--save", ""),
            *self._options,
        ]

    def _launch(self) -> bool:
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "keeper", *self._arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the keeper before us
        )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())
        block_until(lambda: self._answers() or not lives(self.pid))
        if lives(self.pid):
            return True
        self.stop()
        return False

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING")) and self.command("INFO", "server")["process_id"] == self.pid
        except redis.RedisError:
            return False  # not up yet, or still loading

    def _log(self) -> str:
        try:
            return (self.directory / "redis.log").read_text()[-500:]
        except OSError:
            return "it left no log"


class RedisSentinel(RedisServer):
    """One that watches another server, under the name `main`, and puts a replica in its place when it is gone."""

    def __init__(self, watched: RedisServer) -> None:
        super().__init__()
        self._watched = watched

    @property
    def url(self) -> str:
        """Where it is, as `BlockingStore` takes it."""
        return f"redis+sentinel://{_LOOPBACK}:{self.port}/main"

    def _arguments(self) -> list[str]:
        file = self.directory / "sentinel.conf"  # it keeps its state there
        file.write_text(
            f"port {self.port}\nbind {_LOOPBACK}\ndir {self.directory}\nlogfile redis.log\n"
            f"sentinel monitor main {_LOOPBACK} {self._watched.port} 1\n"
            "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
        )
        return [str(file), "--sentinel"]


class RedisCluster:
    """A cluster of `n` masters that share the slots evenly, each with `replicas` replicas."""

    def __init__(self, n: int = 3, replicas: int = 0) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
        self.masters = [_Node(*options) for _ in range(n)]
        self.replicas = [_Node(*options) for _ in range(n * replicas)]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def nodes(self) -> list[_Node]:
        """All servers, the masters first."""
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        """Where it is, as `BlockingStore` takes it."""
        return "redis+cluster://" + ",".join(f"{_LOOPBACK}:{node.port}" for node in self.masters)

    def stop(self) -> None:
        """End all servers and remove what they left."""
        for node in self.nodes:
            node.__exit__(None, None, None)

    def _join(self) -> None:
        first, size = self.masters[0], len(self.masters)
        bounds = [16384 * place // size for place in range(size + 1)]
        for place, node in enumerate(self.masters):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            node.command("CLUSTER", "ADDSLOTSRANGE", bounds[place], bounds[place + 1] - 1)
        for node in self.nodes[1:]:
            first.command("CLUSTER", "MEET", _LOOPBACK, node.port, node.bus)
        block_until(lambda: all(self._sees_all(node) for node in self.nodes))
        for place, replica in enumerate(self.replicas):
            replica.command("CLUSTER", "REPLICATE", self.masters[place % size].command("CLUSTER", "MYID").decode())
        block_until(lambda: all(_healthy(node) for node in self.nodes))
        block_until(lambda: all(_synced(node) for node in self.replicas))

    def _sees_all(self, node: RedisServer) -> bool:
        return len(node.command("CLUSTER NODES")) == len(self.nodes) and _healthy(node)


class _Node(RedisServer):
    """A server of a cluster, with a second port by which the servers talk."""

    bus = 0
    _has_met = False

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--cluster-port", str(self.bus)]

    def _launch(self) -> bool:
        if not self._has_met:  # drawn anew at each try, for it may be taken by another process before the server has it
            self.bus = _free_port()
        self._has_met = super()._launch() or self._has_met
        return self._has_met and self.pid != 0


def _healthy(node: RedisServer) -> bool:
    return bool(node.command("CLUSTER INFO")["cluster_state"] == "ok")


def _synced(node: RedisServer) -> bool:
    return bool(node.command("INFO", "replication")["master_link_status"] == "up")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def lives(pid: int) -> bool:
    """Return whether a process with this number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
