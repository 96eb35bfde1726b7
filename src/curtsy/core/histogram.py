"""Distributions: histograms of durations."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.record import DELAYED_MS


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """Histogram of durations in seconds. Subclasses define the bounds."""

    counts: tuple[int, ...] = ()
    """Number of durations up to each bound and above the previous one, then of those above the last bound. Empty
    without any durations."""

    total: float = 0.0
    """Sum of all durations in seconds."""

    bounds: ClassVar[tuple[float, ...]] = ()

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Return the average in seconds; 0 without durations."""
        return self.total / self.count if self.counts else 0.0

    def quantile(self, share: float) -> float:
        """Return the approximate duration that the given share stays under, such as `quantile(0.95)`.

        Interpolates linearly between two bounds. Returns 0 without durations.
        """
        wanted, below = share * self.count, 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                least = self.bounds[index - 1] if index else 0.0
                most = self.bounds[min(index, len(self.bounds) - 1)]
                return least + (most - least) * max(0.0, wanted - below) / count
            below += count
        return 0.0

    def plus(self, other: Self, times: int = 1) -> Self:
        """Return the sum of both; with `times=-1`, the difference to an earlier histogram."""
        if not other.counts:
            return self
        mine = self.counts or (0,) * len(other.counts)
        counts = tuple([max(0, one + times * two) for one, two in zip(mine, other.counts, strict=True)])
        return type(self)(counts, max(0.0, self.total + times * other.total)) if any(counts) else type(self)()

    def as_dict(self) -> dict[str, Any]:
        """Return the histogram as plain JSON values."""
        return {"bounds": self.bounds, "counts": self.counts, "count": self.count, "sum": self.total}


class Waits(Distribution, frozen=True, array_like=True):
    """Histogram of the time that fetches spend in the queue. The first bound is the least delay that counts (L5)."""

    bounds: ClassVar[tuple[float, ...]] = (
        DELAYED_MS / 1000, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    )  # fmt: skip


class Latencies(Distribution, frozen=True, array_like=True):
    """Histogram of response times, with the bounds that OpenTelemetry's conventions recommend."""

    bounds: ClassVar[tuple[float, ...]] = (
        0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    )  # fmt: skip
