"""Killed and started again, a run ends as if nothing had been: real processes, real kills."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import ROOT, TINY, tiny_text
from txl.training.callbacks.checkpoints import newest

pytestmark = pytest.mark.slow

SECONDS = 120  # for one launch, which takes some five; what takes longer hangs
STEPS = 44  # 11 segments an epoch: four epochs
HARD = [
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    f"trainer.max_steps={STEPS}",
    "trainer.validate_every=5",
    "trainer.checkpoint_every=2",
    "trainer.log_every=3",
    "trainer.precision=32-true",
    "trainer.accelerator=cpu",
]
MODULE = "txl.training.module:LanguageModel."


class Starter:
    """Launches `train.py` in forks of one process that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tiny.txt").write_text(tiny_text(140), "utf-8")
        self.program = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "starter.py")],
            cwd=folder,
            env={**os.environ, "TXL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, name: str, *overrides: str, world: int = 1, kill=None) -> list[int]:
        """Run in the directory `name` to its end; return the exit codes of the processes."""
        words = [f"hydra.run.dir={self.folder / name}", *TINY, "data.path=tiny.txt", *HARD, *overrides]
        ranks = [{}]
        if world > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            common = {
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "test",
            }
            ranks = [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world)]
            words += ["trainer.strategy=ddp", f"trainer.devices={world}"]
        (self.folder / "output.txt").unlink(missing_ok=True)  # it is that of one launch
        job = {"words": words, "ranks": ranks, "kill": kill, "seconds": SECONDS}
        self.program.stdin.write(json.dumps(job) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    starter = Starter(tmp_path_factory.mktemp("resume"))
    yield starter
    starter.program.stdin.close()
    starter.program.wait(10)
    starter.program.stdout.close()


@pytest.fixture(scope="module")
def whole(start):
    """The run that nothing interrupted."""
    assert start("whole") == [0], start.output()
    return start.folder / "whole"


@pytest.fixture(scope="module")
def whole_of_two(start):
    assert start("whole2", world=2) == [0, 0], start.output()
    return start.folder / "whole2"


def assert_same(one: Path, other: Path) -> None:
    """Every parameter, the optimizer, the memory, each logged loss and the results are equal bit for bit."""
    a, b = (torch.load(path / "checkpoints" / "last.ckpt", weights_only=True) for path in (one, other))
    assert a["global_step"] == b["global_step"] == STEPS
    for path in (a, b):
        path["resume"].pop("random")  # nothing is drawn any more; a wrong one would have shown in the dropout
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "resume", "guard"):
        assert_equal(a[part], b[part], part)
    assert logged(one) == logged(other)
    for results in ("valid", "test", "status", "error"):
        assert read(one)[results] == read(other)[results]
    for count in ("steps", "tokens"):
        assert read(one)["training"][count] == read(other)["training"][count]


def assert_equal(a, b, name: str) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), name
        for key in a:
            assert_equal(a[key], b[key], f"{name}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), name
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{name}.{index}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), name
    else:
        assert a == b, name


def read(directory: Path) -> dict:
    return json.loads((directory / "results.json").read_text())


def logged(directory: Path) -> list[dict]:
    """What was logged, without what measures time and the machine."""
    exact = ("step", "tokens", "learning_rate", "gradient_norm", "memory_length", "train/loss", "valid/loss")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in exact if key in line} for line in lines]


# Where each launch dies: at which call of what, counted from its own start.
KILLS = [
    *(["training_step", n] for n in (1, 2, 4, 3, 1, 4, 5, 3, 4, 4, 3, 6)),
    *(["validation_step", n] for n in (1, 2)),
]
FILES = [["os:fsync", n] for n in (2, 5, 9)] + [["os:replace", n] for n in (4, 6, 8)]


def test_a_run_killed_at_twenty_moments_ends_like_one_that_was_not(start, whole):
    """In training and in validation, while a checkpoint is written, before it is renamed, in every epoch."""
    kills = [[MODULE + name, n] for name, n in KILLS]
    for index, kill in enumerate(FILES):
        kills.insert(3 * index + 2, kill)
    assert len(kills) >= 20
    reached = []
    for kill in kills:
        assert start("killed", kill=[0, *kill]) == [-signal.SIGKILL], (kill, start.output()[-3000:])
        found = newest(start.folder / "killed" / "checkpoints")
        reached.append(found[1] if found else 0)
    assert reached[0] == 0
    assert len(set(reached)) > 6
    assert 11 < reached[-1] < STEPS
    assert start("killed") == [0], start.output()[-3000:]
    assert_same(whole, start.folder / "killed")


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_run_killed_after_training_only_finishes(start, whole, call):
    name = f"end{call}"
    assert start(name, kill=[0, "txl.runs.finish:score_entry", call]) in (
        [-signal.SIGKILL],
        [0],
    )
    if call < 3:
        assert start(name, kill=[0, MODULE + "training_step", 1]) == [0]
    assert_same(whole, start.folder / name)


def test_two_processes_killed_at_six_moments_end_like_two_that_were_not(start, whole_of_two):
    kills = [
        [0, MODULE + "training_step", 4],
        [1, MODULE + "training_step", 5],
        [1, MODULE + "validation_step", 2],
        [0, "os:fsync", 6],
        [0, "os:replace", 8],
        [1, MODULE + "training_step", 7],
    ]
    for kill in kills:
        codes = start("killed2", world=2, kill=kill)
        assert codes[kill[0]] == -signal.SIGKILL, (kill, codes, start.output()[-3000:])
        assert 0 not in codes
        assert codes[1 - kill[0]] != -signal.SIGKILL, "the other process hung"
    found = newest(start.folder / "killed2" / "checkpoints")
    assert found is not None
    assert 11 < found[1] < STEPS
    assert start("killed2", world=2) == [0, 0], start.output()[-3000:]
    assert_same(whole_of_two, start.folder / "killed2")


def test_validation_in_between_changes_nothing_in_training(start, whole):
    assert start("unvalidated", "trainer.validate_every=1000") == [0]
    a, b = (
        torch.load(start.folder / name / "checkpoints" / "last.ckpt", weights_only=True)
        for name in ("whole", "unvalidated")
    )
    assert_equal(a["state_dict"], b["state_dict"], "state_dict")
    assert_equal(a["optimizer_states"], b["optimizer_states"], "optimizer")
    train = [line for line in logged(whole) if "train/loss" in line]
    assert train == [line for line in logged(start.folder / "unvalidated") if "train/loss" in line]


def test_another_number_of_processes_goes_on_with_the_same_rows(start):
    """Dropout 0: one process up to a kill, then two, as two from the beginning to rounding."""
    plain = ["model.dropout=0", "model.attention_dropout=0"]
    assert start("one", *plain) == [0]
    assert start("changed", *plain, kill=[0, MODULE + "training_step", 15]) == [-signal.SIGKILL]
    assert start("changed", *plain, world=2) == [0, 0], start.output()[-3000:]
    a, b = logged(start.folder / "one"), logged(start.folder / "changed")
    for x, y in zip(a, b, strict=True):
        assert x == pytest.approx(y, abs=1e-5)


def damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 255
    path.unlink()  # the other names of the file keep the old content
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_checkpoint_costs_no_more_than_itself(start, whole, how):
    name = f"damaged-{how}"
    assert start(name, kill=[0, MODULE + "training_step", 16]) == [-signal.SIGKILL]
    damaged(start.folder / name / "checkpoints" / "last.ckpt", how)
    assert start(name) == [0], start.output()[-3000:]
    assert "last.ckpt is damaged" in start.output()
    assert "previous.ckpt, step 12" in start.output() or "previous.ckpt, step 14" in start.output()
    assert_same(whole, start.folder / name)


def test_other_settings_and_completed_runs_are_refused(start, whole):
    assert start("whole") == [1]
    assert "holds a completed run" in start.output()
    assert start("other", kill=[0, MODULE + "training_step", 8]) == [-signal.SIGKILL]
    before = (start.folder / "other" / "results.json").read_bytes()
    assert start("other", "optimizer.lr=0.5") == [1]
    assert "holds a run with optimizer.lr=0.004, not 0.5" in start.output()
    assert start("other", "trainer.max_steps=2") == [1]
    assert "beyond trainer.max_steps=2; give at least 6" in start.output()
    assert (start.folder / "other" / "results.json").read_bytes() == before
    assert start("other", f"resume={start.folder / 'other'}") == [0], start.output()[-3000:]
    assert_same(whole, start.folder / "other")
