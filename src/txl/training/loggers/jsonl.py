"""The log of a run: `metrics.jsonl`, a line each time something is logged, always; and what loggers share."""

from __future__ import annotations

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
    """What a logger of a run is: Lightning's, without names and versions, and told how the run ended."""

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return type(self).__name__

    @property
    def version(self) -> str:
        """There is one version: the run directory."""
        return ""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The settings are in `config.yaml`; a logger that shows them takes them when it is made."""

    def close(self, results: dict[str, Any]) -> None:
        """End the log. `results` is what `results.json` holds; all files of the run are there."""


class JsonLines(RunLogger):
    """Appends one JSON object a line. A line is written in one piece, so a killed run leaves whole lines.

    What cannot be written (a full disk) is said, and written with the next line.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.unwritten = Path(path), b""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line: the step and the metrics; what is not finite becomes null, for JSON has no nan."""
        line = finite({"step": step, **{key: value for key, value in metrics.items() if key != "epoch"}})
        self._write(json.dumps(line).encode() + b"\n")

    @rank_zero_only
    def close(self, results: dict[str, Any]) -> None:
        """Write what could not be written."""
        if self.unwritten:
            self._write(b"")

    def _write(self, line: bytes) -> None:
        said, self.unwritten = bool(self.unwritten), self.unwritten + line
        try:
            with self.path.open("ab", buffering=0) as file:
                size = file.tell()
                if file.write(self.unwritten) < len(self.unwritten):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.unwritten = b""
        except OSError as error:
            if not said:
                log.warning("%s cannot be written (%s); its lines wait, training goes on", self.path, error)
