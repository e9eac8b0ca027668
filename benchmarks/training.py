"""Training steps beside transformers' TransfoXL, the same weights and text: python benchmarks/training.py.

A step is forward and backward pass, clipping of the gradient's norm and Adam, dropout as published, a full
memory carried on. Each side is a process of its own, and they take turns: ours in float32 and bfloat16, the
peer's in float32 (its bfloat16 autocast raises on a CPU), and the peer's once more with what a run of ours
asks of the C library (`retain_freed_pages`), which makes any model faster. Both must give the same loss.
What of the machine is used is the operations of the model beside the largest matrix products, measured in the
same run.

--memory measures the peak of a step instead. --device cuda measures on a GPU, in bfloat16, ours compiled.
--quick runs tiny shapes, to see that it works. --figure draws the ratios.
"""

from __future__ import annotations

import argparse
import json
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
from txl.training.hardware import matmul_peak, peak_memory, resolve_attention, retain_freed_pages
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
MEMORY_STEPS = 4

Step = Callable[[torch.Tensor], float]


def ours(case: Case, model: TransformerXL, precision: str, asked: argparse.Namespace) -> Step:
    """Return what takes a step of our model and returns the loss, of those targets that the peer scores."""
    chosen = chosen_attention(case, precision, asked)
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


class Side:
    """A process that trains one of the models, one turn when it is told to.

    Args:
        case: what is measured, by its number.
        name: a precision of ours; "peer" or "peer, memory kept".
        asked: the command line.
    """

    def __init__(self, case: int, name: str, asked: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--side", name, "--case", str(case), *_passed_on(asked)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = json.loads(self._line())

    def turn(self) -> dict[str, Any]:
        """Return the seconds of each step of a turn, and the peak of matrix products before it."""
        print("turn", file=self.process.stdin, flush=True)
        return json.loads(self._line())

    def end(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of one side ended with {self.process.wait()}")
        return line


def _passed_on(asked: argparse.Namespace) -> list[str]:
    flags = [f"--{name}" for name in ("quick", "compile") if getattr(asked, name)]
    named = ("steps", "threads", "device", "attention")
    return [*flags, *(f"--{name}={getattr(asked, name)}" for name in named)]


def serve(case: Case, name: str, asked: argparse.Namespace) -> None:
    """Be a side: after two steps that do not count, take a turn for each line that comes."""
    device, is_peer = torch.device(asked.device), name.startswith("peer")
    if name != "peer":
        retain_freed_pages()
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it tells of every shared tensor
    theirs, model = both(case.shape, case.memory, None, same_length=False, dropout=DROPOUT)
    tokens = text(case, 2 + asked.steps, device)
    if is_peer:
        flops, model = 0.0, theirs.to(device)
        loss = loss_of_peer(model, tokens[0])
        step = peers(model.train())
    else:
        flops = training_flops_per_token(model, case.segment, case.memory, case.rows)
        model = model.to(device)
        loss = loss_of_ours(case, model, tokens[0])
        if asked.compile:
            model.compile(dynamic=False)
        step = ours(case, model.train(), name, asked)
    del theirs
    losses = [step(warm) for warm in tokens[:2]]
    about = {"loss_without_dropout": loss, "first_losses": losses, "operations_per_token": flops}
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        peak = 0.0 if is_peer else matmul_peak(device, name)
        step(tokens[0])  # not counted: while the others took their turns, its memory got cold
        seconds = []
        for some in tokens[2:]:
            began = time.perf_counter()
            step(some)  # it reads the loss, so all is done then
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)


@torch.no_grad()
def loss_of_ours(case: Case, model: TransformerXL, tokens: torch.Tensor) -> float:
    """Return the loss of one segment without dropout."""
    hidden, _ = model.eval()(tokens, full_memory(model, case.rows, case.memory))
    return float(model.embedding.scores(hidden[:, :-1], tokens[:, 1:].contiguous()).mean())


@torch.no_grad()
def loss_of_peer(model: Any, tokens: torch.Tensor) -> float:
    """Return the loss of one segment without dropout."""
    return float(model.eval()(tokens, labels=tokens).loss)


def measure(number: int, case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    """Return tokens a second, ratios and shares of the machine's peak for one case."""
    names = [*case.targets, "peer", "peer, memory kept"][: None if asked.device == "cpu" else -1]
    sides = {name: Side(number, name, asked) for name in names}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(asked.rounds):
        for name, side in sides.items():
            turns[name].append(side.turn())
        last = ", ".join(f"{name} {statistics.median(turns[name][-1]['seconds']):.3f} s" for name in sides)
        print(f"{case.shape}: turn {turn + 1} of {asked.rounds}: {last}", file=sys.stderr)
    for side in sides.values():
        side.end()
    size = case.rows * case.segment
    medians = {name: [statistics.median(turn["seconds"]) for turn in turns[name]] for name in sides}
    speeds = {name: spread([size / second for second in medians[name]]) for name in sides}
    losses = {name: side.about["loss_without_dropout"] for name, side in sides.items()}
    flops = sides[names[0]].about["operations_per_token"]
    result = {
        "shape": case.shape, "segment": case.segment, "memory": case.memory, "batch": case.rows,
        "loss_without_dropout": losses,
        "same_loss": max(losses.values()) - min(losses.values()) < TOLERANCE,
        "peer_tokens_per_second": {name: speeds[name] for name in sides if name.startswith("peer")},
        "operations_per_token": flops, "here": {},
    }  # fmt: skip
    for precision, target in case.targets.items():
        peak = max(turn["peak"] for turn in turns[precision])
        ratios = {
            name: spread(
                [other / mine for mine, other in zip(medians[precision], medians[name], strict=True)]
            )
            for name, theirs in medians.items()
            if name.startswith("peer")
        }
        result["here"][precision] = {
            "tokens_per_second": speeds[precision], "ratio": ratios["peer"], "target": target,
            "ratio_memory_kept": ratios.get("peer, memory kept"),
            "attention": chosen_attention(case, precision, asked),
            "matmul_peak": peak, "utilization": speeds[precision]["median"] * flops / peak,
            "utilization_target": case.utilization if precision == min(case.targets) else None,
        }  # fmt: skip
    return result


def chosen_attention(case: Case, precision: str, asked: argparse.Namespace) -> str:
    """Return how a run with these settings computes attention."""
    return resolve_attention(asked.attention, asked.device, asked.compile, precision, case.segment)


def peak_of_one(case: Case, side: str, asked: argparse.Namespace) -> int:
    """Return the peak of this process after a few training steps, in bytes: the first is not the largest."""
    device = torch.device(asked.device)
    theirs, model = both(case.shape, case.memory, None, same_length=False, dropout=DROPOUT)
    if side == "peer":
        del model
        step = peers(theirs.train().to(device))
    else:
        retain_freed_pages()
        del theirs
        step = ours(case, model.train().to(device), side, asked)
    for tokens in text(case, MEMORY_STEPS, device):
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
        "| shape | precision | tokens/s | peer, float32 | ratio | peer, memory kept | ratio | of the peak |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        for precision, here in case["here"].items():
            cells = [case["shape"], precision, f"{here['tokens_per_second']['median']:,.0f}"]
            for name, key in (("peer", "ratio"), ("peer, memory kept", "ratio_memory_kept")):
                speed = case["peer_tokens_per_second"].get(name)
                cells += [f"{speed['median']:,.0f}", f"{here[key]['median']:.2f}"] if speed else ["", ""]
            lines.append(f"| {' | '.join([*cells, format(here['utilization'], '.0%')])} |")
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
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (3)")
    parser.add_argument("--steps", type=int, default=3, help="in each turn, after one not counted (3)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--attention", default="auto", help="trainer.attention (auto)")
    parser.add_argument("--compile", action="store_true", help="ours with torch.compile")
    parser.add_argument("--case", type=int, help="only this one, from 0")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    parser.add_argument("--figure", type=Path, help="a file for the picture")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    memory_case = QUICK_MEMORY if asked.quick else MEMORY
    if asked.peak_of:
        print(peak_of_one(memory_case, asked.peak_of, asked))
        return 0
    if asked.memory:
        found = memory_of_a_step(memory_case, asked)
        report({"benchmark": "memory of a training step"} | found, asked.out)
        return int(not asked.quick and found["share_of_the_peer"]["32-true"] > MEMORY_TARGET)
    cases = QUICK if asked.quick else GPU_CASES if asked.device == "cuda" else CASES
    if asked.side:
        serve(cases[asked.case], asked.side, asked)
        return 0
    results = [
        measure(number, case, asked) for number, case in enumerate(cases) if asked.case in (None, number)
    ]
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
