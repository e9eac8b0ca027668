"""`txl report`: the table and the page of a sweep, or of several together."""

import argparse
import difflib
from pathlib import Path

from txl.report.render.tables import summary_of, write_tables
from txl.report.render.wandb_report import publish
from txl.verbs.runner import console, print_paths


def run(arguments: argparse.Namespace) -> int:
    project, entity = arguments.wandb_project, arguments.wandb_entity
    if (project or entity) and not arguments.wandb:
        raise ValueError("--wandb-project and --wandb-entity say where --wandb publishes; add --wandb")
    directories, out = _split_words(arguments.words)
    paths = write_tables(directories, out)
    console.print(summary_of(directories, console.width))
    print_paths(paths)
    if arguments.wandb:
        for line in publish(directories, paths[0].parent, project, entity):
            console.print(line, markup=False, soft_wrap=True)
    return 0


def _split_words(words: list[str]) -> tuple[list[Path], Path | None]:
    """Return the directories, and the one of `out=`."""
    directories, out = [], None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or Path(word).exists():
            directories.append(Path(word))
        elif key == "out" and value:
            out = Path(value)
        else:
            hint = "; did you mean out=DIR?" if difflib.get_close_matches(key, ["out"]) else ""
            raise ValueError(f"{word} is neither a directory nor out=DIR{hint}")
    if not directories:
        raise ValueError("name a directory of a sweep or of runs")
    return directories, out
