"""What the README shows is run as it stands."""

import re

from conftest import ROOT, TINY


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def test_the_encoding_to_add_is_complete(train, text_file):
    (code,), (settings,) = blocks("python"), blocks("yaml")
    assert len(code.splitlines()) < 100
    (train.folder / "decay.py").write_text(code, "utf-8")
    (train.folder / "more" / "position").mkdir(parents=True)
    (train.folder / "more" / "position" / "decay.yaml").write_text(settings, "utf-8")
    train.environment["PYTHONPATH"] = str(train.folder)
    words = ["position=decay", *TINY, f"data.path={text_file}", "position.rate=0.7", "--config-dir", "more"]
    done = train(*words, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert train.results()["config"]["position"] == {"_target_": "decay.DecayPosition", "rate": 0.7}
    assert train.results()["test"]["tokens_scored"] > 0
