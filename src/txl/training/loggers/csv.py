"""`logger=csv`: the metrics as one table, `metrics.csv`, for a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.records.files import finite
from txl.training.loggers.jsonl import RunLogger


class Csv(RunLogger):
    """Writes a row each time something is logged; what was not logged then, or is not finite, is left empty.

    A metric that was never logged before gets a new column at the end. A resumed run replaces the rows of the
    steps that it does again.

    Args:
        directory: of the run.
        config: the settings; they are in `config.yaml` and not here.
    """

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        super().__init__()
        self.path = Path(directory) / "metrics.csv"
        self.columns: list[str] = []

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a row."""
        row = finite({"step": step, **metrics})
        if not row.keys() <= set(self.columns):
            self._add_columns(row)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def _add_columns(self, row: dict[str, Any]) -> None:
        """Write the rows that are there again, with room for those keys of `row` that are new."""
        rows = []
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        if not self.columns:  # the first row that this process logs
            rows = [old for old in rows if int(old["step"]) < row["step"]]
        self.columns = list(dict.fromkeys([*(rows[0] if rows else []), *self.columns, *row]))
        part = self.path.with_suffix(".part")
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        part.replace(self.path)
