"""What the pages under docs/ show is run as it stands."""

import re
import subprocess
import sys

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
