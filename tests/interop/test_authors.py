"""A state_dict of the authors' code comes in bit for bit, or is refused for a reason."""

import pytest
import torch

from interop.test_checkpoints import READING, assert_same, described, message_of
from txl.interop.authors_options import describe
from txl.interop.authors_parameters import to_authors
from txl.interop.checkpoints import export, load_foreign
from txl.interop.description import build
from txl.interop.files import NamesError
from txl.model import TransformerXL

AUTHORS = {"n_token": 13, "n_layer": 2, "d_model": 12, "n_head": 3, "d_head": 4, "d_inner": 20, "tgt_len": 6}
OFFICIAL = {
    "relative": {"attn_type": 0, "mem_len": 5, "same_length": True, "clamp_len": 4, "dropout": 0.1},
    "relative, untied": {"attn_type": 0, "mem_len": 5, "untie_r": True, "pre_lnorm": True},
    "relative, adaptive": {"attn_type": 0, "mem_len": 5, "cutoffs": [4, 9]},
    "relative, narrower": {"attn_type": 0, "cutoffs": [4, 9], "div_val": 2, "tie_projs": [False, True, True]},
    "shaw": {"attn_type": 1, "mem_len": 5, "d_embed": 8},
    "vaswani": {"attn_type": 2},
    "alrfou": {"attn_type": 3, "tie_projs": [False]},
}
ALL_OFFICIAL = pytest.mark.parametrize("changes", OFFICIAL.values(), ids=OFFICIAL.keys())


def authors_model(**changes) -> tuple[TransformerXL, dict]:
    options = AUTHORS | changes
    torch.manual_seed(0)
    model = build(describe(options))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return model.eval(), options


def state_of(model) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone()
        for name, value in to_authors(model, dict(model.named_parameters())).items()
    }


@pytest.mark.parametrize("prefix", ["", "module."])
@ALL_OFFICIAL
def test_the_authors_parameters_come_back_bit_for_bit(tmp_path, changes, prefix):
    model, options = authors_model(**changes)
    torch.save({prefix + name: value for name, value in state_of(model).items()}, tmp_path / "state.pt")
    loaded, description = load_foreign(tmp_path / "state.pt", options)
    assert_same(model, loaded)
    slots = changes.get("mem_len", 0)
    reach = slots if changes.get("same_length") else None
    assert description["reading"] == READING | {"memory_length": slots, "attention_length": reach}
    assert loaded.dropout.p == changes.get("dropout", 0.0)
    export(loaded, description, tmp_path / "model.safetensors")
    again, same = load_foreign(tmp_path / "model.safetensors")
    assert same == description
    assert_same(loaded, again)


def test_their_double_precision_is_kept_and_half_is_widened(tmp_path):
    model, options = authors_model(attn_type=0)
    for given, kept in [(torch.float64, torch.float64), (torch.float16, torch.float32)]:
        model.to(given)
        torch.save(state_of(model), tmp_path / "state.pt")
        assert_same(model.to(kept), load_foreign(tmp_path / "state.pt", options)[0])


@ALL_OFFICIAL
def test_options_that_the_tensors_tell_may_be_left_out(tmp_path, changes):
    model, options = authors_model(**changes)
    torch.save(state_of(model), tmp_path / "state.pt")
    told = {"n_token", "n_layer", "d_model", "d_inner", "untie_r", "d_embed"}
    told |= set() if changes["attn_type"] == 2 else {"n_head", "d_head", "attn_type"}
    told |= {"cutoffs"} if changes.get("div_val", 1) > 1 else set()
    rest = {name: value for name, value in options.items() if name not in told}
    assert_same(model, load_foreign(tmp_path / "state.pt", rest)[0])
    if changes["attn_type"] == 2:
        del rest["n_head"], rest["attn_type"]
        with pytest.raises(ValueError, match="the options lack n_head, attn_type, which the tensors do not"):
            load_foreign(tmp_path / "state.pt", rest)


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("relative", {"n_token": 14}, "n_token is 14, the tensors say 13"),
    ("relative", {"n_layer": 3, "d_model": 24}, "n_layer is 3, the tensors say 2; d_model is 24, the tens"),
    ("relative", {"d_inner": 12}, "d_inner is 12, the tensors say 20"),
    ("relative", {"n_head": 4, "d_head": 3}, "n_head is 4, the tensors say 3; d_head is 3, the tensors"),
    ("relative", {"untie_r": True}, "untie_r is True, the tensors say False"),
    ("relative", {"attn_type": 1}, "attn_type is 1, the tensors say 0"),
    ("relative", {"clamp_length": 4}, "not options of the authors' model: clamp_length"),
    ("relative", {"n_layer": "2"}, "n_layer is '2', expected a whole number"),
    ("relative", {"mem_len": 0}, "same_length without memory"),
    ("relative, narrower", {"cutoffs": [4, 8]}, r"cutoffs is \[4, 8\], the tensors say \[4, 9\]"),
    ("relative, narrower", {"d_embed": 6}, "d_embed is 6, the tensors say 12"),
    ("relative, narrower", {"tie_projs": [True] * 3}, "crit.out_projs.0 is tied to another parameter but"),
    ("relative, adaptive", {"cutoffs": [4]}, r"crit.cluster_weight has the shape \[2, 12\], the model"),
    ("shaw", {"mem_len": 7}, r"tgt_len \+ ext_len \+ mem_len is 13, the tensors say 11"),
    ("vaswani", {"n_head": 4}, "n_head·d_head is 16, the tensors say 12"),
    ("vaswani", {"mem_len": 5}, "cached states are never altered"),
    ("alrfou", {"attn_type": 2}, "attn_type is 2, the tensors say 3"),
])  # fmt: skip
def test_options_that_contradict_the_tensors_are_refused(tmp_path, name, changes, expected):
    model, options = authors_model(**OFFICIAL[name])
    torch.save(state_of(model), tmp_path / "state.pt")
    with pytest.raises(ValueError, match=expected):
        load_foreign(tmp_path / "state.pt", options | changes)


@ALL_OFFICIAL
def test_every_parameter_that_is_missing_is_named(tmp_path, changes):
    model, options = authors_model(**changes)
    whole = state_of(model)
    for name in whole:
        torch.save({other: value for other, value in whole.items() if other != name}, tmp_path / "state.pt")
        with pytest.raises(NamesError) as error:
            load_foreign(tmp_path / "state.pt", options)
        assert message_of(error).endswith(f"; missing: {name}")


def test_parameters_too_many_and_of_another_shape_are_named(tmp_path):
    model, options = authors_model(**OFFICIAL["relative"])
    state = state_of(model)
    torch.save(state | {"b.weight": torch.zeros(1), "a.weight": torch.zeros(1)}, tmp_path / "state.pt")
    with pytest.raises(NamesError, match=r"unknown: a\.weight, b\.weight$"):
        load_foreign(tmp_path / "state.pt", options)
    torch.save(state | {"layers.1.pos_ff.CoreNet.3.bias": torch.zeros(11)}, tmp_path / "state.pt")
    with pytest.raises(
        ValueError, match=r"layers\.1\.pos_ff\.CoreNet\.3\.bias has the shape \[11\], the mode"
    ):
        load_foreign(tmp_path / "state.pt", options)


def test_a_state_dict_needs_options_and_nothing_else_takes_them(tmp_path):
    model, options = authors_model(attn_type=0)
    torch.save(state_of(model), tmp_path / "state.pt")
    with pytest.raises(ValueError, match="holds no options; give its run's as config"):
        load_foreign(tmp_path / "state.pt")
    export(*described(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds its own options"):
        load_foreign(tmp_path / "model.safetensors", options)
