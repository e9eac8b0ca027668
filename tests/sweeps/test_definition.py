"""The paper's tables as files: what the reader makes of them, what it refuses, and the published numbers."""

import importlib.util
import json
from functools import cache

import pytest
import torch

from conftest import TINY
from txl.settings.compose import composed
from txl.settings.errors import ConfigError
from txl.settings.schema import check
from txl.sweeps.definition import ABLATIONS, SCALES, last_of_each, names, read
from txl.training.network import network
from txl.verbs import speed
from txl.verbs.settings import AttentionSettings, ReclSettings, parse_settings

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
# row → r = 0.1, 0.5, 1.0
TABLE_8 = {
    "xl_large": (900, 800, 700),
    "qrnn": (500, 400, 300),
    "lstm": (400, 300, 200),
    "xl": (700, 600, 500),
    "shaw": (400, 400, 300),
    "no_recurrence": (300, 300, 300),
    "transformer": (128, 128, 128),
}
TABLE_9 = {"length_3800": (1874,), "length_2800": (1409,), "length_1800": (773,), "length_800": (363,)}
# row → best, init, attention length: not in Table 6's order
TABLE_10 = {
    "xl": (26.77, 27.02, 500),
    "half": (28.33, 28.69, 460),
    "no_recurrence": (27.98, 28.43, 400),
    "no_recurrence_half": (28.83, 28.83, 120),
}
PUBLISHED = {
    "table6": (("init", "best", "attention_length"), TABLE_6),
    "table7": (("valid",), TABLE_7),
    "table8": (("recl_r10", "recl_r50", "recl_r100"), TABLE_8),
    "table9": (("slowdown",), TABLE_9),
    "table10": (("best", "init", "attention_length"), TABLE_10),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", names())
def test_every_file_is_read_and_is_plain_data(name, scale):
    ablation = read(name, scale)
    assert json.loads(json.dumps(ablation.table)) == ablation.table
    assert list(ablation.table["scales"]) == [scale]
    assert set(ablation.jobs) <= set(ablation.table["rows"])
    assert (ABLATIONS / f"{name}.yaml").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in names() if "evaluation" in read(name).table])
def test_the_verb_that_measures_the_rows_knows_its_settings(name, scale):
    ablation = read(name, scale)
    said = ablation.table["evaluation"]
    if said["verb"] == "speed":
        _, chosen, shape = speed.split_words(said["settings"])
        assert chosen.attention_length == [800, 1800, 2800, 3800]
        assert [
            row["at_attention_length"] for row in ablation.table["rows"].values()
        ] == chosen.attention_length[::-1]
        assert check(composed([*shape, "name=x"]))
    else:
        kind = {"recl": ReclSettings, "attention": AttentionSettings}[said["verb"]]
        assert parse_settings(said["settings"], kind)
        assert ablation.jobs


@cache
def settings_of(*overrides: str):
    """Compose settings, those of a row once for all that is compared with it."""
    return composed([*overrides, "name=x"])


@pytest.mark.parametrize("name", ["table8", "figure3", "figure4", "figure5", "figure6", "figure7"])
@pytest.mark.parametrize("scale", SCALES)
def test_their_models_are_those_of_table_6(name, scale):
    theirs = [settings_of(*overrides) for overrides in read("table6", scale).jobs.values()]
    for overrides in read(name, scale).jobs.values():
        assert settings_of(*overrides) in theirs


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


# The rows of this project in Tables 1 to 5: the score and the millions of parameters.
OURS = {
    "table1": {"standard": (24.0, 151), "large": (18.3, 257)},
    "table2": {"xl_12l": (1.06, 41), "xl_18l": (1.03, 88), "xl_24l": (0.99, 277)},
    "table3": {"xl_24l": (1.08, 277)},
    "table4": {"base": (23.5, 460), "large": (21.8, 800)},
    "table5": {"xl": (54.52, 24)},
}
# How many systems each table has in all, and the sum of their printed scores, added up by hand.
SYSTEMS = {
    "table1": (10, 342.5),
    "table2": (11, 12.90),
    "table3": (7, 8.58),
    "table4": (13, 411.9),
    "table5": (11, 653.63),
}


@pytest.mark.parametrize("name", OURS)
def test_the_comparisons_have_our_rows_to_run_and_the_others_as_published(name):
    ablation = read(name)
    rows = ablation.table["rows"]
    ours = {row: rows[row]["published"] for row in ablation.jobs}
    assert {row: (at["test"], at["parameters"] / 1e6) for row, at in ours.items()} == OURS[name]
    scores = [row["published"]["test"] for row in rows.values()]
    systems, total = SYSTEMS[name]
    assert len(scores) == systems
    assert sum(scores) == pytest.approx(total, abs=1e-6)


JOBS = [(name, scale, row) for name in names() for scale in SCALES for row in read(name, scale).jobs]


@pytest.mark.parametrize(("name", "scale", "row"), JOBS, ids=["-".join(job) for job in JOBS])
def test_every_row_composes_and_can_be_built(name, scale, row):
    ablation = read(name, scale)
    config = check(composed([*ablation.jobs[row], "name=x"]))
    with torch.device("meta"):
        model = network(config, 800_000)
    training, evaluation = config.training, config.evaluation
    recurrent = ablation.table["rows"][row].get("recurrence", "yes") == "yes"
    if "recurrence" in ablation.table["columns"]:
        assert (training.memory_length > 0) == (evaluation.memory_length > 0) == recurrent
    lengths = evaluation.attention_lengths
    if "init" in ablation.table["measures"]:
        assert training.longest_attention in lengths
    if model.position.__class__.__name__ == "LearnedPosition" and not recurrent:
        assert max(lengths) <= model.position.key_length
    for other in ablation.table["rows"].values():
        if other.get("same_run") == row and "at_attention_length" in other:
            assert other["at_attention_length"] in lengths


def test_the_larger_model_of_table_6_has_as_many_more_parameters_as_published():
    sizes = {}
    for row in ("xl", "xl_large"):
        with torch.device("meta"):
            model = network(check(composed([*read("table6").jobs[row], "name=x"])), 205)
        sizes[row] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes["xl_large"] / sizes["xl"] == pytest.approx(151 / 128, abs=0.01)


@pytest.mark.parametrize("row", ["xl", "no_recurrence", "half", "no_recurrence_learned_half"])
def test_a_row_of_table_6_runs(run_here, text_file, row):
    job = read("table6").jobs[row]
    recurrent = "training.memory_length=0" not in job
    tiny = [word for word in TINY if recurrent or "memory_length" not in word]
    lengths = [16, 24, 32] if recurrent else [8, 16]
    cut = ["evaluation.attention_stride=8", f"evaluation.attention_lengths={lengths}".replace(" ", "")]
    overrides = last_of_each([*job, *tiny, *cut, f"data.path={text_file}"])
    results = json.loads((run_here(*overrides) / "results.json").read_text("utf-8"))
    assert results["status"] == "completed"
    assert [entry["attention_length"] for entry in results["attention"]] == lengths
    assert results["valid"]["half_loss"] == ("training.loss=half" in job)


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
        ("five", "small: the row five is not run: its numbers are of the run of one; choose that row"),
    ],
)
def test_a_row_that_is_not_run_cannot_be_chosen(tmp_path, row, message):
    with pytest.raises(ConfigError) as error:
        read("small", "laptop", small(tmp_path)).chosen([row])
    assert message in str(error.value)


WITH_EVALUATION = "title: A table\nevaluation: {verb: recl, together: loss}\n"
MISTAKES = {
    (
        "title: A table\n",
        WITH_EVALUATION.replace("recl", "racl"),
    ): "there is no verb racl; did you mean recl?",
    (
        "title: A table\n",
        WITH_EVALUATION.replace("loss", "lost"),
    ): "there is no column lost; did you mean loss?",
    (
        "title: A table\n",
        WITH_EVALUATION.replace("together", "toghether"),
    ): "there is no setting evaluation.toghether; did you mean",
    ("title: A", "titel: A"): "there is no setting titel; did you mean title?",
    ("source: us\n", ""): "source is missing",
    ("[valid, best]", "[valid, best, bets]"): "measures: measure 'bets' is not one of valid, test,",
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
    ): "rows.one: there is no setting overides; did you mean overrides",
    ("label: One, ", ""): "rows.one: label is missing",
    ("loss: Full, o", "o"): "rows.one: the row has no value for the column loss",
    ("loss: Full, o", "loss: yes, o"): "rows.one: loss: True is not a text; write it in quotes",
    ("  one:", "  One:"): "rows.One: a row's name has only a to z, 0 to 9 and _",
    ("same_run: one", "same_run: two"): "rows.five.same_run=two is not a row that is run; there are one",
    (
        "same_run: one,",
        "same_run: one, overrides: [],",
    ): "rows.five: a row with same_run=one has no overrides",
    ("same_run: one,", "loss: Full,"): "rows.five: same_run and at_attention_length belong together",
    ("laptop: 4, ", ""): "rows.five: at_attention_length.laptop is missing",
    ("columns: {loss: Loss}", "columns: {label: Loss}"): "columns.label: this is a row's own key",
    ("  one: {", "  one: [{"): "while parsing a flow sequence",
    (SMALL, "- a list\n"): "expected a mapping, not",
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


@pytest.fixture
def equal_memory():
    """Return the script that chooses Table 10's lengths."""
    spec = importlib.util.spec_from_file_location("equal_memory", ABLATIONS / "equal_memory.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_segment_nearest_to_a_memory_is_found_with_few_measurements(equal_memory):
    for target in range(100, 3000, 37):
        measured = set()

        def needs(length, measured=measured):
            measured.add(length)
            return 50 + length + length * length // 40

        if target < 50 + 32 + 32 * 32 // 40:
            with pytest.raises(ValueError, match="a segment of 32 tokens already needs more than 10"):
                equal_memory.closest(needs, target, 32)
            continue
        nearest = min(range(32, 400, 4), key=lambda length: abs(50 + length + length**2 // 40 - target))
        assert equal_memory.closest(needs, target, 32) == nearest
        assert len(measured) <= 16


def test_rows_without_recurrence_get_the_segment_that_needs_as_much(equal_memory, monkeypatch, capsys):
    def peak(overrides):
        given = dict(word.split("=", 1) for word in overrides)
        assert given["model.n_layer"] == "2"
        length = int(given.get("training.segment_length", 32))
        keys = length + (0 if given.get("training.memory_length") == "0" else 32)
        return 2**20 * (400 + length + keys), length

    monkeypatch.setattr(equal_memory, "peak", peak)
    monkeypatch.setattr(equal_memory, "started", lambda: 2**20 * 400)
    equal_memory.main(["model.n_layer=2"])
    table = capsys.readouterr().out.rpartition("trains nothing")[2]
    segments = {
        line.split()[0]: int(line.split()[1])
        for line in table.splitlines()
        if line.strip()[:2] in ("xl", "ha", "no")
    }
    assert segments == {"xl": 32, "half": 32, "no_recurrence": 48, "no_recurrence_half": 48}


def test_the_memory_of_a_training_is_measured_in_a_process_of_its_own(
    equal_memory, text_file, monkeypatch, tmp_path
):
    monkeypatch.setenv("TXL_CACHE", str(tmp_path / "cache"))
    used, length = equal_memory.peak([*TINY, f"data.path={text_file}"])
    assert used > 100 * 2**20
    assert length == 16
