"""Loads a Transformer-XL from any supported checkpoint, and exports it to one `.safetensors` file.

An exported file has the parameter names of this package. Its metadata hold `txl_format`, the version, and
`txl`, the description of the model as JSON (see `description.py`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.data.streams import border_text
from txl.interop import files
from txl.interop.authors_options import load_authors_model
from txl.interop.description import build
from txl.interop.huggingface import read_pretrained
from txl.model import TransformerXL

FORMAT = "1"
CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")  # of a run directory, the first that exists


def load_foreign(
    path: Path, config: Mapping[str, Any] | None = None, trust: bool = False
) -> tuple[TransformerXL, dict[str, Any]]:
    """Return the model of a checkpoint, in evaluation mode on the CPU, and the description it was built from.

    No code in a file is run: only tensors and plain containers are read from pickles.

    Args:
        path: a directory of Hugging Face's `save_pretrained`; a `state_dict` of the authors' PyTorch code; a
            `.safetensors` of `export`; a checkpoint of a run (`.ckpt`), or its run directory, of which
            checkpoints/best.ckpt is read or else last.ckpt.
        config: the authors' options, for their `state_dict` only (see `authors_options.load_authors_model`).
        trust: let a run's checkpoint name classes outside `txl.model`, whose modules are then imported.

    Raises:
        FileNotFoundError: the path does not exist, or is a directory of another kind.
        PickledObjectError: a pickled model; the message says how to extract its tensors.
        NamesError: missing or unknown parameters.
        ValueError: a damaged file, parameters of another shape, or options that do not fit.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoints = [path / name for name in CHECKPOINTS if (path / name).is_file()]
        if not checkpoints:
            raise FileNotFoundError(
                f"{path} is neither a directory of save_pretrained, which has a config.json, nor that of a "
                f"run, which has {' or '.join(CHECKPOINTS)}"
            )
        path = checkpoints[0]
    content: Any = None if path.is_dir() or path.suffix == ".safetensors" else files.read_pickle(path)
    is_checkpoint = isinstance(content, Mapping) and "state_dict" in content
    if content is not None and not is_checkpoint:
        tensors = files.check_state(content, path)
        if config is None:
            raise ValueError(f"{path} is a state_dict, which holds no options; give its run's as config")
        model, description = load_authors_model(tensors, config)
    elif config is not None:
        raise ValueError(f"{path} holds its own options; config is for the authors' state_dict only")
    elif is_checkpoint:
        model, description = _build(*_read_run(content, path), trust)
    elif path.is_dir():
        model, description = load_authors_model(*read_pretrained(path))
    else:
        model, description = _build(*_read_exported(path))
    return model.eval(), description


def export(model: TransformerXL, options: Mapping[str, Any], path: Path) -> None:
    """Write a model atomically to a `.safetensors` file, from which `load_foreign` rebuilds it.

    Args:
        options: its description, as `load_foreign` returns it.
        path: ends in `.safetensors`. An existing file is replaced.

    Raises:
        NamesError: the model does not have the parameters of the description. Nothing is written.
        ValueError: parameters of other shapes, or a description that `load_foreign` would refuse.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} must end in .safetensors, the format that is written")
    with torch.device("meta"):  # for names and shapes; nothing is allocated
        described = build(options)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    files.check_parameters(tensors, described.state_dict())
    # Other readers of safetensors expect "format".
    metadata = {"format": "pt", "txl_format": FORMAT, "txl": json.dumps(options, ensure_ascii=False)}
    files.write_safetensors(path, tensors, metadata)


def _read_exported(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a file of `export`."""
    tensors, metadata = files.read_safetensors(path)
    if metadata.get("txl_format") != FORMAT:
        raise ValueError(
            f"{path} has the txl_format {metadata.get('txl_format')}, expected {FORMAT}: it was written by "
            "another program or another version; for a Hugging Face model, pass its directory"
        )
    try:
        return json.loads(metadata["txl"]), tensors
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: the description in its metadata, txl, is missing or damaged") from error


def _read_run(checkpoint: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors in the checkpoint of a run."""
    try:
        config, vocabulary = checkpoint["txl"]["config"], checkpoint["txl"]["vocabulary"]
        key_length = config["training"]["segment_length"] + config["training"]["memory_length"]
        description = {
            "model": {**config["model"], "vocabulary": len(vocabulary["lines"])},
            "position": {**config["position"], "key_length": key_length},
            "reading": _reading(config["evaluation"]),
            "vocabulary": vocabulary,
        }
        if "data" in config:
            description["data"] = {"sha256": checkpoint["txl"]["data"]["sha256"], "settings": config["data"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is a checkpoint, but not of a run of txl: it lacks {error}") from error
    tensors = files.check_state(checkpoint["state_dict"], path)
    others = {name for name in tensors if not name.startswith("model.")}
    if others:
        raise files.NamesError(set(), others)
    return description, {name.removeprefix("model."): value for name, value in tensors.items()}


def _reading(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run evaluates: with a border if documents are separate, a stride if segments overlap."""
    names = "segment_length", "memory_length", "attention_length", "clamp_length"
    reading = {name: evaluation.get(name) for name in names}
    if evaluation.get("streams") == "documents":
        reading["border"] = border_text(evaluation["border"])
    length = evaluation.get("segment_length") or 0
    stride = length // 2 if evaluation.get("loss") == "half" else evaluation.get("stride") or length
    return reading | ({"stride": stride} if stride < length else {})


def _build(
    description: dict[str, Any], tensors: Mapping[str, Tensor], trust: bool = False
) -> tuple[TransformerXL, dict[str, Any]]:
    """Return the model with these parameters, in the type in which they are stored, and its description."""
    model = build(description, trust)
    files.check_parameters(tensors, model.state_dict())
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) != 1:
        raise ValueError(f"the parameters must be of one floating type, not {sorted(map(str, kinds))}")
    model.to(kinds.pop()).load_state_dict(tensors)
    return model, description
