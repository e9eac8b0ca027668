"""Several processes: the same curve as one, one directory, and nobody waits for one that has gone."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT, TINY, tiny_text
from settings.test_schema import composed
from txl.launch.environment import check_processes, devices, rank, started_elsewhere, world_size
from txl.program import resumed
from txl.records.results import initial_results, write_results
from txl.settings.errors import ConfigError
from txl.settings.overrides import config_options
from txl.settings.schema import check
from txl.training.callbacks.interruption import Interrupted, Interruption

# The rare words come last in the text, so the rows of the first process never touch them.
SKEWED = [
    *TINY,
    "data=text",
    "data.path=skewed.txt",
    "data.unit=word",
    "model.cutoffs=[6,9]",
    "model.div_val=2",
    "trainer.precision=32-true",
    "trainer.max_steps=20",
    "trainer.validate_every=10",
    "trainer.log_every=1",
]
TWO = ["trainer.accelerator=cpu", "trainer.strategy=ddp", "trainer.devices=2"]


@pytest.fixture
def skewed(train):
    common = "the cat sat on the mat\n" * 300
    (train.folder / "skewed.txt").write_text(common + tiny_text(1500), "utf-8")
    train.environment["OMP_NUM_THREADS"] = "1"
    return train


def lines(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def started_by(train, *overrides, name="run", limit=120) -> subprocess.CompletedProcess:
    """Run the command under a limit that not even a process in a collective survives."""
    train.run_directory = train.folder / name
    words = ["timeout", "-k", "5", str(limit), *train.words(*overrides)]
    return subprocess.run(words, cwd=train.folder, env=train.environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["training.batch_chunks=2", "trainer.recompute=true"]])
def test_two_processes_follow_the_curve_of_one_in_one_directory(skewed, more):
    done = started_by(skewed, *SKEWED, "trainer.accelerator=cpu", name="one")
    assert done.returncode == 0, done.stdout
    done = started_by(skewed, *SKEWED, *TWO, *more, name="two")
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = skewed.folder / "one", skewed.folder / "two"
    for a, b in zip(lines(one), lines(two), strict=True):
        for key in ("step", "tokens", "train/loss", "valid/loss", "gradient_norm", "learning_rate"):
            assert a.get(key) == pytest.approx(b.get(key), abs=1e-5), key
    results = [json.loads((path / "results.json").read_text()) for path in (one, two)]
    for split in ("valid", "test"):
        assert results[0][split]["loss"] == pytest.approx(results[1][split]["loss"], abs=1e-5)
        assert results[0][split]["tokens_scored"] == results[1][split]["tokens_scored"]
    assert results[1]["training"]["world_size"] == 2
    assert results[1]["status"] == "completed"
    names = [{str(p.relative_to(path)) for p in path.rglob("*")} for path in (one, two)]
    assert names[0] == names[1]
    assert {p.name for p in skewed.folder.iterdir()} == {"one", "two", "cache", "skewed.txt"}
    assert done.stdout.count("data: skewed") == 1


BREAKS = (
    "import os\n"
    "from txl.model import RelativePosition\n"
    "class Breaks(RelativePosition):\n"
    "    calls = 0\n"
    "    def table(self, *words):\n"
    "        Breaks.calls += 1\n"
    "        if Breaks.calls > 6 and os.environ.get('LOCAL_RANK') == '1': {what}\n"
    "        return super().table(*words)\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise RuntimeError('the sky fell')", "process 1: the sky fell"),
        ("os.kill(os.getpid(), 9)", "process 1 of 2 was killed by SIGKILL"),
    ],
)
def test_a_process_that_fails_ends_them_all(skewed, what, said):
    (skewed.folder / "breaks.py").write_text(BREAKS.format(what=what))
    skewed.environment["PYTHONPATH"] = os.pathsep.join([str(skewed.folder), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    done = started_by(skewed, *SKEWED, *TWO, "position._target_=breaks.Breaks", limit=100)
    assert done.returncode == 1
    assert time.monotonic() - began < 90
    results = skewed.results()
    assert results["status"] == "failed"
    assert said in results["error"]
    if "sky" in what:
        assert "process 1: the sky fell" in (skewed.run_directory / "train.log").read_text()


def wait_for_steps(train, steps: int, seconds: float = 90) -> None:
    end, path = time.monotonic() + seconds, train.run_directory / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert time.monotonic() < end, (train.folder / "output.txt").read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_sigterm_saves_in_all_processes_and_the_same_command_goes_on(skewed):
    endless = [*SKEWED, *TWO, "trainer.max_steps=100000", "trainer.validate_every=100000"]
    run = skewed.start(*endless)
    wait_for_steps(skewed, 15)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 143
    results = skewed.results()
    assert (results["status"], results["error"]) == ("interrupted", "stopped by SIGTERM")
    last = torch.load(skewed.run_directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == results["training"]["steps"]
    run = skewed.start(*endless)
    wait_for_steps(skewed, last["global_step"] + 5)
    run.kill()  # the processes that it started end with it
    run.wait(30)
    steps = [line["step"] for line in lines(skewed.run_directory) if "train/loss" in line]
    assert steps == list(range(1, len(steps) + 1))
    assert f"step {last['global_step']}" in (skewed.folder / "output.txt").read_text()
    time.sleep(1)
    before = (skewed.run_directory / "metrics.jsonl").read_bytes()
    time.sleep(1)
    assert (skewed.run_directory / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_sweep_has_one_directory_and_its_jobs_do_not_mix(skewed):
    words = [sys.executable, str(ROOT / "train.py"), "-m", "hydra.sweep.dir=sweep", *SKEWED, *TWO]
    words += ["trainer.max_steps=3", "training.batch_size=4,2"]
    done = subprocess.run(
        ["timeout", "-k", "5", "150", *words],
        cwd=skewed.folder,
        env=skewed.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p.name for p in skewed.folder.iterdir()} == {"sweep", "cache", "skewed.txt"}
    for rows in (4, 2):
        directory = skewed.folder / "sweep" / f"batch_size-{rows}" / "seed1"
        results = json.loads((directory / "results.json").read_text())
        assert (results["status"], results["config"]["training"]["batch_size"]) == ("completed", rows)


@pytest.mark.parametrize(
    ("overrides", "environment", "message"),
    [
        (
            ["trainer=ddp_cpu", "trainer.devices=3"],
            {},
            "training.batch_size=32 cannot be divided among 3 processes; use a multiple of 3",
        ),
        (
            ["trainer=ddp_cpu", "evaluation.batch_size=5"],
            {},
            "evaluation.batch_size=5 cannot be divided among 2 processes",
        ),
        (["training.batch_chunks=5"], {}, "training.batch_chunks=5 does not divide the 32 rows"),
        (["trainer=ddp_cpu", "trainer.num_nodes=2"], {}, "with torchrun or SLURM's srun"),
        (
            ["trainer=ddp_cpu"],
            {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "0"},
            "4 processes were started, but trainer.strategy=ddp with 2 devices on 1 machines needs 2",
        ),
        (
            [],
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
            "2 processes were started, but trainer.strategy=single",
        ),
    ],
)
def test_processes_that_do_not_fit_are_one_line(monkeypatch, overrides, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        check_processes(check(composed("name=x", *overrides)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_whoever_started_the_processes_says_which_one_this_is(monkeypatch):
    assert (rank(), started_elsewhere()) == (0, None)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "8", "RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    assert (rank(), started_elsewhere()) == (5, 8)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    for name, value in {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    assert (rank(), started_elsewhere()) == (3, 4)
    settings = check(composed("name=x", "trainer=ddp", "trainer.num_nodes=2")).trainer
    assert (devices(settings), world_size(settings)) == (2, 4)


@pytest.mark.slow
def test_slurms_warning_saves_and_queues_the_job_again(skewed):
    scontrol = skewed.folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {skewed.folder}/asked.txt\n')
    scontrol.chmod(0o755)
    skewed.environment |= {
        "PATH": f"{skewed.folder}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_JOB_ID": "5",
        "SLURM_ARRAY_TASK_ID": "2",
    }
    run = skewed.start(*SKEWED, "trainer.max_steps=100000", "trainer.validate_every=100000")
    wait_for_steps(skewed, 5)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(60) == 128 + signal.SIGUSR1
    assert (skewed.folder / "asked.txt").read_text() == "requeue 5_2\n"
    last = torch.load(skewed.run_directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == skewed.results()["training"]["steps"] >= 5
    assert "SLURM requeued job 5_2" in (skewed.folder / "output.txt").read_text()


def test_a_signal_that_another_process_heard_of_first_does_not_disturb_the_saving():
    """The processes agree to stop after a batch; the signal itself may reach one of them later."""
    saved = []
    interruption = Interruption(lambda error: None)
    with interruption:
        interruption.in_batches, interruption.received = True, signal.SIGTERM

        def save(trainer):
            os.kill(os.getpid(), signal.SIGTERM)
            saved.append(trainer)

        interruption.save = save
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            interruption.on_train_batch_end(SimpleNamespace(world_size=1), None)
    assert len(saved) == 1


def test_the_processes_are_told_where_settings_are():
    words = ["position=decay", "--config-dir", "more", "-m", "-cn=train", "seed=1"]
    assert config_options(words) == ["--config-dir", "more", "-cn=train"]


@pytest.mark.slow
def test_a_signal_while_the_processes_still_start_is_an_interruption(skewed):
    run = skewed.start(*SKEWED, *TWO)
    end = time.monotonic() + 60
    # Both: before them one child at a time only tells which commit this is, and no signal is handled yet.
    while len(subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True).stdout.split()) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 143
    results = skewed.run_directory / "results.json"
    assert not results.exists() or skewed.results()["status"] == "interrupted"


def test_a_process_killed_while_it_starts_leaves_a_run_that_can_be_resumed(tmp_path):
    write_results(tmp_path, initial_results("x", 2, ["seed=2"], {"loss": float("nan")}))
    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert (results["status"], results["overrides"]) == ("running", ["seed=2"])
    assert resumed([f"resume={tmp_path}"]) == ["seed=2", f"hydra.run.dir='{tmp_path}'"]
