"""The table at the end of a run."""

from pathlib import Path

from rich.console import Group

from txl.records.results import read_results
from txl.records.units import shown
from txl.report.measures import metric_for
from txl.terminal import new_table


def summary(directory: Path) -> Group:
    """Return a run's scores as a table to print, with those of general compressors on the same test text."""
    results = read_results(directory)
    unit = results["data"]["unit"]
    metric = metric_for({unit})
    table = new_table(metric.name, "valid", "test", left=[metric.name])
    scores = [shown(results[split][metric.key], metric.digits) for split in ("valid", "test")]
    if metric.key == "perplexity":
        table.add_row("Transformer-XL", *scores)
    else:
        table.add_row(*(f"[bold]{cell}[/bold]" for cell in ("Transformer-XL", *scores)))
        for compressor, value in (results.get("compressors") or {}).items():
            table.add_row(compressor, "", f"{value:.3f}")
    read, seconds = results["training"]["tokens"], results["training"]["seconds"]
    headline = (
        f"{results['data']['name']}: {results['model']['parameters']:,} parameters, "
        f"{read:,} {unit}s read in {seconds:.0f} s of training"
    )
    return Group(headline, table)
