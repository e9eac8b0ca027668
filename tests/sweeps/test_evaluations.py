"""What is measured of a sweep's models when they are trained, through the real command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import TINY
from sweeps.test_sweep_runs import LIMIT, output, program, start, wait_for
from txl.report import write_tables
from txl.sweeps import evaluations as sweep_evaluations
from txl.sweeps.evaluations import SweepEvaluation, attention_length, evaluations_of, run_evaluations

RECL = "[start=4, step=4, longest=16, positions=20]"
MINE = """
title: Mine
source: the tests
published_on: nothing
columns: {group: Group}
measures: [recl_r10, recl_r100]
evaluation: {verb: recl, together: group, laptop: SETTINGS}
scales:
  laptop:
    note: tiny
    overrides: [trainer.max_steps=4, evaluation.attention_stride=4, "evaluation.attention_lengths=[8,16,32]"]
rows:
  xl: {label: XL, group: "1", published: {recl_r10: 900}, overrides: [position=relative]}
  rotary: {label: Rotary, group: "1", overrides: [position=rotary, "evaluation.attention_lengths=[16]"]}
  lstm: {label: LSTM, group: "1", published: {recl_r10: 400}}
"""


@pytest.fixture
def call(train, text_file):
    """Return a function that runs a sweep of the words and returns its exit code; what it prints is kept."""
    train.environment["OMP_NUM_THREADS"] = "1"

    def call(*words: str) -> int:
        (train.folder / "output.txt").write_text("")
        tiny = [word for word in TINY if not word.startswith("trainer.max_steps")]
        tiny += ["data.path=tiny.txt", "sample.tokens=5", "trainer.precision=32-true"]
        return start(train, *tiny, *words, "hydra.sweep.dir=sweep").wait(LIMIT)

    return call


def written(train, settings: str = RECL, verb: str = "recl") -> str:
    said = MINE.replace("SETTINGS", settings).replace("verb: recl", f"verb: {verb}")
    (train.folder / "mine.yaml").write_text(said if verb == "recl" else said.replace(", together: group", ""))
    return "+ablation=mine.yaml"


def cells(train, row: str) -> list[str]:
    lines = (train.folder / "sweep" / "table.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.slow
def test_a_group_is_measured_when_its_rows_are_trained_and_not_again(train, call):
    sweep = train.folder / "sweep"
    folder = sweep / "evaluations" / "recl-group-1-seed1"
    # A verb that fails is a failed sweep with its reason, and the models are kept.
    assert call(written(train, "[]")) == 1
    said = output(train)
    assert "recl xl/seed1 rotary/seed1  failed: the text has 557 tokens, no more than the longest" in said
    assert "2 of 2 jobs done; 0 of 1 evaluations done, 1 failed" in said
    assert cells(train, "xl")[-1] == "completed; txl recl failed"
    assert "xl, seed 1: txl recl failed: the text has 557" in (sweep / "table.md").read_text()
    # Other settings: only the evaluation runs, and goes into the table.
    assert call(written(train)) == 0
    said = output(train)
    assert "2 of them done already" in said
    assert "1 of 1 evaluations done" in said
    models = json.loads((folder / "recl.json").read_text())["models"]
    assert [model["name"] for model in models] == ["xl", "rotary"]
    found = json.loads((sweep / "xl" / "seed1" / "results.json").read_text())
    assert models[0]["reading"]["attention_length"] == attention_length(found) in (8, 16, 32)
    assert models[1]["reading"]["attention_length"] == 16
    for model in models:
        by_r = {one["r"]: str(one["recl"]) for one in model["effective"]}
        row = cells(train, model["name"])
        assert (row[4], row[6]) == (by_r[0.1], by_r[1.0])
    assert cells(train, "xl")[5] == "900"
    assert cells(train, "lstm")[-1] == "published only"
    page = (sweep / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "recl_gain.png" in page
    # What is there is not made again, unless a model is newer.
    before = (folder / "recl.json").stat().st_mtime_ns
    assert call(written(train)) == 0
    assert (folder / "recl.json").stat().st_mtime_ns == before
    described = json.loads((sweep / "sweep.json").read_text())
    (one,) = evaluations_of(described["table"], described["jobs"])
    assert one.is_done(sweep)
    os.utime(sweep / "xl" / "seed1" / "checkpoints" / "last.ckpt")
    assert not one.is_done(sweep)
    # The report needs the files alone, wherever they are.
    shutil.copytree(sweep, train.folder / "moved")
    (train.folder / "moved" / "report.html").unlink()
    write_tables(train.folder / "moved")
    assert (train.folder / "moved" / "report.html").read_text() == page


@pytest.mark.slow
def test_each_row_by_itself_stopped_and_gone_on_with(train, call):
    words = written(train, "[memory_length=8, segment_length=8, terms=false, tokens=TOKENS]", "attention")
    path = train.folder / "mine.yaml"
    text = path.read_text()
    path.write_text(text.replace("TOKENS", "null, batch_size=1"))
    tiny = [word for word in TINY if not word.startswith("trainer.max_steps")]
    tiny += ["data.path=tiny.txt", "sample.tokens=5", "trainer.precision=32-true"]
    run = start(train, *tiny, words, "hydra.sweep.dir=sweep")
    sweep = train.folder / "sweep"
    first = sweep / "evaluations" / "attention-xl-seed1"
    wait_for((first / "console.log").exists, train)
    os.kill(program(run), signal.SIGTERM)
    assert run.wait(LIMIT) == 143, output(train)
    assert "Run the same command to continue" in output(train)
    assert json.loads((first / "evaluation.json").read_text())["status"] == "interrupted"
    assert not (sweep / "evaluations" / "attention-rotary-seed1").exists()
    path.write_text(text.replace("TOKENS", "50"))
    assert call(words) == 0, output(train)
    for row in ("xl", "rotary"):
        result = json.loads((sweep / "evaluations" / f"attention-{row}-seed1" / "attention.json").read_text())
        assert (result["complete"], result["tokens"]) == (True, 50)
        assert cells(train, row)[-1] == "completed"
    assert (sweep / "report.html").read_text().count("data:image/png;base64,") == 4


TABLE = {
    "evaluation": {"verb": "recl", "together": "group", "settings": ["a=1"]},
    "rows": {"x": {"group": "1"}, "y": {"group": "2"}, "z": {"group": "1"}, "other": {"group": "1"}},
}


def test_rows_of_a_group_belong_together_in_the_tables_order_and_each_seed_by_itself():
    jobs = [{"row": row, "seed": seed, "directory": f"{row}/seed{seed}"} for row in "zyx" for seed in (1, 2)]
    found = evaluations_of(TABLE, jobs)
    assert {one.directory: one.jobs for one in found} == {
        "evaluations/recl-group-1-seed1": ["x/seed1", "z/seed1"],
        "evaluations/recl-group-1-seed2": ["x/seed2", "z/seed2"],
        "evaluations/recl-group-2-seed1": ["y/seed1"],
        "evaluations/recl-group-2-seed2": ["y/seed2"],
    }
    alone = {**TABLE, "evaluation": {"verb": "attention", "settings": []}}
    assert len(evaluations_of(alone, jobs)) == 6
    assert evaluations_of(None, jobs) == evaluations_of({"rows": {}}, jobs) == []


SMALL_SPEED = ["data=lagged_copy", "model.n_layer=1", "model.d_model=16", "model.n_head=2", "model.d_head=8"]
SMALL_SPEED += ["model.d_inner=16", "segment_length=8", "batch_size=2"]
SPEED = """
title: Speed
source: the tests
published_on: nothing
columns: {}
measures: [slowdown]
evaluation: {verb: speed, laptop: [WORDS]}
scales: {laptop: {note: tiny, overrides: []}}
rows:
  short: {label: Short, published: {slowdown: 9}, at_attention_length: {laptop: 24}}
  long: {label: Long, published: {slowdown: 99}, at_attention_length: {laptop: 40}}
"""


@pytest.mark.slow
def test_what_needs_no_trained_model_is_measured_at_once(train):
    train.environment["OMP_NUM_THREADS"] = "1"
    words = [*SMALL_SPEED, "attention_length=[24,40]", "rounds=1"]
    said = SPEED.replace("WORDS", ", ".join(f'"{word}"' for word in words))
    (train.folder / "speed.yaml").write_text(said)
    run = start(train, "+ablation=speed.yaml", "hydra.sweep.dir=sweep")
    assert run.wait(LIMIT) == 0, output(train)
    assert "0 jobs in sweep" in output(train)
    assert "1 of 1 evaluations done" in output(train)
    result = json.loads((train.folder / "sweep" / "evaluations" / "speed" / "speed.json").read_text())
    for row, entry in zip(("short", "long"), result["attention"], strict=True):
        found = cells(train, row)
        assert found[3:] == [
            f"{entry['slowdown']['median']:,.0f}",
            {"short": "9", "long": "99"}[row],
            "completed",
        ]
    assert (train.folder / "sweep" / "report.html").read_text().count("data:image/png;base64,") == 1


MEASURES = """
from pathlib import Path
from txl.sweeps.evaluations import SweepEvaluation, run_evaluations

run_evaluations(Path("sweep"), [SweepEvaluation("speed", "evaluations/speed", [], {words})])
"""
# So small that it takes little, and so many rounds that it does not end by itself in time.
ENDLESS = [*SMALL_SPEED, "attention_length=[24]", "rounds=300000"]


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_no_verb_behind(tmp_path, monkeypatch):
    (tmp_path / "sweep").mkdir()
    monkeypatch.chdir(tmp_path)
    sweep = subprocess.Popen(
        [sys.executable, "-c", MEASURES.format(words=ENDLESS)], stdout=subprocess.DEVNULL
    )
    try:
        verb = _child(sweep.pid, b"speed")
        sweep.kill()
        sweep.wait()
        try:
            _wait_until(lambda: not _runs(verb))
        finally:
            if _runs(verb):
                os.kill(verb, signal.SIGKILL)
    finally:
        sweep.kill()
        sweep.wait()


DEAF = """
import signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
Path("deaf").touch()
time.sleep(100)
"""


def test_ctrl_c_ends_a_sweep_though_its_verb_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_evaluations, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(SweepEvaluation, "command", lambda *_: [sys.executable, "-c", DEAF])

    def interrupt() -> None:
        _wait_until(Path("deaf").exists)
        os.kill(os.getpid(), signal.SIGINT)

    began, asking = time.monotonic(), threading.Thread(target=interrupt)
    asking.start()
    two = [SweepEvaluation("speed", f"evaluations/{name}", [], []) for name in ("first", "second")]
    assert run_evaluations(tmp_path, two) == (["interrupted", "to do"], signal.SIGINT)
    asking.join()
    assert time.monotonic() - began < 60
    said = json.loads((tmp_path / "evaluations" / "first" / "evaluation.json").read_text())
    assert (said["status"], said["error"]) == ("interrupted", "stopped by SIGINT")


def _child(parent: int, word: bytes) -> int:
    """Return the child of a process that is a command with that word, when it is there."""
    found: list[int] = []

    def look() -> bool:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        of = {int(one): Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0") for one in children}
        found[:] = [one for one, command in of.items() if word in command]
        return bool(found)

    _wait_until(look)
    return found[0]


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
