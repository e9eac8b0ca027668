"""Training steps beside transformers' TransfoXL, the same weights and text: python benchmarks/training.py.

A step is forward and backward pass, clipping of the gradient's norm and Adam, dropout as published, a full
memory carried on. Steps are taken in turns in one process: ours in float32 and bfloat16, the peer's in
float32 (its bfloat16 autocast raises on a CPU). Both must give the same loss to begin with. What of the
machine is used is the operations of the model beside the largest matrix products, measured in the same run.

--memory measures the peak of one step instead, each in a process of its own. --device cuda measures on a GPU,
in bfloat16, ours compiled. --quick runs tiny shapes, to see that it works. --figure draws the ratios.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peer import SHAPES, VOCABULARY, both, full_memory, report, spread

from txl.model import TransformerXL
from txl.model.cost import training_flops_per_token
from txl.training.hardware import keep_memory, matmul_peak, peak_memory, resolve_attention
from txl.training.optimizers import adam

DROPOUT, CLIP = 0.1, 0.25  # of the published base models
TOLERANCE = 1e-4  # of the first loss, in nats
PRECISIONS = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """What is measured: a shape, its segment and memory, the rows, and the ratios there are to reach."""

    shape: str
    segment: int
    memory: int
    rows: int
    targets: dict[str, float]
    utilization: float | None = None  # in float32


CASES = [
    Case("12 layers", 512, 512, 2, {"32-true": 2.0, "bf16-mixed": 5.5}, utilization=0.5),
    Case("6 layers", 128, 128, 16, {"32-true": 2.5, "bf16-mixed": 5.0}),
    Case("words", 150, 150, 2, {"32-true": 2.0}),
]
GPU_CASES = [
    Case("12 layers", 512, 512, 22, {"bf16-mixed": 3.0}, utilization=0.4),
    Case("words", 150, 150, 60, {"bf16-mixed": 3.0}, utilization=0.4),
]
QUICK = [
    Case("quick", 6, 5, 2, {"32-true": 0.0, "bf16-mixed": 0.0}),
    Case("quick words", 6, 6, 2, {"32-true": 0.0}),
]
MEMORY = Case("12 layers", 512, 512, 8, {})
QUICK_MEMORY = Case("quick", 6, 5, 2, {})
MEMORY_TARGET = 0.6  # of the peer's peak

Step = Callable[[torch.Tensor], float]


def ours(case: Case, model: TransformerXL, precision: str, asked: argparse.Namespace) -> Step:
    """Return what takes a step of our model and returns the loss, of those targets that the peer scores."""
    chosen = resolve_attention(asked.attention, asked.device, asked.compile, precision, case.segment)
    optimizer = adam(model.parameters(), 2.5e-4, 0.9, 0.999)
    memory = full_memory(model, case.rows, case.memory)

    def step(tokens: torch.Tensor) -> float:
        nonlocal memory
        model.attention = chosen  # both precisions train the same model
        optimizer.zero_grad()
        with torch.autocast(asked.device, torch.bfloat16, enabled=precision == "bf16-mixed"):
            hidden, memory = model(tokens, memory)
            loss = model.embedding.scores(hidden[:, :-1], tokens[:, 1:]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


def peers(model: Any) -> Step:
    """Return what takes one step of the peer's model and returns the loss."""
    optimizer = adam(model.parameters(), 2.5e-4, 0.9, 0.999)
    mems = None

    def step(tokens: torch.Tensor) -> float:
        nonlocal mems
        optimizer.zero_grad()
        output = model(tokens, mems=mems, labels=tokens)
        mems = output.mems
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(output.loss.detach())

    return step


def text(case: Case, steps: int, device: torch.device) -> torch.Tensor:
    """Return random tokens, as common as Zipf's law says, `[steps, B, L]`."""
    vocabulary = SHAPES[case.shape].get("vocab_size", VOCABULARY)
    weights = 1.0 / torch.arange(1, vocabulary + 1)
    generator = torch.Generator().manual_seed(1)
    count = steps * case.rows * case.segment
    drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
    return drawn.view(steps, case.rows, case.segment).to(device)


def loss_without_dropout(
    case: Case, theirs: Any, model: TransformerXL, tokens: torch.Tensor
) -> dict[str, float]:
    """Return the loss of both on one segment."""
    with torch.no_grad():
        hidden, _ = model.eval()(tokens, full_memory(model, case.rows, case.memory))
        mine = model.embedding.scores(hidden[:, :-1], tokens[:, 1:]).mean()
        other = theirs.eval()(tokens, labels=tokens).loss
    model.train(), theirs.train()
    return {"here": float(mine), "there": float(other)}


def measure(case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    """Return tokens a second, ratios and shares of the machine's peak for one case."""
    device = torch.device(asked.device)
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it tells of every shared tensor
    theirs, model = both(case.shape, case.memory, None, same_length=False, dropout=DROPOUT)
    theirs, model = theirs.to(device), model.to(device)
    tokens = text(case, 2 + asked.rounds * asked.steps, device)
    losses = loss_without_dropout(case, theirs, model, tokens[0])
    if asked.compile:
        model.compile(dynamic=False)
    sides = {precision: ours(case, model, precision, asked) for precision in case.targets}
    sides["peer"] = peers(theirs)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    peaks: dict[str, list[float]] = {precision: [] for precision in case.targets}
    for name, step in sides.items():
        for warm in tokens[:2]:
            print(f"{case.shape}: {name}, loss {step(warm):.3f}", file=sys.stderr)
    for turn in range(asked.rounds):
        for name, step in sides.items():
            if name in peaks:
                peaks[name].append(matmul_peak(device, name))
            for index in range(asked.steps):
                began = time.perf_counter()
                step(tokens[2 + turn * asked.steps + index])  # it reads the loss, so all is done then
                seconds[name].append(time.perf_counter() - began)
        last = ", ".join(f"{name} {statistics.median(times):.3f} s" for name, times in seconds.items())
        print(f"{case.shape}: turn {turn + 1} of {asked.rounds}: {last}", file=sys.stderr)
    size = case.rows * case.segment
    flops = training_flops_per_token(model, case.segment, case.memory, case.rows)
    result = {
        "shape": case.shape, "segment": case.segment, "memory": case.memory, "batch": case.rows,
        "loss_without_dropout": losses,
        "same_loss": abs(losses["here"] - losses["there"]) < TOLERANCE,
        "peer_tokens_per_second": spread([size / second for second in seconds["peer"]]),
        "operations_per_token": flops, "here": {},
    }  # fmt: skip
    for precision, target in case.targets.items():
        pairs = zip(_by_turn(seconds[precision], asked), _by_turn(seconds["peer"], asked), strict=True)
        speed, peak = statistics.median(size / second for second in seconds[precision]), max(peaks[precision])
        result["here"][precision] = {
            "tokens_per_second": spread([size / second for second in seconds[precision]]),
            "ratio": spread([other / mine for mine, other in pairs]), "target": target,
            "attention": resolve_attention(
                asked.attention, asked.device, asked.compile, precision, case.segment
            ),
            "matmul_peak": peak, "utilization": speed * flops / peak,
            "utilization_target": case.utilization if precision == min(case.targets) else None,
        }  # fmt: skip
    return result


def _by_turn(seconds: list[float], asked: argparse.Namespace) -> list[float]:
    return [
        statistics.median(seconds[turn : turn + asked.steps]) for turn in range(0, len(seconds), asked.steps)
    ]


def peak_of_one(case: Case, side: str, asked: argparse.Namespace) -> int:
    """Return the peak of this process after two training steps, in bytes."""
    device = torch.device(asked.device)
    theirs, model = both(case.shape, case.memory, None, same_length=False, dropout=DROPOUT)
    step = peers(theirs.train().to(device)) if side == "peer" else None
    if step is None:
        del theirs
        step = ours(case, model.train().to(device), side, asked)
    for tokens in text(case, 2, device):
        step(tokens)
    return peak_memory(device)


def memory_of_a_step(case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the peaks of processes that train ours, in either precision, and the peer's."""
    peaks = {}
    for side in (*PRECISIONS, "peer"):
        command = [sys.executable, __file__, "--peak-of", side, f"--device={asked.device}"]
        command += [
            f"--threads={asked.threads}",
            f"--attention={asked.attention}",
            *(["--quick"] * asked.quick),
        ]
        peaks[side] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "shape": case.shape, "segment": case.segment, "memory": case.memory, "batch": case.rows,
        "peak_bytes": peaks, "share_of_the_peer": {side: peaks[side] / peaks["peer"] for side in PRECISIONS},
        "target": None if asked.quick else MEMORY_TARGET,
    }  # fmt: skip


def table(cases: list[dict[str, Any]]) -> str:
    """Return the result as a table in Markdown."""
    lines = [
        "| shape | precision | tokens/s | peer, float32 | ratio | of the peak |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        for precision, here in case["here"].items():
            lines.append(
                f"| {case['shape']} | {precision} | {here['tokens_per_second']['median']:,.0f} | "
                f"{case['peer_tokens_per_second']['median']:,.0f} | {here['ratio']['median']:.2f} | "
                f"{here['utilization']:.0%} |"
            )
    return "\n".join(lines)


def draw(cases: list[dict[str, Any]], path: Path) -> None:
    """Draw the ratios, a bar for each case and precision, with their spread."""
    import matplotlib.pyplot as plt

    bars = [
        (f"{case['shape']}\n{name}", here["ratio"], here["target"])
        for case in cases
        for name, here in case["here"].items()
    ]
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    for place, (_, ratio, target) in enumerate(bars):
        errors = [[ratio["median"] - ratio["least"]], [ratio["most"] - ratio["median"]]]
        axes.bar(place, ratio["median"], yerr=errors, color="#4c72b0", capsize=3)
        axes.hlines(target, place - 0.4, place + 0.4, color="#c44e52")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(bars)), [name for name, *_ in bars])
    axes.set_ylabel("times the peer's tokens a second")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Measure all cases; return 1 if losses differ or a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--memory", action="store_true", help="the peak memory of a step")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--steps", type=int, default=2, help="in each turn (2)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--attention", default="auto", help="trainer.attention (auto)")
    parser.add_argument("--compile", action="store_true", help="ours with torch.compile")
    parser.add_argument("--case", type=int, help="only this one, from 0")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    parser.add_argument("--figure", type=Path, help="a file for the picture")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    keep_memory()  # as in a run; the peer has its gain from it too
    memory_case = QUICK_MEMORY if asked.quick else MEMORY
    if asked.peak_of:
        print(peak_of_one(memory_case, asked.peak_of, asked))
        return 0
    if asked.memory:
        found = memory_of_a_step(memory_case, asked)
        report({"benchmark": "memory of a training step"} | found, asked.out)
        return int(not asked.quick and found["share_of_the_peer"]["32-true"] > MEMORY_TARGET)
    cases = QUICK if asked.quick else GPU_CASES if asked.device == "cuda" else CASES
    cases = cases if asked.case is None else cases[asked.case : asked.case + 1]
    results = [measure(case, asked) for case in cases]
    report({"benchmark": "training", "cases": results}, asked.out)
    print(table(results), file=sys.stderr)
    if asked.figure:
        draw(results, asked.figure)
    return int(not all(case["same_loss"] and _reached(case) for case in results))


def _reached(case: dict[str, Any]) -> bool:
    return all(
        here["ratio"]["median"] >= here["target"] and here["utilization"] >= (here["utilization_target"] or 0)
        for here in case["here"].values()
    )


if __name__ == "__main__":
    raise SystemExit(main())
