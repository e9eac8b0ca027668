"""A sweep: every row with every seed, in one directory, going on where an earlier call ended.

The directory's name comes from the words of the command line, so that the same command finds it again. Jobs
that are completed are not repeated, those that were interrupted go on from their checkpoint, and those that
failed are tried again. `sweep.json` says which jobs there are; each has a run directory with its results.
"""

import importlib.util
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from txl.records.files import lock_directory, write_atomically
from txl.records.results import initial_results, read_status, record_outcome
from txl.report.render.tables import summary_of, write_tables
from txl.settings.errors import ConfigError
from txl.settings.overrides import quoted
from txl.sweeps.arguments import SweepArguments, ablation_of, parse
from txl.sweeps.definition import NO_ROW, with_missing_rows, with_variants
from txl.sweeps.dry_run import plan
from txl.sweeps.evaluations import SweepEvaluation, evaluations_of, run_evaluations
from txl.sweeps.jobs import Job, completed_runs, make_jobs, read_described, reuse, short_hash
from txl.sweeps.progress import SweepProgress
from txl.sweeps.worker import SWEEP, SweepStop
from txl.terminal import console


def sweep(context: HydraContext, task: TaskFunction, config: DictConfig, overrides: list[str]) -> None:
    """Run a sweep.

    Args:
        context: Hydra's.
        task: a launcher calls it with the settings of a job.
        config: the settings of the sweep itself.
        overrides: of the command line, without those of Hydra.

    Raises:
        ValueError: a mistake on the command line, or a directory that holds something else or is locked.
        SystemExit: a job failed (1), or a signal stopped the sweep (128 and its number).
    """
    arguments = parse(list(config.hydra.sweeper.command))
    ablation, rows = ablation_of(arguments) if arguments.ablation is not None else (None, {NO_ROW: []})
    if ablation and not rows and overrides:
        raise ConfigError(f"{ablation.name} trains nothing; leave out {overrides[0]}")
    check_launcher(config)
    jobs, variants = make_jobs(overrides, rows, context, config)
    described: dict[str, Any] = {
        "schema": 1,
        "name": ablation.name if ablation else name_of(jobs, config),
        "scale": ablation.scale if ablation else None,
        "words": arguments.command,
        "table": with_variants(ablation.table, variants) if ablation else None,
        "jobs": [
            {"row": job.row, "seed": job.seed, "directory": job.directory, "overrides": job.overrides}
            for job in jobs
        ],
    }
    directory = directory_of(described["name"], arguments, config)
    others = completed_runs(arguments.reuse) if arguments.reuse else []
    if arguments.dry_run:
        evaluations = evaluations_of(described["table"], described["jobs"])
        console.print(plan(jobs, evaluations, directory), soft_wrap=True)
        return
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(directory, 2.0, "hydra.sweep.dir")
    try:
        earlier = previous_call(directory, jobs, described)
        if arguments.reuse:
            linked = reuse(jobs, directory, others)
            console.print(f"{linked} jobs are runs of {arguments.reuse}", markup=False, soft_wrap=True)
        todo, evaluations = begin(directory, jobs, described, earlier)
        received = run_jobs(directory, jobs, todo, (context, task, config))
        statuses = ["to do"] * len(evaluations)
        if not received:
            statuses, received = run_evaluations(directory, evaluations)
    finally:
        os.close(lock)
    conclude(directory, jobs, statuses, received)


def check_launcher(config: DictConfig) -> None:
    """Raise ConfigError if the launcher's package is not installed."""
    package = str(config.hydra.launcher._target_).rpartition(".")[0]
    found = None
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(package)
    if found is None:
        choice = config.hydra.runtime.choices["hydra/launcher"]
        raise ConfigError(
            f"hydra/launcher={choice} needs a package; install it with: pip install 'txl[sweeps]'"
        )


def name_of(jobs: list[Job], config: DictConfig) -> str:
    """Return the name of an ordinary sweep: that of its runs if they agree, else that of the data."""
    names = {job.config["name"] for job in jobs if job.config}
    return names.pop() if len(names) == 1 else str(config.hydra.runtime.choices["data"])


def directory_of(name: str, arguments: SweepArguments, config: DictConfig) -> Path:
    """Return the directory of a sweep, which does not depend on how its jobs are launched.

    Raises:
        ConfigError: there is a file in its place.
    """
    if any(word.startswith("hydra.sweep.dir=") for word in config.hydra.overrides.hydra):
        directory = Path(config.hydra.sweep.dir).absolute()
        existing = next(place for place in (directory, *directory.parents) if place.exists())
        if not existing.is_dir():
            raise ConfigError(
                f"hydra.sweep.dir={config.hydra.sweep.dir}: {existing} is a file; name a directory for the "
                "sweep"
            )
        return directory
    ignored = ("hydra.", "hydra/", "--dry-run", "-m", "--multirun", "ablation.reuse=")
    words = [word for word in arguments.command if not word.startswith(ignored)]
    return Path("multirun", f"{name}-{short_hash(words)}").absolute()


def previous_call(directory: Path, jobs: list[Job], described: dict[str, Any]) -> dict[str, Any]:
    """Return the `sweep.json` of an earlier call; empty if there is none. Nothing is changed.

    Raises:
        ValueError: the directory holds another sweep, or runs with other settings.
    """
    earlier = read_described(directory) if (directory / SWEEP).exists() else {}
    for key in ("name", "scale") if earlier else ():
        if earlier[key] != described[key]:
            raise ValueError(
                f"{directory} holds a sweep with {key} {earlier[key]}, not {described[key]}; choose "
                "another directory: hydra.sweep.dir=…"
            )
    for job in jobs:
        job.check_directory(directory / job.directory)
    return earlier


def begin(
    directory: Path, jobs: list[Job], described: dict[str, Any], earlier: dict[str, Any]
) -> tuple[list[Job], list[SweepEvaluation]]:
    """Write `sweep.json` and return the jobs to run and the evaluations.

    Other jobs of an earlier call stay in `sweep.json`. A job that cannot be composed fails here.
    """
    known = {job["directory"] for job in described["jobs"]}
    others = [job for job in earlier.get("jobs", ()) if job["directory"] not in known]
    described["jobs"] += [job for job in others if read_status(directory / job["directory"])]
    unfinished = [job for job in jobs if job.check_directory(directory / job.directory) != "completed"]
    if described["table"]:
        described["table"] = with_missing_rows(described["jobs"], described["table"], earlier.get("table"))
    evaluations = evaluations_of(described["table"], described["jobs"])
    described["evaluations"] = [asdict(evaluation) for evaluation in evaluations]
    write_atomically(directory / SWEEP, json.dumps(described, indent=2) + "\n")
    for job in unfinished:
        if job.error is not None:
            initial = initial_results(described["name"], job.seed, job.overrides, None)
            record_outcome(directory / job.directory, "failed", job.error, True, initial)
            console.print(f"{job.row} seed {job.seed}  cannot run: {job.error}", markup=False, soft_wrap=True)
    return [job for job in unfinished if job.error is None], evaluations


def run_jobs(
    directory: Path, jobs: list[Job], todo: list[Job], hydra: tuple[HydraContext, TaskFunction, DictConfig]
) -> int | None:
    """Let a launcher run jobs, and return the signal that stopped it, if one did."""
    context, task, config = hydra
    failed = sum(job.error is not None for job in jobs)
    done = len(jobs) - len(todo) - failed
    notes = f", {done} of them done already" if done else ""
    notes += "; the output of each is in its console.log" if todo else ""
    console.print(f"{len(jobs)} jobs in {os.path.relpath(directory)}{notes}", markup=False, soft_wrap=True)
    if not todo:
        return None
    config.hydra.sweep.dir = str(directory)
    for launchers in ("hydra", "hydra_plugins"):  # both log every job that they launch
        logging.getLogger(launchers).setLevel(logging.WARNING)
    with SweepStop(directory) as stop, SweepProgress(directory, todo, len(jobs) - len(todo), failed):
        launcher = Plugins.instance().instantiate_launcher(context, task, config)
        place = f"hydra.sweep.dir={quoted(directory)}"
        words = [[*job.overrides, place, f"hydra.sweep.subdir={quoted(job.directory)}"] for job in todo]
        try:
            returned = launcher.launch(words, initial_job_idx=0)
        except SystemExit:  # a second signal, after which the launcher has killed its workers
            for job in todo:
                if read_status(directory / job.directory):
                    name = signal.Signals(stop.received or signal.SIGTERM).name
                    record_outcome(directory / job.directory, "interrupted", f"stopped by {name}")
            raise
        except Exception as error:  # the launcher's own: of a worker or a job of SLURM that was killed
            console.print(f"the launcher failed: {error}", markup=False, soft_wrap=True, style="red")
            returned = []
        for job, result in zip(todo, returned, strict=False):
            if result.status == JobStatus.FAILED:  # around the job and not in it
                initial = initial_results(None, job.seed, job.overrides, job.config)
                record_outcome(directory / job.directory, "failed", str(result._return_value), True, initial)
    return stop.received


def conclude(directory: Path, jobs: list[Job], evaluations: list[str], received: int | None) -> None:
    """Write the tables and print what is missing; the exit code is 0 if nothing is."""
    statuses = [read_status(directory / job.directory) for job in jobs]
    summary = _count("jobs", statuses) + (f"; {_count('evaluations', evaluations)}" if evaluations else "")
    complete = {*statuses, *evaluations} <= {"completed"}
    if received and not complete:
        console.print(f"stopped; {summary}. Run the same command to continue", soft_wrap=True)
        sys.exit(128 + received)
    console.print(summary if complete else f"{summary}. Run the same command to retry the rest")
    paths = write_tables(directory)
    console.print(summary_of(directory, console.width))
    for path in paths:
        console.print(f"{path.name:>12}  {os.path.relpath(path)}", soft_wrap=True)
    if not complete:
        sys.exit(1)


def _count(kind: str, statuses: Sequence[str | None]) -> str:
    done, failed = statuses.count("completed"), statuses.count("failed")
    return f"{done} of {len(statuses)} {kind} done" + (f", {failed} failed" if failed else "")
