"""The one protocol for stopping a run, a sweep, its jobs and the verbs.

The first signal asks for a clean end: save, record, leave. The second one ends at once. What does not answer
is killed: `KILL_SECONDS` after the second signal no process that we started is left, not even a stopped one.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SLURM warns with the last one
# SLURM signals every process of a job, and a process that started others passes its signals on as well.
ECHO_SECONDS = 0.5
KILL_SECONDS = 4.0  # from the second signal until processes that do not answer are killed


class StopRequest:
    """Counts the signals that ask this process to stop. A context that installs and restores the handlers.

    Requests nest: what an inner one received is passed to the outer one when the inner one ends. Outside of
    the main thread, where Python allows no handlers, it receives nothing.

    Args:
        first: called with the number of the first signal, inside the handler.
        second: called with the number of a later signal, inside the handler.

    Attributes:
        received: the number of the first signal; `None` before it. Set from outside where another process
            received it.
        urgent_since: when the second signal came, by `time.monotonic`; `None` before it.
    """

    def __init__(
        self,
        first: Callable[[int], object] = lambda number: None,
        second: Callable[[int], object] = lambda number: None,
        signals: Sequence[int] = SIGNALS,
    ) -> None:
        self.first, self.second, self.signals = first, second, signals
        self.received: int | None = None
        self.urgent_since: float | None = None
        self._asked, self._latest = 0, -math.inf

    def __enter__(self) -> "StopRequest":
        main = threading.current_thread() is threading.main_thread()
        self._previous = {number: signal.signal(number, self._handle) for number in self.signals if main}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        outer = getattr(next(iter(self._previous.values()), None), "__self__", None)
        if self.received is not None and isinstance(outer, StopRequest) and outer.received is None:
            outer.ask(self.received)

    def ask(self, number: int) -> None:
        """Ask to stop as the signal `number` does."""
        self._asked += 1
        if self._asked == 1:
            self.received = self.received or number
            self.first(number)
        else:
            self.urgent_since = self.urgent_since or time.monotonic()
            self.second(number)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if time.monotonic() - self._latest > ECHO_SECONDS:
            self._latest = time.monotonic()
            self.ask(number)


def end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
