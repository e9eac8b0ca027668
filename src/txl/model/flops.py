"""How much arithmetic a model does: floating-point operations of its matrix products, two a multiply-add."""

from __future__ import annotations

from txl.model.transformer import TransformerXL


def training_flops_per_token(model: TransformerXL, segment_length: int, memory_length: int) -> float:
    """Return the operations of one training step, for each token of its segment.

    Counted are the matrix products of the forward pass and twice as many of the backward pass: the layers'
    weights, keys and values of the memory (recomputed every segment, their inputs without gradient), scores
    and their sums over all K keys (hidden ones too: they are computed), the projected distances of one
    segment (shared by the rows, so left out), and the softmax over the vocabulary.
    """
    context = (memory_length + segment_length) / segment_length  # keys computed for each token of the segment
    total = sum(weight.numel() for weight in model.embedding.weights)
    for layer in model.layers:
        attention = layer.attention
        width = attention.n_head * attention.d_head
        total += attention.query.weight.numel() + attention.output.weight.numel()
        total += context * (attention.key.weight.numel() + attention.value.weight.numel())
        total += (
            3 * (memory_length + segment_length) * width
        )  # content scores, distance scores, sum of values
        total += sum(
            parameter.numel() for parameter in layer.feed_forward.parameters() if parameter.ndim == 2
        )
    return 3 * 2 * total
