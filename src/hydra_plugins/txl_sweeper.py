"""Hydra finds its plugins here; the sweeper itself is `txl.sweeps.sweep`."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class TxlSweeper(Sweeper):
    """Runs every row with every seed in one directory, and continues where an earlier call ended."""

    def __init__(self, **settings: Any) -> None: ...

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        # The launcher is made later, when the sweep's directory is known.
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        from txl.sweeps.sweep import sweep  # here, because Hydra imports every plugin at every start

        return sweep(self.hydra_context, self.task_function, self.config, arguments)
