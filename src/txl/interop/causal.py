"""Loads causal language models of Hugging Face's transformers from a directory of `save_pretrained`.

Nothing is downloaded, no code of a model is run, and parameters are read from `.safetensors` only.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from txl.data import Vocabulary
from txl.interop.huggingface import read_json

TRANSFO_XL = "transfo-xl"  # the model_type that `load_foreign` converts to a `TransformerXL`
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "spiece.model")
MAX_LOGITS = 2**26  # per forward pass: 256 MB
CHECKED_TOKENS = 10_000  # at the beginning of a text, where a tokenizer is compared with a vocabulary


def is_foreign(path: Path) -> bool:
    """Return whether `save_pretrained` of a model other than Transformer-XL wrote this directory."""
    config = Path(path) / "config.json"
    return config.is_file() and read_json(config).get("model_type") != TRANSFO_XL


class CausalModel:
    """A causal language model of transformers that scores windows of text.

    Attributes:
        model: in evaluation mode, in float32, on the CPU.
        longest: the number of positions that it supports; `None` if its configuration does not say.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: this is not a causal language model of transformers, or parameters are missing.
        OSError: files are missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not any(self.path.glob("*.safetensors*")):
            raise FileNotFoundError(
                f"{self.path} has no parameters in .safetensors; save the model again with "
                "save_pretrained(…, safe_serialization=True)"
            )
        try:
            with _transformers() as transformers:
                self.model, report = transformers.AutoModelForCausalLM.from_pretrained(
                    self.path, local_files_only=True, use_safetensors=True, output_loading_info=True
                )
        except (ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.path}: transformers cannot load it as a causal language model: {reason}"
            ) from error
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{self.path} lacks parameters of the model: {', '.join(missing[:5])}")
        self.model = self.model.float().eval()
        self.longest = getattr(self.model.config, "max_position_embeddings", None)
        self.vocabulary_size = self.model.config.vocab_size

    def encode(self, text: bytes) -> np.ndarray | None:
        """Return the token ids of a text, or `None` if the model comes without a tokenizer."""
        if not any((self.path / name).is_file() for name in TOKENIZERS):
            return None
        with _transformers() as transformers:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        encoded = tokenizer(text.decode(), add_special_tokens=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)

    def check_tokens(self, vocabulary: Vocabulary, tokens: np.ndarray) -> None:
        """Raise ValueError if the tokens of this model differ from those of a text.

        If the model comes with a tokenizer, the beginning of the text is encoded again and compared.
        """
        if self.vocabulary_size != len(vocabulary):
            raise ValueError(
                f"{self.path} has {self.vocabulary_size:,} tokens, the text's vocabulary {len(vocabulary):,} "
                f"{vocabulary.unit}s; a group must read the same tokens"
            )
        text = vocabulary.decode(tokens[:CHECKED_TOKENS].tolist()).decode(errors="ignore").encode()
        theirs = self.encode(text)
        if theirs is None:
            return
        same = min(len(theirs), len(tokens))
        (differs,) = np.nonzero(theirs[:same] != tokens[:same])
        if len(differs):
            place = int(differs[0])
            symbol = vocabulary.decode([int(tokens[place])]).decode(errors="replace")
            raise ValueError(
                f"{self.path}: its tokenizer splits the text into other tokens: number {place} is "
                f"{theirs[place]}, in the text's vocabulary {int(tokens[place])} ({symbol!r}); a group must "
                "read the same tokens"
            )

    @torch.inference_mode()
    def scores(self, window_BW: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the scores `[B, J]` of the tokens after each context, see `WindowScorer.scores`."""
        after = torch.tensor(lengths, device=self.model.device)
        rows = max(1, MAX_LOGITS // (window_BW.shape[1] * self.vocabulary_size))
        scores = []
        for part_BW in window_BW.to(self.model.device).split(rows):
            logits_BLV = self.model(input_ids=part_BW[:, :-1], use_cache=False).logits
            known_BJV = logits_BLV[:, after - 1].float().log_softmax(dim=-1)
            scores.append(-known_BJV.gather(-1, part_BW[:, after, None])[..., 0])
        return torch.cat(scores).cpu()


@contextmanager
def _transformers() -> Iterator[ModuleType]:
    with warnings.catch_warnings():
        # transformers 4.35 registers its output classes by a function that torch has renamed since.
        warnings.filterwarnings("ignore", ".*_register_pytree_node. is deprecated", FutureWarning)
        try:
            import transformers
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a model of Hugging Face needs the package transformers; install it with: "
                "pip install 'txl[huggingface]'"
            ) from error
        transformers.logging.set_verbosity_error()
        yield transformers
