"""The log that every run has, `metrics.jsonl`, and the base class of loggers."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.records.files import finite

log = logging.getLogger(__name__)


class RunLogger(Logger):
    """Lightning's logger without versions, closed with the results of the run."""

    version = ""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        super().__init__()
        self.directory = Path(directory)

    @property
    def name(self) -> str:
        return type(self).__name__

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the settings are in `config.yaml`, and a logger is created with them."""

    def close(self, results: dict[str, Any]) -> None:
        """Close the log. `results` is what `results.json` holds; all files of the run are written."""


class JsonLines(RunLogger):
    """Appends one JSON object per line, in one write, so that a killed run leaves whole lines.

    Lines that cannot be written (a full disk) are kept, with a warning, and written with the next one.
    """

    unwritten = b""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line. Values that are not finite become null: JSON has no NaN."""
        line = finite({"step": step, **{key: value for key, value in metrics.items() if key != "epoch"}})
        self._write(json.dumps(line).encode() + b"\n")

    @rank_zero_only
    def close(self, results: dict[str, Any]) -> None:
        if self.unwritten:
            self._write(b"")

    def _write(self, line: bytes) -> None:
        path, warned = self.directory / "metrics.jsonl", bool(self.unwritten)
        self.unwritten += line
        try:
            with path.open("ab", buffering=0) as file:
                size = file.tell()
                if file.write(self.unwritten) < len(self.unwritten):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.unwritten = b""
        except OSError as error:
            if not warned:
                log.warning(
                    "%s cannot be written (%s); its lines are held back, training continues", path, error
                )
