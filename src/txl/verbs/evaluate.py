"""`txl evaluate`: perplexity, or bits per character, of a text at one or many attention lengths."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.verbs.common import add_source, check_place, console, result_path, settings, write_result

if TYPE_CHECKING:
    import numpy as np

    from txl.evaluation.perplexity import Reading
    from txl.runs.trained import TrainedModel

WINDOW_STRIDE = 32  # of models without memory, unless another is asked for


@dataclass
class Evaluate:
    """The settings of the verb; what is null is as the run evaluates.

    Attributes:
        split: valid, test or train of the run's own corpus (test)
        text: a file of your own to read instead
        attention_length: keys a query may see, itself included; several to compare: [64,128,256]
        memory_length: slots of the memory; with an attention length as many as it needs
        segment_length: tokens of a segment
        clamp_length: distances beyond this count as this
        batch_size: parts of the text read side by side; changes the speed, not the number (8)
        stride: windows of the attention length without memory, of which so many targets are scored: 1 is one
            prediction a forward pass
        reset_every: forget the memory before every so many segments
        warm_up: tokens each part reads before it, unscored; null for all that a score can depend on
        tokens: how much of the text is read, from its beginning; null for all
        scores: a file for the score of every token, tab-separated
        out: where the JSON goes; null for evaluations/ of the run
        precision: auto, 32-true, 64-true, bf16-mixed or 16-mixed
        device: auto, cpu, cuda, cuda:1, …
        trust: true to run code of your own that the run names
    """

    split: str = "test"
    text: Path | None = None
    attention_length: list[int] | None = None
    memory_length: int | None = None
    segment_length: int | None = None
    clamp_length: int | None = None
    batch_size: int = 8
    stride: int | None = None
    reset_every: int | None = None
    warm_up: int | None = None
    tokens: int | None = None
    scores: Path | None = None
    out: Path | None = None
    precision: str = "auto"
    device: str = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        positive = ("segment_length", "clamp_length", "batch_size", "stride", "reset_every", "tokens")
        named = {key: getattr(self, key) for key in positive}
        named |= {"attention_length": min(self.attention_length or [1])}
        for key, value in named.items():
            if value is not None and value < 1:
                raise ValueError(f"{key}={value} must be positive")
        for key in ("memory_length", "warm_up"):
            if (value := getattr(self, key)) is not None and value < 0:
                raise ValueError(f"{key}={value} must be 0 or more")
        if self.stride is not None and self.memory_length:
            raise ValueError(f"stride is for windows without memory, not memory_length={self.memory_length}")


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("evaluate", help="perplexity or bits of a text, at one or many attention lengths")
    add_source(verb, Evaluate)
    verb.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    asked = settings(arguments.overrides, Evaluate)

    from txl.runs.trained import inference_context, load

    trained = load(arguments.source, asked.trust)
    tokens, what = tokens_of(trained, asked)
    clamp = asked.clamp_length
    if clamp is not None:
        if not hasattr(trained.model.position, "clamp_length"):
            raise ValueError(f"clamp_length={clamp}: the position encoding of {trained.source} has no clamp")
        trained.model.position.clamp_length = clamp
    readings = readings_of(trained, asked, len(tokens))
    path = result_path(trained.directory, "evaluate", arguments.overrides, asked.out)
    for place in filter(None, (path, asked.scores)):
        check_place(place)
    unit, per_token, status = trained.vocabulary.unit, [], "completed"
    result = {"schema": 1, "verb": "evaluate", "source": str(trained.source), "read": what, "unit": unit}
    with inference_context(trained.model, asked.device, asked.precision) as (device, precision):
        result |= {"status": "interrupted", "device": str(device), "precision": precision, "attention": []}
        for reading in readings:
            entry, scores = scored(trained, tokens, reading)
            if entry["tokens_scored"]:
                result["attention"].append(entry)
                per_token.append(scores)
                write_result(path, result)
            if entry["partial"]:
                status = "interrupted"
                break
    if not per_token:
        console.print("interrupted before a token was scored, and nothing is written", style="red")
        return 130
    result["status"] = status
    write_result(path, result)
    written = [path]
    if len(result["attention"]) > 1:
        from txl.report.figures.attention_length import draw_attention_lengths

        figure = trained.directory / "figures" / f"{path.stem}.png"
        written.append(draw_attention_lengths(result["attention"], unit, what, figure))
    if asked.scores:
        write_scores(asked.scores, trained, tokens, result["attention"], per_token)
        written.append(asked.scores)
    console.print(as_table(result))
    for file in written:
        console.print(os.path.relpath(file), markup=False, soft_wrap=True)
    if status == "interrupted":
        done = sum(entry["tokens_scored"] for entry in result["attention"])
        console.print(f"interrupted: {done:,} tokens were scored, and the JSON says partial", style="red")
        return 130
    return 0


def tokens_of(trained: TrainedModel, asked: Evaluate) -> tuple[np.ndarray, str]:
    """Return the ids of the text that is asked for, and what it is.

    Raises:
        ValueError: an empty text, one with unknown symbols, or no vocabulary to read it with.
    """
    text = trained.text(asked.split, asked.text)
    if text.split is None and len(text.tokens):
        unknown = trained.vocabulary.id_of(trained.vocabulary.unknown)
        if unknown is not None:
            count, rate = len(text.tokens), float((text.tokens == unknown).mean())
            console.print(f"{asked.text}: {count:,} words, {rate:.2%} of them unknown", soft_wrap=True)
    tokens = text.tokens[: None if asked.tokens is None else asked.tokens + 1]
    if len(tokens) < 2:
        raise ValueError(
            f"{text.title}: {len(tokens)} tokens; scoring needs at least 2, one to read and one to score"
        )
    return tokens, text.title


def readings_of(trained: TrainedModel, asked: Evaluate, length: int) -> list[Reading]:
    """Return how the text is read at each of the attention lengths; by documents where the run reads so.

    Raises:
        ValueError: a border the vocabulary does not hold, a context longer than the text, or lengths that
            exclude each other.
    """
    from txl.evaluation.perplexity import Reading

    own = trained.description.get("reading") or {}
    segment = asked.segment_length or own.get("segment_length") or 128
    recurrent = own.get("memory_length") if asked.memory_length is None else asked.memory_length
    border = trained.vocabulary.encode(own["border"].encode()).tolist() if "border" in own else None
    given, readings = asked.attention_length, []
    for attention in given or [own.get("attention_length")]:
        memory = recurrent or 0
        if asked.stride is not None or (given and not recurrent):
            window = attention or segment
            sizes = window, 0, None, min(asked.stride or WINDOW_STRIDE, window)
        else:
            if given and asked.memory_length is None:
                memory = attention - 1
            as_run = not given and segment == own.get("segment_length")
            stride = own.get("stride") if as_run else None
            sizes = segment, memory, attention, stride or segment
        longest, size, reach, stride = sizes
        sizes = asked.batch_size, longest, size, reach, stride
        reading = Reading(*sizes, asked.reset_every, asked.warm_up, border)
        context = max(attention if given else 0, asked.memory_length or 0)
        if context > length:  # of what was asked for: a short text may be read with the lengths of the run
            raise ValueError(
                f"a context of {context:,} tokens is longer than the text, which has {length:,}; "
                "use a smaller attention_length or memory_length, or more text"
            )
        readings.append(reading)
    return readings


def scored(trained: TrainedModel, tokens: np.ndarray, reading: Reading) -> tuple[dict[str, Any], np.ndarray]:
    """Return an entry of the JSON for one way of reading, and the score of every target, nan where none."""
    import numpy as np
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from txl.evaluation.perplexity import half_interval, score_text
    from txl.records.units import bits, perplexity

    scores, partial, warm_up = np.full(len(tokens) - 1, np.nan, np.float64), False, None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    began = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"attention length {reading.longest_attention}", total=len(scores))
        try:
            warm_up = score_text(
                trained.model, tokens, reading, scores, lambda count: bar.advance(task, count)
            )
        except KeyboardInterrupt:
            partial = True
    seconds, count = time.perf_counter() - began, int((~np.isnan(scores)).sum())
    loss, half = float(np.nanmean(scores)) if count else float("nan"), half_interval(scores)
    entry: dict[str, Any] = {
        "attention_length": reading.attention_length or reading.longest_attention,
        "segment_length": reading.segment_length,
        "memory_length": reading.memory_length,
        "clamp_length": getattr(trained.model.position, "clamp_length", None),
        "stride": reading.stride,
        "reset_every": reading.reset_every,
        "streams": "ordered" if reading.border is None else "documents",
        "batch_size": reading.batch_size,
    }
    bounds = {"_low": loss - half, "_high": loss + half} if half == half else {}  # too few scores for any
    for name, value in {"": loss, **bounds}.items():
        entry[f"loss{name}"], entry[f"perplexity{name}"] = value, perplexity(value)
        if trained.vocabulary.unit in ("byte", "char"):
            entry[f"bits_per_character{name}"] = bits(value)
    return entry | {
        "tokens_scored": count,
        "tokens_of_warm_up": warm_up,
        "partial": partial,
        "seconds": seconds,
        "milliseconds_per_token": 1e3 * seconds / count if count else None,
    }, scores


def as_table(result: dict[str, Any]):
    """Return the result, to be printed."""
    from rich import box
    from rich.table import Table

    from txl.records.units import metric_of, score_key

    key, (_, name) = score_key(result["unit"]), metric_of(result["unit"])
    digits = 2 if key == "perplexity" else 4
    table = Table(box=box.SIMPLE_HEAVY, title=result["read"], title_justify="left")
    for heading in ("attention", "memory", "segment", name, "95 %", "scored", "warm-up", "ms/token"):
        table.add_column(heading, justify="right")
    for entry in result["attention"]:
        half = (entry[f"{key}_high"] - entry[f"{key}_low"]) / 2 if f"{key}_low" in entry else None
        table.add_row(
            f"{entry['attention_length']:,}",
            f"{entry['memory_length']:,}",
            f"{entry['segment_length']:,}"
            + (f" by {entry['stride']}" if entry["stride"] < entry["segment_length"] else ""),
            f"{entry[key]:.{digits}f}" + (" (partial)" if entry["partial"] else ""),
            "" if half is None else f"± {half:.{digits}f}",
            f"{entry['tokens_scored']:,}",
            "" if entry["tokens_of_warm_up"] is None else f"{entry['tokens_of_warm_up']:,}",
            f"{entry['milliseconds_per_token']:.3g}",
        )
    return table


def write_scores(
    path: Path,
    trained: TrainedModel,
    tokens: np.ndarray,
    entries: list[dict[str, Any]],
    scores: list[np.ndarray],
) -> None:
    """Write a line for each target: its place, id and symbol, and its score in nats at each length."""
    import json

    lines = trained.vocabulary.lines()
    names = [f"score_at_{entry['attention_length']}" for entry in entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        print("place", "id", "symbol", *names, sep="\t", file=file)
        for place in range(1, len(tokens)):
            values = ("" if one[place - 1] != one[place - 1] else f"{one[place - 1]:.6f}" for one in scores)
            index = int(tokens[place])
            symbol = json.dumps(lines[index], ensure_ascii=False)[1:-1]
            print(place, index, symbol, *values, sep="\t", file=file)
