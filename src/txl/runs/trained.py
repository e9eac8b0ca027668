"""A trained model with what belongs to it: its vocabulary, and the corpus it was trained on."""

from __future__ import annotations

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

OURS = "txl.data."
PRECISIONS = ("auto", "32-true", "64-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class TokenizedText:
    """What a model, or a group of them, reads.

    Attributes:
        name: of the corpus, or the file.
        split: "train", "valid" or "test"; `None` for a file.
        unit: what a token is; "token" for those of a Hugging Face tokenizer.
        tokens: the ids.
    """

    name: str
    split: str | None
    unit: str
    tokens: np.ndarray

    @property
    def title(self) -> str:
        """Its name for people, with the split."""
        return ", ".join(filter(None, (self.name, self.split)))

    def sha256(self) -> str:
        """Return a hash of the ids."""
        return hashlib.sha256(np.ascontiguousarray(self.tokens, dtype="<u4").data).hexdigest()


@dataclass(frozen=True)
class TrainedModel:
    """A model that was loaded from a run directory or a file.

    Attributes:
        source: what was named.
        model: in evaluation mode, on the CPU, with the clamp that its source evaluates with.
        description: what it was built from, see `txl.interop.description`.
        vocabulary: its tokens; `None` where the source does not know them.
        trust: whether the source may name code outside this package.
    """

    source: Path
    model: TransformerXL
    description: dict[str, Any]
    vocabulary: Vocabulary | None
    trust: bool = False

    @property
    def directory(self) -> Path:
        """Where results about it belong: the run directory, or the folder of the file."""
        if self.source.is_dir():
            return self.source
        folder = self.source.resolve().parent
        return folder.parent if folder.name == "checkpoints" else folder

    def encoded(self, text: bytes, name: str, ends: bool = True) -> np.ndarray:
        """Return the ids of a text of one's own, read as the corpus of the training was.

        Args:
            text: UTF-8, or any bytes where they are the unit.
            name: what errors call it.
            ends: for words, whether the last line ends, too, if it has no newline.

        Raises:
            ValueError: a symbol that the vocabulary does not hold, no UTF-8, or no vocabulary.
        """
        if self.vocabulary is None:
            raise ValueError(f"{self.source} does not know its vocabulary, so {name} cannot be read with it")
        data = self.description.get("data") or {"settings": {}}
        if data["settings"].get("newlines") == "drop":
            text = text.replace(b"\n", b"")
        try:
            return self.vocabulary.encode(text, ends)
        except ValueError as error:  # which UnicodeDecodeError is too
            raise ValueError(
                f"{name} cannot be read with the vocabulary of {self.source}: {error}"
            ) from error

    def text(self, split: str, file: Path | None = None) -> TokenizedText:
        """Return a split of the corpus of the training, or a text file of one's own.

        Args:
            split: train, valid or test; no matter where there is a file.
            file: to read in its place, `None` for none.

        Raises:
            ValueError: a split that is not there; see `encoded` and `corpus`.
            OSError: the text cannot be read.
        """
        if file is not None:
            tokens = self.encoded(file.read_bytes(), f"text={file}")
            return TokenizedText(file.name, None, self.vocabulary.unit, tokens)
        if split not in SPLITS:  # before a corpus is prepared for nothing
            raise ValueError(f"split={split}: expected one of {', '.join(SPLITS)}")
        corpus = self.corpus()
        return TokenizedText(corpus.name, split, corpus.unit, corpus.tokens[split])

    def corpus(self) -> Corpus:
        """Return the corpus of the training, prepared again if need be.

        Raises:
            ValueError: the source does not say which it was, or the text is no longer the same.
            OSError, ImportError: the text cannot be had, see `txl.data.corpora.catalogue`.
        """
        data = self.description.get("data")
        if data is None:
            raise ValueError(
                f"{self.source} does not say on which corpus it was trained; name a text of your own, text=…"
            )
        settings = dict(data["settings"])
        if not (self.trust or str(settings.get("_target_")).startswith(OURS)):
            raise ConfigError(
                f"data: {settings.get('_target_')} is not of {OURS[:-1]}, and importing it would run its "
                "code; say trust=true if the run and the code are your own"
            )
        if settings.get("cache") and not Path(settings["cache"]).is_dir():  # it was another machine's
            settings.pop("cache")
            if "TXL_CACHE" in os.environ:
                settings["cache"] = os.environ["TXL_CACHE"]
        corpus = component(settings, "data")()
        mine = self.vocabulary
        if mine is not None and corpus.vocabulary.lines() != mine.lines():
            raise ValueError(
                f"the vocabulary of {self.source} ({len(mine):,} {mine.unit}s) is not that of the corpus "
                f"{corpus.name} as it is now ({len(corpus.vocabulary):,} {corpus.unit}s): its text has "
                "changed; name the text to read, text=…"
            )
        if corpus.sha256 != data["sha256"]:
            raise ValueError(
                f"the corpus {corpus.name} is not the one of the training: its sha256 is "
                f"{corpus.sha256[:12]}…, not {data['sha256'][:12]}…; name the text to read, text=…"
            )
        return corpus


def load(source: Path | str, trust: bool = False) -> TrainedModel:
    """Return the model of a run directory, a checkpoint or a `.safetensors`, with what belongs to it.

    Args:
        source: see `load_foreign`.
        trust: let the source name classes outside this package. They are imported, which runs them.

    Raises:
        ValueError, OSError: see `load_foreign`.
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
    model: TransformerXL, device: str = "auto", precision: str = "auto"
) -> Iterator[tuple[torch.device, str]]:
    """Inside, a model is on a device and computes in a precision, without gradients; give what these are.

    From then on the process keeps memory that was freed, as a training does.

    Args:
        model: it is moved, and for a mixed precision its matrices are rounded once, for good.
        device: "auto" for a GPU where there is one, or a name that torch knows.
        precision: one of `PRECISIONS`; "auto" is what training takes on that device.

    Raises:
        ConfigError: a device that is not here, or a precision that is not known.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision}: expected one of {', '.join(PRECISIONS)}")
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={device} cannot be used here ({str(error).splitlines()[0]}); say auto or cpu"
        ) from error
    retain_freed_pages()
    precision, _ = resolve_precision(precision, "cpu" if place.type == "cpu" else "auto")
    model.to(place, torch.float64 if precision == "64-true" else torch.float32)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    if mixed is not None:
        for part in model.modules():  # autocast would round them again for every product
            if isinstance(part, torch.nn.Linear):
                part.to(mixed)
    with torch.inference_mode(), torch.autocast(place.type, mixed, enabled=mixed is not None):
        yield place, precision
