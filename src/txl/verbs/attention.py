"""`txl attention`: what the heads attend to, as in the paper's Figures 5, 6 and 7."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.table import Table

from txl.evaluation import attention as maps
from txl.evaluation.attention import AttentionMeans
from txl.records.files import atomic_path
from txl.report.figures.attention import draw_attention
from txl.report.render.attention_page import write_page
from txl.runs.trained import TokenizedText, TrainedModel, inference_context
from txl.terminal import new_table, progress_bar
from txl.verbs import runner
from txl.verbs.settings import AttentionSettings

ROWS = 64  # of single heads: as many tokens as the authors evaluate at once, and as can be read
TOP_SHARE = 0.2  # of the memory, marked in Figure 6


def run(trained: TrainedModel, settings: AttentionSettings, path: Path) -> runner.Outcome:
    text = trained.text(settings.split, settings.text)
    if not len(text.tokens):
        raise ValueError(f"{text.title} is empty: there is no attention to measure")
    result, arrays = _measure(trained, text, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path.with_suffix(".npz")) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # names of arrays, not options
    runner.write_result(path, result)  # last, so that it never stands without the arrays
    figures = path.parent if settings.out else trained.directory / "figures"
    files = [path, *draw_attention(path, figures)]
    if heads := result["segment"]["heads"]:  # the page shows single heads
        files.append(write_page(path, figures))
    read = (
        f"of the {result['tokens']:,} tokens read until then" if heads else "complete, but no head was read"
    )
    message = None if result["complete"] else f"interrupted: the means are {read}"
    return runner.Outcome(as_table(result, arrays), files, message)


def _measure(
    trained: TrainedModel, text: TokenizedText, settings: AttentionSettings
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON and the arrays; after Ctrl-C those of the tokens read until then."""
    model, tokens = trained.model, text.tokens
    memory, segment, batch_size = settings.memory_length, settings.segment_length, settings.batch_size
    if memory is None:
        memory = memory_length_of_run(trained.description.get("reading") or {})
    if segment is None:
        segment = max(1, min(memory, ROWS))
    positions = maps.segment_positions(len(tokens), memory, segment)
    if settings.position == "random":
        position = int(np.random.default_rng(settings.seed).integers(positions.start, positions.stop))
    else:
        position = int(settings.position)
    # Refuse a wrong position or head before the long reading.
    maps.check_segment(model, len(tokens), position, memory, segment, settings.heads or [0])
    averaged = tokens if settings.tokens is None else tokens[: memory + settings.tokens]
    with inference_context(model, settings.device, "32-true"):
        segments = maps.mean_attention(model, averaged, memory, segment, batch_size, settings.terms)
        means, complete = _read_means(segments)
        entropy = means.mean("entropy")
        heads = maps.representative_heads(entropy)
        if settings.heads is not None:
            heads = dict.fromkeys(settings.heads, "chosen by hand")
        try:
            maps_of_heads = maps.attention_at(model, tokens, position, memory, segment, list(heads))
        except KeyboardInterrupt:  # keep the means, which took long
            heads, complete = {}, False
            maps_of_heads = np.zeros((0, segment, memory + segment), np.float32)
    arrays = {f"mean_{name}": means.mean(name) for name in ("attention", *means.terms)} | {
        "segment_attention": maps_of_heads
    }
    labels = trained.vocabulary.labels if trained.vocabulary else (lambda ids: [str(index) for index in ids])
    encoding = type(model.position).__name__.removesuffix("Position").lower()
    encoding = "none" if encoding == "positionencoding" else encoding
    result = {
        "schema": 1,
        "name": Path(trained.source).resolve().name,
        "source": str(trained.source),
        "split": text.split or text.name,
        "unit": trained.vocabulary.unit if trained.vocabulary else "token",
        "complete": complete,
        "tokens": means.tokens,
        "tokens_asked": len(averaged) - memory,
        "first_tokens": f"the first {memory} tokens, which have no full memory before them, are not counted",
        "layers": model.n_layer,
        "heads": model.position.n_head,
        "memory_length": memory,
        "attention_length": memory + 1,
        "segment_length": segment,
        "batch_size": settings.batch_size,
        "clamp_length": getattr(model.position, "clamp_length", None),
        "position_encoding": encoding,
        "terms": list(means.terms),
        "terms_note": terms_note(means.terms, encoding) if settings.terms else "the terms were not asked for",
        "entropy": entropy.tolist(),
        "segment": {
            "position": position,
            "seed": settings.seed if settings.position == "random" else None,
            "tokens": labels(tokens[position - memory : position + segment].tolist()),
            "heads": [{"head": head, "why": why} for head, why in heads.items()],
            "top_share": TOP_SHARE,
        },
    }
    return result, arrays


def _read_means(segments: Iterable[AttentionMeans]) -> tuple[AttentionMeans, bool]:
    """Return the means of all segments, or of those before Ctrl-C, and whether the reading is complete.

    Raises:
        KeyboardInterrupt: before any token was counted.
    """
    means: AttentionMeans | None = None
    try:
        with progress_bar("reading", total=1.0) as update:
            for means in segments:
                update(completed=means.progress, description=f"reading, {means.tokens:,} tokens")
    except KeyboardInterrupt:
        if means is None or not means.tokens:
            raise
        runner.console.print("interrupted: writing the means of what was read")
        return means, False
    return cast("AttentionMeans", means), True  # there is at least one segment


def memory_length_of_run(reading: dict[str, Any]) -> int:
    """Return how many earlier tokens a token attends to in a run's own evaluation; 0 if it is unknown."""
    length = reading.get("attention_length")
    return length - 1 if length else reading.get("memory_length") or 0


def terms_note(terms: tuple[str, ...], encoding: str) -> str:
    """Explain which terms of §3.3 the scores have, and why others are absent."""
    if len(terms) == 4:
        return "the scores have the four terms of §3.3; the paper's Figure 7 leaves (c) out"
    if terms == ("a",):
        why = {
            "rotary": "rotary positions turn queries and keys, so content and distance are one product",
            "none": "the model has no position encoding",
        }.get(encoding, f"{encoding} positions are in the states themselves and add nothing to the scores")
        return f"the scores have the term (a) only: {why}"
    absent = [f"({term})" for term in "abcd" if term not in terms]
    have = " and ".join(f"({term})" for term in terms)
    return f"the scores of {encoding} positions have the terms {have}; there is no {' and no '.join(absent)}"


def as_table(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> Table:
    """Return the single heads, and a uniform one for comparison."""
    mean = arrays["mean_attention"]
    distance = mean @ np.arange(mean.shape[1])
    headings = "head", "layer", "", "entropy (bits)", "mean distance", "on itself"
    table = new_table(*headings, left=[""], caption=result["terms_note"], caption_justify="left")
    for entry in result["segment"]["heads"]:
        head = entry["head"]
        table.add_row(
            str(head),
            str(head // result["heads"] + 1),
            entry["why"],
            f"{result['entropy'][head] / np.log(2):.2f}",
            f"{distance[head]:.1f}",
            f"{mean[head, 0]:.1%}",
        )
    table.add_section()
    uniform = f"{np.log2(mean.shape[1]):.2f}", f"{(mean.shape[1] - 1) / 2:.1f}", f"{1 / mean.shape[1]:.1%}"
    table.add_row("", "", "a uniform head", *uniform)
    return table
