"""`txl generate` as a user runs it: prompts of all kinds in, text, a page and a JSON out."""

import json

import pytest

from conftest import TINY
from txl.__main__ import main
from txl.evaluation import generation


@pytest.fixture(params=["byte", "word"])
def run(run_here, text_file, request):
    words = [*TINY, f"data.path={text_file}", f"data.unit={request.param}", "trainer.max_steps=2"]
    if request.param == "word":
        text_file.write_text(text_file.read_text().replace("fox", "<unk>").replace(" jovial", " ,"))
    return run_here(*words)


def generated(run, *words, code=0):
    before = set((run / "evaluations").glob("*.json")) if (run / "evaluations").exists() else set()
    assert main(["generate", str(run), "device=cpu", "precision=32-true", "tokens=12", *words]) == code
    (path,) = set((run / "evaluations").glob("*.json")) - before
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_the_verb(run, tmp_path, capsys):
    result, page = generated(run, "prompt=the lazy dog\nover", "seed=3")
    assert result["texts"][0]["prompt"] == "the lazy dog\nover"
    assert "### Sample 1" in page
    assert "top_k 40" in page
    assert result["texts"][0]["samples"][0].strip() in capsys.readouterr().out
    again, _ = generated(run, "seed=3", "prompt=the lazy dog\nover", "samples=1")
    assert again["texts"] == result["texts"]

    file = tmp_path / "prompts.txt"
    file.write_text(
        "the\n---\nthe lazy dog while seven wizards box with quaking elves\nthe quick\n---\nbox\n"
    )
    many, page = generated(run, f"file={file}", "greedy=true", "samples=2")
    assert [len(text["samples"]) for text in many["texts"]] == [2, 2, 2]
    assert page.count("### Sample") == 6
    one, _ = generated(run, "prompt=the", "greedy=true")
    assert one["texts"][0]["ids"][0] == many["texts"][0]["ids"][1]

    placed, page = generated(run, "position=30", "context=10")
    assert "The original continuation" in page
    assert placed["place"] == "tiny, test, token 30"
    generated(run, "position=random", "seed=8", "top_p=0.9", "top_k=null", "temperature=0.7")


def test_what_cannot_be_is_said_in_a_line(run, tmp_path, capsys):
    strange = tmp_path / "strange.txt"
    strange.write_bytes(b"the\xff")
    for words, message in [
        (["prompt="], "the prompt is empty"),
        (["prompt=a", "position=3"], "exclude each other"),
        (["position=0"], "position=0 must be from 1 to"),
        (["position=x"], "position=x: expected random or the number of a token"),
        (["temperature=0"], "temperature=0.0 must be 1e-06 or more; greedy=true takes the most probable"),
        (["temperature=1e-40"], "temperature=1e-40 must be 1e-06 or more"),
        (["seed=-1"], "seed=-1 must be from 0"),
        (["prompt=a", f"seed={2**64}"], "must be from 0 to 2**63 - 1"),
        ([f"file={strange}"], "strange.txt is not text in UTF-8"),
        (["prompt=a", "out=x.md"], "out=x.md is the path of the page; name the JSON"),
        (["top_p=2"], "top_p=2.0 must be above 0 and at most 1"),
    ]:
        assert main(["generate", str(run), *words]) == 1
        assert message in capsys.readouterr().err
    if "word" in json.loads((run / "results.json").read_text())["data"]["unit"]:
        result, _ = generated(run, "prompt=the zebra dog")
        assert "33% of the prompt is unknown and read as <unk>: zebra" in capsys.readouterr().out
        assert result["texts"][0]["prompt"] == "the <unk> dog"
    else:
        assert main(["generate", str(run), "prompt=the €"]) == 1
        assert "the prompt cannot be read with the vocabulary of" in capsys.readouterr().err


def test_an_interruption_keeps_what_was_written(run, monkeypatch, capsys):
    draw, calls = generation.draw, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return draw(*arguments)

    monkeypatch.setattr(generation, "draw", interrupted)
    result, page = generated(run, "prompt=the lazy", code=130)
    assert (result["status"], len(result["texts"][0]["ids"][0])) == ("interrupted", 4)
    assert "Interrupted" in page
    assert "interrupted after 4 tokens" in capsys.readouterr().out
