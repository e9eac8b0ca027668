"""`logger=wandb`: Weights & Biases, online where one is logged in and offline elsewhere. It never asks.

A run directory is one W&B run: its id is kept in `wandb/id` and taken up again when the run is resumed. All
files are in the run directory.
"""

from __future__ import annotations

import html
import logging
import os
import secrets
from pathlib import Path
from typing import Any

import wandb
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.settings.errors import ConfigError
from txl.training.loggers.jsonl import RunLogger

log = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0  # how long to try at the beginning before going on offline
UPLOAD_SECONDS = 120.0  # how long the end may wait for the upload; what is missing can be synced later
FILES = ("config.yaml", "results.json", "metrics.jsonl", "sample.txt", "figures/learning_curve.png")


class Wandb(RunLogger):
    """Logs to Weights & Biases, with the tokens read as the x axis.

    The variable WANDB_MODE (offline, disabled) has the last word on where it goes.

    Args:
        directory: of the run.
        config: the resolved settings.
        project: where runs are collected.
        entity: user or team; `None` for the default of who is logged in.
        name: what the run is called; `None` for the name of the settings and of the directory.
        group: runs that belong together; `None` for the sweep, if it is one.
        job_type: what the run is in its group; `None` for the row of the sweep.
        offline: do not connect even where one is logged in.

    Raises:
        ConfigError: a name, or a variable WANDB_…, that W&B does not take.
    """

    def __init__(
        self,
        directory: Path,
        config: dict[str, Any],
        project: str,
        entity: str | None,
        name: str | None,
        group: str | None,
        job_type: str | None,
        offline: bool,
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        sweep, row, called = sweep_of(self.directory)
        self.settings = {
            "project": project,
            "entity": entity,
            "name": name or f"{config['name']} {called}",
            "group": group or sweep,
            "job_type": job_type or row,
            "config": config,
        }
        self.run: wandb.Run | None = None
        try:
            said = wandb.Settings(project=project, entity=entity, mode="offline" if offline else "online")
            said.update_from_env_vars(os.environ)
        except (ValueError, wandb.Error) as error:
            raise ConfigError(
                f"logger=wandb: {refusal(error)}; correct it, or train without wandb"
            ) from error
        self.mode = {"run": "online", "shared": "online", "dryrun": "offline"}.get(said.mode, said.mode)

    @property
    @rank_zero_only
    def experiment(self) -> wandb.Run:
        """The W&B run; Lightning asks for it before training."""
        if self.run is None:
            self.run = self._start()
            self.run.define_metric("tokens")
            self.run.define_metric("*", step_metric="tokens")
        return self.run

    def _start(self) -> wandb.Run:
        """Begin the run, or go on with it if this directory has one already."""
        kept = self.directory / "wandb" / "id"
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            # An agent of W&B's own sweeps knows its run by an id that it gave.
            given = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
            kept.write_text(given or secrets.token_hex(4), "ascii")
        settings = self.settings | {"id": kept.read_text("ascii").strip(), "dir": self.directory}
        try:
            if self.mode == "online" and wandb.login(prompt=False, verify=False):
                run = wandb.init(mode="online", resume="allow", settings=quiet(), **settings)
                log.info("wandb: %s", run.url)
                return run
        except wandb.Error as error:
            wandb.teardown()  # it still holds the id
            lacking = "login" if isinstance(error, wandb.errors.AuthenticationError) else "connection"
            log.warning("wandb: no %s, logging offline: %s", lacking, str(error).splitlines()[0])
        mode = "disabled" if self.mode == "disabled" else "offline"
        run = wandb.init(mode=mode, settings=quiet(), **settings)
        if mode == "offline":
            log.info("wandb: offline; upload with: wandb sync %s", kept.parent)
        return run

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log one row. W&B counts its rows by itself: steps that a resumed run does again are no error."""
        self.experiment.log(
            {"step": step, **{key: value for key, value in metrics.items() if value is not None}}
        )

    def close(self, results: dict[str, Any]) -> None:
        """Add results, learning curve and sample, and end the run: as failed, unless it was completed."""
        if self.run is None:
            return
        try:
            self._add(results)
        finally:  # what could not be added (a full disk) must not change how the run ended
            self.run.finish(exit_code=0 if results["status"] == "completed" else 1)
            self.run = None

    def _add(self, results: dict[str, Any]) -> None:
        """Add results, learning curve, sample and the files of the run."""
        keys = ("status", "error", "model", "data", "training", "valid", "test")
        self.run.summary.update({key: results[key] for key in keys if results[key] is not None})
        files = [self.directory / name for name in FILES if (self.directory / name).exists()]
        shown: dict[str, Any] = {}
        for path in files:
            if path.name == "sample.txt":
                shown["sample"] = wandb.Html(
                    f"<pre>{html.escape(path.read_text('utf-8'))}</pre>", inject=False
                )
            if path.suffix == ".png":
                shown[path.stem] = wandb.Image(str(path))
        if shown:
            self.run.log({"tokens": results["training"]["tokens"], **shown})
        artifact = wandb.Artifact(f"run-{self.run.id}", type="run")
        for path in files:
            artifact.add_file(
                str(path), str(path.relative_to(self.directory)), skip_cache=True, policy="immutable"
            )
        self.run.log_artifact(artifact)


def quiet() -> wandb.Settings:
    """Return settings under which W&B neither prints, nor copies what is printed, nor waits for long."""
    return wandb.Settings(
        silent=True, console="off", init_timeout=CONNECT_SECONDS, finish_timeout=UPLOAD_SECONDS
    )


def refusal(error: Exception) -> str:
    """Return in one line which setting W&B refuses, and why."""
    if not hasattr(error, "errors"):
        return str(error).splitlines()[0]
    (first, *_) = error.errors()  # of pydantic
    return f"{'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}"


def sweep_of(directory: Path) -> tuple[str | None, str | None, str]:
    """Return the name of the sweep that a run directory belongs to, its row, and what to call the run."""
    for parent in directory.parents[:2]:
        if (parent / "sweep.json").exists():  # the sweep writes it before the first job
            place = directory.relative_to(parent)
            return parent.name, place.parts[0], " ".join(place.parts)
    return None, None, directory.name
