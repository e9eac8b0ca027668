"""`txl speed`: how long evaluating a token takes with recurrence, and without it (Table 9)."""

from __future__ import annotations

import argparse
import os
import platform
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from txl.verbs.common import check_place, composing, console, explain, result_path, settings, write_result

if TYPE_CHECKING:
    from txl.evaluation.speed import SpeedCase
    from txl.model import TransformerXL

SEGMENT, BATCH = 128, 10  # where the source does not say how it is evaluated: the authors' for enwik8
DAY = 86400.0  # seconds


@dataclass
class Speed:
    """Settings of the verb, beside those of `train.py`.

    Attributes:
        attention_length: keys a prediction sees, itself included ([800,1800,2800,3800], as in Table 9)
        segment_length: tokens the recurrent side reads at a time; null for evaluation.segment_length (the
            paper does not say which it measured)
        batch_size: rows the recurrent side reads side by side; null for evaluation.batch_size, 10 of a
            SOURCE (the paper does not say)
        segments: how many it reads in a turn; null for as many as there are between two moves of its keys
        windows: windows the vanilla side reads side by side; null for batch_size on a GPU, and 1 on a CPU,
            which one long window keeps busy
        passes: forward passes of the vanilla side in a turn: windows × passes tokens are measured (1)
        rounds: turns of each side that count, alternating; one before them does not (5)
        tokens: for a text of so many the time of both sides is extrapolated (5000000, enwik8's test text)
        precision: auto, 32-true, 64-true, bf16-mixed or 16-mixed
        device: auto, cpu, cuda, cuda:1, …
        out: where the JSON goes, the figure beside it; null for evaluations/ and figures/ of the run, or of
            outputs/
        trust: true to run code of your own that the run names
    """

    attention_length: list[int] = field(default_factory=lambda: [800, 1800, 2800, 3800])
    segment_length: int | None = None
    batch_size: int | None = None
    segments: int | None = None
    windows: int | None = None
    passes: int = 1
    rounds: int = 5
    tokens: int = 5_000_000
    precision: str = "auto"
    device: str = "auto"
    out: Path | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        for name in ("segment_length", "batch_size", "segments", "windows", "passes", "rounds", "tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be positive")
        if not self.attention_length or min(self.attention_length) < 2:
            said = ",".join(map(str, self.attention_length))
            raise ValueError(f"attention_length=[{said}]: expected lengths of 2 or more, as [800,3800]")


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser(
        "speed", help="time of a token with recurrence, and of the vanilla model's window"
    )
    verb.add_argument(
        "overrides",
        nargs="+",
        metavar="SOURCE|key=value",
        help="a run directory, a checkpoint or a .safetensors; or words as for train.py, "
        "experiment=enwik8_24l, for random parameters of that shape; and settings, see below",
    )
    explain(verb, Speed)
    verb.set_defaults(run=_speed)


def _speed(arguments: argparse.Namespace) -> int:
    from txl.runs.trained import PRECISIONS

    sources, chosen, shape = told_apart(arguments.overrides)
    if chosen.precision not in PRECISIONS:  # said before the check, which takes its time in another one
        raise ValueError(f"precision={chosen.precision}: expected one of {', '.join(PRECISIONS)}")
    if len(sources) > 1 or not (sources or shape):
        raise ValueError("name what to measure: one SOURCE, or a shape, as experiment=enwik8_12l")
    if sources and shape:
        raise ValueError(f"{shape[0]}: {sources[0]} has its shape; give one or the other")
    model, own = loaded(sources[0], chosen) if sources else made(shape)
    title = sources[0] if sources else " ".join(shape)
    folder = own.pop("directory")
    path = result_path(folder, "speed", arguments.overrides, chosen.out)
    check_place(path)
    figure = (chosen.out.parent if chosen.out else folder / "figures") / f"{path.stem}.png"
    result = {"schema": 1, "verb": "speed", "shape": title, "random_parameters": not sources}
    for file in _measured(model, result, own, chosen, path, figure):
        console.print(os.path.relpath(file), markup=False, soft_wrap=True)
    return 0 if result["status"] == "completed" else 130


def told_apart(words: list[str]) -> tuple[list[str], Speed, list[str]]:
    """Return the sources, the settings of this verb, and the words that are for `train.py`.

    Raises:
        ValueError: a word that is none of them.
    """
    from txl.settings.compose import CONF, groups
    from txl.settings.schema import Config

    names, sections = ({each.name for each in fields(kind)} for kind in (Speed, Config))
    sections.update(groups(CONF) if CONF.is_dir() else ())
    sources, mine, shape = [], [], []
    for word in words:
        key, equals, _ = word.partition("=")
        section = re.split(r"[.@]", key.lstrip("+~"))[0]
        if not equals and not word.startswith("~"):
            sources.append(word)
        elif key in names or section not in sections:
            mine.append(word)
        else:
            shape.append(word)
    return sources, settings(mine, Speed), shape


def loaded(source: str, chosen: Speed) -> tuple[TransformerXL, dict[str, Any]]:
    """Return the model of a source, and how it is evaluated and where results about it belong."""
    from txl.runs.trained import load

    trained = load(Path(source).expanduser(), chosen.trust)
    segment = (trained.description.get("reading") or {}).get("segment_length") or SEGMENT
    return trained.model, {"segment_length": segment, "batch_size": BATCH, "directory": trained.directory}


def made(shape: list[str]) -> tuple[TransformerXL, dict[str, Any]]:
    """Return a random model of a shape, and how its experiment evaluates and where results belong."""
    from txl.runs.untrained import untrained
    from txl.settings.compose import composed

    with composing():
        model, config = untrained(composed([*shape, "name=speed"]))  # it is no run and has no name
    own = config.evaluation
    lengths = {"segment_length": own.segment_length, "batch_size": own.batch_size}
    return model, {**lengths, "directory": Path("outputs")}


def _measured(
    model: TransformerXL, result: dict[str, Any], own: dict[str, int], chosen: Speed, path: Path, figure: Path
) -> list[Path]:
    """Measure all lengths, print the table, and return the files; `result["status"]` says if all are done.

    Raises:
        ValueError: too little memory, or a side that does not score right.
    """
    from txl.report.figures.speed import draw_speed
    from txl.training.hardware import failure_reason

    result["status"] = "interrupted"
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task("")
        try:
            _lengths(model, result, own, chosen, path, bar)
            result["status"] = "completed"
        except KeyboardInterrupt:
            bar.console.print(f"interrupted while {bar.tasks[0].description}", style="red")
        except (RuntimeError, MemoryError) as error:
            if not failure_reason(error).startswith("out of memory"):
                raise
            raise ValueError(
                f"while {bar.tasks[0].description}: {failure_reason(error).splitlines()[0]}; use a smaller "
                "batch_size or windows"
            ) from error
    if not result.get("attention"):
        console.print("no attention length was done, and nothing is written", style="red")
        return []
    write_result(path, result)
    console.print(as_table(result))
    return [path, draw_speed(result["attention"], f"{result['shape']}, {result['device']}", figure)]


def _lengths(
    model: TransformerXL,
    result: dict[str, Any],
    own: dict[str, int],
    chosen: Speed,
    path: Path,
    bar: Progress,
) -> None:
    """Check what will be measured, then measure length after length; after each the result is written."""
    from txl.evaluation.speed import check, measure, vanilla_copy
    from txl.runs.trained import inference_context
    from txl.training.hardware import device_name

    vanilla, task, paper = vanilla_copy(model, max(chosen.attention_length)), bar.tasks[0].id, published()
    precise = "64-true" if chosen.precision == "64-true" else "32-true"
    with (
        inference_context(model, chosen.device, precise) as (device, _),
        inference_context(vanilla, chosen.device, precise),
    ):
        works, differences = works_of(chosen, own, device.type), []
        bar.update(task, total=sum(1 + 2 * work.all_rounds for work in works))
        for work in works:
            bar.update(task, description=f"checking attention length {work.attention_length:,}")
            differences.append(check(model, vanilla, work))
            bar.advance(task)
    result |= about(model, works, chosen)
    with (
        inference_context(model, chosen.device, chosen.precision) as (_, precision),
        inference_context(vanilla, chosen.device, chosen.precision),
    ):
        result |= {"device": device_name(device), "precision": precision, "precision_of_the_check": precise}
        result["attention"] = []
        for work, difference in zip(works, differences, strict=True):
            bar.update(task, description=f"measuring attention length {work.attention_length:,}")
            entry = measure(model, vanilla, work, lambda: bar.advance(task))
            entry["published_slowdown"] = paper.get(work.attention_length)
            entry["extrapolated"] = extrapolated(entry, chosen.tokens)
            entry["difference_from_plain_forward"] = difference
            result["attention"].append(entry)
            result["load_average"] = os.getloadavg()  # above the threads others were at work, too
            write_result(path, result)


def works_of(chosen: Speed, own: dict[str, int], device: str) -> list[SpeedCase]:
    """Return what is measured at each attention length, what is not set taken from the source."""
    from txl.evaluation.speed import SpeedCase

    rows = chosen.batch_size or own["batch_size"]
    windows = chosen.windows or (1 if device == "cpu" else rows)
    segment = chosen.segment_length or own["segment_length"]
    more = rows, chosen.segments, windows, chosen.passes, chosen.rounds
    return [SpeedCase(length, segment, *more) for length in dict.fromkeys(chosen.attention_length)]


def about(model: TransformerXL, works: list[SpeedCase], chosen: Speed) -> dict[str, Any]:
    """Return what the numbers are of, for the JSON."""
    import torch

    layer = model.layers[0]
    settings = {name: value for name, value in asdict(works[0]).items() if name != "attention_length"}
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
            **settings,
            "segments": {str(work.attention_length): work.segments_per_round for work in works},
        },
        "vanilla": "the same shape with learned positions before each layer (Al-Rfou et al. 2018), random; "
        "one prediction for each window, which is read anew; no memory, nothing kept",
        "text": "random tokens, the same for both sides",
        "measured": "the time of a token, of so many tokens as tokens_measured says; nothing else",
        "extrapolated": f"time of a token × {chosen.tokens:,} tokens, which nobody has waited for",
        "not_stated_by_the_paper": "model, batch size, segment length, GPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }


def published() -> dict[int, float]:
    """Return the paper's ratio at each attention length; none outside of a checkout, which has Table 9."""
    from txl.sweeps.definition import ABLATIONS, read

    rows = read("table9").table["rows"] if ABLATIONS.is_dir() else {}
    lengths = {name: re.fullmatch(r"length_(\d+)", name) for name in rows}
    return {int(found[1]): rows[name]["published"]["slowdown"] for name, found in lengths.items() if found}


def extrapolated(entry: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return the seconds that a text of so many tokens would take each side."""
    sides = {side: entry[side]["milliseconds_per_token"]["median"] for side in ("recurrent", "vanilla")}
    return {"tokens": tokens, **{f"{side}_seconds": tokens * time / 1e3 for side, time in sides.items()}}


def as_table(result: dict[str, Any]) -> Group:
    """Return the result, to be printed, with what was measured and what was not."""
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False, title=result["shape"], title_justify="left")
    for heading in ("attention length", "recurrent, ms/token", "vanilla, ms/token", "slower by", "paper"):
        table.add_column(heading, justify="right")
    notes = []
    for entry in result["attention"]:
        times = (entry[side]["milliseconds_per_token"] for side in ("recurrent", "vanilla"))
        paper, whole = entry["published_slowdown"], entry["extrapolated"]
        length = f"{entry['attention_length']:,}"
        slower = ranged(entry["slowdown"], ",.0f")
        table.add_row(
            length, *(ranged(time, ",.4g") for time in times), slower, f"{paper:,}" if paper else ""
        )
        notes.append(
            f"  {length}: measured on {entry['recurrent']['tokens_measured']:,} tokens recurrent, "
            f"{entry['vanilla']['tokens_measured']:,} vanilla; extrapolated to {whole['tokens']:,}: "
            f"{lasting(whole['recurrent_seconds'])} and {lasting(whole['vanilla_seconds'])}"
        )
    said = result["settings"]
    head = (
        f"Medians (least to most) of {said['rounds']} turns of each side, alternating; {result['device']}, "
        f"{result['precision']}; batch {said['batch_size']}, segment {said['segment_length']}; vanilla "
        f"{said['windows']} at once. Before, in {result['precision_of_the_check']}, both scored as plain "
        "forward passes do. The paper's ratios are of one GPU; it does not state model, batch or segment."
    )
    return Group(table, Text("\n".join([head, *notes])))


def ranged(values: dict[str, Any], digits: str) -> str:
    """Return a median and the extremes."""
    return f"{values['median']:{digits}} ({values['least']:{digits}}–{values['most']:{digits}})"


def lasting(seconds: float) -> str:
    """Return a duration for people, seconds to days."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < DAY else f"{seconds / DAY:,.1f} days"
