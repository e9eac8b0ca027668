"""Hugging Face's Transformer-XL, imported, gives their log-probabilities: segments with memory."""

import json
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl.interop.checkpoints import export, load_foreign
from txl.interop.files import NamesError
from txl.model import Memory

# The peer lies in a folder of its own (see the Makefile): with it in the environment, torchmetrics would
# import it in every run. conftest has imported Lightning, and so torchmetrics, before it can be found here.
sys.path.append(os.environ.get("TXL_PEERS", str(Path(sys.prefix) / "peers")))
with warnings.catch_warnings():
    # transformers 4.35 registers its classes of outputs by a name that torch has renamed since.
    warnings.filterwarnings(
        "ignore", message=r".*_register_pytree_node. is deprecated", category=FutureWarning
    )
    transformers = pytest.importorskip("transformers")
    TransfoXLConfig, TransfoXLLMHeadModel = transformers.TransfoXLConfig, transformers.TransfoXLLMHeadModel

SHAPE = {"vocab_size": 61, "cutoffs": [10, 20, 40], "d_model": 64, "d_embed": 64, "n_head": 4, "d_head": 6,
         "d_inner": 48, "div_val": 1, "n_layer": 3, "mem_len": 8, "clamp_len": -1, "same_length": False,
         "untie_r": True, "dropatt": 0.2}  # fmt: skip
CASES = {
    "adaptive": {},
    "adaptive, one u and v": {"untie_r": False},
    "div_val 4": {"div_val": 4},
    "div_val 4, one u and v": {"div_val": 4, "untie_r": False},
    "div_val 4, other width": {"div_val": 4, "d_embed": 128},
    "div_val 4, projections not tied": {"div_val": 4, "proj_share_all_but_first": False},
    "div_val 4, all projections tied": {"div_val": 4, "tie_projs": [True] * 4},
    "other width": {"d_embed": 20},
    "other width, one u and v": {"d_embed": 20, "untie_r": False},
    "other width, projections not tied": {"d_embed": 20, "proj_share_all_but_first": False},
    "plain": {"cutoffs": []},
    "plain, other width": {"cutoffs": [], "d_embed": 20},
    "plain, other width, tied": {"cutoffs": [], "d_embed": 20, "tie_projs": [True]},
    "adaptive is never asked": {"adaptive": False},
    "normalized before": {"pre_lnorm": True},
    "same length": {"same_length": True},
    "same length, short memory": {"same_length": True, "mem_len": 3},
    "as published": {"same_length": True, "clamp_len": 5, "div_val": 4, "mem_len": 11},
    "clamped": {"clamp_len": 4},
    "without memory": {"mem_len": 0},
}
ROWS, LENGTH, SEGMENTS = 2, 6, 4


def theirs(**changes):
    """A model of theirs with parameters large enough for every part to matter."""
    torch.manual_seed(0)
    # trainer_compatible only changes the order of a tuple of outputs; without it a warning says so.
    model = TransfoXLLMHeadModel(TransfoXLConfig(**(SHAPE | changes), trainer_compatible=True))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if name.endswith("layer_norm.weight") else 0.0, 0.12)
    return model.eval()


def full_memory(model, slots: int) -> Memory:
    """Their memory at the start: zeros that are attended to."""
    empty = model.empty_memory(ROWS, slots)
    return Memory(empty.states, torch.full_like(empty.length, slots))


def saved(folder, model, **options):
    model.save_pretrained(folder, **options)
    return folder


@torch.no_grad()
def read_ours(model, reading, tokens, memory=None):
    """Log-probabilities of segment after segment, and the memory after the last."""
    memory = memory or full_memory(model, reading["memory_length"])
    read = []
    for segment in tokens.split(LENGTH, dim=1):
        hidden, memory = model(segment, memory, reading["attention_length"])
        read.append(model.embedding.log_probabilities(hidden))
    return torch.cat(read, dim=1), memory


@torch.no_grad()
def read_theirs(model, tokens):
    mems, read = None, []
    for segment in tokens.split(LENGTH, dim=1):
        output = model(segment, mems=mems)
        mems = output.mems
        read.append(output.prediction_scores)
    return torch.cat(read, dim=1), mems


def tokens_of(vocabulary: int = 61) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocabulary, (ROWS, SEGMENTS * LENGTH), generator=generator)


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_an_imported_model_gives_their_log_probabilities(tmp_path, changes, safe):
    model = theirs(**changes)
    ours, description = load_foreign(saved(tmp_path, model, safe_serialization=safe))
    tokens, reading = tokens_of(), description["reading"]
    mine, memory = read_ours(ours, reading, tokens)
    other, mems = read_theirs(model, tokens)
    assert mine.shape == (ROWS, SEGMENTS * LENGTH, SHAPE["vocab_size"])
    assert other.std() > 0.4, "the model says the same of everything"
    assert (mine - other).abs().max() < 1e-5
    for state, mem in zip(memory.states, mems or (), strict=reading["memory_length"] > 0):
        assert (state - mem.transpose(0, 1)).abs().max() < 1e-5
    assert ours.dropout.p == 0.1
    assert ours.layers[0].attention.dropout.p == 0.2
    assert not ours.training


@pytest.mark.parametrize("name", ["same length", "clamped", "adaptive", "normalized before"])
def test_the_comparison_sees_memory_clamp_and_mask(tmp_path, name):
    model = theirs(**CASES[name])
    ours, description = load_foreign(saved(tmp_path, model))
    tokens, reading = tokens_of(), description["reading"]
    other, _ = read_theirs(model, tokens)
    from_nothing, _ = read_ours(ours, reading, tokens, ours.empty_memory(ROWS, reading["memory_length"]))
    assert (from_nothing - other).abs().max() > 1e-2
    if name == "same length":
        for reach in (7, 9, None):
            read, _ = read_ours(ours, reading | {"attention_length": reach}, tokens)
            assert (read - other).abs().max() > 1e-2
    if name == "clamped":
        ours.position.clamp_length = 5
        assert (read_ours(ours, reading, tokens)[0] - other).abs().max() > 1e-3


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_shards_are_put_together(tmp_path, safe):
    changes = CASES["div_val 4, one u and v"]
    model = theirs(**changes)
    model.save_pretrained(tmp_path, safe_serialization=safe, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*-of-*"))) > 2
    ours, description = load_foreign(tmp_path)
    mine, _ = read_ours(ours, description["reading"], tokens_of())
    assert (mine - read_theirs(model, tokens_of())[0]).abs().max() < 1e-5


def test_an_imported_model_is_exported_and_read_back(tmp_path):
    ours, description = load_foreign(saved(tmp_path / "theirs", theirs(**CASES["as published"])))
    export(ours, description, tmp_path / "ours.safetensors")
    again, same = load_foreign(tmp_path / "ours.safetensors")
    assert same == description
    assert torch.equal(*(read_ours(m, description["reading"], tokens_of())[0] for m in (ours, again)))


def rewrite(folder, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("name", ["crit.out_layers.2.bias", "crit.out_projs.0", "transformer.r_w_bias",
                                  "transformer.word_emb.emb_layers.1.weight"])  # fmt: skip
def test_only_tied_parameters_may_be_missing(tmp_path, name):
    folder = saved(tmp_path, theirs(**CASES["div_val 4, one u and v"]))
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(NamesError, match=f"missing: .*{name.removeprefix('transformer.')}"):
        load_foreign(folder)


def test_another_name_for_a_tied_parameter_will_do(tmp_path):
    model = theirs(**CASES["div_val 4, one u and v"])

    def rename(tensors) -> None:
        tensors["crit.out_layers.1.weight"] = tensors.pop("transformer.word_emb.emb_layers.1.weight")
        tensors["transformer.layers.2.dec_attn.r_w_bias"] = tensors.pop("transformer.r_w_bias")

    folder = saved(tmp_path, model)
    rewrite(folder, rename)
    ours, description = load_foreign(folder)
    mine, _ = read_ours(ours, description["reading"], tokens_of())
    assert (mine - read_theirs(model, tokens_of())[0]).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "twin"), [
    ("transformer.layers.1.dec_attn.r_r_bias", "transformer.r_r_bias"),
    ("crit.out_layers.0.weight", "transformer.word_emb.emb_layers.0.weight"),
    ("crit.out_projs.3", "transformer.word_emb.emb_projs.3"),
])  # fmt: skip
def test_shared_parameters_that_differ_are_refused(tmp_path, name, twin):
    folder = saved(tmp_path, theirs(**CASES["div_val 4, one u and v"]))
    rewrite(folder, lambda tensors: tensors.update({name: tensors[twin] + 1}))
    with pytest.raises(ValueError, match=f"{name.removeprefix('transformer.')} differs from"):
        load_foreign(folder)


def test_a_parameter_too_many_is_refused(tmp_path):
    folder = saved(tmp_path, theirs())
    rewrite(folder, lambda tensors: tensors.update({"transformer.extra.weight": torch.zeros(2)}))
    with pytest.raises(NamesError, match=r"unknown: extra.weight"):
        load_foreign(folder)


@pytest.mark.parametrize(("changes", "message"), [
    ({"model_type": "gpt2"}, "model_type is 'gpt2', only 'transfo-xl'"),
    ({"attn_type": 1}, "attn_type is 1"),
    ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon is 0.001"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ({"div_val": None, "untie_r": None}, "lacks div_val, untie_r"),
    ({"n_layer": 4}, "n_layer is 4, the tensors say 3"),
    ({"d_inner": 50}, "d_inner is 50, the tensors say 48"),
    ({"n_head": 6}, "n_head is 6, the tensors say 4"),
    ({"n_layer": "three"}, "n_layer is 'three', expected a whole number"),
    ({"cutoffs": 3}, "cutoffs is 3, expected a list"),
    ({"mem_len": 0, "same_length": True}, "leaves queries without keys"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(tmp_path, changes, message):
    folder = saved(tmp_path, theirs())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        load_foreign(folder)


def test_a_directory_that_is_not_whole_says_what_is_missing(tmp_path):
    folder = saved(tmp_path, theirs())
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor pytorch_model.bin"):
        load_foreign(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"crit.cluster_bias": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"model-00001-of-00002.safetensors is missing"):
        load_foreign(folder)
    index.write_text(json.dumps({"weight_map": {"crit.cluster_bias": "../model.safetensors"}}))
    with pytest.raises(ValueError, match="files of the same directory"):
        load_foreign(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not JSON"):
        load_foreign(folder)
