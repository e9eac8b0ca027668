"""Loads a `state_dict` of the authors' PyTorch code, given the options of its run, which it does not hold."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from txl.interop.authors_parameters import from_authors
from txl.interop.description import build
from txl.model import TransformerXL

REQUIRED = ("n_token", "n_layer", "d_model", "n_head", "d_head", "d_inner", "attn_type")
NUMBERS = (*REQUIRED, "d_embed", "div_val", "tgt_len", "ext_len", "mem_len", "clamp_len")
LISTS = ("cutoffs", "tie_projs")
# The arguments of the authors' MemTransformerLM, and Hugging Face's untie_r.
OPTIONS = {*NUMBERS, *LISTS, "dropout", "dropatt", "tie_weight", "pre_lnorm", "adapt_inp", "same_length",
           "sample_softmax", "untie_r"}  # fmt: skip
# Parameters whose shapes show options: how many dimensions they have, and the axis of each option.
SHAPES = {
    "layers.0.dec_attn.o_net.weight": (2, {"d_model": 0, "n_head·d_head": 1}),
    "layers.0.pos_ff.CoreNet.0.weight": (2, {"d_inner": 0}),
    "layers.0.dec_attn.r_w_bias": (2, {"n_head": 0, "d_head": 1}),
    "r_w_bias": (2, {"n_head": 0, "d_head": 1}),
    "r_emb": (4, {"n_head": 2, "d_head": 3, "tgt_len + ext_len + mem_len": 1}),
    "word_emb.emb_layers.0.weight": (2, {"d_embed": 1}),
}


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the authors' options into a description of the model (see `txl.interop.description`).

    Args:
        config: all of `REQUIRED` and, where they are not the defaults, others of `OPTIONS`. The dropouts,
            which concern only training, are not translated.

    Raises:
        ValueError: this model cannot do what the authors' code does with these options.
    """
    kind, clamp, slots = config["attn_type"], config.get("clamp_len", -1), config.get("mem_len", 0)
    clamp, shared = clamp if clamp > 0 else None, not config.get("untie_r", False)
    absolute, same_length = kind in (2, 3), config.get("same_length", False)
    problems = {
        f"attn_type {kind} is none of the authors' 0, 1, 2, 3": kind not in (0, 1, 2, 3),
        f"attn_type {kind} with mem_len {slots}: the authors' code adds positions to cached states in place, "
        "again at every segment; here cached states are never altered (§3.3)": absolute and slots > 0,
        f"attn_type {kind} with pre_lnorm: the authors' code normalizes keys and values but not "
        "queries": absolute and config.get("pre_lnorm", False),
        "same_length without memory (mem_len 0) leaves queries without keys": same_length and slots == 0,
    }
    for problem, present in problems.items():
        if present:
            raise ValueError(problem)
    positions: dict[int, dict[str, Any]] = {
        0: {"_target_": "txl.model.RelativePosition", "clamp_length": clamp, "shared_biases": shared},
        1: {"_target_": "txl.model.ShawPosition", "clamp_length": clamp, "global_terms": True},
        2: {"_target_": "txl.model.SinusoidalPosition", "clamp_length": clamp, "from_end": True},
        3: {"_target_": "txl.model.LearnedPosition"},
    }
    cutoffs = list(config.get("cutoffs") or ())
    model = {
        "_target_": "txl.model.TransformerXL",
        "vocabulary": config["n_token"],
        **{name: config[name] for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")},
        "d_embed": config.get("d_embed"),
        "cutoffs": cutoffs,
        "div_val": config.get("div_val", 1),
        "tie_projections": list(config.get("tie_projs") or ())[: len(cutoffs) + 1],
        "pre_norm": config.get("pre_lnorm", False),
    }
    return {
        "model": model,
        "position": {**positions[kind], "key_length": max(1, _key_length(config))},
        "reading": {
            "memory_length": slots,
            "attention_length": slots if same_length else None,
            "clamp_length": None,  # as in the description of the position
        },
    }


def load_authors_model(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[TransformerXL, dict[str, Any]]:
    """Return the model with the authors' parameters, and its description (see `txl.interop.description`).

    Args:
        tensors: by the authors' names, with or without the prefix `module.` of DataParallel.
        config: the authors' options. Those that follow from names and shapes of the tensors may be left out;
            others that are left out (`clamp_len`, `pre_lnorm`, `same_length`, …) get the authors' defaults.

    Raises:
        NamesError: parameters are missing or unknown.
        ValueError: options are missing, unknown or contradict the tensors, or `from_authors` or `describe`
            refuses them.
    """
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    options = _complete(tensors, {name: value for name, value in config.items() if value is not None})
    description = describe(options)
    description["model"]["dropout"] = options.get("dropout", 0.0)
    description["model"]["attention_dropout"] = options.get("dropatt", 0.0)
    model = build(description)
    # float32 represents half precision exactly; double precision stays.
    model.to(torch.promote_types(next(iter(tensors.values())).dtype, torch.float32))
    from_authors(model, tensors)
    return model, description


def _complete(tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the given options against the tensors, and return them with those that the tensors show."""
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        raise ValueError(
            f"not options of the authors' model: {', '.join(unknown)}; leave them out (valid options: "
            f"{', '.join(sorted(OPTIONS))})"
        )
    check_option_types(given)
    inferred = infer_options(tensors)
    claims = {name: list(value) if name in LISTS else value for name, value in given.items()}
    claims["tgt_len + ext_len + mem_len"] = _key_length(given)
    if {"n_head", "d_head"} <= given.keys():
        claims["n_head·d_head"] = given["n_head"] * given["d_head"]
    wrong = [
        f"{name} is {claims[name]}, the tensors say {value}"
        for name, value in inferred.items()
        if name in claims and claims[name] != value
    ]
    if wrong:
        raise ValueError(f"the options do not describe these tensors: {'; '.join(wrong)}")
    options = {**{name: value for name, value in inferred.items() if name in OPTIONS}, **given}
    missing = [name for name in REQUIRED if name not in options]
    if missing:
        raise ValueError(f"the options lack {', '.join(missing)}, which the tensors do not show")
    return options


def check_option_types(options: Mapping[str, Any]) -> None:
    kinds = dict.fromkeys(NUMBERS, int) | dict.fromkeys(LISTS, (list, tuple))
    for name, kind in kinds.items():
        if name in options and not isinstance(options[name], kind):
            expected = "a whole number" if kind is int else "a list"
            raise ValueError(f"the option {name} is {options[name]!r}, expected {expected}")


def infer_options(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options that follow from names and shapes of the authors' parameters.

    Only parameters that are present count; `from_authors` reports those that are missing.
    """
    found: dict[str, Any] = {}
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if layers:
        found["n_layer"] = len(layers)
    ends = {name.rpartition("dec_attn.")[2] for name in tensors}
    kinds = [ends >= {"r_net.weight"}, ends >= {"r_bias"}, False, ends >= {"q_net.weight", "r_emb"}]
    if any(kinds):
        found["attn_type"] = kinds.index(True)
    per_layer = [name for name in tensors if name.endswith("dec_attn.r_w_bias")]
    if kinds[0] and (per_layer or "r_w_bias" in tensors):
        found["untie_r"] = bool(per_layer)
    for name, (dimensions, axes) in SHAPES.items():
        if name in tensors and tensors[name].dim() == dimensions:
            found |= {option: tensors[name].shape[axis] for option, axis in axes.items()}
    sizes: dict[int, int] = {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"(?:word_emb\.emb_layers|crit\.out_layers)\.(\d+)\.(?:weight|bias)", name)
        if part and tensor.dim() > 0:
            sizes.setdefault(int(part[1]), tensor.shape[0])
    if sizes and sorted(sizes) == list(range(len(sizes))):
        *cutoffs, found["n_token"] = itertools.accumulate(sizes[part] for part in sorted(sizes))
        if cutoffs:  # with div_val 1 all parts are one tensor, whose shape does not show the cutoffs
            found["cutoffs"] = cutoffs
    return found


def _key_length(options: Mapping[str, Any]) -> int:
    return sum(options.get(name, 0) for name in ("tgt_len", "ext_len", "mem_len"))
