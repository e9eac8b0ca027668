"""Compare the kept rows that §4.2's claims are about, and write `ablations/results/claims.md`.

    python ablations/claims.py

A sweep's table compares every row with its first. A claim is often about two other rows, or about one row
read with several attention lengths. Both are made here of the same results, so that no number is copied.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from txl.report.grids import DIFFERENCES, NONE, Measured, difference_of, measured
from txl.report.measures import attention_scores, metric_for, trained_attention
from txl.report.records import Row
from txl.report.statistics import difference, sample_of
from txl.report.sweeps import read_sweeps

RESULTS = Path(__file__).parent / "results"
SWEEPS = ("table6", "encodings", "table7")
METRIC = metric_for({"byte"})  # what all laptop scales read
ENCODINGS = ("relative", "shaw", "rotary", "alibi", "t5", "sinusoidal", "learned", "none")
PAIRS = {  # the second row of a pair is what the first is compared with
    "Recurrence": [
        ("table6 no_recurrence", "table6 xl"),
        ("table6 no_recurrence_half", "table6 half"),
        ("table6 no_recurrence_shaw", "table6 shaw"),
        ("table7 no_recurrence", "table7 xl"),
        *((f"encodings {name}_no_recurrence", f"encodings {name}") for name in ENCODINGS),
    ],
    "Encoding": [
        ("table6 shaw", "table6 xl"),
        ("table6 no_recurrence_shaw", "table6 no_recurrence"),
        ("table6 no_recurrence_shaw_half", "table6 no_recurrence_half"),
        ("table6 no_recurrence_sinusoidal_half", "table6 no_recurrence_shaw_half"),
        ("table6 no_recurrence_learned_half", "table6 no_recurrence_sinusoidal_half"),
        ("table7 shaw", "table7 xl"),
        *((f"encodings {name}", "encodings relative") for name in ENCODINGS[1:]),
        *((f"encodings {name}_no_recurrence", "encodings relative_no_recurrence") for name in ENCODINGS[1:]),
    ],
    "Half loss against full": [
        ("table6 half", "table6 xl"),
        ("table6 no_recurrence_half", "table6 no_recurrence"),
        ("table6 no_recurrence_shaw_half", "table6 no_recurrence_shaw"),
        ("table6 no_recurrence_sinusoidal_half", "encodings sinusoidal_no_recurrence"),
        ("table6 no_recurrence_learned_half", "encodings learned_no_recurrence"),
    ],
    "Size": [("table6 xl_large", "table6 xl")],
}


def claims() -> str:
    """Return the comparisons as Markdown."""
    found: dict[str, dict[str, Measured]] = {}  # by "sweep row", then by measure
    rows: dict[str, list[Row]] = {}
    for name in SWEEPS:
        sweep = read_sweeps([RESULTS / name])
        rows[name] = [row for row in sweep.rows if row.completed and not row.same_run]
        for (row, key), one in measured(sweep)[1].items():
            # Table 7's published number is that of its first measure
            found.setdefault(f"{name} {row}", {})["init" if key == "valid" else key] = one
    lines = ["# Rows compared with rows", "", "Bits per byte. " + DIFFERENCES]
    lines += ["*init* is the attention length of training (in table7: the measure *valid*), *best* the best."]
    for title, pairs in PAIRS.items():
        lines += ["", f"## {title}", ""]
        lines += table(
            ["row", "less", "init", "beyond noise", "paper", "best", "beyond noise", "paper"],
            [[f"`{a}`", f"`{b}`", *_pair(found[a], found[b])] for a, b in pairs],
        )
    lines += ["", "# Attention lengths", ""]
    lines += ["Validation score by attention length, mean ± deviation over seeds. The last columns are the"]
    lines += ["first length tried beyond that of training (in bold) less that of training, by seed."]
    for name in SWEEPS:
        results = [one for row in rows[name] for one in row.results]
        lengths = sorted({length for one in results for length in attention_scores(one, METRIC)})
        lines += ["", f"## {name}", ""]
        lines += table(
            ["row", *map(str, lengths), "longer", "by run"],
            [[f"`{row.name}`", *_by_length(row, lengths)] for row in rows[name]],
        )
    return "\n".join(lines) + "\n"


def table(headings: list[str], cells: list[list[str]]) -> list[str]:
    """Return a table's lines."""
    return [f"| {' | '.join(line)} |" for line in [headings, ["---"] * len(headings), *cells]]


def _pair(one: dict[str, Measured], other: dict[str, Measured]) -> list[str]:
    texts = []
    for key in ("init", "best"):
        a, b = one[key], other[key]
        ours = replace(a, difference=difference(a.sample, b.sample))
        texts += [cell.text for cell in difference_of(ours, b.row)]
        both = a.published_number is not None and b.published_number is not None
        texts.append(f"{a.published_number - b.published_number:+.2f}" if both else NONE)
    return texts


def _by_length(row: Row, lengths: list[int]) -> list[str]:
    scores = [attention_scores(one, METRIC) for one in row.results]
    trained = trained_attention(row.results[0])
    texts = []
    for length in lengths:
        sample = sample_of([one[length] for one in scores if length in one])
        text = NONE if sample is None else f"{sample.mean:.3f} ± {sample.deviation:.3f}"
        texts.append(f"**{text}**" if length == trained else text)
    longer = min((length for length in scores[0] if length > trained), default=None)
    if longer is None:
        return [*texts, NONE, NONE]
    return [*texts, str(longer), ", ".join(f"{one[longer] - one[trained]:+.4f}" for one in scores)]


if __name__ == "__main__":
    (RESULTS / "claims.md").write_text(claims(), "utf-8", newline="\n")
