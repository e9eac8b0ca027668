"""What is shown on a terminal: the console that log, bars and tables share, and the progress of long work."""

import copy
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

log = logging.getLogger(__name__)

SILENT_SECONDS, LINE_SECONDS = 1.5, 15.0  # of ByteProgress


class QuietConsole(Console):
    """A console that falls silent when its reader has closed the pipe: `python train.py | head`."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = QuietConsole(highlight=False)


class ConsoleHandler(logging.Handler):
    """Writes log records to the shared console, above any progress bar, without wrapping lines.

    A record logged with `extra={"brief": True}` leaves its traceback to `train.log`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "brief", False):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        try:
            console.print(self.format(record), markup=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


def new_table(*headings: str, left: Collection[str] = (), **options: Any) -> Table:
    """Return a table without rows, its columns aligned right except those of `left`."""
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False, title_justify="left", **options)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    return table


@contextmanager
def progress_bar(
    description: str,
    total: float | None = None,
    visible: bool = True,
    completed: int = 0,
    columns: Sequence[ProgressColumn] = (),
) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error, if that is a terminal.

    Yields:
        A function that updates it, with the keywords of `rich.progress.Progress.update`: advance, completed,
        total, description.
    """
    errors = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        *(columns or (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())),
        console=errors,
        transient=True,
        disable=not (visible and errors.is_terminal),
    ) as bar:
        yield partial(bar.update, bar.add_task(description, total=total, completed=completed))


class ByteProgress(ExitStack):
    """A context that shows progress in bytes: a bar on a terminal, elsewhere a log line every 15 s.

    It shows nothing in the first 1.5 s.
    """

    def __init__(self, description: str, total: int | None = None, completed: int = 0) -> None:
        super().__init__()
        self.description, self.total, self.completed = description, total, completed
        self._started, self._logged = time.monotonic(), -math.inf
        self._update: Callable[..., None] | None = None

    def advance(self, count: int) -> None:
        self.completed += count
        now = time.monotonic()
        if self._update:
            self._update(completed=self.completed)
        elif now - self._started < SILENT_SECONDS:
            return
        elif Console(stderr=True).is_terminal:
            columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
            bar = progress_bar(self.description, self.total, completed=self.completed, columns=columns)
            self._update = self.enter_context(bar)
        elif now - self._logged > LINE_SECONDS:
            total = f" of {self.total / 1e6:,.0f}" if self.total else ""
            log.info("%s: %s%s MB", self.description, f"{self.completed / 1e6:,.0f}", total)
            self._logged = now
