"""The arguments of an ablation: `+ablation=NAME ablation.rows=[…] ablation.reuse=DIR scale=…`.

Hydra does not know these arguments: they are taken from the command line before Hydra sees it, and reach the
sweeper as its setting `command`.
"""

from dataclasses import dataclass
from pathlib import Path

from txl.settings.errors import ConfigError, nearest
from txl.settings.overrides import quoted
from txl.sweeps import definition

KEYS = ("ablation", "scale", "ablation.rows", "ablation.reuse")
SWEEPER, OURS = "hydra/sweeper=", "hydra/sweeper=txl"


@dataclass
class SweepArguments:
    """A parsed command line."""

    command: list[str]
    overrides: list[str]  # the words for Hydra
    ablation: str | None = None  # a name, or the path of a file; `None` for an ordinary sweep
    scale: str = "laptop"
    rows: list[str] | None = None
    reuse: Path | None = None  # another sweep, whose runs are linked where their settings are the same
    dry_run: bool = False  # list the jobs and start nothing

    @property
    def sweeper(self) -> str:
        return next((word for word in self.overrides if word.startswith(SWEEPER)), OURS)


def parse(command: list[str]) -> SweepArguments:
    """Parse a command line.

    Raises:
        ConfigError: a scale or rows without an ablation, a misspelt key, or a sweeper that has no ablations.
    """
    found: dict[str, str] = {}
    overrides = []
    for word in command:
        key, equals, value = word.partition("=")
        key = key.lstrip("+")
        if equals and (key in ("ablation", "scale") or key.startswith("ablation.")):
            if key not in KEYS:
                raise ConfigError(f"there is no setting {key}{nearest(key, KEYS)}")
            if key in ("scale", "ablation.reuse") and not value:
                raise ConfigError(f"{key}= is empty; give a value, or leave it out")
            found[key] = value
        elif word != "--dry-run":
            overrides.append(word)
    if found and "ablation" not in found:
        key, value = next(iter(found.items()))
        raise ConfigError(f"{key}={value} is about an ablation; name one as well: +ablation=…")
    rows = found.get("ablation.rows")
    arguments = SweepArguments(
        list(command),
        overrides,
        found.get("ablation"),
        found.get("scale", "laptop"),
        None if rows is None else [row.strip(" '\"") for row in rows.strip("[]").split(",") if row.strip()],
        Path(found["ablation.reuse"]).expanduser() if "ablation.reuse" in found else None,
        "--dry-run" in command,
    )
    if arguments.sweeper != OURS and (found or arguments.dry_run):
        option = "--dry-run" if arguments.dry_run else f"ablation={found['ablation']}"
        raise ConfigError(f"{arguments.sweeper} has no {option}; leave one of them out")
    return arguments


def ablation_of(arguments: SweepArguments) -> tuple[definition.Ablation, dict[str, list[str]]]:
    """Return the ablation, and the overrides of each row to run.

    Raises:
        ConfigError: see `definition.read` and `Ablation.chosen`; or no row to run.
    """
    name, scale = arguments.ablation or "", arguments.scale
    if name.endswith(".yaml"):
        path = Path(name).expanduser()
        ablation = definition.read(path.stem, scale, path.parent)
    else:
        ablation = definition.read(name, scale)
    rows = ablation.jobs if arguments.rows is None else ablation.chosen(arguments.rows)
    if not rows and (ablation.jobs or "evaluation" not in ablation.table):
        raise ConfigError(f"{ablation.name} has no row that is run at scale={scale}; see its file")
    return ablation, rows


def sweep_overrides(command: list[str]) -> list[str]:
    """Return the command line of a sweep as Hydra takes it: our sweeper gets the whole of it as a setting."""
    arguments = parse(command)
    if arguments.sweeper != OURS:
        return arguments.overrides
    words = (quoted(word.replace("${", "\\${")) for word in command)
    return [*arguments.overrides, f"hydra.sweeper.command=[{','.join(words)}]"]


def row_overrides(command: list[str]) -> list[str]:
    """Return the command line of a single run, with the overrides of the one row it may name.

    Raises:
        ConfigError: see `ablation_of`; or rows that are not exactly one, which need -m.
    """
    arguments = parse(command)
    if arguments.dry_run:
        raise ConfigError("--dry-run lists the jobs of a sweep; add -m. For one run there is: txl describe")
    if arguments.ablation is None:
        return command
    if arguments.reuse is not None:
        raise ConfigError("ablation.reuse takes runs into a sweep; add -m")
    _, rows = ablation_of(arguments)
    if not rows:
        raise ConfigError(
            f"+ablation={arguments.ablation} trains nothing; add -m to measure what it is about"
        )
    (name, overrides), *others = rows.items()
    if others:
        raise ConfigError(
            f"+ablation={arguments.ablation} has {len(rows)} rows to run; add -m to run them, or choose one: "
            f"ablation.rows=[{name}]"
        )
    # Hydra takes no two choices of one group.
    given = {word.partition("=")[0] for word in arguments.overrides if "=" in word}
    return [*(word for word in overrides if word.partition("=")[0] not in given), *arguments.overrides]
