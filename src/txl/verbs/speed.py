"""`txl speed`: the time to evaluate a token with recurrence and without (the paper's Table 9)."""

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from rich.text import Text

from txl.evaluation.speed import SpeedCase, check, measure, vanilla_copy
from txl.model import TransformerXL
from txl.report.figures.speed import draw_speed
from txl.runs.cost import untrained
from txl.runs.trained import PRECISIONS, inference_context, load
from txl.settings.compose import CONF, groups
from txl.settings.schema import Config
from txl.sweeps.definition import ABLATIONS, read
from txl.terminal import new_table, progress_bar
from txl.training.hardware import device_name, failure_reason
from txl.verbs import runner
from txl.verbs.settings import SpeedSettings, parse_settings

SEGMENT, BATCH = 128, 10  # the authors' for enwik8, where the source has none


def run(arguments: argparse.Namespace) -> int:
    sources, settings, shape = split_words(arguments.overrides)
    if settings.precision not in PRECISIONS:  # before the check, which computes in another one
        raise ValueError(f"precision={settings.precision}: expected one of {', '.join(PRECISIONS)}")
    if len(sources) > 1 or not (sources or shape):
        raise ValueError("name what to measure: one SOURCE, or a shape, for example experiment=enwik8_12l")
    if sources and shape:
        raise ValueError(f"{shape[0]}: {sources[0]} has its shape; give one or the other")
    if sources:
        trained = load(Path(sources[0]).expanduser(), settings.trust)
        segment = (trained.description.get("reading") or {}).get("segment_length") or SEGMENT
        model, folder, batch = trained.model, trained.directory, BATCH
    else:
        with runner.composed_settings(shape, "speed") as composed:
            model, config = untrained(composed)
        own = config.evaluation
        segment, batch, folder = own.segment_length, own.batch_size, Path("outputs")
    settings.segment_length = settings.segment_length or segment
    settings.batch_size = settings.batch_size or batch
    title = sources[0] if sources else " ".join(shape)
    path = runner.result_path(folder, "speed", arguments.overrides, settings.out)
    figure = (settings.out.parent if settings.out else folder / "figures") / f"{path.stem}.png"
    result = {"schema": 1, "verb": "speed", "shape": title, "random_parameters": not sources}
    return _measure(model, result, settings, path, figure).show()


def split_words(words: list[str]) -> tuple[list[str], SpeedSettings, list[str]]:
    """Return the sources, the settings of this verb, and the words for `train.py`.

    Raises:
        ValueError: a word that is none of them.
    """
    names, sections = ({each.name for each in fields(kind)} for kind in (SpeedSettings, Config))
    sections.update(groups(CONF) if CONF.is_dir() else ())
    sources, own, shape = [], [], []
    for word in words:
        key, equals, _ = word.partition("=")
        section = re.split(r"[.@]", key.lstrip("+~"))[0]
        if not equals and not word.startswith("~"):
            sources.append(word)
        elif key in names or section not in sections:
            own.append(word)
        else:
            shape.append(word)
    return sources, parse_settings(own, SpeedSettings), shape


def _measure(
    model: TransformerXL, result: dict[str, Any], settings: SpeedSettings, path: Path, figure: Path
) -> runner.Outcome:
    """Measure all lengths, write the result after each, and draw the figure."""
    result["status"], step, message = "interrupted", "", None
    with progress_bar("") as update:
        try:
            for step in _measure_lengths(model, result, settings, path, update):
                update(description=step)
            result["status"] = "completed"
        except KeyboardInterrupt:
            message = f"interrupted while {step}"
        except (RuntimeError, MemoryError) as error:
            if not failure_reason(error).startswith("out of memory"):
                raise
            raise ValueError(
                f"while {step}: {failure_reason(error).splitlines()[0]}; use a smaller batch_size or windows"
            ) from error
    if not result.get("attention"):
        return runner.Outcome(
            interrupted=f"{message}; no attention length is complete, and nothing is written"
        )
    runner.write_result(path, result)
    title = f"{result['shape']}, {result['device']}"
    return runner.Outcome(as_table(result), [path, draw_speed(result["attention"], title, figure)], message)


def _measure_lengths(
    model: TransformerXL,
    result: dict[str, Any],
    settings: SpeedSettings,
    path: Path,
    update: Callable[..., None],
) -> Iterator[str]:
    """Check all cases, then measure them; yield a description before each step."""
    vanilla, paper = vanilla_copy(model, max(settings.attention_length)), published_slowdowns()
    precise = "64-true" if settings.precision == "64-true" else "32-true"
    with (
        inference_context(model, settings.device, precise) as (device, _),
        inference_context(vanilla, settings.device, precise),
    ):
        settings.windows = settings.windows or (1 if device.type == "cpu" else settings.batch_size)
        own: dict[str, Any] = {each.name: getattr(settings, each.name) for each in fields(SpeedCase)}
        lengths = dict.fromkeys(settings.attention_length)
        cases = [SpeedCase(**own | {"attention_length": length}) for length in lengths]
        differences = []
        update(total=sum(1 + 2 * case.all_rounds for case in cases))
        for case in cases:
            yield f"checking attention length {case.attention_length:,}"
            differences.append(check(model, vanilla, case))
            update(advance=1)
    result |= describe_measurement(model, cases, settings)
    with (
        inference_context(model, settings.device, settings.precision) as (_, precision),
        inference_context(vanilla, settings.device, settings.precision),
    ):
        result |= {"device": device_name(device), "precision": precision, "precision_of_the_check": precise}
        result["attention"] = []
        for case, difference in zip(cases, differences, strict=True):
            yield f"measuring attention length {case.attention_length:,}"
            entry = measure(model, vanilla, case, lambda: update(advance=1))
            entry["published_slowdown"] = paper.get(case.attention_length)
            entry["extrapolated"] = {"tokens": settings.tokens}
            for side in ("recurrent", "vanilla"):
                seconds = settings.tokens * entry[side]["milliseconds_per_token"]["median"] / 1e3
                entry["extrapolated"][f"{side}_seconds"] = seconds
            entry["difference_from_plain_forward"] = difference
            result["attention"].append(entry)
            result["load_average"] = os.getloadavg()  # above the thread count other processes were busy too
            runner.write_result(path, result)


def describe_measurement(
    model: TransformerXL, cases: list[SpeedCase], settings: SpeedSettings
) -> dict[str, Any]:
    layer = model.layers[0]
    common = {name: value for name, value in asdict(cases[0]).items() if name != "attention_length"}
    return {
        "model": {
            "n_layer": model.n_layer,
            "d_model": model.d_model,
            "n_head": layer.attention.n_head,
            "d_head": layer.attention.d_head,
            "d_inner": layer.feed_forward[0].out_features,
            "vocabulary": len(model.embedding.bias),
            "position": type(model.position).__name__,
            "clamp_length": getattr(model.position, "clamp_length", None),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "settings": {
            **common,
            "segments": {str(case.attention_length): case.segments_per_round for case in cases},
        },
        "vanilla": "the same shape with learned positions before each layer (Al-Rfou et al. 2018), random; "
        "one prediction for each window, which is read anew; no memory, nothing kept",
        "text": "random tokens, the same for both sides",
        "measured": "the time per token, over tokens_measured tokens; nothing else",
        "extrapolated": f"time of a token × {settings.tokens:,} tokens, not measured",
        "not_stated_by_the_paper": "model, batch size, segment length, GPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }


def published_slowdowns() -> dict[int, float]:
    """Return the paper's ratio at each attention length; empty outside a checkout, which has Table 9."""
    rows = read("table9").table["rows"] if ABLATIONS.is_dir() else {}
    matches = {name: re.fullmatch(r"length_(\d+)", name) for name in rows}
    return {int(match[1]): rows[name]["published"]["slowdown"] for name, match in matches.items() if match}


def as_table(result: dict[str, Any]) -> Group:
    """Return the times, with notes on what was measured and what is extrapolated."""
    headings = "attention length", "recurrent, ms/token", "vanilla, ms/token", "slower by", "paper"
    table = new_table(*headings, title=result["shape"])
    notes = []
    for entry in result["attention"]:
        times = (entry[side]["milliseconds_per_token"] for side in ("recurrent", "vanilla"))
        paper, whole = entry["published_slowdown"], entry["extrapolated"]
        length = f"{entry['attention_length']:,}"
        slower = median_and_range(entry["slowdown"], ",.0f")
        table.add_row(
            length, *(median_and_range(time, ",.4g") for time in times), slower, f"{paper:,}" if paper else ""
        )
        notes.append(
            f"  {length}: measured on {entry['recurrent']['tokens_measured']:,} tokens recurrent, "
            f"{entry['vanilla']['tokens_measured']:,} vanilla; extrapolated to {whole['tokens']:,}: "
            f"{duration(whole['recurrent_seconds'])} and {duration(whole['vanilla_seconds'])}"
        )
    settings = result["settings"]
    head = (
        f"Medians (least to most) of {settings['rounds']} turns of each side, alternating; "
        f"{result['device']}, {result['precision']}; batch {settings['batch_size']}, segment "
        f"{settings['segment_length']}; vanilla {settings['windows']} at once. Both were first "
        f"checked against plain forward passes in {result['precision_of_the_check']}. The paper's ratios are "
        "of one GPU; it does not state model, batch or segment."
    )
    return Group(table, Text("\n".join([head, *notes])))


def median_and_range(values: dict[str, Any], digits: str) -> str:
    return f"{values['median']:{digits}} ({values['least']:{digits}}–{values['most']:{digits}})"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:,.1f} days"
