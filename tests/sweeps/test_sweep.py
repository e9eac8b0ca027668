"""Sweeps: which jobs there are, where they are, what is done again. Stand-ins take the place of the runs."""

import importlib.util
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from conftest import ROOT
from sweeps.test_arguments import MINE
from txl.launch.environment import check_processes, in_sweep, started_elsewhere, world_size
from txl.program import resolve_ablation
from txl.records.files import LockedError, lock_directory, write_atomically
from txl.records.results import initial_results
from txl.report.sweeps import read_sweeps
from txl.runs.assemble import use_absolute_paths
from txl.settings.errors import ConfigError
from txl.settings.overrides import quoted
from txl.settings.schema import check
from txl.sweeps.jobs import variant_name
from txl.sweeps.progress import last_step
from txl.sweeps.sweep import sweep
from txl.sweeps.worker import stop_order


class Task:
    """Stands for what a launcher calls: notes where it was called, and writes what a run would."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails: dict[str, str] = {}
        self.stops_at: str | None = None
        self.seen: list[bool] = []

    def __call__(self, settings) -> None:
        directory = Path(HydraConfig.get().runtime.output_dir)
        place = f"{directory.parent.name}/{directory.name}"
        if stop_order(directory.parents[1]):
            return
        self.ran.append(place)
        self.seen.append(in_sweep())
        use_absolute_paths(settings)
        config = OmegaConf.to_container(settings, resolve=True)
        results = initial_results("x", settings.seed, list(HydraConfig.get().overrides.task), config)
        scores = {"loss": 1.0, "perplexity": 2.7, "bits_per_character": 1.44}
        if place == self.stops_at:
            os.kill(os.getpid(), signal.SIGTERM)
        elif place in self.fails:
            results |= {"status": "failed", "error": self.fails[place]}
        else:
            results |= {"status": "completed", "error": None, "valid": scores, "test": scores}
            results |= {"data": {"name": "x", "unit": "byte", "tokens": {}}, "training": {"seconds": 2.0}}
        write_atomically(directory / "results.json", json.dumps(results))


class Sweeps:
    """Runs sweeps in this process, from the words of a command line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task = folder, Task()

    def __call__(self, *words: str, directory: str | None = "sweep") -> int:
        """Return the exit code."""
        words = resolve_ablation(["-m", *words])[1:]
        if directory:
            words.append(f"hydra.sweep.dir={quoted(self.folder / directory)}")
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            config = hydra.compose_config("train", [*words, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
            context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
            try:
                sweep(context, self.task, config, list(config.hydra.overrides.task))
            except SystemExit as end:
                return end.code
        return 0

    def jobs(self, directory: str = "sweep") -> list[dict]:
        """Return the jobs of `sweep.json`."""
        return self.described(directory)["jobs"]

    def described(self, directory: str = "sweep") -> dict:
        """Return `sweep.json`."""
        return json.loads((self.folder / directory / "sweep.json").read_text())

    def results(self, place: str) -> dict:
        """Return the results of a job."""
        return json.loads((self.folder / "sweep" / place / "results.json").read_text())


@pytest.fixture
def run(tmp_path, monkeypatch) -> Sweeps:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("txl.sweeps.sweep.write_tables", lambda directory: [])
    monkeypatch.setattr("txl.sweeps.sweep.summary_of", lambda directory, width: "")
    (tmp_path / "mine.yaml").write_text(MINE, "utf-8")
    return Sweeps(tmp_path)


def test_every_row_runs_with_every_seed(run):
    words = ["+ablation=mine.yaml", "seed=1,2", "trainer.max_steps=9"]
    assert run(*words) == 0
    assert run.task.ran == ["xl/seed1", "xl/seed2", "rotary/seed1", "rotary/seed2"]
    assert all(run.task.seen)
    sweep = run.described()
    assert (sweep["schema"], sweep["name"], sweep["scale"]) == (1, "mine", "laptop")
    assert sweep["words"] == ["-m", *words]
    assert list(sweep["table"]["rows"]) == ["xl", "other", "rotary", "same"]
    # What the command line says comes after what the row says.
    overrides = ["position=rotary", "seed=2", "trainer.max_steps=9"]
    assert sweep["jobs"][-1] == {
        "row": "rotary",
        "seed": 2,
        "directory": "rotary/seed2",
        "overrides": overrides,
    }
    assert run.results("rotary/seed2")["config"]["trainer"]["max_steps"] == 9
    assert not (run.folder / "sweep" / ".stop").exists()


def test_an_ordinary_sweep_names_its_rows_after_what_is_swept_over(run):
    assert run("position=relative,rotary", "model.n_layer=2", "seed=1,2", "name=a") == 0
    assert run.task.ran == [f"position-{p}/seed{s}" for p in ("relative", "rotary") for s in (1, 2)]
    sweep = run.described()
    assert (sweep["name"], sweep["scale"], sweep["table"]) == ("a", None, None)
    assert run("seed=range(1,3)", directory="seeds") == 0
    assert [job["directory"] for job in run.jobs("seeds")] == ["base/seed1", "base/seed2"]


def test_a_row_with_variants_is_a_row_of_the_table_each(run):
    assert run("+ablation=mine.yaml", "ablation.rows=[xl]", "model.n_layer=2,3") == 0
    assert run.task.ran == ["xl_n_layer-2/seed5", "xl_n_layer-3/seed5"]
    rows = run.described()["table"]["rows"]
    assert rows["xl_n_layer-3"]["label"] == "XL, n_layer-3"
    assert rows["same_n_layer-2"]["same_run"] == "xl_n_layer-2"


def test_rows_have_names_that_are_directories(tmp_path):
    assert variant_name(["model.n_layer=4", "+position.clamp_length=8"]) == "n_layer-4_clamp_length-8"
    assert variant_name(["data.path=/a/b c=d.txt", "model.cutoffs=[6,9]"]) == "path-a-b-c-d.txt_cutoffs-6-9"
    long = [variant_name([f"data.path={'x' * 300}{end}"]) for end in "ab"]
    assert long[0] != long[1]
    assert len(long[0]) <= 100


def test_jobs_with_the_same_name_do_not_share_a_directory(run):
    assert run("training.memory_length=16,32", "evaluation.segment_length=16,32") == 0
    assert run("data.path=x/y,x y", "data=text", directory="paths") == 0
    assert [job["directory"] for job in run.jobs("paths")] == ["path-x-y/seed1", "path-x-y-2/seed1"]
    assert len(set(run.task.ran)) == 6


def test_every_job_has_its_row_in_the_table(run):
    """Also those of an earlier call, of a row that the file has no more, and those that got a number."""

    def rows() -> dict[str, int]:
        found = {row.name: len(row.runs) for row in read_sweeps([run.folder / "sweep"]).rows}
        return {name: count for name, count in found.items() if count}

    one = ["+ablation=mine.yaml", "ablation.rows=[xl]"]
    assert run(*one, "data=text", "data.path=x/y,x y") == 0
    assert rows() == {"xl_path-x-y": 1, "xl_path-x-y-2": 1, "same_path-x-y": 1}
    assert run("+ablation=mine.yaml") == 0
    (run.folder / "mine.yaml").write_text(MINE.replace("rotary:", "turned:"), "utf-8")
    assert run("+ablation=mine.yaml", "ablation.rows=[turned]") == 0
    names = {"xl", "same", "turned", "rotary", "xl_path-x-y", "xl_path-x-y-2"}
    assert rows() == dict.fromkeys(names, 1)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"name": "mine", "jobs": [3]}'])
def test_damaged_files_are_one_line_that_names_them(run, content):
    words = ["+ablation=mine.yaml", "ablation.rows=[xl]"]
    for name in ("sweep.json", "xl/seed5/results.json"):
        path = run.folder / "sweep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            run(*words)
        assert path.read_text() == content
        if name == "sweep.json":
            with pytest.raises(ValueError, match=r"sweep\.json is damaged"):
                run(*words, "ablation.reuse=sweep", directory="other")
            path.unlink()
    assert run.task.ran == []


def test_an_ablation_without_a_name_is_no_ordinary_sweep(run):
    with pytest.raises(ConfigError, match="there is no ablation"):
        run("+ablation=")


def test_what_is_asked_for_twice_is_run_once(run):
    assert run("+ablation=mine.yaml", "ablation.rows=[xl]", "seed=1,1,2") == 0
    assert run.task.ran == ["xl/seed1", "xl/seed2"]


def test_what_is_done_is_not_repeated_and_what_failed_is_tried_again(run, capsys):
    run.task.fails = {"xl/seed2": "the sky fell"}
    words = ["+ablation=mine.yaml", "seed=1,2"]
    assert run(*words) == 1
    out = capsys.readouterr().out
    assert "xl seed 2  failed: the sky fell" in out
    assert "xl seed 1  valid 1.440 bits per byte after 2 s" in out
    assert "3 of 4 jobs done, 1 failed" in out
    run.task.ran, run.task.fails = [], {}
    assert run(*words) == 0
    assert run.task.ran == ["xl/seed2"]
    assert "4 jobs in sweep, 3 of them done already" in capsys.readouterr().out
    assert run(*words) == 0
    assert run.task.ran == ["xl/seed2"]
    # More of the same goes on in the same place, and less forgets nothing.
    assert run("+ablation=mine.yaml", "seed=3", "ablation.rows=[xl]") == 0
    assert run.task.ran == ["xl/seed2", "xl/seed3"]
    assert len(run.jobs()) == 5


def test_a_job_that_does_not_compose_is_a_failed_row_and_the_others_run(run, capsys):
    assert run("position=relative,rotry,rotary", "seed=1") == 1
    assert run.task.ran == ["position-relative/seed1", "position-rotary/seed1"]
    results = run.results("position-rotry/seed1")
    assert (results["status"], results["config"]) == ("failed", None)
    assert results["error"] == "there is no position=rotry; did you mean rotary?"
    assert "there is no position=rotry" in capsys.readouterr().out
    assert run("training.memory_length=16,-1", directory="checks") == 1
    assert json.loads((run.folder / "checks/memory_length--1/seed1/results.json").read_text())["error"] == (
        "training.memory_length=-1 must be 0 or more"
    )


def test_other_settings_in_the_same_place_are_refused(run):
    words = ["+ablation=mine.yaml", "ablation.rows=[xl]"]
    assert run(*words) == 0
    before = (run.folder / "sweep" / "sweep.json").read_bytes()
    for more, said in {
        "model.n_layer=3": "model.n_layer=4, not 3",
        "trainer.max_steps=9": "trainer.max_steps=8, not 9",
    }.items():
        with pytest.raises(ValueError, match=f"{said}; .*another directory: hydra.sweep.dir=…$"):
            run(*words, more)
    with pytest.raises(ValueError, match="holds a sweep with scale laptop, not paper; choose another"):
        run(*words, "scale=paper")
    assert (run.folder / "sweep" / "sweep.json").read_bytes() == before
    assert run.task.ran == ["xl/seed5"]


def test_a_signal_stops_the_sweep_and_the_same_command_goes_on(run, capsys):
    run.task.stops_at = "xl/seed2"
    words = ["+ablation=mine.yaml", "seed=1,2"]
    assert run(*words) == 143
    assert run.task.ran == ["xl/seed1", "xl/seed2"]
    assert "stopped; 1 of 4 jobs done. Run the same command to continue" in capsys.readouterr().out
    run.task.ran, run.task.stops_at = [], None
    assert run(*words) == 0
    assert run.task.ran == ["xl/seed2", "rotary/seed1", "rotary/seed2"]


def test_the_directory_follows_from_the_words(run):
    def place(*words: str) -> str:
        before = set((run.folder / "multirun").glob("*"))
        assert run(*words, directory=None) == 0
        new = set((run.folder / "multirun").glob("*")) - before
        return new.pop().name if new else ""

    first = place("+ablation=mine.yaml", "seed=1,2")
    assert first.startswith("mine-")
    assert len(first) == len("mine-") + 8
    assert place("seed=1,2", "+ablation=mine.yaml", "hydra/launcher=basic") == ""
    assert len(run.task.ran) == 4
    assert place("+ablation=mine.yaml", "seed=1").startswith("mine-")
    assert place("seed=1", "data=lagged_copy").startswith("lagged_copy-")


def test_a_second_sweep_in_the_same_directory_is_refused(run):
    (run.folder / "sweep").mkdir()
    held = lock_directory(run.folder / "sweep")
    with pytest.raises(LockedError, match=r"is locked by another process; .*another hydra\.sweep\.dir"):
        run("seed=1")
    os.close(held)
    assert run.task.ran == []
    assert run("seed=1") == 0


def test_a_dry_run_lists_every_job_with_its_cost_and_starts_nothing(run, capsys, monkeypatch):
    monkeypatch.setattr("txl.terminal.console.width", 200)
    words = ["+ablation=mine.yaml", "seed=1,2", "data=text", "data.path=x", "data.vocabulary=50"]
    assert run(*words, "--dry-run") == 0
    assert not (run.folder / "sweep").exists()
    out = capsys.readouterr().out
    for part in ("4 jobs in", "position=rotary", "to do", "nothing was started"):
        assert part in out
    assert run.task.ran == []


def test_a_dry_run_says_what_is_measured_then(run, capsys, monkeypatch):
    monkeypatch.setattr("txl.terminal.console.width", 200)
    (run.folder / "then.yaml").write_text(MINE.replace("rows:", MEASURED + "rows:"), "utf-8")
    assert run("+ablation=then.yaml", "data=text", "data.path=x", "data.vocabulary=50", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "then  txl attention xl/seed5\n    a=1 b=2\nthen  txl attention rotary/seed5\n" in out


def test_a_table_that_trains_nothing_takes_no_settings(run, capsys):
    assert run("+ablation=table9", "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.startswith("0 jobs in sweep")
    assert "then  txl speed \n    experiment=enwik8_12l attention_length=[800,1800,2800,3800]\n" in out
    with pytest.raises(ConfigError, match="table9 trains nothing; leave out seed=1,2"):
        run("+ablation=table9", "seed=1,2")


def test_runs_of_another_sweep_are_used_where_their_settings_are_the_same(run, capsys):
    words = ["+ablation=mine.yaml", "ablation.rows=[xl]"]
    assert run(*words, "seed=1,2", directory="first") == 0
    assert run(*words, "seed=3", "model.n_layer=3", directory="first") == 0
    run.task.ran = []
    again = ["seed=2,3", "ablation.reuse=first"]
    assert run(*words, *again) == 0
    assert run.task.ran == ["xl/seed3"]
    assert "1 jobs are runs of first" in capsys.readouterr().out
    place = run.folder / "sweep" / "xl" / "seed2"
    assert os.readlink(place) == "../../first/xl/seed2"
    assert run(*words, *again) == 0
    assert run.task.ran == ["xl/seed3"]
    with pytest.raises(ValueError, match=r"ablation.reuse=xl holds no sweep.json; name the directory"):
        run(*words, "seed=9", "ablation.reuse=xl")


def test_runs_are_taken_only_into_a_directory_of_the_same_sweep(run):
    words = ["+ablation=mine.yaml", "ablation.rows=[xl]", "seed=1"]
    assert run(*words, directory="first") == 0
    (run.folder / "sweep").mkdir()
    (run.folder / "sweep" / "sweep.json").write_text('{"name": "table6", "scale": "laptop", "jobs": []}')
    with pytest.raises(ValueError, match="holds a sweep with name table6, not mine"):
        run(*words, "ablation.reuse=first")
    assert [path.name for path in (run.folder / "sweep").iterdir()] == ["sweep.json"]
    # Of several jobs one does not fit what is there: none is linked.
    assert run(*words, "seed=2", "model.n_layer=3", directory="other") == 0
    with pytest.raises(ValueError, match=r"model\.n_layer=3, not 4|model\.n_layer=4, not 3"):
        run(*words[:2], "seed=1,2", "ablation.reuse=first", directory="other")
    assert not os.path.lexists(run.folder / "other" / "xl" / "seed1")
    with pytest.raises(ValueError, match=r"ablation.reuse=gone holds no sweep.json"):
        run(*words, "ablation.reuse=gone", directory="new")
    assert not (run.folder / "new").exists()


def test_a_file_is_no_place_for_a_sweep(run):
    (run.folder / "notes").write_text("mine")
    for place in ("notes", "notes/sweep"):
        with pytest.raises(ConfigError, match=r"hydra.sweep.dir=.*notes is a file; name a directory"):
            run("seed=1", directory=place)
    assert (run.folder / "notes").read_text() == "mine"


MEASURED = "evaluation: {verb: attention, laptop: [a=1, b=2]}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+ablation=mein.yaml"], "there is no ablation mein"),
        (["hydra/launcher=gone"], "Could not find 'hydra/launcher/gone'"),
        (["optimizer.lr=interval(0,1)"], "is not a list of values; give one: optimizer.lr=1,2,3"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(run, words, said):
    with pytest.raises(Exception, match=said):
        run(*words)
    assert not (run.folder / "sweep").exists()


def test_a_launcher_that_is_not_installed_is_one_line(run, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "joblib" in name else find(name))
    with pytest.raises(ConfigError, match=r"hydra/launcher=parallel needs .* pip install 'txl\[sweeps\]'"):
        run("seed=1", "hydra/launcher=parallel")


def test_a_launcher_that_fails_leaves_the_jobs_to_the_next_call(run, capsys, monkeypatch):
    def broken(*words, **options):
        raise RuntimeError("a worker was killed")

    with monkeypatch.context() as patch:
        launcher = SimpleNamespace(launch=broken)
        patch.setattr(Plugins, "instantiate_launcher", lambda *words: launcher)
        assert run("seed=1,2") == 1
    assert "the launcher failed: a worker was killed" in capsys.readouterr().out
    assert run("seed=1,2") == 0


def test_the_last_step_is_that_of_the_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_step(path) == 0
    path.write_text('{"step": 1, "x": 2}\n{"step": 2}\n{"ste')
    assert last_step(path) == 2
    path.write_text("".join(f'{{"step": {i}, "text": "{"x" * 50}"}}\n' for i in range(500)))
    assert last_step(path) == 499


def test_the_one_task_of_slurm_starts_the_processes_of_a_job_itself(run, monkeypatch):
    """SLURM_NTASKS is 1 there, and two processes are needed."""
    for name, value in {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    write, started = run.task, []

    def task(settings) -> None:
        config = check(settings)
        check_processes(config)
        started.append((started_elsewhere(), world_size(config.trainer)))
        write(settings)

    run.task = task
    assert run("seed=1", "trainer=ddp_cpu") == 0
    assert started == [(None, 2)]
