"""`txl evaluate` as a user runs it: a run and words, a table, a JSON, a figure, scores of every token."""

import json
import os
import signal

import numpy as np
import pytest

from conftest import TINY
from txl.__main__ import main
from txl.evaluation import perplexity as scoring


@pytest.fixture
def run(run_here, text_file):
    return run_here(*TINY, f"data.path={text_file}", "trainer.max_steps=2", "evaluation.batch_size=1")


def evaluated(run, *words):
    assert main(["evaluate", str(run), "device=cpu", "precision=32-true", *words]) == 0
    newest = max((run / "evaluations").glob("evaluate-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(newest.read_text())


def test_the_verb(run, tmp_path, capsys):
    results = json.loads((run / "results.json").read_text())
    by_split = {split: evaluated(run, f"split={split}")["attention"][0] for split in ("valid", "test")}
    for split, entry in by_split.items():
        assert entry["tokens_scored"] == results[split]["tokens_scored"]
        assert entry["loss"] == pytest.approx(results[split]["loss"], rel=2e-2)  # which is of bfloat16
        assert entry["loss_low"] < entry["loss"] < entry["loss_high"]
    again = evaluated(run, "batch_size=1")["attention"][0]
    assert again["tokens_of_warm_up"] == 0 < by_split["test"]["tokens_of_warm_up"]
    assert again["loss"] == pytest.approx(by_split["test"]["loss"], abs=1e-6)

    scores = tmp_path / "scores.tsv"
    found = evaluated(run, "attention_length=[4,16,32]", f"scores={scores}", "tokens=300")
    assert [entry["attention_length"] for entry in found["attention"]] == [4, 16, 32]
    assert [entry["memory_length"] for entry in found["attention"]] == [3, 15, 31]
    head, *lines = [line.split("\t") for line in scores.read_text().splitlines()]
    assert head == ["place", "id", "symbol", "score_at_4", "score_at_16", "score_at_32"]
    assert len(lines) == 300
    assert np.mean([float(line[4]) for line in lines]) == pytest.approx(
        found["attention"][1]["loss"], abs=1e-5
    )
    assert len(list((run / "figures").glob("evaluate-*.png"))) == 1

    window = evaluated(run, "attention_length=8", "stride=1", "tokens=100")["attention"][0]
    assert (window["segment_length"], window["memory_length"], window["stride"]) == (8, 0, 1)
    own = tmp_path / "own.txt"
    own.write_text("the lazy dog over the quick fox\n" * 20)
    assert evaluated(run, f"text={own}", "reset_every=2")["attention"][0]["tokens_scored"] == 20 * 32 - 1
    own.write_text("dog")  # with the run's lengths, however short it is
    assert evaluated(run, f"text={own}")["attention"][0]["tokens_scored"] == 2
    assert "own.txt" in capsys.readouterr().out


def test_segments_overlap_as_in_the_runs_own_evaluation(run_here, text_file):
    words = [f"data.path={text_file}", "trainer.max_steps=2", "trainer.precision=32-true"]
    run = run_here(*TINY, *words, "evaluation.batch_size=1", "evaluation.loss=half")
    entry, own = evaluated(run)["attention"][0], json.loads((run / "results.json").read_text())["test"]
    for key in ("segment_length", "memory_length", "stride", "tokens_scored"):
        assert entry[key] == own[key]
    assert entry["loss"] == pytest.approx(own["loss"], abs=1e-6)
    assert evaluated(run, "segment_length=8")["attention"][0]["stride"] == 8


@pytest.mark.parametrize("kind", ["documents", "sentences"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_text_is_read_by_documents_or_sentences_as_in_the_runs_own_evaluation(
    run_here, text_file, tmp_path, kind, rows
):
    words = [f"data.path={text_file}", "trainer.max_steps=2", "trainer.precision=32-true"]
    words += [f"evaluation.batch_size={rows}", f"evaluation.streams={kind}", r'evaluation.border="\n"']
    run = run_here(*TINY, *words)
    own = json.loads((run / "results.json").read_text())["test"]
    # Rows of the run's own that begin within a document begin without a memory, as these without a warm-up.
    (entry,) = evaluated(run, f"batch_size={rows}", "warm_up=0")["attention"]
    assert entry["tokens_scored"] == own["tokens_scored"]
    if kind == "documents" or rows == 1:
        assert entry["loss"] == pytest.approx(own["loss"], abs=1e-6)
    else:  # its rows begin with sentences, and not with a segment
        assert entry["loss"] == pytest.approx(own["loss"], rel=2e-2)
    assert entry["streams"] == ("documents" if kind == "documents" else "ordered")
    warm = [evaluated(run, f"batch_size={size}")["attention"][0]["loss"] for size in (1, 3)]
    assert warm[1] == pytest.approx(warm[0], abs=1e-6)
    export = tmp_path / "model.safetensors"
    assert main(["export", str(run), str(export)]) == 0
    found = tmp_path / "found.json"
    assert main(["evaluate", str(export), "device=cpu", "precision=32-true", f"out={found}"]) == 0
    (exported,) = json.loads(found.read_text())["attention"]
    assert exported["loss"] == pytest.approx(warm[0], abs=1e-6)


def test_what_cannot_be_is_said_in_a_line(run, tmp_path, capsys):
    own = tmp_path / "own.txt"
    for content, words, message in [
        ("", [], "own.txt: 0 tokens; scoring needs at least 2"),
        ("the €", [], "cannot be read with the vocabulary of"),
        (
            "the lazy dog",
            ["attention_length=64"],
            "a context of 64 tokens is longer than the text, which has 12",
        ),
        ("the lazy dog", ["memory_length=64"], "a context of 64 tokens is longer than the text"),
        ("the lazy dog", ["memory_length=4", "stride=1"], "stride is for windows without memory"),
        ("the lazy dog", ["attention_length=4,0"], "attention_length=0 must be positive"),
        ("the lazy dog", ["atention_length=4"], "did you mean attention_length"),
        ("the lazy dog", [f"out={tmp_path}"], f"{tmp_path} is a folder; name a file in it"),
        ("the lazy dog", [f"scores={own}/x.tsv"], "own.txt is not a folder"),
        (None, ["split=dev"], "split=dev: expected one of train, valid, test"),
    ]:
        own.write_text(content or "")
        text = [] if content is None else [f"text={own}"]
        assert main(["evaluate", str(run), *text, *words]) == 1
        assert message in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "nothing")]) == 1
    assert "nothing does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_scored_before_an_interruption_is_kept_and_called_partial(
    run, number, code, monkeypatch, capsys
):
    interrupt_at(monkeypatch, 5, lambda: os.kill(os.getpid(), number))
    words = ["batch_size=1", "attention_length=[8,16]", "device=cpu", "precision=32-true"]
    assert main(["evaluate", str(run), *words]) == code
    found = json.loads(next((run / "evaluations").glob("*.json")).read_text())
    assert found["status"] == "interrupted"
    assert [(entry["partial"], entry["tokens_scored"]) for entry in found["attention"]] == [(True, 64)]
    assert "interrupted: 64 tokens were scored" in capsys.readouterr().out


def test_what_ends_a_later_length_leaves_the_ones_before(run, monkeypatch, capsys):
    def failing():
        raise MemoryError("no more")

    words = ["batch_size=1", "attention_length=[8,16]", "tokens=32", "device=cpu", "precision=32-true"]
    interrupt_at(monkeypatch, 3, failing)  # of two segments each
    assert main(["evaluate", str(run), *words]) == 1
    assert "error: out of memory: no more; use a smaller" in capsys.readouterr().err
    (path,) = (run / "evaluations").glob("*.json")
    found = json.loads(path.read_text())
    assert (found["status"], [entry["attention_length"] for entry in found["attention"]]) == (
        "interrupted",
        [8],
    )
    interrupt_at(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["evaluate", str(run), *words]) == 130
    assert "nothing is written" in capsys.readouterr().out
    assert json.loads(path.read_text()) == found


def interrupt_at(monkeypatch, count, act):
    """Let reading a segment, from now on the count-th, do something before it."""
    read, calls = scoring.CachedInference.read, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == count:
            act()
        return read(self, *arguments)

    monkeypatch.setattr(scoring.CachedInference, "read", interrupted)
