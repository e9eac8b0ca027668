"""What `+ablation=NAME` and its like stand for, and mistakes that are one clear line."""

from pathlib import Path

import pytest

from txl.settings.errors import ConfigError
from txl.sweeps.arguments import ablation_of, of_one_row, parse

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
    said = parse(words)
    assert (said.words, said.others) == (words, ["-m", "seed=1,2"])
    assert (said.ablation, said.scale, said.rows, said.dry_run) == ("a", "paper", ["x", "y"], True)
    assert said.reuse is None
    assert parse(["+ablation=a", "ablation.reuse=~/b"]).reuse == Path.home() / "b"
    assert parse(["seed=1"]).others == ["seed=1"]


def test_a_name_that_ends_in_yaml_is_a_path(mine):
    ablation, rows = ablation_of(parse([f"+ablation={mine}"]))
    assert (ablation.name, ablation.scale, list(rows)) == ("mine", "laptop", ["xl", "rotary"])
    ablation, rows = ablation_of(parse([f"+ablation={mine}", "scale=paper", "ablation.rows=[rotary]"]))
    assert rows == {"rotary": ["trainer.max_steps=12", "position=rotary"]}


MISTAKES = {
    ("+ablation=tabel6",): r"there is no ablation tabel6 in .*; did you mean table6",
    ("+ablation=table6", "scale=papr"): r"there is no scale papr; did you mean paper",
    ("+ablation=table6", "scale="): r"scale= says nothing; give a value, or leave it out",
    ("+ablation=table6", "ablation.reuse="): r"ablation.reuse= says nothing; give a value",
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
    words = of_one_row([f"+ablation={mine}", "ablation.rows=[rotary]", "seed=7", "--config-dir", "more"])
    assert words == ["position=rotary", "trainer.max_steps=6", "seed=7", "--config-dir", "more"]
    assert of_one_row(["seed=7"]) == ["seed=7"]
    with pytest.raises(ConfigError, match=r"has 2 rows to run; add -m .* ablation.rows=\[xl\]"):
        of_one_row([f"+ablation={mine}"])
    with pytest.raises(ConfigError, match="add -m"):
        of_one_row(["--dry-run"])
    with pytest.raises(ConfigError, match=r"ablation.reuse takes runs into a sweep; add -m"):
        of_one_row([f"+ablation={mine}", "ablation.reuse=x"])
    with pytest.raises(ConfigError, match=r"\+ablation=table9 trains nothing; add -m"):
        of_one_row(["+ablation=table9"])


def test_another_sweeper_is_not_asked_for_what_ours_alone_does():
    """It would train what was only to be listed, or something else than the rows."""
    for words, what in ((["--dry-run"], "--dry-run"), (["+ablation=table6"], "ablation=table6")):
        with pytest.raises(ConfigError, match=f"hydra/sweeper=basic knows no {what}; leave one of them out"):
            parse(["-m", "hydra/sweeper=basic", *words])
        parse(["-m", "hydra/sweeper=txl", *words])
    parse(["-m", "hydra/sweeper=basic", "seed=1,2"])
