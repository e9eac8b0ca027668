"""`txl speed` as a user runs it: a shape or a run, a table, a JSON and a figure; interrupted; mistaken."""

import json

import pytest

from conftest import SMALL, small_model
from txl.__main__ import main
from txl.interop.checkpoints import export
from txl.verbs import speed

SHAPE = ["experiment=enwik8_12l"]
SHAPE += [f"model.{name}" for name in ("n_layer=2", "d_model=16", "n_head=2", "d_head=8", "d_inner=32")]
QUICK = ["attention_length=[12,20]", "rounds=2", "device=cpu", "precision=32-true"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def measured(folder):
    (path,) = (folder / "evaluations").glob("speed-*.json")
    assert [figure.name for figure in (folder / "figures").iterdir()] == [f"{path.stem}.png"]
    return json.loads(path.read_text())


def test_a_shape_with_its_experiments_test_settings(here, capsys):
    assert main(["speed", *SHAPE, *QUICK, "tokens=1000"]) == 0
    found = measured(here / "outputs")
    assert (found["status"], found["random_parameters"]) == ("completed", True)
    assert (found["model"]["vocabulary"], found["model"]["clamp_length"]) == (204, 820)
    said = found["settings"]
    assert (said["segment_length"], said["batch_size"], said["windows"]) == (80, 10, 1)
    assert [entry["attention_length"] for entry in found["attention"]] == [12, 20]
    for entry in found["attention"]:
        vanilla, recurrent = entry["vanilla"], entry["recurrent"]
        assert (vanilla["tokens_measured"], recurrent["tokens_measured"]) == (2, 2 * 2 * 800)
        assert vanilla["milliseconds_per_token"]["median"] > 0 < recurrent["milliseconds_per_token"]["least"]
        whole = entry["extrapolated"]
        assert whole["tokens"] == 1000
        assert whole["vanilla_seconds"] == pytest.approx(vanilla["milliseconds_per_token"]["median"])
        assert entry["published_slowdown"] is None
        assert entry["difference_from_plain_forward"]["vanilla"]["states"] < 0.01
    printed = capsys.readouterr().out
    assert "measured on 3,200 tokens recurrent, 2 vanilla; extrapolated to 1,000:" in printed
    assert "it does not state model, batch or segment" in " ".join(printed.split())


def test_a_source(here, capsys):
    description = {
        "model": {"_target_": "txl.model.TransformerXL", **SMALL},
        "position": {"_target_": "txl.model.RelativePosition", "key_length": 64},
        "reading": {"segment_length": 5, "memory_length": 5, "attention_length": 6, "clamp_length": 3},
    }
    export(small_model(), description, here / "model.safetensors")
    words = ["model.safetensors", *QUICK, "batch_size=2", "windows=3", "passes=2"]
    assert main(["speed", *words]) == 0
    found = measured(here)
    assert (found["random_parameters"], found["model"]["clamp_length"]) == (False, 3)
    assert found["settings"]["segment_length"] == 5
    assert [entry["vanilla"]["tokens_measured"] for entry in found["attention"]] == [12, 12]
    assert main(["speed", *words, "out=there/speed.json"]) == 0
    assert {path.name for path in (here / "there").iterdir()} == {"speed.json", "speed.png"}
    assert main(["speed", "model.safetensors", "model.n_layer=3"]) == 1
    assert "model.n_layer=3: model.safetensors has its shape" in capsys.readouterr().err


def test_the_precision_is_decided_in_one_place(here, monkeypatch):
    def decided(precision, accelerator):
        return ("64-true" if precision == "auto" else precision), "as the test says"

    monkeypatch.setattr("txl.runs.trained.resolve_precision", decided)
    assert main(["speed", *SHAPE, *QUICK, "precision=auto", "batch_size=1", "segment_length=4"]) == 0
    assert measured(here / "outputs")["precision"] == "64-true"


@pytest.mark.parametrize("done", [0, 1])
def test_an_interruption_leaves_the_lengths_that_are_done(done, here, monkeypatch, capsys):
    measure, calls = speed.measure, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) > done:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(speed, "measure", interrupted)
    assert main(["speed", *SHAPE, *QUICK, "batch_size=1", "segment_length=4"]) == 130
    output = capsys.readouterr()
    assert f"interrupted while measuring attention length {[12, 20][done]}" in output.out
    if done:
        found = measured(here / "outputs")
        assert found["status"] == "interrupted"
        assert [entry["attention_length"] for entry in found["attention"]] == [12]
    else:
        assert "nothing is written" in output.out
        assert not list(here.iterdir())


def test_too_little_memory_is_said_in_a_line(here, monkeypatch, capsys):
    def lacking(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(speed, "measure", lacking)
    assert main(["speed", *SHAPE, *QUICK]) == 1
    said = capsys.readouterr().err
    assert "error: while measuring attention length 12: out of memory: DefaultCPUAllocator" in said
    assert "use a smaller batch_size or windows" in said


def test_what_cannot_be_is_said_in_a_line(here, capsys):
    for words, message in [
        (["rounds=2"], "name what to measure"),
        (["a", "b"], "name what to measure: one SOURCE"),
        (["nothing"], "nothing does not exist"),
        ([*SHAPE, "atention_length=4"], "did you mean attention_length"),
        ([*SHAPE, "attention_length=1"], "attention_length=[1]: expected lengths of 2 or more"),
        ([*SHAPE, "attention_length=[]"], "expected lengths of 2 or more"),
        ([*SHAPE, "rounds=0"], "rounds=0 must be positive"),
        ([*SHAPE, "rounds=many"], "rounds=many: expected a whole number"),
        ([*SHAPE, "device=tpu"], "device=tpu cannot be used here"),
        ([*SHAPE, "precision=16"], "precision=16: expected one of"),
        ([*SHAPE, "position=rotary"], "evaluation.clamp_length=820: the position encoding has no clamp"),
        ([*SHAPE, "data.vocabulary=null"], "give data.vocabulary=N"),
        (["experiment=enwik8_13l"], "there is no experiment=enwik8_13l; did you mean enwik8_1"),
    ]:
        assert main(["speed", *words]) == 1, words
        assert message in capsys.readouterr().err


def test_the_papers_ratios_and_durations():
    assert speed.published_slowdowns() == {3800: 1874, 2800: 1409, 1800: 773, 800: 363}
    durations = [speed.duration(seconds) for seconds in (0.5, 90, 7200, 86400 * 1234.5)]
    assert durations == ["0.5 s", "1.5 min", "2.0 h", "1,234.5 days"]
