"""The learning curve of a run."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from txl.records.metrics import read_metrics
from txl.records.results import read_results
from txl.records.units import metric_of, score_key, shown
from txl.report.figures.style import GRAY, LIGHT_BLUE, ORANGE, finish_axes, new_figure, save


def draw_learning_curve(directory: Path) -> Path:
    """Draw `figures/learning_curve.png`: training and validation against the tokens read.

    Works from `metrics.jsonl` and `results.json` of a run of any status.
    """
    directory = Path(directory)
    results = read_results(directory)
    key, name = metric_of(results["data"]["unit"])
    train = read_metrics(directory, "tokens", f"train/{key}")
    valid = read_metrics(directory, "tokens", f"valid/{key}")
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    scale, scale_name = _scale(max([line["tokens"] for line in train + valid], default=0))
    compressors = results.get("compressors") or {}
    curves: list[tuple[list[dict], str, dict[str, Any]]] = [
        (train, "train", {"color": LIGHT_BLUE, "linewidth": 1.4}),
        (valid, "valid", {"color": ORANGE, "linewidth": 1.8, "marker": "o", "markersize": 4.5}),
    ]
    for lines, part, style in curves:
        if lines:
            x = [line["tokens"] / scale for line in lines]
            axes.plot(x, [line[f"{part}/{key}"] for line in lines], label=part, **style)
    losses = [line[f"train/{key}"] for line in train] + [line[f"valid/{key}"] for line in valid]
    _limits(axes, [*losses, *compressors.values()], key)
    for compressor, value in compressors.items():
        if value > axes.get_ylim()[1]:  # its label would be far outside
            continue
        axes.axhline(value, color=GRAY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        label = f" {compressor}  {value:.2f}"
        axes.annotate(
            label, (1.0, value), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=GRAY
        )
    finish_axes(axes, _title(results, name), f"{results['data']['unit']}s read{scale_name}", name)
    if train or valid:
        axes.legend(frameon=False, loc="upper right")
    return save(figure, directory / "figures" / "learning_curve.png")


def _scale(tokens: int) -> tuple[float, str]:
    for size, word in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if tokens >= size:
            return size, f" ({word})"
    return 1.0, ""


def _limits(axes: Axes, values: list[float], key: str) -> None:
    """Cut off the initial steep descent; put perplexities on a logarithmic axis."""
    if not values:
        return
    if key == "perplexity":
        axes.set_yscale("log")
        return
    low = min(values)
    axes.set_ylim(low - 0.1, min(max(values), low + 1.6) + 0.1)


def _title(results: dict, name: str) -> str:
    model = (
        f"Transformer-XL, {results['model']['parameters'] / 1e6:.2f}M parameters, {results['data']['name']}"
    )
    test = results.get("test")
    if not test:
        return f"{model} ({results['status']})"
    return f"{model}: {shown(test[score_key(results['data']['unit'])], 3)} {name} on test"
