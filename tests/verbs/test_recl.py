"""`txl recl` as a user runs it: a group of models, its table, files and figures, interrupted and wrong."""

import json
import re

import numpy as np
import pytest
import torch

from conftest import TINY, tiny_text
from txl.__main__ import main
from txl.evaluation import contexts
from txl.evaluation.recl import effective_contexts
from txl.interop.checkpoints import export
from txl.runs import group
from txl.runs.trained import load

SMALL = ["start=6", "step=6", "longest=24", "positions=40", "device=cpu"]


@pytest.fixture
def xl(run_here, text_file, tmp_path):
    """The directory of a recurrent run."""
    return run_here(*TINY, f"data.path={text_file}", "trainer.max_steps=2", directory=tmp_path / "xl")


@pytest.fixture
def vanilla(run_here, text_file, tmp_path):
    """The directory of a run on the same text with places in segments of 16, and no memory."""
    words = ["position=learned", "training.memory_length=0", "evaluation.memory_length=0"]
    words += [f"data.path={text_file}", "trainer.max_steps=2"]
    return run_here(*TINY, *words, directory=tmp_path / "vanilla")


def result_in(folder):
    return json.loads((folder / "recl.json").read_text())


def test_a_group_is_scored_shown_and_drawn(xl, vanilla, capsys):
    assert main(["recl", str(xl), str(vanilla), *SMALL]) == 0
    (folder,) = (xl / "evaluations").glob("recl-*")
    result, shown = result_in(folder), capsys.readouterr().out
    assert "vanilla reads at most 16 bytes: its encoding knows places within a segment" in shown
    xl, vanilla = result["models"]
    assert (xl["name"], xl["cap"], vanilla["name"], vanilla["cap"]) == ("xl", None, "vanilla", 16)
    assert vanilla["losses"][2] == vanilla["losses"][3] != vanilla["losses"][1]
    scores = [np.load(folder / model["scores"])["scores"] for model in result["models"]]
    assert [len(of_model) for of_model in scores] == [4, 3]  # contexts of 6, 12, 18, 24; of 6, 12, 16
    filled = np.stack([scores[0], scores[1][[0, 1, 2, 2]]])
    for place, share in enumerate((0.1, 0.5, 1.0)):
        found = effective_contexts(filled, [6, 12, 18, 24], share, 0.01)
        for model, of_model in zip(result["models"], found, strict=True):
            assert model["effective"][place]["length"] == of_model.length
            assert model["effective"][place]["gains"] == pytest.approx(of_model.gains)
        assert vanilla["effective"][place]["recl"] == min(found[1].length, 16)
    for name in ("recl_gain", "recl_perplexity"):
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_other_shares_and_thresholds_need_no_new_scores(xl, monkeypatch):
    assert main(["recl", str(xl), *SMALL]) == 0
    monkeypatch.setattr(group.TransformerScorer, "scores", None)
    assert main(["recl", str(xl), *SMALL, "r=[0.2,0.3]", "threshold=0.5"]) == 0
    (folder,) = (xl / "evaluations").glob("recl-*")
    assert [of["r"] for of in result_in(folder)["models"][0]["effective"]] == [0.2, 0.3]


def test_what_was_interrupted_is_taken_up_again(xl, monkeypatch, capsys, tmp_path):
    words = ["recl", str(xl), *SMALL, "batch_size=4", f"out={tmp_path / 'here'}"]
    whole, calls, scores = tmp_path / "whole", [], group.TransformerScorer.scores
    assert main([*words, f"out={whole}"]) == 0

    def interrupted(self, window, lengths):
        calls.append(len(window))
        if len(calls) == 14:  # the comparison with single contexts takes five
            raise KeyboardInterrupt
        return scores(self, window, lengths)

    monkeypatch.setattr(group.TransformerScorer, "scores", interrupted)
    assert main(words) == 130
    assert "scores so far are kept" in " ".join(capsys.readouterr().out.split())
    before = len(calls)
    assert main(words) == 0
    assert calls[before:]
    assert result_in(tmp_path / "here")["models"][0]["losses"] == result_in(whole)["models"][0]["losses"]
    monkeypatch.undo()
    assert len(list((tmp_path / "here" / "scores").iterdir())) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused_when_it_comes(xl, monkeypatch, capsys, tmp_path, value):
    words = ["recl", str(xl), *SMALL, "names=[mine]", "batch_size=4", f"out={tmp_path / 'out'}"]
    scores, calls = group.TransformerScorer.scores, []

    def broken(self, window, lengths):
        calls.append(1)
        found = scores(self, window, lengths)
        return found if len(calls) <= 5 else found * value  # the comparison with single contexts takes five

    monkeypatch.setattr(group.TransformerScorer, "scores", broken)
    for _ in range(2):  # what is kept holds none
        calls.clear()
        assert main(words) == 1
        said = rf"error: mine: a score from (6|12|18|24) tokens of context is {value}: the model gives"
        assert re.match(said, capsys.readouterr().err)
        assert len(calls) == 6
    assert not (tmp_path / "out" / "recl.json").exists()


def test_how_far_a_query_may_see_and_a_text_of_ones_own_can_be_said(xl, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text(tiny_text(100))
    twice = [str(xl), str(xl), "names=[all,three]", "attention_length=[null,3]", "cap=[null,12]"]
    assert main(["recl", *twice, *SMALL, f"text={text}", f"out={tmp_path / 'out'}"]) == 0
    everything, three = result_in(tmp_path / "out")["models"]
    assert (everything["reading"]["attention_length"], three["reading"]["attention_length"]) == (None, 3)
    assert (three["cap"], three["cap_reason"]) == (12, "as given")
    assert everything["losses"][0] != three["losses"][0]
    assert result_in(tmp_path / "out")["data"]["name"] == "own.txt"


def test_a_text_of_ones_own_is_read_as_that_of_the_training(xl, tmp_path):
    one, path = group.member(xl, "xl"), tmp_path / "own.txt"
    path.write_text("the\nlazy\n")
    one.trained.description["data"]["settings"]["newlines"] = "drop"
    expected = one.trained.vocabulary.encode(b"thelazy").tolist()
    assert group.read_text([one], "test", path).tokens.tolist() == expected
    assert one.trained.text("valid", path).tokens.tolist() == expected
    path.write_text("the €")
    with pytest.raises(ValueError, match=r"own.txt cannot be read with the vocabulary of .*xl"):
        group.read_text([one], "test", path)


def test_a_model_of_hugging_face_is_one_of_the_group(xl, tmp_path):
    from interop.test_causal import saved_gpt2

    size = len(load(xl).vocabulary)
    saved_gpt2(tmp_path / "gpt2", vocab_size=size)
    words = ["recl", str(xl), str(tmp_path / "gpt2"), *SMALL, f"out={tmp_path / 'out'}"]
    assert main(words) == 0
    result = result_in(tmp_path / "out")
    assert result["models"][1]["cap"] == 16
    assert result["models"][1]["cap_reason"].startswith("the positions it was made for")


def test_what_is_wrong_is_said_in_a_line(xl, vanilla, capsys, tmp_path, run_here):
    xl, vanilla = str(xl), str(vanilla)
    other = tmp_path / "other.txt"
    other.write_text(tiny_text().replace("fox", "FOX"))
    stranger = run_here(*TINY, f"data.path={other}", "trainer.max_steps=1", directory=tmp_path / "stranger")
    trained = load(xl)
    del trained.description["vocabulary"], trained.description["data"]
    export(trained.model, trained.description, tmp_path / "bare.safetensors")
    for words, message in {
        (xl, str(stranger)): f"the tokens of {stranger} (",
        (str(tmp_path / "bare.safetensors"),): "no model of the group knows its vocabulary",
        (xl, "longest=3000"): "longest context, 3,000",
        (xl, "positions=100000"): "positions=100000 must be from 1 to",
        (xl, "positions=5"): "r=0.1 of 5 positions is less than one; use 10 or more",
        (xl, "split=tset"): "split=tset: expected one of train, valid, test",
        (xl, "lenghts=3"): "there is no setting lenghts; did you mean",
        (xl, vanilla, "names=a"): "names=a: expected 2 different names, one a model",
        (xl, vanilla, "cap=[1,2,3]"): "cap has 3 values for 2 models",
        (xl, xl): "a model is named twice; tell them apart by names=",
        ("step=3",): "name at least one model",
    }.items():
        capsys.readouterr()
        assert main(["recl", *SMALL, *words]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert message in said


def test_names_are_the_shortest_ends_that_differ(tmp_path):
    paths = [tmp_path / "xl/seed1", tmp_path / "xl/seed2", tmp_path / "no/seed1"]
    assert group.short_names(paths) == ["xl/seed1", "xl/seed2", "no/seed1"]
    assert group.short_names(paths[:2]) == ["seed1", "seed2"]


def test_a_model_that_reads_ahead_reads_each_context_by_itself(run_here, text_file, tmp_path):
    words = [*TINY, f"data.path={text_file}", "trainer.max_steps=2", "position=sinusoidal"]
    words += ["position.from_end=true", "training.memory_length=0", "evaluation.memory_length=0"]
    run = run_here(*words)
    assert main(["recl", str(run), *SMALL, f"out={tmp_path / 'out'}"]) == 0
    (model,) = result_in(tmp_path / "out")["models"]
    kept = np.load(tmp_path / "out" / model["scores"])
    text, trained = load(run).corpus().tokens["test"], load(run).model
    reader = contexts.TransformerScorer(trained)
    place = int(kept["positions"][3])
    window = torch.from_numpy(text[place - 12 : place + 1].astype(np.int64))[None]
    assert kept["scores"][1, 3] == pytest.approx(reader.scores(window, [12]).item(), abs=1e-5)
