"""Checkpoints in and out: whatever holds a Transformer-XL becomes our model, and our model one safe file.

A file that `export` writes is a `.safetensors` with our parameters' names. Two entries of its metadata are
ours: `txl_format`, the version, and `txl`, JSON of what the model is built from (see `description.py`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.data import border_text
from txl.interop.authors_options import load_authors_model
from txl.interop.authors_parameters import NamesError
from txl.interop.description import build
from txl.interop.files import check_state, read_pickle, read_safetensors, write_safetensors
from txl.interop.huggingface import read_pretrained
from txl.model import TransformerXL

FORMAT = "1"
CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")  # of a run directory, the first that exists


def load_foreign(
    path: Path, config: Mapping[str, Any] | None = None, trust: bool = False
) -> tuple[TransformerXL, dict[str, Any]]:
    """Return the model of a checkpoint, in evaluation mode on the CPU, and the description it was built from.

    Nothing that a file holds is run: of pickles only tensors and plain containers are read.

    Args:
        path: a directory of Hugging Face's `save_pretrained`; a `state_dict` of the authors' PyTorch code; a
            `.safetensors` of `export`; a checkpoint of a run (`.ckpt`), or its run directory, of which
            checkpoints/best.ckpt is read or else last.ckpt.
        config: the authors' options, for their `state_dict` only (see `authors_options.load_authors_model`).
        trust: let a run's checkpoint name classes outside `txl.model`. They are imported, which runs them.

    Raises:
        FileNotFoundError: there is nothing, or a directory of another kind.
        PickledObjectError: a pickled model; the message says how to take its tensors out.
        NamesError: parameters that are missing or unknown.
        ValueError: a damaged file, parameters of another shape, options that do not fit.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir() and not (path / "config.json").is_file():
        path = _checkpoint_of_run(path)
    content = None if path.is_dir() or path.suffix == ".safetensors" else read_pickle(path)
    checkpoint = content if isinstance(content, Mapping) and "state_dict" in content else None
    if content is not None and checkpoint is None:
        tensors = check_state(content, path)
        if config is None:
            raise ValueError(f"{path} is a state_dict, which holds no options; give its run's as config")
        model, description = load_authors_model(tensors, config)
    elif config is not None:
        raise ValueError(f"{path} holds its own options; config is for the authors' state_dict only")
    elif checkpoint is not None:
        model, description = _load_run(checkpoint, path, trust)
    elif path.is_dir():
        model, description = load_authors_model(*read_pretrained(path))
    else:
        model, description = _load_exported(path)
    return model.eval(), description


def export(model: TransformerXL, options: Mapping[str, Any], path: Path) -> None:
    """Write a model to a `.safetensors` file, whole or not at all, from which `load_foreign` rebuilds it.

    Args:
        options: its description, as `load_foreign` returns it.
        path: ends in `.safetensors`. What stands there is replaced.

    Raises:
        NamesError: the model has other parameters than the description says. Nothing is written.
        ValueError: parameters of other shapes, or a description that `load_foreign` would not read back.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} must end in .safetensors, the format that is written")
    with torch.device("meta"):  # for names and shapes; nothing is allocated
        described = build(options)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    _check(described, tensors)
    # "format" is what other readers of safetensors ask for.
    metadata = {"format": "pt", "txl_format": FORMAT, "txl": json.dumps(options, ensure_ascii=False)}
    write_safetensors(path, tensors, metadata)


def _checkpoint_of_run(directory: Path) -> Path:
    for name in CHECKPOINTS:
        if (directory / name).is_file():
            return directory / name
    raise FileNotFoundError(
        f"{directory} is neither a directory of save_pretrained, which has a config.json, nor that of a run, "
        f"which has {' or '.join(CHECKPOINTS)}"
    )


def _load_exported(path: Path) -> tuple[TransformerXL, dict[str, Any]]:
    tensors, metadata = read_safetensors(path)
    if metadata.get("txl_format") != FORMAT:
        raise ValueError(
            f"{path} has the txl_format {metadata.get('txl_format')}, expected {FORMAT}: it was written by "
            "another program or another version; of a Hugging Face model give the directory"
        )
    try:
        description = json.loads(metadata["txl"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: the description in its metadata, txl, is missing or damaged") from error
    model = build(description)
    _fill(model, tensors)
    return model, description


def _overlap(evaluation: Mapping[str, Any]) -> dict[str, int]:
    """Return how far apart the segments begin in which a run evaluates; nothing where they do not overlap."""
    length = evaluation.get("segment_length") or 0
    stride = length // 2 if evaluation.get("loss") == "half" else evaluation.get("stride") or length
    return {"stride": stride} if stride < length else {}


def _borders(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return what ends the documents of which none sees another; nothing where a run reads one text."""
    return {"border": border_text(evaluation["border"])} if evaluation.get("streams") == "documents" else {}


def _load_run(checkpoint: Mapping[str, Any], path: Path, trust: bool) -> tuple[TransformerXL, dict[str, Any]]:
    try:
        config, vocabulary = checkpoint["txl"]["config"], checkpoint["txl"]["vocabulary"]
        training, evaluation = config["training"], config["evaluation"]
        description = {
            "model": {**config["model"], "vocabulary": len(vocabulary["lines"])},
            "position": {
                **config["position"],
                "key_length": training["segment_length"] + training["memory_length"],
            },
            "reading": {
                name: evaluation.get(name)
                for name in ("segment_length", "memory_length", "attention_length", "clamp_length")
            }
            | _borders(evaluation)
            | _overlap(evaluation),
            "vocabulary": vocabulary,
        }
        if "data" in config:
            description["data"] = {"sha256": checkpoint["txl"]["data"]["sha256"], "settings": config["data"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is a checkpoint, but not of a run of txl: it lacks {error}") from error
    tensors = check_state(checkpoint["state_dict"], path)
    others = {name for name in tensors if not name.startswith("model.")}
    if others:
        raise NamesError(set(), others)
    model = build(description, trust)
    _fill(model, {name.removeprefix("model."): value for name, value in tensors.items()})
    return model, description


def _fill(model: TransformerXL, tensors: Mapping[str, Tensor]) -> None:
    """Give a model its parameters, of the type in which they are stored."""
    _check(model, tensors)
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) != 1:
        raise ValueError(f"the parameters must be of one floating type, not {sorted(map(str, kinds))}")
    model.to(kinds.pop()).load_state_dict(tensors)


def _check(model: TransformerXL, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless a model has parameters of these names and shapes."""
    own = model.state_dict()
    missing, unknown = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unknown:
        raise NamesError(missing, unknown)
    wrong = [
        f"{name} has the shape {list(tensors[name].shape)}, the model's has {list(own[name].shape)}"
        for name in own
        if tensors[name].shape != own[name].shape
    ]
    if wrong:
        raise ValueError(f"the parameters do not fit the model; {'; '.join(wrong)}")
