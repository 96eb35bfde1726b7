"""A dashboard for the tests: `curtsy serve` as a process of its own, and a plain HTTP client that may lie."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curtsy.stores import Store, open_store
from tests.support.polling import block_until
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]
STDERR = "stderr.txt"
TOKEN = "a-token-of-some-length"


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running `curtsy serve`, at home in a directory of its own."""

    home: Path
    process: Process[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def store_url(self) -> str:
        return store_url(self.home)

    def ask(
        self, path: str, method: str = "GET", body: object = None, *, host: str | None = None, **headers: str
    ) -> Answer:
        """Ask for something. Names of header fields have `_` for `-`; one that is empty is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if host != "":
                connection.putheader("Host", host or f"127.0.0.1:{self.port}")
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            if body is not None:
                headers.setdefault("content_type", "application/json")
                connection.putheader("Content-Length", str(len(data)))
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(data)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def act(self, action: str, domain: str, **more: object) -> Answer:
        """Do something to a host, as the page does."""
        csrf = self.ask("/api/session").json["csrf"]
        return self.ask("/api/actions", "POST", {"action": action, "domain": domain, **more}, x_curtsy_csrf=csrf)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store that it watches."""
        store = open_store(self.store_url, fallback=False)
        yield store
        store.close()

    def told(self, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """The lines of its log that have these fields, when there are so many."""

        def found() -> list[dict[str, Any]]:
            whole = [line for line in said(self.home).splitlines(keepends=True) if line.endswith("}\n")]
            lines: list[dict[str, Any]] = [json.loads(line) for line in whole if line.startswith("{")]
            return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]

        block_until(lambda: len(found()) >= count)
        return found()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(60)


def store_url(home: Path) -> str:
    return f"sqlite:///{home / 'state.sqlite'}"


def environment(home: Path) -> dict[str, str]:
    """Nothing of the real user's."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    return env | {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("STATE", "CACHE", "CONFIG", "DATA")}


@contextmanager
def serving(home: Path, *options: str, settings: str = "", **env: str) -> Iterator[Served]:
    """Run `curtsy serve` on a port of its own, until the end of the block."""
    home.mkdir(parents=True, exist_ok=True)
    if settings:
        (home / "curtsy.yaml").write_text(settings)
    with (home / STDERR).open("wb") as err:
        process: Process[bytes] = Process(
            "curtsy.cli", "serve", "--port", "0", "--store", store_url(home), *options,
            text=False, cwd=home, env=environment(home) | env, stdin=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
    try:
        found = block_until(lambda: re.search(r"http://\S+:(\d+)/", said(home)) or process.poll() is not None)
        assert isinstance(found, re.Match), said(home)
        yield Served(home, process, int(found[1]))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def said(home: Path) -> str:
    """What the server has written to standard error."""
    return (home / STDERR).read_text()
