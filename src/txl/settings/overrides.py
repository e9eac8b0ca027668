"""Words of a command line: quoting them for Hydra, and finding those that this program needs itself."""

import re
from collections.abc import Sequence

CONFIG_OPTIONS = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp")


def quoted(value: object) -> str:
    """Return a value that Hydra reads back from a command line, whatever characters it has."""
    # Of backslashes, Hydra reads only those before a quote and at the end as escapes.
    text = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), str(value))
    return f"'{text}'"


def config_options(words: Sequence[str]) -> list[str]:
    """Return the options that say where settings are, such as `--config-dir DIR`."""
    found: list[str] = []
    for index, word in enumerate(words):
        if word in CONFIG_OPTIONS:
            found += words[index : index + 2]
        elif word.startswith(tuple(f"{option}=" for option in CONFIG_OPTIONS)):
            found.append(word)
    return found
