"""The settings: every option composes, every key is explained, and each mistake is one clear line."""

from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from conftest import ROOT
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.settings.schema import check, check_lengths

CONF = ROOT / "conf"


def composed(*overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


def test_the_defaults_are_right():
    config = check(composed("name=x"))
    assert config.training.segment_length > 0
    assert (
        config.evaluation.longest_attention
        == config.evaluation.memory_length + config.evaluation.segment_length
    )


def options() -> list[str]:
    files = [path.relative_to(CONF) for path in sorted(CONF.glob("*/*.yaml"))]
    return [f"{path.parent}={path.stem}" for path in files if path.parent.name != "hydra"]


# What an option leaves to whoever takes it.
NEEDS = {
    "data": ["data.path=x"],
    "experiment": ["data.path=x"],
    "experiment=ablation_laptop": [],
    "model=paper": [f"model.{key}=2" for key in ("n_layer", "n_head", "d_head", "d_inner")]
    + ["model.d_model=4"],
    "data=enwiki_sample": [],
    "data=sotu": [],
    "data=lagged_copy": [],
}


@pytest.mark.parametrize("option", options())
def test_every_option_composes_and_checks(option):
    needs = NEEDS.get(option, NEEDS.get(option.split("=")[0], []))
    check(composed("name=x", option, *needs))


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONF)))
def test_every_file_says_what_it_is_and_every_key_is_explained(path: Path):
    text = path.read_text("utf-8").removeprefix("# @package _global_\n")
    first, *lines = text.splitlines()
    assert first.startswith("# ")
    assert first.endswith((".", ":"))
    if "hydra" in path.parts:
        return
    for line in lines:
        key = line.split(":")[0].strip()
        is_section = line.rstrip().endswith(":")
        if ":" in line and key != "_target_" and not is_section and not line.startswith("#"):
            assert " # " in line, f"{path.name}: no comment beside {key}"


MISTAKES = {
    "trainer.max_steps=many": "trainer.max_steps: Value 'many' of type 'str' could not be converted to Int",
    "model.n_layer=two": "model.n_layer: Value 'two' of type 'str' could not be converted to Integer",
    "model.dropout=high": "model.dropout: Value 'high' of type 'str' could not be converted to Float",
    "model.pre_norm=perhaps": "model.pre_norm: Value 'perhaps' is not a valid bool",
    "training.segment_length=-3": "training.segment_length=-3 must be positive",
    "training.memory_length=-1": "training.memory_length=-1 must be 0 or more",
    "evaluation.attention_length=0": "evaluation.attention_length=0 must be positive",
    "trainer.precision=half": "trainer.precision=half must be one of auto, 32-true",
    "trainer.accelerator=tpu": "trainer.accelerator=tpu must be one of auto, cpu, gpu",
    "training.streams=random": "training.streams=random must be one of ordered, documents, sentences",
    "training.streams=shuffled": "training.streams=shuffled has nothing to remember from segment to segment, "
    "but training.memory_length=64; use memory_length=0",
    "evaluation.streams=shuffled": "evaluation.streams=shuffled has nothing to remember",
    "sample.temperature=-1": "sample.temperature=-1.0 must be 0 or more",
    "seed=-1": "seed=-1 must be from 0 to 4294967295",
    "seed=4294967296": "seed=4294967296 must be from 0 to 4294967295",
    "model.n_head=3": "model.n_head=3 × model.d_head=64 = 192 does not fit model.d_model=128",
    "+model.n_laye=3": "model.n_laye is not a setting of TransformerXL; did you mean model.n_layer",
    "+trainer.max_step=3": "there is no setting trainer.max_step; did you mean trainer.max_steps",
    "+surprise=3": "there is no setting surprise; ",
    "model._target_=txl.model.Nothing": "model._target_=txl.model.Nothing cannot be imported",
    "model._target_=null": "model: a group needs a _target_",
    "data=text": "data.path is missing; give data.path=…",
    "~model.d_inner": "model.d_inner is missing; TransformerXL needs it",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_was_expected(override):
    with pytest.raises(ConfigError) as error:
        check(composed("name=x", override))
    assert MISTAKES[override] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["training.random_start=true", "training.streams=sentences"],
            "needs training.streams=ordered, not",
        ),
        (
            ["training.variable_length=true", "training.streams=documents"],
            "=ordered or sentences and",
        ),
        (["training.variable_length=true", "training.loss=half"], "loss=full, not ordered and half"),
    ],
)
def test_options_of_streams_that_exclude_each_other_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(composed("name=x", *overrides))


@pytest.mark.parametrize(
    ("overrides", "tokens", "message"),
    [
        (
            ["training.memory_length=400"],
            1000,
            "training.memory_length=400 is longer than the data: 1,000 training",
        ),
        (["training.segment_length=300"], 1000, "training.segment_length=300 is longer than the data"),
        (
            ["evaluation.memory_length=60"],
            1000,
            "evaluation.memory_length=60 is longer than the data: the valid split",
        ),
        (
            ["evaluation.segment_length=9999"],
            1000,
            "evaluation.segment_length=9999 is longer than the data: no split",
        ),
        (
            ["training.streams=shuffled", "training.memory_length=0", "training.segment_length=1001"],
            1000,
            "longer than the data: 1,000 training tokens in 1 rows",
        ),
        ([], 1, "the valid split has 0 tokens"),
    ],
)
def test_lengths_that_the_data_cannot_fill_are_refused(overrides, tokens, message):
    short = ["training.batch_size=4", "training.segment_length=16", "training.memory_length=16"]
    short += ["evaluation.memory_length=16"]
    config = check(composed("name=x", *(short if tokens > 1 else []), *overrides))
    splits = {"train": tokens if tokens > 1 else 10**6, "valid": tokens // 20, "test": tokens // 20}
    with pytest.raises(ConfigError, match=message):
        check_lengths(config, splits)


def test_a_component_of_another_package_can_be_named():
    assert component({"_target_": "textwrap.TextWrapper", "width": 20}, "data")().width == 20


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.stride=65"], "evaluation.stride=65 needs .* at least as many, not 64"),
        (["evaluation.stride=8", "evaluation.loss=half"], "evaluation.stride=8 needs evaluation.loss=full"),
        (["evaluation.attention_lengths=[64,16]"], "16 is shorter than evaluation.attention_stride=32"),
    ],
)
def test_strides_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(composed("name=x", *overrides))


def test_an_attention_length_is_divided_into_memory_and_stride():
    evaluation = check(composed("name=x")).evaluation
    with_memory, without = evaluation.at(96), replace(evaluation, memory_length=0).at(96)
    assert (with_memory.segment_length, with_memory.memory_length, with_memory.step) == (32, 64, 32)
    assert (without.segment_length, without.memory_length, without.step) == (96, 0, 32)
    assert with_memory.longest_attention == without.longest_attention == 96
