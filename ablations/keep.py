"""Keep what a sweep measured under `ablations/results/`, without checkpoints.

    python ablations/keep.py multirun/table6-0a1b2c3d

Copied are sweep.json, the results.json of each job, and of each evaluation its numbers and the figures that
the report shows, in few colors so that they are small. table.md and table.csv are made of the copies, so that
they can be made again: `txl report ablations/results/NAME out=…` gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from PIL import Image

from txl.report.evaluations import files_of
from txl.report.render.tables import write_tables

RESULTS = Path(__file__).parent / "results"
KEPT = ("table.md", "table.csv")


def keep(sweep: Path, results: Path = RESULTS) -> Path:
    """Copy a sweep's results and make its tables of the copies.

    Args:
        sweep: the directory of a sweep.
        results: the folder for those of all sweeps. What it holds of this one is replaced.

    Returns:
        The folder of this sweep's results.

    Raises:
        FileNotFoundError: there is no sweep in that directory.
    """
    described = json.loads((sweep / "sweep.json").read_text("utf-8"))
    folder = results / described["name"]
    shutil.rmtree(folder, ignore_errors=True)
    found = [sweep / job["directory"] / "results.json" for job in described["jobs"]]
    found += [path for one in described.get("evaluations", []) for path in files_of(sweep, one)]
    for path in [sweep / "sweep.json", *(path for path in found if path.exists())]:
        copy = folder / path.relative_to(sweep)
        copy.parent.mkdir(parents=True, exist_ok=True)
        (copy_picture if path.suffix == ".png" else shutil.copyfile)(path, copy)
    with tempfile.TemporaryDirectory() as made:
        write_tables(folder, Path(made))
        for name in KEPT:
            shutil.copyfile(Path(made, name), folder / name)
    return folder


def copy_picture(path: Path, copy: Path) -> None:
    """Copy a picture with as many pixels, but a palette of at most 256 colors: less than half the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize().save(copy, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="DIR", help="of a sweep")
    for directory in parser.parse_args().sweeps:
        print(keep(directory))
