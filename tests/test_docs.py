"""The examples in docs/ run as printed, and the map of the package matches the code."""

import re
import subprocess
import sys

import yaml

from conftest import ROOT


def test_the_page_on_truncated_bptt_runs(tmp_path):
    text = (ROOT / "docs" / "coming-from-truncated-bptt.md").read_text("utf-8")
    module, use = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line for line in module.splitlines() if line.startswith(("class", "    "))]
    assert len(lines) <= 11  # the class and ten lines in it
    use += "assert module.memory.length.tolist() == [64] * 8\n"
    use += "assert not any(states.requires_grad for states in module.memory.states)\n"
    (tmp_path / "page.py").write_text(module + use, "utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ steps, the memory holds \[64, 64, 64, ", done.stdout, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["page.py"]


def rooms() -> set[str]:
    paths = (ROOT / "src" / "txl").iterdir()
    return {path.stem for path in paths if path.suffix in (".py", "")} - {"__init__", "__pycache__"}


def test_the_map_names_every_room_and_only_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == rooms()
    files = set(re.findall(r"`((?:src|conf|ablations|docs)/[\w/.]+)`", text))
    assert len(files) > 30
    assert not [file for file in files if not (ROOT / file).exists()]


def test_the_drawing_shows_every_room_and_does_not_change_from_run_to_run(tmp_path):
    drawings = []
    for name in ("first.svg", "second.svg"):
        command = [sys.executable, ROOT / "docs" / "draw_architecture.py", "--out", tmp_path / name]
        subprocess.run(command, check=True, timeout=120)
        drawings.append((tmp_path / name).read_text("utf-8"))
    assert drawings[0] == drawings[1]
    kept = (ROOT / "docs" / "architecture.svg").read_text("utf-8")
    assert all(f">{room}<" in drawing for room in rooms() for drawing in (drawings[0], kept))


def test_versions_that_stand_in_two_places_agree():
    project = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == project
    ruff = re.search(r"^ruff==(.+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)[1]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert hooks["repos"][0]["rev"] == f"v{ruff}"
