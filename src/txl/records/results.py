"""`results.json`: what every run leaves, whatever happens to it.

Its status is "running" while the run is alive, then "completed", "interrupted" or "failed". A killed run
cannot change it: a run that says "running" though no process holds its directory's lock was interrupted.
"""

import json
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import txl
from txl.records.files import finite, is_locked, write_atomically
from txl.records.units import bits, perplexity


def initial_results(
    name: str | None, seed: int | None, overrides: list[str], config: dict | None
) -> dict[str, Any]:
    """Return the results of a run that begins, with all settings resolved if they can be composed."""
    return {
        "schema": 1,
        "name": name,
        "status": "running",
        "error": None,
        "seed": seed,
        "overrides": overrides,
        "config": config,
        **dict.fromkeys(("model", "data", "training", "valid", "test", "attention")),
        "versions": versions(),
        "git": git(Path(__file__).parent),
        "finished_at": None,
    }


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def score_entry(scores: Any, unit: str, settings: Any) -> dict[str, Any]:
    """Return a score for `results.json`, with the settings of its evaluation."""
    return {
        "loss": scores.loss,
        "perplexity": perplexity(scores.loss),
        "bits_per_character": bits(scores.loss) if unit in ("byte", "char") else None,
        "tokens_scored": scores.count,
        "segment_length": settings.segment_length,
        "memory_length": settings.memory_length,
        "attention_length": settings.longest_attention,
        "clamp_length": settings.clamp_length,
        "half_loss": settings.loss == "half",
        "stride": settings.step,
        "batch_size": settings.batch_size,
    }


def versions() -> dict[str, str]:
    found = {"txl": txl.__version__, "python": platform.python_version()}
    for package in ("torch", "pytorch-lightning", "hydra-core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def git(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the code and whether it has changes; `None` outside a checkout."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def write_results(directory: Path, results: dict[str, Any]) -> None:
    """Write `results.json`, whole or not at all; nan and infinity, which JSON lacks, become null."""
    write_atomically(Path(directory) / "results.json", json.dumps(finite(results), indent=2) + "\n")


def read_results(directory: Path) -> dict[str, Any]:
    """Return `results.json` of a run, with the status that it has by now.

    Raises:
        ValueError: it is damaged.
    """
    results = _load(directory)
    if results["status"] == "running" and not is_locked(directory):
        results |= {"status": "interrupted", "error": "the process was killed"}
    return results


def _load(directory: Path) -> dict[str, Any]:
    path = Path(directory) / "results.json"
    try:
        results = json.loads(path.read_text("utf-8"))
        return results | {"status": results["status"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it, or delete it to start the run "
            "again"
        ) from error


def read_status(directory: Path) -> str | None:
    """Return the status of a run; `None` if it has not begun."""
    return read_results(directory)["status"] if (Path(directory) / "results.json").exists() else None


def record_outcome(
    directory: Path, status: str, message: str, replace: bool = False, initial: dict[str, Any] | None = None
) -> None:
    """Record how a run ended where its first process cannot.

    Args:
        replace: overwrite what a process of the run has recorded.
        initial: the results to begin with if the run left none, because it never had a process.
    """
    begun = initial is None or (Path(directory) / "results.json").exists()
    results: Any = _load(directory) if begun else initial
    Path(directory).mkdir(parents=True, exist_ok=True)
    if replace or results["status"] == "running":
        write_results(directory, results | {"status": status, "error": message, "finished_at": utc_now()})
