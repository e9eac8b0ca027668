"""The authors' parameter names and layouts (github kimiyoung/transformer-xl, `pytorch/mem_transformer.py`).

`from_authors` inverts `to_authors`, which translates parameters and their gradients:

    authors                                 here
    word_emb.emb_layers.i.weight            embedding.weights.i          (also crit.out_layers.i.weight)
    word_emb.emb_projs.i                    embedding.projections.i
    crit.out_projs.i                        embedding.output_projections.i, or tied
    crit.out_layers.i.bias                  embedding.bias, all parts together
    crit.cluster_weight, cluster_bias       embedding.tail_weight, tail_bias, the tails in reverse order
    layers.i.dec_attn.qkv_net.weight        layers.i.attention.query and key_value, stacked
        (attn_type 2, 3: q_net, kv_net)
    layers.i.dec_attn.o_net.weight          layers.i.attention.output.weight
    layers.i.dec_attn.layer_norm            layers.i.attention_norm
    layers.i.pos_ff.CoreNet.0, .3           layers.i.feed_forward.0, .3
    layers.i.pos_ff.layer_norm              layers.i.feed_forward_norm
    layers.i.dec_attn.r_net.weight          position.distance_keys.i.weight        attn_type 0
    r_w_bias, r_r_bias                      position.u, position.v                 attn_type 0
    r_w_bias, r_emb, r_bias                 position.u, vectors, distance_bias     attn_type 1, nearest first
    r_emb                                   position.vectors                       attn_type 3
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from txl.interop.files import check_parameters
from txl.model import LearnedPosition, RelativePosition, ShawPosition, SinusoidalPosition, TransformerXL

LAYER_NAMES = {
    "attention_norm": "dec_attn.layer_norm",
    "feed_forward.0": "pos_ff.CoreNet.0",
    "feed_forward.3": "pos_ff.CoreNet.3",
    "feed_forward_norm": "pos_ff.layer_norm",
}


def to_authors(model: TransformerXL, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters (or gradients) under the authors' names, tied ones under both names.

    `tensors` has all names of `model.named_parameters()`.
    """
    out, position = _embedding_to_authors(model, tensors), model.position
    for index in range(model.n_layer):
        layer = f"layers.{index}."
        query, key_value = (tensors[f"{layer}attention.{part}.weight"] for part in ("query", "key_value"))
        if isinstance(position, (SinusoidalPosition, LearnedPosition)):
            out[f"{layer}dec_attn.q_net.weight"] = query
            out[f"{layer}dec_attn.kv_net.weight"] = key_value
        else:
            out[f"{layer}dec_attn.qkv_net.weight"] = torch.cat([query, key_value])
        out[f"{layer}dec_attn.o_net.weight"] = tensors[f"{layer}attention.output.weight"]
        for name, official in LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                out[f"{layer}{official}.{kind}"] = tensors[f"{layer}{name}.{kind}"]
        if isinstance(position, RelativePosition):
            out[f"{layer}dec_attn.r_net.weight"] = tensors[f"position.distance_keys.{index}.weight"]
    if isinstance(position, RelativePosition):
        for name, official in (("u", "r_w_bias"), ("v", "r_r_bias")):
            vectors = tensors[f"position.{name}"]
            if len(vectors) == 1:
                out[official] = vectors[0]
            else:
                out |= {f"layers.{index}.dec_attn.{official}": one for index, one in enumerate(vectors)}
    elif isinstance(position, ShawPosition):
        out["r_emb"] = tensors["position.vectors"].flip(1)
        out["r_bias"] = tensors["position.distance_bias"].flip(1)
        out["r_w_bias"] = tensors["position.u"]
    elif isinstance(position, LearnedPosition):
        out["r_emb"] = tensors["position.vectors"].unflatten(-1, (position.n_head, position.d_head))
    return out


def _embedding_to_authors(model: TransformerXL, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    embedding = model.embedding
    out: dict[str, Tensor] = {}
    parts = embedding.parts if len(embedding.weights) > 1 else [(0, embedding.vocabulary)]
    for index, (low, high) in enumerate(parts):
        weight = given[f"embedding.weights.{index}"]
        out[f"word_emb.emb_layers.{index}.weight"] = out[f"crit.out_layers.{index}.weight"] = weight
        out[f"crit.out_layers.{index}.bias"] = given["embedding.bias"][low:high]
    for index in range(len(embedding.projections)):
        out[f"word_emb.emb_projs.{index}"] = given[f"embedding.projections.{index}"]
    if embedding.projections:
        for index in range(len(embedding.parts)):
            shared = index if len(embedding.projections) > 1 else 0
            tied = given[f"embedding.projections.{shared}"]
            out[f"crit.out_projs.{index}"] = given.get(f"embedding.output_projections.{index}", tied)
    if len(embedding.parts) > 1:
        out["crit.cluster_weight"] = given["embedding.tail_weight"].flip(0)
        out["crit.cluster_bias"] = given["embedding.tail_bias"].flip(0)
    return out


def from_authors(model: TransformerXL, tensors: Mapping[str, Tensor]) -> None:
    """Load parameters by the authors' names into a model, by inverting `to_authors`.

    Raises:
        NamesError: names are missing or unknown.
        ValueError: a tensor has another shape, or tied parameters differ. Nothing is loaded.
    """
    own = dict(model.named_parameters())
    # Number all entries of all parameters: `to_authors` shows where each number goes.
    sizes = [parameter.numel() for parameter in own.values()]
    parts = torch.arange(sum(sizes)).split(sizes)
    numbers = {name: part.view(own[name].shape) for name, part in zip(own, parts, strict=True)}
    places = to_authors(model, numbers)
    # The authors' code also stores a constant, the frequencies of the sinusoids.
    tensors = {name: tensor for name, tensor in tensors.items() if name != "pos_emb.inv_freq"}
    check_parameters(tensors, places)
    dtype = next(iter(own.values())).dtype
    flat, filled = torch.empty(sum(sizes), dtype=dtype), torch.zeros(sum(sizes), dtype=torch.bool)
    for name, place in places.items():
        tensor = tensors[name].to(dtype)
        if bool(filled[place].any()) and not torch.equal(flat[place], tensor):
            raise ValueError(f"{name} is tied to another parameter but differs from it")
        flat[place], filled[place] = tensor, True
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(flat[numbers[name]])
