"""The settings that numbers were measured with, as text for readers."""

import json
from collections.abc import Callable
from typing import Any

from txl.records.files import flatten
from txl.report.measures import Results, at, trained_attention

# Settings in which the runs of a row may differ: the seed, loggers, and paths of a machine.
NO_SETTINGS = ("seed", "name", "logger", "data.path", "data.cache")


def settings_of(rows: list[list[Results]]) -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """Return the settings that all rows share, as (name, value), and the others by name, a value per row.

    Args:
        rows: the results of the runs of each.
    """
    shared, differing = [], {}
    for name, read in SETTINGS.items():
        values = [" / ".join(dict.fromkeys(filter(None, map(read, results)))) for results in rows]
        if len(set(values)) > 1:
            differing[name] = [value or "–" for value in values]
        elif values and values[0]:
            shared.append((name, values[0]))
    return shared, differing


def differences_within(results: list[Results]) -> list[str]:
    """Return the dotted names of the settings in which the seeds of a row differ, with their values."""
    settings = [comparable(one) for one in results]
    found = []
    for name in sorted({name for one in settings for name in one}):
        values = list(dict.fromkeys(json.dumps(one.get(name)) for one in settings))
        if len(values) > 1:
            found.append(f"{name} ({' / '.join(values)})")
    return found


def comparable(results: Results) -> dict[str, Any]:
    """Return the configuration of a run by dotted names, without `NO_SETTINGS`."""
    flat = flatten(at(results, "config") or {})
    return {name: value for name, value in flat.items() if not name.startswith(NO_SETTINGS)}


def _value(*keys: str, show: Callable[[Any], str] = str) -> Callable[[Results], str]:
    return lambda results: "" if (value := at(results, *keys)) is None else show(value)


def _counts(counts: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count is not None)


def _class_name(path: str) -> str:
    return path.rpartition(".")[2]


def _sizes(model: dict[str, Any]) -> str:
    return _counts({name: model.get(name) for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")})


def _lengths(settings: dict[str, Any]) -> str:
    lengths = [settings.get(f"{part}_length") for part in ("segment", "memory", "attention")]
    return "" if None in lengths else " / ".join(map(str, lengths))


def _training_lengths(results: Results) -> str:
    training = at(results, "config", "training") or {}
    return _lengths(training | {"attention_length": trained_attention(results)})


def _optimizer(optimizer: dict[str, Any]) -> str:
    return f"{_class_name(optimizer['_target_'])}, lr {optimizer['lr']:g}" if "lr" in optimizer else ""


SETTINGS: dict[str, Callable[[Results], str]] = {  # text, empty if unknown, by name
    "text": _value("data", show="{name} ({unit}, vocabulary of {vocabulary:,})".format_map),
    "text's sha256": _value("data", "sha256", show=lambda digest: digest[:12]),
    "tokens of each split": _value("data", "tokens", show=_counts),
    "tokens scored": lambda run: _counts({key: at(run, key, "tokens_scored") for key in ("valid", "test")}),
    "parameters": _value("model", "parameters", show="{:,}".format),
    "without embeddings": _value("model", "parameters_non_embedding", show="{:,}".format),
    "sizes": _value("config", "model", show=_sizes),
    "encoding": _value("config", "position", "_target_", show=_class_name),
    "steps": _value("training", "steps", show="{:,}".format),
    "tokens read": _value("training", "tokens", show="{:,}".format),
    "training batch": _value("config", "training", "batch_size", show="{:,}".format),
    "training segment / memory / attention": _training_lengths,
    "training loss": _value("config", "training", "loss"),
    "optimizer": _value("config", "optimizer", show=_optimizer),
    "evaluation batch": _value("config", "evaluation", "batch_size", show="{:,}".format),
    "evaluation segment / memory / attention": lambda run: _lengths(
        run.get("valid") or run.get("test") or {}
    ),
    "evaluation loss": _value("config", "evaluation", "loss"),
    "attention lengths tried": _value(
        "attention", show=lambda tried: ", ".join(f"{one['attention_length']}" for one in tried)
    ),
    "precision": _value("training", "precision"),
    "device": _value("training", "device"),
    "processes": _value("training", "world_size"),
    "versions": _value("versions", show=lambda versions: ", ".join(map(" ".join, versions.items()))),
    "commit": _value("git", show=lambda git: git["commit"][:12] + (" and changes" if git["changed"] else "")),
}
