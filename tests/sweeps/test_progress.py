"""The time that a sweep says is left, by a clock that the test sets."""

import json
import os
from types import SimpleNamespace

import pytest

from txl.sweeps.jobs import Job
from txl.sweeps.progress import SweepProgress

SCORES = {"loss": 1.0, "perplexity": 2.7, "bits_per_character": 1.44}
COMPLETED = {
    "status": "completed",
    "data": {"unit": "byte"},
    "valid": SCORES,
    "training": {"seconds": 2.0},
}
FAILED = {"status": "failed", "error": "the sky fell"}


class Watched:
    """A sweep whose jobs do what the test says, at the time it says."""

    def __init__(self, folder, clock, jobs):
        self.folder, self.clock, self.jobs = folder, clock, jobs
        self.written = 0
        self.progress = SweepProgress(folder, jobs, 0, 0)

    def at(self, time, job, step=None, **results):
        """Let the time pass until a job writes its results or a step."""
        self.clock.now, directory = time, self.folder / self.jobs[job].directory
        directory.mkdir(parents=True, exist_ok=True)
        if step is not None:
            (directory / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
        (directory / "results.json").write_text(json.dumps(results or {"status": "running"}))
        self.written += 1  # a stamp that differs, however coarse the file system's
        os.utime(directory / "results.json", ns=(self.written, self.written))
        self.progress.update()

    def left(self, time):
        self.clock.now = time
        return self.progress.seconds_left()


@pytest.fixture
def watch(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("txl.sweeps.progress.time", SimpleNamespace(monotonic=lambda: clock.now))

    def watched(*rows, seeds=(1,), steps=100):
        config = {"trainer": {"max_steps": steps}}
        jobs = [Job(row, [], seed, config=config) for row in rows for seed in seeds]
        return Watched(tmp_path, clock, jobs)

    return watched


def test_evaluation_counts_as_soon_as_a_job_has_ended(watch):
    sweep = watch("a", "b", "c")
    assert sweep.left(0) is None
    sweep.at(10, 0)
    assert sweep.left(20) is None
    sweep.at(60, 0, step=50)
    assert sweep.left(60) == 250  # a step a second, and nothing known of the rest
    sweep.at(110, 0, step=100)
    sweep.at(210, 0, **COMPLETED)  # as long again
    assert sweep.left(210) == 400
    sweep.at(220, 1)
    sweep.at(270, 1, step=5)  # a slow beginning
    assert sweep.left(270) == 350
    sweep.at(370, 1, step=100)
    assert sweep.left(370) == 250  # it evaluates


def test_a_row_takes_what_it_took_with_another_seed_and_others_the_median(watch):
    sweep = watch("a", "b", "c", seeds=(1, 2))
    now = 0
    for job, seconds in ((0, 100), (2, 900), (4, 200)):
        sweep.at(now, job)
        now += seconds
        sweep.at(now, job, **COMPLETED)
    assert sweep.left(now) == 100 + 900 + 200
    other = watch("d", "e", "f", "g")
    for job, seconds in ((0, 100), (1, 900), (2, 200)):
        other.at(now, job)
        now += seconds
        other.at(now, job, **COMPLETED)
    assert other.left(now) == 200


def test_a_job_that_is_slower_than_those_before_moves_the_end(watch):
    sweep = watch("a", "b")
    sweep.at(0, 0)
    sweep.at(100, 0, **COMPLETED)
    sweep.at(100, 1)
    sweep.at(200, 1, step=10)
    assert sweep.left(200) == 900
    sweep.at(1200, 1, step=100)
    assert sweep.left(1200) == 0


def test_jobs_at_the_same_time_share_the_time_but_the_last_ends_by_itself(watch):
    sweep = watch("a", "b", "c", "d", "e")
    sweep.at(0, 0)
    sweep.at(0, 1)
    sweep.at(100, 0, **COMPLETED)
    sweep.at(100, 1, **COMPLETED)
    assert sweep.left(100) == 150
    for job in (2, 3):
        sweep.at(100, job)
        sweep.at(200, job, **COMPLETED)
    sweep.at(200, 4)
    assert sweep.left(250) == 50


def test_a_failed_job_says_nothing_of_the_others(watch):
    sweep = watch("a", "b", "c")
    sweep.at(0, 0)
    sweep.at(1, 0, **FAILED)
    assert sweep.left(1) is None
    sweep.at(1, 1)
    sweep.at(101, 1, **COMPLETED)
    assert sweep.left(101) == 100


def test_a_job_that_goes_on_has_only_its_last_steps_to_do(watch):
    before = watch("a", "b")
    before.at(0, 0, step=80)
    sweep = watch("a", "b")  # the same directory
    sweep.written = 1
    sweep.at(0, 0)
    sweep.at(20, 0, step=90)
    assert sweep.left(20) == 20 + 200
    sweep.at(50, 0, **COMPLETED)
    assert sweep.left(50) is None  # a part of a job is no measure of a whole one
