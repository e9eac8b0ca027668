"""Any causal language model of Hugging Face's transformers, from a directory of `save_pretrained`.

Only what lies in the directory is read: nothing is fetched, no code that a model brings along is run, and of
the parameters only `.safetensors`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from txl.data import Vocabulary
from txl.interop.huggingface import read_json

OURS = "transfo-xl"  # the model_type that `load_foreign` turns into one of our models
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "spiece.model")
ROOM = 2**26  # numbers of which the logits of a forward pass may have some 256 MB
COMPARED = 10_000  # tokens at the beginning of a text on which a tokenizer is held against a vocabulary


def is_foreign(path: Path) -> bool:
    """Return whether a path is a directory of `save_pretrained` of another model than Transformer-XL."""
    config = Path(path) / "config.json"
    return config.is_file() and read_json(config).get("model_type") != OURS


class CausalModel:
    """A causal language model of transformers that scores windows of text.

    Attributes:
        model: in evaluation mode, in float32, on the CPU.
        longest: how many positions it was made for; `None` where it does not say.
        vocabulary_size: how many different tokens.
    """

    def __init__(self, path: Path) -> None:
        """Load a model.

        Args:
            path: its directory.

        Raises:
            ModuleNotFoundError: transformers is not installed.
            ValueError: no causal language model of transformers, or parameters that are missing.
            OSError: files that are missing.
        """
        self.path = Path(path)
        transformers = _transformers()
        try:
            with _as_it_was():
                self.model, report = transformers.AutoModelForCausalLM.from_pretrained(
                    self.path, local_files_only=True, use_safetensors=True, output_loading_info=True
                )
        except OSError as error:
            if not list(self.path.glob("*.safetensors*")):
                raise FileNotFoundError(
                    f"{self.path} has no parameters in .safetensors; save the model again with "
                    "save_pretrained(…, safe_serialization=True)"
                ) from error
            raise
        except (ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self.path}: transformers makes no causal model of it: {reason}") from error
        missing = sorted(report["missing_keys"])
        if missing:
            raise ValueError(f"{self.path} lacks parameters of the model: {', '.join(missing[:5])}")
        self.model = self.model.float().eval()
        self.longest = getattr(self.model.config, "max_position_embeddings", None)
        self.vocabulary_size = self.model.config.vocab_size

    def encode(self, text: bytes) -> np.ndarray | None:
        """Return the ids of a text by the tokenizer beside the model, or `None` where there is none."""
        if not any((self.path / name).is_file() for name in TOKENIZERS):
            return None
        transformers = _transformers()
        with _as_it_was():
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        encoded = tokenizer(text.decode(), add_special_tokens=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)

    def check_tokens(self, vocabulary: Vocabulary, tokens: np.ndarray) -> None:
        """Raise ValueError unless its tokens are those of a vocabulary.

        Args:
            vocabulary: the tokens of the text.
            tokens: the text, of which the beginning is encoded again where a tokenizer is there.
        """
        if self.vocabulary_size != len(vocabulary):
            raise ValueError(
                f"{self.path} has {self.vocabulary_size:,} tokens, the text's vocabulary {len(vocabulary):,} "
                f"{vocabulary.unit}s; a group must read the same tokens"
            )
        text = vocabulary.decode(tokens[:COMPARED].tolist()).decode(errors="ignore").encode()
        theirs = self.encode(text)
        if theirs is None:
            return
        same = min(len(theirs), len(tokens))
        differs = np.nonzero(theirs[:same] != tokens[:same])[0]
        if len(differs):
            place = int(differs[0])
            symbol = vocabulary.decode([int(tokens[place])]).decode(errors="replace")
            raise ValueError(
                f"{self.path}: its tokenizer makes other tokens of the text: number {place} is "
                f"{theirs[place]}, in the text's vocabulary {int(tokens[place])} ({symbol!r}); a group must "
                "read the same tokens"
            )

    @torch.inference_mode()
    def scores(self, window_BW: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the score of the token after the first c of each window, for each c of `lengths`.

        Args:
            window_BW: int64, `max(lengths) + 1` tokens a row.
            lengths: how many tokens are the context.

        Returns:
            `[B, J]`, in nats, on the CPU.
        """
        after = torch.tensor(lengths, device=self.model.device)
        rows = max(1, ROOM // (window_BW.shape[1] * self.vocabulary_size))
        scores = []
        for part_BW in window_BW.to(self.model.device).split(rows):
            logits_BLV = self.model(input_ids=part_BW[:, :-1], use_cache=False).logits
            known_BJV = logits_BLV[:, after - 1].float().log_softmax(dim=-1)
            scores.append(-known_BJV.gather(-1, part_BW[:, after, None])[..., 0])
        return torch.cat(scores).cpu()


def _transformers():
    try:
        with _as_it_was():
            import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a model of Hugging Face needs the package transformers; install it with: "
            "pip install 'txl[huggingface]'"
        ) from error
    transformers.logging.set_verbosity_error()
    return transformers


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Import parts of transformers without a warning that says nothing to whoever reads it."""
    with warnings.catch_warnings():
        # transformers 4.35 registers its classes of outputs by a name that torch has renamed since.
        warnings.filterwarnings("ignore", ".*_register_pytree_node. is deprecated", FutureWarning)
        yield
