"""The figure of a run: how the loss fell."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from txl.records.metrics import read_metrics
from txl.records.results import read_results
from txl.records.units import metric_of, score_key, shown
from txl.report.figures.style import finish_axes, new_figure

TRAIN, VALID, RULER = "#8fb3d9", "#c44e2b", "#8a8a8a"


def draw_learning_curve(directory: Path) -> Path:
    """Draw `figures/learning_curve.png`: training and validation against the tokens read.

    Args:
        directory: of a run; `metrics.jsonl` and `results.json` are read, whatever the run's status.

    Returns:
        The path of the figure.
    """
    directory = Path(directory)
    results = read_results(directory)
    key, name = metric_of(results["data"]["unit"])
    train = read_metrics(directory, "tokens", f"train/{key}")
    valid = read_metrics(directory, "tokens", f"valid/{key}")
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    scale, of_what = _scale(max([line["tokens"] for line in train + valid], default=0))
    rulers = results.get("compressors") or {}
    for lines, part, style in (
        (train, "train", {"color": TRAIN, "linewidth": 1.4}),
        (valid, "valid", {"color": VALID, "linewidth": 1.8, "marker": "o", "markersize": 4.5}),
    ):
        if lines:
            x = [line["tokens"] / scale for line in lines]
            axes.plot(x, [line[f"{part}/{key}"] for line in lines], label=part, **style)
    shown = [line[f"{part}/{key}"] for part, lines in (("train", train), ("valid", valid)) for line in lines]
    _limits(axes, [*shown, *rulers.values()], key)
    for compressor, value in rulers.items():
        if value > axes.get_ylim()[1]:  # its label would stand far outside
            continue
        axes.axhline(value, color=RULER, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        label = f" {compressor}  {value:.2f}"
        axes.annotate(
            label, (1.0, value), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=RULER
        )
    axes.set_xlabel(f"{results['data']['unit']}s read{of_what}")
    axes.set_ylabel(name)
    axes.set_title(_title(results, name), loc="left", fontsize=10.5)
    finish_axes(axes)
    if train or valid:
        axes.legend(frameon=False, loc="upper right")
    path = directory / "figures" / "learning_curve.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def _scale(tokens: int) -> tuple[float, str]:
    """Return the divisor of the token axis, and how to say it."""
    for size, word in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if tokens >= size:
            return size, f" ({word})"
    return 1.0, ""


def _limits(axes: Axes, values: list[float], key: str) -> None:
    """Show where the curves live and not the first steep fall; perplexities on a logarithmic axis."""
    if not values:
        return
    if key == "perplexity":
        axes.set_yscale("log")
        return
    low = min(values)
    axes.set_ylim(low - 0.1, min(max(values), low + 1.6) + 0.1)


def _title(results: dict, name: str) -> str:
    """Return the headline: what learned what, and how well."""
    model = (
        f"Transformer-XL, {results['model']['parameters'] / 1e6:.2f}M parameters, {results['data']['name']}"
    )
    test = results.get("test")
    if not test:
        return f"{model} ({results['status']})"
    return f"{model}: {shown(test[score_key(results['data']['unit'])], 3)} {name} on test"
