"""Reads what `save_pretrained` of Hugging Face's `TransfoXLLMHeadModel` writes (transformers 4.35.2).

Their model is the authors' with other names: `transformer.` comes before all but those of the softmax,
`crit`. A safetensors file holds a tied tensor under one name only; a file of torch.save holds it under all,
and both may repeat shared u and v in each layer. The tails of the adaptive softmax are in ascending order, as
in the authors' TensorFlow code.

Their memory starts as `mem_len` states of zeros that queries attend to, ours empty. A `txl.model.Memory` of
zeros whose length is all its slots reads a first segment as theirs does.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.interop.authors_options import check_option_types
from txl.interop.files import check_state, read_pickle, read_safetensors

# Options with the same name and meaning in the authors' code. `adaptive` is not among them: their model
# ignores it, and cutoffs alone make its softmax adaptive.
SAME = ("cutoffs", "tie_projs", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val", "pre_lnorm",
        "n_layer", "mem_len", "same_length", "clamp_len", "untie_r", "dropout", "dropatt")  # fmt: skip
# Options for which the model here supports one value only.
FIXED = {"model_type": "transfo-xl", "attn_type": 0, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of precedence of transformers


def read_pretrained(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors by the authors' names, and the authors' options.

    Args:
        directory: with config.json and model.safetensors or pytorch_model.bin, whole or in shards.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, an option is missing or not supported, or tied parameters differ.
    """
    options, tensors = _options(directory / "config.json"), {}
    for path in _weight_files(directory):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing, but the index lists it")
        content = read_safetensors(path)[0] if path.suffix == ".safetensors" else read_pickle(path)
        for name, tensor in check_state(content, path).items():
            tensors[name.removeprefix("transformer.")] = tensor
    return _as_authors(tensors, options), options


def _options(path: Path) -> dict[str, Any]:
    """Return the options of a config.json by the authors' names."""
    config = read_json(path)
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(f"{path}: {name} is {config[name]!r}, only {value!r} can be imported")
    config.setdefault("vocab_size", config.get("n_token"))  # its name in files of the first versions
    missing = [name for name in ("vocab_size", *SAME) if config.get(name) is None]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: it is not a configuration of TransfoXLLMHeadModel"
        )
    options = {name: config[name] for name in SAME}
    options |= {"n_token": config["vocab_size"], "attn_type": 0}
    check_option_types(options)
    return options


def _weight_files(directory: Path) -> list[Path]:
    """Return the file of the tensors, or all of its shards."""
    for name in WEIGHTS:
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict) or any(Path(file).name != file for file in files.values()):
                raise ValueError(f"{index}: weight_map must name files of the same directory")
            return [directory / file for file in sorted(set(files.values()))]
    raise FileNotFoundError(f"{directory} has a config.json, but neither {' nor '.join(WEIGHTS)}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise ValueError if there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value


def _as_authors(tensors: dict[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors as in the authors' code: tied ones under both names, shared u and v once."""
    tied = list(_tied_names(options))
    for name, first in tied:
        if name in tensors:
            tensors.setdefault(first, tensors[name])
    for name, first in tied:
        if first not in tensors:
            continue
        if not torch.equal(tensors.setdefault(name, tensors[first]), tensors[first]):
            raise ValueError(f"{name} differs from {first}, with which config.json shares it")
        if name.endswith(("r_w_bias", "r_r_bias")):
            del tensors[name]
    for name in {"crit.cluster_weight", "crit.cluster_bias"} & tensors.keys():
        tensors[name] = tensors[name].flip(0)  # one row for each tail, in the reverse of the authors' order
    return tensors


def _tied_names(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield two names of each tied parameter, second the one that all its other names are compared with."""
    parts, split = len(options["cutoffs"]) + 1, options["div_val"] > 1
    for part in range(parts if split else 1):
        yield f"crit.out_layers.{part}.weight", f"word_emb.emb_layers.{part}.weight"
    if split or options["d_embed"] != options["d_model"]:
        for part, tied in enumerate(options["tie_projs"][:parts]):
            if tied:
                yield f"crit.out_projs.{part}", f"word_emb.emb_projs.{part if split else 0}"
    if not options["untie_r"]:
        for layer in range(options["n_layer"]):
            for name in ("r_w_bias", "r_r_bias"):
                yield f"layers.{layer}.dec_attn.{name}", name
