"""What `+ablation=NAME` and its like stand for, and mistakes that are one clear line."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from conftest import ROOT
from txl.settings.errors import ConfigError
from txl.sweeps.arguments import ablation_of, parse, row_overrides, sweep_overrides

MINE = """
# A table of the tests.
title: Mine
source: nowhere
published_on: nothing
columns: {encoding: Encoding}
measures: [valid, test]
scales:
  laptop: {note: small, overrides: [trainer.max_steps=8, seed=5]}
  paper: {note: large, overrides: [trainer.max_steps=12]}
rows:
  xl: {label: XL, encoding: Ours, published: {valid: 1.0}, overrides: [position=relative]}
  other: {label: Others, encoding: "-", published: {valid: 2.0}}
  rotary: {label: Rotary, encoding: Su, overrides: [position=rotary], laptop: [trainer.max_steps=6]}
  same: {label: the same, same_run: xl, at_attention_length: {laptop: 8, paper: 16}}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, "utf-8")
    return path


def test_the_words_of_an_ablation_are_taken_out():
    words = ["-m", "+ablation=a", "seed=1,2", "scale=paper", "ablation.rows=[x, 'y']", "--dry-run"]
    found = parse(words)
    assert (found.command, found.overrides) == (words, ["-m", "seed=1,2"])
    assert (found.ablation, found.scale, found.rows, found.dry_run) == ("a", "paper", ["x", "y"], True)
    assert found.reuse is None
    assert parse(["+ablation=a", "ablation.reuse=~/b"]).reuse == Path.home() / "b"
    assert parse(["seed=1"]).overrides == ["seed=1"]


def test_a_name_that_ends_in_yaml_is_a_path(mine):
    ablation, rows = ablation_of(parse([f"+ablation={mine}"]))
    assert (ablation.name, ablation.scale, list(rows)) == ("mine", "laptop", ["xl", "rotary"])
    ablation, rows = ablation_of(parse([f"+ablation={mine}", "scale=paper", "ablation.rows=[rotary]"]))
    assert rows == {"rotary": ["trainer.max_steps=12", "position=rotary"]}


MISTAKES = {
    ("+ablation=tabel6",): r"there is no ablation tabel6 in .*; did you mean table6",
    ("+ablation=table6", "scale=papr"): r"there is no scale papr; did you mean paper",
    ("+ablation=table6", "scale="): r"scale= is empty; give a value, or leave it out",
    ("+ablation=table6", "ablation.reuse="): r"ablation.reuse= is empty; give a value",
    ("+ablation=table6", "ablation.rows=[half,xlr]"): r"table6 has no row xlr; did you mean",
    (
        "+ablation=table6",
        "ablation.row=[xl]",
    ): "no setting ablation.row; did you mean ablation.rows",
    ("scale=paper",): r"scale=paper is about an ablation; name one as well: \+ablation=…",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_names_the_nearest(words):
    with pytest.raises(ConfigError, match=MISTAKES[words]) as error:
        ablation_of(parse(list(words)))
    assert "\n" not in str(error.value)


def test_one_row_is_an_ordinary_run(mine):
    words = row_overrides([f"+ablation={mine}", "ablation.rows=[rotary]", "seed=7", "--config-dir", "more"])
    assert words == ["position=rotary", "trainer.max_steps=6", "seed=7", "--config-dir", "more"]
    assert row_overrides(["seed=7"]) == ["seed=7"]
    with pytest.raises(ConfigError, match=r"has 2 rows to run; add -m .* ablation.rows=\[xl\]"):
        row_overrides([f"+ablation={mine}"])
    with pytest.raises(ConfigError, match="add -m"):
        row_overrides(["--dry-run"])
    with pytest.raises(ConfigError, match=r"ablation.reuse takes runs into a sweep; add -m"):
        row_overrides([f"+ablation={mine}", "ablation.reuse=x"])
    with pytest.raises(ConfigError, match=r"\+ablation=table9 trains nothing; add -m"):
        row_overrides(["+ablation=table9"])


def test_another_sweeper_is_not_asked_for_what_ours_alone_does():
    """It would train what was only to be listed, or something else than the rows."""
    for words, what in ((["--dry-run"], "--dry-run"), (["+ablation=table6"], "ablation=table6")):
        with pytest.raises(ConfigError, match=f"hydra/sweeper=basic has no {what}; leave one of them out"):
            parse(["-m", "hydra/sweeper=basic", *words])
        parse(["-m", "hydra/sweeper=txl", *words])
    parse(["-m", "hydra/sweeper=basic", "seed=1,2"])


def test_the_sweeper_gets_the_command_line_unchanged():
    """Whatever characters it has: the sweep's directory is named by it."""
    command = [
        "-m",
        "+ablation=table6",
        "training.border='\\n'",
        "name=it's \\",
        "x=${y}",
        "seed=1,2",
        "a=[b,'c']",
    ]
    *overrides, last = sweep_overrides(command)
    assert overrides == [word for word in command if word != "+ablation=table6"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", ["name=x", last], return_hydra_config=True)
    assert list(config.hydra.sweeper.command) == command
    assert sweep_overrides(["-m", "hydra/sweeper=basic", "seed=1,2"]) == [
        "-m",
        "hydra/sweeper=basic",
        "seed=1,2",
    ]
