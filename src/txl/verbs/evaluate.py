"""`txl evaluate`: perplexity, or bits per character, of a text at one or many attention lengths."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from txl.evaluation.perplexity import Reading, half_interval, score_text
from txl.records.units import bits, metric_of, perplexity, score_key
from txl.report.figures.attention_length import draw_attention_lengths
from txl.runs.trained import TrainedModel, inference_context
from txl.terminal import new_table, progress_bar
from txl.verbs import runner
from txl.verbs.settings import EvaluateSettings

WINDOW_STRIDE = 32  # the default for models without memory


def run(trained: TrainedModel, settings: EvaluateSettings, path: Path) -> runner.Outcome:
    tokens, title = read_tokens(trained, settings)
    clamp = settings.clamp_length
    if clamp is not None:
        if not hasattr(trained.model.position, "clamp_length"):
            raise ValueError(f"clamp_length={clamp}: the position encoding of {trained.source} has no clamp")
        setattr(trained.model.position, "clamp_length", clamp)  # noqa: B010  of those encodings that have one
    readings = plan_readings(trained, settings, len(tokens))
    if settings.scores:
        runner.check_writable(settings.scores)
    unit = trained.known_vocabulary().unit
    entries: list[dict[str, Any]] = []
    scores: list[np.ndarray] = []
    result = {"schema": 1, "verb": "evaluate", "source": str(trained.source), "read": title, "unit": unit}
    with inference_context(trained.model, settings.device, settings.precision) as (device, precision):
        result |= {"status": "interrupted", "device": str(device), "precision": precision}
        result |= {"attention": entries}
        for reading in readings:
            entry, scores_of_reading = score_reading(trained, tokens, reading)
            interrupted = entry["partial"]
            if entry["tokens_scored"]:
                entries.append(entry)
                scores.append(scores_of_reading)
                runner.write_result(path, result)
            if interrupted:
                break
    if not entries:
        return runner.Outcome(interrupted="interrupted before any token was scored; nothing is written")
    if not interrupted:
        result["status"] = "completed"
    runner.write_result(path, result)
    files = [path]
    if len(entries) > 1:
        figure = trained.directory / "figures" / f"{path.stem}.png"
        files.append(draw_attention_lengths(entries, unit, title, figure))
    if settings.scores:
        write_scores(settings.scores, trained, tokens, entries, scores)
        files.append(settings.scores)
    scored = sum(entry["tokens_scored"] for entry in entries)
    message = f"interrupted: {scored:,} tokens were scored, and the JSON says partial"
    return runner.Outcome(as_table(result), files, message if interrupted else None)


def read_tokens(trained: TrainedModel, settings: EvaluateSettings) -> tuple[np.ndarray, str]:
    """Return the ids of the text to score, and its title.

    Raises:
        ValueError: an empty text, one with unknown symbols, or no vocabulary to read it with.
    """
    text = trained.text(settings.split, settings.text)
    if text.split is None and len(text.tokens):
        vocabulary = trained.known_vocabulary()
        unknown = vocabulary.id_of(vocabulary.unknown)
        if unknown is not None:
            count, rate = len(text.tokens), float((text.tokens == unknown).mean())
            runner.console.print(
                f"{settings.text}: {count:,} words, {rate:.2%} of them unknown", soft_wrap=True
            )
    tokens = text.tokens[: None if settings.tokens is None else settings.tokens + 1]
    if len(tokens) < 2:
        raise ValueError(
            f"{text.title}: {len(tokens)} tokens; scoring needs at least 2, one to read and one to score"
        )
    return tokens, text.title


def plan_readings(trained: TrainedModel, settings: EvaluateSettings, length: int) -> list[Reading]:
    """Return how a text of `length` tokens is read at each attention length, by documents if the run did.

    Raises:
        ValueError: a border the vocabulary does not hold, a context longer than the text, or lengths that
            exclude each other.
    """
    run = trained.description.get("reading") or {}
    segment = settings.segment_length or run.get("segment_length") or 128
    recurrent = run.get("memory_length") if settings.memory_length is None else settings.memory_length
    border = trained.known_vocabulary().encode(run["border"].encode()).tolist() if "border" in run else None
    given: list[Any] | None = settings.attention_length
    readings = []
    lengths: tuple[int, int, int | None, int]
    for attention in given or [run.get("attention_length")]:
        if settings.stride is not None or (given and not recurrent):
            window = attention or segment
            lengths = window, 0, None, min(settings.stride or WINDOW_STRIDE, window)
        else:
            memory = attention - 1 if given and settings.memory_length is None else recurrent or 0
            as_run = not given and segment == run.get("segment_length")
            lengths = segment, memory, attention, (run.get("stride") if as_run else None) or segment
        # Only requested lengths are checked: a short text may be read with the lengths of the run.
        context = max(attention if given else 0, settings.memory_length or 0)
        if context > length:
            raise ValueError(
                f"a context of {context:,} tokens is longer than the text, which has {length:,}; "
                "use a smaller attention_length or memory_length, or more text"
            )
        readings.append(
            Reading(settings.batch_size, *lengths, settings.reset_every, settings.warm_up, border)
        )
    return readings


def score_reading(
    trained: TrainedModel, tokens: np.ndarray, reading: Reading
) -> tuple[dict[str, Any], np.ndarray]:
    """Return an entry of the JSON, and the score of every target, NaN for those not scored."""
    scores, partial, warm_up = np.full(len(tokens) - 1, np.nan, np.float64), False, None
    start = time.perf_counter()
    with progress_bar(f"attention length {reading.longest_attention}", len(scores)) as update:
        try:
            warm_up = score_text(trained.model, tokens, reading, scores, lambda count: update(advance=count))
        except KeyboardInterrupt:
            partial = True
    seconds, count = time.perf_counter() - start, int((~np.isnan(scores)).sum())
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
    bounds = {"_low": loss - half, "_high": loss + half} if half == half else {}  # NaN for too few scores
    for name, value in {"": loss, **bounds}.items():
        entry[f"loss{name}"], entry[f"perplexity{name}"] = value, perplexity(value)
        if trained.known_vocabulary().unit in ("byte", "char"):
            entry[f"bits_per_character{name}"] = bits(value)
    return entry | {
        "tokens_scored": count,
        "tokens_of_warm_up": warm_up,
        "partial": partial,
        "seconds": seconds,
        "milliseconds_per_token": 1e3 * seconds / count if count else None,
    }, scores


def as_table(result: dict[str, Any]) -> Table:
    key, (_, name) = score_key(result["unit"]), metric_of(result["unit"])
    digits = 2 if key == "perplexity" else 4
    headings = "attention", "memory", "segment", name, "95 %", "scored", "warm-up", "ms/token"
    table = new_table(*headings, title=result["read"])
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
    lines = trained.known_vocabulary().lines()
    names = [f"score_at_{entry['attention_length']}" for entry in entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        print("place", "id", "symbol", *names, sep="\t", file=file)
        for place in range(1, len(tokens)):
            values = ("" if one[place - 1] != one[place - 1] else f"{one[place - 1]:.6f}" for one in scores)
            index = int(tokens[place])
            symbol = json.dumps(lines[index], ensure_ascii=False)[1:-1]
            print(place, index, symbol, *values, sep="\t", file=file)
