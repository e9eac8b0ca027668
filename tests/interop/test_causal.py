"""Causal models of Hugging Face from a local directory: their scores, and whether their tokens are ours."""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from txl.data import Vocabulary
from txl.evaluation.contexts import reads_ahead
from txl.interop.causal import CausalModel, is_foreign

sys.path.append(os.environ.get("TXL_PEERS", str(Path(sys.prefix) / "peers")))  # see test_huggingface
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r".*_register_pytree_node. is deprecated", FutureWarning)
    transformers = pytest.importorskip("transformers")
    GPT2LMHeadModel, Tokenizer = transformers.GPT2LMHeadModel, transformers.PreTrainedTokenizerFast

LETTERS = Vocabulary("char", list(" etaoinsh"))
SHAPE = {"vocab_size": 9, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3,
         "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip


def saved_gpt2(folder, **changes):
    """Save a tiny GPT-2 with random parameters, large enough for the context to matter."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(transformers.GPT2Config(**SHAPE | changes))
    for name, parameter in model.named_parameters():
        if "ln" not in name:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    model.save_pretrained(folder, safe_serialization=True)
    return model.eval()


def save_tokenizer(folder, letters):
    """Save a tokenizer that makes each letter a token, in this order."""
    import tokenizers

    words = {letter: index for index, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=letters[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    Tokenizer(tokenizer_object=tokenizer).save_pretrained(folder)


def test_the_scores_are_those_of_the_model(tmp_path):
    model = saved_gpt2(tmp_path)
    reader = CausalModel(tmp_path)
    assert is_foreign(tmp_path)
    assert (reader.longest, reader.vocabulary_size) == (16, 9)
    window = torch.randint(9, (3, 15), generator=torch.Generator().manual_seed(1))
    found = reader.scores(window, [2, 9, 14])
    with torch.no_grad():
        for column, length in enumerate((2, 9, 14)):
            logits = model(window[:, :length]).logits[:, -1]
            expected = torch.nn.functional.cross_entropy(logits, window[:, length], reduction="none")
            assert (found[:, column] - expected).abs().max() < 1e-5
    assert not reads_ahead(reader, window, [2, 9, 14])


def test_a_model_of_other_tokens_is_refused(tmp_path):
    saved_gpt2(tmp_path)
    tokens = np.array([3, 1, 0, 5, 2], dtype=np.uint8)
    reader = CausalModel(tmp_path)
    reader.check_tokens(LETTERS, tokens)
    with pytest.raises(ValueError, match="has 9 tokens, the text's vocabulary 8 chars; a group must read"):
        reader.check_tokens(Vocabulary("char", list("abcdefgh")), tokens)
    save_tokenizer(tmp_path, " etaoinsh")
    assert reader.encode(b"a tin").tolist() == [3, 0, 2, 5, 6]
    reader.check_tokens(LETTERS, tokens)
    save_tokenizer(tmp_path, " etaionsh")
    with pytest.raises(ValueError, match=r"number 3 is 4, in the text's vocabulary 5 \('i'\)"):
        CausalModel(tmp_path).check_tokens(LETTERS, tokens)


def test_what_is_no_such_model_is_refused(tmp_path):
    saved_gpt2(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(ValueError, match=r"lacks parameters of the model: transformer\.h\.2"):
        CausalModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "vit"}))
    with pytest.raises(ValueError, match="transformers cannot load it as a causal language model"):
        CausalModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no parameters in \.safetensors; save the model again"):
        CausalModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "transfo-xl"}))
    assert not is_foreign(tmp_path)
    assert not is_foreign(tmp_path / "model.safetensors")
