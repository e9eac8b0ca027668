"""`debug=`: each preset does what its first line says."""

import json

import pytest

from conftest import TINY, metrics_of


@pytest.fixture
def tiny(text_file):
    lengths = [part for part in TINY if not part.startswith(("trainer.", "sample.tokens"))]
    return [*lengths, f"data.path={text_file}"]


def results_of(directory) -> dict:
    return json.loads((directory / "results.json").read_text())


def losses(directory) -> list[float]:
    return [line["train/loss"] for line in metrics_of(directory) if "train/loss" in line]


def test_one_batch_of_everything(run_here, tiny):
    results = results_of(run_here(*tiny, "debug=one_batch"))
    assert results["status"] == "completed"
    assert results["training"]["steps"] == 1
    assert results["valid"]["tokens_scored"] == results["test"]["tokens_scored"] == 4 * 16


def test_overfit_learns_three_batches_by_heart(run_here, tiny):
    directory = run_here(*tiny, "debug=overfit", "model.dropout=0.3")
    assert results_of(directory)["config"]["model"]["dropout"] == 0.3  # the command line has the last word
    found = losses(run_here(*tiny, "debug=overfit", directory=directory.with_name("plain")))
    assert found[0] > 2.5
    assert found[-1] < 0.1
    assert found[-1] < losses(directory)[-1]


def test_profile_leaves_a_trace_of_the_steps(run_here, tiny, caplog):
    directory = run_here(*tiny, "debug=profile")
    trace = json.loads((directory / "trace.json").read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name == "aten::embedding" for name in names) >= 5
    assert sum("fused_adam" in name for name in names) == 5
    assert len(losses(directory)) == 10


def test_a_trace_of_more_steps_than_there_are_is_written_at_the_end(run_here, tiny):
    directory = run_here(*tiny, "debug=profile", "trainer.max_steps=3")
    names = [
        event.get("name", "") for event in json.loads((directory / "trace.json").read_text())["traceEvents"]
    ]
    assert sum("fused_adam" in name for name in names) == 3


def test_fast_cuts_everything_down(run_here, text_file):
    results = results_of(run_here("data=text", f"data.path={text_file}", "debug=fast"))
    assert results["status"] == "completed"
    assert results["model"]["parameters"] < 50_000
    assert results["training"]["steps"] == 20
