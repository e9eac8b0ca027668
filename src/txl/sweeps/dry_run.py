"""`-m --dry-run`: every job of a sweep with its overrides, cost and status."""

import json
import os
from pathlib import Path

from omegaconf import OmegaConf
from rich.text import Text

from txl.runs.cost import describe
from txl.sweeps.evaluations import SweepEvaluation
from txl.sweeps.jobs import Job


def plan(jobs: list[Job], evaluations: list[SweepEvaluation], sweep: Path) -> Text:
    """Return the plan of a sweep to print, two lines a job."""
    common = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs)) if len(jobs) > 1 else set()
    shared = [word for word in jobs[0].overrides if word in common] if jobs else []
    lines = [Text(f"{len(jobs)} jobs in {os.path.relpath(sweep)}" + (", all with" if shared else ""))]
    lines += [Text(f"    {' '.join(shared)}", "dim")] if shared else []
    width = max((len(job.row) for job in jobs), default=0)
    operations = 0.0
    costs: dict[str, tuple[str, float]] = {}
    for job in jobs:
        status = job.check_directory(sweep / job.directory)
        text = f"cannot run: {job.error}"
        if job.config is not None:
            key = json.dumps({**job.config, "seed": None}, sort_keys=True)  # seeds cost the same
            cost, flops = costs[key] = costs.get(key) or cost_of(job)
            operations += flops if status != "completed" else 0.0
            text = f"{status or 'to do'}  {cost}"
        lines.append(Text(f"{job.row:<{width}}  ", "bold") + Text(f"seed {job.seed}  {text}"))
        lines.append(Text(f"    {' '.join(word for word in job.overrides if word not in common)}", "dim"))
    for one in evaluations:
        lines.append(Text("then  ", "bold") + Text(f"txl {one.verb} {' '.join(one.jobs)}"))
        lines.append(Text(f"    {' '.join(one.settings)}", "dim"))
    lines.append(Text(f"to do: {operations:.2e} operations of training; nothing was started (--dry-run)"))
    return Text("\n").join(lines)


def cost_of(job: Job) -> tuple[str, float]:
    """Return the cost of a job, as text and in training operations; 0 where it is unknown."""
    try:
        cost = describe(OmegaConf.create(job.config))
    except (ValueError, OSError, ImportError) as error:
        return f"cost unknown: {error}", 0.0
    operations = cost["training_flops"]
    return f"{cost['parameters']:,} parameters, {operations:.2e} operations", operations
