"""What takes longer shows how far it is: a bar in a terminal, else plain lines; what is quick is silent."""

import io
import logging

import pytest
from rich.console import Console

from txl.data import progress
from txl.data.progress import Progress


def shown(monkeypatch, caplog, terminal: bool, silent: float) -> tuple[str, list[str]]:
    """Return what two steps of a task print and log."""
    output = io.StringIO()
    monkeypatch.setattr(progress, "SILENT_SECONDS", silent)
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=output, force_terminal=terminal, width=100)
    )
    with caplog.at_level(logging.INFO), Progress("reading", 4_000_000) as task:
        for _ in range(2):
            task.advance(2_000_000)
    return output.getvalue(), caplog.messages


def test_a_terminal_has_a_bar(monkeypatch, caplog):
    printed, logged = shown(monkeypatch, caplog, terminal=True, silent=0)
    assert "reading" in printed
    assert "/4.0 MB" in printed
    assert not logged


def test_a_file_has_lines_now_and_then(monkeypatch, caplog):
    assert shown(monkeypatch, caplog, terminal=False, silent=0) == ("", ["reading: 2 of 4 MB"])


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_quick_says_nothing(monkeypatch, caplog, terminal):
    assert shown(monkeypatch, caplog, terminal, silent=9) == ("", [])
