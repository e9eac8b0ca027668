"""Groups of `conf/` with a `_target_` (model, position, data, optimizer, …), and the components they name.

The settings are checked against the signature of the target, so that a user's component is checked like ours.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from txl.settings.errors import ConfigError, nearest, typed

# The arguments of each group's target that the program supplies.
SUPPLIED = {
    "model": ("vocabulary", "position"),
    "position": ("n_layer", "n_head", "d_model", "d_head", "dropout", "key_length"),
    "data": (),
    "optimizer": ("parameters",),
    "schedule": ("step", "total"),
    "logger": ("directory", "config"),
}

# Optional packages, and the extra of this package that installs each.
EXTRAS = {"wandb": "wandb", "tensorboard": "tensorboard", "pytorch_optimizer": "lamb"}


def component(group: Any, name: str) -> Callable[..., Any]:
    """Return the target of a group, with the group's settings as arguments.

    Args:
        group: `_target_` (an import path) and settings.
        name: of the group, a key of `SUPPLIED`, or of a member of it ("logger.csv").

    Raises:
        ConfigError: no target, one that cannot be imported, a package that is not installed, an unknown or
            missing key, a wrong type.
    """
    if not isinstance(group, dict) or not isinstance(group.get("_target_"), str):
        raise ConfigError(f"{name}: a group needs a _target_, the import path of what it sets up")
    settings = {key: value for key, value in group.items() if key != "_target_"}
    module, _, attribute = group["_target_"].rpartition(".")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            extra = f"pip install 'txl[{EXTRAS[error.name]}]'"
            raise ConfigError(f"{name} needs the package {error.name}; install it with: {extra}") from error
        raise ConfigError(f"{name}._target_={group['_target_']} cannot be imported: {error}") from error
    parameters = inspect.signature(target).parameters
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    accepts_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    allowed = [
        key
        for key, parameter in parameters.items()
        if key not in SUPPLIED[name.split(".")[0]] and parameter.kind not in open_ended
    ]
    for key in settings:
        if key not in allowed and not accepts_any:
            raise ConfigError(f"{name}.{key} is not a setting of {attribute}{nearest(key, allowed, name)}")
    for key in allowed:
        if parameters[key].default is inspect.Parameter.empty and key not in settings:
            raise ConfigError(f"{name}.{key} is missing; {attribute} needs it")
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    schema = make_dataclass(attribute, [(key, hints.get(key, Any)) for key in settings])
    return functools.partial(target, **vars(typed(schema, settings, name)))


def check_given(settings: DictConfig) -> None:
    """Raise ConfigError if a setting without a default is missing."""
    missing = sorted(OmegaConf.missing_keys(settings))
    if missing:
        raise ConfigError(f"{missing[0]} is missing; give {missing[0]}=…")
