"""Long work shows its progress: a bar on a terminal, plain lines elsewhere; short work shows nothing."""

import io
import logging

import pytest
from rich.console import Console

from txl import terminal
from txl.terminal import ByteProgress, progress_bar


@pytest.fixture
def stderr(monkeypatch):
    """Return a function that replaces stderr and returns what is written there."""

    def replace(is_terminal: bool) -> io.StringIO:
        output = io.StringIO()
        monkeypatch.setattr(
            terminal, "Console", lambda **_: Console(file=output, force_terminal=is_terminal, width=100)
        )
        return output

    return replace


def shown(monkeypatch, caplog, output: io.StringIO, silent: float) -> tuple[str, list[str]]:
    """Return what two steps of a task print and log."""
    monkeypatch.setattr(terminal, "SILENT_SECONDS", silent)
    with caplog.at_level(logging.INFO), ByteProgress("reading", 4_000_000) as task:
        for _ in range(2):
            task.advance(2_000_000)
    return output.getvalue(), caplog.messages


def test_a_terminal_has_a_bar(monkeypatch, caplog, stderr):
    printed, logged = shown(monkeypatch, caplog, stderr(True), silent=0)
    assert "reading" in printed
    assert "/4.0 MB" in printed
    assert not logged


def test_a_file_has_lines_at_intervals(monkeypatch, caplog, stderr):
    assert shown(monkeypatch, caplog, stderr(False), silent=0) == ("", ["reading: 2 of 4 MB"])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_short_work_shows_nothing(monkeypatch, caplog, stderr, is_terminal):
    assert shown(monkeypatch, caplog, stderr(is_terminal), silent=9) == ("", [])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_progress_bar_is_on_a_terminal_alone(stderr, is_terminal):
    output = stderr(is_terminal)
    with progress_bar("scoring [a]") as update:
        update(advance=2)
        update(total=8, description="scoring [b]")
        update(completed=8)
    printed = output.getvalue()
    assert all((part in printed) == is_terminal for part in ("scoring [b]", "100%"))
    assert is_terminal or not printed
