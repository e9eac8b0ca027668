"""The learning curve of a run."""

from pathlib import Path
from typing import Any

from txl.records.metrics import read_metrics
from txl.records.results import read_results
from txl.records.units import shown
from txl.report.figures.style import GRAY, LIGHT_BLUE, ORANGE, finish_axes, new_figure, save
from txl.report.measures import metric_for

STYLES: dict[str, dict[str, Any]] = {
    "train": {"color": LIGHT_BLUE, "linewidth": 1.4},
    "valid": {"color": ORANGE, "linewidth": 1.8, "marker": "o", "markersize": 4.5},
}
SCALES = ((1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)"), (1.0, ""))


def draw_learning_curve(directory: Path) -> Path:
    """Draw `figures/learning_curve.png`: training and validation against the tokens read.

    Works from `metrics.jsonl` and `results.json` of a run of any status.
    """
    results = read_results(directory)
    unit, compressors = results["data"]["unit"], results.get("compressors") or {}
    metric = metric_for({unit})
    curves = {part: read_metrics(directory, "tokens", f"{part}/{metric.logged}") for part in STYLES}
    read = [line["tokens"] for lines in curves.values() for line in lines]
    scale, scale_name = next(one for one in SCALES if max([1, *read]) >= one[0])
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    values = list(compressors.values())
    for part, lines in curves.items():
        if lines:
            losses = [line[f"{part}/{metric.logged}"] for line in lines]
            axes.plot([line["tokens"] / scale for line in lines], losses, label=part, **STYLES[part])
            values += losses
    if values and metric.key == "perplexity":
        axes.set_yscale("log")
    elif values:  # cuts off the steep descent at the beginning
        low = min(values)
        axes.set_ylim(low - 0.1, min(max(values), low + 1.6) + 0.1)
    for compressor, value in compressors.items():
        if value > axes.get_ylim()[1]:  # its label would be far outside
            continue
        axes.axhline(value, color=GRAY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        label = f" {compressor}  {value:.2f}"
        axes.annotate(
            label, (1.0, value), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=GRAY
        )
    parameters, test = results["model"]["parameters"] / 1e6, results.get("test")
    score = f": {shown(test[metric.key], 3)} {metric.name} on test" if test else f" ({results['status']})"
    title = f"Transformer-XL, {parameters:.2f}M parameters, {results['data']['name']}{score}"
    finish_axes(axes, title, f"{unit}s read{scale_name}", metric.name)
    if read:
        axes.legend(frameon=False, loc="upper right")
    return save(figure, directory / "figures" / "learning_curve.png")
