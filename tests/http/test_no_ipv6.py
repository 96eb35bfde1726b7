"""A machine without IPv6, as most containers are: a network of its own, in which it is switched off."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason
from tests.support.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
SWITCH = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
APART = ["unshare", "--map-root-user", "--net", "sh", "-c", f'echo 1 > {SWITCH} && exec "$@"', "-"]

PROGRAM = """
    import asyncio, fcntl, json, socket, struct
    from curtsy.http.sender import HttpSender
    from curtsy.client import session_of
    from tests.client.fetching import client, host_of
    from tests.support.site import Site, closed_port

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        fcntl.ioctl(way, 0x8914, struct.pack("16sH14s", b"lo", 0x41, b""))  # SIOCSIFFLAGS: up and running

    SIX = "2001:4860:4860::8888"

    async def main():
        names = {"six.test": [SIX, "2001:4860:4860::8844"], "both.test": [SIX, "127.0.0.1"]}
        told = {}
        with Site() as site, closed_port() as closed:
            site.page("/*", "four")
            async with client(sender=HttpSender(resolver=names), max_retries=1) as web:
                for name in ("[::1]", "six.test", "both.test"):
                    url = f"http://{name}:{site.port}/"
                    result = await web.fetch(url)
                    host = await host_of(web, url)
                    rules = await session_of(web).store.read("rules:" + url.removesuffix("/"))
                    told[name] = {
                        "reason": result.reason, "text": result.text, "message": result.message.partition(": ")[2],
                        "failures": host.failures, "robots": {"failures": rules.failures, "why": rules.why},
                    }
            async with client(sender=HttpSender(resolver=names), max_retries=0, respect_robots=False) as web:
                refused = await web.fetch(f"http://both.test:{closed}/")
                told["refused"] = {"reason": refused.reason, "message": refused.message.partition(": ")[2]}
        print(json.dumps(told))

    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def told() -> Any:
    """What a client says there."""
    try:
        is_apart = subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_apart = False
    if not is_apart:
        pytest.skip("this system gives nobody a network of his own")
    command = [*APART, sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("host", ["[::1]", "six.test"])
def test_an_address_of_ipv6_is_told_as_what_this_machine_lacks_and_no_host_is_blamed(
    told: Any, host: str, snapshot: Snapshot
) -> None:
    """U6, R6: no failure of the host's, and no word of its robots.txt"""
    said = told[host]

    assert said["reason"] == Reason.ADDRESS_REFUSED
    assert "IPv6" in said["message"]
    snapshot(said["message"])
    assert said["failures"] == 0
    assert (said["robots"]["failures"], said["robots"]["why"]) == (0, "")


def test_a_name_that_has_an_address_of_ipv4_too_is_asked_there(told: Any) -> None:
    """N3"""
    assert (told["both.test"]["reason"], told["both.test"]["text"]) == (None, "four")


def test_what_each_address_of_a_name_failed_for_is_said(told: Any) -> None:
    """N3, conventions: errors"""
    assert told["refused"]["reason"] == Reason.CONNECTION_ERROR
    no_way, refused = (os.strerror(number).lower() for number in (errno.EADDRNOTAVAIL, errno.ECONNREFUSED))
    assert told["refused"]["message"].startswith(f"{no_way}, {refused}.")
