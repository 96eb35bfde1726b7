"""Distributions: how often a duration fell between which bounds."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.record import DELAYED_MS


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """How often a duration fell between which bounds, in seconds. Subclasses have the bounds."""

    counts: tuple[int, ...] = ()
    """By bound: how many were at most that long, and longer than the one before; one more for those beyond the last.
    Empty if there were none at all."""

    total: float = 0.0
    """All durations together."""

    bounds: ClassVar[tuple[float, ...]] = ()

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The average; 0 if there were none."""
        return self.total / self.count if self.counts else 0.0

    def quantile(self, share: float) -> float:
        """About what so large a share stayed under: `quantile(0.95)`. Straight between two bounds; 0 without any."""
        wanted, below = share * self.count, 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                least = self.bounds[index - 1] if index else 0.0
                most = self.bounds[min(index, len(self.bounds) - 1)]
                return least + (most - least) * max(0.0, wanted - below) / count
            below += count
        return 0.0

    def plus(self, other: Self, times: int = 1) -> Self:
        """Both together; with `times=-1`, what this has more than an earlier one."""
        if not other.counts:
            return self
        mine = self.counts or (0,) * len(other.counts)
        counts = tuple([max(0, one + times * two) for one, two in zip(mine, other.counts, strict=True)])
        return type(self)(counts, max(0.0, self.total + times * other.total)) if any(counts) else type(self)()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {"bounds": self.bounds, "counts": self.counts, "count": self.count, "sum": self.total}


class Waits(Distribution, frozen=True, array_like=True):
    """How long fetches stood in line. The first bound is where a delay begins (L5)."""

    bounds: ClassVar[tuple[float, ...]] = (
        DELAYED_MS / 1000, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    )  # fmt: skip


class Latencies(Distribution, frozen=True, array_like=True):
    """How long sites took to answer. The bounds are those that OpenTelemetry's conventions advise."""

    bounds: ClassVar[tuple[float, ...]] = (
        0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    )  # fmt: skip
