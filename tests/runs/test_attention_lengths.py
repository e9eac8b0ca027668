"""Validation at several attention lengths after training, against a loop over targets."""

import itertools
import json

import numpy as np
import pytest
import torch

from conftest import TINY
from txl.data import Vocabulary
from txl.interop.checkpoints import load_foreign

STRIDE, TOKENS, ROWS = 4, 61, 2


def scores_of(run, length, recurrent):
    """Return the mean score of the first targets of valid: each predicted by itself from what it may see."""
    model, description = load_foreign(run)
    text = (run.parent / "text" / "valid.txt").read_bytes()
    tokens = torch.from_numpy(Vocabulary.from_lines(**description["vocabulary"]).encode(text).astype("int64"))
    tokens = tokens[: TOKENS + 1]
    edges = np.arange(ROWS + 1) * TOKENS // ROWS
    total = 0.0
    for begin, end in itertools.pairwise(edges):
        for target in range(begin + 1, end + 1):
            if recurrent:  # segments of a stride, the memory carried
                pieces, memory = tokens[begin:target].split(STRIDE), model.empty_memory(1, length - STRIDE)
                for piece in pieces:
                    hidden, memory = model(piece[None], memory)
            else:  # the first window is read whole; then each begins a stride later
                late = max(0, -(-(target - begin - length) // STRIDE)) * STRIDE
                hidden, _ = model(tokens[begin + late : target][None], model.empty_memory(1, 0))
            total += model.embedding.scores(hidden[:, -1:], tokens[target][None, None]).item()
    return total / TOKENS


@pytest.mark.parametrize("recurrent", [True, False])
def test_each_target_is_predicted_from_so_many_tokens(run_here, text_file, tmp_path, recurrent):
    data = text_file.read_bytes()
    (tmp_path / "text").mkdir()
    for split, part in {"train": data[:6000], "valid": data[6000:8000], "test": data[8000:]}.items():
        (tmp_path / "text" / f"{split}.txt").write_bytes(part)
    memory = 16 if recurrent else 0
    run = run_here(
        *TINY, f"data.path={tmp_path}/text", "data.unit=byte", "trainer.precision=32-true",
        f"training.memory_length={memory}", f"evaluation.memory_length={memory}",
        f"evaluation.batch_size={ROWS}", "evaluation.attention_lengths=[4,8,20]",
        f"evaluation.attention_stride={STRIDE}", f"evaluation.attention_tokens={TOKENS}",
    )  # fmt: skip
    found = json.loads((run / "results.json").read_text())["attention"]
    assert [entry["attention_length"] for entry in found] == [4, 8, 20]
    for entry in found:
        assert entry["tokens_scored"] == TOKENS
        with torch.inference_mode():
            expected = scores_of(run, entry["attention_length"], recurrent)
        assert entry["loss"] == pytest.approx(expected, abs=1e-5)
    assert len({round(entry["loss"], 6) for entry in found}) == 3
