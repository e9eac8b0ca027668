"""`hydra.main` with errors a person can read: one line, the nearest names, exit code 1."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from txl.launch.environment import check_command, in_sweep
from txl.records.results import read_results
from txl.settings.errors import MISTAKES, one_line
from txl.settings.overrides import quoted
from txl.sweeps.arguments import row_overrides, sweep_overrides


def command(
    config_path: Path, config_name: str
) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Decorate a function of the composed settings to make it a program."""

    def decorate(task: Callable[[DictConfig], None]) -> Callable[[], None]:
        full_error = os.environ.get("HYDRA_FULL_ERROR", "0")
        script = os.path.abspath(inspect.getfile(task))

        @contextmanager
        def short_errors() -> Iterator[None]:
            try:
                yield
            except (HydraException, *MISTAKES) as error:
                if full_error == "1":
                    raise
                sys.exit(f"error: {one_line(error, config_path, config_name)}")

        @wraps(task)
        def job(settings: DictConfig) -> float | None:
            if in_sweep():
                from txl.sweeps.worker import run_job  # which needs torch

                return run_job(settings, script)
            with short_errors():  # Hydra would print all overrides before the error
                task(settings)
            return None

        composed = hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)(job)

        @wraps(task)
        def program() -> None:
            for stream in (sys.stdout, sys.stderr):
                if hasattr(stream, "reconfigure"):
                    # A character that the terminal lacks must not stop a run.
                    stream.reconfigure(errors="replace")
            os.environ["HYDRA_FULL_ERROR"] = "1"  # let Hydra raise its errors instead of printing them
            try:
                with short_errors():
                    sys.argv[1:] = resumed(resolve_ablation(sys.argv[1:]))
                    check_command(sys.argv[1:])
                    composed()
            finally:
                os.environ["HYDRA_FULL_ERROR"] = full_error

        return program

    return decorate


def resolve_ablation(words: list[str]) -> list[str]:
    """Return a command line with the ablation resolved: for our sweeper, or to the overrides of one row."""
    flags = [word for word in words if word in ("-m", "--multirun")]
    if not flags:
        return row_overrides(words)
    # `-m` comes first, because argparse takes no overrides on both sides of it.
    return [*flags, *(word for word in sweep_overrides(words) if word not in flags)]


def resumed(words: list[str]) -> list[str]:
    """Return a command line with `resume=RUN_DIR` replaced by the overrides of that run.

    Raises:
        ValueError: there is no run in that directory.
    """
    found = [word for word in words if word.startswith("resume=")]
    if not found:
        return words
    directory = Path(found[-1].removeprefix("resume=")).expanduser()
    if not (directory / "results.json").is_file():
        raise ValueError(f"resume={directory} holds no run: there is no results.json in it")
    others = [word for word in words if not word.startswith("resume=")]
    return [*read_results(directory)["overrides"], f"hydra.run.dir={quoted(directory)}", *others]
