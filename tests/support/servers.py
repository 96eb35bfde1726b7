"""Real web servers of the system, each with a configuration of its own on a port of its own: what sites run.

    with started("nginx", tmp_path, "gzip on;") as server:
        server.write("page.html", text)
        fetch(server.url("page.html"))
    assert server.statuses("page.html") == [200]      # by the server's own log

A server whose program is missing skips the test, but fails it under `CI=true`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.polling import block_until

PROGRAMS = {
    "apache": ("apache2", "httpd"),
    "nginx": ("nginx",),
    "lighttpd": ("lighttpd",),
    "caddy": ("caddy",),
}

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_MODULES = tuple(map(Path, ("/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/lib/httpd/modules")))

_APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
Listen 127.0.0.1:{port}
{load}
{user}
ErrorLog {folder}/error.log
LogFormat "%>s %U" plain
CustomLog {folder}/access.log plain
TypesConfig /dev/null
AddType text/html .html
DocumentRoot {root}
<Directory {root}>
    Require all granted
</Directory>
{more}
"""
_APACHE_MODULES = ("mpm_event", "unixd", "authz_core", "mime", "filter", "deflate", "brotli", "headers", "log_config")

_NGINX = """
daemon off;
{user}
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    log_format plain '$status $uri';
    access_log {folder}/access.log plain;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    types {{ text/html html; }}
    server {{ listen 127.0.0.1:{port}; root {root}; {more} }}
}}
"""

_LIGHTTPD = """
server.modules = ("mod_accesslog", "mod_deflate")
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{root}"
server.stat-cache-engine = "disable"
server.errorlog = "{folder}/error.log"
accesslog.filename = "{folder}/access.log"
accesslog.format = "%s %U"
mimetype.assign = (".html" => "text/html")
{more}
"""

_CADDY = """
{{
    admin off
    auto_https off
}}
http://127.0.0.1:{port} {{
    root * {root}
    log {{
        output file {folder}/access.log
        format json
    }}
    {more}
    file_server
}}
"""


class Server:
    """A server that runs, or has run."""

    def __init__(self, folder: Path, root: Path, port: int) -> None:
        self._folder = folder
        self._root = root
        self._port = port

    def url(self, name: str) -> str:
        """The URL of a file."""
        return f"http://127.0.0.1:{self._port}/{name}"

    def write(self, name: str, text: str) -> None:
        """Have a file served, as if it had lain there for an hour: what has just changed has a weak ETag."""
        path = self._root / name
        path.write_text(text)
        before = time.time() - 3600
        os.utime(path, (before, before))

    def statuses(self, name: str) -> list[int]:
        """How the requests for a file were answered, in order; when the server has ended, for some write late."""
        log = (self._folder / "access.log").read_text()
        said = [json.loads(line) if line.startswith("{") else line for line in log.splitlines()]
        pairs = [
            line.split() if isinstance(line, str) else (line["status"], line["request"]["uri"]) for line in said
        ]  # fmt: skip
        return [int(status) for status, path in pairs if path == f"/{name}"]


@contextmanager
def started(kind: str, folder: Path, more: str = "") -> Iterator[Server]:
    """A server of one kind with `more` in its configuration, until the block ends."""
    program = next((path for name in PROGRAMS[kind] if (path := shutil.which(name, path=_PATH))), None)
    if program is None:
        why = f"no {kind} here: install the package that has {PROGRAMS[kind][0]}, or run `make soak`"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="curtsy-site-") as root, socket.socket() as probe:
        os.chmod(root, 0o755)  # Apache serves as another user if it is started as root
        probe.bind(("127.0.0.1", 0))
        server = Server(folder, Path(root), probe.getsockname()[1])
        probe.close()
        command = _configure(kind, program, folder, Path(root), server._port, more)
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=folder, env={**os.environ, "HOME": str(folder)}
            )
        try:
            _wait_for(process, server._port, folder)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _configure(kind: str, program: str, folder: Path, root: Path, port: int, more: str) -> list[str]:
    """Write a server's configuration, and return the command that runs it in the foreground."""
    is_root = os.geteuid() == 0
    config = folder / "config"
    given = {"folder": folder, "root": root, "port": port, "more": more, "user": "", "load": ""}
    if kind == "apache":
        modules = next(path for path in _MODULES if path.is_dir())
        files = [(name, modules / f"mod_{name}.so") for name in _APACHE_MODULES]
        given["load"] = "\n".join(f"LoadModule {name}_module {path}" for name, path in files if path.exists())
        given["user"] = "User nobody\nGroup nogroup" if is_root else ""
        config.write_text(_APACHE.format(**given))
        return [program, "-f", str(config), "-D", "FOREGROUND"]
    if kind == "nginx":
        given["user"] = "user root;" if is_root else ""
        config.write_text(_NGINX.format(**given))
        return [program, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
    if kind == "lighttpd":
        config.write_text(_LIGHTTPD.format(**given))
        return [program, "-D", "-f", str(config)]
    config.write_text(_CADDY.format(**given))
    return [program, "run", "--adapter", "caddyfile", "--config", str(config)]


def _wait_for(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    block_until(lambda: answers() or process.poll() is not None)
    if process.poll() is None:
        return
    told = [path.read_text() for path in (folder / "output.log", folder / "error.log") if path.exists()]
    pytest.fail(f"{process.args!r} did not start: {' '.join(told)[-2000:]}")
