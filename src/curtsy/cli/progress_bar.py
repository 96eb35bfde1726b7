"""Progress bar of a download on a terminal."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, TaskID, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Columns

from curtsy.cli import console
from curtsy.cli.logs import logging_above
from curtsy.cli.trace import Event, Receiving
from curtsy.cli.trace_output import Progress
from curtsy.core.policy import Policies


class ProgressBar(Progress):
    """Listener that shows waits, then the progress of a download."""

    def __init__(self, policies: Policies) -> None:
        super().__init__(policies)
        self._bar: Columns | None = None
        self._task = TaskID(0)

    def __call__(self, event: Event) -> None:
        """Show one step."""
        if not isinstance(event, Receiving):
            super().__call__(event)
            return
        if not self._is_shown:
            return
        if self._bar is None:
            self.pause()
            self._bar = Columns(
                BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
                console=console.err(), transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._task = self._bar.add_task("")
            self._bar.start()
            self._above.enter_context(logging_above(self._bar.console))
        self._bar.update(self._task, total=event.total, completed=event.start + event.size)

    def pause(self) -> None:
        """Clear the bar before other output."""
        super().pause()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
