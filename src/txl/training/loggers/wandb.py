"""`logger=wandb`: Weights & Biases, online if the user is logged in, offline otherwise.

A run directory is one W&B run: its id is kept in `wandb/id`, and a resumed run continues it. Lightning's
WandbLogger would prompt for a login, which stops an unattended run.
"""

import html
import logging
import os
import secrets
from pathlib import Path
from typing import Any

import wandb
from pydantic import ValidationError
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from txl.settings.errors import ConfigError
from txl.training.loggers.jsonl import RunLogger

log = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0  # before it logs offline
UPLOAD_SECONDS = 120.0  # to wait for the upload at the end; the rest can be synced later
FILES = ("config.yaml", "results.json", "metrics.jsonl", "sample.txt", "figures/learning_curve.png")


class Wandb(RunLogger):
    """Logs to Weights & Biases, with the tokens read as the x axis; `conf/logger/wandb.yaml` has the options.

    The variable WANDB_MODE (offline, disabled) overrides `offline`.

    Raises:
        ConfigError: W&B rejects a name or a variable WANDB_….
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
        super().__init__(directory, config)
        sweep, row, run_name = sweep_of(self.directory)
        self.settings: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "name": name or f"{config['name']} {run_name}",
            "group": group or sweep,
            "job_type": job_type or row,
            "config": config,
        }
        self.run: Any = None  # the W&B run, once started
        try:
            options = wandb.Settings(project=project, entity=entity, mode="offline" if offline else "online")
            options.update_from_env_vars(dict(os.environ))
        except (ValueError, wandb.Error) as error:
            problem = str(error).splitlines()[0]
            if isinstance(error, ValidationError):  # which setting W&B rejects, and why
                first = error.errors()[0]
                problem = f"{'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}"
            raise ConfigError(f"logger=wandb: {problem}; correct it, or train without wandb") from error
        self.mode = {"run": "online", "shared": "online", "dryrun": "offline"}.get(options.mode, options.mode)

    @property
    def experiment(self) -> wandb.Run:
        """The W&B run; Lightning asks for it before training."""
        if self.run is None:
            self.run = self._start()
            self.run.define_metric("tokens")
            self.run.define_metric("*", step_metric="tokens")
        return self.run

    def _start(self) -> wandb.Run:
        """Start a run, or continue that of this directory."""
        id_file = self.directory / "wandb" / "id"
        if not id_file.exists():
            id_file.parent.mkdir(exist_ok=True)
            # An agent of a W&B sweep identifies its run by the id that it assigned.
            assigned = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
            id_file.write_text(assigned or secrets.token_hex(4), "ascii")
        quiet = {"silent": True, "console": "off"}
        waits = {"init_timeout": CONNECT_SECONDS, "finish_timeout": UPLOAD_SECONDS}
        settings = self.settings | {"dir": self.directory, "settings": quiet | waits}
        settings["id"] = id_file.read_text("ascii").strip()
        try:
            if self.mode == "online" and wandb.login(prompt=False, verify=False):
                run = wandb.init(mode="online", resume="allow", **settings)
                log.info("wandb: %s", run.url)
                return run
        except wandb.Error as error:
            wandb.teardown()  # otherwise the id stays in use
            missing = "login" if isinstance(error, wandb.errors.AuthenticationError) else "connection"
            log.warning("wandb: no %s, logging offline: %s", missing, str(error).splitlines()[0])
        mode: Any = "disabled" if self.mode == "disabled" else "offline"
        run = wandb.init(mode=mode, **settings)
        if mode == "offline":
            log.info("wandb: offline; upload with: wandb sync %s", id_file.parent)
        return run

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log one row. W&B numbers rows itself, so a resumed run can repeat steps."""
        known = {key: value for key, value in metrics.items() if value is not None}
        self.experiment.log({"step": step, **known})

    def close(self, results: dict[str, Any]) -> None:
        """Add results, learning curve and sample, and finish the run, as failed unless it is completed."""
        if self.run is None:
            return
        try:
            self._add(results)
        finally:  # even if something could not be added (a full disk)
            self.run.finish(exit_code=0 if results["status"] == "completed" else 1)
            self.run = None

    def _add(self, results: dict[str, Any]) -> None:
        keys = ("status", "error", "model", "data", "training", "valid", "test")
        self.run.summary.update({key: results[key] for key in keys if results[key] is not None})
        files = [self.directory / name for name in FILES if (self.directory / name).exists()]
        shown: dict[str, Any] = {}
        for path in files:
            if path.name == "sample.txt":
                text = html.escape(path.read_text("utf-8"))
                shown["sample"] = wandb.Html(f"<pre>{text}</pre>", inject=False)
            if path.suffix == ".png":
                shown[path.stem] = wandb.Image(str(path))
        if shown:
            self.run.log({"tokens": results["training"]["tokens"], **shown})
        artifact = wandb.Artifact(f"run-{self.run.id}", type="run")
        for path in files:
            name = str(path.relative_to(self.directory))
            artifact.add_file(str(path), name, skip_cache=True, policy="immutable")
        self.run.log_artifact(artifact)


def sweep_of(directory: Path) -> tuple[str | None, str | None, str]:
    """Return the sweep that a run directory belongs to, its row, and a name for the run."""
    for parent in directory.parents[:2]:
        if (parent / "sweep.json").exists():  # which a sweep writes before its first job
            place = directory.relative_to(parent)
            return parent.name, place.parts[0], " ".join(place.parts)
    return None, None, directory.name
