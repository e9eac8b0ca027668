"""The run directory when things end badly: interrupted, failed, killed."""

import json
import os
import random
import signal
import time

import pytest
import torch
import yaml

from conftest import TINY
from txl.records import files
from txl.records import results as records
from txl.records.results import read_status


def wait_for(condition, seconds: float = 60) -> None:
    """Wait until the condition holds; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def endless(text_file):
    return [*TINY, f"data.path={text_file}", "trainer.max_steps=100000", "trainer.validate_every=20"]


def steps_logged(train) -> int:
    path = train.run_directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_its_last_checkpoint_and_says_so(train, endless, number, code):
    run = train.start(*endless)
    wait_for(lambda: steps_logged(train) > 30)
    run.send_signal(number)
    assert run.wait(30) == code
    results = train.results()
    assert results["status"] == "interrupted"
    assert results["error"] == f"stopped by {number.name}"
    assert results["training"]["steps"] > 20
    assert results["finished_at"]
    checkpoint = torch.load(train.run_directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == results["training"]["steps"]
    output = (train.folder / "output.txt").read_text()
    assert f"interrupted: stopped by {number.name}; kept" in output
    assert "Traceback" not in output


def test_an_interruption_before_training_is_one_too(train, endless):
    """As soon as there is a `results.json`, however slow the machine is then."""
    (train.folder / "sitecustomize.py").write_text(
        "import os, time\nlink = os.link\nos.link = lambda *words: (link(*words), time.sleep(1))\n"
    )
    train.environment["PYTHONPATH"] = os.pathsep.join([str(train.folder), os.environ.get("PYTHONPATH", "")])
    run = train.start(*endless)
    wait_for(lambda: (train.run_directory / "results.json").exists())
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 143
    assert train.results()["status"] == "interrupted"


def test_a_failure_is_recorded_with_its_reason_and_its_checkpoint_kept(train, text_file):
    (train.folder / "broken.py").write_text(
        "from txl.model import RelativePosition\n"
        "class Broken(RelativePosition):\n"
        "    calls = 0\n"
        "    def table(self, *words):\n"
        "        Broken.calls += 1\n"
        "        if Broken.calls > 60: raise RuntimeError('the sky fell')\n"
        "        return super().table(*words)\n"
    )
    train.environment["PYTHONPATH"] = str(train.folder)
    done = train(
        *TINY,
        f"data.path={text_file}",
        "position._target_=broken.Broken",
        "trainer.max_steps=100000",
        fresh=True,
    )
    assert done.returncode == 1
    results = train.results()
    assert (results["status"], results["error"]) == ("failed", "the sky fell")
    assert results["training"]["steps"] > 0
    assert "RuntimeError: the sky fell" in (train.run_directory / "train.log").read_text()
    assert "RuntimeError: the sky fell" in done.stdout
    assert (train.run_directory / "checkpoints" / "last.ckpt").exists()


def readable(directory) -> bool:
    """Read everything that is there; return whether a checkpoint was."""
    if (directory / "config.yaml").exists():
        assert yaml.safe_load((directory / "config.yaml").read_text())["trainer"]["max_steps"]
    if (directory / "results.json").exists():
        assert read_status(directory) == "interrupted"  # it says "running", and no process is there
    if (directory / "metrics.jsonl").exists():
        for line in (directory / "metrics.jsonl").read_text().splitlines():
            assert json.loads(line)["step"] > 0
    checkpoints = sorted((directory / "checkpoints").glob("*.ckpt"))
    for path in checkpoints:
        assert torch.load(path, weights_only=True)["global_step"] > 0
    return bool(checkpoints)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_leaves_a_readable_directory(train, endless):
    """Ten kills: from start-up, through the first step, to between many checkpoints."""
    chance, with_checkpoint = random.Random(0), 0
    for kill in range(10):
        train.run_directory = train.folder / f"run{kill}"
        run = train.start(*endless, "trainer.validate_every=2")
        if kill < 3:
            time.sleep(chance.uniform(1.0, 5.0))
        else:
            wait_for(lambda: steps_logged(train) > 0)
            time.sleep(chance.uniform(0.0, 2.0))
        run.kill()
        run.wait(30)
        with_checkpoint += readable(train.run_directory)
    assert with_checkpoint >= 5


def test_a_full_disk_stops_no_training_for_its_results(run_here, text_file, monkeypatch, caplog):
    """While the training goes on they cannot be written; at the end there is room again."""
    write, refused = files.write_atomically, []

    def full(path, text):
        training = json.loads(text)["training"] if path.name == "results.json" else None
        if training and len(refused) < 2:
            refused.append(training["steps"])
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(records, "write_atomically", full)
    directory = run_here(*TINY, f"data.path={text_file}")
    assert refused == [4, 8]
    assert caplog.text.count("results.json cannot be written ([Errno 28] No space left on device)") == 2
    assert json.loads((directory / "results.json").read_text())["status"] == "completed"


def test_what_cannot_be_written_whole_leaves_no_part(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(tmp_path / "results.json", "{}")
    assert list(tmp_path.iterdir()) == []
