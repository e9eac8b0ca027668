"""What `--wandb` makes of a sweep: on W&B for who is logged in, elsewhere a file and no connection."""

import json
import os
import subprocess
import sys

import pytest
import wandb

from conftest import TINY, metrics_of
from report.made_up import TABLE, results, write_run, write_sweep
from txl.__main__ import main
from txl.report.render.wandb_report import NAME, build, publish, specification
from txl.report.sweeps import read_sweeps


def logged(bits=2.27, seed=1, project="txl", entity=None, group=None, **changes):
    made = results(bits, seed, **changes)
    made["config"]["logger"] = {"wandb": {"project": project, "entity": entity, "group": group}}
    return made


def sweep(directory, **settings):
    runs = {
        "xl": [logged(2.27, 1, **settings), logged(2.28, 2, **settings)],
        "no_recurrence": [logged(2.4, 1, **settings), None],
    }
    return write_sweep(directory, runs)


def grids(made):
    return [block for block in made["report"]["spec"]["blocks"] if block["type"] == "panel-grid"]


def sections(made):
    return made["workspace"]["spec"]["section"]["panelBankConfig"]["sections"]


def panels(made):
    """Return the settings of all panels, of the report and of the workspace."""
    of_report = [grid["metadata"]["panelBankSectionConfig"]["panels"] for grid in grids(made)]
    of_workspace = [section["panels"] for section in sections(made)]
    assert [[panel["config"] for panel in some] for some in of_report] == [
        [panel["config"] for panel in some] for some in of_workspace
    ]
    return [panel["config"] for some in of_report for panel in some]


def headings(made):
    blocks = made["report"]["spec"]["blocks"]
    return ["".join(c["text"] for c in block["children"]) for block in blocks if block["type"] == "heading"]


def specified(directories, project="txl", groups=("sweep",)):
    made = specification(*build(read_sweeps(directories), list(groups), project, ""))
    return json.loads(json.dumps(made))


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """Nobody is logged in, and W&B finds no settings of anybody."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


# The verb in a process of its own that may not open a connection.
SCRIPT = """
import socket, sys
from txl.__main__ import main
def refuse(self, address, *more):
    print("TRIED", address, flush=True)
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
sys.exit(main(sys.argv[1:]))
"""


def alone(*words):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "report", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert "TRIED" not in done.stdout
    return done


@pytest.mark.parametrize("mode", [None, "offline"])
def test_without_a_login_it_is_a_file_and_no_connection_is_tried(tmp_path, nobody, monkeypatch, mode):
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    directory = sweep(tmp_path / "table6-0a1b2c3d")
    (directory / "xl" / "seed1" / "wandb" / "offline-run-1").mkdir(parents=True)
    done = alone(directory, "--wandb")
    assert (done.returncode, done.stderr) == (0, "")
    *_, why, file, how = done.stdout.splitlines()
    assert why == "W&B is offline: not logged in, or WANDB_MODE=offline"
    assert file == str(directory / NAME)
    assert how == (
        f"to publish it: wandb login; wandb sync $(find {directory} -name 'offline-run-*'); "
        "this command again"
    )
    made = json.loads((directory / NAME).read_text())
    assert (made["project"], made["entity"]) == ("txl", None)
    (text,) = [block for block in made["report"]["spec"]["blocks"] if block["type"] == "markdown-block"]
    assert text["content"] == (directory / "table.md").read_text()
    assert made["report"]["displayName"] == made["workspace"]["displayName"] == "Ablation"
    assert headings(made) == ["Learning curves", "Validation", "Throughput", "Memory"]
    assert [section["name"] for section in sections(made)] == headings(made)
    chosen = [grid["metadata"]["runSets"][0] for grid in grids(made)]
    chosen += made["workspace"]["spec"]["section"]["runSets"]
    for runset in chosen:
        (only,) = runset["filters"]["filters"]
        assert only["key"] == {"section": "run", "name": "group"}
        assert (only["op"], only["value"]) == ("IN", ["table6-0a1b2c3d"])
        assert runset["grouping"] == [{"section": "run", "name": "jobType"}]
    for panel in panels(made):
        assert (panel["groupBy"], panel["groupAgg"], panel["groupArea"]) == ("jobType", "mean", "stddev")


@pytest.mark.parametrize(("unit", "score"), [("byte", "bits_per_byte"), ("word", "perplexity")])
def test_every_panel_shows_what_runs_log(tmp_path, run_here, text_file, unit, score):
    run = run_here(*TINY, f"data.path={text_file}", f"data.unit={unit}")
    written = {name for line in metrics_of(run) for name, value in line.items() if value is not None}
    kept = json.loads((run / "results.json").read_text())
    made = specified([write_sweep(tmp_path / "sweep", {"xl": [kept]})])
    shown = {name for panel in panels(made) for name in panel["metrics"]}
    assert shown <= written
    assert {f"train/{score}", f"valid/{score}", "tokens_per_second", "peak_memory_bytes"} <= shown
    assert {panel["xAxis"] for panel in panels(made)} == {"tokens"} <= written
    assert {panel.get("yLogScale") for panel in panels(made) if score in panel["metrics"][0]} == {
        True if unit == "word" else None
    }


def test_units_that_differ_share_the_loss(tmp_path):
    words = logged(2.3, 1)
    words["data"]["unit"] = "word"
    made = specified([write_sweep(tmp_path / "sweep", {"xl": [logged()], "shaw": [words]})])
    assert [panel["metrics"] for panel in panels(made)][:4] == [
        ["train/loss"],
        ["gradient_norm"],
        ["learning_rate"],
        ["valid/loss"],
    ]


def test_no_line_is_cut_off(tmp_path):
    """W&B shows ten lines where it is not told how many there are."""
    table = json.loads(json.dumps(TABLE))
    table["rows"] = {f"row{i}": {"overrides": []} for i in range(14)}
    made = specified([write_sweep(tmp_path / "sweep", {row: [logged()] for row in table["rows"]}, table)])
    assert {panel["limit"] for panel in panels(made)} == {14}
    assert made["workspace"]["spec"]["section"]["settings"]["maxRuns"] == 14


class Server:
    """W&B's API as its packages ask it, with what was saved."""

    default_entity = "someone"
    app_url = "https://wandb.example"

    def __init__(self, fails=0):
        self._service_api, self.saved, self.created, self.fails = self, [], [], fails

    def projects(self, entity):
        return []

    def create_project(self, project, entity):
        self.created.append((entity, project))

    def execute_graphql(self, query, variables):
        if len(self.saved) + self.fails >= 2:
            raise RuntimeError("HTTP 500\nand a page of HTML")
        self.saved.append(variables)
        names = {"id": "abc", "name": variables["name"], "displayName": variables["displayName"]}
        place = {"id": "1", "name": variables["projectName"], "entityName": variables["entityName"]}
        view = names | {"description": "", "project": place, "spec": variables["spec"], "updatedAt": None}
        return {"upsertView": {"view": view, "inserted": True}}


def online(monkeypatch, server):
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "Api", lambda: server)


@pytest.mark.parametrize("entity", [None, "team"])
def test_logged_in_both_are_saved(tmp_path, nobody, monkeypatch, capsys, entity):
    server = Server()
    online(monkeypatch, server)
    directory = sweep(tmp_path / 'it\'s "one"', entity=entity)
    assert main(["report", str(directory), "--wandb"]) == 0
    owner = entity or "someone"
    assert server.created == [(owner, "txl")]
    report, workspace = server.saved
    assert (report["type"], workspace["type"]) == ("runs", "project-view")
    for one in server.saved:
        assert (one["entityName"], one["projectName"]) == (owner, "txl")
        assert (one["displayName"]) == "Ablation"
        assert json.dumps([directory.name]) in json.dumps(json.loads(one["spec"]))
    printed = capsys.readouterr()
    assert f"W&B report: https://wandb.example/{owner}/txl/reports/Ablation--abc" in printed.out
    assert f"W&B workspace: https://wandb.example/{owner}/txl?nw=" in printed.out
    assert printed.err == ""
    assert not (directory / NAME).exists()


def test_what_could_not_be_saved_is_a_file(tmp_path, nobody, monkeypatch, capsys):
    online(monkeypatch, Server(fails=1))
    directory = sweep(tmp_path / "sweep")
    assert main(["report", str(directory), "--wandb"]) == 0
    printed = capsys.readouterr().out
    assert "W&B report: https://" in printed
    assert "W&B could not be reached: HTTP 500\n" in printed
    assert printed.endswith("to publish it: this command again\n")
    assert json.loads((directory / NAME).read_text())["entity"] == "someone"


def test_the_place_on_wandb_is_that_of_the_runs_or_the_one_named(tmp_path, nobody, monkeypatch):
    monkeypatch.setattr(wandb, "login", lambda **_: False)

    def place(directories, *more):
        publish(directories, tmp_path, *more)
        made = json.loads((tmp_path / NAME).read_text())
        (only,) = grids(made)[0]["metadata"]["runSets"][0]["filters"]["filters"]
        return made["project"], made["entity"], only["value"]

    first = sweep(tmp_path / "first", project="p", entity="e")
    second = write_sweep(tmp_path / "second", {"shaw": [logged(project="p", entity="e", group="g")]})
    other = write_sweep(tmp_path / "other", {"shaw": [logged(project="q", entity="e")]})
    none = write_sweep(tmp_path / "none", {"shaw": [results()]})
    assert place([first]) == ("p", "e", ["first"])
    assert place([first, second]) == ("p", "e", ["first", "g"])
    assert place([first], "x", "y") == ("x", "y", ["first"])
    assert place([first, other], "p") == ("p", "e", ["first", "other"])
    assert place([none], "x") == ("x", None, ["none"])
    with pytest.raises(ValueError, match=r"several \(project: p, q\); choose with --wandb-project=NAME"):
        publish([first, other], tmp_path)
    with pytest.raises(ValueError, match=r"no run was logged to W&B \(logger=wandb\); name the project"):
        publish([none], tmp_path)
    with pytest.raises(ValueError, match=r"loose is not in a sweep and has no logger\.wandb\.group"):
        publish([write_run(tmp_path / "loose", logged())], tmp_path)


def test_what_is_missing_is_one_line(tmp_path, monkeypatch, capsys):
    directory = str(sweep(tmp_path / "sweep"))
    assert main(["report", directory, "--wandb-project=x"]) == 1
    assert capsys.readouterr().err.endswith("say where --wandb publishes; add --wandb\n")
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert main(["report", directory, "--wandb"]) == 1
    assert (tmp_path / "sweep" / "table.md").exists()
    assert capsys.readouterr().err == (
        "error: --wandb needs the package wandb_workspaces; install it with: pip install 'txl[wandb]'\n"
    )
