"""The protocol for stopping: one signal saves, two end at once, and what does not answer is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import ROOT, TINY
from txl.launch import processes, stop
from txl.launch.processes import ProcessError, StopOrder, run_together
from txl.launch.stop import StopRequest

STOPPED = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
DEAF = [sys.executable, "-c", "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stop, "ECHO_SECONDS", 0.05)


def signals(*after: float) -> list[threading.Timer]:
    """Send this process SIGINT after so many seconds, again and again."""
    timers = [threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in after]
    for timer in timers:
        timer.start()
    return timers


def test_the_first_signal_asks_and_the_second_is_urgent():
    before = signal.getsignal(signal.SIGINT)
    heard = []
    with StopRequest(lambda number: heard.append(number), lambda number: heard.append(-number)) as request:
        assert (request.received, request.urgent_since) == (None, None)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # an echo, of a parent that passes it on
        assert heard == [signal.SIGTERM]
        time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGTERM, -signal.SIGINT]
        assert request.received == signal.SIGTERM
        assert request.urgent_since is not None
    assert signal.getsignal(signal.SIGINT) is before


def test_what_an_inner_request_received_reaches_the_outer_one():
    with StopRequest() as outer:
        with StopRequest() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert inner.received == outer.received == signal.SIGTERM


def test_a_thread_receives_nothing_and_breaks_nothing():
    found = []

    def use() -> None:
        with StopRequest() as request:
            found.append(request.received)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [None]


@pytest.mark.parametrize("command", [STOPPED, DEAF])
def test_two_signals_end_processes_that_do_not_answer(monkeypatch, command):
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.5)
    began = time.monotonic()
    timers = signals(1.0, 1.3)
    with pytest.raises(SystemExit) as end:
        run_together(command, [{}, {}])
    assert end.value.code == 130
    assert 1.5 < time.monotonic() - began < 5
    for timer in timers:
        timer.join()


def test_one_signal_waits_for_the_processes_to_save():
    saves = "import signal, time; signal.signal(2, lambda *_: (time.sleep(1), exit(0))); time.sleep(60)"
    (timer,) = signals(1.5)
    began = time.monotonic()
    assert run_together([sys.executable, "-c", saves], [{}]) == signal.SIGINT
    assert time.monotonic() - began > 2.3
    timer.join()


def test_an_order_stops_processes_and_kills_those_that_do_not_answer(monkeypatch):
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.1)
    with pytest.raises(SystemExit) as end:
        run_together(STOPPED, [{}], poll=lambda: StopOrder(signal.SIGTERM, 0.5))
    assert end.value.code == 143


def test_what_the_poll_raises_ends_the_processes(monkeypatch):
    def stalled():
        raise processes.StalledError(7)

    with pytest.raises(ProcessError, match="no progress for 7 s; the processes were killed"):
        run_together(STOPPED, [{}], poll=stalled)


def alive(word: object) -> list[int]:
    """Return the processes whose command line has a word."""
    found = subprocess.run(["pgrep", "-f", "--", str(word)], capture_output=True, text=True).stdout.split()
    return [int(process) for process in found if int(process) != os.getpid()]


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def has_logged(directory: Path) -> bool:
    path = directory / "metrics.jsonl"
    return path.exists() and path.read_bytes().count(b"\n") > 3


def interrupt_twice(program: subprocess.Popen, directory: Path) -> None:
    """Press Ctrl-C twice; everything must be gone within ten seconds."""
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    time.sleep(1)
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 130
    wait_for(lambda: not alive(directory), 10 - (time.monotonic() - began))
    results = json.loads((directory / "results.json").read_text())
    assert (results["status"], results["error"]) == ("interrupted", "stopped by SIGINT")
    assert results["finished_at"]


ENDLESS = [*TINY, "data.path=tiny.txt", "trainer.max_steps=100000", "trainer.validate_every=100000"]


@pytest.mark.slow
def test_a_stopped_rank_does_not_survive_two_interrupts(train, text_file):
    train.environment["OMP_NUM_THREADS"] = "1"
    run = train.start(*ENDLESS, "trainer=ddp_cpu", "trainer.devices=2")
    wait_for(lambda: has_logged(train.run_directory))
    _, second = sorted(process for process in alive(train.run_directory) if process != run.pid)[:2]
    os.kill(second, signal.SIGSTOP)
    interrupt_twice(run, train.run_directory)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=parallel"]])
def test_a_stopped_job_does_not_hold_its_sweep(train, text_file, launcher):
    train.environment["OMP_NUM_THREADS"] = "1"
    sweep = train.folder / "sweep"
    words = [sys.executable, str(ROOT / "train.py"), "-m", f"hydra.sweep.dir={sweep}", "seed=1,2,3"]
    with (train.folder / "output.txt").open("wb") as output:
        run = subprocess.Popen(
            [*words, *ENDLESS, *launcher],
            cwd=train.folder,
            env=train.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    job = sweep / "base" / "seed1"
    wait_for(lambda: has_logged(job))
    for process in alive(f"hydra.run.dir='{job}'"):
        os.kill(process, signal.SIGSTOP)
    interrupt_twice(run, job)
    assert not alive(sweep)


@pytest.mark.slow
def test_a_job_that_hangs_fails_and_the_next_one_runs(train, text_file):
    train.environment["OMP_NUM_THREADS"] = "1"
    sweep = train.folder / "sweep"
    words = [sys.executable, str(ROOT / "train.py"), "-m", f"hydra.sweep.dir={sweep}", "seed=1,2"]
    words += ["hydra.sweeper.stall_seconds=20", *TINY, "data.path=tiny.txt", "trainer.max_steps=400"]
    run = subprocess.Popen(words, cwd=train.folder, env=train.environment, start_new_session=True)
    jobs = [sweep / "base" / f"seed{seed}" for seed in (1, 2)]
    wait_for(lambda: has_logged(jobs[0]))
    for process in alive(f"hydra.run.dir='{jobs[0]}'"):
        os.kill(process, signal.SIGSTOP)
    assert run.wait(200) == 1
    first, second = (json.loads((job / "results.json").read_text()) for job in jobs)
    assert (first["status"], first["error"]) == (
        "failed",
        "no progress for 20 s; the processes were killed",
    )
    assert second["status"] == "completed"
