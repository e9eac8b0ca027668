"""The jobs of a sweep: each row of its table with every combination of the swept values."""

import copy
import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from txl.records.results import read_results, read_status
from txl.runs.assemble import use_absolute_paths
from txl.runs.directory import MAY_CHANGE, check_same
from txl.settings.compose import CONF
from txl.settings.errors import MISTAKES, ConfigError, one_line
from txl.settings.schema import check
from txl.sweeps.definition import last_of_each, row_name
from txl.sweeps.worker import SWEEP
from txl.training.callbacks.checkpoints import newest

MAX_NAME = 100  # characters of a row's name, which is a directory


@dataclass
class Job:
    """One run of a sweep."""

    row: str
    overrides: list[str]  # of the row, then of the command line
    seed: int = 1
    config: Any = None  # all settings, resolved, as in `results.json`; `None` if they cannot be composed
    error: str | None = None  # why they cannot be composed

    @property
    def directory(self) -> str:
        """Relative to the sweep's directory."""
        return f"{self.row}/seed{self.seed}"

    def check_directory(self, directory: Path) -> str | None:
        """Return the status of the run in a directory; `None` if there is none.

        Raises:
            ValueError: the run has other settings than this job.
        """
        status = read_status(directory)
        earlier = read_results(directory).get("config") if status else None
        if earlier is None or self.config is None:
            return status
        # The number of steps may change until the run is completed.
        may_change = tuple(key for key in MAY_CHANGE if status != "completed" or key != "trainer.max_steps")
        if status == "completed" or newest(directory / "checkpoints"):
            check_same(directory, earlier, self.config, may_change, "directory: hydra.sweep.dir=…")
        return status


def make_jobs(
    arguments: list[str], rows: dict[str, list[str]], context: HydraContext, master: DictConfig
) -> tuple[list[Job], list[str]]:
    """Return the jobs of a sweep, composed, and the names of the variants that each row has.

    Raises:
        HydraException: an override that cannot be parsed.
        ConfigError: a sweep over something other than a list of values.
    """
    parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides(arguments)
    axes = [_expand(override) for override in parsed]
    varies = [override.is_sweep_override() and override.get_key_element() != "seed" for override in parsed]
    jobs: list[Job] = []
    variants: dict[str, None] = {}
    for (row, own), words in itertools.product(rows.items(), itertools.product(*axes)):
        variant = variant_name(itertools.compress(words, varies))
        variants[variant] = None
        job = Job(row_name(row, variant), last_of_each([*own, *words]))
        if job not in jobs:  # seed=1,1
            jobs.append(job)
    taken: Counter[str] = Counter()
    for job in jobs:
        _compose(job, context, master)
        taken[job.directory] += 1
        number = taken[job.directory]
        job.row += f"-{number}" if number > 1 else ""
    return jobs, list(variants)


def _expand(override: Override) -> list[str]:
    """Return one override for each value that an override sweeps over."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"{override.input_line} is not a list of values; give one: {override.key_or_group}=1,2,3, or "
            "use a sweeper that searches: hydra/sweeper=optuna"
        )
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def variant_name(words: Iterable[str]) -> str:
    """Return a directory name made of the overrides of a job: "position-rotary_n_layer-4"."""
    parts = [word.lstrip("+~").partition("=") for word in words]
    values = [f"{key.rpartition('.')[2]}-{value.strip(' []/')}" for key, _, value in parts]
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(values)).strip("-")
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{short_hash(values)}"
    return name


def short_hash(words: Iterable[str]) -> str:
    """Return 8 hexadecimal digits of a hash of words, whatever their order."""
    return hashlib.sha256("\0".join(sorted(words)).encode()).hexdigest()[:8]


def _compose(job: Job, context: HydraContext, master: DictConfig) -> None:
    """Compose and check a job's settings, or set its error."""
    seeds = [word for word in job.overrides if re.fullmatch(r"seed=\d+", word)]
    job.seed = int(seeds[-1].removeprefix("seed=")) if seeds else master.seed
    before = HydraConfig.instance().cfg
    try:
        composed = context.config_loader.load_sweep_config(master, list(job.overrides))
        with open_dict(composed):
            composed.hydra.job.num = 0
            HydraConfig.instance().set_config(composed)
            settings = copy.deepcopy(composed)
            del settings["hydra"]
        use_absolute_paths(settings)
        check(settings)
        job.config, job.seed = OmegaConf.to_container(settings, resolve=True), settings.seed
    except (HydraException, *MISTAKES) as error:
        job.error = one_line(error, CONF, master.hydra.job.config_name)
    finally:
        HydraConfig.instance().cfg = before


def completed_runs(sweep: Path) -> list[Path]:
    """Return the completed runs of another sweep.

    Raises:
        ValueError: the directory does not hold a sweep.
    """
    if not (sweep / SWEEP).exists():
        raise ValueError(f"ablation.reuse={sweep} holds no {SWEEP}; name the directory of a sweep")
    runs = [sweep / job["directory"] for job in read_described(sweep)["jobs"]]
    return [run for run in runs if read_status(run) == "completed"]


def reuse(jobs: list[Job], sweep: Path, runs: list[Path]) -> int:
    """Link runs of another sweep to jobs with the same settings and no directory yet; return how many."""
    linked = 0
    for job in jobs:
        place = sweep / job.directory
        for run in runs if job.config and not os.path.lexists(place) else ():
            with suppress(ValueError):  # it has other settings
                job.check_directory(run)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(os.path.relpath(run.resolve(), place.parent.resolve()))
                linked += 1
                break
    return linked


def read_described(directory: Path) -> dict[str, Any]:
    """Return the `sweep.json` of a sweep.

    Raises:
        ValueError: it is damaged.
    """
    path = directory / SWEEP
    try:
        described = json.loads(path.read_text("utf-8"))
        for key in ("row", "directory"):
            [job[key] for job in described["jobs"]]
        return {"name": described["name"], "scale": described["scale"], **described}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); delete it, and the sweep's command writes "
            "a new one"
        ) from error
