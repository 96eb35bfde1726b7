"""`curtsy serve`: run the dashboard."""

from __future__ import annotations

import errno
import signal
import socket
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import command
from curtsy.cli.context import CommandContext

if TYPE_CHECKING:
    from curtsy.observe.dashboard.app import Dashboard

PATIENCE = 2
"""Seconds that open connections have to end."""


@command(
    ("curtsy serve", "Show the crawls and hosts of this machine at http://127.0.0.1:8765/."),
    ("curtsy serve --store redis://10.0.0.5", "Show all machines that share a store."),
    (
        'CURTSY_DASHBOARD_TOKEN="$(openssl rand -hex 24)" curtsy serve --host 0.0.0.0',
        "Permit access from other machines, with a token.",
    ),
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, metavar="PORT", help="Port (8765); 0 for any free port."
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on; by default loopback.")
@click.option(
    "--token", envvar="CURTSY_DASHBOARD_TOKEN", metavar="TEXT",
    help="Require this token; needed for any address except loopback. Better: $CURTSY_DASHBOARD_TOKEN.",
)  # fmt: skip
@click.option("--name", "names", multiple=True, metavar="HOST", help="Further host name of the dashboard; repeatable.")
@click.pass_obj
def serve(given: CommandContext, port: int, host: str, token: str | None, names: tuple[str, ...]) -> None:
    """Serve a live dashboard of hosts, crawls, budgets and breakers.

    It reads the store, so it shows every process of this machine, and every machine that shares the store. It sends no
    requests to sites. Users can reset a breaker, pause and resume a host, and change a limit temporarily.

    The exit code is 130 after Ctrl-C, and 0 after SIGTERM or when the terminal closes.
    """
    from curtsy.core.errors import not_imported

    for library in ("starlette", "uvicorn"):
        try:
            import_module(library)
        except ImportError as error:
            raise not_imported(f"the dashboard needs the library {library}", library, "dashboard", error) from None
    token = token or _token_of_project()
    _check(host, token)
    listener = _listen(host, port)
    address = listener.getsockname()[1]
    dashboard = _dashboard(given, host, address, names, token)
    console.say(_where(listener, host, address))
    with listener:
        _run(dashboard, listener)


def _where(listener: socket.socket, host: str, port: int) -> str:
    """Return an address of the dashboard that a browser can open, in a sentence."""
    from ipaddress import ip_address

    everywhere = ""
    if ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if listener.family is socket.AF_INET else "::1"
        everywhere = " It listens on all addresses of this machine; other machines use one of these."
    shown = f"[{host}]" if ":" in host.strip("[]") and not host.startswith("[") else host
    return f"the dashboard is at http://{shown}:{port}/.{everywhere} Ctrl-C stops it."


def _token_of_project() -> str | None:
    """Return the token of the `.env` file in the working directory; None without one."""
    from curtsy.settings import working_directory
    from curtsy.settings.problems import Problems
    from curtsy.settings.sources import read_dotenv

    return read_dotenv(working_directory(), Problems()).get("CURTSY_DASHBOARD_TOKEN", ("", None))[0] or None


def _check(host: str, token: str | None) -> None:
    from curtsy.observe.dashboard.security import LEAST_TOKEN, is_loopback

    if token is not None and len(token) < LEAST_TOKEN:
        raise click.UsageError(
            f"the token has {len(token)} characters, and needs at least {LEAST_TOKEN}, because it could be guessed. "
            "Create one: openssl rand -hex 24"
        )
    if token is None and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} can be reached from other machines, so it needs a token. "
            "Set CURTSY_DASHBOARD_TOKEN (openssl rand -hex 24 creates one), or leave --host out."
        )


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port first, so that an error is reported before anything else."""
    elsewhere = " Give --host an address of this machine, or leave it out."
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = places[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        hint = " Choose another --port, or --port 0 for any free port." if port else ""
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            hint = elsewhere
        why = (error.strerror or str(error)).partition(" (while")[0]  # Python repeats the address there
        raise click.ClickException(f"cannot listen on {host}, port {port}: {why}.{hint}") from None
    except UnicodeError:  # empty or too long label
        raise click.ClickException(f"cannot listen on {host}, which is not a host name.{elsewhere}") from None


def _dashboard(given: CommandContext, host: str, port: int, names: tuple[str, ...], token: str | None) -> Dashboard:
    from curtsy.cli.console import listen
    from curtsy.observe.dashboard.app import Dashboard
    from curtsy.settings.live import LiveSettings

    settings = given.settings()
    if settings.store == "memory:":
        raise click.UsageError(
            "memory: belongs to one process, so there is nothing to show. Name the store of your crawl."
        )
    if not given.is_level_set:
        listen("info", settings.log_format)  # actions of users are logged at info
    live = LiveSettings(**given.arguments)
    cache = None if settings.cache_mode == "off" else given.open_cache()
    store = given.open_store()
    dashboard = Dashboard(store, live.check, cache=cache, host=host, port=port, names=names, token=token)
    store.read("global")  # raises now, not at the first request
    dashboard.count()
    return dashboard


def _run(dashboard: Dashboard, listener: socket.socket) -> None:
    import uvicorn

    from curtsy.observe.dashboard.security import Connection

    class Server(uvicorn.Server):
        """Server that first ends the dashboard's endless streams on exit."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            dashboard.stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        dashboard, http=Connection, log_config=None, log_level="error", limit_concurrency=500, access_log=False,
        lifespan="off", ws="none", server_header=False, proxy_headers=False, timeout_graceful_shutdown=PATIENCE,
    )  # fmt: skip
    server = Server(config)
    # uvicorn raises the signal that ended it again for the earlier handler: Ctrl-C stays an interruption.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    if hasattr(signal, "SIGHUP"):  # uvicorn does not handle it
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[listener])
