"""What was measured of a sweep's models, in its table and on its page."""

import json

import pytest

from report.made_up import results, write_sweep
from txl.report import write_tables
from txl.report.evaluations import files_of

PNG = bytes.fromhex("89504e470d0a1a0a") + b"figure"
ROW = {"label": "a", "published": {}, "overrides": []}
TABLE = {
    "title": "RECL",
    "columns": {},
    "measures": ["recl_r10", "recl_r100"],
    "rows": {"xl": ROW | {"published": {"recl_r10": 900}}, "shaw": ROW, "lstm": {"label": "l"}},
}


def model(hard: int, all_of_them: int, beyond: bool = False) -> dict:
    found = [(0.1, hard, beyond), (1.0, all_of_them, False)]
    return {"effective": [{"r": r, "recl": recl, "beyond": more} for r, recl, more in found]}


def measured(folder, name, verb, jobs, result=None, status="completed", error=None, figures=None):
    """Write an evaluation, and return what `sweep.json` says of it."""
    place = folder / "evaluations" / name
    (place / "figures").mkdir(parents=True)
    (place / "evaluation.json").write_text(json.dumps({"status": status, "error": error}))
    if result is not None:
        (place / f"{verb}.json").write_text(json.dumps(result))
        for figure in ("gain", "other"):
            (place / "figures" / f"{figure}.png").write_bytes(PNG)
    return {"verb": verb, "directory": f"evaluations/{name}", "jobs": jobs, "figures": figures}


def table_of(folder) -> dict[str, list[str]]:
    write_tables(folder)
    lines = [line.strip("|").split("|") for line in (folder / "table.md").read_text().splitlines()]
    return {
        line[0].strip().replace("\\", ""): [cell.strip() for cell in line[1:]]
        for line in lines
        if len(line) > 2
    }


@pytest.fixture
def sweep(tmp_path):
    """Return a function that writes a sweep with two seeds, measured as told."""

    def written(*evaluations, table=TABLE):
        runs = {row: [results(seed=1), results(seed=2)] for row in table["rows"] if row != "lstm"}
        return write_sweep(tmp_path, runs, table, name="table8", evaluations=evaluations)

    return written


def test_each_model_has_its_own_number_and_seeds_are_averaged(sweep, tmp_path):
    jobs = [["xl/seed1", "shaw/seed1"], ["xl/seed2", "shaw/seed2"]]
    one = measured(
        tmp_path, "1", "recl", jobs[0], {"models": [model(64, 32, True), model(48, 16)]}, figures=["gain"]
    )
    two = measured(
        tmp_path, "2", "recl", jobs[1], {"models": [model(96, 32), model(48, 16)]}, figures=["gain"]
    )
    rows = table_of(sweep(one, two))
    assert rows["xl"] == ["a", "2", "80 ± 23", "900", "32 ± 0", "completed"]
    assert rows["shaw"][2:] == ["48 ± 0", "–", "16 ± 0", "completed"]
    assert rows["lstm"][-1] == "published only"
    assert (
        "xl/seed1: the effective context at r = 0.1 is at least as long"
        in (tmp_path / "table.md").read_text()
    )
    page = (tmp_path / "report.html").read_text()
    assert page.count('<img alt="gain" src="data:image/png;base64,') == 2
    assert 'alt="other"' not in page
    assert "txl recl of xl/seed2, shaw/seed2" in page
    kept = {path.name for path in files_of(tmp_path, one)}
    assert kept == {"evaluation.json", "recl.json", "gain.png"}


def test_what_went_wrong_is_said_and_the_other_seed_counts(sweep, tmp_path):
    said = {"status": "failed", "error": "the sky fell"}
    one = measured(tmp_path, "1", "recl", ["xl/seed1"], **said)
    two = measured(tmp_path, "2", "recl", ["xl/seed2"], {"models": [model(96, 32)]})
    later = {"verb": "recl", "directory": "evaluations/3", "jobs": ["shaw/seed1", "shaw/seed2"]}
    rows = table_of(sweep(one, two, later))
    assert rows["xl"][2:] == ["96 (n = 1)", "900", "32 (n = 1)", "completed; txl recl failed"]
    assert rows["shaw"][2:] == ["–", "–", "–", "completed; txl recl has not run yet"]
    text = (tmp_path / "table.md").read_text()
    assert "- xl, seed 1: txl recl failed: the sky fell" in text
    assert "- shaw, seeds 1, 2: txl recl has not run yet" in text
    assert (tmp_path / "report.html").read_text().count('class="failed"') == 1


def test_a_damaged_result_is_said(sweep, tmp_path):
    one = measured(tmp_path, "1", "recl", ["xl/seed1"])
    assert table_of(sweep(one))["xl"][-1] == "completed; txl recl its recl.json is damaged"


SPEED = {
    "title": "Slowdown",
    "columns": {},
    "measures": ["slowdown"],
    "rows": {
        f"length_{length}": {
            "label": "a",
            "published": {"slowdown": 2 * length},
            "at_attention_length": length,
        }
        for length in (800, 1800)
    },
}


@pytest.mark.parametrize(
    ("said", "cells", "status"),
    [
        (
            {"result": {"attention": [{"attention_length": 800, "slowdown": {"median": 30.4}}]}},
            "30",
            "completed",
        ),
        ({"status": "failed", "error": "too slow"}, "–", "failed"),
    ],
)
def test_numbers_for_which_nothing_is_trained(tmp_path, said, cells, status):
    one = measured(tmp_path, "speed", "speed", [], **said)
    rows = table_of(write_sweep(tmp_path, {}, SPEED, name="table9", evaluations=[one]))
    assert rows["length_800"][2:] == [cells, "1,600", status]
    if status == "failed":
        assert "- length\\_800: failed: too slow" in (tmp_path / "table.md").read_text()
    else:
        assert ",30.4,,1,1,30.4,," in (tmp_path / "table.csv").read_text()
        assert rows["length_1800"][-1] == "attention length 1800 was not tried"
