"""Every experiment trains: its own code path on tiny data of its own kind, its lengths and batch cut down."""

import json
import math
from pathlib import Path

import pytest

from conftest import EXPERIMENTS, WORDS, metrics_of, tiny_text
from txl.settings.compose import composed

# How the files of each corpus are called, and what is known of the real one and does not hold here.
FILES = {"wikitext103": "wiki.{}.tokens", "ptb": "ptb.{}.txt", "lm1b": "{}.txt"}
FACTS = {
    "enwik8": ["data.content=null"],
    "text8": ["data.content=null"],
    "wikitext103": ["data.tokens=null"],
    "ptb": ["data.tokens=null"],
    "lm1b": ["data.words=words.txt"],
}


def write_corpus(name: str, folder: Path) -> Path:
    """Write a tiny corpus as its users have it; return what `data.path` is to be."""
    if name not in FILES:
        (folder / name).write_text(tiny_text(), "utf-8")
        return folder / name
    for split in ("train", "valid", "test"):
        (folder / FILES[name].format(split)).write_text(tiny_text(900), "utf-8")
    (folder / "words.txt").write_text("\n".join([*WORDS, "<S>", "<UNK>"]) + "\n", "utf-8")
    return folder


def cut_down(settings, key: str, length: int) -> list[str]:
    """Return the override that makes a length this small, unless it is null or 0, which mean something."""
    section, _, name = key.partition(".")
    return [f"{key}={length}"] if settings[section][name] else []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_runs_two_steps(run_here, tmp_path, monkeypatch, experiment):
    monkeypatch.chdir(tmp_path)
    settings = composed([f"experiment={experiment}", "name=x"])
    data = settings.data._target_.rpartition(".")[2]
    data = settings.data.name if data in ("large_text", "wikitext") else data
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 64, "d_head": 32, "d_inner": 48}
    overrides = [
        f"experiment={experiment}",
        f"data.path={write_corpus(data, tmp_path)}",
        "data.vocabulary=null",
        *FACTS[data],
        *[f"model.{key}={value}" for key, value in sizes.items()],
        "training.batch_size=4",
        "training.segment_length=16",
        "evaluation.batch_size=2",
        "evaluation.segment_length=8",
        *cut_down(settings, "training.memory_length", 16),
        *cut_down(settings, "evaluation.memory_length", 40),
        *cut_down(settings, "evaluation.attention_length", 40),
        *cut_down(settings, "evaluation.clamp_length", 20),
        *cut_down(settings, "model.cutoffs", "[5,10,15]"),
        "trainer.max_steps=2",
        "trainer.validate_every=1",
        "trainer.log_every=1",
        "sample.prompt_tokens=10",
        "sample.tokens=10",
    ]
    directory = run_here(*overrides)
    results = json.loads((directory / "results.json").read_text())
    assert results["status"] == "completed"
    losses = [line["train/loss"] for line in metrics_of(directory) if "train/loss" in line]
    assert len(losses) == 2
    assert losses[0] == pytest.approx(math.log(results["data"]["vocabulary"]), rel=0.3)
    for split in ("valid", "test"):
        assert results[split]["tokens_scored"] == results["data"]["tokens"][split] - 1
    words = experiment.split("_")[0] in ("wt103", "lm1b", "ptb")
    assert (results["data"]["unit"] == "word") == words == ("train/perplexity" in metrics_of(directory)[0])
