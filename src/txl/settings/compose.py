"""Composes `conf/` with overrides, as the command line of `train.py` does."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

CONF = Path(__file__).parents[3] / "conf"  # in the checkout that the package is installed from


def composed(overrides: list[str], config_path: Path = CONF, config_name: str = "train") -> DictConfig:
    """Compose the settings with overrides, written as on the command line of `train.py`.

    Raises:
        FileNotFoundError: txl is not installed from a checkout, which has the folder `conf`.
        HydraException: overrides that do not compose.
    """
    if not config_path.is_dir():
        raise FileNotFoundError(
            f"no settings in {config_path}; install txl from a checkout: pip install -e ."
        )
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_path), version_base="1.3"):
        return compose(config_name, overrides)


def groups(config_path: Path) -> list[str]:
    return sorted(path.name for path in config_path.iterdir() if path.is_dir() and path.name != "hydra")
