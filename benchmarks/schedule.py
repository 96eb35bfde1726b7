"""Schedule: a crawl of very many URLs in virtual time, by the code that decides which host is next.

    python -m benchmarks.schedule [PART ...] [--quick]
    python -m benchmarks.schedule --urls 100000000 --hosts 1000000      (eleven minutes of CPU; --seconds for fewer)

The hosts have sizes by a power law: most have a few URLs, one has 2 to 4 % of all. A twentieth of the hosts
belongs to one registered domain. A fetch takes up to two seconds, and a host rests for the default pause of 3.5 s after
each. Nothing is sent, and no URL is stored: the figures are of the host schedule alone. `nodes` distributes the same
hosts over the partitions of a shared job, and these over the nodes of a cluster.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from heapq import heappop, heappush
from math import inf

from benchmarks.measure import in_process, memory
from benchmarks.report import Report, run
from curtsy.core.fair_share import GROUPS
from curtsy.core.time import SECOND
from curtsy.crawling.frontier.host_schedule import LONG, HostSchedule
from curtsy.crawling.frontier.partition import PARTITIONS, Partitions
from curtsy.crawling.frontier.redis_jobs import SLOTS, SharedJob

PAUSE = round(3.5 * SECOND)
SLOTS_IN_USE = 2_000
"""Fetches at once."""

PLATFORM = 20
"""One host in so many belongs to the same registered domain."""

ROUNDS = 10
"""Mean turns of all registered domains after which they are compared."""


def sizes(urls: int, hosts: int) -> array[int]:
    """Return the number of URLs of each host, in random order."""
    weights = [(number + 1) ** -0.8 for number in range(hosts)]
    each = (urls - hosts) / sum(weights)
    found = array("I", [1 + int(weight * each) for weight in weights])
    found[0] += urls - sum(found)
    random.Random(7).shuffle(found)
    return found


def site_of(host: int) -> int:
    """Return the group of a host's registered domain."""
    return 1 if host % PLATFORM == 0 else 2 + host % (GROUPS - 2)


class Simulation:
    """Crawl in virtual time."""

    def __init__(self, urls: int, hosts: int) -> None:
        self._sizes = sizes(urls, hosts)
        self._schedule = HostSchedule()
        self._free_at = array("q", bytes(8 * (hosts + 1)))
        """When each host may be requested again."""
        self._turns = [0] * GROUPS
        self._left = [0] * GROUPS
        self._now = 0
        self.found = {"early": 0.0, "urls": float(urls)}
        before = memory("VmRSS")
        for host, size in enumerate(self._sizes, 1):
            self._schedule.assign(host, site_of(host))
            self._schedule.arrive(host, size, 1, 0)
            self._left[site_of(host)] += size
        self.found["memory"] = (memory("VmRSS") - before) / hosts

    def run(self, limit: float = inf) -> dict[str, float]:
        """Hand out every URL, or as many as `limit` seconds of CPU allow; return the figures."""
        schedule, chance, out = self._schedule, random.Random(11).random, list[tuple[int, int]]()
        compared_at = ROUNDS * len({site_of(host) for host in range(1, len(self._sizes) + 1)})
        handed, full, began = 0, 0, time.process_time()
        while True:
            while len(out) < SLOTS_IN_USE and (host := schedule.next(self._now)) is not None:
                schedule.leave(host, 1, self._now)
                heappush(out, (self._now + round((0.2 + 1.8 * chance()) * SECOND), host))
                self.found["early"] += self._free_at[host] > self._now
                self._turns[site_of(host)] += 1
                self._left[site_of(host)] -= 1
                handed += 1
                if handed == compared_at:
                    self._compare()
            if len(out) == SLOTS_IN_USE:
                full = handed
            due_at = schedule.due_at(self._now) if len(out) < SLOTS_IN_USE else None
            if (not out and due_at is None) or time.process_time() - began > limit:
                break
            if out and (due_at is None or out[0][0] <= due_at):
                self._now, host = heappop(out)
                self._free_at[host] = self._now + PAUSE
                schedule.postpone(host, self._now + PAUSE, self._now)
                schedule.come_back(host, 1, self._now, is_waiting=False)
            elif due_at is not None:
                self._now = due_at
        took = time.process_time() - began
        most = max(self._sizes)
        self.found |= {
            "handed": handed,
            "rate": handed / took,
            "full": full / handed,
            "days": self._now / SECOND / 86_400,
            "stretch": self._now / (most * (PAUSE + 1.1 * SECOND)),
            "grown": memory("VmHWM") / 2**20,
        }
        return self.found

    def _compare(self) -> None:
        """Compare the turns of the registered domains that had URLs all the time, without those of long hosts.

        A host with far more URLs than the others goes first, because the crawl ends when that host does.
        """
        mean = sum(self._sizes) / len(self._sizes)
        long = {site_of(host) for host, size in enumerate(self._sizes, 1) if size > LONG * mean}
        pairs = enumerate(zip(self._turns, self._left, strict=True))
        turns = [number for site, (number, left) in pairs if site != 1 and number and left and site not in long]
        mean_turns = sum(turns) / len(turns)
        self.found["least"], self.found["most"] = min(turns) / mean_turns, max(turns) / mean_turns
        self.found["platform"] = self._turns[1] / mean_turns


def simulate(urls: int, hosts: int, limit: float = inf) -> dict[str, float]:
    return Simulation(urls, hosts).run(limit)


def crawl(report: Report, urls: int = 5_000_000, hosts: int = 200_000) -> None:
    """Report fairness, memory and speed of the host schedule."""
    if report.is_quick:
        urls, hosts = 20_000, 1_000
    report.title(f"{urls:,} URLs over {hosts:,} hosts, {SLOTS_IN_USE:,} at once")
    found = in_process(simulate, urls, hosts)
    report.add("URLs handed out, of all", found["handed"] / found["urls"], "x", at_least=1.0)
    report.add("handed out before their host was free", found["early"], "URLs", at_most=0)
    report.add("least turns of a registered domain, over the mean", found["least"], "x", at_least=0.9)
    report.add("most turns", found["most"], "x", at_most=1.1)
    report.add("turns of the registered domain with a twentieth of the hosts", found["platform"], "x")
    report.add("handed out by the time that fewer than all slots are used", found["full"], "x")
    report.add("duration, over that of the largest host alone", found["stretch"], "x")
    report.add("duration", found["days"], "days")
    report.add("memory of a host", found["memory"], "bytes")
    report.add("peak of the process", found["grown"], "MB")
    report.add("handed out and taken back", found["rate"], "URLs/s of CPU")


def shares(urls: int, hosts: int) -> dict[int, tuple[float, float, float]]:
    """Return for numbers of nodes the fullest node over the mean, in partitions, hosts and URLs."""
    partitions, job = Partitions("worker", PARTITIONS), SharedJob("crawl", 1_700_000_000_000_000, PARTITIONS)
    held = [[0, 0] for _ in range(PARTITIONS)]
    for host, size in enumerate(sizes(urls, hosts)):
        of = held[partitions.of(f"host{host}.example")]
        of[0] += 1
        of[1] += size
    slots = [slot_of(job.base(number)) for number in range(PARTITIONS)]
    found = {}
    for nodes in (3, 4, 8, 16, 32, 64):
        each = [[0, 0, 0] for _ in range(nodes)]
        for slot, (count, queued) in zip(slots, held, strict=True):
            node = each[slot * nodes // SLOTS]
            node[0] += 1
            node[1] += count
            node[2] += queued
        most = [max(node[place] for node in each) * nodes for place in range(3)]
        found[nodes] = (most[0] / PARTITIONS, most[1] / hosts, most[2] / urls)
    return found


def slot_of(key: str) -> int:
    """Return the hash slot of a key, as clusters compute it."""
    from redis.crc import key_slot

    return int(key_slot(key.encode()))


def nodes(report: Report) -> None:
    """Report how even the nodes of a cluster are."""
    urls, hosts = (20_000, 1_000) if report.is_quick else (100_000_000, 1_000_000)
    report.title(f"fullest node over the mean, {urls:,} URLs over {hosts:,} registered domains")
    for count, (partitions, known, queued) in in_process(shares, urls, hosts).items():
        report.add(f"{count} nodes, partitions", partitions, "x", at_most=1.15)
        report.add(f"{count} nodes, hosts", known, "x")
        report.add(f"{count} nodes, URLs", queued, "x")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--urls", type=int)
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--seconds", type=float, default=inf)
    given, rest = parser.parse_known_args()
    if given.urls and given.hosts:
        for name, figure in simulate(given.urls, given.hosts, given.seconds).items():
            print(f"{name} {figure:,.4g}", flush=True)
        return
    sys.argv[1:] = rest
    run("schedule", __doc__, {"crawl": crawl, "nodes": nodes})


if __name__ == "__main__":
    main()
