"""`txl recl`: how much context a group of models makes use of (Table 8, Figures 3 and 4, Appendix C)."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box, progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from txl.verbs.common import check_place, console, explain, result_path, settings, write_result

if TYPE_CHECKING:
    import numpy as np

    from txl.runs.group import GroupMember
    from txl.runs.trained import TokenizedText

SAVED_EVERY = 5.0  # seconds between two savings of the scores


@dataclass
class Settings:
    """Settings of the verb.

    Attributes:
        names: what the models are called, in their order; null for the ends of their paths
        split: train, valid or test, of the corpus of the first model that knows one (test)
        text: a text file to read in its place
        positions: how many tokens are scored (2000)
        start: the shortest context, in tokens (100)
        step: by which it grows (100)
        longest: the longest context scored (1000)
        r: shares of the tokens: the hardest of them count ([0.1,0.5,1.0])
        threshold: the relative gain below which a longer context is of no use (0.01)
        attention_length: keys a query of ours may see, one number or one for each model; null for what
            its run's evaluation.attention_length says, or else the whole context
        cap: the longest context a model reads, one number or one for each; null for what it was made for
        batch_size: windows read side by side (8)
        seed: of the choice of tokens (1)
        device: auto, cpu, cuda, … (auto)
        trust: let a checkpoint import code that is not of this package (false)
        out: folder of the results; null for one beside the first model of ours
    """

    names: list[str] | None = None
    split: str = "test"
    text: Path | None = None
    positions: int = 2000
    start: int = 100
    step: int = 100
    longest: int = 1000
    r: list[float] = field(default_factory=lambda: [0.1, 0.5, 1.0])
    threshold: float = 0.01
    attention_length: list[int | None] | None = None
    cap: list[int | None] | None = None
    batch_size: int = 8
    seed: int = 1
    device: str = "auto"
    trust: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be positive")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must be 0 or more")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold={self.threshold:g} must be between 0 and 1")
        if not self.r:
            raise ValueError("r needs at least one share, r=[0.1,0.5,1.0]")

    def for_each(self, name: str, models: int) -> list:
        """Return a setting that is one value for all models, or one for each, as one for each."""
        values = getattr(self, name)
        if values is None or len(values) == 1:
            return (values or [None]) * models
        if len(values) != models:
            raise ValueError(
                f"{name} has {len(values)} values for {models} models; give one, or one for each"
            )
        return values


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("recl", help="the relative effective context length of a group of models")
    verb.add_argument(
        "overrides",
        nargs="+",
        metavar="MODEL|key=value",
        help="run directories, checkpoints, .safetensors, directories of save_pretrained; and settings",
    )
    explain(verb, Settings)
    verb.set_defaults(run=_recl)


def _recl(arguments: argparse.Namespace) -> int:
    from txl.evaluation.contexts import choose_positions, context_lengths
    from txl.evaluation.recl import check_share
    from txl.report.figures.recl import draw_recl
    from txl.runs.group import member, names_of, text_of

    words = [word for word in arguments.overrides if re.match(r"[a-z_]+=", word)]
    sources = [Path(word).expanduser() for word in arguments.overrides if word not in words]
    chosen = settings(words, Settings)
    if not sources:
        raise ValueError("name at least one model: a run directory, a checkpoint, …")
    lengths = context_lengths(chosen.start, chosen.step, chosen.longest)
    for share in chosen.r:
        check_share(share, chosen.positions)
    names = chosen.names or names_of(sources)
    if len(names) != len(sources) or len(set(names)) != len(names):
        raise ValueError(f"names={','.join(names)}: expected {len(sources)} different names, one a model")
    caps, reaches = (chosen.for_each(name, len(sources)) for name in ("cap", "attention_length"))
    members = [
        member(source, name, cap, reach, chosen.trust)
        for source, name, cap, reach in zip(sources, names, caps, reaches, strict=True)
    ]
    text = text_of(members, chosen.split, chosen.text)
    positions = choose_positions(len(text.tokens), lengths[-1], chosen.step, chosen.positions, chosen.seed)
    folder = chosen.out or _folder(members, chosen)
    check_place(folder / "recl.json")
    began = time.monotonic()
    try:
        scored = [_scored(one, text, positions, lengths, chosen, folder) for one in members]
    except KeyboardInterrupt:
        console.print(
            f"interrupted; the scores so far are kept in {folder / 'scores'}, and the same command goes on "
            "from there",
            soft_wrap=True,
        )
        return 130
    result = _result(members, text, lengths, scored, chosen, time.monotonic() - began)
    write_result(folder / "recl.json", result)
    figures = draw_recl(folder / "recl.json")
    console.print(as_table(result))
    for path in (folder / "recl.json", *figures):
        console.print(path, soft_wrap=True)
    return 0


def _folder(members: list[GroupMember], chosen: Settings) -> Path:
    """Return where the results belong: the same models and scores have the same place."""
    ours = next((one.trained.directory for one in members if one.trained), Path("outputs"))
    said = [str(one.source.resolve()) for one in members]
    for name in ("split", "text", "positions", "start", "step", "longest", "attention_length", "cap", "seed"):
        said.append(f"{name}={getattr(chosen, name)}")
    return result_path(ours, "recl", said, None).with_suffix("")


def _scored(
    one: GroupMember,
    text: TokenizedText,
    positions: np.ndarray,
    lengths: list[int],
    chosen: Settings,
    folder: Path,
) -> tuple[np.ndarray, str]:
    """Return the scores `[J, P]` of a model, and in which file they are kept."""
    import numpy as np
    import torch

    from txl.evaluation.contexts import SeparateContexts, load_scores, reads_ahead, save_scores, score
    from txl.runs.trained import inference_context

    cut = [min(length, one.cap or length) for length in lengths]
    distinct = sorted(set(cut))
    key = json.dumps([one.sha256(), one.reading, text.sha256(), distinct, positions.tolist()])
    name = re.sub(r"\W+", "_", one.name)
    path = folder / "scores" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.npz"
    key = hashlib.sha256(key.encode()).hexdigest()
    scores_JP = load_scores(path, key, (len(distinct), len(positions)))
    if np.isnan(scores_JP).any():
        with inference_context(one.model, chosen.device, "32-true"), _bar(one.name) as advance:
            window = text.tokens[positions[-1] - distinct[-1] : positions[-1] + 1].astype(np.int64)
            ahead = reads_ahead(one.reader, torch.from_numpy(window[None]), distinct)
            reader = SeparateContexts(one.reader) if ahead else one.reader
            saved = time.monotonic()
            try:
                for done, total in score(
                    reader, text.tokens, positions, distinct, chosen.batch_size, scores_JP
                ):
                    advance(done, total)
                    if time.monotonic() - saved > SAVED_EVERY:
                        save_scores(path, key, scores_JP, positions, distinct)
                        saved = time.monotonic()
            except ValueError as error:
                raise ValueError(f"{one.name}: {error}") from error
            finally:
                save_scores(path, key, scores_JP, positions, distinct)
    return scores_JP[[distinct.index(length) for length in cut]], f"scores/{path.name}"


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows how many tokens of how many a model has read, in a terminal."""
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
    )
    errors = Console(stderr=True)
    with progress.Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _result(
    members: list[GroupMember],
    text: TokenizedText,
    lengths: list[int],
    scored: list[tuple[np.ndarray, str]],
    chosen: Settings,
    seconds: float,
) -> dict:
    """Return what is written, with all that the table and the figures need."""
    import numpy as np

    from txl.evaluation.recl import effective_contexts

    scores_NJP = np.stack([scores_JP for scores_JP, _ in scored])
    found = [effective_contexts(scores_NJP, lengths, share, chosen.threshold) for share in chosen.r]
    return {
        "schema": 1,
        "data": {"name": text.name, "split": text.split, "unit": text.unit, "sha256": text.sha256()},
        "start": chosen.start,
        "step": chosen.step,
        "lengths": lengths,
        "positions": chosen.positions,
        "seed": chosen.seed,
        "r": chosen.r,
        "threshold": chosen.threshold,
        "seconds": seconds,
        "models": [
            {
                "name": one.name,
                "source": str(one.source),
                "parameters": sum(parameter.numel() for parameter in one.model.parameters()),
                "cap": one.cap if one.cap and one.cap < lengths[-1] else None,
                "cap_reason": one.cap_reason if one.cap and one.cap < lengths[-1] else None,
                "reading": one.reading,
                "losses": scores_JP.mean(axis=1, dtype=np.float64).tolist(),
                "effective": [
                    {"r": share, **asdict(of_share[place]), "recl": _capped(of_share[place].length, one.cap)}
                    for share, of_share in zip(chosen.r, found, strict=True)
                ],
                "scores": file,
            }
            for place, (one, (scores_JP, file)) in enumerate(zip(members, scored, strict=True))
        ],
    }


def _capped(length: int, cap: int | None) -> int:
    """Return a length of context as the model has read it."""
    return length if cap is None else min(length, cap)


def as_table(result: dict) -> Group:
    """Return the result as Table 8 shows it, to be printed."""
    from txl.records.units import perplexity

    unit, longest = result["data"]["unit"], result["lengths"][-1]
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False, title=f"RECL in {unit}s", title_justify="left")
    table.add_column("model")
    for share in result["r"]:
        table.add_column(f"r = {share:g}", justify="right")
    table.add_column(f"perplexity at {longest:,}", justify="right")
    notes = []
    for model in result["models"]:
        cells = [f"{'≥ ' if of['beyond'] else ''}{of['recl']:,}" for of in model["effective"]]
        table.add_row(Text(model["name"]), *cells, f"{perplexity(model['losses'][-1]):,.2f}")
        if model["cap"]:
            notes.append(f"{model['name']} reads at most {model['cap']:,} {unit}s: {model['cap_reason']}.")
    if any(of["beyond"] for model in result["models"] for of in model["effective"]):
        notes.append("≥: every step up to the longest context gained enough; score longer ones, longest=…")
    split = f", {result['data']['split']}" if result["data"]["split"] else ""
    notes.append(
        f"{result['positions']:,} {unit}s of {result['data']['name']}{split}, contexts from "
        f"{result['start']:,} by {result['step']:,}, threshold {result['threshold']:g}, "
        f"{result['seconds']:.0f} s"
    )
    return Group(table, Text("\n".join(notes)))
