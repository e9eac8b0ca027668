"""What a model costs: its parameters, its arithmetic, its memory. No tensor is allocated for a meta model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl.model.memory import Memory
from txl.model.transformer import TransformerXL


def parameter_counts(model: TransformerXL) -> tuple[int, int]:
    """Return how many parameters a model has, and how many of them are in its layers.

    In the layers is what the authors' log calls "non emb params": neither embedding and softmax, nor the
    vectors that all layers share (u and v); the projections W_R of the distances are.
    """
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    layers = ("layers.", "position.distance_keys.")
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name.startswith(layers))


def flops_per_token(model: TransformerXL, segment_length: int, memory_length: int, rows: int) -> float:
    """Return the floating-point operations that a forward pass needs, for each token of its segment.

    Counted are the matrix products, two operations a multiply-add: the weights of the layers, keys and values
    of the memory (computed again every segment), the projected distances (once for all rows), scores, scores
    by distance and sums over the keys that a query sees (on average M + (L + 1) / 2; what is computed of the
    others is waste and does not count), and the softmax over the vocabulary; of an adaptive one its head and
    one tail of average size for every token.

    Args:
        model: the model.
        segment_length: L.
        memory_length: M; all of it is real.
        rows: B, those of one device.
    """
    keys, seen = memory_length + segment_length, memory_length + (segment_length + 1) / 2
    products = 0.0
    for layer in model.layers:
        attention = layer.attention
        width = attention.n_head * attention.d_head
        products += attention.query.weight.numel() + attention.output.weight.numel()
        products += keys / segment_length * attention.key_value.weight.numel()
        products += (3 if model.position.scores_distances else 2) * seen * width
        products += sum(weight.numel() for weight in layer.feed_forward.parameters() if weight.ndim == 2)
    projections = [module for module in model.position.modules() if isinstance(module, nn.Linear)]
    shared = sum(projection.weight.numel() for projection in projections)
    products += shared * (keys + 1) / (rows * segment_length)
    return 2 * (products + _softmax_products(model))


def _softmax_products(model: TransformerXL) -> float:
    """Return the multiply-adds of the softmax, and of the embedding's projections, for one token."""
    embedding = model.embedding
    widths = [
        embedding.weights[min(part, len(embedding.weights) - 1)].shape[1]
        for part in range(len(embedding.parts))
    ]
    sizes = [high - low for low, high in embedding.parts]
    tails = len(sizes) - 1
    products = (sizes[0] + tails) * widths[0]
    if tails:
        products += sum(size * width for size, width in zip(sizes[1:], widths[1:], strict=True)) / tails
    if embedding.projections:
        products += sum(projection.numel() for projection in embedding.projections)
        products += model.d_model * (widths[0] + (sum(widths[1:]) / tails if tails else 0.0))
    return products


def training_flops_per_token(
    model: TransformerXL, segment_length: int, memory_length: int, rows: int
) -> float:
    """Return the operations of a training step, for each token: a backward pass costs two forward passes.

    A little less is done: the inputs of the memory's keys and values need no gradient.
    """
    return 3 * flops_per_token(model, segment_length, memory_length, rows)


def activation_bytes(model: TransformerXL, rows: int, segment_length: int, memory_length: int) -> int:
    """Return how much a training step keeps for its backward pass, in float32, of the layers.

    Counted by running the forward pass and adding up the storages that it saves, parameters left out. With a
    model on the device "meta" nothing is allocated. Each row saves as much as any other, beside what all
    share: one and two rows tell.
    """
    one, two = (_saved_bytes(model, few, segment_length, memory_length) for few in (1, 2))
    return one + (rows - 1) * (two - one)


def _saved_bytes(model: TransformerXL, rows: int, segment_length: int, memory_length: int) -> int:
    owned = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            saved[storage._cdata] = tensor  # held, so that no other storage can take its place
        return tensor

    tokens = torch.zeros(rows, segment_length, dtype=torch.int64, device=model.embedding.bias.device)
    # A full memory: of an empty one, blocked attention keeps nothing. Its length has a value on "meta", too.
    full = Memory(model.empty_memory(rows, memory_length).states, torch.full((rows,), memory_length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, full)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def softmax_bytes(model: TransformerXL, rows: int, segment_length: int) -> int:
    """Return how much the softmax of a segment keeps for its backward pass: the logarithms, in float32.

    Of an adaptive softmax those of its head; the tails' depend on the text and come on top.
    """
    low, high = model.embedding.parts[0]
    return 4 * rows * segment_length * (high - low + len(model.embedding.parts) - 1)


def memory_bytes(model: TransformerXL, rows: int, memory_length: int) -> int:
    """Return the size of the recurrence memory of so many rows, in float32."""
    return 4 * model.n_layer * rows * memory_length * model.d_model
