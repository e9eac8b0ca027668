"""A trained model with its vocabulary and its corpus."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl.data import Corpus, Vocabulary
from txl.data.corpora.preparation import SPLITS
from txl.interop.checkpoints import load_foreign
from txl.model import TransformerXL
from txl.settings.components import component
from txl.settings.errors import ConfigError
from txl.training.hardware import resolve_precision, retain_freed_pages

PRECISIONS = ("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class TokenizedText:
    """The ids of a corpus split or of a file."""

    name: str
    split: str | None  # None for a file
    unit: str  # "token" for those of a Hugging Face tokenizer
    tokens: np.ndarray

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.name, self.split)))

    def sha256(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.tokens, dtype="<u4").data).hexdigest()


@dataclass(frozen=True)
class TrainedModel:
    """A model loaded from a run directory or a file."""

    source: Path
    model: TransformerXL  # in evaluation mode, on the CPU, with the clamp that its source evaluates with
    description: dict[str, Any]  # what it was built from, see `txl.interop.description`
    vocabulary: Vocabulary | None  # None where the source does not hold one
    trust: bool = False  # whether the source may name code outside this package

    @property
    def directory(self) -> Path:
        """The place of its results: the run directory, or the folder of the file."""
        if self.source.is_dir():
            return self.source
        folder = self.source.resolve().parent
        return folder.parent if folder.name == "checkpoints" else folder

    def known_vocabulary(self, name: str = "a text") -> Vocabulary:
        """Return the vocabulary, or raise ValueError that the text `name` cannot be read without one."""
        if self.vocabulary is None:
            raise ValueError(f"{self.source} does not know its vocabulary, so {name} cannot be read with it")
        return self.vocabulary

    def encode(self, text: bytes, name: str, ends: bool = True) -> np.ndarray:
        """Return the ids of a text, read as the training corpus was.

        Args:
            text: UTF-8, or any bytes if these are the unit.
            name: of the text in errors.
            ends: for words, whether a last line without a newline ends too.

        Raises:
            ValueError: a symbol that the vocabulary does not hold, no UTF-8, or no vocabulary.
        """
        vocabulary = self.known_vocabulary(name)
        if (self.description.get("data") or {"settings": {}})["settings"].get("newlines") == "drop":
            text = text.replace(b"\n", b"")
        try:
            return vocabulary.encode(text, ends)
        except ValueError as error:  # UnicodeDecodeError included
            raise ValueError(
                f"{name} cannot be read with the vocabulary of {self.source}: {error}"
            ) from error

    def text(self, split: str, file: Path | None = None) -> TokenizedText:
        """Return a split of the training corpus, or the text of a file instead.

        Raises:
            ValueError: an unknown split; see `encode` and `corpus`.
            OSError: the text cannot be read.
        """
        if file is not None:
            tokens = self.encode(file.read_bytes(), f"text={file}")
            return TokenizedText(file.name, None, self.known_vocabulary().unit, tokens)
        if split not in SPLITS:  # checked before the corpus is prepared
            raise ValueError(f"split={split}: expected one of {', '.join(SPLITS)}")
        corpus = self.corpus()
        return TokenizedText(corpus.name, split, corpus.unit, corpus.tokens[split])

    def corpus(self) -> Corpus:
        """Return the training corpus, prepared again if need be.

        Raises:
            ValueError: the source does not name its corpus, or the text has changed.
            OSError, ImportError: the text is not available, see `txl.data.corpora.catalogue`.
        """
        data = self.description.get("data")
        if data is None:
            raise ValueError(
                f"{self.source} does not name the corpus it was trained on; give a text of your own, text=…"
            )
        settings = dict(data["settings"])
        if not (self.trust or str(settings.get("_target_")).startswith("txl.data.")):
            raise ConfigError(
                f"data: {settings.get('_target_')} is outside txl.data, and importing it would run its "
                "code; use trust=true if the run and the code are your own"
            )
        if settings.get("cache") and not Path(settings["cache"]).is_dir():  # a path of another machine
            settings.pop("cache")
            if "TXL_CACHE" in os.environ:
                settings["cache"] = os.environ["TXL_CACHE"]
        corpus = component(settings, "data")()
        own = self.vocabulary
        if own is not None and corpus.vocabulary.lines() != own.lines():
            raise ValueError(
                f"the vocabulary of {self.source} ({len(own):,} {own.unit}s) is not that of the corpus "
                f"{corpus.name} as it is now ({len(corpus.vocabulary):,} {corpus.unit}s): its text has "
                "changed; name the text to read, text=…"
            )
        if corpus.sha256 != data["sha256"]:
            raise ValueError(
                f"the corpus {corpus.name} is not the one used in training: its sha256 is "
                f"{corpus.sha256[:12]}…, not {data['sha256'][:12]}…; name the text to read, text=…"
            )
        return corpus


def load(source: Path | str, trust: bool = False) -> TrainedModel:
    """Return the model of a run directory, a checkpoint or a `.safetensors`.

    Args:
        source: see `load_foreign`, also for the errors.
        trust: let the source name classes outside this package. They are imported, which runs their code.
    """
    source = Path(source)
    model, description = load_foreign(source, trust=trust)
    known = description.get("vocabulary")
    vocabulary = Vocabulary.from_lines(known["unit"], known["lines"]) if known else None
    clamp = (description.get("reading") or {}).get("clamp_length")
    if clamp is not None:
        model.position.clamp_length = clamp
    return TrainedModel(source, model, description, vocabulary, trust)


@contextmanager
def inference_context(
    model: torch.nn.Module, device: str = "auto", precision: str = "auto"
) -> Iterator[tuple[torch.device, str]]:
    """Run a model on a device in a precision, without gradients; yield the two as they are chosen.

    From then on the process retains freed pages, as in training.

    Args:
        model: is moved; for a mixed precision its matrices are rounded once, permanently.
        device: "auto" for a GPU if there is one, or a name that torch knows.
        precision: one of `PRECISIONS`; "auto" is that of training on the device.

    Raises:
        ConfigError: an unavailable device, or an unknown precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision}: expected one of {', '.join(PRECISIONS)}")
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={device} cannot be used here ({str(error).splitlines()[0]}); use auto or cpu"
        ) from error
    retain_freed_pages()
    precision, _ = resolve_precision(precision, "cpu" if place.type == "cpu" else "auto")
    model.to(place, torch.float64 if precision == "64-true" else torch.float32)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    if mixed is not None:
        for part in model.modules():  # otherwise autocast rounds them in every product
            if isinstance(part, torch.nn.Linear):
                part.to(mixed)
    with torch.inference_mode(), torch.autocast(place.type, mixed, enabled=mixed is not None):
        yield place, precision
