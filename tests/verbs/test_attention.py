"""`txl attention`, as a user runs it."""

import json

import numpy as np
import pytest
import torch

from conftest import SMALL, small_model
from txl.__main__ import main
from txl.data import text
from txl.evaluation import attention as maps
from txl.interop.checkpoints import export
from txl.verbs import attention as verb

SHORT = ["memory_length=16", "segment_length=8", "tokens=100"]


@pytest.fixture
def model(tmp_path, text_file):
    """The file of a model that knows its vocabulary and corpus, as `txl export` writes it."""
    settings = {"path": str(text_file), "cache": str(tmp_path / "cache")}
    corpus = text(**settings)
    shape = SMALL | {"n_head": 2, "vocabulary": len(corpus.vocabulary)}
    description = {
        "model": {"_target_": "txl.model.TransformerXL", **shape},
        "position": {"_target_": "txl.model.RelativePosition", "key_length": 64},
        "reading": {"memory_length": 16, "attention_length": None, "clamp_length": None},
        "vocabulary": {"unit": corpus.unit, "lines": corpus.vocabulary.lines()},
        "data": {"sha256": corpus.sha256, "settings": {"_target_": "txl.data.text", **settings}},
    }
    path = tmp_path / "run" / "model.safetensors"
    path.parent.mkdir()
    export(small_model(dtype=torch.float32, **shape), description, path)
    return path


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the figures out: they have tests of their own."""
    monkeypatch.setattr("txl.verbs.attention.draw_attention", lambda path, folder: [])


def written(folder):
    path = next(folder.glob("attention*.json"))
    with np.load(path.with_suffix(".npz")) as arrays:
        return json.loads(path.read_text("utf-8")), dict(arrays)


def test_numbers_figures_and_page_stand_with_the_run(model, capsys):
    assert main(["attention", str(model), *SHORT]) == 0
    shown = capsys.readouterr().out
    result, arrays = written(model.parent / "evaluations")
    assert result["complete"]
    assert result["tokens"] == result["tokens_asked"] == 100
    assert (result["layers"], result["heads"], result["memory_length"], result["split"]) == (
        2,
        2,
        16,
        "valid",
    )
    assert result["terms"] == ["a", "b", "c", "d"]
    for name in ("mean_attention", "mean_a", "mean_b", "mean_c", "mean_d"):
        assert arrays[name].shape == (4, 17)
        np.testing.assert_allclose(arrays[name].sum(-1), 1.0, atol=1e-5)
    segment = result["segment"]
    assert len(segment["tokens"]) == 24
    assert [head["why"] for head in segment["heads"]] == ["most uniform", "between", "most sparse"]
    assert arrays["segment_attention"].shape == (3, 8, 24)
    stem = next((model.parent / "evaluations").glob("attention*.json")).stem
    figures = {file.name for file in (model.parent / "figures").glob("attention*")}
    assert figures == {
        f"{stem}.html",
        *(f"{stem}-{name}.{kind}" for name in ("mean", "heads", "terms") for kind in ("png", "pdf")),
    }
    assert f"{stem}.html" in shown
    assert "most uniform" in shown
    assert "leaves (c) out" in shown


@pytest.mark.usefixtures("undrawn")
def test_what_is_asked_for_is_what_is_measured(model, tmp_path, text_file):
    other, words = tmp_path / "other.txt", text_file.read_bytes()[:300]
    other.write_bytes(words)
    asked = ["heads=[3,1]", "position=40", "terms=false", f"text={other}", f"out={tmp_path / 'out'}"]
    assert main(["attention", str(model), "memory_length=16", "segment_length=8", *asked]) == 0
    result, arrays = written(tmp_path / "out")
    assert (result["tokens"], result["split"], result["terms"]) == (284, "other.txt", [])
    assert result["segment"]["heads"] == [{"head": head, "why": "chosen by hand"} for head in (3, 1)]
    assert result["segment"]["position"] == 40
    shown = "".join(result["segment"]["tokens"]).replace("␣", " ").replace("↵", "\n")
    assert shown.encode() == words[24:48]
    assert set(arrays) == {"mean_attention", "segment_attention"}
    assert not (model.parent / "evaluations").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_seed_chooses_the_place_and_the_batch_changes_nothing(model, tmp_path):
    def found(*words):
        folder = tmp_path / "-".join(words).replace("=", "")
        assert main(["attention", str(model), *SHORT, *words, f"out={folder}"]) == 0
        return written(folder)

    (one, means), (same, more), (other, _) = found("seed=1"), found("seed=1", "batch_size=3"), found("seed=2")
    assert one["segment"] == same["segment"]
    assert one["segment"]["position"] != other["segment"]["position"]
    for name, values in means.items():
        np.testing.assert_allclose(values, more[name], atol=1e-6)


@pytest.mark.usefixtures("undrawn")
def test_an_interruption_leaves_what_was_read_and_says_so(model, capsys, monkeypatch):
    whole = maps.mean_attention

    def interrupted(*words):
        for segment, means in enumerate(whole(*words)):
            if segment == 9:
                raise KeyboardInterrupt
            yield means

    monkeypatch.setattr(maps, "mean_attention", interrupted)
    assert main(["attention", str(model), *SHORT, "batch_size=1"]) == 130
    result, arrays = written(model.parent / "evaluations")
    assert not result["complete"]
    assert result["tokens"] == 9 * 8 - 16  # the first 16 have no full memory
    assert result["tokens_asked"] == 100
    np.testing.assert_allclose(arrays["mean_attention"].sum(-1), 1.0, atol=1e-5)
    assert "interrupted: the means are of the 56 tokens read until then" in capsys.readouterr().out
    assert "INTERRUPTED" in next((model.parent / "figures").glob("attention*.html")).read_text("utf-8")


def test_an_interruption_while_single_heads_are_read_leaves_the_means(model, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    assert main(["attention", str(model), *SHORT, f"out={model.parent / 'whole'}"]) == 0
    monkeypatch.setattr(maps, "attention_at", interrupted)
    assert main(["attention", str(model), *SHORT]) == 130
    result, arrays = written(model.parent / "evaluations")
    assert (result["complete"], result["tokens"], result["segment"]["heads"]) == (False, 100, [])
    _, whole = written(model.parent / "whole")
    for name in ("mean_attention", "mean_a", "mean_d"):
        assert (arrays[name] == whole[name]).all()
    said = " ".join(capsys.readouterr().out.split())
    assert "interrupted: the means are complete, but no head was read" in said
    names = {file.name.rpartition("-")[2] for file in (model.parent / "figures").iterdir()}
    assert names == {"mean.png", "mean.pdf", "terms.png", "terms.pdf"}


def test_an_interruption_before_anything_was_read_leaves_nothing(model, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(maps, "mean_attention", interrupted)
    assert main(["attention", str(model), *SHORT]) == 130
    assert not (model.parent / "evaluations").exists()
    assert capsys.readouterr().err == "interrupted\n"


def test_mistakes_are_one_clear_line(model, tmp_path, capsys):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "strange.txt").write_text("the §")
    for words, expected in {
        ("memory_lenght=3",): "there is no setting memory_lenght",
        ("split=dev",): "split=dev: expected one of train, valid, test",
        ("memory_length=0",): "memory_length=0: the maps show the attention over the memory",
        ("memory_length=100000",): "none has the 100000 before it that memory_length asks for",
        ("tokens=0",): "tokens=0 must be positive",
        ("seed=-1",): "seed=-1 must be 0 or more",
        ("position=here",): "position=here: expected random or the number of a token",
        ("position=3",): "position=3: a segment of 16 tokens with 16 before it can begin at 16 to",
        ("heads=[4]",): "heads=[4]: the model has the heads 0 to 3, 2 in each of 2 layers",
        (f"text={tmp_path / 'empty.txt'}",): "empty.txt is empty: there is no attention to measure",
        (f"text={tmp_path / 'strange.txt'}",): "is not in the vocabulary",
        (f"text={tmp_path / 'absent.txt'}",): "absent.txt",
    }.items():
        assert main(["attention", str(model), *words]) == 1, words
        error = capsys.readouterr().err
        assert expected in error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert not (model.parent / "evaluations").exists()
    assert main(["attention", str(model), *SHORT, f"out={tmp_path / 'empty.txt'}"]) == 1
    assert "empty.txt is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terms", "position", "expected"),
    [
        (("a", "b", "c", "d"), "relative", "the four terms of §3.3; the paper's Figure 7 leaves (c) out"),
        (("a", "d"), "alibi", "alibi positions have the terms (a) and (d); there is no (b) and no (c)"),
        (("a",), "rotary", "the term (a) only: rotary positions turn queries and keys"),
        (("a",), "sinusoidal", "the term (a) only: sinusoidal positions are in the states themselves"),
        (("a",), "none", "the term (a) only: the model has no position encoding"),
    ],
)
def test_what_has_no_terms_of_its_own_is_said(terms, position, expected):
    assert expected in verb.terms_note(terms, position)


def test_the_memory_is_that_of_the_run_and_a_fixed_attention_length_counts_the_token_itself():
    assert verb.memory_length_of_run({"memory_length": 16, "attention_length": None}) == 16
    assert verb.memory_length_of_run({"memory_length": 16, "attention_length": 10}) == 9
    assert verb.memory_length_of_run({}) == 0
