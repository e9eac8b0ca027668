"""The run directory: what a run leaves behind, whatever happens to it.

`results.json` is there from the first moment, saying "interrupted", and is replaced as the run goes on; every
file is written beside its place and renamed, so that a run killed at any moment leaves whole files.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

import txl
from txl.data import Corpus
from txl.evaluation.scores import ScoreSum, bits, perplexity
from txl.report import draw_learning_curve
from txl.training.config import Evaluation
from txl.training.guard import DivergedError
from txl.training.interruption import Interrupted, Interruption
from txl.training.metrics import RunLogger, finite

log = logging.getLogger(__name__)

SCHEMA = 1
# What is wrong with the input and not with the program: one line is enough, the traceback goes to train.log.
INPUT_ERRORS = (ValueError, OSError, ImportError, MisconfigurationException)


class Run:
    """A run directory as a context: inside it the run happens, and at its end `results.json` is written.

    Args:
        directory: of the run; it must not hold an earlier one.
        settings: the composed settings. Only resolved values are stored.
        overrides: what the user changed on the command line.
        home: where the user stood; paths are shown from there.
    """

    def __init__(self, directory: Path, settings: DictConfig, overrides: list[str], home: Path) -> None:
        self.directory, self.home = Path(directory), Path(home)
        self.claimed = False  # whether the directory is this run's, to be written in
        self.preparing = True  # until the first step an error is the input's, and one line
        self.interruption = Interruption(str(self.checkpoints / "last.ckpt"))
        self.loggers: list[RunLogger] = []
        self.results: dict[str, Any] = {
            "schema": SCHEMA,
            "name": settings.get("name"),
            "status": "interrupted",
            "error": "the process was killed",
            "seed": settings.get("seed"),
            "overrides": overrides,
            "config": OmegaConf.to_container(settings, resolve=True),
            "model": None,
            "data": None,
            "training": None,
            "valid": None,
            "test": None,
            "versions": versions(),
            "git": git(Path(__file__).parent),
            "finished_at": None,
        }
        self.settings = settings

    def claim(self) -> None:
        """Make the directory this run's: write its first `results.json`, and `config.yaml`.

        Raises:
            ValueError: it holds a run already.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            write_whole(self.directory / "results.json", self.as_json(), new=True)
        except FileExistsError:
            raise ValueError(f"{self.directory} holds a run already; choose another hydra.run.dir") from None
        self.claimed = True
        write_whole(self.directory / "config.yaml", OmegaConf.to_yaml(self.settings, resolve=True))

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.directory / "checkpoints"

    def record(self, **parts: Any) -> None:
        """Set parts of the results and write them."""
        self.results.update(parts)
        self.write()

    def record_data(self, corpus: Corpus) -> None:
        """Record which tokens are read."""
        data = {
            "name": corpus.name,
            "unit": corpus.unit,
            "sha256": corpus.sha256,
            "vocabulary": len(corpus.vocabulary),
            "tokens": {split: len(tokens) for split, tokens in corpus.tokens.items()},
        }
        self.record(data=data)

    def record_scores(self, split: str, scores: ScoreSum, unit: str, settings: Evaluation) -> None:
        """Record the score of a split and the settings it was measured under."""
        score = {
            "loss": scores.loss,
            "perplexity": perplexity(scores.loss),
            "bits_per_character": bits(scores.loss) if unit in ("byte", "char") else None,
            "tokens_scored": scores.count,
            "segment_length": settings.segment_length,
            "memory_length": settings.memory_length,
            "attention_length": settings.longest_attention,
            "clamp_length": settings.clamp_length,
            "half_loss": settings.loss == "half",
            "batch_size": settings.batch_size,
        }
        self.record(**{split: score})

    def write(self) -> None:
        """Write `results.json`, whole or not at all."""
        write_whole(self.directory / "results.json", self.as_json())

    def as_json(self) -> str:
        """Return the results as JSON, which has no nan and no infinity: they become null."""
        return json.dumps(finite(self.results), indent=2) + "\n"

    def __enter__(self) -> Run:
        """Claim the directory, once the signals are handled: whoever sees `results.json` may interrupt."""
        self.interruption.__enter__()
        try:
            self.claim()
        except BaseException as error:
            if self.claimed:
                self.__exit__(type(error), error, error.__traceback__)
            self.interruption.__exit__()
            if isinstance(error, Interrupted):
                raise SystemExit(128 + error.signal_number) from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how it ended, write it down, and leave with an exit code that is not 0 unless all went well."""
        self.interruption.__exit__()
        try:
            self._conclude(kind, error, trace)
        finally:
            self._close_loggers()

    def _conclude(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.results["finished_at"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        if error is None:
            self.record(status="completed", error=None)
            return
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt, SIGTERMException))
        message = str(error) or kind.__name__
        self.record(status="interrupted" if stopped else "failed", error=message)
        if self.results["model"] and self.results["training"]:
            draw_learning_curve(self.directory)
        if stopped:
            kept = self.checkpoints / "last.ckpt"
            log.warning(
                "interrupted: %s; %s", message, f"kept {kept}" if kept.exists() else "no checkpoint yet"
            )
            raise SystemExit(128 + getattr(error, "signal_number", 15)) from None
        if isinstance(error, DivergedError) or (self.preparing and isinstance(error, INPUT_ERRORS)):
            log.error("error: %s", message, exc_info=(kind, error, trace), extra={"brief": True})
        else:
            log.error("failed; results so far are in %s", self.directory, exc_info=(kind, error, trace))
        raise SystemExit(1) from None

    def _close_loggers(self) -> None:
        """Tell the loggers how it ended. What goes wrong there takes nothing away from a run that is over."""
        for logger in self.loggers:
            try:
                logger.close(self.results)
            except Exception as error:
                log.warning("logger %s could not be closed: %s", logger.name, error, exc_info=True)


def write_whole(path: Path, text: str, new: bool = False) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees a part of it.

    Raises:
        FileExistsError: it exists though it should be new.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if new:
        try:
            os.link(part, path)  # unlike a renaming, refuses what exists: of two processes one wins
        finally:
            part.unlink()
    else:
        part.replace(path)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"txl": txl.__version__, "python": platform.python_version()}
    for package in ("torch", "pytorch-lightning", "hydra-core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def git(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the code and whether it was changed since; `None` outside a checkout."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
