"""Settings outside of `train.py`: compose `conf/` from overrides, as its command line does."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parents[3] / "conf"  # of the checkout that the package is installed from


def composed(overrides: list[str], config_path: Path = CONF, config_name: str = "train") -> DictConfig:
    """Return the settings that `overrides` make.

    Args:
        overrides: as on the command line of `train.py`.
        config_path: the folder with the settings.
        config_name: of the file to begin with.

    Raises:
        FileNotFoundError: txl is not installed from a checkout, whose folder `conf` holds the settings.
        HydraException: overrides that do not compose.
    """
    if not config_path.is_dir():
        raise FileNotFoundError(
            f"no settings in {config_path}; install txl from a checkout: pip install -e ."
        )
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_path), version_base="1.3"):
        return compose(config_name, overrides)


def all_keys(config_path: Path, config_name: str) -> list[str]:
    """Return every setting there is by default, and the groups."""
    tree = OmegaConf.to_container(composed([], config_path, config_name))
    return [*_flat(tree), *groups(config_path)]


def groups(config_path: Path) -> list[str]:
    """Return the names of the groups."""
    return sorted(path.name for path in config_path.iterdir() if path.is_dir() and path.name != "hydra")


def _flat(tree: dict, prefix: str = "") -> list[str]:
    flat = []
    for key, value in tree.items():
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return flat
