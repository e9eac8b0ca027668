"""The words after a verb's model: typed, and a misspelt one is answered with the nearest."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from txl.__main__ import main
from txl.verbs import describe
from txl.verbs.runner import check_writable, result_path
from txl.verbs.settings import parse_settings


@dataclass
class Some:
    length: int = 1
    lengths: list[int] | None = None
    names: list[str] = field(default_factory=list)
    rate: float | None = 0.5
    greedy: bool = False
    prompt: str | None = None
    out: Path | None = None


def test_words_become_typed_settings():
    words = ["length=3", "lengths=[64, 128]", "names=a,b", "rate=null", "greedy=true", "prompt=a = b, [c]"]
    assert parse_settings([*words, "out=x/y"], Some) == Some(
        3, [64, 128], ["a", "b"], None, True, "a = b, [c]", Path("x/y")
    )
    assert parse_settings(["lengths=64", "length=1", "length=2", "rate=1e-3"], Some) == Some(
        2, [64], rate=1e-3
    )
    assert parse_settings([], Some) == Some()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lenght=3", "there is no setting lenght; did you mean length or lengths"),
        ("length", "'length' is not a setting: expected key=value, where the keys are length, lengths"),
        ("length=3.5", "length=3.5: expected a whole number$"),
        ("length=null", "length=null: expected a whole number$"),
        ("lengths=[1,x]", r"lengths=\[1,x\]: expected a list, each item a whole number, or null"),
        ("rate=fast", "rate=fast: expected a number, or null"),
        ("greedy=1", "greedy=1: expected true or false"),
    ],
)
def test_a_word_that_cannot_be_right_is_named(word, message):
    with pytest.raises(ValueError, match=message):
        parse_settings([word], Some)


def test_the_same_words_have_the_same_file():
    here = Path("run")
    path = result_path(here, "evaluate", ["a=1", "b=2"], None)
    assert path.parent == here / "evaluations"
    assert path == result_path(here, "evaluate", ["b=2", "a=1"], None)
    assert path != result_path(here, "evaluate", ["a=1", "b=3"], None)
    assert result_path(here, "evaluate", [], Path("x.json")) == Path("x.json")


def test_where_nothing_can_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    for path, message in {
        tmp_path: "is a folder; name a file in it",
        tmp_path / "file" / "new" / "x.json": "file is not a folder",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_writable(path)
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new" / "x.json")
    assert not (tmp_path / "new").exists()


def test_a_verb_that_is_terminated_ends_as_with_ctrl_c(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def terminated(arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(describe, "run", terminated)
    assert main(["describe"]) == 143
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def failing(arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nat c10")

    monkeypatch.setattr(describe, "run", failing)
    assert main(["describe"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory: DefaultCPUAllocator")
    assert said.count("\n") == 1
