"""PDFDownloader: saves files through the gate (Q8)."""

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
    """Downloader of PDFs and other files that returns only success or failure.

    With `enable_rate_limit`, `rate_limiter` is `get_rate_limiter()`, which the whole program shares (C15). Without it,
    there is no pace and no budget; requests still pass the gate, and robots.txt applies (C13). `AsyncClient.download`
    returns more details.
    """

    def __init__(self, enable_rate_limit: bool = True, **settings: Any) -> None:
        if not enable_rate_limit:
            settings.setdefault("preset", "own")
        self._is_limited = enable_rate_limit
        self._client = AsyncClient(**settings)

    @property
    def rate_limiter(self) -> RateLimiter | None:
        """Return the program's limiter; None without `enable_rate_limit`."""
        return get_rate_limiter() if self._is_limited else None

    async def download(self, url: str, save_path: str | os.PathLike[str]) -> bool:
        """Save a URL as a file; return whether the complete file is in place."""
        result = await self._client.download(url, save_path)
        if not result.ok:
            _log.warning("Not downloaded", url=url, reason=result.reason, message=result.message)
        return result.ok

    async def close(self) -> None:
        """Close the client. Idempotent."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
