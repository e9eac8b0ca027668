"""The command line, as a user runs it: help, mistakes, whole runs, the same numbers again."""

import json
import os
import pty
import subprocess
import time

import pytest
import torch

from conftest import TINY


def metrics(train) -> list[dict]:
    return [json.loads(line) for line in (train.run_directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def tiny(text_file):
    return [*TINY, f"data.path={text_file}"]


def test_a_run_leaves_what_was_promised(train, tiny):
    done = train(*tiny, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    files = {str(p.relative_to(train.run_directory)) for p in train.run_directory.rglob("*") if p.is_file()}
    assert files == {
        "config.yaml",
        "train.log",
        "metrics.jsonl",
        "results.json",
        "sample.txt",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        "figures/learning_curve.png",
    }
    results = train.results()
    assert (results["schema"], results["status"], results["error"], results["seed"]) == (
        1,
        "completed",
        None,
        1,
    )
    assert results["overrides"] == tiny
    assert "${" not in (train.run_directory / "config.yaml").read_text()
    assert results["data"]["tokens"].keys() == {"train", "valid", "test"}
    assert results["training"]["steps"] == 8
    assert results["training"]["tokens"] == 8 * 4 * 16
    for split in ("valid", "test"):
        score = results[split]
        assert score["tokens_scored"] == results["data"]["tokens"][split] - 1
        assert score["bits_per_character"] == pytest.approx(score["loss"] / 0.6931471805599453)
        assert (score["segment_length"], score["memory_length"], score["attention_length"]) == (16, 16, 32)
    assert {"torch", "pytorch-lightning", "txl", "python"} <= results["versions"].keys()
    assert 0 < results["training"]["model_flops_utilization"] < 1
    # What one sees: the model, the data, where it reads, the device, then the scores, the sample, the paths.
    for shown in (
        "model: Transformer-XL, 2 layers of width 32",
        "data: tiny, ",
        "process 0 of 1 reads rows 0 to 3 of 4 in order",
        "device: cpu",
        "step 8 of 8  loss",
        "tokens/s",
        "step 4  valid bits per byte",
        "gzip -9",
        "results.json",
        "learning_curve.png",
    ):
        assert shown in done.stdout
    lines = metrics(train)
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 9))
    assert [line["step"] for line in lines if "valid/loss" in line] == [4, 8]
    checkpoint = torch.load(train.run_directory / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["txl"]["config"]["model"]["n_layer"] == 2
    assert len(checkpoint["txl"]["vocabulary"]["lines"]) == results["data"]["vocabulary"]
    assert [p.name for p in train.folder.iterdir() if p.name not in ("run", "cache", "tiny.txt")] == []


def test_the_last_weights_are_kept_and_each_step_has_its_own_learning_rate(train, tiny):
    """11 steps, validated after 4 and 8: the newest checkpoint is still that of the last step."""
    assert train(*tiny, "trainer.max_steps=11", "optimizer.lr=0.5").returncode == 0
    last = torch.load(train.run_directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 11
    rates = [line["learning_rate"] for line in metrics(train) if "learning_rate" in line]
    assert rates[:3] == pytest.approx([0.25, 0.5, 0.5])  # a warm-up of two steps, then the top of the cosine
    assert rates[-1] > 0


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize(
    "more", [["sample.prompt_tokens=200"], ["training.memory_length=0", "training.loss=half"]]
)
def test_every_kind_of_encoding_runs_to_the_end(train, tiny, position, more):
    done = train(*tiny, f"position={position}", *more)
    assert done.returncode == 0, done.stdout
    assert "were better on valid" not in done.stdout


def test_a_training_that_diverges_stops_with_one_line(train, tiny):
    done = train(*tiny, "optimizer.lr=1e12", "trainer.gradient_clip=null", "trainer.max_steps=400")
    assert done.returncode == 1
    assert "training diverged: at step" in done.stdout
    assert "Traceback" not in done.stdout
    assert train.results()["status"] == "failed"


def test_the_same_seed_gives_the_same_losses_and_another_does_not(train, tiny):
    def losses(name, *overrides):
        train.run_directory = train.folder / name
        assert train(*tiny, "model.dropout=0.1", *overrides).returncode == 0
        steps = [line["train/loss"] for line in metrics(train) if "train/loss" in line]
        return steps, train.results()["valid"]["loss"], train.results()["test"]["loss"]

    first, again, other = losses("a"), losses("b"), losses("c", "seed=2")
    assert first == again
    assert all(x != y for x, y in zip(first[0], other[0], strict=True))
    assert first[1:] != other[1:]


def test_a_tiny_text_is_memorized(train, tiny):
    """450 random letters cannot be guessed; below 0.1 nats they have been learned by heart."""
    letters = torch.randint(97, 123, (500,), generator=torch.Generator().manual_seed(0))
    (train.folder / "random.txt").write_bytes(bytes(letters.tolist()))
    done = train(
        *tiny,
        "data.path=random.txt",  # relative: it begins where the user stands
        "model.d_model=64",
        "model.d_head=32",
        "model.d_inner=128",
        "schedule.warmup_steps=20",
        "trainer.max_steps=400",
        "trainer.validate_every=400",
        "evaluation.memory_length=8",
        "trainer.log_every=7",
    )
    assert done.returncode == 0, done.stderr
    train_losses = [line["train/loss"] for line in metrics(train) if "train/loss" in line]
    assert train_losses[0] > 2.5
    assert train_losses[-1] < 0.1


def test_words_are_shown_in_perplexity(train, tiny):
    done = train(*tiny, "data.unit=word")
    assert done.returncode == 0, done.stderr
    assert "valid perplexity" in done.stdout
    results = train.results()
    assert results["data"]["unit"] == "word"
    assert results["test"]["bits_per_character"] is None
    assert "compressors" not in results


def test_a_terminal_shows_a_bar(train, tiny):
    ours, theirs = pty.openpty()
    words = train.words(*tiny, "trainer.max_steps=40")
    environment = train.environment | {"TERM": "xterm", "COLUMNS": "80"}
    run = subprocess.Popen(words, cwd=train.folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side has closed
            break
    os.close(ours)
    assert run.wait(60) == 0
    text = shown.decode(errors="replace")
    for part in ("40/40", "loss ", "bpb ", "lr ", "tokens/s", "0:0", "left", "━"):
        assert part in text


def test_help_is_readable_and_names_every_group(train):
    done = train("--help")
    assert done.returncode == 0
    for part in (
        "python train.py data=sotu",
        "position: alibi, learned",
        "max_steps:",
        "enwiki_sample, ",
    ):
        assert part in done.stdout


def test_cfg_prints_all_settings_and_runs_nothing(train):
    done = train("--cfg", "job")
    assert done.returncode == 0
    assert "d_inner: " in done.stdout
    assert not train.run_directory.exists()


MISTAKES = {
    "model.n_layr=3": "error: there is no setting model.n_layr; did you mean model.n_layer",
    "modle=small": "error: there is no setting modle; did you mean model",
    "data=enwik_sample": "error: there is no data=enwik_sample; did you mean enwiki_sample",
    "trainer.max_steps=many": "error: trainer.max_steps: Value 'many' of type 'str' could not be",
    "training.memory_length=-1": "error: training.memory_length=-1 must be 0 or more",
    "model.n_head=3": "error: model.n_head=3 × model.d_head=64 = 192 does not fit model.d_model=128",
    "training.memory_length=9999999": "error: training.memory_length=9999999 is longer than the data",
    "optimizer.lr=-1": "error: optimizer: Invalid learning rate: -1.0",
    "data.unit=line": "error: unit must be one of byte, char, word, bpe, not 'line'",
    "logger=[csv,wanbd]": "error: there is no logger=wanbd; did you mean wandb?",
    "logger=": "error: there is no logger=; there are csv, tensorboard, wandb",
    "seed=": "error: ",
    "seed=[1": "error: ",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_clear_line_before_anything_heavy(train, override):
    began = time.monotonic()
    done = train(override)
    assert done.returncode == 1
    said = [line for line in (done.stdout + done.stderr).splitlines() if "error:" in line]
    assert len(said) == 1, done.stdout + done.stderr
    assert MISTAKES[override] in said[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(train.folder.rglob("*.ckpt"))
    assert time.monotonic() - began < 30


def test_a_missing_sample_package_is_one_clear_line(train):
    (train.folder / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'gensim' else find(name, *rest)\n"
    )
    train.environment["PYTHONPATH"] = str(train.folder)
    done = train(fresh=True)
    assert done.returncode == 1
    assert "install it with: pip install 'txl[samples]'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert train.results()["status"] == "failed"


def test_a_directory_that_holds_a_run_is_left_alone(train, tiny):
    assert train(*tiny).returncode == 0
    before = (train.run_directory / "results.json").read_bytes()
    done = train(*tiny)
    assert done.returncode == 1
    said = f"error: {train.run_directory} holds a completed run; choose another hydra.run.dir\n"
    assert (done.stdout, done.stderr) == ("", said)  # one line
    assert (train.run_directory / "results.json").read_bytes() == before
