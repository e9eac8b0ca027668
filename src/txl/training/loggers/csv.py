"""`logger=csv`: the metrics as one table, `metrics.csv`, for a spreadsheet."""

import csv
from typing import Any

from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.records.metrics import read_metrics
from txl.training.loggers.jsonl import RunLogger


class Csv(RunLogger):
    """Writes `metrics.csv` from `metrics.jsonl` when the run ends, however it ends.

    Lightning's CSVLogger deletes the rows of the run that is resumed. Metrics that were not logged at a step,
    or not finite, are empty cells.
    """

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Do nothing: the metrics are in `metrics.jsonl`."""

    @rank_zero_only
    def close(self, results: dict[str, Any]) -> None:
        rows = read_metrics(self.directory)
        columns = dict.fromkeys(key for row in rows for key in row)
        with (self.directory / "metrics.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            writer.writerows(rows)
