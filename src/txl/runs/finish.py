"""After training: scores both splits with the best weights, writes a sample, prints figure and table."""

import itertools
import logging
import os
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy
from rich.text import Text

from txl.data import Corpus
from txl.data.streams import Streams
from txl.evaluation.compressors import compressed_bits
from txl.evaluation.generation import generate
from txl.records.results import score_entry
from txl.report import draw_learning_curve, summary
from txl.runs.assemble import streams_of
from txl.runs.directory import RunDirectory
from txl.settings.schema import Config
from txl.terminal import console
from txl.training.callbacks.checkpoints import BEST, Checkpoints
from txl.training.module import LanguageModel, changed

log = logging.getLogger(__name__)


def finish(
    config: Config,
    module: LanguageModel,
    corpus: Corpus,
    streams: dict[str, Streams],
    trainer: pl.Trainer,
    run: RunDirectory,
) -> None:
    """Score validation and test text with the best weights, and print the results."""
    use_best_weights(module, streams["valid"], trainer, run)
    run.record(valid=score_entry(module.scores, corpus.unit, config.evaluation))
    trainer.test(module, streams["test"], verbose=False)
    run.record(test=score_entry(module.scores, corpus.unit, config.evaluation))
    score_attention_lengths(config, module, corpus, trainer, run)
    if not trainer.is_global_zero:
        return
    if corpus.unit in ("byte", "char"):
        test = corpus.tokens["test"]
        run.record(compressors=compressed_bits(corpus.vocabulary.decode(test), len(test)))
    if not isinstance(trainer.strategy, FSDPStrategy):  # with FSDP no process has the whole model
        prompt, written = sample(config, module, corpus)
        text = f"{prompt}\n\n=== the model goes on ===\n\n{written}\n"
        (run.directory / "sample.txt").write_text(text, "utf-8")
        console.print(Text(f"\n{prompt}", "dim") + Text(written, "bold"))
    figure = draw_learning_curve(run.directory)
    console.print()
    console.print(summary(run.directory))
    paths = {"results": run.directory / "results.json", "checkpoint": run.checkpoints / BEST}
    for name, path in {**paths, "figure": figure}.items():
        console.print(f"{name:>10}  {os.path.relpath(path, run.home)}", soft_wrap=True)


def use_best_weights(module: LanguageModel, valid: Streams, trainer: pl.Trainer, run: RunDirectory) -> None:
    """Validate the last weights, and load those of `best.ckpt` if they score better."""
    callbacks: list[pl.Callback] = vars(trainer)["callbacks"]  # which Lightning does not declare
    checkpoints = next(each for each in callbacks if isinstance(each, Checkpoints))
    if module.validated_at != trainer.global_step or not module.scores.count:
        trainer.validate(module, valid, verbose=False)
    path = run.checkpoints / BEST
    if module.scores.loss <= checkpoints.best or not path.exists():
        checkpoints.best = module.scores.loss
        checkpoints.save(trainer, best=True)
        return
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    log.info("the weights of step %d were better on valid and are used", checkpoint["global_step"])
    sharded = isinstance(trainer.strategy, FSDPStrategy)  # only the strategy can distribute the weights
    if not sharded:
        module.load_state_dict(checkpoint["state_dict"])
    trainer.validate(module, valid, ckpt_path=path if sharded else None, verbose=False)


def score_attention_lengths(
    config: Config, module: LanguageModel, corpus: Corpus, trainer: pl.Trainer, run: RunDirectory
) -> None:
    """Score the validation text at each of `evaluation.attention_lengths` (Table 6 of the paper)."""
    scores: list[dict[str, Any]] = []
    targets = config.evaluation.attention_tokens
    for length in config.evaluation.attention_lengths:
        reading = config.evaluation.at(length)
        streams = streams_of("valid", reading, config, corpus, None if targets is None else targets + 1)
        start = time.monotonic()
        # Eagerly, as each length has its own shapes, for which the model would be compiled again.
        with changed(module, evaluation_settings=reading), torch.compiler.set_stance("force_eager"):
            trainer.test(module, streams, verbose=False)
        score = score_entry(module.scores, corpus.unit, reading) | {"seconds": time.monotonic() - start}
        scores.append(score)
        run.record(attention=scores)
        log.info("attention length %d: %.4f nats a token on valid", length, score["loss"])


def sample(config: Config, module: LanguageModel, corpus: Corpus) -> tuple[str, str]:
    """Return a prompt from the test text and the continuation that the model generates."""
    settings = config.sample
    model = module.model.eval()
    device = model.embedding.bias.device
    prompt = torch.from_numpy(corpus.tokens["test"][: settings.prompt_tokens].astype("int64")).to(device)
    stream = generate(
        model,
        prompt[None],
        model.empty_memory(1, config.evaluation.longest_attention - 1),
        config.evaluation.segment_length,
        settings.temperature,
        settings.top_k,
        torch.Generator(device).manual_seed(config.seed),
    )
    # Eagerly, as the model would be compiled for each of many small shapes.
    with module.clamped(), torch.compiler.set_stance("force_eager"):
        ids = [int(token) for token in itertools.islice(stream, settings.tokens)]
    decode = corpus.vocabulary.decode
    return decode(prompt.tolist()).decode(errors="replace"), decode(ids).decode(errors="replace")
