"""Errors in settings, one line each: the mistake, what was expected, the most similar names."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path

from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from txl.settings.compose import all_keys, groups

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


def readable(error: Exception, prefix: str = "") -> ConfigError:
    """Convert OmegaConf's error to one line: the key, the mistake, similar names."""
    key = getattr(error, "full_key", None) or ""
    reason = str(error).splitlines()[0]
    if isinstance(error, (ConfigKeyError, ConfigAttributeError)):
        kind = getattr(error, "object_type", None)
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
        section, _, last = key.rpartition(".")
        return ConfigError(f"there is no setting {key}{nearest(last, names, section)}")
    key = ".".join(part for part in (prefix, key) if part)
    return ConfigError(f"{key}: {reason}" if key else reason)


def one_line(error: Exception, config_path: Path, config_name: str) -> str:
    """Return the mistake on the command line in one line, with similar names."""
    text = str(error) or str(error.__cause__)
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        keys = all_keys(config_path, config_name)
        return f"there is no setting {override[1]}{nearest(override[1].lstrip('+~'), keys)}"
    option = re.search(r"Could not (?:find|load) '([^']+)/([^'/]*)'", text)
    if option:
        files = sorted(path.stem for path in (config_path / option[1]).glob("*.yaml"))
        if files:
            return f"there is no {option[1]}={option[2]}{nearest(option[2], files)}"
        return f"there is no group {option[1]}{nearest(option[1], groups(config_path))}"
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
