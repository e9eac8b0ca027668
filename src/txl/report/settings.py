"""The settings that numbers were measured under, as people read them."""

import json
from collections.abc import Callable
from typing import Any

from txl.records.files import flatten
from txl.report.measures import at, trained_attention

Results = dict[str, Any]
LENGTHS = ("segment_length", "memory_length", "attention_length")
# What runs of one row may differ in: the seed, who is told about them, and where things lie on a machine.
NO_SETTINGS = ("seed", "name", "logger", "data.path", "data.cache")


def settings_table(
    rows: list[tuple[str, list[Results]]],
) -> tuple[list[tuple[str, str]], list[str], list[list[str]]]:
    """Sort the settings of rows into those they share and those they do not.

    Returns:
        The settings of all, as (name, value); the names of the others; and for each row their values.
    """
    same, headings, columns = [], [], []
    for name, read in SETTINGS.items():
        values = [_distinct(read(one) for one in results) for _, results in rows]
        if len(set(values)) > 1:
            headings.append(name)
            columns.append([value or "–" for value in values])
        elif values and values[0]:
            same.append((name, values[0]))
    return same, headings, [list(line) for line in zip(*columns, strict=True)]


def differing(results: list[Results]) -> list[str]:
    """Return the dotted names of the settings in which runs differ, beside their seed, with the values."""
    settings = [comparable(one) for one in results]
    found = []
    for name in sorted({name for one in settings for name in one}):
        values = list(dict.fromkeys(json.dumps(one.get(name)) for one in settings))
        if len(values) > 1:
            found.append(f"{name} ({' / '.join(values)})")
    return found


def comparable(results: Results) -> dict[str, Any]:
    """Return what a run was asked for, by dotted names, but for its seed and the places of a machine."""
    flat = flatten(at(results, "config") or {})
    return {name: value for name, value in flat.items() if not name.startswith(NO_SETTINGS)}


def _distinct(values: Any) -> str:
    return " / ".join(dict.fromkeys(value for value in values if value))


def _whole(*keys: str) -> Callable[[Results], str | None]:
    return lambda results: None if (value := at(results, *keys)) is None else f"{value:,}"


def _plain(*keys: str) -> Callable[[Results], str | None]:
    return lambda results: None if (value := at(results, *keys)) is None else str(value)


def _last(*keys: str) -> Callable[[Results], str | None]:
    return lambda results: (str(at(results, *keys) or "").rpartition(".")[2]) or None


def _text(results: Results) -> str | None:
    data = results.get("data")
    if not data:
        return None
    return f"{data.get('name')} ({data.get('unit')}, vocabulary of {data.get('vocabulary'):,})"


def _tokens(results: Results) -> str | None:
    tokens = at(results, "data", "tokens") or {}
    return ", ".join(f"{split} {count:,}" for split, count in tokens.items()) or None


def _scored(results: Results) -> str | None:
    found = [
        f"{split} {results[split]['tokens_scored']:,}"
        for split in ("valid", "test")
        if at(results, split, "tokens_scored") is not None
    ]
    return ", ".join(found) or None


def _sizes(results: Results) -> str | None:
    model = at(results, "config", "model") or {}
    sizes = [
        f"{name} {model[name]:,}"
        for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")
        if model.get(name)
    ]
    return ", ".join(sizes) or None


def _training_lengths(results: Results) -> str | None:
    training = at(results, "config", "training") or {}
    lengths = [training.get("segment_length"), training.get("memory_length"), trained_attention(results)]
    return None if None in lengths else " / ".join(map(str, lengths))


def _evaluation_lengths(results: Results) -> str | None:
    score = results.get("valid") or results.get("test") or {}
    lengths = [score.get(name) for name in LENGTHS]
    return None if None in lengths else " / ".join(map(str, lengths))


def _tried(results: Results) -> str | None:
    return ", ".join(str(entry["attention_length"]) for entry in results.get("attention") or []) or None


def _optimizer(results: Results) -> str | None:
    optimizer = at(results, "config", "optimizer") or {}
    kind = str(optimizer.get("_target_", "")).rpartition(".")[2]
    return f"{kind}, lr {optimizer['lr']:g}" if "lr" in optimizer else None


def _versions(results: Results) -> str | None:
    return ", ".join(f"{name} {version}" for name, version in (results.get("versions") or {}).items()) or None


def _commit(results: Results) -> str | None:
    git = results.get("git") or {}
    return (
        f"{git['commit'][:12]}{' and changes' if git.get('changed') else ''}" if git.get("commit") else None
    )


def _hash(results: Results) -> str | None:
    return (at(results, "data", "sha256") or "")[:12] or None


SETTINGS: dict[str, Callable[[Results], str | None]] = {
    "text": _text,
    "text's sha256": _hash,
    "tokens of each split": _tokens,
    "tokens scored": _scored,
    "parameters": _whole("model", "parameters"),
    "without embeddings": _whole("model", "parameters_non_embedding"),
    "sizes": _sizes,
    "encoding": _last("config", "position", "_target_"),
    "steps": _whole("training", "steps"),
    "tokens read": _whole("training", "tokens"),
    "training batch": _whole("config", "training", "batch_size"),
    "training segment / memory / attention": _training_lengths,
    "training loss": _plain("config", "training", "loss"),
    "optimizer": _optimizer,
    "evaluation batch": _whole("config", "evaluation", "batch_size"),
    "evaluation segment / memory / attention": _evaluation_lengths,
    "evaluation loss": _plain("config", "evaluation", "loss"),
    "attention lengths tried": _tried,
    "precision": _plain("training", "precision"),
    "device": _plain("training", "device"),
    "processes": _plain("training", "world_size"),
    "versions": _versions,
    "commit": _commit,
}
