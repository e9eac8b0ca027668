"""The paper's tables as files: what the reader makes of them, what it refuses, and the published numbers."""

import json

import pytest

from txl.training.ablations import ABLATIONS, SCALES, last_of_each, names, read
from txl.training.components import ConfigError

# Typed once more from the paper: row → (init, best, attention length).
TABLE_6 = {
    "xl": (27.02, 26.77, 500),
    "shaw": (27.94, 27.94, 256),
    "half": (28.69, 28.33, 460),
    "no_recurrence": (29.59, 29.02, 260),
    "no_recurrence_half": (30.10, 30.10, 120),
    "no_recurrence_shaw": (29.75, 29.75, 120),
    "no_recurrence_shaw_half": (30.50, 30.50, 120),
    "no_recurrence_sinusoidal_half": (30.97, 30.97, 120),
    "no_recurrence_learned_half": (31.16, 31.16, 120),
    "xl_large": (23.43, 23.09, 640),
    "xl_large_450": (None, 23.16, 450),
    "xl_large_300": (None, 23.35, 300),
}
TABLE_7 = {"xl": (25.2,), "shaw": (25.7,), "no_recurrence": (27.1,)}
PUBLISHED = {
    "table6": (("init", "best", "attention_length"), TABLE_6),
    "table7": (("valid",), TABLE_7),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", names())
def test_every_file_is_read_and_is_plain_data(name, scale):
    ablation = read(name, scale)
    assert json.loads(json.dumps(ablation.table)) == ablation.table
    assert list(ablation.table["scales"]) == [scale]
    assert set(ablation.jobs) <= set(ablation.table["rows"])
    assert (ABLATIONS / f"{name}.yaml").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_numbers_are_the_papers(name):
    measures, rows = PUBLISHED[name]
    expected = {
        row: {
            measure: number for measure, number in zip(measures, numbers, strict=True) if number is not None
        }
        for row, numbers in rows.items()
    }
    table = read(name).table
    assert {row: content["published"] for row, content in table["rows"].items()} == expected
    assert set(measures) <= set(table["measures"])


def test_a_job_has_the_scales_overrides_and_then_its_own_each_setting_once():
    jobs = read("table6", "paper").jobs
    assert jobs["shaw"][0] == "experiment=wt103_128m"
    assert jobs["shaw"][-1] == "position=shaw"
    assert [word for word in jobs["xl_large"] if "experiment" in word] == ["experiment=wt103_base"]
    lengths = [word for word in jobs["no_recurrence"] if word.startswith("evaluation.attention_lengths=")]
    assert len(lengths) == 1
    assert "640" not in lengths[0]
    assert last_of_each(["a=1", "b=x=1", "a=2"]) == ["b=x=1", "a=2"]


def test_the_encodings_are_all_there_are_with_and_without_recurrence():
    encodings = [path.stem for path in (ABLATIONS.parent / "conf" / "position").glob("*.yaml")]
    jobs = read("encodings").jobs
    assert set(jobs) == {row for name in encodings for row in (name, f"{name}_no_recurrence")}
    for row, overrides in jobs.items():
        assert f"position={row.removesuffix('_no_recurrence')}" in overrides
        assert ("training.memory_length=0" in overrides) == row.endswith("_no_recurrence")


SMALL = """
title: A table
source: us
published_on: nothing
columns: {loss: Loss}
measures: [valid, best]
scales:
  laptop: {note: small, overrides: [trainer.max_steps=2]}
  paper: {note: large, overrides: []}
rows:
  one: {label: One, loss: Full, overrides: [seed=1], laptop: [seed=2]}
  two: {label: Two, loss: Full, published: {best: 3}}
  three: {label: Three, loss: Half, paper: [seed=3]}
  four: {label: Four, loss: Half, overrides: [], waits_for: txl speed}
  five: {label: Five, same_run: one, at_attention_length: {laptop: 4, paper: 8}}
"""


def small(folder, old: str = "", new: str = ""):
    assert old in SMALL
    (folder / "small.yaml").write_text(SMALL.replace(old, new, 1) if old else SMALL, "utf-8")
    return folder


def test_a_row_is_run_where_it_has_overrides(tmp_path):
    laptop, paper = (read("small", scale, small(tmp_path)) for scale in SCALES)
    assert laptop.jobs == {"one": ["trainer.max_steps=2", "seed=2"]}
    assert paper.jobs == {"one": ["seed=1"], "three": ["seed=3"]}
    assert "overrides" not in laptop.table["rows"]["three"]
    assert paper.table["rows"]["five"]["at_attention_length"] == 8
    assert paper.chosen(["three"]) == {"three": ["seed=3"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("on", "small has no row on; did you mean one?"),
        ("two", "small: the row two is not run: it has no overrides at scale=laptop"),
        ("four", "small: the row four is not run: it waits for txl speed"),
        ("five", "small: the row five is not run: its numbers are of the run of one; choose that row"),
    ],
)
def test_a_row_that_is_not_run_cannot_be_chosen(tmp_path, row, message):
    with pytest.raises(ConfigError) as error:
        read("small", "laptop", small(tmp_path)).chosen([row])
    assert message in str(error.value)


MISTAKES = {
    ("title: A", "titel: A"): "there is no key titel; did you mean title?",
    ("source: us\n", ""): "source is missing",
    ("[valid, best]", "[valid, bets]"): "there is no measure bets; did you mean best",
    ("{best: 3}", "{valdi: 3}"): "rows.two: there is no measure valdi; did you mean valid?",
    ("{best: 3}", '{best: "3"}'): "rows.two: published.best: 3 is not a number",
    ("  laptop: {note", "  labtop: {note"): "there is no scale labtop; did you mean laptop?",
    (
        "note: small",
        "nota: small",
    ): "there is no setting scales.laptop.nota; did you mean scales.laptop.note?",
    (
        "overrides: [seed=1]",
        "overides: [seed=1]",
    ): "rows.one: there is no key overides; did you mean overrides",
    ("label: One, ", ""): "rows.one: label is missing",
    ("loss: Full, o", "o"): "rows.one: loss is missing: it is a column",
    ("loss: Full, o", "loss: yes, o"): "rows.one: loss: True is not a text; write it in quotes",
    ("  one:", "  One:"): "rows.One: a row's name has only a to z, 0 to 9 and _",
    ("same_run: one", "same_run: two"): "rows.five.same_run=two is no row that is run; there are one",
    (
        "same_run: one,",
        "same_run: one, overrides: [],",
    ): "rows.five: a row with same_run=one has no overrides",
    ("same_run: one,", "loss: Full,"): "rows.five: same_run and at_attention_length belong together",
    ("laptop: 4, ", ""): "rows.five: at_attention_length.laptop is missing",
    ("columns: {loss: Loss}", "columns: {label: Loss}"): "columns.label: this is a row's own key",
    ("  one: {", "  one: [{"): "while parsing a flow sequence",
    (SMALL, "- a list\n"): "this is no mapping",
    ("{label: Two, loss: Full, published: {best: 3}}", "2"): "rows.two: a row is a mapping",
}


@pytest.mark.parametrize("change", MISTAKES, ids=MISTAKES.values())
def test_a_mistake_in_a_file_is_one_line(tmp_path, change):
    with pytest.raises(ConfigError) as error:
        read("small", "laptop", small(tmp_path, *change))
    assert str(error.value).startswith(f"small.yaml: {MISTAKES[change]}")
    assert "\n" not in str(error.value)


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no ablation tabel6 in .*; did you mean table6"):
        read("tabel6")
    with pytest.raises(ConfigError, match=r"there is no scale papre; did you mean paper\?"):
        read("table6", "papre")
    with pytest.raises(ConfigError, match=r"there is no scale paper; there are laptop"):
        read("small", "paper", small(tmp_path, "  paper: {note: large, overrides: []}\n"))
