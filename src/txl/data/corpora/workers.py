"""Counting and encoding words in several processes, as Python's interpreter lock lets one use only one core.

Each worker is a plain child process that reads tasks from its standard input and writes results to its
standard output. It ends by itself when this process does, however that ends, and it needs nothing of the main
program, which `multiprocessing` would import again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import txl
from txl.data.vocabulary import Vocabulary, words

WAITING = 2  # tasks that a worker is given ahead


class Lines(NamedTuple):
    """A task: some lines of a file.

    Attributes:
        path, begin, end: a run of its bytes.
        last: whether nothing follows, so that the last line ends even without a newline.
    """

    path: Path
    begin: int
    end: int
    last: bool

    def read(self) -> bytes:
        """Return the lines."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.end - self.begin)


def count(end_of_line: str, lines: Lines) -> Counter:
    """Return how often each word occurs, in order of first appearance."""
    return Counter(words(lines.read().decode(), end_of_line, lines.last))


def encode(vocabulary: Vocabulary, lines: Lines) -> np.ndarray:
    """Return the ids of the words."""
    return vocabulary.encode(lines.read(), lines.last)


class Workers:
    """Does tasks side by side and gives their results in order; a context.

    Args:
        number: of processes; with 1 the work is done here.
        function: `count` or `encode`.
        setting: their first argument.
    """

    def __init__(self, number: int, function: Callable, setting: str | Vocabulary) -> None:
        self.function, self.setting = function, setting
        self.processes = [self._start() for _ in range(number)] if number > 1 else []

    def _start(self) -> subprocess.Popen:
        places = [str(Path(txl.__file__).parents[1]), os.environ.get("PYTHONPATH")]
        worker = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        )
        self._send(worker, self.setting if self.function is count else self.setting.lines())
        return worker

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.processes:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def map(self, tasks: Iterable[Lines]) -> Iterator:
        """Yield the result of each task, in order.

        Raises:
            OSError: a worker ended, as when the system is short of memory.
        """
        if not self.processes:
            yield from (self.function(self.setting, task) for task in tasks)
            return
        under_way: deque[subprocess.Popen] = deque()
        for number, task in enumerate(tasks):
            worker = self.processes[number % len(self.processes)]
            if len(under_way) == WAITING * len(self.processes):
                yield self._result(under_way.popleft())
            self._send(worker, task)
            under_way.append(worker)
        while under_way:
            yield self._result(under_way.popleft())

    @staticmethod
    def _send(worker: subprocess.Popen, thing: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # reading its result says that it ended
            pickle.dump(thing, worker.stdin)
            worker.stdin.flush()

    @staticmethod
    def _result(worker: subprocess.Popen) -> object:
        try:
            return pickle.load(worker.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise OSError(
                f"a process that reads words ended with {worker.wait()}; is the memory full? Start again"
            ) from error


def work() -> None:
    """Do the tasks of the parent process until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    setting = pickle.load(sys.stdin.buffer)
    function = count
    if not isinstance(setting, str):
        function, setting = encode, Vocabulary.from_lines("word", setting)
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            pickle.dump(function(setting, task), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the parent has gone
            os._exit(1)
