"""`txl attention`: where the heads look, as the paper's Figures 5, 6 and 7."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from txl.verbs.common import add_source, check_place, console, result_path, settings, write_result

if TYPE_CHECKING:
    import numpy as np

    from txl.evaluation.attention import AttentionMeans
    from txl.runs.trained import TokenizedText, TrainedModel

ROWS = 64  # of single heads: as many tokens as the authors evaluate at once, and as can be read
TOP_SHARE = 0.2  # of the memory, marked in Figure 6


@dataclass(frozen=True)
class Settings:
    """What `txl attention` can be told.

    Attributes:
        split: which text of the corpus: train, valid or test (valid)
        text: a file to read instead
        memory_length: tokens of memory; each token sees itself and as many before it (that of the run)
        segment_length: tokens read at once, and the rows of a single head (memory_length, at most 64)
        tokens: average over this many tokens only, from the first with a full memory (null: all)
        heads: heads to look at singly, counted through all layers from 0: [8,78,158] (by entropy)
        position: where in the text to look at them: a token's number, or random
        terms: take the terms of the scores apart: true or false (true)
        batch_size: rows that read at once; it changes the speed and not the numbers (8)
        seed: of the random position (0)
        device: auto, cpu, cuda, … (auto)
        trust: let the run name code outside this package (false)
        out: the folder for all files (evaluations/ and figures/ of the run)
    """

    split: str = "valid"
    text: Path | None = None
    memory_length: int | None = None
    segment_length: int | None = None
    tokens: int | None = None
    heads: list[int] | None = None
    position: str = "random"
    terms: bool = True
    batch_size: int = 8
    seed: int = 0
    device: str = "auto"
    trust: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens={self.tokens} must be at least 1, or null for all")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must be 0 or more")
        if self.position != "random" and not self.position.isdecimal():
            raise ValueError(f"position={self.position}: expected random or the number of a token")


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("attention", help="where the heads look: by distance, by term, in the text")
    add_source(verb, Settings)
    verb.set_defaults(run=_attention)


def _attention(arguments: argparse.Namespace) -> int:
    chosen = settings(arguments.overrides, Settings)

    from txl.report.figures.attention import draw_attention
    from txl.report.render.attention_page import write_page
    from txl.runs.trained import load

    trained = load(arguments.source, chosen.trust)
    text = trained.text(chosen.split, chosen.text)
    if not len(text.tokens):
        raise ValueError(f"{text.title} is empty: there is nothing to look at")
    out = chosen.out / "attention.json" if chosen.out else None
    path = result_path(trained.directory, "attention", arguments.overrides, out)
    check_place(path)
    result, arrays = _measure(trained, text, chosen)
    _write(path, result, arrays)
    figures = chosen.out or trained.directory / "figures"
    drawn = draw_attention(path, figures)
    if heads := result["segment"]["heads"]:  # the page looks at single ones
        drawn.append(write_page(path, figures))
    console.print(_table(result, arrays))
    console.print("\n".join(f"{file}" for file in (path, *drawn)), soft_wrap=True)
    if not result["complete"]:
        of = f"the {result['tokens']:,} tokens read until then" if heads else "all; no single head was read"
        console.print(f"interrupted: the means are of {of}", soft_wrap=True)
    return 0 if result["complete"] else 130


def _measure(
    trained: TrainedModel, read: TokenizedText, chosen: Settings
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is measured, as JSON and as arrays; of an interrupted reading what was read until then."""
    import numpy as np

    from txl.evaluation import attention as maps
    from txl.runs.trained import inference_context

    model, text, memory = trained.model, read.tokens, chosen.memory_length
    if memory is None:
        memory = memory_of(trained.description.get("reading") or {})
    segment = max(1, min(memory, ROWS)) if chosen.segment_length is None else chosen.segment_length
    maps.check_lengths(len(text), memory, segment, chosen.batch_size)
    first, last = maps.segment_positions(len(text), memory, segment)
    place = int(chosen.position) if chosen.position != "random" else None
    if place is None:
        place = int(np.random.default_rng(chosen.seed).integers(first, last + 1))
    asked = [0] if chosen.heads is None else chosen.heads
    maps.check_segment(model, len(text), place, memory, segment, asked)  # refuse before the long reading
    counted = text if chosen.tokens is None else text[: memory + chosen.tokens]
    with inference_context(model, chosen.device, "32-true"):
        means, complete = _read(
            maps.mean_attention(model, counted, memory, segment, chosen.batch_size, chosen.terms)
        )
        entropy = means.mean("entropy")
        heads = (
            maps.representative_heads(entropy)
            if chosen.heads is None
            else dict.fromkeys(chosen.heads, "chosen by hand")
        )
        try:
            singly = maps.attention_at(model, text, place, memory, segment, list(heads))
        except KeyboardInterrupt:  # what was read before takes long, and is kept
            heads, complete = {}, False
            singly = np.zeros((0, segment, memory + segment), np.float32)
    arrays = {f"mean_{name}": means.mean(name) for name in means.names} | {"segment_attention": singly}
    labels = trained.vocabulary.labels if trained.vocabulary else (lambda ids: [str(index) for index in ids])
    encoding = type(model.position).__name__.removesuffix("Position").lower()
    encoding = "none" if encoding == "positionencoding" else encoding
    result = {
        "schema": 1,
        "name": Path(trained.source).resolve().name,
        "source": str(trained.source),
        "split": read.split or read.name,
        "unit": trained.vocabulary.unit if trained.vocabulary else "token",
        "complete": complete,
        "tokens": means.tokens,
        "tokens_asked": len(counted) - memory,
        "first_tokens": f"the first {memory} tokens, which have no full memory before them, are not counted",
        "layers": model.n_layer,
        "heads": model.position.n_head,
        "memory_length": memory,
        "attention_length": memory + 1,
        "segment_length": segment,
        "batch_size": chosen.batch_size,
        "clamp_length": getattr(model.position, "clamp_length", None),
        "position_encoding": encoding,
        "terms": list(means.terms),
        "terms_note": terms_note(means.terms, encoding) if chosen.terms else "the terms were not asked for",
        "entropy": entropy.tolist(),
        "segment": {
            "position": place,
            "seed": chosen.seed if chosen.position == "random" else None,
            "tokens": labels(text[place - memory : place + segment].tolist()),
            "heads": [{"head": head, "why": why} for head, why in heads.items()],
            "top_share": TOP_SHARE,
        },
    }
    return result, arrays


def _read(reading) -> tuple[AttentionMeans, bool]:
    """Read to the end, or until Ctrl-C; return the means and whether it was the end.

    Raises:
        KeyboardInterrupt: before any token was counted.
    """
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.fields[tokens]:,} tokens"))
    means = None
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0, tokens=0)
        try:
            for means in reading:
                bar.update(task, completed=means.progress, tokens=means.tokens)
        except KeyboardInterrupt:
            if means is None or not means.tokens:
                raise
            bar.console.print("interrupted: writing down what was read until now")
            return means, False
    return means, True


def memory_of(reading: dict[str, Any]) -> int:
    """Return the tokens before a token that it sees in a run's own evaluation; 0 where that is not known."""
    length = reading.get("attention_length")
    return length - 1 if length else reading.get("memory_length") or 0


def terms_note(terms: tuple[str, ...], encoding: str) -> str:
    """Return which terms there are, and what is not to be seen in them."""
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


def _write(path: Path, result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write the arrays beside the JSON, which comes last: where it is, they are."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    try:
        np.savez_compressed(part, **arrays)
        part.replace(path.with_suffix(".npz"))
    finally:
        part.unlink(missing_ok=True)
    write_result(path, result)


def _table(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> Table:
    """Return the heads that were looked at singly, beside what all of them do on average."""
    import numpy as np

    mean = arrays["mean_attention"]
    distance = mean @ np.arange(mean.shape[1])
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False, caption=result["terms_note"], caption_justify="left")
    for heading in ("head", "layer", "", "entropy (bits)", "mean distance", "on itself"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for chosen in result["segment"]["heads"]:
        head = chosen["head"]
        table.add_row(
            str(head),
            str(head // result["heads"] + 1),
            chosen["why"],
            f"{result['entropy'][head] / np.log(2):.2f}",
            f"{distance[head]:.1f}",
            f"{mean[head, 0]:.1%}",
        )
    table.add_section()
    uniform = f"{np.log2(mean.shape[1]):.2f}", f"{(mean.shape[1] - 1) / 2:.1f}", f"{1 / mean.shape[1]:.1%}"
    table.add_row("", "", "a uniform head", *uniform)
    return table
