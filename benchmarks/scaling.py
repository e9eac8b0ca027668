"""What a training step costs as the work grows: python benchmarks/scaling.py --figure scaling.png.

One setting at a time is varied around 6 layers, d_model 256, segment and memory 128, 8 rows: the memory, the
segment, the layers, the rows. Each point is a process of its own, so that its peak memory is its own. Beside
the tokens a second stands what the operations of the model predict from the point that all curves share.

Then the same step is taken by one and by two processes that average their gradients (DistributedDataParallel
over gloo, a thread each), in turns. From the step measured here, or --step-seconds measured elsewhere, and
the bytes that each step must exchange, the speed on 8 to 512 devices is projected, under two assumptions: a
ring all-reduce of float32 gradients at --bandwidth, and either none or all of it hidden behind the backward
pass.

--quick takes tiny models, to see that it works.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peer import full_memory, report, spread
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from txl.model import Memory, RelativePosition, TransformerXL
from txl.model.cost import parameter_counts, training_flops_per_token
from txl.training.hardware import peak_memory, resolve_attention, retain_freed_pages
from txl.training.optimizers import adam

BASE = {"n_layer": 6, "d_model": 256, "segment": 128, "memory": 128, "rows": 8}
VARIED = {
    "memory": [0, 128, 512, 1024, 2048, 4096],
    "segment": [32, 64, 128, 256, 512],
    "n_layer": [2, 4, 6, 12],
    "rows": [1, 2, 4, 8, 16, 32],
}
QUICK_BASE = {"n_layer": 2, "d_model": 32, "segment": 8, "memory": 8, "rows": 2}
QUICK = {"memory": [0, 8], "rows": [1, 2]}
VOCABULARY, D_HEAD, STEPS, WARM = 204, 64, 5, 2
TURNS = 3  # of one and of two processes
DEVICES = [8, 16, 32, 64, 128, 256, 512]


class Loss(nn.Module):
    """The mean score of a segment, so that one module has the whole step."""

    def __init__(self, model: TransformerXL) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """Return the loss, and the memory after the segment."""
        hidden, memory = self.model(tokens, memory)
        return self.model.embedding.scores(hidden, tokens).mean(), memory


def network(point: dict[str, int]) -> TransformerXL:
    """Return the model of a point."""
    heads = max(1, point["d_model"] // D_HEAD)
    position = functools.partial(RelativePosition, key_length=point["segment"] + point["memory"])
    sizes = point["n_layer"], point["d_model"], heads, point["d_model"] // heads, 4 * point["d_model"]
    return TransformerXL(VOCABULARY, position, *sizes, dropout=0.1)


def measure(point: dict[str, int], precision: str, threads: int) -> dict[str, Any]:
    """Return the seconds of a step, the peak memory of this process, and what the model must compute."""
    torch.set_num_threads(threads)
    retain_freed_pages()
    torch.manual_seed(0)
    model = network(point)
    model.attention = resolve_attention("auto", "cpu", False, precision, point["segment"])
    module: nn.Module = Loss(model)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        module = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizer = adam(model.parameters(), 2.5e-4, 0.9, 0.999)
    memory = full_memory(model, point["rows"], point["memory"])
    seconds = []
    for _ in range(WARM + STEPS):
        tokens = torch.randint(VOCABULARY, (point["rows"], point["segment"]))
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss, memory = module(tokens, memory)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    lengths = point["segment"], point["memory"], point["rows"]
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
    return point | {
        "seconds_of_a_step": statistics.median(seconds[WARM:]),
        "tokens_per_second": point["rows"] * point["segment"] / statistics.median(seconds[WARM:]),
        "peak_memory_bytes": peak_memory(torch.device("cpu")),
        "operations_per_token": training_flops_per_token(model, *lengths),
        "parameters": parameter_counts(model)[0],
    }


def apart(point: dict[str, int], asked: argparse.Namespace, processes: int = 1) -> dict[str, Any]:
    """Measure in a process of its own, or in several that average their gradients; return the first's."""
    command = [sys.executable, __file__, "--point", json.dumps(point), "--precision", asked.precision]
    command += ["--threads", str(asked.threads if processes == 1 else max(1, asked.threads // processes))]
    environment = dict(os.environ)
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | ({"RANK": str(rank)} if processes > 1 else {}),
        )
        for rank in range(processes)
    ]
    said = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{point}: a process ended with an error")
    return json.loads(said[0])


def curves(base: dict[str, Any], asked: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the points of each setting that is varied, from what was measured at the usual ones."""
    usual, varied = (QUICK_BASE, QUICK) if asked.quick else (BASE, VARIED)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in varied}
    for name, values in varied.items():
        for value in values:
            point = dict(base) if value == usual[name] else apart(usual | {name: value}, asked)
            ratio = base["operations_per_token"] / point["operations_per_token"]
            point["predicted_tokens_per_second"] = base["tokens_per_second"] * ratio
            found[name].append(point)
            speed, peak = point["tokens_per_second"], point["peak_memory_bytes"] / 2**30
            print(f"{name} {value}: {speed:,.0f} tokens/s, {peak:.2f} GiB", file=sys.stderr)
    return found


def of_processes(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the speed of one and of two processes, a thread each and as many rows each; medians of turns."""
    usual = QUICK_BASE if asked.quick else BASE
    one, two = (argparse.Namespace(**vars(asked) | {"threads": threads}) for threads in (1, 2))
    turns = [(apart(usual, one), apart(usual, two, processes=2)) for _ in range(TURNS)]
    alone, both = ([point["tokens_per_second"] for point in points] for points in zip(*turns, strict=True))
    ratios = [mine / other for mine, other in zip(both, alone, strict=True)]
    return {
        "tokens_per_second": {"1": spread(alone), "2": spread([2 * speed for speed in both])},
        "efficiency": spread(ratios),
    }


def projected(step: float, tokens: int, parameters: int, bandwidth: float) -> dict[str, Any]:
    """Return the tokens a second of many devices, from the step of one.

    Args:
        step: seconds of a step on one device, with its rows.
        tokens: of that step.
        parameters: whose gradients are exchanged, in float32.
        bandwidth: bytes a second that a device sends and receives in an all-reduce.
    """
    speeds = {}
    for devices in DEVICES:
        exchange = 2 * (devices - 1) / devices * 4 * parameters / bandwidth  # of a ring
        shown, hidden = devices * tokens / (step + exchange), devices * tokens / max(step, exchange)
        speeds[devices] = {"nothing_hidden": shown, "all_hidden": hidden}
    return {
        "step_seconds": step, "tokens_of_a_step_and_device": tokens, "bytes_exchanged": 4 * parameters,
        "bandwidth_bytes_per_second": bandwidth, "tokens_per_second": speeds,
    }  # fmt: skip


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw speed and peak memory against each setting, the prediction dashed."""
    import matplotlib.pyplot as plt

    names = {"memory": "memory slots", "segment": "segment length", "n_layer": "layers", "rows": "rows"}
    figure, grid = plt.subplots(
        2, len(found), figsize=(3 * len(found), 5), squeeze=False, layout="constrained"
    )
    for column, (name, points) in enumerate(found.items()):
        values = [point[name] for point in points]
        above, below = grid[:, column]
        above.plot(values, [point["tokens_per_second"] for point in points], "o-", label="measured")
        predicted = [point["predicted_tokens_per_second"] for point in points]
        above.plot(values, predicted, "--", color="grey", label="by operations")
        below.plot(values, [point["peak_memory_bytes"] / 2**30 for point in points], "o-", color="#c44e52")
        below.set_xlabel(names[name])
        for axes in (above, below):
            axes.set_ylim(bottom=0)
    grid[0, 0].set_ylabel("tokens a second")
    grid[1, 0].set_ylabel("peak memory, GiB")
    grid[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Measure all points; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--precision", default="bf16-mixed", help="32-true or bf16-mixed (bf16-mixed)")
    parser.add_argument("--bandwidth", type=float, default=25e9, help="bytes a second between devices (25e9)")
    parser.add_argument("--step-seconds", type=float, help="of one device, measured elsewhere")
    parser.add_argument("--step-tokens", type=int, help="of that step")
    parser.add_argument("--step-parameters", type=int, help="of that model")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    parser.add_argument("--figure", type=Path, help="a file for the picture")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(measure(json.loads(asked.point), asked.precision, asked.threads)))
        return 0
    base = apart(QUICK_BASE if asked.quick else BASE, asked)
    found = curves(base, asked)
    projection = projected(
        asked.step_seconds or base["seconds_of_a_step"],
        asked.step_tokens or base["rows"] * base["segment"],
        asked.step_parameters or base["parameters"],
        asked.bandwidth,
    )
    result = {
        "benchmark": "scaling", "precision": asked.precision, "curves": found,
        "data_parallel": of_processes(asked), "projection": projection,
    }  # fmt: skip
    report(result, asked.out)
    if asked.figure:
        draw(found, asked.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
