"""Loggers: every number arrives, W&B asks nothing and hangs on nothing, and each run is one of its own."""

import csv
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import TINY, metrics_of
from txl.settings.compose import composed
from txl.settings.errors import ConfigError
from txl.settings.schema import check
from txl.training.loggers.csv import Csv
from txl.training.loggers.jsonl import JsonLines


@pytest.fixture
def tiny(text_file):
    return [*TINY, f"data.path={text_file}"]


def test_csv_and_tensorboard_hold_what_metrics_jsonl_holds(run_here, tiny):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = run_here(*tiny, "logger=[csv,tensorboard]")
    lines = metrics_of(directory)
    with (directory / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{key: float(value) for key, value in row.items() if value} for row in rows] == lines
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    for name in ("train/loss", "valid/loss", "tokens_per_second", "memory_share"):
        expected = [(line["step"], line[name]) for line in lines if name in line]
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(step, pytest.approx(value)) for step, value in expected]
    for name, part in {"config": '"segment_length": 16', "sample": "=== the model goes on ==="}.items():
        (event,) = events.Tensors(f"{name}/text_summary")
        assert part in event.tensor_proto.string_val[0].decode()


def test_csv_has_a_column_for_each_metric_and_empty_cells_for_the_rest(tmp_path):
    """What a resumed run repeats is replaced in `metrics.jsonl` already."""
    log = JsonLines(tmp_path, {})
    log.log_metrics({"train/loss": torch.tensor(22.0)}, 2)
    log.log_metrics({"valid/loss": math.nan}, 2)
    (tmp_path / "metrics.csv").write_text("step,old\n1,2.0\n")
    Csv(tmp_path, {}).close({})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "step,train/loss,valid/loss",
        "2,22.0,",
        "2,,",
    ]


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [
        ("logger=wandb", "wandb", "wandb"),
        ("logger=[csv,tensorboard]", "tensorboard", "tensorboard"),
        ("optimizer=lamb", "pytorch_optimizer", "lamb"),
    ],
)
def test_a_package_that_is_missing_is_one_line(monkeypatch, option, package, extra):
    for name in list(sys.modules):
        if name.startswith(
            (package, "torch.utils.tensorboard", "txl.training.loggers.", "txl.training.lamb")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as error:
        check(composed([option, "name=x"]))
    assert str(error.value).endswith(
        f"needs the package {package}; install it with: pip install 'txl[{extra}]'"
    )


def test_a_misspelt_setting_of_a_logger_is_named():
    with pytest.raises(
        ConfigError, match=r"logger\.wandb\.projekt is not.*did you mean logger\.wandb\.project"
    ):
        check(composed(["logger=wandb", "+logger.wandb.projekt=x", "name=x"]))
    with pytest.raises(ConfigError, match=r"logger\.csv\.file is not a setting of Csv; it has none"):
        check(composed(["logger=csv", "+logger.csv.file=x", "name=x"]))


class Kept:
    """What a `.wandb` file holds, read record by record: LevelDB's log format, W&B's protocol buffers."""

    def __init__(self, path: Path) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        self.history, self.summary, self.config, self.exit_code, self.artifacts = [], {}, {}, None, []
        self.step_metric = None
        for payload in self._payloads(path.read_bytes()):
            record = Record.FromString(payload)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                self.history.append(self._values(record.history.item))
            elif kind == "summary":
                self.summary |= self._values(record.summary.update)
            elif kind == "artifact":
                self.artifacts.append(sorted(entry.path for entry in record.artifact.manifest.contents))
            elif kind == "metric" and record.metric.glob_name == "*":
                self.step_metric = record.metric.step_metric
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    @staticmethod
    def _values(items) -> dict:
        return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}

    @staticmethod
    def _payloads(data: bytes):
        assert data[:4] == b":W&B"
        place, parts, block = 7, b"", 32768
        while place + 7 <= len(data):
            if block - place % block < 7:
                place += block - place % block
                continue
            _, length, kind = struct.unpack("<IHB", data[place : place + 7])
            parts += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # the whole of a record, or its last part
                yield parts
                parts = b""


def kept(directory: Path) -> list[Kept]:
    """What the W&B runs of a run directory hold, in the order of their beginning."""
    return [Kept(path) for path in sorted(directory.glob("wandb/offline-run-*/*.wandb"))]


@pytest.fixture
def nobody(tmp_path) -> dict[str, str]:
    """Return an environment without a login."""
    home = tmp_path / "home"
    home.mkdir()
    mine = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return mine | {"HOME": str(home), "TXL_CACHE": str(tmp_path / "cache"), "NETRC": str(home / "none")}


@pytest.mark.slow
def test_three_offline_jobs_of_a_sweep_leave_three_runs(train, tiny, nobody):
    train.environment |= nobody
    words = [
        *tiny,
        "hydra.sweep.dir=sweep",
        "-m",
        "seed=1,2,3",
        "logger=[csv,wandb]",
        "name=a",
        "sample.tokens=5",
    ]
    done = train(*words, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    runs = []
    for job in range(3):
        directory = train.folder / "sweep" / "base" / f"seed{job + 1}"
        (run,) = kept(directory)
        runs.append(run)
        said = (directory / "console.log").read_text()
        assert f"wandb: offline; upload with: wandb sync {directory}/wandb" in said
        results = json.loads((directory / "results.json").read_text())
        config = {key: value for key, value in run.config.items() if key != "_wandb"}
        assert config == results["config"]
        assert config["seed"] == job + 1
        assert "${" not in json.dumps(config)
        assert (run.run.project, run.run.run_group, run.run.job_type) == ("txl", "sweep", "base")
        assert run.run.display_name == f"a base seed{job + 1}"
        assert run.step_metric == "tokens"
        lines = metrics_of(directory)
        logged = [{k: v for k, v in row.items() if not k.startswith("_")} for row in run.history]
        assert logged[:-1] == [{k: pytest.approx(v) for k, v in line.items()} for line in lines]
        assert run.history[-1]["sample/_type"] == "html-file"
        assert run.history[-1]["learning_curve/_type"] == "image-file"
        assert run.summary["status"] == "completed"
        assert run.summary["test"]["loss"] == results["test"]["loss"]
        assert run.exit_code == 0
        (files,) = run.artifacts
        assert {"config.yaml", "figures/learning_curve.png", "results.json", "sample.txt"} <= set(files)
    assert len({run.run.run_id for run in runs}) == 3
    assert sorted(p.name for p in train.folder.iterdir()) == ["cache", "home", "sweep", "tiny.txt"]


def test_a_run_that_fails_is_marked_failed(train, tiny, nobody):
    train.environment |= nobody
    done = train(
        *tiny,
        "logger=wandb",
        "optimizer.lr=1e12",
        "trainer.gradient_clip=null",
        "trainer.max_steps=400",
        fresh=True,
    )
    assert done.returncode == 1
    (run,) = kept(train.run_directory)
    assert run.exit_code == 1
    assert run.summary["status"] == "failed"
    assert run.summary["error"].startswith("training diverged: at step ")
    assert (run.run.run_group, run.run.job_type) == ("", "")


# A logger as a training uses it, without the training.
SCRIPT = """
import logging, sys
from pathlib import Path
from txl.training.loggers import wandb as module
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
module.CONNECT_SECONDS = 2
results = dict.fromkeys(("error", "model", "data", "valid", "test"))
results |= {"status": "completed", "training": {"tokens": 30}}
options = dict(project="p", entity=None, name=None, group="g", job_type="j", offline=False)
for tokens in map(int, sys.argv[2:]):
    logger = module.Wandb(Path(sys.argv[1]), {"name": "x"}, **options)
    logger.log_metrics({"tokens": tokens, "train/loss": 1.0, "used_memory_bytes": None}, tokens // 10)
    logger.close(results)
"""


def script(environment, directory, *tokens: int) -> str:
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(directory), *map(str, tokens)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_resumed_run_is_the_same_run(nobody, tmp_path):
    """Its rows may go back: the x axis is the tokens, and W&B's own count never falls."""
    said = script(nobody, tmp_path / "run", 10, 5)
    assert "step" not in said
    first, second = kept(tmp_path / "run")
    assert first.run.run_id == second.run.run_id
    assert (tmp_path / "run" / "wandb" / "id").read_text() == first.run.run_id
    assert [row["tokens"] for run in (first, second) for row in run.history] == [10, 5]
    assert (first.run.run_group, first.run.job_type) == ("g", "j")


def test_logged_in_but_without_a_network_it_goes_on_offline(nobody, tmp_path):
    environment = nobody | {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    said = script(environment, tmp_path / "run", 10)
    assert "wandb: no connection, logging offline" in said
    assert f"upload with: wandb sync {tmp_path}/run/wandb" in said
    (run,) = kept(tmp_path / "run")
    assert run.history[0]["tokens"] == 10
    assert run.exit_code == 0


@pytest.mark.parametrize(("mode", "runs"), [("disabled", 0), ("offline", 1)])
def test_the_mode_of_the_environment_is_respected(nobody, tmp_path, mode, runs):
    said = script(nobody | {"WANDB_MODE": mode, "WANDB_API_KEY": "0" * 40}, tmp_path / "run", 10)
    assert len(kept(tmp_path / "run")) == runs
    assert ("upload with" in said) == bool(runs)


def test_the_old_name_of_online_is_online(nobody, tmp_path):
    environment = nobody | {"WANDB_MODE": "run", "WANDB_API_KEY": "0" * 40}
    said = script(environment | {"WANDB_BASE_URL": "http://127.0.0.1:9"}, tmp_path / "run", 10)
    assert "wandb: no connection, logging offline" in said


def test_a_key_that_is_none_does_not_stop_a_training(nobody, tmp_path):
    said = script(nobody | {"WANDB_API_KEY": "abc"}, tmp_path / "run", 10)
    assert "wandb: no login, logging offline: WANDB_API_KEY invalid" in said
    (run,) = kept(tmp_path / "run")
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WANDB_MODE", "nonsense", r"mode='nonsense': Input should be 'online', "),
        ("WANDB_BASE_URL", "here", r"base_url='here': Input should be a valid URL"),
        ("WANDB_PROJECT", "a/b", r"Invalid project name 'a/b'"),
    ],
)
def test_what_wandb_refuses_is_one_line_before_training(tmp_path, monkeypatch, variable, value, message):
    from txl.training.loggers.wandb import Wandb

    options = {"entity": None, "name": None, "group": None, "job_type": None, "offline": False}
    if variable == "WANDB_PROJECT":
        with pytest.raises(ConfigError, match=f"^logger=wandb: {message}"):
            Wandb(tmp_path, {"name": "x"}, project=value, **options)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^logger=wandb: {message}.*; correct it"):
        Wandb(tmp_path, {"name": "x"}, project="p", **options)
