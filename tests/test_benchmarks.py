"""The benchmarks beside the peer run, on tiny shapes, and find that both say the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

PEERS = Path(os.environ.get("TXL_PEERS", str(Path(sys.prefix) / "peers")))


@pytest.mark.skipif(not (PEERS / "transformers").is_dir(), reason="the peer is not installed")
@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("evaluation", "same_scores"),
        ("generation", "same_tokens"),
        ("training", "same_loss"),
    ],
)
def test_a_benchmark_runs_and_both_agree(name, same, tmp_path):
    out = tmp_path / "result.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / f"{name}.py"),
        "--quick",
        "--threads=1",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert json.loads(done.stdout) == found
    assert all(case[same] for case in found.get("cases", [found]))
