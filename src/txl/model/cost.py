"""What a model costs in parameters, arithmetic and memory. A model on the device "meta" allocates nothing."""

import torch
from torch import Tensor, nn

from txl.model.memory import Memory
from txl.model.transformer import TransformerXL


def parameter_counts(model: TransformerXL) -> tuple[int, int]:
    """Return the number of parameters of the model, and of its layers alone.

    The layers are what the authors' log calls "non emb params": without embedding, softmax, and the vectors
    that all layers share (u and v), but with the distance projections W_R.
    """
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    layers = ("layers.", "position.distance_keys.")
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name.startswith(layers))


def flops_per_token(model: TransformerXL, segment_length: int, memory_length: int, rows: int) -> float:
    """Return the floating-point operations of a forward pass per token, for `rows` on one device.

    Only matrix products count, two operations per multiply-add: the weights of the layers, keys and values of
    the full memory (recomputed every segment), the projected distances (once for all rows), scores, distance
    scores and weighted sums over the keys that a query sees (M + (L + 1) / 2 on average; work on masked keys
    is waste), and the softmax over the vocabulary (if adaptive, its head and one tail of average size).
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
    """Return the multiply-adds per token of the softmax and of the embedding's projections."""
    (size, width), *tails = (weight.shape for weight, _ in model.embedding.matrices())
    tail_count = max(1, len(tails))
    products = (size + len(tails)) * width + sum(rows * columns for rows, columns in tails) / tail_count
    if model.embedding.projections:
        products += sum(projection.numel() for projection in model.embedding.projections)
        products += model.d_model * (width + sum(columns for _, columns in tails) / tail_count)
    return products


def training_flops_per_token(
    model: TransformerXL, segment_length: int, memory_length: int, rows: int
) -> float:
    """Return the operations of a training step per token: a backward pass costs two forward passes.

    This slightly overestimates: the inputs of the memory's keys and values need no gradient.
    """
    return 3 * flops_per_token(model, segment_length, memory_length, rows)


def activation_bytes(model: TransformerXL, rows: int, segment_length: int, memory_length: int) -> int:
    """Return the bytes that the layers save for the backward pass in a training step, in float32.

    Measured by running the forward pass and adding up the storages that it saves, without parameters. The
    sum grows linearly with the rows, so one and two rows are enough to measure.
    """
    one, two = (_saved_bytes(model, few, segment_length, memory_length) for few in (1, 2))
    return one + (rows - 1) * (two - one)


def _saved_bytes(model: TransformerXL, rows: int, segment_length: int, memory_length: int) -> int:
    owned = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            saved[storage._cdata] = tensor  # kept alive, so that no other storage gets its address
        return tensor

    tokens = torch.zeros(rows, segment_length, dtype=torch.int64, device=model.embedding.bias.device)
    # A full memory, because blocked attention saves nothing of an empty one. Its length is on the CPU: values
    # on "meta" cannot be read.
    full = Memory(model.empty_memory(rows, memory_length).states, torch.full((rows,), memory_length))
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(tokens, full)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def softmax_bytes(model: TransformerXL, rows: int, segment_length: int) -> int:
    """Return the bytes that the softmax saves for the backward pass: log-probabilities in float32.

    Of an adaptive softmax only the head counts; what its tails save depends on the text.
    """
    low, high = model.embedding.parts[0]
    return 4 * rows * segment_length * (high - low + len(model.embedding.parts) - 1)


def memory_bytes(model: TransformerXL, rows: int, memory_length: int) -> int:
    """Return the bytes of the recurrence memory in float32."""
    return 4 * model.n_layer * rows * memory_length * model.d_model
