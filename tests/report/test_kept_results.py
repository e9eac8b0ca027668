"""What is kept under `ablations/results/` is what its results give, and the page says what its tables say."""

import json
import re
import runpy
import shutil

import pytest
from PIL import Image

from conftest import ROOT
from txl.report.render.tables import write_tables

RESULTS = ROOT / "ablations" / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("*/sweep.json"))
SCORE = re.compile(r"\d+\.\d{2,}")  # two digits or more behind the point, measured or published
INTERVAL = re.compile(r"[+-][\d.]+ \[[^]]+\]")


def plain(path):
    """Return a page's text without Markdown's escapes, each paragraph on one line."""
    return re.sub(r"(?<=[^|\n])\n(?=[^\n|#-])", " ", path.read_text("utf-8").replace("\\", ""))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_tables_are_made_of_the_results(folder, tmp_path):
    write_tables(folder, tmp_path)
    for name in ("table.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_comparisons_are_made_of_the_results():
    made = runpy.run_path(str(ROOT / "ablations" / "claims.py"))["claims"]()
    assert made.encode() == (RESULTS / "claims.md").read_bytes()


def test_every_score_and_interval_on_the_page_stands_in_a_table():
    tables = [*RESULTS.glob("*/table.md"), RESULTS / "claims.md"]
    there, page = " ".join(map(plain, tables)), plain(RESULTS / "README.md")
    for pattern in (SCORE, INTERVAL):
        assert set(pattern.findall(page)) - set(pattern.findall(there)) == set()


def test_every_row_on_the_page_has_the_numbers_of_its_table():
    compared = 0
    for part in plain(RESULTS / "README.md").split("\n## ")[1:]:
        name = {"Every encoding": "encodings"}.get(part[:14]) or part.splitlines()[0].replace(" ", "").lower()
        if not (RESULTS / name / "table.md").exists():
            continue
        table = plain(RESULTS / name / "table.md").partition("\n## ")[0].splitlines()
        table = {cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in table)}
        for line in re.findall(r"^\| `(\w+)` \|(.*) \|$", part, re.M):
            left = iter(table[line[0]])  # in the same order, though not all of them
            assert all(cell in left for cell in line[1].strip().split(" | ")), line
            compared += 1
    assert compared == 12 + 16 + 3 + 7


def test_the_page_names_every_kept_sweep_and_nothing_else():
    page = (RESULTS / "README.md").read_text("utf-8")
    assert {folder.name for folder in KEPT} == set(re.findall(r"\]\((\w+)/table\.md\)", page))
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page) if "://" not in link]
    assert [link for link in links if not (RESULTS / link).exists()] == []


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_every_job_has_been_completed_and_says_nothing_of_the_machine(folder):
    sweep = json.loads((folder / "sweep.json").read_text("utf-8"))
    for job in sweep["jobs"]:
        text = (folder / job["directory"] / "results.json").read_text("utf-8")
        assert json.loads(text)["status"] == "completed"
        assert "/" not in json.loads(text)["config"]["data"]["cache"].removeprefix("~/.cache/")
    for said in sweep.get("evaluations", []):
        ended = json.loads((folder / said["directory"] / "evaluation.json").read_text("utf-8"))
        assert ended["status"] == "completed"


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_only_small_files_are_kept(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".md", ".csv", ".png"}
    assert max(path.stat().st_size for path in files) < 200_000


def test_a_sweep_is_kept_again_with_its_pictures_in_few_colors(tmp_path):
    sweep = tmp_path / "multirun" / "figure5-0a1b2c3d"
    shutil.copytree(RESULTS / "figure5", sweep)
    (sweep / "all_heads" / "seed1" / "last.ckpt").write_bytes(b"large")
    (picture,) = sweep.rglob("*.png")
    Image.effect_noise((300, 200), 80).convert("RGBA").resize((900, 600)).save(picture)
    keep = runpy.run_path(str(ROOT / "ablations" / "keep.py"))["keep"]
    kept = keep(sweep, tmp_path / "results")
    assert kept == tmp_path / "results" / "figure5"
    there = {path.relative_to(RESULTS / "figure5") for path in (RESULTS / "figure5").rglob("*")}
    assert {path.relative_to(kept) for path in kept.rglob("*")} == there
    assert (kept / "table.md").read_bytes() == (RESULTS / "figure5" / "table.md").read_bytes()
    with Image.open(kept / picture.relative_to(sweep)) as copied:
        assert (copied.mode, copied.size) == ("P", (900, 600))
