"""Sweeps of real runs: killed and started again, failing, with several processes, beside each other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins

from conftest import ROOT, TINY, metrics_of
from settings.test_schema import composed
from txl.program import resolve_ablation
from txl.settings.schema import check

LIMIT = 900  # seconds: a sweep that hangs ends by then, and one on a busy machine has ended before


@pytest.fixture
def tiny(train, text_file) -> list[str]:
    train.environment["OMP_NUM_THREADS"] = "1"
    return [*TINY, "data.path=tiny.txt", "sample.tokens=5", "trainer.precision=32-true"]


def start(train, *words: str) -> subprocess.Popen:
    """Start a sweep; what it prints goes to output.txt."""
    command = ["timeout", "-k", "5", str(LIMIT - 30), sys.executable, str(ROOT / "train.py"), "-m", *words]
    with (train.folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=train.folder,
            env=train.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def output(train) -> str:
    return (train.folder / "output.txt").read_text()


def results(sweep: Path) -> dict[str, dict]:
    """Return the results of each job by its row."""
    found = sorted(sweep.glob("*/seed*/results.json"))
    return {path.parts[-3]: json.loads(path.read_text()) for path in found}


def wait_for(condition, train, seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, output(train)
        time.sleep(0.05)


def program(timeout: subprocess.Popen) -> int:
    """Return the process that `timeout` has started."""
    return int(Path(f"/proc/{timeout.pid}/task/{timeout.pid}/children").read_text().split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_stopped_in_its_second_job_goes_on_there(train, tiny, number):
    sweep = train.folder / "sweep"
    words = [*tiny, "position=relative,rotary,alibi", f"hydra.sweep.dir={sweep}"]
    words += ["trainer.max_steps=60", "trainer.checkpoint_every=5", "trainer.validate_every=30"]
    second = sweep / "position-rotary" / "seed1"
    run = start(train, *words)
    wait_for(lambda: (second / "checkpoints" / "last.ckpt").exists(), train)
    os.kill(program(run), number)
    code = run.wait(LIMIT)
    before = (sweep / "position-relative" / "seed1" / "results.json").read_bytes()
    if number == signal.SIGTERM:
        assert code == 143, output(train)
        assert "Run the same command to continue" in output(train)
        assert results(sweep)["position-rotary"]["error"] == "stopped by SIGTERM"
    time.sleep(1)  # the lifeline of a killed sweep
    kept = torch.load(second / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    assert kept < 60
    assert start(train, *words).wait(LIMIT) == 0, output(train)
    assert (sweep / "position-relative" / "seed1" / "results.json").read_bytes() == before
    assert (
        f"resuming from {second / 'checkpoints' / 'last.ckpt'}, step {kept}"
        in (second / "console.log").read_text()
    )
    steps = [line["step"] for line in metrics_of(second) if "train/loss" in line]
    assert steps == list(range(1, 61))
    assert {result["status"] for result in results(sweep).values()} == {"completed"}
    assert len(results(sweep)) == 3


RAISES = (
    "from txl.model import RelativePosition\n"
    "class Raises(RelativePosition):\n"
    "    def table(self, *words):\n"
    "        raise RuntimeError('the sky fell')\n"
)
FIVE = """
title: Five
source: the tests
published_on: nothing
columns: {kind: Kind}
measures: [valid]
scales: {laptop: {note: tiny, overrides: [trainer.max_steps=4]}}
rows:
  first: {label: a, kind: "1", overrides: [position=relative]}
  raises: {label: b, kind: "2", overrides: [position._target_=raises.Raises]}
  huge: {label: c, kind: "3", overrides: [model.d_inner=99999999999]}
  wrong: {label: d, kind: "4", overrides: [position=rotry]}
  last: {label: e, kind: "5", overrides: [position=rotary]}
"""


@pytest.fixture
def five(train) -> str:
    (train.folder / "raises.py").write_text(RAISES)
    (train.folder / "five.yaml").write_text(FIVE)
    train.environment["PYTHONPATH"] = os.pathsep.join([str(train.folder), os.environ.get("PYTHONPATH", "")])
    return "+ablation=five.yaml"


@pytest.mark.slow
def test_three_of_five_jobs_fail_and_the_others_have_results(train, tiny, five):
    tiny = [word for word in tiny if not word.startswith(("trainer.max_steps", "model.d_inner"))]
    assert start(train, *tiny, five, "hydra.sweep.dir=sweep").wait(LIMIT) == 1, output(train)
    found = results(train.folder / "sweep")
    assert {row: result["status"] for row, result in found.items()} == {
        "first": "completed",
        "raises": "failed",
        "huge": "failed",
        "wrong": "failed",
        "last": "completed",
    }
    assert found["raises"]["error"] == "the sky fell"
    assert found["huge"]["error"].startswith("out of memory: ")
    assert found["wrong"]["error"] == "there is no position=rotry; did you mean rotary?"
    assert (
        "raise RuntimeError('the sky fell')"
        in (train.folder / "sweep" / "raises" / "seed1" / "train.log").read_text()
    )
    said = output(train)
    for line in (
        "raises seed 1  failed: the sky fell",
        "wrong seed 1  cannot run",
        "2 of 5 jobs done, 3 failed",
    ):
        assert line in said


@pytest.mark.slow
def test_several_processes_a_job_and_a_failing_one_between(train, tiny, five):
    words = [*tiny, five, "trainer=ddp_cpu", "trainer.devices=2", "ablation.rows=[first,raises,last]"]
    assert start(train, *words).wait(LIMIT) == 1, output(train)
    (sweep,) = (train.folder / "multirun").iterdir()
    found = results(sweep)
    assert {row: result["status"] for row, result in found.items()} == {
        "first": "completed",
        "raises": "failed",
        "last": "completed",
    }
    assert found["last"]["training"]["world_size"] == 2
    assert "the sky fell" in found["raises"]["error"]
    assert {path.name for path in sweep.iterdir() if path.is_dir()} == {"first", "raises", "last"}
    kept = {"multirun", "cache", "tiny.txt", "raises.py", "five.yaml", "output.txt", "__pycache__"}
    assert {path.name for path in train.folder.iterdir()} <= kept


@pytest.mark.slow
def test_two_sweeps_at_once_mix_nothing(train, tiny):
    both = [start(train, *tiny, f"seed={seeds}", "trainer.max_steps=4") for seeds in ("1,2", "2,3")]
    assert [run.wait(LIMIT) for run in both] == [0, 0], output(train)
    sweeps = sorted((train.folder / "multirun").iterdir())
    assert len(sweeps) == 2
    seeds = set()
    for sweep in sweeps:
        jobs = json.loads((sweep / "sweep.json").read_text())["jobs"]
        seeds.add(tuple(job["seed"] for job in jobs))
        for job in jobs:
            result = json.loads((sweep / job["directory"] / "results.json").read_text())
            assert (result["status"], result["seed"]) == ("completed", job["seed"])
    assert seeds == {(1, 2), (2, 3)}


@pytest.mark.slow
def test_jobs_beside_each_other_are_stopped_and_go_on(train, tiny):
    sweep = train.folder / "sweep"
    words = [*tiny, "seed=1,2,3", "hydra/launcher=parallel", f"hydra.sweep.dir={sweep}"]
    words += ["trainer.max_steps=60", "trainer.checkpoint_every=5", "trainer.validate_every=30"]
    run = start(train, *words)
    places = [sweep / "base" / f"seed{seed}" for seed in (1, 2, 3)]
    wait_for(lambda: all((place / "checkpoints" / "last.ckpt").exists() for place in places[:2]), train)
    os.kill(program(run), signal.SIGTERM)
    assert run.wait(LIMIT) == 143, output(train)
    stopped = [json.loads((place / "results.json").read_text()) for place in places[:2]]
    assert {result["error"] for result in stopped if result["status"] != "completed"} <= {
        "stopped by SIGTERM"
    }
    assert not places[2].joinpath("results.json").exists()
    assert start(train, *words).wait(LIMIT) == 0, output(train)
    for place in places:
        assert json.loads((place / "results.json").read_text())["status"] == "completed"
        steps = [line["step"] for line in metrics_of(place) if "train/loss" in line]
        assert steps == list(range(1, 61))


@pytest.mark.slow
def test_hydras_own_sweeper_still_works(train, tiny):
    words = [*tiny, "hydra/sweeper=basic", "hydra.sweep.dir=sweep", "seed=1,2", "trainer.max_steps=4"]
    assert start(train, *words).wait(LIMIT) == 0, output(train)
    for job in range(2):
        path = train.folder / "sweep" / str(job) / "results.json"
        assert json.loads(path.read_text())["status"] == "completed"


def test_slurm_gets_one_task_and_a_warning_for_each_job(tmp_path, monkeypatch):
    """No cluster is here: what is handed to sbatch is kept, and read."""
    submitit = pytest.importorskip("submitit")
    for name in ("sbatch", "srun"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/script.sh\necho Submitted batch job 7\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(submitit.core.core.Job, "results", lambda job: [None])
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        words = ["hydra/launcher=slurm", f"hydra.sweep.dir={tmp_path}", "hydra.launcher.gpus_per_node=4"]
        settings = compose("train", [*words, "hydra.job.num=0"], return_hydra_config=True)
    launcher = Plugins.instance().instantiate_launcher(None, print, settings)
    assert launcher.launch([["seed=1"], ["seed=2"], ["seed=3"]], 0) == [None] * 3
    script = (tmp_path / "script.sh").read_text()
    for line in (
        "--array=0-2%3",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--gpus-per-node=4",
        "--cpus-per-task=8",
        "--mem=64GB",
        "--time=240",
        "--signal=USR1@120",
        "--requeue",
        "--open-mode=append",
        "--job-name=txl",
    ):
        assert f"#SBATCH {line}" in script.splitlines(), script
    assert script.count("#SBATCH --signal") == 1
    assert "partition" not in script


def test_what_wandbs_agent_calls_is_a_command_line_of_ours():
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    described = yaml.safe_load((ROOT / "ablations" / "wandb" / "encodings.yaml").read_text())
    assert (ROOT / described["program"]).is_file()
    assert described["metric"]["name"] == "valid/loss"
    options = {path.stem for path in (ROOT / "conf" / "position").glob("*.yaml")}
    assert set(described["parameters"]["position"]["values"]) == options
    values = {key: parameter["values"] for key, parameter in described["parameters"].items()}
    for last in (0, -1):
        chosen = {"args": {key: {"value": several[last]} for key, several in values.items()}}
        words = []
        for part in utils.create_sweep_command(described["command"]):
            name = part.removeprefix("${").removesuffix("}")
            if name == "args_no_hyphens":
                words += utils.create_sweep_command_args(chosen)[name]
            elif name not in ("env", "interpreter", "program"):
                words.append(part)
        config = check(composed("name=x", *resolve_ablation(words)))
        assert "wandb" in config.logger
        assert config.training.memory_length == values["training.memory_length"][last]
        assert config.seed == values["seed"][last]
