"""Starts `train.py` again and again in fresh processes, without importing everything again each time.

Reads one JSON line a launch: {"words": [..], "ranks": [{..environment..}, ..], "kill": [rank, where, call],
"seconds": limit, "folder": .., "output": .., "errors": ..}. Everything is imported once; each process of the
launch is a fork of that. `ranks` is what the environment of each has beside this one's; null takes a variable
away. `kill` makes one of them send itself SIGKILL at the given call of a function, "module:Class.method".
Answers with the exit codes, negative for a signal.
"""

import functools
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401  so that no fork imports it

import txl.runs.assemble
import txl.runs.finish  # noqa: F401  the same

TRAIN = str(Path(__file__).parents[1] / "train.py")


def kill_at(where: str, call: int) -> None:
    """Let this process kill itself at so many calls of a function."""
    module, _, names = where.partition(":")
    owner = importlib.import_module(module)
    *path, name = names.split(".")
    for part in path:
        owner = getattr(owner, part)
    function, calls = getattr(owner, name), [0]

    @functools.wraps(function)
    def counted(*words, **options):
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*words, **options)

    setattr(owner, name, counted)


def run(
    words: list[str],
    environment: dict[str, str | None],
    kill: list | None,
    folder: str,
    output: str,
    errors: str | None,
) -> None:
    """Be one process of a launch, and never return."""
    code = 1
    try:
        os.chdir(folder)
        written = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(output, written), 1)
        os.dup2(os.open(errors or output, written), 2)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if kill:
            kill_at(*kill)
        sys.argv = [TRAIN, *words]
        runpy.run_path(TRAIN, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def launch(words, ranks, kill=None, seconds=60.0, folder=".", output="output.txt", errors=None) -> list[int]:
    """Start the processes, wait, and return their exit codes."""
    started = []
    for rank, environment in enumerate(ranks):
        process = os.fork()
        if not process:
            kill = kill[1:] if kill and kill[0] == rank else None
            run(words, environment, kill, folder, output, errors)
        started.append(process)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(codes) < len(started):
        for process in started:
            ended, status = (0, 0) if process in codes else os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
            elif process not in codes and time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)  # it hung: the test sees the wrong code
        time.sleep(0.01)
    return [codes[process] for process in started]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(launch(**json.loads(line))), flush=True)
