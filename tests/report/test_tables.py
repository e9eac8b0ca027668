"""The tables of sweeps: the numbers, every status, several directories, and the same bytes again."""

import csv
import io
import json
import math
import statistics

import pytest
from rich.console import Console

from report.made_up import TABLE, results, write_run, write_sweep
from txl.report import summary_of, write_tables
from txl.sweeps.definition import names, read

BITS = {"xl": [2.27, 2.274, 2.268], "shaw": [2.30, 2.31, 2.305], "no_recurrence": [2.40, 2.41, 2.38]}


def sweep(directory, rows=BITS, **changes):
    runs = {row: [results(bits, seed) for seed, bits in enumerate(all_, 1)] for row, all_ in rows.items()}
    return write_sweep(directory, runs, **changes)


def lines(path):
    """Return the lines of table.csv by row and measure."""
    read = csv.DictReader(io.StringIO((path / "table.csv").read_text()))
    return {(line["row"], line["measure"]): line for line in read}


def markdown_row(path, name):
    text = (path / "table.md").read_text()
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_the_numbers_are_those_of_an_independent_computation(tmp_path):
    write_tables(sweep(tmp_path))
    table = lines(tmp_path)
    for row, bits in BITS.items():
        line = table[row, "init"]
        assert float(line["mean"]) == pytest.approx(math.fsum(bits) / 3, rel=1e-11)
        spread = math.sqrt(sum((value - math.fsum(bits) / 3) ** 2 for value in bits) / 2)
        assert float(line["deviation"]) == pytest.approx(spread, rel=1e-9)
        assert (line["n"], line["runs"]) == ("3", "3")
        assert line["values"] == " ".join(f"{seed}:{value}" for seed, value in enumerate(bits, 1))
        assert float(table[row, "best"]["mean"]) == pytest.approx(math.fsum(bits) / 3 - 0.0204, rel=1e-9)
        assert table[row, "attention_length"]["mean"] == "256"  # 512 is better, but not in printed digits
    line = table["no_recurrence", "init"]
    gap = statistics.fmean(BITS["no_recurrence"]) - statistics.fmean(BITS["xl"])
    assert float(line["difference"]) == pytest.approx(gap, rel=1e-9)
    assert float(line["published_difference"]) == pytest.approx(29.59 - 27.02)
    assert "| 2.271 ± 0.003 | 27.02 |" in markdown_row(tmp_path, "xl")


def test_the_same_files_give_the_same_bytes_wherever_they_lie(tmp_path):
    first, second = sweep(tmp_path / "a"), sweep(tmp_path / "b" / "c")
    write_tables(first)
    for path in write_tables(second):
        assert path.read_bytes() == (first / path.name).read_bytes()
        assert str(tmp_path) not in path.read_text("utf-8")
    before = (second / "table.md").read_bytes()
    write_run(second / "xl" / "seed1", results(2.27, 1), curve=[3.0, 2.5, 2.27])
    write_tables(second)
    assert (second / "table.md").read_bytes() == before  # the log of a run adds to the page alone


def test_rows_that_failed_or_are_missing_are_shown(tmp_path):
    runs = {
        "xl": [results(2.27, 1), results(seed=2, status="failed"), None],
        "shaw": [results(seed=1, status="interrupted")],
    }
    table = json.loads(json.dumps(TABLE))
    table["rows"]["other"] = {"label": "LSTM", "published": {"init": 48.7}}
    write_tables(write_sweep(tmp_path, runs, table))
    assert "| 1 of 3 | 2.270 |" in markdown_row(tmp_path, "xl")
    assert "| 1 of 3 completed, 1 failed, 1 missing |" in markdown_row(tmp_path, "xl")
    assert "| interrupted |" in markdown_row(tmp_path, "shaw")
    assert "| not run |" in markdown_row(tmp_path, "no\\_recurrence")
    assert "| 48.70 |" in markdown_row(tmp_path, "other")
    assert "| published only |" in markdown_row(tmp_path, "other")
    text = (tmp_path / "table.md").read_text()
    assert "- xl, seed 2: failed: CUDA out of memory. Tried to allocate 2.00 GiB\n" in text
    assert "- xl, seed 3: missing" in text


def test_every_table_and_figure_of_the_paper_shows_all_its_rows_before_anything_ran(tmp_path):
    for name in names():
        table = read(name).table
        write_sweep(tmp_path / name, {}, table, name=name)
        write_tables(tmp_path / name)
        shown = list(dict.fromkeys(row for row, _ in lines(tmp_path / name)))
        assert shown == list(table["rows"])
        statuses = {line["status"].split()[0] for line in lines(tmp_path / name).values()}
        assert statuses <= {"published", "not", "waits"}


def test_a_damaged_sweep_is_one_clear_line(tmp_path):
    (sweep(tmp_path) / "sweep.json").write_text('{"schema": 1, "name": "ta')
    with pytest.raises(ValueError, match=r"sweep.json is damaged .*; the sweep's command writes it anew"):
        write_tables(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="schema 2, this version reads 1"):
        write_tables(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": 1, "jobs": []}')
    with pytest.raises(ValueError, match="it has no 'name'"):
        write_tables(tmp_path)


def test_the_console_shows_the_numbers_and_what_went_wrong(tmp_path):
    write_sweep(tmp_path, {"xl": [results(2.27, 1), results(2.28, 2)], "shaw": [results(status="failed")]})
    text = printed(summary_of(tmp_path, 120), 120)
    for expected in ("Ablation", "2.275 ± 0.007", "27.02", "not run", "shaw, seed 1: failed: CUDA out of"):
        assert expected in text
    narrow = printed(summary_of(tmp_path, 80), 80)
    assert "2.275 ± 0.007" in narrow
    assert "paper" not in narrow
    assert "…" not in narrow


def printed(what, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()
