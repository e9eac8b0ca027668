"""One console for the log, the progress bar and the tables, so that they do not write over each other."""

from __future__ import annotations

import copy
import logging
import os
import sys

from rich.console import Console


class QuietConsole(Console):
    """A console that goes on in silence when whoever read it has gone: `python train.py | head`."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = QuietConsole(highlight=False)


class ConsoleHandler(logging.Handler):
    """Writes log records to the shared console, above a bar that may be there, and never breaks a line.

    A record logged with `extra={"brief": True}` leaves its traceback to `train.log`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if getattr(record, "brief", False):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        try:
            console.print(self.format(record), markup=False, soft_wrap=True)
        except Exception:
            self.handleError(record)
