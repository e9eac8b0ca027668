"""What `save_pretrained` of Hugging Face's `TransfoXLLMHeadModel` writes (transformers 4.35.2).

Their model is the authors' with other wrapping: `modeling_transfo_xl.py` has the authors' names under
`transformer.`, but the softmax, `crit`, at the top. Of tensors that are tied a safetensors file has one name
only; a file of torch.save has all of them, and both may repeat shared u and v in each layer. The tails of the
adaptive softmax stand in their own order, as in the authors' TensorFlow code.

Their memory starts as `mem_len` states of zeros that queries attend to, where ours starts empty. A
`txl.model.Memory` of zeros whose length is all its slots reads a first segment as theirs does.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.interop.authors_options import check_option_types
from txl.interop.files import check_state, read_pickle, read_safetensors

# Options with the same name and meaning in the authors' code. `adaptive` is not among them: their model never
# asks for it, cutoffs alone make its softmax adaptive.
SAME = ("cutoffs", "tie_projs", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val", "pre_lnorm",
        "n_layer", "mem_len", "same_length", "clamp_len", "untie_r", "dropout", "dropatt")  # fmt: skip
# Options of theirs that this model has no choice about.
FIXED = {"model_type": "transfo-xl", "attn_type": 0, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
# The tails' rows beside the shortlist: the first tail's is the first here and the last in the authors' code.
TAILS = {"crit.cluster_weight", "crit.cluster_bias"}
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there, as theirs does


def read_pretrained(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors by the authors' names, and the authors' options.

    Args:
        directory: with config.json and model.safetensors or pytorch_model.bin, whole or in shards.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, an option is missing or of a kind that this model does not have, or
            shared parameters differ.
    """
    options = _options(directory / "config.json")
    tensors = {name.removeprefix("transformer."): value for name, value in _weights(directory).items()}
    return _as_authors(tensors, options), options


def _options(path: Path) -> dict[str, Any]:
    """Return their options by the authors' names."""
    config = read_json(path)
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(f"{path}: {name} is {config[name]!r}, only {value!r} can be imported")
    config.setdefault("vocab_size", config.get("n_token"))  # its name in files of the first versions
    missing = [name for name in ("vocab_size", *SAME) if config.get(name) is None]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: it is no configuration of TransfoXLLMHeadModel")
    options = {name: config[name] for name in SAME}
    options |= {"n_token": config["vocab_size"], "attn_type": 0}
    check_option_types(options)
    return options


def _weights(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of the directory, from one file or from all of its shards."""
    for name in WEIGHTS:
        if (directory / name).is_file():
            return _read(directory / name)
        index = directory / f"{name}.index.json"
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict) or any(Path(file).name != file for file in files.values()):
                raise ValueError(f"{index}: weight_map must name files of the same directory")
            shards = [_read(directory / file) for file in sorted(set(files.values()))]
            return {name: tensor for shard in shards for name, tensor in shard.items()}
    raise FileNotFoundError(f"{directory} has a config.json, but neither {' nor '.join(WEIGHTS)}")


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; the index beside it names it")
    content = read_safetensors(path)[0] if path.suffix == ".safetensors" else read_pickle(path)
    return check_state(content, path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds; raise ValueError where it holds none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected an object of JSON")
    return value


def _as_authors(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors as the authors' code has them: tied ones under both names, shared u and v once."""
    tensors, twins = dict(tensors), list(_twins(options))
    for name, first in twins:
        if name in tensors:
            tensors.setdefault(first, tensors[name])
    for name, first in twins:
        if first not in tensors:
            continue
        if not torch.equal(tensors.setdefault(name, tensors[first]), tensors[first]):
            raise ValueError(f"{name} differs from {first}, with which config.json shares it")
        if name.endswith(("r_w_bias", "r_r_bias")):
            del tensors[name]
    for name in TAILS & tensors.keys():
        tensors[name] = tensors[name].flip(0)
    return tensors


def _twins(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of parameters that are one, the name that is always there last."""
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
