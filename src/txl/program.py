"""`hydra.main` with errors a person can read: one line, the nearest names, exit code 1."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from txl.launch.processes import check_command, in_sweep, run_in
from txl.records.results import read_results
from txl.settings.errors import MISTAKES, one_line
from txl.sweeps import arguments as sweep_words

SWEEP_FLAGS = ("-m", "--multirun")


def command(
    config_path: Path, config_name: str
) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Decorate a function of the composed settings to make it a program.

    Args:
        config_path: absolute path of the folder with the settings.
        config_name: of the file to begin with.
    """

    def decorate(task: Callable[[DictConfig], None]) -> Callable[[], None]:
        asked = os.environ.get("HYDRA_FULL_ERROR", "0")
        script = os.path.abspath(inspect.getfile(task))

        @wraps(task)
        def job(settings: DictConfig) -> float | None:
            if in_sweep():
                from txl.sweeps.worker import run_job  # which needs torch

                return run_job(settings, script)
            try:
                task(settings)
            except MISTAKES as error:
                if asked == "1":
                    raise
                # Said here, because Hydra would print all overrides before it.
                sys.exit(f"error: {one_line(error, config_path, config_name)}")
            return None

        composed = hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)(job)

        @wraps(task)
        def program() -> None:
            for stream in (sys.stdout, sys.stderr):
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(
                        errors="replace"
                    )  # a terminal that lacks a letter is no reason to stop
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise its errors and not print them
            try:
                sys.argv[1:] = resumed(flags_first(ablated(sys.argv[1:])))
                check_command(sys.argv[1:])
                composed()
            except (HydraException, *MISTAKES) as error:
                if asked == "1":
                    raise
                sys.exit(f"error: {one_line(error, config_path, config_name)}")
            finally:
                os.environ["HYDRA_FULL_ERROR"] = asked

        return program

    return decorate


def ablated(words: list[str]) -> list[str]:
    """Return a command line without what it says of an ablation: the sweeper does that, or it is one row."""
    if not any(word in SWEEP_FLAGS for word in words):
        return sweep_words.of_one_row(words)
    sweep_words.asked = sweep_words.parse(words)
    return sweep_words.asked.others


def flags_first(words: list[str]) -> list[str]:
    """Return a command line with `-m` at its beginning: argparse takes no overrides on both sides of it."""
    flags = [word for word in words if word in SWEEP_FLAGS]
    return [*flags, *(word for word in words if word not in flags)]


def resumed(words: list[str]) -> list[str]:
    """Return a command line with `resume=RUN_DIR` replaced by what that run was started with.

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
    return [*read_results(directory)["overrides"], run_in(directory), *others]
