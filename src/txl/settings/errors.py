"""Errors in settings, one line each: the mistake, what was expected, the most similar names."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from txl.records.files import flatten
from txl.settings.compose import composed, groups

MISTAKES = (OmegaConfBaseException, ValueError, OSError)  # in the input: reported in one line


class ConfigError(ValueError):
    """A mistake in the settings: the value, what was expected, how to fix it."""


def nearest(key: str, allowed: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean …?" with the most similar names, or a list of all names."""
    names = list(allowed)
    if not names:
        return "; it has none"
    dotted = f"{prefix}." if prefix else ""
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(dotted + name for name in close) + "?"
    return "; there are " + ", ".join(dotted + name for name in sorted(names))


def typed(kind: type, settings: Any, prefix: str = "") -> Any:
    """Return settings as an object of a dataclass.

    Raises:
        ConfigError: an unknown key, with similar names; a missing key, or a wrong type.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(kind), settings)
        if missing := sorted(OmegaConf.missing_keys(merged)):
            raise ConfigError(f"{missing[0]} is missing")
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        if isinstance(error, (ConfigKeyError, ConfigAttributeError)):
            known = error.object_type
            names = [field.name for field in fields(known)] if is_dataclass(known) else []
            section, _, last = key.rpartition(".")
            raise ConfigError(f"there is no setting {key}{nearest(last, names, section)}") from error
        place = ".".join(filter(None, (prefix, key)))
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{place}: {reason}" if place else reason) from error


def one_line(error: Exception, config_path: Path, config_name: str) -> str:
    """Return the mistake on the command line in one line, with similar names."""
    text = str(error) or str(error.__cause__)
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        tree: Any = OmegaConf.to_container(composed([], config_path, config_name))
        keys = [*flatten(tree), *groups(config_path)]
        return f"there is no setting {override[1]}{nearest(override[1].lstrip('+~'), keys)}"
    option = re.search(r"Could not (?:find|load) '([^']+)/([^'/]*)'", text)
    if option:
        files = sorted(path.stem for path in (config_path / option[1]).glob("*.yaml"))
        if files:
            return f"there is no {option[1]}={option[2]}{nearest(option[2], files)}"
        return f"there is no group {option[1]}{nearest(option[1], groups(config_path))}"
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
