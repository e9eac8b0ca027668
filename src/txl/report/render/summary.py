"""The table at the end of a run."""

from pathlib import Path

from rich.console import Group

from txl.records.results import read_results
from txl.records.units import metric_of, shown
from txl.terminal import new_table


def summary(directory: Path) -> Group:
    """Return a run's scores beside what general compressors need for the same test text, to be printed."""
    results = read_results(directory)
    unit = results["data"]["unit"]
    _, name = metric_of(unit)
    table = new_table(name, "valid", "test", left=[name])
    scores = [results[split] for split in ("valid", "test")]
    if unit in ("word", "bpe"):
        table.add_row("Transformer-XL", *(shown(score["perplexity"], 2) for score in scores))
    else:
        values = (f"[bold]{shown(score['bits_per_character'], 3)}[/bold]" for score in scores)
        table.add_row("[bold]Transformer-XL[/bold]", *values)
        for compressor, value in (results.get("compressors") or {}).items():
            table.add_row(compressor, "", f"{value:.3f}")
    read, seconds = results["training"]["tokens"], results["training"]["seconds"]
    headline = (
        f"{results['data']['name']}: {results['model']['parameters']:,} parameters, "
        f"{read:,} {unit}s read in {seconds:.0f} s of training"
    )
    return Group(headline, table)
