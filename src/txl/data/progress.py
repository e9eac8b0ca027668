"""Progress of what takes longer than a moment: a bar in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import logging
import time

from rich import progress
from rich.console import Console

log = logging.getLogger(__name__)

SILENT_SECONDS, LINE_SECONDS = 1.5, 15.0


class Progress:
    """A context that shows how far something is: `advance(bytes)` counts.

    Args:
        title: what is done: "reading".
        total: bytes there will be; None if that is not known.
        begun: bytes that are done already.
    """

    def __init__(self, title: str, total: int | None = None, begun: int = 0) -> None:
        self.title, self.total, self.done = title, total, begun
        self.bar: progress.Progress | None = None

    def __enter__(self) -> Progress:
        self.began = self.printed = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, count: int) -> None:
        """Count bytes that are done, and show them once it takes longer."""
        self.done += count
        now = time.monotonic()
        if self.bar:
            self.bar.update(self.task, completed=self.done, total=self.total)
        elif now - self.began < SILENT_SECONDS:
            return
        elif (console := Console(stderr=True)).is_terminal:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
            )
            self.bar = progress.Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task(self.title, total=self.total, completed=self.done)
            self.bar.start()
        elif now - self.printed > LINE_SECONDS or self.printed == self.began:
            of = f" of {self.total / 1e6:,.0f}" if self.total else ""
            log.info("%s: %s%s MB", self.title, f"{self.done / 1e6:,.0f}", of)
            self.printed = now
