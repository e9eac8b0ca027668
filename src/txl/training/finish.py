"""After training: the best weights, the scores of both splits, a sample, the figure and the table."""

from __future__ import annotations

import itertools
import logging
import os

import pytorch_lightning as pl
import torch
from rich.text import Text

from txl.data import Corpus, Streams
from txl.evaluation.compressors import compressed_bits
from txl.evaluation.generation import generate
from txl.report import draw_learning_curve, summary
from txl.training.config import Config
from txl.training.console import console
from txl.training.module import LanguageModel
from txl.training.run import Run

log = logging.getLogger(__name__)


def finish(
    config: Config,
    module: LanguageModel,
    corpus: Corpus,
    streams: dict[str, Streams],
    trainer: pl.Trainer,
    run: Run,
) -> None:
    """Score validation and test text with the best weights, and show what came out."""
    settings = config.evaluation
    trainer.save_checkpoint(run.checkpoints / "last.ckpt")
    use_best_weights(module, streams["valid"], trainer, run)
    run.record_scores("valid", module.scores, corpus.unit, settings)
    trainer.test(module, streams["test"], verbose=False)
    run.record_scores("test", module.scores, corpus.unit, settings)
    if corpus.unit in ("byte", "char"):
        text = corpus.vocabulary.decode(corpus.tokens["test"])
        run.record(compressors=compressed_bits(text, len(corpus.tokens["test"])))
    prompt, written = write_sample(config, module, corpus)
    (run.directory / "sample.txt").write_text(
        f"{prompt}\n\n=== the model goes on ===\n\n{written}\n", "utf-8"
    )
    figure = draw_learning_curve(run.directory)
    console.print(Text(f"\n{prompt}", "dim") + Text(written, "bold"))
    console.print()
    console.print(summary(run.directory))
    for name, path in {
        "results": run.directory / "results.json",
        "checkpoint": run.checkpoints / "best.ckpt",
        "figure": figure,
    }.items():
        console.print(f"{name:>10}  {os.path.relpath(path, run.home)}", soft_wrap=True)


def use_best_weights(module: LanguageModel, valid: Streams, trainer: pl.Trainer, run: Run) -> None:
    """Score the last weights; keep them as the best, or go back to better ones of an earlier validation."""
    best = next(callback for callback in trainer.checkpoint_callbacks if callback.monitor)
    earlier = None if best.best_model_score is None else best.best_model_score.item()
    if module.validated_at != trainer.global_step:
        trainer.validate(module, valid, verbose=False)
    path = run.checkpoints / "best.ckpt"
    # Lightning keeps the earlier score in float32: compare it with this one in the same precision.
    if earlier is None or torch.tensor(module.scores.loss, dtype=torch.float32).item() <= earlier:
        trainer.save_checkpoint(path)
        return
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(checkpoint["state_dict"])
    log.info("the weights of step %d were better on valid and are used", checkpoint["global_step"])
    trainer.validate(module, valid, verbose=False)


def write_sample(config: Config, module: LanguageModel, corpus: Corpus) -> tuple[str, str]:
    """Return a prompt from the test text and what the model writes after it."""
    settings = config.sample
    model = module.model.eval()
    device = model.embedding.bias.device
    prompt = torch.from_numpy(corpus.tokens["test"][: settings.prompt_tokens].astype("int64")).to(device)
    written = generate(
        model,
        prompt[None],
        model.empty_memory(1, config.evaluation.longest_attention - 1),
        config.evaluation.segment_length,
        settings.temperature,
        settings.top_k,
        torch.Generator(device).manual_seed(config.seed),
    )
    with module.clamped():
        ids = [token.item() for token in itertools.islice(written, settings.tokens)]
    decode = corpus.vocabulary.decode
    return decode(prompt.tolist()).decode(errors="replace"), decode(ids).decode(errors="replace")
