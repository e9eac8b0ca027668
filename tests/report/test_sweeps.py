"""Which rows and runs several directories hold together."""

import csv
import io
import json
import math
import os

import pytest

from report.made_up import LN2, TABLE, results, score, write_run, write_sweep
from txl.__main__ import main
from txl.records.files import lock_directory
from txl.report import write_tables
from txl.report.sweeps import read_sweeps


def lines(path):
    read = csv.DictReader(io.StringIO((path / "table.csv").read_text()))
    return {(line["row"], line["measure"]): line for line in read}


def test_two_machines_with_other_seeds_and_rows_make_one_table(tmp_path):
    write_sweep(tmp_path / "a", {"xl": [results(2.27, 1), results(2.28, 2)]})
    write_sweep(tmp_path / "b", {"no_recurrence": [results(2.4, 1)], "xl": []})
    write_tables([tmp_path / "b", tmp_path / "a"], tmp_path / "out")
    table = lines(tmp_path / "out")
    assert [row for row, measure in table if measure == "init"] == ["xl", "shaw", "no_recurrence"]
    assert table["xl", "init"]["values"] == "1:2.27 2:2.28"
    assert float(table["no_recurrence", "init"]["difference"]) == pytest.approx(0.125)
    before = (tmp_path / "out" / "table.md").read_bytes()
    write_tables([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert (tmp_path / "out" / "table.md").read_bytes() == before


def test_a_seed_in_two_directories_is_one_run_or_an_error(tmp_path):
    write_sweep(tmp_path / "a", {"xl": [results(2.27, 1), results(seed=2, status="failed"), None]})
    again = results(2.27, 1, finished_at="2027-01-01T00:00:00+00:00")
    again["training"]["seconds"] = 3.0
    write_sweep(tmp_path / "b", {"xl": [again, results(2.28, 2), None]})
    write_tables([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert lines(tmp_path / "out")["xl", "init"]["values"] == "1:2.27 2:2.28"
    text = (tmp_path / "out" / "table.md").read_text()
    assert "xl, seed 2: a run that failed is replaced by another" in text
    assert "xl, seed 3: missing" in text
    write_sweep(tmp_path / "c", {"xl": [results(2.29, 1)]})
    with pytest.raises(
        ValueError, match=r"row xl, seed 1 has different results in .*a/xl/seed1 and in .*c/xl"
    ):
        write_tables([tmp_path / "a", tmp_path / "c"], tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "table7"}, r"sweeps of table6 \(scale laptop\) and of table7 .* are not one table"),
        ({"scale": "paper"}, r"table6 \(scale laptop\) and of table6 \(scale paper\)"),
        ({"table": TABLE | {"measures": ["init"]}}, "differ in its rows, columns or published numbers"),
        ({"table": None}, "runs of no table are not one table"),
    ],
)
def test_sweeps_of_different_tables_are_not_mixed(tmp_path, changes, said):
    write_sweep(tmp_path / "a", {"xl": [results()]})
    write_sweep(tmp_path / "b", {"xl": [results(2.3, 2)]}, **changes)
    with pytest.raises(ValueError, match=said):
        read_sweeps([tmp_path / "a", tmp_path / "b"])


def test_runs_of_no_sweep_are_grouped_by_their_settings(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / "outputs" / f"a{seed}", results(2.27 + seed / 100, seed))
        other = results(2.4, seed, overrides=["position=rotary", f"seed={seed}", "data.path=/somewhere"])
        other["config"]["position"]["_target_"] = "txl.model.RotaryPosition"
        write_run(tmp_path / "outputs" / f"b{seed}", other)
    write_tables(tmp_path / "outputs", tmp_path)
    table = lines(tmp_path)
    assert table["position=relative", "valid"]["n"] == "2"
    assert float(table["position=relative", "valid"]["mean"]) == pytest.approx(2.285)
    assert table["position=rotary", "valid"]["beyond_noise"] == "yes"
    assert table["position=rotary", "peak_memory"]["values"] == f"1:{512 * 2**20 + 1} 2:{512 * 2**20 + 2}"
    text = (tmp_path / "table.md").read_text()
    assert "Runs on enwiki\\_sample" in text
    assert str(tmp_path) not in text


def test_an_ordinary_sweep_has_its_rows_in_the_order_of_its_jobs(tmp_path):
    runs = {"two": [results(2.3, 1)], "one": [results(2.2, 1)]}
    write_sweep(tmp_path, runs, None, name="enwiki_sample", scale=None)
    write_tables(tmp_path)
    assert [row for row, measure in lines(tmp_path) if measure == "best"] == ["row=two", "row=one"]


def test_further_numbers_of_a_run_are_those_at_their_attention_length(tmp_path):
    table = json.loads(json.dumps(TABLE))
    more = {"label": "same", "same_run": "xl", "published": {"best": 26.9, "attention_length": 450}}
    table["rows"] |= {f"xl_{length}": more | {"at_attention_length": length} for length in (512, 450)}
    write_tables(write_sweep(tmp_path, {"xl": [results(2.27, 1)]}, table))
    found = lines(tmp_path)
    assert found["xl_512", "best"]["values"] == f"1:{2.27 - 0.0204!r}"
    assert found["xl_512", "attention_length"]["mean"] == "512"
    assert found["xl_450", "best"]["mean"] == ""
    assert found["xl_450", "best"]["status"] == "attention length 450 was not tried"


def test_losses_that_are_not_finite_are_said_and_not_averaged(tmp_path):
    broken = results(2.3, 3)
    broken["valid"] |= {"loss": None, "perplexity": None, "bits_per_character": None}
    table = TABLE | {"measures": ["valid", "test"]}
    runs = {"xl": [results(2.27, 1), results(2.28, 2), broken], "shaw": [broken | {"seed": 1}]}
    write_tables(write_sweep(tmp_path, runs, table))
    text = (tmp_path / "table.md").read_text()
    assert "| 2.275 ± 0.007 (n = 2, 1 not finite) |" in text
    assert "| 1 not finite |" in text
    assert lines(tmp_path)["xl", "valid"]["n"] == "2"
    assert math.isfinite(float(lines(tmp_path)["xl", "test"]["mean"]))


def test_words_are_shown_in_perplexity_and_mixed_texts_in_nats_without_differences(tmp_path):
    words = [results(4.0, seed) for seed in (1, 2)]
    for one in words:
        one["data"] |= {"unit": "word", "name": "sotu", "sha256": "49bf"}
    table = TABLE | {"measures": ["valid"]}
    write_tables(write_sweep(tmp_path / "words", {"xl": words}, table))
    assert float(lines(tmp_path / "words")["xl", "valid"]["mean"]) == pytest.approx(16)
    assert "| 16.00 ± 0.00 |" in (tmp_path / "words" / "table.md").read_text()
    write_tables(write_sweep(tmp_path / "both", {"xl": words, "shaw": [results(2.0, 1)]}, table))
    line = lines(tmp_path / "both")["shaw", "valid"]
    assert float(line["mean"]) == pytest.approx(2 * LN2)
    assert (line["unit"], line["difference"]) == ("nats per token", "")
    assert "Not all rows read the same text" in (tmp_path / "both" / "table.md").read_text()


def test_seeds_with_other_settings_are_noted(tmp_path):
    other = results(2.28, 2)
    other["config"]["trainer"]["max_steps"] = 500
    write_tables(write_sweep(tmp_path, {"xl": [results(2.27, 1), other]}))
    note = "xl: its seeds were not run with the same settings: trainer.max\\_steps (1000 / 500)"
    assert note in (tmp_path / "table.md").read_text()


def test_damaged_results_are_a_row_that_says_so(tmp_path):
    write_sweep(tmp_path, {"xl": [results(2.27, 1), results(2.28, 2), results(2.29, 3)]})
    (tmp_path / "xl" / "seed1" / "results.json").write_text('{"status": "compl')
    (tmp_path / "xl" / "seed2" / "results.json").write_text(json.dumps(results(2.28, 2, schema=7)))
    write_tables(tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "| 1 of 3 completed, 2 unreadable |" in text
    assert "xl, seed 1: unreadable: its results.json is damaged" in text
    assert "xl, seed 2: unreadable: its results.json has schema 7" in text


def test_results_of_a_job_that_never_composed_are_enough(tmp_path):
    bare = {"schema": 1, "status": "failed", "error": "no such option: modle", "seed": 1, "overrides": []}
    write_tables(write_sweep(tmp_path, {"xl": [bare]}))
    assert "xl, seed 1: failed: no such option: modle" in (tmp_path / "table.md").read_text()


def test_a_misspelt_measure_names_the_nearest(tmp_path):
    write_sweep(tmp_path, {"xl": [results()]}, TABLE | {"measures": ["bset"]})
    with pytest.raises(ValueError, match=r"did you mean best\?"):
        write_tables(tmp_path)


def test_the_attention_length_of_training_may_be_set(tmp_path):
    short = results(2.27, 1)
    short["config"]["training"]["attention_length"] = 64
    short["attention"].append(score(2.0, 1024) | {"loss": None, "bits_per_character": None})
    write_tables(write_sweep(tmp_path, {"xl": [short]}))
    assert float(lines(tmp_path)["xl", "init"]["mean"]) == pytest.approx(2.32)
    assert lines(tmp_path)["xl", "attention_length"]["mean"] == "256"


def test_the_verb_writes_prints_and_names_what_is_wrong(tmp_path, capsys):
    write_sweep(tmp_path / "a", {"xl": [results(2.27, 1)]})
    assert main(["report", str(tmp_path / "a"), f"out={tmp_path / 'out'}"]) == 0
    assert "2.270" in capsys.readouterr().out
    names = ["report.html", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for words, said in (
        ([str(tmp_path / "none")], "is not a directory"),
        ([str(tmp_path / "a"), str(tmp_path / "a")], "out=DIR"),
        ([str(tmp_path / "a"), "uot=x"], "did you mean out=DIR?"),
        ([f"out={tmp_path}"], "name a directory"),
    ):
        assert main(["report", *words]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 1
    assert "neither a sweep.json nor a results.json" in capsys.readouterr().err


def test_a_run_that_says_running_is_interrupted_once_nobody_holds_its_lock(tmp_path):
    directory = write_run(tmp_path / "run", results() | {"status": "running", "error": None})
    held = lock_directory(directory)
    (row,) = read_sweeps([directory]).rows
    assert [(run.status, run.error) for run in row.runs] == [("running", "it is still running")]
    os.close(held)
    (row,) = read_sweeps([directory]).rows
    assert [(run.status, run.error) for run in row.runs] == [("interrupted", "the process was killed")]
