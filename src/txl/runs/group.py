"""Groups of models that read the same tokens: ours, and Hugging Face's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl.evaluation.contexts import TransformerScorer, WindowScorer
from txl.interop.causal import CausalModel, is_foreign
from txl.runs.trained import TokenizedText, TrainedModel, load


@dataclass(frozen=True)
class GroupMember:
    """A model of a group."""

    name: str
    source: Path
    model: torch.nn.Module
    reader: WindowScorer
    cap: int | None  # the longest context it reads, in tokens, to which others are cut; None for any
    cap_reason: str | None
    reading: dict[str, Any]  # what its scores depend on besides its parameters
    trained: TrainedModel | None = None  # for models of ours

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name, value in self.model.state_dict().items():
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def member(
    source: Path, name: str, cap: int | None = None, attention_length: int | None = None, trust: bool = False
) -> GroupMember:
    """Return a model of a group.

    One of ours with memory, or with relative positions, reads any context; without memory and with absolute
    positions, the segment of its training. A model of Hugging Face reads the positions that it was made for.

    Args:
        source: a run directory, a checkpoint, a `.safetensors`, or a directory of `save_pretrained`.
        cap: replaces that rule.
        attention_length: keys a query may attend to, itself included, for models of ours; `None` for that of
            the run's evaluation, or else the whole context.

    Raises:
        ValueError, OSError, ImportError: see `load` and `CausalModel`; an attention length for a model of
            Hugging Face.
    """
    for key, value in {"cap": cap, "attention_length": attention_length}.items():
        if value is not None and value < 1:
            raise ValueError(f"{key}={value} must be positive or null")
    reason = "as given" if cap else None
    if is_foreign(source):
        if attention_length is not None:
            raise ValueError(f"attention_length is for models of ours; use null for {source}, or a cap")
        foreign = CausalModel(source)
        if cap is None and foreign.longest:
            cap, reason = foreign.longest, "the positions it was made for (max_position_embeddings)"
        return GroupMember(name, source, foreign.model, foreign, cap, reason, {})
    trained = load(source, trust)
    model, reading = trained.model, trained.description.get("reading") or {}
    attention_length = attention_length or reading.get("attention_length")
    segment, memory = None, 0
    if model.position.absolute and reading.get("memory_length"):
        memory, keys = reading["memory_length"], model.position.key_length
        segment = keys - memory if keys > memory else keys
    elif model.position.absolute and cap is None:
        cap = model.position.key_length
        reason = (
            "its encoding knows places within a segment, and it was trained on segments of "
            f"{cap} without memory"
        )
    settings = {
        "attention_length": attention_length,
        "segment_length": segment,
        "memory_length": memory,
        "clamp_length": getattr(model.position, "clamp_length", None),
    }
    reader = TransformerScorer(model, attention_length, segment, memory)
    return GroupMember(name, source, model, reader, cap, reason, settings, trained)


def short_names(sources: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ; ValueError if a source is named twice."""
    paths = [path.resolve() for path in sources]
    if len(set(paths)) < len(paths):
        raise ValueError("a model is named twice; tell them apart by names=[…]")
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def read_text(members: Sequence[GroupMember], split: str, file: Path | None) -> TokenizedText:
    """Return the text that a group reads, after checking that all models share its tokens.

    Args:
        split: of the corpus of the first model of ours that knows one.
        file: a text to read instead, with the vocabulary of ours or else with the tokenizers.

    Raises:
        ValueError: models of different tokens, no vocabulary or corpus, an unknown split, a text with symbols
            that the vocabulary does not hold.
        OSError: the text cannot be read.
    """
    ours = [one.trained for one in members if one.trained]
    with_vocabulary = [trained for trained in ours if trained.vocabulary is not None]
    if not with_vocabulary:
        if ours or file is None:
            raise ValueError(
                "no model of the group knows its vocabulary; name one of a run, or for models of Hugging "
                "Face alone a text, text=…"
            )
        return _read_by_tokenizers(members, file)
    first = with_vocabulary[0]
    vocabulary = first.known_vocabulary()
    with_corpus = next((trained for trained in with_vocabulary if "data" in trained.description), first)
    text = (with_corpus if file is None else first).text(split, file)
    for one in members:
        if isinstance(one.reader, CausalModel):
            one.reader.check_tokens(vocabulary, text.tokens)
        elif one.trained is not None:
            own, size = one.trained.vocabulary, one.trained.model.embedding.vocabulary
            if size != len(vocabulary) or (own is not None and own.lines() != vocabulary.lines()):
                unit = own.unit if own is not None else "token"
                raise ValueError(
                    f"the tokens of {one.source} ({size:,} {unit}s) are not those of {first.source} "
                    f"({len(vocabulary):,} {vocabulary.unit}s); a group must read the same tokens"
                )
    return text


def _read_by_tokenizers(members: Sequence[GroupMember], file: Path) -> TokenizedText:
    """Return the text as the tokenizers of Hugging Face models encode it; all must agree."""
    content, first = file.read_bytes(), None
    for one in members:
        assert isinstance(one.reader, CausalModel)  # none of the group is ours
        ids = one.reader.encode(content)
        if ids is None:
            raise ValueError(f"{one.source} has no tokenizer beside it; save it there with save_pretrained")
        if first is not None and not np.array_equal(ids, first):
            raise ValueError(
                f"the tokenizers of {members[0].source} and {one.source} split {file} into different tokens; "
                "a group must read the same tokens"
            )
        if len(ids) and ids.max() >= one.reader.vocabulary_size:
            raise ValueError(f"{one.source}: its tokenizer has tokens that the model does not have")
        first = ids
    return TokenizedText(file.name, None, "token", np.asarray(first))
