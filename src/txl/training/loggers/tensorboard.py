"""`logger=tensorboard`: event files under `tensorboard/` of the run directory."""

import json
from pathlib import Path
from typing import Any

import tensorboard  # noqa: F401  here, so that a missing package is reported before training
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.records.files import finite


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, with the settings and the sample as text, and without its `hparams.yaml`."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        super().__init__(directory, name="tensorboard", version="")
        self.directory = Path(directory)
        self._add_text("config", json.dumps(config, indent=2))

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write each metric that is a finite number."""
        super().log_metrics({key: value for key, value in finite(metrics).items() if value is not None}, step)
        self.save()

    def save(self) -> None:
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Do nothing: Lightning finalizes after training, and `close` has more to write."""

    @rank_zero_only
    def close(self, results: dict[str, Any]) -> None:
        sample = self.directory / "sample.txt"
        if sample.exists():
            self._add_text("sample", sample.read_text("utf-8"))
        self.experiment.close()

    def _add_text(self, name: str, text: str) -> None:
        self.experiment.add_text(name, f"```\n{text}\n```")
