"""`metrics.jsonl`: a line each time something is logged."""

import json
from pathlib import Path
from typing import Any

from txl.records.files import write_atomically


def read_metrics(directory: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` that have numbers for all of `keys`.

    A truncated last line is left out.

    Raises:
        ValueError: a line in the middle is damaged.
    """
    path = Path(directory) / "metrics.jsonl"
    if not path.exists():
        return []
    *whole, _torn = path.read_text("utf-8").split("\n")
    lines = []
    for number, line in enumerate(whole, 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path} is damaged in line {number} ({error}); delete that line") from error
    return [line for line in lines if all(line.get(key) is not None for key in keys)]


def truncate_metrics(path: Path, step: int) -> None:
    """Drop the lines of `metrics.jsonl` after a step: they will be logged again."""
    if path.exists():
        *lines, _torn = path.read_text("utf-8").split("\n")
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        write_atomically(path, "".join(f"{line}\n" for line in kept))
