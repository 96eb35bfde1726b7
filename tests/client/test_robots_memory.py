"""Memory that many sites with a large robots.txt can take, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.fetching import AGENT
from tests.support.bounds import MIB
from tests.support.site import Reply, Site
from tests.support.warm import Process

HOSTS, WARM = 16, 3

FILES = {
    "rules for everyone": b"User-agent: *\n" + b"".join(b"Disallow: /%x\n" % each for each in range(40_000)),
    "rules for others": b"".join(b"User-agent: bot%x\nDisallow: /%x\n" % (each, each) for each in range(20_000)),
}

PROGRAM = """
import asyncio, sys
from curtsy.client import AsyncClient
from curtsy.http.sender import HttpSender
from tests.client.fetching import UNPACED
from tests.support.site import Site

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

async def main(store, agent, url, hosts, warm):
    async with AsyncClient(
        store=store, cache=False, allow_private=True, user_agent=agent, sender=HttpSender(resolver=Site.names),
        **UNPACED,
    ) as client:
        for number in range(int(hosts)):
            result = await client.fetch(url.replace("HOST", f"h{number}.test"))
            assert result.ok, result.message
            if number == int(warm):
                print(resident())
        print(resident())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's resident memory so")
@pytest.mark.parametrize(
    ("store", "kind"),
    [
        pytest.param("memory", "rules for everyone", marks=pytest.mark.soak),
        ("sqlite", "rules for everyone"),
        ("sqlite", "rules for others"),
    ],
)
def test_many_sites_with_a_large_robots_txt_take_no_more_memory_than_a_few(
    site: Site, tmp_path: Path, store: str, kind: str
) -> None:
    """F28, R5: rules and texts are bounded by bytes, however many hosts there are"""
    # The same text would be read once for all.
    site.on("/robots.txt", lambda visit: Reply(body=f"# {visit.host}\n".encode() + FILES[kind][:500_000]))
    site.page("/page", "x")
    place = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/hosts.sqlite"
    url = site.url("/page", host="HOST")

    process = Process(
        "tests.support.program", PROGRAM, place, AGENT, url, str(HOSTS), str(WARM),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    before, after = map(int, out.split())
    assert site.count("/robots.txt") == HOSTS
    assert after - before < (20 if store == "sqlite" else 20 + HOSTS // 2) * MIB
