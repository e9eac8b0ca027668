"""`logger=tensorboard`: event files under `tensorboard/` of the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities.rank_zero import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from txl.records.files import finite
from txl.training.loggers.jsonl import RunLogger


class TensorBoard(RunLogger):
    """Writes the metrics as scalars over the steps, the settings and the sample as text.

    Args:
        directory: of the run.
        config: the resolved settings.
    """

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        super().__init__()
        self.directory, self.config = Path(directory), config
        self.writer: SummaryWriter | None = None

    @property
    @rank_zero_only
    def experiment(self) -> SummaryWriter:
        """The writer; Lightning asks for it before training."""
        if self.writer is None:
            self.writer = SummaryWriter(str(self.directory / "tensorboard"))
            self.writer.add_text("config", f"```\n{json.dumps(self.config, indent=2)}\n```")
        return self.writer

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write each metric that is a number."""
        for name, value in finite(metrics).items():
            if value is not None:
                self.experiment.add_scalar(name, value, step)
        self.experiment.flush()

    def close(self, results: dict[str, Any]) -> None:
        """Add the sample, and write out what is waiting."""
        if self.writer is None:
            return
        sample = self.directory / "sample.txt"
        if sample.exists():
            self.writer.add_text("sample", f"```\n{sample.read_text('utf-8')}\n```")
        self.writer.close()
