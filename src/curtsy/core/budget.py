"""DailyBudget: requests and pages a day."""

from __future__ import annotations

import msgspec


class Day(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was spent on a host within one local day. The end is absolute, so no change of zone or clock moves it."""

    starts: int
    """Epoch second."""

    ends: int
    """Epoch second."""

    requests: int = 0
    pages: int = 0
