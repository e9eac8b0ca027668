"""`txl recl`: the context that models of a group make use of (Table 8, Figures 3 and 4, Appendix C)."""

import argparse
import hashlib
import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Group
from rich.text import Text

from txl.evaluation import contexts
from txl.evaluation.recl import check_share, effective_contexts
from txl.records.units import perplexity
from txl.report.figures.recl import draw_recl
from txl.runs.group import GroupMember, member, read_text, short_names
from txl.runs.trained import TokenizedText, inference_context
from txl.terminal import new_table, progress_bar
from txl.verbs import runner
from txl.verbs.settings import ReclSettings, parse_settings

SAVE_EVERY = 5.0  # seconds


def run(arguments: argparse.Namespace) -> int:
    words = [word for word in arguments.overrides if re.match(r"[a-z_]+=", word)]
    sources = [Path(word).expanduser() for word in arguments.overrides if word not in words]
    settings = parse_settings(words, ReclSettings)
    if not sources:
        raise ValueError("name at least one model: a run directory, a checkpoint, …")
    lengths = contexts.context_lengths(settings.start, settings.step, settings.longest)
    for share in settings.r:
        check_share(share, settings.positions)
    names = settings.names or short_names(sources)
    if len(names) != len(sources) or len(set(names)) != len(names):
        raise ValueError(f"names={','.join(names)}: expected {len(sources)} different names, one a model")
    caps, attention = (settings.for_each(name, len(sources)) for name in ("cap", "attention_length"))
    members = [
        member(source, name, cap, attention_length, settings.trust)
        for source, name, cap, attention_length in zip(sources, names, caps, attention, strict=True)
    ]
    text = read_text(members, settings.split, settings.text)
    positions = contexts.choose_positions(
        len(text.tokens), lengths[-1], settings.step, settings.positions, settings.seed
    )
    folder = settings.out or _folder(members, settings)
    path = folder / "recl.json"
    runner.check_writable(path)
    start = time.monotonic()
    try:
        scores = [_score_member(one, text, positions, lengths, settings, folder) for one in members]
    except KeyboardInterrupt:
        kept = f"interrupted; the scores so far are kept in {folder / 'scores'}"
        return runner.Outcome(interrupted=f"{kept}, and the same command resumes from there").show()
    result = _result(members, text, lengths, scores, settings, time.monotonic() - start)
    runner.write_result(path, result)
    return runner.Outcome(as_table(result), [path, *draw_recl(path)]).show()


def _folder(members: list[GroupMember], settings: ReclSettings) -> Path:
    """Return the folder of the results, the same for the same models and scores."""
    ours = next((one.trained.directory for one in members if one.trained), Path("outputs"))
    words = [str(one.source.resolve()) for one in members]
    for name in ("split", "text", "positions", "start", "step", "longest", "attention_length", "cap", "seed"):
        words.append(f"{name}={getattr(settings, name)}")
    return runner.result_path(ours, "recl", words, None).with_suffix("")


def _score_member(
    one: GroupMember,
    text: TokenizedText,
    positions: np.ndarray,
    lengths: list[int],
    settings: ReclSettings,
    folder: Path,
) -> tuple[np.ndarray, str]:
    """Return the scores `[J, P]` of a model, and the name of the file that keeps them."""
    cut = [min(length, one.cap or length) for length in lengths]
    distinct = sorted(set(cut))
    described = json.dumps([one.sha256(), one.reading, text.sha256(), distinct, positions.tolist()])
    key = hashlib.sha256(described.encode()).hexdigest()
    name = re.sub(r"\W+", "_", one.name)
    path = folder / "scores" / f"{name}-{key[:8]}.npz"
    scores_JP = contexts.load_scores(path, key, (len(distinct), len(positions)))
    if np.isnan(scores_JP).any():
        with inference_context(one.model, settings.device, "32-true"), progress_bar(one.name) as update:
            window = text.tokens[positions[-1] - distinct[-1] : positions[-1] + 1].astype(np.int64)
            ahead = contexts.reads_ahead(one.reader, torch.from_numpy(window[None]), distinct)
            reader = contexts.SeparateContexts(one.reader) if ahead else one.reader
            steps = contexts.score(reader, text.tokens, positions, distinct, settings.batch_size, scores_JP)
            saved = time.monotonic()
            try:
                for done, total in steps:
                    update(completed=done, total=total)
                    if time.monotonic() - saved > SAVE_EVERY:
                        contexts.save_scores(path, key, scores_JP, positions, distinct)
                        saved = time.monotonic()
            except ValueError as error:
                raise ValueError(f"{one.name}: {error}") from error
            finally:
                contexts.save_scores(path, key, scores_JP, positions, distinct)
    return scores_JP[[distinct.index(length) for length in cut]], f"scores/{path.name}"


def _result(
    members: list[GroupMember],
    text: TokenizedText,
    lengths: list[int],
    scores: list[tuple[np.ndarray, str]],
    settings: ReclSettings,
    seconds: float,
) -> dict[str, Any]:
    """Return the JSON, with all that the table and the figures need."""
    scores_NJP = np.stack([scores_JP for scores_JP, _ in scores])
    effective = [effective_contexts(scores_NJP, lengths, share, settings.threshold) for share in settings.r]
    return {
        "schema": 1,
        "data": {"name": text.name, "split": text.split, "unit": text.unit, "sha256": text.sha256()},
        "start": settings.start,
        "step": settings.step,
        "lengths": lengths,
        "positions": settings.positions,
        "seed": settings.seed,
        "r": settings.r,
        "threshold": settings.threshold,
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
                    {
                        "r": share,
                        **asdict(of_models[index]),
                        "recl": min(of_models[index].length, one.cap or lengths[-1]),
                    }
                    for share, of_models in zip(settings.r, effective, strict=True)
                ],
                "scores": file,
            }
            for index, (one, (scores_JP, file)) in enumerate(zip(members, scores, strict=True))
        ],
    }


def as_table(result: dict[str, Any]) -> Group:
    """Return the result in the layout of the paper's Table 8, with notes."""
    unit, longest = result["data"]["unit"], result["lengths"][-1]
    headings = "model", *(f"r = {share:g}" for share in result["r"]), f"perplexity at {longest:,}"
    table = new_table(*headings, left=["model"], title=f"RECL in {unit}s")
    notes = []
    for model in result["models"]:
        cells = [f"{'≥ ' if entry['beyond'] else ''}{entry['recl']:,}" for entry in model["effective"]]
        table.add_row(Text(model["name"]), *cells, f"{perplexity(model['losses'][-1]):,.2f}")
        if model["cap"]:
            notes.append(f"{model['name']} reads at most {model['cap']:,} {unit}s: {model['cap_reason']}.")
    if any(entry["beyond"] for model in result["models"] for entry in model["effective"]):
        notes.append(
            "≥: every step up to the longest context gained enough; score longer ones with longest=…"
        )
    split = f", {result['data']['split']}" if result["data"]["split"] else ""
    notes.append(
        f"{result['positions']:,} {unit}s of {result['data']['name']}{split}, contexts from "
        f"{result['start']:,} by {result['step']:,}, threshold {result['threshold']:g}, "
        f"{result['seconds']:.0f} s"
    )
    return Group(table, Text("\n".join(notes)))
