"""What the tests share: a tiny text, a tiny model, and the command line as a user runs it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property, partial
from pathlib import Path

import pytest
import pytorch_lightning  # noqa: F401  before a test puts transformers on the path, see test_huggingface
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from txl.__main__ import main
from txl.model import RelativePosition, TransformerXL

ROOT = Path(__file__).parent.parent
# The published experiments; what an ablation begins with is tested with the ablations.
EXPERIMENTS = sorted(
    path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml") if not path.stem.endswith("_laptop")
)
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "box",
    "with",
    "jovial",
    "quaking",
    "elves",
]

# A run of seconds: every size cut down, nothing switched off.
TINY = [
    "data=text",
    "model.n_layer=2",
    "model.d_model=32",
    "model.n_head=2",
    "model.d_head=16",
    "model.d_inner=64",
    "training.batch_size=4",
    "training.segment_length=16",
    "training.memory_length=16",
    "evaluation.batch_size=4",
    "evaluation.segment_length=16",
    "evaluation.memory_length=16",
    "schedule.warmup_steps=2",
    "trainer.max_steps=8",
    "trainer.validate_every=4",
    "trainer.log_every=1",
    "sample.prompt_tokens=20",
    "sample.tokens=20",
]


def kept_in(cache: Path) -> list[Path]:
    """Return what a cache of prepared corpora holds, beside the stamps of files and their locks."""
    return [path for path in cache.iterdir() if path.name != "stamps"]


def tiny_text(words: int = 2000) -> str:
    """Return a text with some structure: the words in an order that repeats and drifts."""
    text = [WORDS[(i * i + i // 7) % len(WORDS)] + ("\n" if i % 11 == 10 else "") for i in range(words)]
    return " ".join(text) + "\n"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """Return the path of a small text."""
    path = tmp_path / "tiny.txt"
    path.write_text(tiny_text(), "utf-8")
    return path


SMALL = {"vocabulary": 13, "n_layer": 2, "d_model": 12, "n_head": 3, "d_head": 4, "d_inner": 20}


def small_model(
    seed: int = 0, dtype: torch.dtype = torch.float64, position=RelativePosition, **changes
) -> TransformerXL:
    """Return a small model in evaluation mode, its parameters large enough for every part to matter."""
    torch.manual_seed(seed)
    model = TransformerXL(position=partial(position, key_length=64), **(SMALL | changes), init_std=0.3)
    return model.to(dtype).eval()


PLAIN = {"HYDRA_FULL_ERROR": "0", "COLUMNS": "100"}  # no traces of errors, and lines of one width


class Starter:
    """Runs `train.py` in forks of one process that has imported everything, which takes seconds."""

    def __init__(self) -> None:
        self.environment = {**os.environ, **PLAIN}

    @cached_property
    def program(self) -> subprocess.Popen:
        """The process, begun when it is first needed."""
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "starter.py")],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, words: list[str], folder: Path, environment: dict[str, str], seconds: float
    ) -> subprocess.CompletedProcess:
        """Run to the end and return what was printed and the exit code."""
        changed = {name: environment.get(name) for name in environment.keys() | self.environment.keys()}
        files = {name: folder.parent / f"{folder.name}.{name}" for name in ("output", "errors")}
        for path in files.values():
            path.write_bytes(b"")
        job = {"words": words, "ranks": [changed], "seconds": seconds, "folder": str(folder)}
        self.program.stdin.write(json.dumps(job | {name: str(path) for name, path in files.items()}) + "\n")
        self.program.stdin.flush()
        (code,) = json.loads(self.program.stdout.readline())
        printed = (path.read_text("utf-8") for path in files.values())
        return subprocess.CompletedProcess(words, code, *printed)

    def close(self) -> None:
        """End the process."""
        if "program" not in vars(self):
            return
        self.program.stdin.close()
        self.program.wait(10)
        self.program.stdout.close()


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    """Return what runs `train.py` in forks."""
    starter = Starter()
    yield starter
    starter.close()


class CommandLine:
    """Runs `train.py` in a folder of its own, as a user would."""

    def __init__(self, folder: Path, starter: Starter) -> None:
        self.folder, self.run_directory, self.starter = folder, folder / "run", starter
        self.environment = {**os.environ, **PLAIN, "TXL_CACHE": str(folder / "cache")}

    def words(self, *overrides: str) -> list[str]:
        """Return the command, its run directory fixed."""
        return [sys.executable, str(ROOT / "train.py"), f"hydra.run.dir={self.run_directory}", *overrides]

    def start(self, *overrides: str) -> subprocess.Popen:
        """Start a run and do not wait for it."""
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                self.words(*overrides),
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __call__(
        self, *overrides: str, timeout: float = 120, fresh: bool = False
    ) -> subprocess.CompletedProcess:
        """Run to the end and return what it printed and its exit code.

        Args:
            overrides: the words of the command line.
            timeout: in seconds.
            fresh: in a Python of its own, where it matters what is imported, when, and from where.
        """
        if not fresh:
            return self.starter(self.words(*overrides)[2:], self.folder, self.environment, timeout)
        return subprocess.run(
            self.words(*overrides),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def results(self) -> dict:
        """Return `results.json` of the run."""
        return json.loads((self.run_directory / "results.json").read_text("utf-8"))


@pytest.fixture
def train(tmp_path: Path, starter: Starter) -> CommandLine:
    """Return the command line, in an empty folder."""
    return CommandLine(tmp_path, starter)


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that runs `train.py` in this process, without the seconds that a new one takes.

    It composes the overrides, calls the task of `train.py` and returns the run directory.
    """
    spec = importlib.util.spec_from_file_location("train", ROOT / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setenv("TXL_CACHE", str(tmp_path / "cache"))

    def run(*overrides: str, directory: Path = tmp_path / "run") -> Path:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            settings = compose("train", list(overrides), return_hydra_config=True)
        with open_dict(settings.hydra):
            settings.hydra.runtime.output_dir, settings.hydra.job.num = str(directory), 0
        HydraConfig.instance().set_config(settings)
        with open_dict(settings):
            settings.pop("hydra")
        script.train.__wrapped__(settings)
        return directory

    return run


def verb(*words: object) -> subprocess.CompletedProcess:
    """Run `txl` in this process, and return what it printed and its exit code."""
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, printed.getvalue(), errors.getvalue())


def metrics_of(directory: Path) -> list[dict]:
    """Return the lines of `metrics.jsonl` of a run."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
