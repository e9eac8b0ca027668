"""A run's model comes with its vocabulary and its corpus, and only with these."""

import pytest
import torch

from conftest import TINY
from txl.interop.checkpoints import export
from txl.runs.trained import inference_context, load


@pytest.fixture
def run(run_here, text_file):
    return run_here(*TINY, f"data.path={text_file}", "trainer.max_steps=2", "evaluation.clamp_length=7")


def test_a_run_brings_its_corpus_and_vocabulary_and_so_does_its_export(run, tmp_path, monkeypatch):
    trained = load(run)
    corpus = trained.corpus()
    assert trained.vocabulary.lines() == corpus.vocabulary.lines()
    assert trained.model.position.clamp_length == 7
    assert trained.directory == run == load(run / "checkpoints" / "best.ckpt").directory
    export(trained.model, trained.description, tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").corpus().sha256 == corpus.sha256
    # On another machine the folder of prepared tokens is elsewhere.
    trained.description["data"]["settings"]["cache"] = "/nowhere/at/all"
    monkeypatch.setenv("TXL_CACHE", str(tmp_path / "other"))
    assert trained.corpus().folder.is_relative_to(tmp_path / "other")


def test_a_text_is_a_split_of_the_corpus_or_a_file_of_ones_own(run, tmp_path):
    trained = load(run)
    split = trained.text("test")
    assert (split.name, split.split, split.unit, split.title) == ("tiny", "test", "byte", "tiny, test")
    assert (split.tokens == trained.corpus().tokens["test"]).all()
    own = tmp_path / "own.txt"
    own.write_text("the dog")
    text = trained.text("test", own)
    assert (text.split, text.title) == (None, "own.txt")
    assert trained.vocabulary.decode(text.tokens) == b"the dog"
    with pytest.raises(ValueError, match="split=dev: expected one of train, valid, test"):
        trained.text("dev")


def test_a_text_that_has_changed_is_not_taken_for_the_corpus(run, text_file):
    text = text_file.read_text()
    text_file.write_text(text + " ")
    with pytest.raises(ValueError, match="is not the one used in training: its sha256 is"):
        load(run).corpus()
    text_file.write_text(text + "~")
    with pytest.raises(ValueError, match=r"the vocabulary of .*run .* is not that of the corpus tiny"):
        load(run).corpus()


def test_a_corpus_of_ones_own_code_needs_trust_and_a_model_alone_has_none(run):
    trained = load(run)
    trained.description["data"]["settings"]["_target_"] = "conftest.tiny_text"
    with pytest.raises(ValueError, match=r"conftest\.tiny_text is outside txl\.data, and importing"):
        trained.corpus()
    del trained.description["data"]
    with pytest.raises(ValueError, match="does not name the corpus it was trained on"):
        trained.corpus()


def test_a_model_computes_where_and_how_it_is_told(run):
    model, kinds = load(run).model, {}
    for precision in ("32-true", "64-true", "bf16-mixed"):
        with inference_context(model, "cpu", precision) as (device, used):
            assert used == precision
            tokens = torch.zeros(1, 3, dtype=torch.int64, device=device)
            hidden, _ = model(tokens, model.empty_memory(1, 2))
            kinds[precision] = hidden.dtype, model.layers[0].attention.query.weight.dtype
    assert kinds["32-true"] == (torch.float32, torch.float32)
    assert kinds["64-true"] == (torch.float64, torch.float64)
    assert kinds["bf16-mixed"][1] == torch.bfloat16
    with (
        pytest.raises(ValueError, match="device=cuda:9 cannot be used here"),
        inference_context(model, "cuda:9"),
    ):
        pass
    with (
        pytest.raises(ValueError, match="precision=8: expected one of auto, 32-true"),
        inference_context(model, "cpu", "8"),
    ):
        pass
