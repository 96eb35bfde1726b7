"""PDFDownloader: save a file through the gate (Q8)."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from curtsy.client import AsyncClient
from curtsy.limits.limiter import RateLimiter
from curtsy.limits.program_limiter import get_rate_limiter
from curtsy.system.log import library_logger

_log = library_logger("guards")


class PDFDownloader:
    """Saves files, PDFs or others, with a client's manners, and says only whether it worked.

    Without `enable_rate_limit` there is no pace and no budget; every request passes the gate all the same, and
    robots.txt holds (C13). `AsyncClient.download` says more of what came of it. With `enable_rate_limit` it shares one
    limiter with the rest of the program: `rate_limiter` is `get_rate_limiter()` (C15).
    """

    def __init__(self, enable_rate_limit: bool = True, **settings: Any) -> None:
        if not enable_rate_limit:
            settings.setdefault("preset", "own")
        self._is_limited = enable_rate_limit
        self._client = AsyncClient(**settings)

    @property
    def rate_limiter(self) -> RateLimiter | None:
        """The program's own limiter; None without `enable_rate_limit`."""
        return get_rate_limiter() if self._is_limited else None

    async def download(self, url: str, save_path: str | os.PathLike[str]) -> bool:
        """Save a URL as a file; True if it is there now, whole."""
        result = await self._client.download(url, save_path)
        if not result.ok:
            _log.warning("Not downloaded", url=url, reason=result.reason, message=result.message)
        return result.ok

    async def close(self) -> None:
        """Give back what is held open. Idempotent."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
