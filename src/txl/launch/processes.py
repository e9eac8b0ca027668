"""Starting the processes of a run, a sweep's job or a verb on this machine.

They end together: signals are passed on, when one fails the others are ended, and none outlives its parent.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from txl.launch.stop import KILL_SECONDS, SIGNALS, StopRequest

LIFELINE = "TXL_LIFELINE"  # the descriptor of a pipe that closes when the parent ends
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
GRACE_SECONDS = 20.0  # to save and leave, when another process has failed
POLL_SECONDS = 1.0  # between two calls of `poll`


class StopOrder(NamedTuple):
    """A request to stop that came by another way than a signal."""

    number: int  # the signal to pass on
    seconds: float = math.inf  # after which processes that are still there are killed


Poll = Callable[[], StopOrder | None]


class ProcessError(RuntimeError):
    """One of the processes of a run failed; the others were ended.

    Args:
        code: its exit code; negative for the signal that killed it, so that it could not say why.
        said: why it failed, if it printed that; the message, unless it was killed.
    """

    def __init__(self, number: int, world: int, code: int, said: str | None = None) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:  # which is what the kernel sends when memory runs out
            how += ", perhaps for lack of memory"
        several = f"process {number} of {world} {how}; the others were ended"
        self.killed = code < 0
        super().__init__((not self.killed and said) or (several if world > 1 else f"the process {how}"))


class StalledError(ProcessError):
    """The processes made no progress for too long and were killed."""

    killed = True

    def __init__(self, seconds: float) -> None:
        RuntimeError.__init__(self, f"no progress for {seconds:g} s; the processes were killed")


def run_together(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    output: IO | None = None,
    poll: Poll = lambda: None,
    stop_seconds: float = math.inf,
) -> int | None:
    """Run a command once for each environment and wait until all have ended.

    Args:
        command: the program and its arguments; it calls `hold_lifeline`.
        environments: variables that each process has besides those of this one.
        output: the file they print to, whose last line then says why one failed; `None` for where this
            process prints.
        poll: called every second; says whether to stop. What it raises ends the processes.
        stop_seconds: after a first signal, until processes that are still there are killed. By default they
            may take as long as a training step and its checkpoint need.

    Returns:
        The signal that was passed on though all ended well; `None` for none.

    Raises:
        ProcessError: one failed.
        SystemExit: they ended because of a signal; its code is 128 and the signal.
    """
    pipe, other_end = os.pipe()
    printed = output.tell() if output else 0
    running: list[subprocess.Popen] = []
    failed: int | None = None
    deadline, next_poll = math.inf, 0.0

    def kill_in(seconds: float) -> None:
        nonlocal deadline
        deadline = min(deadline, time.monotonic() + seconds)

    def send(number: int) -> None:
        for process in running:
            if process.poll() is None:
                process.send_signal(number)

    def pass_on(seconds: float, number: int) -> None:
        kill_in(seconds)
        send(number)

    def first_failed() -> int | None:
        return next((i for i, process in enumerate(running) if process.returncode), None)

    with StopRequest(partial(pass_on, stop_seconds), partial(pass_on, KILL_SECONDS)) as stop:
        try:
            for variables in environments:
                # A session of its own: Ctrl-C in the terminal reaches this process alone, which passes it on.
                process = subprocess.Popen(
                    command,
                    env=os.environ | variables | {LIFELINE: str(pipe)},
                    pass_fds=[pipe],
                    start_new_session=True,
                    stdout=output,
                    stderr=output and subprocess.STDOUT,
                )
                running.append(process)
                if stop.received is not None:
                    process.send_signal(stop.received)
            while None in [process.poll() for process in running]:
                if failed is None and (failed := first_failed()) is not None:
                    kill_in(GRACE_SECONDS)
                    if running[failed].returncode < 128:  # it was not stopped, as the others would be, too
                        send(signal.SIGTERM)
                if time.monotonic() > next_poll:
                    next_poll = time.monotonic() + POLL_SECONDS
                    if order := poll():
                        kill_in(order.seconds)
                        if stop.received is None:
                            stop.ask(order.number)
                if time.monotonic() > deadline:
                    send(signal.SIGKILL)
                time.sleep(0.05)
        finally:
            send(signal.SIGKILL)
            for process in running:
                process.wait()
            os.close(pipe)
            os.close(other_end)
    failed = first_failed() if failed is None else failed
    if failed is None:
        return stop.received
    code = running[failed].returncode
    # A process that was still starting, without handlers, ends by the signal itself.
    stopped = {-signal.SIGKILL, *(end for number in SIGNALS for end in (128 + number, -number))}
    if stop.received is not None and code in stopped:
        raise SystemExit(128 + stop.received)
    said = None
    if output:
        lines = Path(output.name).read_bytes()[printed:].decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), None)
    raise ProcessError(failed, len(running), code, said)


def hold_lifeline() -> None:
    """End this process at once when the process that started it is killed."""
    if LIFELINE not in os.environ:
        return
    if sys.platform.startswith("linux"):  # a stopped process runs no thread, but the kernel can kill it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch(pipe: int) -> None:
        os.read(pipe, 1)  # nothing is ever written: it returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, args=(int(os.environ[LIFELINE]),), daemon=True).start()
