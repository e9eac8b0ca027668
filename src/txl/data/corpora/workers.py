"""Work in several processes, because Python's interpreter lock allows only one core."""

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
TASKS_AHEAD = 2  # per worker, so that memory stays bounded


@contextmanager
def parallel_map(
    function: Callable[[Task], Result], processes: int
) -> Iterator[Callable[[Iterable[Task]], Iterator[Result]]]:
    """Yield a `map` that applies the function in worker processes and gives the results in order.

    It stays a few tasks ahead of its reader. With one process the work is done in this one.

    Raises:
        OSError: a worker died.
    """
    if processes == 1:
        yield partial(map, function)
        return
    pool = ProcessPoolExecutor(processes, _Context(), _initialize, (function,))
    try:
        yield partial(_results, pool, TASKS_AHEAD * processes)
    except BrokenProcessPool as error:
        raise OSError(
            "a worker process died while it read words, probably for lack of memory; free some memory, then "
            "start again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _results(pool: ProcessPoolExecutor, ahead: int, tasks: Iterable[Task]) -> Iterator:
    pending: deque[Future] = deque()
    for task in tasks:
        if len(pending) == ahead:
            yield pending.popleft().result()
        pending.append(pool.submit(_call, task))
    while pending:
        yield pending.popleft().result()


class _Process(SpawnProcess):
    """A process that does not import the main program, which may lack a `__main__` guard or a file."""

    def start(self) -> None:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(SpawnContext):
    Process = _Process


_function: Callable  # of this worker


def _initialize(function: Callable) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which stops its workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # only workers get here
    parent.join()
    os._exit(1)


def _call(task: object) -> object:
    return _function(task)
