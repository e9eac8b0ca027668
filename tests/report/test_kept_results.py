"""The measured tables under `ablations/results/` are what their results give, to the last byte."""

import json

import pytest

from conftest import ROOT
from txl.report.tables import write_tables

KEPT = sorted(path.parent for path in (ROOT / "ablations" / "results").glob("*/sweep.json"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_tables_are_made_of_the_results(folder, tmp_path):
    write_tables(folder, tmp_path)
    for name in ("table.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_every_job_has_been_completed_and_says_nothing_of_the_machine(folder):
    sweep = json.loads((folder / "sweep.json").read_text("utf-8"))
    for job in sweep["jobs"]:
        text = (folder / job["directory"] / "results.json").read_text("utf-8")
        assert json.loads(text)["status"] == "completed"
        assert "/" not in json.loads(text)["config"]["data"]["cache"].removeprefix("~/.cache/")
