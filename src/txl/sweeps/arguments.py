"""What a command line says of an ablation: `+ablation=NAME ablation.rows=[…] ablation.reuse=DIR scale=…`.

These words are taken out before Hydra sees the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txl.settings.errors import ConfigError, nearest
from txl.sweeps import definition as ablations

KEYS = ("ablation", "scale", "ablation.rows", "ablation.reuse")


@dataclass
class SweepWords:
    """A command line, and what it says of an ablation.

    Attributes:
        words: all of it.
        others: the words that are left.
        ablation: its name, or the path of a file of one's own; `None` for an ordinary sweep.
        scale: of its settings; `None` for the default.
        rows: to run; `None` for all.
        reuse: the directory of another sweep, whose runs are taken where their settings are the same.
        dry_run: say what would be done, and do nothing.
    """

    words: list[str]
    others: list[str]
    ablation: str | None = None
    scale: str | None = None
    rows: list[str] | None = None
    reuse: Path | None = None
    dry_run: bool = False


# What the command line of this program asks for. Hydra makes the sweeper and gives it nothing but settings.
asked = SweepWords([], [])


def parse(words: list[str]) -> SweepWords:
    """Take from a command line what it says of an ablation.

    Raises:
        ConfigError: a scale or rows without an ablation, or a misspelt key of `ablation`.
    """
    said: dict[str, str] = {}
    others = []
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("+")
        if equals and (key in ("ablation", "scale") or key.startswith("ablation.")):
            if key not in KEYS:
                raise ConfigError(f"there is no setting {key}{nearest(key, KEYS)}")
            if key in ("scale", "ablation.reuse") and not value:
                raise ConfigError(f"{key}= says nothing; give a value, or leave it out")
            said[key] = value
        elif word != "--dry-run":
            others.append(word)
    if said and "ablation" not in said:
        key, value = next(iter(said.items()))
        raise ConfigError(f"{key}={value} is about an ablation; name one as well: +ablation=…")
    others_sweeper = next((word for word in others if word.startswith("hydra/sweeper=")), "hydra/sweeper=txl")
    if others_sweeper != "hydra/sweeper=txl" and (said or "--dry-run" in words):
        asked_for = "--dry-run" if "--dry-run" in words else f"ablation={said['ablation']}"
        raise ConfigError(f"{others_sweeper} knows no {asked_for}; leave one of them out")
    rows = said.get("ablation.rows")
    if rows is not None:
        rows = [row.strip(" '\"") for row in rows.strip("[]").split(",") if row.strip()]
    reuse = Path(said["ablation.reuse"]).expanduser() if "ablation.reuse" in said else None
    return SweepWords(
        list(words), others, said.get("ablation"), said.get("scale"), rows, reuse, "--dry-run" in words
    )


def ablation_of(words: SweepWords) -> tuple[ablations.Ablation, dict[str, list[str]]]:
    """Return the ablation that a command line names, and the overrides of each row that is to be run.

    A name that ends in .yaml is the path of a file.

    Raises:
        ConfigError: see `ablations.read` and `Ablation.chosen`.
    """
    name, scale = words.ablation or "", "laptop" if words.scale is None else words.scale
    if name.endswith(".yaml"):
        path = Path(name).expanduser()
        ablation = ablations.read(path.stem, scale, path.parent)
    else:
        ablation = ablations.read(name, scale)
    rows = ablation.jobs if words.rows is None else ablation.chosen(words.rows)
    if not rows and not ablation.measures_only:
        raise ConfigError(f"{ablation.name} has no row that is run at scale={scale}; see its file")
    return ablation, rows


def of_one_row(words: list[str]) -> list[str]:
    """Return a command line for a single run with what `+ablation=NAME ablation.rows=[ROW]` stands for.

    Raises:
        ConfigError: see `ablation_of`; or rows that are not exactly one, which need -m.
    """
    said = parse(words)
    if said.dry_run:
        raise ConfigError("--dry-run lists the jobs of a sweep; add -m. For one run there is: txl describe")
    if said.ablation is None:
        return words
    if said.reuse is not None:
        raise ConfigError("ablation.reuse takes runs into a sweep; add -m")
    _, rows = ablation_of(said)
    if not rows:
        raise ConfigError(f"+ablation={said.ablation} trains nothing; add -m to measure what it is about")
    if len(rows) != 1:
        raise ConfigError(
            f"+ablation={said.ablation} has {len(rows)} rows to run; add -m to run them, or choose one: "
            f"ablation.rows=[{next(iter(rows))}]"
        )
    own = [word for word in rows[next(iter(rows))] if not _replaced(word, said.others)]
    return [*own, *said.others]


def _replaced(word: str, by: list[str]) -> bool:
    """Return whether one of some later words says the same key: of a group Hydra takes no two choices."""
    return any(other.startswith(f"{word.partition('=')[0]}=") for other in by)
