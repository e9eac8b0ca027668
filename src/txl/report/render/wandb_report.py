"""`txl report DIR… --wandb`: a W&B report and workspace of a sweep, published or written to a file.

The runs of a sweep are a W&B group, and their job type is the row (see `txl.training.loggers.wandb`). Report
and workspace show the runs of the group; each panel has one line per row: mean and deviation over its seeds.
W&B is imported only when asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.report.grids import report_of
from txl.report.measures import at
from txl.report.records import RunRecord, Sweep
from txl.report.render.formats import markdown
from txl.report.sweeps import read_sweeps

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

NAME = "wandb_report.json"
SCHEMA = 1
X = "tokens"  # the x axis of all panels
TITLE_LENGTH = 128  # the longest that W&B takes
PANELS = {  # by section: the metrics as runs log them; SCORE is bits, perplexity or loss
    "Learning curves": ("train/SCORE", "gradient_norm", "learning_rate"),
    "Validation": ("valid/SCORE", "valid/loss"),
    "Throughput": ("tokens_per_second", "valid/tokens_per_second", "data_wait_share"),
    "Memory": ("peak_memory_bytes", "used_memory_bytes", "memory_length"),
}


def publish(
    directories: list[Path], out: Path, project: str | None = None, entity: str | None = None
) -> list[str]:
    """Publish a sweep's report and workspace on W&B if someone is logged in; write them to a file otherwise.

    It never prompts, and without a login or with WANDB_MODE=offline it opens no connection.

    Args:
        out: the directory of the file.
        project: in W&B; `None` for the project of the runs.
        entity: its user or team; `None` for that of the runs, or the default of the login if they name none.

    Returns:
        Lines to print: where report and workspace are, or where the file is and how to publish it.

    Raises:
        ImportError: a package is missing.
        ValueError: the project or the group of the runs is unknown; or see `txl.report.sweeps.read_sweeps`.
    """
    for package in ("wandb", "wandb_workspaces"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"--wandb needs the package {package}; install it with: pip install 'txl[wandb]'"
            )
    sweep = read_sweeps(directories)
    runs = sweep.runs
    project = _given_or_logged("project", project, runs)
    entity = _given_or_logged("entity", entity, runs)
    if project is None:
        raise ValueError(
            "no run was logged to W&B (logger=wandb); name the project with --wandb-project=NAME"
        )
    both = build(sweep, _groups(runs), project, entity or "")
    file = out / NAME
    lines, why = [], "W&B is offline: not logged in, or WANDB_MODE=offline"
    steps = ["wandb login"]
    with contextlib.redirect_stderr(io.StringIO()):  # what W&B prints there is in the lines returned
        try:
            import wandb

            if wandb.login(prompt=False, verify=False):  # needs no connection
                steps = []
                entity = entity or wandb.Api().default_entity or ""
                for made in both:
                    made.entity = entity
                    made.save()
                    lines.append(f"W&B {type(made).__name__.lower()}: {made.url}")
                return lines
        except Exception as error:  # W&B's packages have no base class for their exceptions
            reason = str(error).splitlines() or [type(error).__name__]
            why = f"W&B could not be reached: {reason[0]}"
    file.write_text(json.dumps(specification(*both), indent=1) + "\n", "utf-8")
    if any(any((run.directory / "wandb").glob("offline-run-*")) for run in runs):
        steps.append(f"wandb sync $(find {' '.join(map(str, directories))} -name 'offline-run-*')")
    return [*lines, why, str(file), "to publish it: " + "; ".join([*steps, "this command again"])]


def build(sweep: Sweep, groups: list[str], project: str, entity: str) -> tuple[Report, Workspace]:
    """Return the report and the workspace of a sweep without connecting to W&B."""
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces
    from wandb_workspaces.expr import Metric

    # As text: the package's own way to write an expression breaks at quotation marks in a name.
    filters = f"Metric('Group') in {groups!r}"
    table = report_of(sweep)
    title = sweep.title[:TITLE_LENGTH]
    lines = max(10, len(sweep.runs))  # W&B's default is ten
    blocks: list[Any] = [reports.MarkdownBlock(markdown(table))]
    sections = []

    def panels(names: Iterable[str]) -> list[Any]:
        return [
            reports.LinePlot(
                title=name.replace("_", " ").replace("/", ": "),
                x=X,
                y=[name],
                log_y=name.endswith("/perplexity") or None,
                groupby="JobType",
                groupby_aggfunc="mean",
                groupby_rangefunc="stddev",
                max_runs_to_show=lines,
            )
            for name in names
        ]

    for section, templates in PANELS.items():
        names = dict.fromkeys(template.replace("SCORE", table.metric.logged) for template in templates)
        runset = reports.Runset(name=section, filters=filters, groupby=["JobType"])
        axis = workspaces.SectionPanelSettings(x_axis=X)
        blocks += [reports.H2(section), reports.PanelGrid(runsets=[runset], panels=panels(names))]
        sections.append(workspaces.Section(section, panels(names), is_open=True, panel_settings=axis))
    return (
        reports.Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid"),
        workspaces.Workspace(
            entity=entity,
            project=project,
            name=title,
            sections=sections,
            settings=workspaces.WorkspaceSettings(x_axis=X, max_runs=lines),
            runset_settings=workspaces.RunsetSettings(filters=filters, groupby=[Metric("JobType")]),
        ),
    )


def specification(report: Report, workspace: Workspace) -> dict[str, Any]:
    """Return both as W&B stores them: plain JSON."""

    def stored(made: Report | Workspace) -> dict[str, Any]:
        model = made._to_model()  # there is no public way
        spec = model.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"displayName": model.display_name, "spec": spec}

    where = {"project": report.project, "entity": report.entity or None}
    return {"schema": SCHEMA, **where, "report": stored(report), "workspace": stored(workspace)}


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return a run's settings of `logger=wandb`; empty if it did not log there."""
    return at(run.results, "config", "logger", "wandb") or {}


def _given_or_logged(name: str, given: str | None, runs: list[RunRecord]) -> str | None:
    """Return the project or entity: the given one, or else the one that all runs were logged to."""
    found = list(dict.fromkeys(settings.get(name) for run in runs if (settings := _settings(run))))
    if given or not found:
        return given
    if len(found) > 1:
        names = ", ".join(str(one or "the default") for one in found)
        raise ValueError(
            f"the runs were logged to several ({name}: {names}); choose with --wandb-{name}=NAME"
        )
    return found[0]


def _groups(runs: list[RunRecord]) -> list[str]:
    """Return the W&B groups of runs: from their settings, or else the names of their sweeps."""
    groups = set()
    for run in runs:
        parents = run.directory.resolve().parents[:2]
        sweep = next((parent.name for parent in parents if (parent / "sweep.json").exists()), None)
        group = _settings(run).get("group") or sweep
        if group is None:
            raise ValueError(f"{run.directory} is not in a sweep and has no logger.wandb.group; name sweeps")
        groups.add(group)
    return sorted(groups)
