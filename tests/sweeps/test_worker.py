"""How a job ends: asked to stop, abandoned, killed, or out of memory; in words that say why."""

import json
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from settings.test_schema import composed
from txl.launch import processes, stop
from txl.launch.processes import StopOrder
from txl.records.files import lock_directory
from txl.sweeps.worker import JobMonitor, SweepStop, run_job, stop_order
from txl.training.callbacks.interruption import Interrupted, Interruption
from txl.training.hardware import failure_reason


def test_a_file_in_the_sweeps_directory_orders_its_jobs_to_stop(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with SweepStop(tmp_path) as request:
        assert stop_order(tmp_path) is None
        signal.raise_signal(signal.SIGTERM)
        assert request.received == signal.SIGTERM
        assert stop_order(tmp_path) == StopOrder(signal.SIGTERM)
    assert stop_order(tmp_path) is None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_ends_the_sweep_at_once_and_orders_its_jobs_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "ECHO_SECONDS", 0.0)
    with SweepStop(tmp_path):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGINT)
    assert end.value.code == 143
    assert stop_order(tmp_path) == StopOrder(signal.SIGTERM, stop.KILL_SECONDS)  # for jobs elsewhere
    with SweepStop(tmp_path):  # of the next call
        assert stop_order(tmp_path) is None


def test_a_worker_stops_when_its_sweep_was_killed(tmp_path, monkeypatch):
    assert stop_order(tmp_path) is None  # another sweeper's
    (tmp_path / "sweep.json").write_text("{}")
    held = lock_directory(tmp_path)
    assert stop_order(tmp_path) is None
    os.close(held)
    order = stop_order(tmp_path)
    assert order.number == signal.SIGTERM
    assert order.seconds < float("inf")
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # the jobs of SLURM may outlive who waits for them
    assert stop_order(tmp_path) is None


def test_a_job_without_progress_is_found(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text("")
    monitor = JobMonitor(None, tmp_path, stall_seconds=0.2)
    for line in range(4):
        time.sleep(0.1)
        log.write_text("line\n" * line)
        assert monitor() is None
    time.sleep(0.3)
    with pytest.raises(processes.StalledError, match=r"no progress for 0\.2 s"):
        monitor()
    monitor.stall_seconds = None
    assert monitor() is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory: MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried …"), "out of memory: CUDA out of memory. Tried …"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "out of memory: DefaultCPU"),
        (RuntimeError("the sky fell"), "the sky fell"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_lack_of_memory_is_called_so(error, said):
    assert failure_reason(error).startswith(said)


def test_a_kill_is_perhaps_a_lack_of_memory():
    assert str(processes.ProcessError(0, 1, -9)) == (
        "the process was killed by SIGKILL, perhaps for lack of memory"
    )
    assert str(processes.ProcessError(1, 2, 3)) == (
        "process 1 of 2 ended with exit code 3; the others were ended"
    )


def test_the_same_signal_from_two_sides_is_one(monkeypatch):
    with Interruption(lambda error: None) as caught:
        caught.in_batches = True
        for _ in range(2):  # SLURM, and the program that started this one
            signal.raise_signal(signal.SIGTERM)
        assert caught.received == signal.SIGTERM
        monkeypatch.setattr(stop, "ECHO_SECONDS", 0.0)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


ENDS = {
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "the process was killed by SIGKILL, perhaps",
    "print('loading'); raise SystemExit('error: no such planet')": "error: no such planet",
    "raise SystemExit(3)": "the process ended with exit code 3",
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return what calls a job with a program of its own, and then its results."""
    settings = composed("name=x", "data=lagged_copy")
    hydra = SimpleNamespace(
        sweep=SimpleNamespace(dir=str(tmp_path)),
        runtime=SimpleNamespace(output_dir=str(tmp_path / "row"), cwd=str(tmp_path), config_sources=[]),
        job=SimpleNamespace(config_name="train"),
        overrides=SimpleNamespace(task=["seed=1"], hydra=[]),
        mode="MULTIRUN",
        sweeper={},
    )
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: hydra))
    monkeypatch.setattr(HydraConfig, "initialized", staticmethod(lambda: False))
    monkeypatch.setattr("txl.runs.assemble.use_absolute_paths", lambda settings: None)
    (tmp_path / "row").mkdir()

    def call(text: str) -> dict:
        script = tmp_path / "script.py"
        script.write_text(text)
        with pytest.raises(ValueError, match=r"is not completed; see its console\.log"):
            run_job(settings, str(script))  # not ours: nothing else would tell
        return json.loads((tmp_path / "row" / "results.json").read_text())

    return call


@pytest.mark.parametrize("text", ENDS)
def test_a_process_that_cannot_say_why_it_ends_is_spoken_for(job, text):
    results = job(text)
    assert results["status"] == "failed"
    assert results["error"].startswith(ENDS[text])
    assert results["config"]["data"]["_target_"]


def test_the_reason_is_one_of_this_attempt(job):
    assert job("raise SystemExit('error: no such planet')")["error"] == "error: no such planet"
    assert job("raise SystemExit(3)")["error"] == "the process ended with exit code 3"


def test_settings_that_are_wrong_only_here_are_a_failed_job(job, monkeypatch):
    def no_gpu(settings):
        raise ValueError("there is no GPU here")

    monkeypatch.setattr("txl.runs.assemble.check_device", no_gpu)
    assert job("")["error"] == "there is no GPU here"
