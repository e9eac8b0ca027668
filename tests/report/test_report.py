"""Figures and tables from files alone, also of a run that did not finish."""

import io
import json

import pytest
from rich.console import Console

from txl.records.metrics import read_metrics
from txl.report import draw_learning_curve, summary

RESULTS = {
    "status": "completed",
    "data": {"name": "sample", "unit": "byte"},
    "model": {"parameters": 1_234_567},
    "training": {"tokens": 1000, "seconds": 12.3},
    "valid": {"perplexity": 4.0, "bits_per_character": 2.0},
    "test": {"perplexity": 4.1, "bits_per_character": 2.123},
    "compressors": {"gzip -9": 2.84},
}


def write(directory, lines, **changes):
    (directory / "results.json").write_text(json.dumps(RESULTS | changes))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def printed(directory) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(directory))
    return console.export_text()


def curve(key="bits_per_byte"):
    train = [{"step": s, "tokens": 10 * s, f"train/{key}": 5 - s / 10} for s in range(1, 30)]
    return [*train, {"step": 30, "tokens": 300, f"valid/{key}": 2.5}]


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        (curve(), {}),
        (curve()[:1], {"status": "interrupted", "test": None, "valid": None, "compressors": None}),
        ([], {"status": "failed", "test": None}),
        (curve("perplexity"), {"data": {"name": "s", "unit": "word"}, "compressors": None}),
        (curve("bits_per_character"), {"data": {"name": "s", "unit": "char"}}),
    ],
)
def test_the_curve_is_drawn_whatever_the_run_left(tmp_path, lines, changes):
    write(tmp_path, lines, **changes)
    path = draw_learning_curve(tmp_path)
    assert path == tmp_path / "figures" / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_the_table_has_the_model_beside_the_compressors(tmp_path):
    write(tmp_path, curve())
    text = printed(tmp_path)
    for expected in ("1,234,567 parameters", "bits per byte", "2.000", "2.123", "gzip -9", "2.840"):
        assert expected in text


def test_words_are_measured_in_perplexity(tmp_path):
    write(tmp_path, [], data={"name": "s", "unit": "word"}, compressors=None)
    assert "perplexity" in printed(tmp_path)
    assert "4.10" in printed(tmp_path)


def test_lines_without_the_number_and_a_torn_last_line_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n{"a": null}\n{"b": 2}\n{"a": 3')
    assert read_metrics(tmp_path, "a") == [{"a": 1}]
    assert read_metrics(tmp_path / "absent", "a") == []
