"""Costs before training: the authors' parameter counts to the last one, and nothing allocated."""

import json

import pytest
import yaml

from conftest import EXPERIMENTS, ROOT, verb
from txl.runs.cost import describe
from txl.settings.compose import composed
from txl.settings.errors import ConfigError
from txl.settings.schema import check

# experiment: all parameters and those in the layers, with the authors' vocabularies.
COUNTS = {
    "wt103_base": (151_107_538, 41_066_400),
    "wt103_large": (285_170_506, 245_532_672),
    "enwik8_12l": (41_055_436, None),
    "enwik8_24l": (277_231_820, None),
    "text8_12l": (40_964_635, None),
    "text8_24l": (277_050_395, None),
    "lm1b_base": (357_812_082, None),
    "lm1b_large": (841_295_982, None),
    "lm1b_base_paper": (469_020_530, None),
    # Ours, where the authors published no settings; the paper says 88M, about 0.3B, 128M and 24M.
    "enwik8_18l": (88_319_716, None),
    "lm1b_300m": (301_166_450, None),
    "wt103_128m": (128_007_688, None),
    "ptb": (26_351_560, None),
}


def settings(*overrides: str):
    return composed([*overrides, "name=x"])


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_parameters_are_the_authors(experiment):
    total, layers = COUNTS[experiment]
    described = describe(settings(f"experiment={experiment}"))
    assert described["parameters"] == total
    assert layers is None or described["parameters_in_layers"] == layers


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_says_where_it_is_from_and_what_to_expect(experiment):
    text = (ROOT / "conf" / "experiment" / f"{experiment}.yaml").read_text("utf-8")
    header = " ".join(line for line in text.splitlines() if line.startswith("#"))
    assert "Table" in header or "script" in header
    assert "Not run here." in header or "Measured" in header
    assert ("OUR OWN CLOSEST" in header) == (experiment in ("enwik8_18l", "lm1b_300m", "wt103_128m", "ptb"))
    config = check(settings(f"experiment={experiment}", "data.path=x"))
    words = config.data["unit"] == "word"
    assert words == (experiment.split("_")[0] in ("wt103", "lm1b", "ptb"))
    cutoffs = config.model["cutoffs"]
    assert bool(cutoffs) == (words and experiment != "ptb")
    assert not cutoffs or cutoffs[-1] < config.data["vocabulary"]
    assert yaml.safe_load(text)["trainer"]["gradient_clip"] == 0.25


def test_memory_operations_and_time_follow_from_the_sizes():
    one = describe(settings("data=text", "data.vocabulary=200"), peak=1e12, utilization=0.5)
    memory = one["memory_bytes_per_device"]
    assert memory["parameters"] == memory["gradients"] == memory["optimizer"] / 2 == 4 * one["parameters"]
    assert memory["sum"] == sum(value for name, value in memory.items() if name != "sum")
    assert one["seconds"] == pytest.approx(one["training_flops"] / 0.5e12)
    two = describe(settings("data=text", "data.vocabulary=200"), devices=2, peak=1e12, utilization=0.5)
    # Each device projects the distances for half of the rows, so that the operations are a few more.
    assert one["training_flops"] < two["training_flops"] < 1.1 * one["training_flops"]
    assert two["seconds"] == pytest.approx(two["training_flops"] / 0.5e12 / 2)
    assert two["memory_bytes_per_device"]["layer_activations"] < 0.6 * memory["layer_activations"]
    half = describe(settings("data=text", "data.vocabulary=200", "training.loss=half"))
    assert half["training_flops_per_token"] == pytest.approx(2 * one["training_flops_per_token"])


def test_devices_must_divide_the_batch():
    with pytest.raises(ConfigError, match=r"training\.batch_size=60 cannot be divided among 7 devices"):
        describe(settings("experiment=wt103_base"), devices=7)


def test_json_stands_alone_on_standard_output_and_a_table_otherwise():
    done = verb("describe", "experiment=wt103_large", "--json")
    assert json.loads(done.stdout)["parameters"] == 285_170_506
    done = verb("describe", "experiment=wt103_large", "--peak", "312e12")
    assert done.returncode == 0
    assert "285,170,506" in done.stdout
    assert "time to train" in done.stdout


def test_a_mistake_is_one_line():
    for words, expected in {
        ("experiment=wt103_bas",): "error: there is no experiment=wt103_bas; did you mean wt103_base",
        ("model.n_layr=3",): "error: there is no setting model.n_layr; did you mean model.n_layer",
    }.items():
        done = verb("describe", *words)
        assert done.returncode == 1
        assert done.stderr.startswith(expected)
        assert len(done.stderr.splitlines()) == 1
