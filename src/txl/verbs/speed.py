"""`txl speed`: the time to evaluate a token with recurrence and without (the paper's Table 9)."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from txl.terminal import new_table, progress_bar
from txl.verbs import runner

if TYPE_CHECKING:
    from txl.evaluation.speed import SpeedCase
    from txl.model import TransformerXL

SEGMENT, BATCH = 128, 10  # the authors' for enwik8, where the source has none
DAY = 86400.0  # seconds


@dataclass
class Settings(runner.PrecisionSettings):
    """Settings of the verb, beside those of `train.py`.

    Attributes:
        attention_length: keys a prediction attends to, itself included ([800,1800,2800,3800], as in Table 9)
        segment_length: tokens the recurrent side reads at a time; null for evaluation.segment_length (the
            paper does not state its own)
        batch_size: rows the recurrent side reads side by side; null for evaluation.batch_size, 10 of a
            SOURCE (the paper does not state its own)
        segments: how many it reads in a turn; null for as many as there are between two moves of its keys
        windows: windows the vanilla side reads side by side; null for batch_size on a GPU, and 1 on a CPU,
            which one long window keeps busy
        passes: forward passes of the vanilla side in a turn: windows × passes tokens are measured (1)
        rounds: measured turns of each side, alternating, after one unmeasured turn (5)
        tokens: length of the text to which both times are extrapolated (5000000, enwik8's test text)
        out: path of the JSON, beside which the figure goes; null for evaluations/ and figures/ of the run, or
            of outputs/
    """

    attention_length: list[int] = field(default_factory=lambda: [800, 1800, 2800, 3800])
    segment_length: int | None = None
    batch_size: int | None = None
    segments: int | None = None
    windows: int | None = None
    passes: int = 1
    rounds: int = 5
    tokens: int = 5_000_000
    out: Path | None = None

    def __post_init__(self) -> None:
        lengths = "segment_length", "batch_size", "segments", "windows", "passes", "rounds", "tokens"
        runner.check_at_least(self, 1, *lengths)
        if not self.attention_length or min(self.attention_length) < 2:
            given = ",".join(map(str, self.attention_length))
            raise ValueError(f"attention_length=[{given}]: expected lengths of 2 or more, as [800,3800]")


def add_to(verbs: runner.Verbs) -> None:
    verb = verbs.add_parser(
        "speed", help="time to evaluate a token with recurrence, and with vanilla windows"
    )
    verb.add_argument(
        "overrides",
        nargs="+",
        metavar="SOURCE|key=value",
        help="a run directory, a checkpoint or a .safetensors; or words as for train.py, "
        "experiment=enwik8_24l, for random parameters of that shape; and settings, see below",
    )
    runner.add_settings_help(verb, Settings)
    verb.set_defaults(run=_speed)


def _speed(arguments: argparse.Namespace) -> int:
    from txl.runs.trained import PRECISIONS

    sources, settings, shape = split_words(arguments.overrides)
    if settings.precision not in PRECISIONS:  # before the check, which computes in another one
        raise ValueError(f"precision={settings.precision}: expected one of {', '.join(PRECISIONS)}")
    if len(sources) > 1 or not (sources or shape):
        raise ValueError("name what to measure: one SOURCE, or a shape, as experiment=enwik8_12l")
    if sources and shape:
        raise ValueError(f"{shape[0]}: {sources[0]} has its shape; give one or the other")
    model, defaults, folder = load_source(sources[0], settings) if sources else random_model(shape)
    title = sources[0] if sources else " ".join(shape)
    path = runner.result_path(folder, "speed", arguments.overrides, settings.out)
    runner.check_writable(path)
    figure = (settings.out.parent if settings.out else folder / "figures") / f"{path.stem}.png"
    result = {"schema": 1, "verb": "speed", "shape": title, "random_parameters": not sources}
    return _measure(model, result, defaults, settings, path, figure).show()


def split_words(words: list[str]) -> tuple[list[str], Settings, list[str]]:
    """Return the sources, the settings of this verb, and the words for `train.py`.

    Raises:
        ValueError: a word that is none of them.
    """
    from txl.settings.compose import CONF, groups
    from txl.settings.schema import Config

    names, sections = ({each.name for each in fields(kind)} for kind in (Settings, Config))
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
    return sources, runner.parse_settings(own, Settings), shape


def load_source(source: str, settings: Settings) -> tuple[TransformerXL, dict[str, int], Path]:
    """Return the model of a source, the lengths it is evaluated with, and the directory for its results."""
    from txl.runs.trained import load

    trained = load(Path(source).expanduser(), settings.trust)
    segment = (trained.description.get("reading") or {}).get("segment_length") or SEGMENT
    return trained.model, {"segment_length": segment, "batch_size": BATCH}, trained.directory


def random_model(shape: list[str]) -> tuple[TransformerXL, dict[str, int], Path]:
    """Return a random model of a shape, the lengths its experiment evaluates with, and a directory."""
    from txl.runs.cost import untrained

    with runner.composition_errors():
        model, config = untrained(runner.compose_unnamed(shape, "speed"))
    own = config.evaluation
    defaults = {"segment_length": own.segment_length, "batch_size": own.batch_size}
    return model, defaults, Path("outputs")


def _measure(
    model: TransformerXL,
    result: dict[str, Any],
    defaults: dict[str, int],
    settings: Settings,
    path: Path,
    figure: Path,
) -> runner.Outcome:
    """Measure all lengths, write the result after each, and draw the figure."""
    from txl.report.figures.speed import draw_speed
    from txl.training.hardware import failure_reason

    result["status"], step, message = "interrupted", "", None
    with progress_bar("") as update:
        try:
            for step in _measure_lengths(model, result, defaults, settings, path, update):
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
    defaults: dict[str, int],
    settings: Settings,
    path: Path,
    update: Callable[..., None],
) -> Iterator[str]:
    """Check all cases, then measure them; yield a description before each step."""
    from txl.evaluation.speed import check, measure, vanilla_copy
    from txl.runs.trained import inference_context
    from txl.training.hardware import device_name

    vanilla, paper = vanilla_copy(model, max(settings.attention_length)), published_slowdowns()
    precise = "64-true" if settings.precision == "64-true" else "32-true"
    with (
        inference_context(model, settings.device, precise) as (device, _),
        inference_context(vanilla, settings.device, precise),
    ):
        cases, differences = plan_cases(settings, defaults, device.type), []
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
            entry["extrapolated"] = extrapolate(entry, settings.tokens)
            entry["difference_from_plain_forward"] = difference
            result["attention"].append(entry)
            result["load_average"] = os.getloadavg()  # above the thread count other processes were busy too
            runner.write_result(path, result)


def plan_cases(settings: Settings, defaults: dict[str, int], device: str) -> list[SpeedCase]:
    """Return the case of each attention length, its other lengths set or those of the source."""
    from txl.evaluation.speed import SpeedCase

    rows = settings.batch_size or defaults["batch_size"]
    windows = settings.windows or (1 if device == "cpu" else rows)
    segment = settings.segment_length or defaults["segment_length"]
    rest = rows, settings.segments, windows, settings.passes, settings.rounds
    return [SpeedCase(length, segment, *rest) for length in dict.fromkeys(settings.attention_length)]


def describe_measurement(model: TransformerXL, cases: list[SpeedCase], settings: Settings) -> dict[str, Any]:
    import torch

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
        "measured": "the time of a token, of so many tokens as tokens_measured says; nothing else",
        "extrapolated": f"time of a token × {settings.tokens:,} tokens, which nobody has waited for",
        "not_stated_by_the_paper": "model, batch size, segment length, GPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }


def published_slowdowns() -> dict[int, float]:
    """Return the paper's ratio at each attention length; empty outside a checkout, which has Table 9."""
    from txl.sweeps.definition import ABLATIONS, read

    rows = read("table9").table["rows"] if ABLATIONS.is_dir() else {}
    matches = {name: re.fullmatch(r"length_(\d+)", name) for name in rows}
    return {int(match[1]): rows[name]["published"]["slowdown"] for name, match in matches.items() if match}


def extrapolate(entry: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return the seconds that a text of `tokens` tokens would take each side."""
    sides = {side: entry[side]["milliseconds_per_token"]["median"] for side in ("recurrent", "vanilla")}
    return {"tokens": tokens, **{f"{side}_seconds": tokens * time / 1e3 for side, time in sides.items()}}


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
        f"{settings['segment_length']}; vanilla {settings['windows']} at once. Before, in "
        f"{result['precision_of_the_check']}, both scored as plain forward passes do. The paper's ratios are "
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
    return f"{seconds / 3600:.1f} h" if seconds < DAY else f"{seconds / DAY:,.1f} days"
