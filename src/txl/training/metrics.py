"""The log of a run: `metrics.jsonl`, a line each time something is logged, always."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only


class JsonLines(Logger):
    """Appends one JSON object a line. A line is written in one piece, so a killed run leaves whole lines.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = Path(path)

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return "jsonl"

    @property
    def version(self) -> str:
        """There is one version: the file."""
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line: the step and the metrics; what is not finite becomes null, for JSON has no nan."""
        line = finite({"step": step, **{key: value for key, value in metrics.items() if key != "epoch"}})
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The settings are in `config.yaml`."""


def finite(value: Any) -> Any:
    """Return plain JSON values, what is not finite as `None`."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
